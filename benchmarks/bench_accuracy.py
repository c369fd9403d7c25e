"""Problems per second of `evaluate_accuracy` against the loop that the paper's code runs: one prompt at a time.

One run, the demo model, the same prompts, treatments and limits: a plain `transformers` loop that tokenises, calls
`generate` with its key-value cache for one prompt, and decodes; and ours, batched, stopping after a whole box, graded and
kept on disk. Answers must be equal up to the box. The loop that also stops after the box is shown as well, so that it is
plain what batching gives and what stopping gives.

    python benchmarks/bench_accuracy.py --threads 2
    python benchmarks/bench_accuracy.py --device cuda
"""

import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import mless_interp as mi

PACKAGES = ("mless_interp", "torch", "transformers", "transformer-lens", "nnsight")


def one_by_one(module: Any, tokenizer: Any, prompts: list[tuple[int, ...]], limit: int, *, stop: bool) -> list[str]:
    """The paper's way: `generate` for one prompt after the other (`stop`: with a stopping criterion for the box)."""
    from transformers import StoppingCriteria, StoppingCriteriaList

    class AfterTheBox(StoppingCriteria):
        def __init__(self, length: int) -> None:
            self.length = length

        def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            done = mi.answers.has_closed_box(tokenizer.decode(input_ids[0, self.length :], skip_special_tokens=True))
            return torch.tensor([done], device=input_ids.device)

    texts = []
    for prompt in prompts:
        tokens = torch.tensor([prompt], device=module.device)
        criteria = StoppingCriteriaList([AfterTheBox(len(prompt))] if stop else [])
        with torch.no_grad():
            output = module.generate(
                input_ids=tokens,
                attention_mask=torch.ones_like(tokens),
                do_sample=False,
                max_new_tokens=limit,
                pad_token_id=tokenizer.pad_token_id,
                stopping_criteria=criteria,
            )
        texts.append(tokenizer.decode(output[0, len(prompt) :], skip_special_tokens=True))
    return texts


def timed(run: Callable[[], Any], repeat: int) -> tuple[float, Any]:
    """(best time, last result)."""
    best, result = float("inf"), None
    for _ in range(repeat):
        began = time.perf_counter()
        result = run()
        best = min(best, time.perf_counter() - began)
    return best, result


def main(
    threads: Annotated[int, typer.Option(help="Threads of torch.")] = 2,
    limit: Annotated[int, typer.Option(help="Problems of the demo.")] = 128,
    repeat: Annotated[int, typer.Option(help="Best of so many.")] = 3,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer.")] = 16,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """Print a table of problems per second and ratios; ends with an error if any answer differs."""
    torch.set_num_threads(threads)
    problems = mi.load_problems("demo", limit=limit)
    slashes = mi.Insertion.meaningless(" /", 55)
    treatments = [None, slashes]
    sdpa = mi.load_model("demo", backend="nnsight", device=device, attn_implementation="sdpa", tf32=False)
    module, tokenizer = sdpa.hf_model, sdpa.tokenizer
    pairs = mi.make_pairs(sdpa, problems, slashes)
    prompts = [pair.base.ids for pair in pairs] + [pair.inserted.ids for pair in pairs]
    rows: list[tuple[str, float]] = []
    spent, texts = timed(lambda: one_by_one(module, tokenizer, prompts, max_new_tokens, stop=False), repeat)
    rows.append(("transformers, batch size 1 (the paper's way)", spent))
    spent, stopped = timed(lambda: one_by_one(module, tokenizer, prompts, max_new_tokens, stop=True), repeat)
    rows.append(("the same, stopping after the box", spent))
    if stopped != texts:
        raise SystemExit("the two plain loops gave different answers")
    bridge = mi.load_model("demo", backend="bridge", device=device, tf32=False)
    for name, model in (("ours, nnsight (sdpa)", sdpa), ("ours, bridge (eager)", bridge)):

        def ours(model: Any = model) -> Any:
            with tempfile.TemporaryDirectory() as folder:
                return mi.evaluate_accuracy(
                    model,
                    problems,
                    treatments,
                    max_new_tokens=max_new_tokens,
                    checkpoint=Path(folder) / "answers.jsonl",
                    progress=False,
                )

        spent, found = timed(ours, repeat)
        answers = [samples[place][0] for place in range(2) for samples in found.completions]
        differing = sum(answer != text for answer, text in zip(answers, texts, strict=True))
        if differing:
            raise SystemExit(f"{name}: {differing} of {len(texts)} answers differ from the plain loop's")
        rows.append((name, spent))
    versions = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    print(
        f"{len(prompts)} answers: {limit} demo problems, without and with 55 slashes; {device}, {threads} threads; {versions}\n"
    )
    print("| answers by | s | answers per second | times the paper's way |")
    print("| --- | ---: | ---: | ---: |")
    for name, spent in rows:
        print(f"| {name} | {spent:.2f} | {len(prompts) / spent:.0f} | {rows[0][1] / spent:.1f} |")
    print(f"\nAll {len(prompts)} answers are equal; ours are also graded and kept on disk.")


if __name__ == "__main__":
    typer.run(main)
