"""Are planted heads found, and is nothing found where there is nothing? Planted circuits and null data.

First part: models drawn at random with known readers, mediators and decoys; `locate_heads` must name exactly the readers
and mediators. Second part: null data sets (methods: a whole problem's effects have either sign with equal chance), to
count how often a corrected test is significant for any head, and how often a head is named.

A pool of problems is measured once per model, with gold and distractor swapped in half of them; each null data set draws
problems of a pool without replacement and swaps each again with a fair coin, which turns all its effects around exactly.
"""

import argparse
import sys
import time
import warnings
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

import mless_interp as mi
from mless_interp.locating.judge import established, judge
from mless_interp.locating.measure import MEASURES
from mless_interp.patching.outcomes import resolution_of

LENGTHS = (8, 110)
KINDS = ("reader", "mediator")
CLAIMED = ("both knockouts", "both mediated", "reader named", "mediator named")
"""What locating claims; the single tests, exact at 5 %, are shown beside it."""


def pairs_of(planted: Any, model: Any, count: int, n_tokens: int, **options: Any) -> Any:
    """`count` short problems of one length, so that they share batches, with slashes inserted."""
    drawn = planted.problems(12 * count, n_clauses=(0, 0), **options)
    by_length: dict[tuple[int, int], list[Any]] = {}
    for problem in drawn:
        by_length.setdefault((len(problem.system.split()), len(problem.question.split())), []).append(problem)
    largest = max(by_length.values(), key=len)
    return mi.make_pairs(model, largest[:count], mi.Insertion.meaningless(" /", n_tokens))


def one_model(seed: int, n_problems: int) -> dict[str, Any]:
    """Locate the heads of one random planted model."""
    planted = mi.random_planted(seed)
    n_tokens = int(np.random.default_rng(seed).integers(LENGTHS[0], LENGTHS[1] + 1))
    model = mi.load_model(planted, backend="bridge")
    pairs = pairs_of(planted, model, n_problems, n_tokens)
    began = time.perf_counter()
    found = mi.locate_heads(model, pairs, mode="exact", controls=False, progress=False)
    seconds = time.perf_counter() - began
    named = {kind: {head for head, kinds in found.found.items() if kind in kinds.split("+")} for kind in KINDS}
    info = model.info
    return {
        "seed": seed,
        "layers": info.n_layers,
        "heads": info.n_heads,
        "kv": info.n_key_value_heads,
        "span": n_tokens,
        "effect": float(found.total.mean()),
        "readers": len(planted.readers),
        "mediators": len(planted.mediators),
        "decoys": sum(len(heads) for heads in planted.decoys.values()),
        "readers right": named["reader"] == set(planted.readers),
        "mediators right": named["mediator"] == set(planted.mediators),
        "others named": len(set(found.found) - set(planted.readers) - set(planted.mediators)),
        "missed": len((set(planted.readers) | set(planted.mediators)) - set(found.found)),
        "s": seconds,
    }


class Pool:
    """Measures of many problems of one model, with gold and distractor swapped at random."""

    def __init__(self, seed: int, n_problems: int, *, null: bool) -> None:
        planted = mi.random_planted(seed, null=null)
        n_tokens = int(np.random.default_rng(seed).integers(LENGTHS[0], LENGTHS[1] + 1))
        model = mi.load_model(planted, backend="bridge")
        pairs = pairs_of(planted, model, n_problems, n_tokens, swap=True)
        options = {"mode": "exact", "controls": False, "progress": False, "n_permutations": 1000}
        found = mi.locate_heads(model, pairs, outcome="logit_diff", **options)
        self.values, self.total, self.heads = found.values, found.total, found.heads
        self.resolution = resolution_of(model.info.dtype)

    def draw(self, generator: np.random.Generator, size: int, n_permutations: int) -> dict[str, bool]:
        """One null data set: what is significant for any head (corrected), and what is named."""
        chosen = generator.permutation(len(self.total))[:size]
        sign = generator.choice([-1.0, 1.0], size=size)
        values = {name: self.values[name][chosen] * sign[:, None] for name in MEASURES}
        total = self.total[chosen] * sign
        seed = int(generator.integers(2**31))
        verdict = judge(
            values, self.heads, smallest=0.05 * abs(float(total.mean())), n_permutations=n_permutations, seed=seed
        )
        stands = established(total, resolution=self.resolution, seed=seed)
        found = {name: bool((verdict.p[name] < 0.05).any()) for name in MEASURES}
        found["both knockouts"] = bool((np.maximum(verdict.p["knockout"], verdict.p["edge_noise"]) < 0.05).any())
        mediated = np.maximum(verdict.p["mediated_removed"], verdict.p["mediated_added"])
        found["both mediated"] = bool((mediated < 0.05).any())
        found["total effect established"] = stands
        found["reader named"] = bool(verdict.readers.any()) and stands
        found["mediator named"] = bool(verdict.mediators.any()) and stands
        return found


