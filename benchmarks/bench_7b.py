"""A 7B: every head swept on one problem, in memory that holds little more than the weights; and what `plan` predicts.

Random weights in Qwen2.5-Math-7B's exact geometry (28 layers of 28 query and 4 key-value heads, width 3,584, MLP 18,944,
152,064 words), bfloat16 in ten shards: 15.2 GB, written into `--folder` and left there. One problem of 116 tokens, 47 of
them after the insertion. Skipped, with the reason, where memory or disk do not hold it.

    python benchmarks/bench_7b.py --folder /tmp/random-7b --threads 2
    python benchmarks/bench_7b.py --folder /tmp/random-small --layers 2 --vocab 2000
    python benchmarks/bench_7b.py --folder /tmp/random-7b --device cuda --locate

On a GPU also what a user would do instead: one nnsight trace per head, timed on a head of every layer.
"""

import argparse
import json
import re
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from bench_patching import machine, with_nnsight

import mless_interp as mi

BEFORE, INSERTED, AFTER, ANSWER = 14, 55, 43, 4
N_SHARDS = 10
SPARE = 1.5e9
"""Memory beside the weights."""


def config_of(layers: int, vocabulary: int) -> Any:
    from transformers import Qwen2Config

    return Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=3584,
        intermediate_size=18_944,
        num_hidden_layers=layers,
        num_attention_heads=28,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        architectures=["Qwen2ForCausalLM"],
        dtype="bfloat16",
    )


