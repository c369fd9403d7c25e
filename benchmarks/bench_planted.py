"""Are planted heads named right, and is nothing named where there is nothing? Planted circuits, and nulls of real effects.

First part: models drawn at random with known circuits of all kinds (`planted_examples`); `locate_heads` must give every head
the verdict that it was planted for, and fresh problems must confirm the named ones.

Second part: false positives of every verdict. The effects are real, those of a model on many problems, as skewed and as
dependent as they come; each head's are shifted by a constant so that they lie exactly on the border of the claim (more than
delta in half of all problems). Data sets of whole problems are then drawn from them with replacement, and it is counted how
often any head of the family gets the verdict. Third part: do the printed intervals cover what they are of?

Fourth part: problems that are variants of one another. Skewed effects on the border of the claim belong to groups
of variants; how often is any of 40 heads named where problems are counted, and where groups are?
"""

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from random_circuits import expected_of, planted_examples

import mless_interp as mi

LENGTHS = (8, 110)
CLAIM = 0.05
SIZES = (16, 32, 64, 128)
VARIANTS = ((64, 1), (32, 2), (16, 4), (8, 8))
"""Groups, and problems in each."""
Values = dict[str, np.ndarray]


# ------------------------------------------------------------------------------------------------------ planted circuits


def pairs_of(planted: Any, model: Any, count: int, n_tokens: int) -> Any:
    """`count` short problems of one length, so that they share batches, with slashes inserted."""
    drawn = planted.problems(12 * count, n_clauses=(0, 0))
    by_length: dict[tuple[int, int], list[Any]] = {}
    for problem in drawn:
        by_length.setdefault((len(problem.system.split()), len(problem.question.split())), []).append(problem)
    largest = max(by_length.values(), key=len)
    return mi.make_pairs(model, largest[:count], mi.Insertion.meaningless(" /", n_tokens))


def one_model(planted: Any, n_problems: int) -> dict[str, Any]:
    """Locate the heads of one planted model, and confirm them on as many fresh problems."""
    seed = planted.settings["seed"]
    n_tokens = int(np.random.default_rng(seed).integers(LENGTHS[0], LENGTHS[1] + 1))
    model = mi.load_model(planted, backend="bridge")
    pairs = pairs_of(planted, model, 2 * n_problems, n_tokens)
    began = time.perf_counter()
    options: dict[str, Any] = {"controls": False, "progress": False}
    found = mi.locate_heads(model, pairs[:n_problems], confirm=pairs[n_problems:], **options)
    seconds = time.perf_counter() - began
    judged = found.judged
    got = {head: (kind, int(sense)) for head, kind, sense in zip(judged.heads, judged.kinds, judged.sense, strict=True)}
    wanted = {
        head: (made.verdict, made.sense)
        for head, made in expected_of(planted).items()
        if made.verdict in mi.circuits.judge.NAMED
    }
    wrong = {head: (got[head], want) for head, want in wanted.items() if got[head] != want}
    others = [head for head in found.found if head not in wanted]
    again = {}
    if (made := found.confirmation) is not None:
        alike = zip(made.confirmed, made.kinds_again, made.kinds, strict=True)
        again = {head: sure and now == then for head, (sure, now, then) in zip(made.heads, alike, strict=True)}
    for head, (is_, want) in wrong.items():
        print(f"  seed {seed}: {head} got {is_}, planted {want}")
    for head in others:
        print(f"  seed {seed}: {head} named {got[head]}, planted as nothing")
    return {
        "seed": seed,
        "layers": model.info.n_layers,
        "heads": model.info.n_heads,
        "span": n_tokens,
        "problems": f"{len(found.problem_ids)}+{len(pairs) - n_problems}",
        "effect": f"{float(np.median(found.total)):+.2f}",
        "planted": len(wanted),
        "right": len(wanted) - len(wrong),
        "others named": len(others),
        "confirmed": sum(bool(again.get(head, False)) for head in wanted),
        "s": f"{seconds:.0f}",
    }


def planted_part(count: int, first: int, n_problems: int) -> bool:
    """One table row per model; whether every head got its verdict."""
    print(f"\nPlanted circuits: {count} random models of all kinds, {n_problems} problems and as many fresh ones\n")
    began, rows = time.perf_counter(), []
    for planted in planted_examples(count, seed=first):
        rows.append(one_model(planted, n_problems))
        if len(rows) == 1:
            print("| " + " | ".join(rows[0]) + " |\n|" + " ---: |" * len(rows[0]))
        print("| " + " | ".join(map(str, rows[-1].values())) + " |", flush=True)
    sums = {key: sum(row[key] for row in rows) for key in ("planted", "right", "others named", "confirmed")}
    print(
        f"\n{sums['right']} of {sums['planted']} planted heads have their verdict, {sums['confirmed']} are confirmed with it "
        f"on fresh problems; {sums['others named']} others named; {time.perf_counter() - began:.0f} s"
    )
    return sums["right"] == sums["planted"] and not sums["others named"]


