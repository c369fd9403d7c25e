"""Edges between heads against what a user would do instead: path patching by hand with TransformerLens' hooks.

One run, the same random weights (in the geometry of GPT-2 small), the same prompt (18 + 55 + 42 tokens), equal numbers. By hand
an edge takes two forward passes: one in which the sender alone is patched and everything between is frozen, stopped at the
receiver, and one with what came into the receiver. It is timed on some of the edges, each way.

    python benchmarks/bench_circuits.py --threads 1
"""

import time
from dataclasses import replace
from typing import Annotated, Any

import torch
import typer
from bench_patching import SHAPES, random_model, random_pair

import mless_interp as mi

TURNS = 3


def seconds(run: Any) -> tuple[float, Any]:
    """(seconds of CPU time, which others on the machine lengthen least; what came of it)."""
    began = time.process_time()
    result = run()
    return time.process_time() - began, result


class ByHand:
    """Path patching of one prompt, content contrast, denoising."""

    def __init__(self, model: Any, pair: mi.PromptPair) -> None:
        self.hooked, self.tokens = model.underlying, pair.condition("inserted").tokens
        self.start, self.read, self.answer = pair.span[1], len(pair.inserted) - 2, pair.answer_ids[0]
        masked = pair.condition("masked")
        with torch.no_grad(), self.hooked.hooks(fwd_hooks=model.position_hooks(masked, model.visible(masked))):
            _, self.donor = self.hooked.run_with_cache(masked.tokens, names_filter=lambda name: name.endswith("hook_z"))
        wanted = ("hook_z", "hook_mlp_out")
        with torch.no_grad():
            logits, self.own = self.hooked.run_with_cache(self.tokens, names_filter=lambda name: name.endswith(wanted))
        self.before = self._outcome(logits)

    def _outcome(self, logits: Any) -> float:
        return float(torch.log_softmax(logits[0, self.read].float(), -1)[self.answer])

    @torch.no_grad()
    def edge(self, edge: mi.Edge) -> float:
        """What goes along one edge, as a part of the insertion's effect."""
        sender, last = mi.Head.parse(edge.sender), self.hooked.cfg.n_layers
        to_head = edge.receiver.startswith("L")
        layer = (
            mi.Head.parse(edge.receiver).layer
            if to_head
            else int(edge.receiver[3:])
            if edge.receiver != "logits"
            else last
        )
        kept: dict[str, Any] = {}

        def freeze(value: Any, hook: Any) -> Any:
            return self.own[hook.name]

        def send(value: Any, hook: Any) -> Any:
            new = self.own[hook.name].clone()
            new[:, self.start :, sender.head] = self.donor[hook.name][:, self.start :, sender.head]
            return new

        def keep(value: Any, hook: Any) -> None:
            kept[hook.name] = value.clone()

        hooks = [
            (f"blocks.{at}.attn.hook_z", send if at == sender.layer else freeze) for at in range(min(layer + 1, last))
        ]
        hooks += [(f"blocks.{at}.hook_mlp_out", freeze) for at in range(min(layer, last))]
        if edge.receiver == "logits":
            return self.before - self._outcome(self.hooked.run_with_hooks(self.tokens, fwd_hooks=hooks))
        into = (
            [f"blocks.{layer}.attn.hook_{letter}" for letter in edge.part]
            if to_head
            else [f"blocks.{layer}.hook_mlp_out"]
        )
        hooks += [(name, keep) for name in into]
        self.hooked.run_with_hooks(self.tokens, fwd_hooks=hooks, stop_at_layer=layer + 1)

        def receive(value: Any, hook: Any) -> Any:
            new = value.clone()
            place = (
                (slice(None), slice(self.start, None), mi.Head.parse(edge.receiver).head) if to_head else slice(None)
            )
            new[place] = kept[hook.name][place]
            return new

        return self.before - self._outcome(
            self.hooked.run_with_hooks(self.tokens, fwd_hooks=[(name, receive) for name in into])
        )


def main(
    threads: Annotated[int, typer.Option(help="Threads of torch.")] = 1,
    layers: Annotated[int, typer.Option(help="Layers of the model.")] = 12,
    heads: Annotated[int, typer.Option(help="Heads between which edges are traced.")] = 8,
    sample: Annotated[int, typer.Option(help="Edges that are traced by hand.")] = 24,
) -> None:
    """Print CPU seconds per edge of both ways, their ratio and their largest difference."""
    torch.set_num_threads(threads)
    geometry = replace(SHAPES["gpt2"], layers=layers)
    made = mi.models.transformer_lens.hooked_transformer_from(random_model(geometry), None, name="random")
    model = made.checked(mi.models.checks.check_model(made))
    pair = random_pair(geometry, 0)
    named = [mi.Head(at * layers // heads, (5 * at) % geometry.heads) for at in range(heads)]
    trace = lambda: mi.trace_paths(model, [pair], named, mlps=[layers - 1], progress=False)  # noqa: E731
    found = trace()  # once before, for what is made at the first use
    edges = [edge for edge in found.edges if edge.sender.startswith("L")]
    chosen = edges[:: max(1, len(edges) // sample)]
    hand = ByHand(model, pair.answered())
    spent, by_hand, expected = 0.0, 0.0, {}
    for turn in range(TURNS):  # in turns, as what else the machine does changes
        spent += seconds(trace)[0] / TURNS
        some = chosen[turn::TURNS]
        taken, values = seconds(lambda some=some: [hand.edge(edge) for edge in some])
        by_hand, expected = by_hand + taken, expected | dict(zip(some, values, strict=True))
    worst = max(abs(found.values[0, found.edges.index(edge)] - value) for edge, value in expected.items())
    ours, theirs = spent / len(found.edges), by_hand / len(chosen)
    print(
        f"{geometry.name}, {layers} layers, {threads} threads; {len(found.edges)} edges, {len(chosen)} of them by hand too\n"
    )
    print("| way | CPU s an edge | by hand / ours | largest effect (nats) | largest difference (nats) |")
    print("| --- | ---: | ---: | ---: | ---: |")
    print(f"| TransformerLens' hooks, two passes an edge | {theirs:.4f} | | {max(map(abs, expected.values())):.1e} | |")
    print(f"| trace_paths | {ours:.4f} | {theirs / ours:.1f} | | {worst:.1e} |")


if __name__ == "__main__":
    typer.run(main)
