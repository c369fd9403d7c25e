"""Memory and speed of streamed attention metrics against caching every pattern first, in one run, as ratios.

Every case is a process of its own, on a random model built from a config: by default Qwen2.5-Math-7B's 28 layers of 28 query
heads over 4 key-value heads, at a quarter of its width (d_model 896, d_mlp 4736). Only ratios mean anything. `--ratio`:
`score_heads` against plain forward passes, in one process. For Qwen2.5-0.5B's real shape: --layers 24 --heads 14
--kv-heads 2 --d-head 64 --d-mlp 4864; there the forward pass alone (its MLP) takes about 1/20 of what the cache takes. Both
sides reduce with the same code: `score_cache` of everything that `run_with_cache` kept, `score_heads` while the model runs.

How memory is measured: resident set size (Linux). The model is loaded and run once on a short prompt, freed memory is
given back (`malloc_trim`), the kernel's high-water mark is reset (/proc/self/clear_refs) and read again after the run:
"peak" is what the run needed above the loaded model. glibc is told to map every block over 64 KB by itself
(MALLOC_MMAP_THRESHOLD_), so that freed tensors leave the resident set. How time is measured: wall clock, the best of
`--repeats` runs; the memory run comes first and warms up.
"""

import argparse
import ctypes
import gc
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

METRICS = (
    "span_mass",
    "log_density_ratio",
    "entropy",
    "span_relative",
    "collapse_relative",
    "recovery_ratio",
    "kurtosis",
)
CASES = {
    "cache, bridge": "bridge eager cache",
    "cache, HookedTransformer": "hooked_transformer eager cache",
    "streamed, bridge": "bridge eager stream",
    "streamed, HookedTransformer": "hooked_transformer eager stream",
    "streamed, nnsight fused": "nnsight sdpa stream",
    "forward pass alone, nnsight fused": "nnsight sdpa forward",
}
SHORT = 64


def main() -> None:
    """Run all cases and print one table; with --case run one and print its figures as JSON."""
    options = _options()
    if options.case:
        print(json.dumps(_one(options)))
        return
    with tempfile.TemporaryDirectory(prefix="bench-profiles-") as folder:
        if options.ratio:
            return _ratio(options, Path(folder) / "large")
        shape = [options.layers, options.heads, options.kv_heads, options.d_head, options.d_mlp]
        _save_model(Path(folder) / "large", *shape, context=max(options.tokens, SHORT) + 1)
        found = {}
        for name, case in CASES.items():
            if name.startswith("cache, HookedTransformer") and options.skip_hooked:
                continue
            found[name] = _run(options, case, Path(folder) / "large", options.tokens)
            print(f"  {name}: {found[name]}", file=sys.stderr)
        demo = _demo_shape()
        _save_model(Path(folder) / "demo", *demo, context=options.long + 1)
        long = {"streamed, nnsight fused": _run(options, "nnsight sdpa stream", Path(folder) / "demo", options.long)}
        long["profile, nnsight fused"] = _run(options, "nnsight sdpa profile", Path(folder) / "demo", options.long)
        long["streamed, bridge"] = _run(options, "bridge eager stream", Path(folder) / "demo", options.long)
    imported = sorted(_import_time() for _ in range(7))
    _report(options, found, demo, long, imported)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value, what in (
        ("layers", 28, "layers of the large model"),
        ("heads", 28, "its query heads"),
        ("kv-heads", 4, "its key-value heads"),
        ("d-head", 32, "its head size"),
        ("d-mlp", 4736, "its MLP width"),
        ("tokens", 1024, "length of its prompt"),
        ("long", 4096, "length of the demo-sized model's prompt"),
        ("repeats", 3, "timed runs per case"),
        ("threads", 1, "threads of the processor"),
    ):
        parser.add_argument(f"--{name}", type=int, default=value, help=f"{what} [{value}]")
    parser.add_argument("--ratio", action="store_true", help="only score_heads against plain passes, in one process")
    parser.add_argument("--case", help="run one case in this process (used by the program itself)")
    parser.add_argument("--model", type=Path, help="its model directory")
    parser.add_argument("--skip-hooked", action="store_true", help="leave HookedTransformer's cache out")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    return parser.parse_args()


def _run(options: argparse.Namespace, case: str, folder: Path, tokens: int) -> dict[str, float]:
    """One case in a process of its own."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        __file__,
        "--case",
        case,
        "--model",
        str(folder),
        "--tokens",
        str(tokens),
    ]
    command += ["--repeats", str(options.repeats), "--threads", str(options.threads)]
    limits = {"OMP_NUM_THREADS": str(options.threads), "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run(command, env={**os.environ, **limits}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{case} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _one(options: argparse.Namespace) -> dict[str, float]:
    import torch

    import mless_interp as mi

    torch.set_num_threads(options.threads)
    backend, attention, how = options.case.split()
    model = mi.load_model(options.model, backend=backend, attn_implementation=attention)
    work = {"cache": _cache, "stream": _stream, "forward": _forward, "profile": _profile}[how]
    work(model, _pair(mi, model, SHORT))
    pair = _pair(mi, model, options.tokens)
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    times = []
    started = time.perf_counter()
    work(model, pair)
    peak = _memory("VmHWM") - before
    times.append(time.perf_counter() - started)
    for _ in range(options.repeats - 1):
        started = time.perf_counter()
        work(model, pair)
        times.append(time.perf_counter() - started)
    return {"peak_mb": peak, "seconds": min(times), "model_mb": before}


def _ratio(options: argparse.Namespace, folder: Path) -> None:
    """`score_heads` as it is usually called, against plain eager passes of its two prompts, one after the other each time."""
    import torch

    import mless_interp as mi

    torch.set_num_threads(options.threads)
    shape = [options.layers, options.heads, options.kv_heads, options.d_head, options.d_mlp]
    _save_model(folder, *shape, context=options.tokens + 1)
    model = mi.load_model(folder, backend="bridge")
    pair = _pair(mi, model, options.tokens)

    def plain() -> float:
        started = time.perf_counter()
        with torch.no_grad():
            for prompt in (pair.base, pair.inserted):
                model.hf_model(input_ids=prompt.tokens, use_cache=False, logits_to_keep=1)
        return time.perf_counter() - started

    def scored() -> float:
        started = time.perf_counter()
        mi.score_heads(model, [pair], progress=False)
        return time.perf_counter() - started

    plain(), scored()
    for _ in range(options.repeats):
        before, ours, after = plain(), scored(), plain()
        print(
            f"plain {before:.2f} and {after:.2f} s, score_heads {ours:.2f} s: {2 * ours / (before + after):.2f} times"
        )


def _memory(field: str) -> float:
    """A field of /proc/self/status in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def _cache(model: Any, pair: Any) -> None:
    import torch

    import mless_interp as mi

    run = model.underlying.run_with_cache
    with torch.no_grad():  # else every layer's activations stay for a backward pass, and the cache looks far worse
        _, cache = run(pair.inserted.tokens, names_filter=lambda name: name.endswith("hook_pattern"))
    mi.score_cache(cache, pair, metrics=METRICS)


