"""An exact sweep of all heads against what a user would do instead: TransformerLens' patching and nnsight's way.

One run, the same random weights (in the geometry of Qwen2.5-0.5B, then of GPT-2 small), the same prompt (18 + 55 + 42
tokens), the same edits, equal numbers. Peers run one whole forward pass per head; they are timed on heads spread over all
layers and scaled.

    python benchmarks/bench_patching.py --threads 2
    python benchmarks/bench_patching.py --shape gpt2 --sample-every 1
    python benchmarks/bench_patching.py --device cuda

On a GPU all of them use TF32.
"""

import contextlib
import io
import time
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Annotated, Any

import torch
import typer

import mless_interp as mi

SYSTEM, INSERTED, QUESTION = 18, 55, 42


@dataclass(frozen=True)
class Geometry:
    """Sizes of a random model; with a gated MLP and rotary positions it is a Qwen2, without a GPT-2."""

    name: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    gated: bool = True


SHAPES = {
    "qwen": Geometry("Qwen2.5-0.5B", 896, 4864, 24, 14, 2, 151_936),
    "gpt2": Geometry("GPT-2 small", 768, 3072, 12, 12, 12, 50_257, gated=False),
}


def random_model(geometry: Geometry, device: str = "cpu") -> Any:
    """A Qwen2 or GPT-2 with random weights, fused attention."""
    import transformers

    torch.manual_seed(0)
    g = geometry
    if g.gated:
        config: Any = transformers.Qwen2Config(
            vocab_size=g.vocabulary,
            hidden_size=g.hidden,
            intermediate_size=g.intermediate,
            num_hidden_layers=g.layers,
            num_attention_heads=g.heads,
            num_key_value_heads=g.kv_heads,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
            architectures=["Qwen2ForCausalLM"],
        )
    else:
        config = transformers.GPT2Config(
            vocab_size=g.vocabulary,
            n_embd=g.hidden,
            n_inner=g.intermediate,
            n_layer=g.layers,
            n_head=g.heads,
            architectures=["GPT2LMHeadModel"],
        )
    config._attn_implementation = "sdpa"
    return transformers.AutoModelForCausalLM.from_config(config).eval().to(device)


def random_pair(geometry: Geometry, number: int) -> mi.PromptPair:
    """A pair of the paper's lengths from random ids: 18 system, 55 inserted, 42 question tokens, the answer among them."""
    generator = torch.Generator().manual_seed(number)
    ids = tuple(torch.randint(10, geometry.vocabulary - 10, (SYSTEM + QUESTION,), generator=generator).tolist())
    base = mi.prompts.Prompt(ids, ("system",) * SYSTEM + ("question",) * QUESTION)
    inserted = mi.prompts.insert_tokens(base, SYSTEM, (608,) * INSERTED)
    pair = mi.PromptPair(
        problem=mi.Problem(id=f"p{number}", question=f"random ids {number}", answer="1"),
        base=base,
        inserted=inserted,
        insertion=mi.Insertion.meaningless(" /", INSERTED),
    )
    # the last question token plays the answer, so that the whole prompt has exactly the paper's length
    question = replace(base, ids=ids[:-1], segments=base.segments[:-1])
    return replace(
        pair,
        base=question,
        inserted=mi.prompts.insert_tokens(question, SYSTEM, (608,) * INSERTED),
        answer_ids=ids[-1:],
    )


def arithmetic(geometry: Geometry, positions: int, length: int) -> float:
    """Floating-point operations that a sweep needs: rows x positions through each remaining layer, logits where read."""
    g, head_size = geometry, geometry.hidden // geometry.heads
    qkv = 2 * g.hidden * (g.hidden + 2 * g.kv_heads * head_size)
    out = 2 * g.hidden * g.hidden
    mlp = (6 if g.gated else 4) * g.hidden * g.intermediate
    attention = 4 * g.heads * head_size * length
    total = 0.0
    for layer in range(g.layers):
        for at in range(layer, g.layers):
            queries = 1 if at == g.layers - 1 else positions  # in the last layer only what is read goes on
            total += queries * (out + mlp)
            if at > layer:
                keys_and_values = 2 * g.hidden * 2 * g.kv_heads * head_size
                total += queries * (qkv - keys_and_values + attention) + positions * keys_and_values
        total += 2 * g.hidden * g.vocabulary
    return total * g.heads


