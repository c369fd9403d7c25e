"""Is what `mless-interp plan` predicts within a factor of 2 of what happens?

Each analysis of each model is planned in one process and run in another: its seconds without loading, and its peak resident
memory. "qwen" has random weights in Qwen2.5-0.5B's geometry and "qwen, config" its config alone; both are written into a
temporary folder with the demo model's tokenizer and problems. Controls count only where heads were named.

    OMP_NUM_THREADS=1 python benchmarks/bench_plan.py --cpu-time --also path/to/model
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
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mless_interp as mi

ANALYSES = {"sweep": 16, "locate": 16, "profiles": 16, "accuracy": 64, "circuit": 26, "counting": 24, "paper": 16}
"""How many problems of a small model; of qwen an eighth."""
STUDIES = ("counting", "paper")
QWEN: dict[str, Any] = {
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151_936,
    "tie_word_embeddings": True,
}
OF_ALL = ("4 exact sweeps", "effects", "answers")
"""Parts of a plan that are done although no head is named."""
UNITS = (" /", "/", " .", ".", " a", "a")
HOW: dict[str, Any] = {"backend": "nnsight", "dtype": "float32", "device": "cpu"}


def saved(name: str, folder: Path) -> str:
    """A folder with qwen's config and, unless only that is asked for, random weights."""
    from transformers import AutoModelForCausalLM, Qwen2Config

    config = Qwen2Config(**QWEN)
    if name == "qwen":
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    config.save_pretrained(folder)
    mi.models.hugging_face.load_tokenizer(str(mi.models.load.DEMO_DIRECTORY)).save_pretrained(folder)
    return str(folder)


def asked(model: str, n: int, tokenizer: Any) -> tuple[Any, Any]:
    """Problems, and slashes as this tokenizer has them."""

    problems = mi.app.command_line.problems_of(model, limit=n)
    for unit in UNITS:
        filler = mi.Insertion.meaningless(unit, n_tokens=55)
        try:
            mi.make_pairs(tokenizer, problems[:1], filler)
        except ValueError:
            continue
        return problems, filler
    raise ValueError(f"none of {UNITS} is one token of {model}")


def study(what: str, n: int) -> Any:
    """An included study of so many problems."""

    whole = mi.read_study(what)
    return whole.with_changes(limit=max(2, n), confirm=max(2, n) if whole.confirm else 0, answers=max(2, n))


def planned(model: str, what: str, n: int) -> dict[str, Any]:
    """What the plan says."""

    if what in STUDIES:
        problems = mi.app.command_line.problems_of(model, limit=None)
        found = mi.plan_run(model, problems, what=study(what, n), attention="sdpa", **HOW)
    else:
        questions, n_fresh = asked(model, n, mi.models.load.tokenizer_of_model(model)), n // 2 * (what == "circuit")
        found = mi.plan_run(model, *questions, what=what, n_fresh=n_fresh, attention="sdpa", **HOW)
    return {"parts": found.parts, "peak": found.peak}


def measured(model: str, what: str, n: int) -> dict[str, Any]:
    """What happens."""

    loaded = mi.load_model(model, attn_implementation="sdpa", **HOW)
    problems, filler = asked(model, n, loaded.tokenizer)
    pairs = mi.make_pairs(loaded, problems, filler)
    quiet: dict[str, Any] = {"progress": False}
    began, named = time.perf_counter(), 0
    if what in STUDIES:
        every = mi.app.command_line.problems_of(model, limit=None)
        found = mi.run_study(study(what, n), model=loaded, problems=every, **quiet)
        named = sum(len(each.found) for each in found.located.values())
    elif what == "sweep":
        mi.patch_heads(loaded, pairs, **quiet)
    elif what == "locate":
        named = len(mi.locate_heads(loaded, pairs, **quiet).found)
    elif what == "profiles":
        mi.score_heads(loaded, pairs, **quiet)
        mi.attention_profile(loaded, pairs, heads=loaded.info.heads[:3], **quiet)
    elif what == "accuracy":
        treatments = [None, *(replace(filler, n_tokens=filler.n_tokens - less) for less in range(4))]
        mi.evaluate_accuracy(loaded, problems, treatments, max_new_tokens=48, **quiet)
    else:
        naming, fresh = pairs[: n // 2], pairs[n // 2 :]
        found = mi.locate_heads(loaded, naming, confirm=fresh, **quiet)
        if heads := list(found.found):
            named = len(heads)
            mi.direct_effects(loaded, fresh, heads, **quiet)
            for direction in ("denoising", "noising"):
                mi.trace_paths(loaded, fresh, heads, mlps="all", direction=direction, **quiet)
            mi.patch_sites(loaded, fresh, **quiet)
            mi.map_positions(loaded, fresh, heads, **quiet)
            mi.what_it_writes(loaded, fresh, heads, **quiet)
            mi.minimal_sets(loaded, naming, fresh=fresh, **quiet)
    seconds = time.perf_counter() - began
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return {"seconds": seconds, "peak": 1024 * int(peak[1]) if peak else float("nan"), "named": named}


def in_a_process(kind: str, model: str, what: str, n: int, *, cpu_time: bool) -> dict[str, Any]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, *["--cpu-time"] * cpu_time, "--only", kind, model, what, str(n)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=["demo", "qwen", "qwen, config"])
    parser.add_argument("--also", nargs="*", default=[], help="directories")
    parser.add_argument("--analyses", nargs="*", default=list(ANALYSES), choices=ANALYSES)
    parser.add_argument(
        "--cpu-time", action="store_true", help="seconds of the processor, for a busy machine, one thread"
    )
    parser.add_argument("--only", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        kind, model, what, n = options.only
        if options.cpu_time:
            time.perf_counter = time.process_time
        print(json.dumps({"planned": planned, "measured": measured}[kind](model, what, int(n))))
        return
    packages = ", ".join(f"{name} {version(name)}" for name in ("mless_interp", "torch", "transformers", "nnsight"))
    print(f"{packages}; Python {platform.python_version()}; {os.environ.get('OMP_NUM_THREADS', 'all')} thread(s)\n")
    print("| model | analysis | problems | planned s | measured s | ratio | planned GB | measured GB | ratio |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    done: dict[tuple[str, str], dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in [*options.models, *options.also]:
            model = saved(name, Path(folder) / name) if name.startswith("qwen") else name
            for what in options.analyses:
                n = max(1 + (what == "locate"), ANALYSES[what] // 8) if name.startswith("qwen") else ANALYSES[what]
                alike = (name.partition(",")[0], what)
                if alike not in done:
                    done[alike] = in_a_process("measured", model, what, n, cpu_time=options.cpu_time)
                found = done[alike]
                plan = in_a_process("planned", model, what, n, cpu_time=options.cpu_time)
                counts = found["named"] or what not in ("locate", "circuit", "paper")
                parts = [
                    spent for label, spent in list(plan["parts"].items())[1:] if counts or label.startswith(OF_ALL)
                ]
                spent, heads = sum(parts), f", {found['named']} named" if what in ("locate", "circuit", "paper") else ""
                print(
                    f"| {Path(name).name} | {what}{heads} | {n} | {spent:.3g} | {found['seconds']:.3g} "
                    f"| {spent / found['seconds']:.2f} | {plan['peak'] / 1e9:.2f} | {found['peak'] / 1e9:.2f} "
                    f"| {plan['peak'] / found['peak']:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
