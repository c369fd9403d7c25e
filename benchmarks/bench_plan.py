"""Is what `mless-interp plan` predicts within a factor of 2 of what happens?

Each analysis of each model is planned in one process and run in another, which is fresh: its time without loading (the plan's
terms but the first, which has the libraries and loading), and its peak resident memory. Random models have the geometry of
GPT-2 small and of Qwen2.5-0.5B, and are written into a temporary folder with the demo model's tokenizer and problems; "planted"
is a model with planted circuits and its own problems. Of locating, what is done with named heads is counted only where heads
were named, for as many as were; answers are taken to be as long as the longest one was.

    OMP_NUM_THREADS=1 python benchmarks/bench_plan.py --also path/to/model
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

ANALYSES = ("sweep", "locate", "profiles", "accuracy")
LOADING = "loading and self-check"
UNITS = (" /", "/", " .", ".", " a", "a")
SHAPES: dict[str, dict[str, Any]] = {
    "gpt2": {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50_257},
    "qwen": {
        "model_type": "qwen2",
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 151_936,
        "tie_word_embeddings": True,
    },
}
N_PROBLEMS = {
    "demo": {"sweep": 16, "locate": 16, "profiles": 16, "accuracy": 64},
    "planted": {"sweep": 16, "locate": 16, "profiles": 16, "accuracy": 64},
    "gpt2": {"sweep": 2, "locate": 2, "profiles": 4, "accuracy": 8},
    "qwen": {"sweep": 1, "locate": 2, "profiles": 4, "accuracy": 8},
    "": {"sweep": 16, "locate": 16, "profiles": 16, "accuracy": 32},
}
MAX_NEW_TOKENS = 48


def saved(name: str, folder: Path) -> Path:
    """A random model of that shape in a folder, with the demo model's tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from mless_interp.models.hugging_face import load_tokenizer
    from mless_interp.models.load import DEMO_DIRECTORY

    if name == "planted":
        import mless_interp as mi

        mi.planted_model(readers=[mi.Head(0, 13), mi.Head(0, 21)], mediators=[mi.Head(1, 4)]).save(folder / name)
        return folder / name
    torch.manual_seed(0)
    made = AutoModelForCausalLM.from_config(AutoConfig.for_model(**SHAPES[name]))
    made.save_pretrained(folder / name)
    load_tokenizer(str(DEMO_DIRECTORY)).save_pretrained(folder / name)
    return folder / name


def asked(model: str, what: str, n: int, tokenizer: Any) -> tuple[Any, Any]:
    """Problems, and slashes as this tokenizer has them."""
    import mless_interp as mi
    from mless_interp.command_line import chosen_problems

    problems = chosen_problems(None, model, limit=n)
    for unit in UNITS:
        filler = mi.Insertion.meaningless(unit, n_tokens=55)
        try:
            mi.make_pairs(tokenizer, problems[:1], filler, template=TEMPLATE)
        except ValueError:
            continue
        return problems, filler
    raise ValueError(f"none of {UNITS} is one token of {model}")


TEMPLATE = "raw"


def planned(model: str, what: str, n: int, n_named: int, n_new: int) -> dict[str, Any]:
    """What the plan says."""
    import mless_interp as mi
    from mless_interp.planning.shape import Shape

    problems, filler = asked(model, what, n, Shape.of(model).tokenizer)
    options: dict[str, Any] = {"max_new_tokens": n_new or None, "dtype": "float32", "device": "cpu"}
    began = time.perf_counter()
    found = mi.plan_run(
        model,
        problems,
        filler,
        what=what,
        backend="nnsight",
        attention="sdpa",
        n_named=n_named or 5,
        seconds=10,
        **options,
    )
    return found.to_dict() | {"planning": time.perf_counter() - began}