def rate(hits: list[bool]) -> tuple[str, bool]:
    """A false-positive rate in words, and whether it keeps the limit of 5 % + 2 standard errors."""
    n, share = len(hits), sum(hits) / len(hits)
    limit = 0.05 + 2 * (0.05 * 0.95 / n) ** 0.5
    return f"{sum(hits)} of {n} = {share:.3f} ({'within' if share <= limit else 'ABOVE'} {limit:.3f})", share <= limit


def planted_part(seeds: range, n_problems: int) -> bool:
    """One table row per random model; whether everything was named right."""
    print(f"\nPlanted circuits: {len(seeds)} random models, {n_problems} problems each\n")
    began, rows = time.perf_counter(), []
    for seed in seeds:
        rows.append(one_model(seed, n_problems))
        if len(rows) == 1:
            print("| " + " | ".join(rows[0]) + " |\n|" + " ---: |" * len(rows[0]))
        print("| " + " | ".join(cell(key, value) for key, value in rows[-1].items()) + " |", flush=True)
    right = [sum(row[f"{kind}s right"] for row in rows) for kind in KINDS]
    others = sum(row["others named"] for row in rows)
    print(
        f"\nreaders right in {right[0]} of {len(rows)} models, mediators in {right[1]}; heads named that are neither: "
        f"{others}; planted heads missed: {sum(row['missed'] for row in rows)} of "
        f"{sum(row['readers'] + row['mediators'] for row in rows)}; {time.perf_counter() - began:.0f} s"
    )
    return all(count == len(rows) for count in right) and not others


def cell(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return f"{value:+.2f}" if key == "effect" else f"{value:.0f}"


def null_part(seeds: range, n_problems: int, n_sets: int, n_permutations: int, *, null: bool) -> bool:
    """False-positive rates over `n_sets` null data sets from one pool per seed; whether the claims hold."""
    began = time.perf_counter()
    pools = [Pool(seed, 2 * n_problems, null=null) for seed in seeds]
    generator = np.random.default_rng(seeds[0])
    draws = [pools[i % len(pools)].draw(generator, n_problems, n_permutations) for i in range(n_sets)]
    title = "no span readers planted" if null else "with readers and mediators"
    print(
        f"\nNull data, {title}: {n_sets} data sets of {n_problems} problems from {len(pools)} models, any head at 5 %\n"
    )
    print("| test | data sets with a false positive |\n| --- | --- |")
    held = True
    for name in draws[0]:
        shown, within = rate([draw[name] for draw in draws])
        print(f"| {name} | {shown} |")
        held &= within or name not in CLAIMED
    print(f"\n{time.perf_counter() - began:.0f} s", flush=True)
    return held


def main() -> int:
    """Run both parts and print their tables; exit code 1 if a claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=24, help="random planted models (default 24; 0 skips them)")
    parser.add_argument(
        "--nulls", type=int, default=400, help="null data sets of each kind (default 400; 0 skips them)"
    )
    parser.add_argument(
        "--pools", type=int, default=6, help="models behind the null data sets of each kind (default 6)"
    )
    parser.add_argument("--problems", type=int, default=16, help="problems per model (default 16)")
    parser.add_argument(
        "--permutations", type=int, default=2000, help="sign flips per test of null data (default 2000)"
    )
    parser.add_argument("--seed", type=int, default=0, help="first seed of the models (default 0)")
    options = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    threads, began = torch.get_num_threads(), time.perf_counter()
    print(
        f"mless_interp {version('mless_interp')}, torch {version('torch')}, threads {threads}, bridge, float32",
        flush=True,
    )
    held = True
    if options.models:
        held &= planted_part(range(options.seed, options.seed + options.models), options.problems)
    if options.nulls:
        seeds = range(1000 + options.seed, 1000 + options.seed + options.pools)
        for null in (True, False):
            held &= null_part(seeds, options.problems, options.nulls, options.permutations, null=null)
    print(f"\n{'All claims hold' if held else 'A CLAIM DOES NOT HOLD'}; {time.perf_counter() - began:.0f} s in all")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