@torch.no_grad()
def matrix_throughput(geometry: Geometry, device: str) -> float:
    """Operations per second of this machine's fastest float32 product, PyTorch's or oneDNN's, at the sweep's MLP shape."""
    rows = geometry.heads * QUESTION
    a = torch.randn(rows, geometry.hidden, device=device)
    b = torch.randn(geometry.hidden, geometry.intermediate, device=device)
    best = 0.0
    for multiply in (torch.matmul, lambda a, b: mi.models.attention_math.product(a, b.T)) * 20:
        began = time.perf_counter()
        multiply(a, b)[-1, -1].item()  # which waits for a GPU
        best = max(best, 2 * rows * geometry.hidden * geometry.intermediate / (time.perf_counter() - began))
    return best


def seconds(run: Any, repeat: int = 1) -> tuple[float, Any]:
    """(mean time, last result)."""
    began = time.perf_counter()
    for _ in range(repeat):
        result = run()
    return (time.perf_counter() - began) / repeat, result


def with_transformer_lens(model: Any, pair: mi.PromptPair, sample: list[mi.Head]) -> tuple[float, list[float]]:
    """Seconds per head of TransformerLens' own generic_activation_patch at z, all positions, and its outcomes."""
    import pandas as pd
    from transformer_lens import patching

    hooked = model.underlying
    masked, inserted = (pair.condition(name).to(model.info.device) for name in ("masked", "inserted"))
    masks = model.position_hooks(masked, model.visible(masked))
    with torch.no_grad(), hooked.hooks(fwd_hooks=masks):
        _, cache = hooked.run_with_cache(masked.tokens, names_filter=lambda name: name.endswith("hook_z"))
    read, answer = len(pair.inserted) - 2, pair.answer_ids[0]
    frame = pd.DataFrame({"layer": [h.layer for h in sample], "head": [h.head for h in sample]})
    with torch.no_grad(), contextlib.redirect_stderr(io.StringIO()):
        spent, found = seconds(
            lambda: patching.generic_activation_patch(
                model=hooked,
                corrupted_tokens=inserted.tokens,
                clean_cache=cache,
                patching_metric=lambda logits: torch.log_softmax(logits[0, read].float(), -1)[answer],
                patch_setter=patching.layer_head_vector_patch_setter,
                activation_name="z",
                index_df=frame,
            )
        )
    return spent / len(sample), found.tolist()