# -------------------------------------------------------------------------------------------------------- false positives


class Pool:
    """Real effects of many problems: measures `[problem, head]` turned to the effect's direction, and the total."""

    def __init__(self, model_name: str, n_problems: int, n_tokens: int, keep: str | None) -> None:
        model = mi.load_model(model_name)
        problems = mi.load_problems(
            "demo" if model_name == "demo" else f"{model_name}/problems.jsonl", limit=n_problems
        )
        pairs = mi.make_pairs(model, problems, mi.Insertion.meaningless(" /", n_tokens))
        found = mi.locate_heads(model, pairs, controls=False, progress=False, checkpoint=keep)
        direction = found.judged.direction
        self.values = {name: direction * found.values[name] for name in mi.circuits.judge.MEASURES}
        self.total, self.heads = direction * found.total, found.heads
        self.delta = CLAIM * float(np.median(self.total))
        z = mi.circuits.judge.measured(self.values, "z_removed")
        skewness = [float(((x - x.mean()) ** 3).mean() / x.std() ** 3) for x in z.T]
        print(
            f"\n{model_name}: {len(self.total)} problems, {len(self.heads)} heads; median total {np.median(self.total):+.4f}, "
            f"mean {self.total.mean():+.4f}; skewness of heads' effects, median {np.median(np.abs(skewness)):.1f}",
            flush=True,
        )

    def judged(
        self, values: Values, total: np.ndarray, heads: tuple[mi.Head, ...], claims: mi.circuits.judge.Claims | None
    ) -> mi.circuits.judge.Judged:
        """The verdicts, with the border where the effects were put: delta is that of all problems."""
        return mi.circuits.judge.judge(values, total, heads, smallest_effect=0.0, rounding=self.delta, claims=claims)

    def centred(self, measure: str, at: float) -> np.ndarray:
        """A measure shifted so that its median over all problems is `at`, for every head."""
        values = mi.circuits.judge.measured(self.values, measure)
        return values - np.median(values, axis=0) + at

    def no_side(self) -> Values:
        """Both z patches on the border: nobody is a carrier, necessary or sufficient."""
        return {
            "knockout": self.centred("z_removed", self.delta),
            "edge_noise": self.centred("z_added", self.delta),
            "mediated_removed": 0 * self.total[:, None] + np.zeros(len(self.heads)),
            "mediated_added": 0 * self.total[:, None] + np.zeros(len(self.heads)),
        }

    def no_part(self, *which: str) -> Values:
        """Every head is a carrier, and these parts of it are on the border: the other part makes up for them."""
        found = {}
        for z, parts in mi.circuits.judge.PARTS.items():
            whole = np.abs(mi.circuits.judge.measured(self.values, z)) + 10 * self.delta
            for part, other in (parts, parts[::-1]):
                if part in which:
                    found[part] = self.centred(part, self.delta)
                    found[other] = whole - found[part] if other not in which else self.centred(other, self.delta)
        return found

    def not_negligible(self) -> Values:
        """|z| on the border in both directions."""
        found = self.no_side()
        for part, z in (("knockout", "z_removed"), ("edge_noise", "z_added")):
            values = mi.circuits.judge.measured(self.values, z)
            found[part] = values * (self.delta / np.median(np.abs(values), axis=0))
        return found