def write_weights(folder: Path, config: Any) -> None:
    """Random bfloat16 weights in shards, one in memory at a time, with the demo model's tokenizer."""
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    with torch.device("meta"):
        shapes = {name: weight.shape for name, weight in AutoModelForCausalLM.from_config(config).named_parameters()}
    block = (torch.randn(2**20, generator=torch.Generator().manual_seed(0)) * 0.02).bfloat16()
    total = sum(shape.numel() for shape in shapes.values())
    shards: list[list[str]] = [[] for _ in range(N_SHARDS)]
    before = 0
    for name, shape in shapes.items():
        shards[min(N_SHARDS - 1, N_SHARDS * before // total)].append(name)
        before += shape.numel()
    where: dict[str, str] = {}
    for number, names in enumerate(filled := [names for names in shards if names]):
        file = f"model-{number + 1:05d}-of-{len(filled):05d}.safetensors"
        tensors = {}
        for name in names:
            n = shapes[name].numel()
            if "norm" in name:
                flat = torch.ones(n)
            elif name.endswith("bias"):
                flat = torch.zeros(n)
            else:
                flat = block.roll(len(where) * 997).repeat(-(-n // len(block)))[:n]
            tensors[name] = flat.view(shapes[name]).bfloat16().contiguous()
            where[name] = file
        save_file(tensors, folder / file, metadata={"format": "pt"})
    index = {"metadata": {"total_size": 2 * total}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    config.save_pretrained(folder)
    mi.models.hugging_face.load_tokenizer(str(mi.models.load.DEMO_DIRECTORY)).save_pretrained(folder)


def pair_of(vocabulary: int) -> mi.PromptPair:
    """One problem of random tokens."""
    n = BEFORE + AFTER
    ids = tuple(torch.randint(10, vocabulary - 10, (n + ANSWER,), generator=torch.Generator().manual_seed(0)).tolist())
    base = mi.prompts.Prompt(ids[:n], ("system",) * BEFORE + ("question",) * AFTER)
    return replace(
        mi.PromptPair(
            problem=mi.Problem(id="p0", question="random ids", answer="1"),
            base=base,
            inserted=mi.prompts.insert_tokens(base, BEFORE, (608,) * INSERTED),
            insertion=mi.Insertion.meaningless(" /", INSERTED),
        ),
        answer_ids=ids[n:],
    )


def kilobytes(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1]) if found else 0


@contextmanager
def watched(peaks: dict[str, float]) -> Any:
    """Peaks of resident and of anonymous memory, in GB, looked at twenty times a second."""
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(0.05):
            for name in ("VmRSS", "RssAnon"):
                peaks[name] = max(peaks.get(name, 0.0), kilobytes(name) * 1024 / 1e9)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def seconds(run: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    found = run()
    return time.perf_counter() - began, found


@torch.no_grad()
def product_speed(device: str, rows: int = 1024) -> float:
    """Operations per second of this machine's bfloat16 product at the MLP's shape: the best of five."""
    x, weight = (torch.randn(n, 3584, device=device).bfloat16() for n in (rows, 18_944))
    run = lambda: torch.nn.functional.linear(x, weight)[-1, -1].item()  # noqa: E731
    return 2 * rows * 3584 * 18_944 / min(seconds(run)[0] for _ in range(5))


def lacks(folder: Path, n_bytes: float) -> str:
    """Why it cannot be run here; empty if it can."""
    found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    memory = 1024 * int(found[1]) if found else 0
    if memory < n_bytes + SPARE:
        return f"it needs {(n_bytes + SPARE) / 1e9:.1f} GB of memory, {memory / 1e9:.1f} are free"
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    if not (folder / "config.json").exists() and free < n_bytes + SPARE:
        return f"it needs {n_bytes / 1e9:.1f} GB on the disk, {free / 1e9:.1f} are free"
    return ""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="where the weights are, or are to be")
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--vocab", type=int, default=152_064)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument("--locate", action="store_true", help="the four sweeps of locating too")
    parser.add_argument("--delete", action="store_true", help="delete the weights afterwards")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    n_weights = options.layers * 233_057_792 + 2 * 3584 * options.vocab
    reason = lacks(options.folder, 2 * n_weights)
    if reason:
        print(f"skipped: {reason}")
        return
    if not (options.folder / "config.json").exists():
        write_weights(options.folder, config_of(options.layers, options.vocab))
    try:
        compare(options.folder, options.vocab, device=options.device, locate=options.locate)
    finally:
        if options.delete:
            shutil.rmtree(options.folder)


def compare(folder: Path, vocabulary: int, *, device: str, locate: bool) -> None:
    """Plan, then run; print both."""
    whats = ("sweep", "profiles", *(("locate",) if locate else ()))
    pair = pair_of(vocabulary)
    how: dict[str, Any] = {"backend": "nnsight", "dtype": "bfloat16", "device": device, "attention": "sdpa"}
    plans = {what: mi.plan_run(str(folder), [pair], what=what, **how) for what in whats}
    parts = {what: list(plan.parts.values()) for what, plan in plans.items()}
    speed = product_speed(device)
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    peaks: dict[str, float] = {}
    with watched(peaks):
        loading, model = seconds(
            lambda: mi.load_model(
                str(folder), backend="nnsight", dtype="bfloat16", device=device, attn_implementation="sdpa"
            )
        )
        tokens = pair.answered().inserted
        ids = torch.tensor([tokens.ids])
        ran = lambda: model.run(ids, logits_at="last").logits.sum().item()  # noqa: E731 - which waits for a GPU
        ran()
        one, _ = seconds(ran)
        scores, _ = seconds(
            lambda: (
                mi.score_heads(model, [pair], progress=False),
                mi.attention_profile(model, [pair], heads=model.info.heads[:3], progress=False),
            )
        )
        sweep, found = seconds(lambda: mi.patch_heads(model, [pair], progress=False))
        if device != "cpu":
            again, _ = seconds(lambda: mi.patch_heads(model, [pair], progress=False))
            attributed, _ = seconds(lambda: mi.attribute_heads(model, [pair], progress=False))
            some = [mi.Head(layer, (5 * layer) % model.info.n_heads) for layer in range(model.info.n_layers)]
            with_nnsight(model, pair.answered(), some[:1])
            each, theirs = with_nnsight(model, pair.answered(), some)
            apart = max(abs(found.patched[0, h.layer, h.head] - x) for h, x in zip(some, theirs, strict=True))
        if locate:
            four = mi.circuits.locate.sweeps_of(mi.prompts.conditions.CONTRASTS["content"])
            sweeps, _ = seconds(
                lambda: mi.patching.sweep.sweep_heads(
                    mi.patching.prepared.prepare(model, [pair]),
                    four,
                    model.info.heads,
                    options=mi.runtime.loop.RunOptions(progress=False),
                )
            )
    rows = [
        ("load with self-check, s", parts["sweep"][0] - mi.app.estimates.AROUND, loading),
        ("one forward pass, s", None, one),
        ("scores and profiles of all heads, s", parts["profiles"][1], scores),
        ("exact question sweep of all heads, s", parts["sweep"][1], sweep),
        *([("four exact sweeps, s", parts["locate"][1], sweeps)] if locate else []),
        *([("attribution of all heads, s", None, attributed)] if device != "cpu" else []),
        ("peak resident memory, GB", plans["sweep"].peak / 1e9, peaks["VmRSS"]),
        ("of it anonymous, GB", None, peaks["RssAnon"]),
    ]
    if device != "cpu":
        rows[-2:] = [("peak memory of the GPU, GB", plans["sweep"].peak / 1e9, torch.cuda.max_memory_allocated() / 1e9)]
    info = model.info
    packages = ", ".join(f"{name} {version(name)}" for name in ("mless_interp", "torch", "transformers", "nnsight"))
    print(
        f"{packages}; {machine(device)}; {info.n_layers} layers of {info.n_heads} heads, {info.d_vocab:,} "
        f"words, {plans['sweep'].n_parameters:,} weights in bfloat16; {len(tokens)} tokens, {len(tokens) - pair.span[1]} "
        "after the insertion\n"
    )
    print("| | predicted | measured | ratio |\n| --- | ---: | ---: | ---: |")
    for name, guess, value in rows:
        told = ("", "") if guess is None else (f"{guess:.3g}", f"{guess / value:.2f}")
        print(f"| {name} | {told[0]} | {value:.3g} | {told[1]} |")
    print(
        f"\n{info.n_layers * info.n_heads} whole forward passes would take {info.n_layers * info.n_heads * one / 60:.0f} min; "
        f"a bfloat16 product does {speed / 1e12:.2f} TFLOP/s. The sweep's own noise: {found.noise_floor:.1e} nats."
    )
    if device != "cpu":
        print(
            f"One nnsight trace per head: {each:.3g} s a head ({len(some)} heads, after one), "
            f"{each * len(info.heads) / again:.1f} times the sweep, which takes {again:.3g} s the second time; "
            f"outcomes differ by at most {apart:.1e} nats."
        )
    if locate:
        print(
            f"The four sweeps of locating take {sweeps / sweep:.2f} times one, {24 * sweeps / 3600:.1f} h for 24 problems."
        )


if __name__ == "__main__":
    main()