def _stream(model: Any, pair: Any) -> None:
    import mless_interp as mi

    mi.score_heads(model, [pair], metrics=METRICS, conditions=("inserted",), progress=False)


def _profile(model: Any, pair: Any) -> None:
    import mless_interp as mi

    mi.attention_profile(model, [pair], conditions=("inserted",), progress=False)


def _forward(model: Any, pair: Any) -> None:
    model.run(pair.inserted.tokens, logits_at="none")


def _pair(mi: Any, model: Any, n_tokens: int) -> Any:
    """A prompt of random tokens: 18, then the span (half of the prompt, at most 55 tokens), then the question."""
    import torch

    n_span = min(55, n_tokens // 2)
    n = n_tokens - n_span
    draw = torch.Generator().manual_seed(0)
    ids = tuple(torch.randint(3, model.info.d_vocab, (n,), generator=draw).tolist())
    names = ("system",) * 18 + ("question",) * (n - 18)
    base = mi.prompts.Prompt(ids, names)
    return mi.PromptPair(
        problem=mi.Problem(id="bench", question="q", answer="a"),
        base=base,
        inserted=mi.prompts.insert_tokens(base, 18, (2,) * n_span),
        insertion=mi.Insertion.meaningless(" /", n_span),
    )


def _save_model(folder: Path, n_layers: int, n_heads: int, n_kv: int, d_head: int, d_mlp: int, *, context: int) -> None:
    import torch
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    words = {"<unk>": 0, "<eos>": 1, "/": 2} | {f"w{i}": i for i in range(3, 2000)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<unk>")), unk_token="<unk>", eos_token="<eos>"
    )
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(words),
        hidden_size=n_heads * d_head,
        intermediate_size=d_mlp,
        num_hidden_layers=n_layers,
        num_attention_heads=n_heads,
        num_key_value_heads=n_kv,
        max_position_embeddings=context,
        tie_word_embeddings=True,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _demo_shape() -> list[int]:
    """Layers, heads, key-value heads, head size and MLP width of the bundled model."""
    import mless_interp

    config = Path(mless_interp.__file__).parent / "models" / "demo" / "config.json"
    if not config.is_file():
        return [4, 28, 4, 8, 256]
    found = json.loads(config.read_text(encoding="utf-8"))
    heads = found["num_attention_heads"]
    d_head = found.get("head_dim") or found["hidden_size"] // heads
    return [found["num_hidden_layers"], heads, found["num_key_value_heads"], d_head, found["intermediate_size"]]


def _import_time() -> float:
    code = "import time; t = time.perf_counter(); import mless_interp; print(time.perf_counter() - t)"
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def _report(
    options: argparse.Namespace,
    found: dict[str, dict[str, float]],
    demo: list[int],
    long: dict[str, dict[str, float]],
    imported: list[float],
) -> None:
    reference = found["cache, bridge"]
    shape = f"{options.layers} layers x {options.heads} heads ({options.kv_heads} kv), d_head {options.d_head}"
    print(
        f"{shape}, float32, {options.tokens} tokens, {options.threads} thread(s), {platform.processor() or platform.machine()}"
    )
    print(f"{'':36}{'peak MB':>10}{'of cache':>10}{'seconds':>10}{'of cache':>10}")
    for name, case in found.items():
        memory, seconds = case["peak_mb"] / reference["peak_mb"], case["seconds"] / reference["seconds"]
        print(f"{name:36}{case['peak_mb']:10.0f}{memory:10.3f}{case['seconds']:10.2f}{seconds:10.2f}")
    patterns = options.layers * options.heads * options.tokens**2 * 4 / 2**20
    print(f"'of cache': ratio to 'cache, bridge'. All patterns together are {patterns:.0f} MB.")
    print(f"\n{demo[0]} layers x {demo[1]} heads (the bundled model's shape), {options.long} tokens")
    for name, case in long.items():
        print(f"{name:36}{case['peak_mb']:10.0f} MB{case['seconds']:10.2f} s")
    print(f"\nimport mless_interp: {imported[len(imported) // 2]:.3f} s (median of {len(imported)})")
    if options.json:
        figures = {
            "options": vars(options) | {"json": None, "model": None},
            "cases": found,
            "long": long,
            "import": imported,
        }
        options.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