def null_part(pool: Pool, sizes: tuple[int, ...], n_sets: int, seed: int) -> bool:
    """How often any head gets a verdict that none deserves, per verdict and number of problems."""
    deeper = np.array([head.layer > 0 for head in pool.heads])

    def judged(values: Values, at: np.ndarray, total: np.ndarray) -> mi.circuits.judge.Judged:
        return pool.judged({name: array[at] for name, array in values.items()}, total[at], pool.heads, None)

    whole = pool.total
    flat = whole - np.median(whole)
    sides, parts = (
        pool.no_side(),
        {name: pool.no_part(*name) for name in (("knockout", "edge_noise"), ("mediated_removed", "mediated_added"))},
    )
    conditional = pool.no_part("knockout", "edge_noise", "mediated_removed")
    one = {**pool.no_side(), "edge_noise": np.abs(sides["edge_noise"]) + 10 * pool.delta}
    big = pool.not_negligible()
    everyone = mi.circuits.judge.Claims(
        1.0, pool.heads, ("reader",) * len(pool.heads), np.ones(len(pool.heads), dtype=int)
    )
    random_size = np.abs(pool.centred("z_removed", 0.0))

    def named(made: mi.circuits.judge.Judged, *kinds: str) -> bool:
        return bool(np.isin(made.kinds, kinds or mi.circuits.judge.NAMED).any())

    def specific(at: np.ndarray) -> bool:
        values = {name: array[at] for name, array in sides.items()}
        border = pool.centred("z_removed", pool.delta)[at]
        controls = {"random_size_removed": random_size[at], "random_size_added": random_size[at]}
        values["knockout"] = border + random_size[at]
        controls["matched_mass_size"] = np.full_like(border, np.nan)
        effect = judged(values, at, whole).effect
        return bool(
            (mi.circuits.judge.specificity(effect, everyone, values, controls)["p_specific"] < effect.level).any()
        )

    def naming_then_confirming(at: np.ndarray) -> bool:
        half = len(at) // 2
        first = judged(sides, at[:half], whole)
        removed = first.effect.turned(mi.circuits.judge.measured(first.values, "z_removed"))
        best = np.argsort(-np.median(removed, axis=0))[:5]
        claims = mi.circuits.judge.Claims(
            1.0, tuple(pool.heads[i] for i in best), everyone.kinds[:5], everyone.senses[:5]
        )
        values = {name: array[at[half:]][:, best] for name, array in sides.items()}
        again = pool.judged(values, whole[at[half:]], claims.heads, claims)
        return bool((again.passed["removed"] > 0).any())

    tests: dict[str, Callable[[np.ndarray], bool]] = {
        "total effect established": lambda at: judged(sides, at, flat).effect.established,
        "carrier (both sides)": lambda at: bool((judged(sides, at, whole).side == "both").any()),
        "any name at all": lambda at: named(judged(sides, at, whole)),
        "necessary, by removal": lambda at: bool((judged(sides, at, whole).passed["removed"] != 0).any()),
        "sufficient, by addition": lambda at: bool((judged(sides, at, whole).passed["added"] != 0).any()),
        "carrier among the sufficient": lambda at: bool((judged(one, at, whole).side == "both").any()),
        "reader among carriers": lambda at: named(
            judged(parts["knockout", "edge_noise"], at, whole), "reader", "reader+mediator"
        ),
        "mediator among carriers": lambda at: bool(
            (
                np.isin(
                    judged(parts["mediated_removed", "mediated_added"], at, whole).kinds,
                    ("mediator", "reader+mediator"),
                )
                & deeper
            ).any()
        ),
        "conditional reader among carriers": lambda at: named(judged(conditional, at, whole), "conditional reader"),
        "negligible": lambda at: bool(judged(big, at, whole).negligible.any()),
        "specific": specific,
        "confirmed (5 best of other problems)": naming_then_confirming,
    }
    print(f"\nFalse positives of any of {len(pool.heads)} heads, {n_sets} data sets each\n")
    print("| verdict | " + " | ".join(f"n = {n}" for n in sizes) + " |\n| --- |" + " --- |" * len(sizes))
    limit = CLAIM + 2 * (CLAIM * (1 - CLAIM) / n_sets) ** 0.5
    held, began = True, time.perf_counter()
    for name, test in tests.items():
        cells = []
        for n in sizes:
            generator = np.random.default_rng([seed, n])
            hits = sum(test(generator.integers(0, len(whole), n)) for _ in range(n_sets))
            within = hits / n_sets <= limit
            cells.append(f"{hits / n_sets:.3f}{'' if within else ' ABOVE'}")
            held &= within
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print(f"\nlimit {limit:.3f} (5 % + 2 standard errors); {time.perf_counter() - began:.0f} s")
    return held