def measured(model: str, what: str, n: int) -> dict[str, Any]:
    """What happens."""
    import mless_interp as mi

    began = time.perf_counter()
    _ = mi.patch_heads, mi.locate_heads, mi.score_heads, mi.evaluate_accuracy  # libraries, which the first term counts
    loaded = mi.load_model(model, backend="nnsight", attn_implementation="sdpa", device="cpu")
    loading = time.perf_counter() - began
    problems, filler = asked(model, what, n, loaded.tokenizer)
    pairs = mi.make_pairs(loaded, problems, filler, template=TEMPLATE)
    began, named, longest = time.perf_counter(), 0, 0
    if what == "sweep":
        mi.patch_heads(loaded, pairs, progress=False)
    elif what == "locate":
        found = mi.locate_heads(loaded, pairs, mode="exact", progress=False)
        named = len(found.found)
    elif what == "profiles":
        mi.score_heads(loaded, pairs, progress=False)
        mi.attention_profile(loaded, pairs, heads=loaded.info.heads[:3], progress=False)
    else:
        options: dict[str, Any] = {"max_new_tokens": MAX_NEW_TOKENS, "progress": False, "template": TEMPLATE}
        answers = mi.evaluate_accuracy(loaded, problems, [None, filler], **options)
        longest = int(answers.to_frame()["n_tokens"].max())
    seconds = time.perf_counter() - began
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return {
        "loading": loading,
        "seconds": seconds,
        "peak": 1024 * int(peak[1]) if peak else float("nan"),
        "named": named,
        "longest": longest,
    }


def in_a_process(kind: str, model: str, what: str, *numbers: int, cpu_time: bool) -> dict[str, Any]:
    """The same in a process of its own."""
    clock = ["--cpu-time"] if cpu_time else []
    command = [sys.executable, __file__, *clock, "--only", kind, model, what, *map(str, numbers)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--models",
        nargs="*",
        default=["demo", "planted", "gpt2", "qwen"],
        help="demo, planted, gpt2, qwen, or directories",
    )
    parser.add_argument("--also", nargs="*", default=[], help="more directories")
    parser.add_argument("--analyses", nargs="*", default=list(ANALYSES), choices=ANALYSES)
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="seconds of the processor instead of the clock, for a busy machine, one thread",
    )
    parser.add_argument("--only", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        kind, model, what, *numbers = options.only
        if options.cpu_time:
            time.perf_counter = time.process_time
        run: Any = {"planned": planned, "measured": measured}[kind]
        print(json.dumps(run(model, what, *map(int, numbers))))
        return
    packages = ", ".join(f"{name} {version(name)}" for name in ("mless_interp", "torch", "transformers", "nnsight"))
    print(
        f"{packages}; Python {platform.python_version()}; {os.environ.get('OMP_NUM_THREADS', 'all')} thread(s); nnsight, sdpa"
    )
    print(
        "\n| model | analysis | problems | layers timed | predicted s | measured s | ratio | predicted GB | measured GB "
        "| ratio | load, predicted s | load, measured s | planning s |"
    )
    print(f"|{' --- |' * 13}")
    with tempfile.TemporaryDirectory() as folder:
        for name in [*options.models, *options.also]:
            model = str(saved(name, Path(folder))) if name in (*SHAPES, "planted") else name
            for what in options.analyses:
                n = N_PROBLEMS.get(name, N_PROBLEMS[""])[what]
                found = in_a_process("measured", model, what, n, cpu_time=options.cpu_time)
                plan = in_a_process(
                    "planned", model, what, n, found["named"], found["longest"], cpu_time=options.cpu_time
                )
                terms = {term["name"]: term["seconds"] for term in plan["terms"]}
                load = terms.pop(LOADING)
                spent = sum(s for label, s in terms.items() if found["named"] or not label.startswith("controls"))
                heads = f", {found['named']} named" if what == "locate" else ""
                heads += f", {found['longest']} tokens" if what == "accuracy" else ""
                print(
                    f"| {Path(name).name} | {what}{heads} | {n} | {plan['timed_layers']} of {plan['n_layers']} | {spent:.3g} "
                    f"| {found['seconds']:.3g} | {spent / found['seconds']:.2f} | {plan['peak_bytes'] / 1e9:.2f} "
                    f"| {found['peak'] / 1e9:.2f} | {plan['peak_bytes'] / found['peak']:.2f} | {load:.2g} "
                    f"| {found['loading']:.2g} | {plan['planning']:.2g} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