def with_nnsight(model: Any, pair: mi.PromptPair, sample: list[mi.Head]) -> tuple[float, list[float]]:
    """Seconds per head of one trace per head that sets the head's slice of the output projection's input, and outcomes."""
    import nnsight

    traced, size = model.underlying, model.info.d_head
    masked, inserted = pair.condition("masked"), pair.condition("inserted")
    names = {head: mi.models.sites.site(head.layer, "attn.hook_z") for head in sample}
    capture = dict.fromkeys(names.values())
    donor = model.run(masked, capture=capture, logits_at="none").captured
    answer, start, last = list(pair.answer_ids), pair.span[1], len(pair.inserted) - 1
    tokens = inserted.tokens.to(model.info.device)
    found = []
    began = time.perf_counter()
    for head in sample:
        part = slice(head.head * size, (head.head + 1) * size)
        new = donor[names[head]][0, start:, head.head]
        shown: dict[str, Any] = {}
        with (
            torch.no_grad(),
            traced.trace({"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}),
        ):
            output = attrgetter(f"{model.paths[head.layer]}.{model.parts[head.layer].output_path}")(traced)
            output.input[0, start:, part] = new
            shown["logits"] = traced.lm_head.output[0, last - len(answer) : last]
            nnsight.save(shown)
        found.append(float(torch.log_softmax(shown["logits"].float(), -1)[range(len(answer)), answer].sum()))
    return (time.perf_counter() - began) / len(sample), found


def main(
    threads: Annotated[int, typer.Option(help="Threads of torch.")] = 2,
    sample_every: Annotated[int, typer.Option(help="Peers are timed on one head in every so many layers.")] = 2,
    shape: Annotated[list[str] | None, typer.Option(help="qwen or gpt2 (default: one after the other).")] = None,
    layers: Annotated[int | None, typer.Option(help="Layers of the model (default: all).")] = None,
    skip_all: Annotated[bool, typer.Option("--skip-all", help="Leave the sweep of all positions out.")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """Print a table of seconds per head and ratios for each geometry."""
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("highest" if device == "cpu" else "high")
    for name in shape or SHAPES:
        geometry = SHAPES[name]
        compare(
            replace(geometry, layers=layers or geometry.layers),
            sample_every=sample_every,
            skip_all=skip_all,
            device=device,
        )


def compare(geometry: Geometry, *, sample_every: int, skip_all: bool, device: str) -> None:
    """Print the table of one geometry."""
    length = SYSTEM + INSERTED + QUESTION
    pairs = [random_pair(geometry, number) for number in range(4)]
    answered = pairs[0].answered()
    # an empty answer prefix and one answer token: 18 + 55 + 42 tokens in all
    assert len(answered.inserted) == length
    sample = [mi.Head(layer, (5 * layer) % geometry.heads) for layer in range(0, geometry.layers, sample_every)]
    throughput = matrix_throughput(geometry, device)
    print(f"{geometry}; {length} tokens; {machine(device)}; matrix product {throughput / 1e9:.0f} GFLOP/s")

    peers: dict[str, float] = {}
    expected: list[float] = []
    hf_model = random_model(geometry, device)
    traced = mi.models.nnsight.NnsightModel(mi.models.nnsight.wrapped(hf_model, _tokenizer()), name="random")
    ours: dict[str, Any] = {"nnsight (sdpa)": traced.checked(mi.models.checks.check_model(traced))}
    peers["nnsight, one trace per head"], from_nnsight = with_nnsight(ours["nnsight (sdpa)"], answered, sample)
    if mi.models.transformer_lens.has_hooked_transformer():
        hooked = mi.models.transformer_lens.hooked_transformer_from(random_model(geometry, device), None, name="random")
        ours["HookedTransformer"] = hooked.checked(mi.models.checks.check_model(hooked))
        peers["TransformerLens patching"], expected = with_transformer_lens(hooked, answered, sample)
        worst = max(abs(a - b) for a, b in zip(expected, from_nnsight, strict=True))
        print(f"the two peers' outcomes differ by at most {worst:.1e} nats")
    expected = expected or from_nnsight
    bridge = mi.models.transformer_lens.bridge_from(random_model(geometry, device), _tokenizer(), name="random")
    ours["TransformerBridge"] = bridge.checked(mi.models.checks.check_model(bridge))
    for name, spent in peers.items():
        print(f"{name}: {spent:.3f} s a head ({len(sample)} heads over all layers)")
    reference = min(spent for name, spent in peers.items() if "patching" in name or len(peers) == 1)

    n_heads = geometry.layers * geometry.heads
    print(
        "\n| ours on | positions | s a head | TransformerLens / ours | share of matrix throughput | largest difference |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    for name, model in ours.items():
        if device != "cpu":
            mi.patch_heads(model, pairs[:1], progress=False)  # the first call of a GPU's kernels does not count
        for positions in ("question", "last") if skip_all else ("all", "question", "last"):
            spent, found = seconds(
                lambda model=model, positions=positions: mi.patch_heads(
                    model, pairs[:1], positions=positions, progress=False
                ),
                repeat=5 if positions == "last" or device != "cpu" else 1,
            )
            changed = {"all": length, "question": QUESTION, "last": 2}[positions] - 1
            share = arithmetic(geometry, changed, length) / spent / throughput
            worst = float("nan")
            if positions != "last":
                worst = max(abs(found.patched[0, h.layer, h.head] - e) for h, e in zip(sample, expected, strict=True))
            ratio = reference * n_heads / spent
            print(
                f"| {name} | {positions} | {spent / n_heads:.4f} | {ratio:.1f} | {share:.0%} | {worst:.1e} |",
                flush=True,
            )
    model = ours["nnsight (sdpa)"]
    one, _ = seconds(lambda: mi.patch_heads(model, pairs[:1], progress=False))
    four, _ = seconds(lambda: mi.patch_heads(model, pairs, progress=False))
    print(
        f"\nseveral problems at once: {four / 4:.1f} s a problem with 4, {one:.1f} s with 1 (ratio {four / 4 / one:.2f})"
    )


def machine(device: str) -> str:
    """Where it runs, in words."""
    return f"{torch.get_num_threads()} threads" if device == "cpu" else torch.cuda.get_device_name(device)


def _tokenizer() -> Any:
    """Any will do: prompts here are ids."""
    return mi.models.hugging_face.load_tokenizer(str(mi.models.load.DEMO_DIRECTORY))


if __name__ == "__main__":
    typer.run(main)