def coverage_part(pool: Pool, sizes: tuple[int, ...], n_sets: int, seed: int) -> bool:
    """How often each printed interval holds the value over all problems."""
    z = mi.circuits.judge.measured(pool.values, "z_removed")[:, :: max(1, len(pool.heads) // 16)]
    share = mi.statistics.share_of_total(z, pool.total).estimate
    kinds: dict[str, tuple[np.ndarray, Callable[[np.ndarray, np.ndarray, int], Any]]] = {
        "median of a head's effect": (np.median(z, axis=0), lambda x, t, s: mi.statistics.median_interval(x)),
        "prevalence of a head": ((z > pool.delta).mean(0), lambda x, t, s: Limits(x > pool.delta)),
        "median of the total": (np.median(pool.total), lambda x, t, s: mi.statistics.median_interval(t)),
        "share of a head": (share, lambda x, t, s: mi.statistics.share_of_total(x, t)),
        "for comparison: median over median total": (
            share,
            lambda x, t, s: mi.statistics.median_interval(x / np.median(t)),
        ),
        "for comparison: mean of a head's effect": (z.mean(0), lambda x, t, s: mi.statistics.mean_interval(x, seed=s)),
        "for comparison: mean of the total": (
            pool.total.mean(),
            lambda x, t, s: mi.statistics.mean_interval(t, seed=s),
        ),
    }
    print(f"\nCoverage of 95 % intervals, {n_sets} data sets each\n")
    print("| interval | " + " | ".join(f"n = {n}" for n in sizes) + " |\n| --- |" + " --- |" * len(sizes))
    held = True
    for name, (truth, make) in kinds.items():
        cells = []
        for n in sizes:
            generator = np.random.default_rng([seed, n])
            inside = []
            for at_set in range(n_sets):
                at = generator.integers(0, len(pool.total), n)
                made = make(z[at], pool.total[at], at_set)
                inside.append(((made.low <= truth) & (truth <= made.high))[~np.isnan(made.low)])
            covered = float(np.concatenate(inside).mean())
            cells.append(f"{covered:.3f}")
            if not name.startswith("for comparison"):  # means of such data cannot be covered; that is what is shown
                held &= covered >= 0.95 - 2 * (0.95 * 0.05 / n_sets) ** 0.5
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    return held


def drawn_variants(
    rng: np.random.Generator, n_groups: int, n_each: int, n_heads: int = 40
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Effects `[problem, head]` that a group shares up to a tenth, above 1 and below it alike, some very large; the groups."""
    shared = 1 + rng.choice((-1, 1), (n_groups, n_heads)) * np.exp(2.5 * rng.normal(size=(n_groups, n_heads)))
    values = np.repeat(shared, n_each, axis=0)
    values = 1 + (values - 1) * (1 + 0.1 * rng.normal(size=values.shape))
    return values, tuple(str(group) for group in range(n_groups) for _ in range(n_each))


def variants_part(n_sets: int, seed: int) -> bool:
    """In how many data sets any head that acts in just half of all groups is named, by problems and by groups."""
    print(f"\nAny of 40 heads named that are on the border of the claim, {n_sets} data sets of 64 problems each\n")
    print("| groups x problems | each problem counts | each group counts |\n| --- | --- | --- |")
    limit = CLAIM + 2 * (CLAIM * (1 - CLAIM) / n_sets) ** 0.5
    held = True
    for n_groups, n_each in VARIANTS:
        rng = np.random.default_rng([seed, n_groups])
        hits = np.zeros(2)
        for _ in range(n_sets):
            values, groups = drawn_variants(rng, n_groups, n_each)
            hits += [
                (mi.statistics.prevalence_test(x, 1.0).p_corrected < CLAIM).any()
                for x in (values, mi.statistics.by_group(values, groups))
            ]
        shares = hits / n_sets
        print(f"| {n_groups} x {n_each} | {shares[0]:.3f} | {shares[1]:.3f} |", flush=True)
        held &= bool(shares[1] <= limit)
    return held


class Limits:
    """Exact limits of the share of problems in which something holds, `[problem, head]`."""

    def __init__(self, hits: np.ndarray) -> None:
        self.low, self.high = mi.statistics.exact_limits(hits.sum(0), np.full(hits.shape[1], len(hits)))


def main() -> int:
    """Run all parts and print their tables; exit code 1 if a claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=44, help="random planted models (default 44; 0 skips them)")
    parser.add_argument("--problems", type=int, default=24, help="problems per planted model (default 24)")
    parser.add_argument("--nulls", type=int, default=400, help="null data sets per cell (default 400; 0 skips them)")
    parser.add_argument("--pool", type=int, default=512, help="problems behind the null data (default 512)")
    parser.add_argument("--null-model", default="demo", help="whose effects they are: demo, or a model's directory")
    parser.add_argument("--tokens", type=int, default=55, help="inserted tokens of the null data (default 55)")
    parser.add_argument("--keep", help="folder that keeps the measured effects for the next run")
    parser.add_argument("--coverage", type=int, default=400, help="data sets per interval (default 400; 0 skips them)")
    parser.add_argument("--variants", type=int, default=400, help="data sets of variants (default 400; 0 skips them)")
    parser.add_argument("--seed", type=int, default=0, help="first seed of the models (default 0)")
    options = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    threads, began = torch.get_num_threads(), time.perf_counter()
    print(f"mless_interp {version('mless_interp')}, torch {version('torch')}, threads {threads}, float32", flush=True)
    held = True
    if options.models:
        held &= planted_part(options.models, options.seed, options.problems)
    if options.nulls or options.coverage:
        pool = Pool(options.null_model, options.pool, options.tokens, options.keep)
        if options.nulls:
            held &= null_part(pool, SIZES, options.nulls, options.seed)
        if options.coverage:
            held &= coverage_part(pool, SIZES, options.coverage, options.seed)
    if options.variants:
        held &= variants_part(options.variants, options.seed)
    print(f"\n{'All claims hold' if held else 'A CLAIM DOES NOT HOLD'}; {time.perf_counter() - began:.0f} s in all")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
