"""What does `locate_heads` find, and when? Effects of several sizes, few or many problems, some of them affected or all.

First part: planted models whose readers have known strengths, or act in a known share of all problems; how often each is named,
by the number of problems, beside what `detectable_prevalence` promises. Every model is swept once, and data sets are judged
from its stored effects; some are located anew, to show that this is the same. The same with the heads of the demo model,
whose effects vary as those of trained models do.

Second part: other templates, lengths of the insertion, problems. Third part: the same analysis on every backend.

Prints every table; the main ones and the pictures go to `docs/calibration.md` and `docs/images/`.
Shares and counts only: no effect's sign or unit.
"""

import argparse
import math
import os
import random
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from random_circuits import expected_of, random_planted
from scipy import stats

import mless_interp as mi
from mless_interp.answers.decoding import Request, complete_all, decoding_for
from mless_interp.answers.engines import engine_for

ROOT = Path(__file__).resolve().parents[1]
PAGE, IMAGES = ROOT / "docs" / "calibration.md", ROOT / "docs" / "images"
STORIES = Path(os.environ.get("MLESS_SHARED", ROOT.parent / "shared")) / "models" / "stories260K"

SIZES = (8, 16, 32, 64)  # 8 can name no head: only the pictures show them
STRENGTHS = (0.02, 0.04, 0.05, 0.06, 0.07, 0.08, 0.1, 0.2)
SHARES = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
N_LAYERS, N_HEADS, N_KV = 2, 8, 2
SIDE_BY_SIDE = {16: -0.8, 32: 0.0, 64: 0.8}
"""How far apart points of several numbers of problems are drawn."""
SMALLEST, ALPHA = 0.05, 0.05
RULE_SIZES = (16, 32, 64)
LEVEL = 0.8 * ALPHA  # a fifth goes to the smallest effect
LENGTHS = (5, 15, 55)
CHAT = (
    "{% for m in messages %}{{ 'Tell me : ' + m['content'] + ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Work . ' }}{% endif %}"
)
"""A chat template in words that planted models know."""


# ------------------------------------------------------------------------------------------------------ measured once


def located(
    model: Any, problems: Sequence[Any], n_tokens: int, *, unit: str = " /", template: str = "raw"
) -> mi.LocatedHeads:
    """All heads swept exactly; controls have no part in naming."""
    pairs = mi.make_pairs(model, problems, mi.Insertion.meaningless(unit, n_tokens), template=template)
    return mi.locate_heads(model, pairs, controls=False, progress=False, confidence=1 - ALPHA, smallest_effect=SMALLEST)


def judged_on(found: mi.LocatedHeads, at: np.ndarray) -> mi.circuits.judge.Judged:
    """The verdicts of `locate_heads` on some of the problems, from the stored effects."""
    values = {name: array[at] for name, array in found.values.items()}
    options = {"confidence": 1 - ALPHA, "smallest_effect": SMALLEST, "rounding": found.resolution}
    return mi.circuits.judge.judge(values, found.total[at], found.heads, **options)


def shares_of_total(found: mi.LocatedHeads, head: mi.Head) -> float:
    """The share of the total that patching a head's output removes, as the data say it (no test)."""
    removed = mi.circuits.judge.measured(found.values, "z_removed")[:, found.heads.index(head)]
    return float(np.median(removed) / np.median(found.total))


def least_count(n: int, n_cells: int) -> int:
    """The problems in which a head must act to be named first among so many, `n + 1` where none can be."""
    level = LEVEL / (mi.circuits.judge.PER_HEAD * n_cells)
    return next((k for k in range(n // 2, n + 1) if stats.binom.sf(k - 1, n, 0.5) <= level), n + 1)


def promised(n: int, n_cells: int, prevalence: float) -> float:
    """How often the formula behind `detectable_prevalence` names a head of this prevalence."""
    return float(stats.binom.sf(least_count(n, n_cells) - 1, n, prevalence))


# ------------------------------------------------------------------------------------- rules, beside what they replaced


def side_by_side(values: Mapping[str, np.ndarray], delta: float) -> np.ndarray:
    """The rule that was: Holm on each side by itself at the whole level; whether any head passes on either, `[head]`."""
    tests = [mi.statistics.prevalence_test(values[side], delta).p_corrected for side in ("knockout", "edge_noise")]
    return (np.minimum(*tests) < ALPHA).any(0)


def measures(removed: np.ndarray, added: np.ndarray) -> dict[str, np.ndarray]:
    """Heads that read, `[problem, head]`, by what is removed and what is added."""
    nothing = {name: np.zeros_like(removed) for name in ("mediated_removed", "mediated_added")}
    return {"knockout": removed, "edge_noise": added, **nothing}


def one_family(draws: int) -> Iterator[list[object]]:
    """How often any head is named whose effects are a coin's in each problem, on both sides: none deserves a name."""
    for n_heads, n in ((1, 17), (1, 30), (112, 30), (112, 64)):
        rng = np.random.default_rng([n_heads, n])
        heads, tallies = tuple(mi.Head(1, at) for at in range(n_heads)), (Tally(), Tally())
        for _ in range(draws):
            values = measures(*rng.choice([-1.0, 1.0], (2, n, n_heads)))
            made = mi.circuits.judge.judge(values, np.ones(n), heads)
            tallies[0].add(bool(side_by_side(values, SMALLEST).any()))
            tallies[1].add(bool((made.passed["removed"] != 0).any() or (made.passed["added"] != 0).any()))
        yield [n_heads, n, *tallies]


def border(draws: int) -> Iterator[list[object]]:
    """How often a head is named that does this share of the true median total in every problem: before / now."""
    for share in (0.045, 0.05, 0.07, 0.1, 0.2):
        cells = []
        for n in RULE_SIZES:
            rng, before, now = np.random.default_rng([int(1000 * share), n]), Tally(), Tally()
            for _ in range(draws):
                total = rng.lognormal(0, 1, n)  # its median is 1
                values = measures(*np.full((2, n, 1), share))
                before.add(bool(side_by_side(values, SMALLEST * float(np.median(total))).any()))
                now.add(bool(mi.circuits.judge.judge(values, total, (mi.Head(1, 0),)).named.any()))
            cells.append(f"{in_hundred(before.rate)} / {in_hundred(now.rate)}")
        yield [f"{100 * share:g} %", *cells]


def shares(draws: int) -> Iterator[list[object]]:
    """How often 95 % limits hold the true share, 0.35: of the median over the median total / of `share_of_total`."""
    parts: dict[str, Callable[[Any, np.ndarray], np.ndarray]] = {
        "a share of each problem's total, with noise": lambda rng, t: t * (0.35 + rng.normal(0, 0.1, len(t))),
        "the same in every problem": lambda rng, t: np.full(len(t), 0.35),
        "unrelated, with as wide tails": lambda rng, t: 0.35 * rng.permutation(rng.lognormal(0, 1.5, len(t))),
        "some totals of the other sign": lambda rng, t: 0.35 * t + rng.normal(0, 0.3, len(t)),
    }
    for name, part in parts.items():
        cells = []
        for n in RULE_SIZES:
            rng, divided, inverted = np.random.default_rng([len(name), n]), Tally(), Tally()
            for _ in range(draws):
                total = rng.lognormal(0, 1.5, n)
                if "other sign" in name:
                    total *= np.where(rng.random(n) < 0.05, -1, 1)
                g = part(rng, total)
                for tally, made in (
                    (divided, mi.statistics.median_interval(g / np.median(total))),
                    (inverted, mi.statistics.share_of_total(g, total)),
                ):
                    if not np.isnan(made.low):
                        tally.add(bool(made.low <= 0.35 <= made.high))
            cells.append(f"{in_hundred(divided.rate)} / {in_hundred(inverted.rate)}")
        yield [name, *cells]


def strata_rows(draws: int) -> Iterator[list[object]]:
    """How often a head is named within strata that mean nothing: one of six acts where a tag says so, and the tags are then
    shuffled over problems; or all act by a coin's toss in each problem."""
    for n_strata in (4, 10):
        for n in (120, 240):
            rng, shuffled, tossed = np.random.default_rng([n_strata, n]), Tally(), Tally()
            heads = tuple(mi.Head(1, at) for at in range(6))
            tags = np.arange(n) % n_strata
            for _ in range(draws):
                total = rng.lognormal(0, 1, n) + 1
                shares = rng.uniform(0.6, 1.0, (2, n, 6)) * np.exp(rng.normal(0, 0.3, (2, n, 6)))
                one = np.arange(6)[None] == tags[:, None] % 6  # serves the strata of its number
                values = measures(*(shares * one * total[:, None]))
                names = tuple(map(str, rng.permutation(tags)))
                shuffled.add("specialist" in mi.circuits.judge.judge(values, total, heads, strata=names).kinds)
                values = measures(*(shares * rng.choice([-1, 1], (2, n, 6)) * total[:, None]))
                tossed.add(bool(mi.circuits.judge.judge(values, total, heads, strata=names).named.any()))
            yield [n_strata, n, shuffled, tossed]


TOKENS = {"8 tokens alike": [1 / 8] * 8, "one token in 70 %": [0.7, 0.1, *[0.05] * 4]}
"""How often each token is a problem's own."""


def readings_rows(draws: int) -> Iterator[list[object]]:
    """How often something is readable in spans that say nothing of it, in any of six cells: by the rule for each reader, and by
    two simpler ones. The lens prefers some tokens; what varies are few directions with wide tails, shared by the cells."""
    for words, shares in TOKENS.items():
        for n in (32, 64):
            rng, tallies = np.random.default_rng([len(shares), n]), [Tally() for _ in range(4)]
            ids = tuple(map(str, range(n)))
            for at in range(draws):
                labels = rng.choice(len(shares), n, p=shares)
                if len(set(labels.tolist())) < 2:
                    continue
                rows = (rng.standard_t(2, (n, 3)) @ rng.normal(size=(3, 40)))[:, None] + 0.3 * rng.normal(
                    size=(n, 6, 40)
                )
                lens = np.moveaxis(rows @ rng.normal(size=(40, len(shares))) + 20 * rng.normal(size=len(shares)), 2, 1)
                partners = mi.statistics.swap_partners(labels, [1] * n, ids, seed=at)
                units = ["" if b < 0 else str(min(a, b)) for a, b in enumerate(partners.tolist())]
                steps = mi.statistics.forward_folds(units, ids, seed=at)
                later = [(np.setdiff1d(np.arange(n), test), test) for _, test in steps]
                simple = lens[np.arange(n), labels] - _others(lens, labels)
                tallies[0].add(_shown(simple))
                tallies[1].add(_shown(_pairs(_probed(rows, labels, later), labels, partners)))
                tallies[2].add(_shown(_pairs(lens, labels, partners)))
                tallies[3].add(_shown(_pairs(_probed(rows, labels, steps), labels, partners)))
            yield [words, n, *tallies]


def _others(values: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Mean over the other problems' tokens, of those that are not the problem's own, `[problem, cell]`."""
    return np.stack([row[labels[labels != own]].mean(0) for row, own in zip(values, labels, strict=True)])


def _probed(rows: np.ndarray, labels: np.ndarray, steps: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Scores of probes, `[problem, token, cell]`, NaN where none reads."""
    scores = np.full((len(rows), labels.max() + 1, rows.shape[1]), np.nan)
    for cell in range(rows.shape[1]):
        for train, test in steps:
            scores[test, :, cell] = mi.metrics.activations.ridge_scores(
                rows[:, cell] @ rows[:, cell].T, labels, train, test
            )
    return scores


def _pairs(values: np.ndarray, labels: np.ndarray, partners: np.ndarray) -> np.ndarray:
    """The margins of pairs, each once."""
    return mi.statistics.swap_margins(values, labels, partners)[np.arange(len(labels)) < partners]


def _shown(values: np.ndarray) -> bool:
    return bool(len(values)) and bool(
        (mi.statistics.prevalence_test(values, 0.0, senses=(1,)).p_corrected < ALPHA).any()
    )


def readings_of_models(n_models: int, draws: int, n_problems: int) -> "Tally":
    """The whole analysis on random models whose problems have a tag that was drawn without looking, one in half of them."""
    tally, tokens, shares = Tally(), ["he", "she", "it", "was"], [0.5, 0.2, 0.2, 0.1]
    filler = mi.Insertion.meaningless(" /", 4, after="question")
    for seed in range(n_models):
        geometry: Any = ("qwen2", "llama")[seed % 2]
        model = mi.ground_truth.stand_in(geometry, name="any", n_heads=4, n_key_value_heads=2, n_layers=2, seed=seed)
        asked, rng = mi.ground_truth.stand_in_problems(n_problems, seed=seed), np.random.default_rng(seed)
        for at in range(draws):
            tagged = [replace(each, extra={"drawn": str(rng.choice(tokens, p=shares))}) for each in asked]
            pairs = mi.make_pairs(model, tagged, filler)
            tally.add(bool(mi.read_span(model, pairs, what="drawn", seed=at, progress=False).found.any()))
    return tally


# ------------------------------------------------------------------------------------------- planted strength and share


@dataclass
class Tally:
    """In how many data sets something came out, of how many."""

    hits: int = 0
    sets: int = 0

    def add(self, hit: bool) -> None:
        self.hits += bool(hit)
        self.sets += 1

    @property
    def rate(self) -> float:
        return self.hits / self.sets if self.sets else math.nan

    @property
    def limits(self) -> tuple[float, float]:
        low, high = mi.statistics.exact_limits(np.array(self.hits), np.array(self.sets))
        return float(low), float(high)

    def __str__(self) -> str:
        low, high = self.limits
        return f"{in_hundred(self.rate)} [{in_hundred(low)}, {in_hundred(high)}]" if self.sets else "-"


@dataclass
class Cell:
    """One head of known strength and share under `n` problems, over models: named at all, as what it is, as carrier."""

    named: Tally
    right: Tally


class Table(dict[tuple[float, int], Cell]):
    """`(strength or share, problems)` to what came out; beside it the data sets in which others are named, by `n`."""

    def __init__(self) -> None:
        super().__init__()
        self.others: dict[int, Tally] = {}
        self.measured: dict[float, list[float]] = {}

    def __missing__(self, key: tuple[float, int]) -> Cell:
        self[key] = Cell(Tally(), Tally())
        return self[key]

    def add(self, level: float, n: int, kind: str, want: str) -> None:
        self[level, n].named.add(kind in mi.circuits.judge.NAMED)
        self[level, n].right.add(kind == want)


def with_strengths(seed: int, strengths: Sequence[float]) -> tuple[mi.ground_truth.PlantedModel, dict[mi.Head, float]]:
    """A planted model whose readers bring these shares of the effect, and one more that brings the rest; and who has which."""
    rng = random.Random(f"calibration {seed}")
    heads = rng.sample([mi.Head(layer, h) for layer in range(N_LAYERS) for h in range(N_HEADS)], len(strengths) + 1)
    sizes = {"n_layers": N_LAYERS, "n_heads": N_HEADS, "n_key_value_heads": N_KV}
    planted = mi.planted_model(sorted(heads), [], **sizes, seed=seed, sign=rng.choice((1, -1)))
    wanted = dict(zip(heads, (*strengths, 1 - sum(strengths)), strict=True))
    d_head = planted.hf_model.config.hidden_size // N_HEADS
    with torch.no_grad():
        for head, share in wanted.items():
            weight = planted.hf_model.model.layers[head.layer].self_attn.o_proj.weight
            weight[:, head.head * d_head : (head.head + 1) * d_head] *= share / planted.shares[head]
    return planted, wanted


def with_share(seed: int) -> tuple[mi.ground_truth.PlantedModel, mi.Head, str]:
    """A planted model with a strong reader that acts where a problem names a number; that head, and the number."""
    rng = random.Random(f"calibration share {seed}")
    reader, probe = (mi.Head(0, h) for h in rng.sample(range(N_HEADS), 2))
    number = str(rng.randint(4, 10))
    planted = mi.planted_model(
        sorted((reader, probe)),
        [mi.Head(1, rng.randrange(N_HEADS))],
        n_layers=N_LAYERS,
        n_heads=N_HEADS,
        n_key_value_heads=N_KV,
        seed=seed,
        sign=rng.choice((1, -1)),
        reads_from={probe: [number]},
    )
    return planted, probe, number


def others_named(planted: mi.ground_truth.PlantedModel, judged: mi.circuits.judge.Judged) -> bool:
    """Whether a head is named that was planted as nothing."""
    nothing = {head for head, made in expected_of(planted).items() if made.verdict not in mi.circuits.judge.NAMED}
    rare = set(planted.roles.rare)
    return any(head in nothing - rare for head in judged.found.heads)


def strength_part(
    n_models: int, sizes: Sequence[int], strengths: Sequence[float], first: int = 0
) -> tuple[Table, Table]:
    """Rates by strength, and the data sets that were located anew: `(rates, agreement)`."""
    rates, again = Table(), Table()
    for seed in range(first, first + n_models):
        planted, wanted = with_strengths(seed, strengths)
        model = mi.load_model(planted, backend="bridge")
        problems = planted.problems(sum(sizes), seed=seed)
        found = located(model, problems, 8)
        for head, strength in wanted.items():
            rates.measured.setdefault(strength, []).append(shares_of_total(found, head))
        begin = 0
        for n in sizes:  # problems of their own for each size
            at = np.arange(begin, begin + n)
            begin += n
            judged = judged_on(found, at)
            kinds = dict(zip(judged.heads, judged.kinds, strict=True))
            for head, strength in wanted.items():
                rates.add(strength, n, kinds[head], "reader")
            rates.others.setdefault(n, Tally()).add(others_named(planted, judged))
            if seed - first < 4 and n < 32:
                new = located(model, [problems[i] for i in at], 8)
                total = abs(float(np.median(new.total)))
                differs = max(float(np.abs(new.values[name] - found.values[name][at]).max()) for name in new.values)
                again.measured.setdefault(0.0, []).append(differs / total)
                for head, kind in zip(new.judged.heads, new.judged.kinds, strict=True):
                    again.add(0.0, 0, kind, kinds[head])
    return rates, again


def share_part(n_models: int, sizes: Sequence[int], shares: Sequence[float], first: int = 0) -> Table:
    """Rates by the share of problems in which the head acts; which they are is drawn for every data set."""
    rates, most = Table(), max(sizes)
    for seed in range(first, first + n_models):
        planted, probe, number = with_share(seed)
        drawn = planted.problems(20 * most, seed=seed)
        names = [number in problem.question.split() for problem in drawn]
        affected = [problem for problem, it in zip(drawn, names, strict=True) if it][:most]
        others = [problem for problem, it in zip(drawn, names, strict=True) if not it][:most]
        model = mi.load_model(planted, backend="bridge")
        found = located(model, [*affected, *others], 8)
        column = found.heads.index(probe)
        removed, effect = mi.circuits.judge.measured(found.values, "z_removed"), found.judged.effect
        acts = effect.turned(removed)[:, column] > effect.delta
        rates.measured.setdefault(1.0, []).append(float(acts[: len(affected)].mean()))
        rates.measured.setdefault(0.0, []).append(float(acts[len(affected) :].mean()))
        generator = np.random.default_rng([seed, 1])
        for n in sizes:
            wrong = False
            for share in shares:
                k = int(generator.binomial(n, share))
                some = generator.permutation(len(affected))[:k]
                rest = len(affected) + generator.permutation(len(others))[: n - k]
                judged = judged_on(found, np.concatenate([some, rest]))
                rates.add(share, n, judged.kinds[column], "reader")
                wrong |= others_named(planted, judged)
            rates.others.setdefault(n, Tally()).add(wrong)  # of a model, in any of its data sets
    return rates


# ----------------------------------------------------------------------------------------------- effects as they come


@dataclass
class Scatter:
    """Every head and side of one model: the prevalence over all problems, and how often it passes with `n` of them."""

    n: int
    n_heads: int
    prevalence: np.ndarray
    passes: np.ndarray
    false: Tally

    def rows(self, edges: Sequence[float]) -> Iterator[tuple[str, int, float, float]]:
        """(prevalence, cells, rate, what the formula says) per class of prevalence; cells without any are left out."""
        for low, high in pairwise(edges):
            at = ((self.prevalence > low) | (low == 0)) & (self.prevalence <= high)
            if at.any():
                said = [promised(self.n, self.n_heads, share) for share in self.prevalence[at]]
                name = f"{100 * low:.0f} to {100 * high:.0f} %" if low > 0 else f"up to {100 * high:.0f} %"
                yield name, int(at.sum()), float(self.passes[at].mean()), float(np.mean(said))


def resampled(found: mi.LocatedHeads, n: int, n_sets: int, seed: int = 0) -> Scatter:
    """Data sets of `n` problems, drawn with replacement; the truth is what holds over all problems."""
    whole, delta = found.judged, SMALLEST * abs(float(np.median(found.total)))
    prevalence, truths = [], []
    for measure in mi.circuits.judge.SIDES.values():
        turned = whole.effect.turned(mi.circuits.judge.measured(whole.values, measure))
        share = np.stack([(turned > delta).mean(0), (-turned > delta).mean(0)])
        prevalence.append(share.max(0))
        truths.append(np.where(share[0] >= share[1], 1, -1))
    passes, false = np.zeros((len(mi.circuits.judge.SIDES), len(found.heads))), Tally()
    generator = np.random.default_rng([seed, n])
    for _ in range(n_sets):
        judged = judged_on(found, generator.integers(0, len(found.total), n))
        wrong = False
        for at, side in enumerate(mi.circuits.judge.SIDES):
            hit = judged.passed[side]
            passes[at] += hit == truths[at]
            wrong |= bool(((hit != 0) & ((prevalence[at] <= 0.5) | (hit != truths[at]))).any())
        false.add(wrong)
    return Scatter(n, len(found.heads), np.concatenate(prevalence), passes.ravel() / n_sets, false)


# -------------------------------------------------------------------------------------------------------- sensitivity


@dataclass
class Variant:
    """One way of asking the same: what was changed, and what came out (nothing where it was not run, and why)."""

    name: str
    found: mi.LocatedHeads | None
    why: str = ""

    @property
    def named(self) -> dict[mi.Head, str]:
        return {} if self.found is None else self.found.found


def overlap(first: Iterable[mi.Head], second: Iterable[mi.Head]) -> float:
    """Jaccard's share of the heads that both name; NaN where neither names any."""
    a, b = set(first), set(second)
    return len(a & b) / len(a | b) if a | b else math.nan


def prevalence_of(found: mi.LocatedHeads, head: mi.Head, sense: int = 1) -> tuple[int, int]:
    """In how many problems it removes, and in how many it adds, more than the smallest effect: with it, or against (-1)."""
    effect, at = found.judged.effect, found.heads.index(head)
    sides = (mi.circuits.judge.measured(found.values, measure)[:, at] for measure in mi.circuits.judge.SIDES.values())
    removed, added = (int((sense * effect.turned(side) > effect.delta).sum()) for side in sides)
    return removed, added


def variants(
    model: Any,
    problems: Callable[[int], Sequence[Any]],
    *,
    unit: str = " /",
    lengths: Sequence[int] = LENGTHS,
    templates: Sequence[str] = ("raw", "text", "chat"),
    seeds: Sequence[int] = (0, 1),
) -> list[Variant]:
    """The analysis with the longest insertion, the first template and problems, and then with one thing changed."""
    length, template, base = lengths[-1], templates[0], problems(seeds[0])

    def asked(given: Sequence[Any] = base, n: int = length, by: str = template) -> mi.LocatedHeads:
        return located(model, given, n, unit=unit, template=by)

    def tokens(by: str) -> list[tuple[int, ...]]:
        return [
            pair.inserted.ids
            for pair in mi.make_pairs(model, base, mi.Insertion.meaningless(unit, length), template=by)
        ]

    made, seen = [Variant(f"template {template}, {length} tokens, first problems", asked())], tokens(template)
    for other in templates[1:]:
        try:
            same = tokens(other) == seen
        except ValueError as error:
            made.append(Variant(f"template {other}", None, str(error).split(";")[0]))
        else:
            why = f"the same tokens as template {template}, since the problems bring all their parts"
            made.append(Variant(f"template {other}", None if same else asked(by=other), why))
    made.append(Variant("no system prompt", asked([replace(problem, system="") for problem in base], by="text")))
    made += [Variant(f"{n} tokens", asked(n=n)) for n in lengths[:-1]]
    made += [Variant(f"other problems ({at})", asked(problems(seed))) for at, seed in enumerate(seeds[1:], 1)]
    return made


def small_planted(circuit: str, first: int = 0) -> mi.ground_truth.PlantedModel:
    """The first random planted model from a seed on that has few heads, so that it is swept in a second."""
    drawn = (random_planted(seed, circuit=circuit) for seed in range(first, first + 100))
    return next(p for p in drawn if p.hf_model.config.num_hidden_layers * p.hf_model.config.num_attention_heads <= 36)


def planted_variants(planted: mi.ground_truth.PlantedModel, n_problems: int, **options: Any) -> list[Variant]:
    """A planted model with a chat template, asked in all ways."""
    planted.tokenizer.chat_template = CHAT
    model = mi.load_model(planted, backend="bridge")
    return variants(model, lambda seed: planted.problems(n_problems, seed=seed), **options)


def story_variants(folder: Path, n_problems: int) -> list[Variant]:
    """stories260K on texts of its own: ` /` is two tokens, so lengths are twice as many."""
    model = mi.load_model(folder)
    kept: dict[int, Sequence[Any]] = {}

    def problems(seed: int) -> Sequence[Any]:
        if seed not in kept:
            begin = model.tokenizer.bos_token_id
            requests = [Request((begin,), f"text-{at}") for at in range(n_problems + n_problems // 10 + 2)]
            decoding = decoding_for(model, max_new_tokens=96, temperature=1.0, seed=seed)
            drawn = complete_all(model, requests, decoding, engine_for(model, "auto"))
            texts = [model.tokenizer.decode(drawn[r.key].tokens, skip_special_tokens=True).strip() for r in requests]
            kept[seed] = mi.problems_from_texts(model, texts, n_before=16, n_context=64, n_answer=4)[:n_problems]
        return kept[seed]

    lengths = tuple(2 * n for n in LENGTHS)
    return variants(model, problems, unit=" /", lengths=lengths, templates=("text", "raw", "chat"), seeds=(0, 1))


# ----------------------------------------------------------------------------------------------------------- backends


def backends() -> list[str]:
    """Those that can be had here: HookedTransformer left TransformerLens with its version 4."""
    hooked = int(version("transformer-lens").split(".")[0]) < 4
    return [*(["hooked_transformer"] if hooked else []), "bridge", "nnsight"]


@dataclass
class Agreement:
    """One model on every backend, compared with the first: verdicts, counts of problems, the largest difference."""

    name: str
    n_heads: int
    named: int
    verdicts: int
    counts: int
    n_counts: int
    difference: float


def agreement(name: str, load: Callable[[str], Any], problems: Sequence[Any], names: Sequence[str]) -> Agreement:
    """The whole analysis on all backends; the difference is in shares of the largest total effect."""
    first, *others = (located(load(backend), problems, 12) for backend in names)
    verdicts, counts, n_counts, difference = 0, 0, 0, 0.0
    for other in others:
        verdicts += sum(a != b for a, b in zip(first.judged.kinds, other.judged.kinds, strict=True))
        for measure in (*first.values, *mi.circuits.judge.SIDES.values()):
            one, two = (found.judged.counted(measure).count for found in (first, other))
            counts += int((~((one == two) | (np.isnan(one) & np.isnan(two)))).sum())
            n_counts += one.size
        largest = max(float(np.abs(first.values[m] - other.values[m]).max()) for m in first.values)
        difference = max(difference, largest / float(np.abs(first.total).max()))
    return Agreement(name, len(first.heads), len(first.found), verdicts, counts, n_counts, difference)


def agreements(names: Sequence[str], n_problems: int) -> list[Agreement]:
    """Planted models, random ones of three architectures, and a trained one."""
    made = []
    for first, circuit in enumerate(("mixed", "rows", "any")):
        planted = small_planted(circuit, 10 * first)
        load = lambda backend, planted=planted: mi.load_model(planted, backend=backend)  # noqa: E731
        made.append(agreement(f"planted, {circuit}", load, planted.problems(n_problems), names))
    for architecture, n_kv in (("qwen2", 2), ("llama", 4), ("gemma3", 1)):
        sizes = {"name": architecture, "n_heads": 4, "n_key_value_heads": n_kv}
        load = lambda backend, a=architecture, s=sizes: mi.ground_truth.stand_in(a, **s, backend=backend)  # noqa: E731
        made.append(agreement(f"random, {architecture}", load, mi.ground_truth.stand_in_problems(n_problems), names))
    demo = mi.load_problems("demo", limit=n_problems)
    made.append(agreement("demo model", lambda backend: mi.load_model("demo", backend=backend), demo, names))
    return made


# --------------------------------------------------------------------------------------------------- tables, pictures


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table, its first column to the left."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def with_table(text: str, name: str, new: str) -> str:
    """A page with one of its tables (between `<!-- calibration NAME -->` and `<!-- end -->`) written anew."""
    pattern = rf"(<!-- calibration {re.escape(name)} -->\n).*?(\n<!-- end -->)"
    made, count = re.subn(pattern, lambda found: f"{found[1]}\n{new}\n{found[2]}", text, flags=re.DOTALL)
    if count != 1:
        raise SystemExit(
            f"{PAGE.name} has {count} tables between '<!-- calibration {name} -->' and '<!-- end -->', not 1"
        )
    return made


def write(name: str, new: str, *, page: Path | None) -> None:
    """Print a table, and put it into the page."""
    print(f"\n{name}\n\n{new}", flush=True)
    if page is not None:
        page.write_text(with_table(page.read_text(encoding="utf-8"), name, new), encoding="utf-8")


def power_of_ten(x: float) -> str:
    """A bound that other machines keep too: the next power of ten.

    >>> power_of_ten(3.2e-7), power_of_ten(0.0)
    ('1e-06', '0')
    """
    return f"{10.0 ** math.ceil(math.log10(x)):.0e}" if x > 0 else "0"


def in_hundred(x: float) -> str:
    return "-" if math.isnan(x) else f"{100 * x:.0f}"


def percent(x: float) -> str:
    return "-" if math.isnan(x) else f"{in_hundred(x)} %"


def rate_table(rates: Table, levels: Sequence[float], sizes: Sequence[int], first: str, strength: bool) -> str:
    """Named as what it is, in per cent (the pictures have the limits). Strengths: what was measured, and named at all where
    that is more often; shares: what the formula says."""
    head = [first, *(["median share undone"] if strength else []), *(f"n = {n}" for n in sizes)]
    rows = []
    for level in levels:
        cells = []
        for n in sizes:
            cell = rates[level, n]
            more = f", any {in_hundred(cell.named.rate)}" if cell.named.hits > cell.right.hits else ""
            said = "" if strength else f" / {in_hundred(promised(n, N_LAYERS * N_HEADS, level))}"
            cells.append(f"{in_hundred(cell.right.rate)}{more}{said}")
        share = [f"{100 * float(np.median(rates.measured[level])):.1f} %"] if strength else []
        rows.append([percent(level), *share, *cells])
    rows.append(
        ["a head planted as nothing", *(["-"] if strength else []), *(in_hundred(rates.others[n].rate) for n in sizes)]
    )
    return table(head, rows)


def strength_picture(rates: Table, levels: Sequence[float], sizes: Sequence[int], path: Path) -> None:
    """Named at all, and named as a reader, against the strength."""
    picture = mi.views.draw.Picture(figsize=(10.5, 4), layout="constrained")
    titles = {"named": "named at all", "right": "named as what it is, a reader"}
    for axes, (what, title) in zip(picture.subplots(1, 2, sharey=True), titles.items(), strict=True):
        for at, ((colour, dash, marker), n) in enumerate(zip(mi.views.draw.LINES, sizes, strict=False)):
            tallies = [getattr(rates[level, n], what) for level in levels]
            rate = np.array([tally.rate for tally in tallies])
            low, high = np.array([tally.limits for tally in tallies]).T
            x = 100 * np.array(levels) * 1.013 ** (at - (len(sizes) - 1) / 2)  # side by side
            bars = 100 * np.stack([rate - low, high - rate]).clip(0)
            style = {"color": colour, "ls": dash, "marker": marker, "ms": 5, "lw": 1.1, "label": f"{n} problems"}
            axes.errorbar(x, 100 * rate, bars, **style)
        axes.axvline(100 * SMALLEST, color="0.4", lw=0.8)
        axes.set(xlabel="planted strength (% of the insertion's effect)", ylim=(-4, 104), title=title)
        axes.set(xscale="log", xticks=[100 * level for level in levels])
        axes.set_xticklabels([f"{100 * level:.0f}" for level in levels])
        axes.minorticks_off()
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8, loc="center right")
    picture.axes[0].set_ylabel("planted models (%)")
    picture.save(path)


def share_picture(
    rates: Table, levels: Sequence[float], sizes: Sequence[int], scatters: Sequence[Scatter], path: Path
) -> None:
    """Named, against the share of problems in which a head acts: planted, and the demo model's heads; the formula as a line."""
    picture = mi.views.draw.Picture(figsize=(10.5, 4), layout="constrained")
    left, right = picture.subplots(1, 2, sharey=True)
    shown = [
        n
        for n in sizes
        if n >= mi.statistics.fewest_problems(mi.circuits.judge.PER_HEAD * N_LAYERS * N_HEADS, alpha=LEVEL)
    ]
    grid = np.linspace(0.2, 1, 161)
    for (colour, _, _), n in zip(mi.views.draw.LINES[1:], shown, strict=False):
        left.plot(100 * grid, [100 * promised(n, N_LAYERS * N_HEADS, x) for x in grid], color=colour, lw=0.9, alpha=0.8)
    for (colour, _, marker), n in zip(mi.views.draw.LINES[1:], shown, strict=False):
        cells = [rates[level, n].right for level in levels]
        for level, cell in zip(levels, cells, strict=True):
            low, high = cell.limits
            x = 100 * level + SIDE_BY_SIDE.get(n, 0)
            left.plot([x, x], [100 * low, 100 * high], color=colour, lw=1)
        x = [100 * level + SIDE_BY_SIDE.get(n, 0) for level in levels]
        left.plot(
            x, [100 * cell.rate for cell in cells], color=colour, ls="", marker=marker, ms=6, label=f"{n} problems"
        )
    left.set(xlabel="problems in which the head acts (%)", ylabel="named (%)", title="planted readers, 16 heads tested")
    for (colour, _, marker), made in zip(mi.views.draw.LINES[1:], scatters, strict=False):
        right.plot(100 * grid, [100 * promised(made.n, made.n_heads, x) for x in grid], color=colour, lw=0.9, alpha=0.8)
        right.plot(
            100 * made.prevalence, 100 * made.passes, ls="", marker=marker, color=colour, ms=4, alpha=0.6,
            label=f"{made.n} problems",
        )  # fmt: skip
    title = f"demo model, {scatters[0].n_heads} heads tested: passes on a side" if scatters else "demo model"
    right.set(xlabel="problems in which the head acts (%), of all", title=title)
    for axes in (left, right):
        axes.axvline(50, color="0.4", lw=0.8)
        axes.set_ylim(-4, 104)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8, loc="upper left")
    picture.save(path)


def variant_picture(groups: Sequence[tuple[str, Sequence[Variant], Mapping[mi.Head, int]]], path: Path) -> None:
    """In what share of problems some heads act, under every variant, with exact limits; filled where the head is named."""
    groups = [(name, [v for v in made if v.found is not None], heads) for name, made, heads in groups]
    picture = mi.views.draw.Picture(
        figsize=(9, 0.5 + 0.36 * sum(len(made) + 2 for _, made, _ in groups)), layout="constrained"
    )
    rows = [len(made) + 1 for _, made, _ in groups]
    for axes, (name, made, heads) in zip(
        picture.subplots(len(groups), 1, sharex=True, squeeze=False, height_ratios=rows)[:, 0], groups, strict=True
    ):
        for (colour, _, marker), (at, (head, sense)) in zip(
            mi.views.draw.LINES, enumerate(heads.items()), strict=False
        ):
            for row, variant in enumerate(made):
                assert variant.found is not None
                k, n = prevalence_of(variant.found, head, sense)[0], len(variant.found.total)
                low, high = mi.statistics.exact_limits(np.array(k), np.array(n))
                y = row + 0.22 * (at - (len(heads) - 1) / 2)
                filled = {"markerfacecolor": colour if head in variant.named else "white"}
                axes.plot([100 * low, 100 * high], [y, y], color=colour, lw=1)
                axes.plot(
                    100 * k / n,
                    y,
                    marker=marker,
                    ms=6,
                    color=colour,
                    ls="",
                    label=in_words({head: sense})[0] if not row else None,
                    **filled,
                )
        axes.axvline(50, color="0.4", lw=0.8)
        axes.set_yticks(range(len(made)), [variant.name for variant in made], fontsize=8)
        axes.set_ylim(len(made) - 0.4, -0.6)
        axes.set_xlim(0, 103)
        axes.set_title(name, fontsize=10, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    axes.set_xlabel("problems in which removing the head takes more than 5 % of the effect (%); filled: named")
    picture.save(path)


def variant_rows(made: Sequence[Variant], heads: Mapping[mi.Head, int]) -> Iterator[list[object]]:
    """A row per variant: whom it names, how many of them the first names too, and the counts of heads in their senses."""
    first = made[0].named
    for variant in made:
        if variant.found is None:
            yield [variant.name, f"not run: {variant.why}", "-", *["-"] * len(heads)]
            continue
        found, n = variant.found, len(variant.found.total)
        kinds: dict[str, list[str]] = {}
        for head, kind in variant.named.items():
            kinds.setdefault(kind, []).append(str(head))
        words = "; ".join(f"{', '.join(heads_of)} {kind}" for kind, heads_of in kinds.items()) or "nobody"
        if not found.established:
            words = "nobody: no effect is established"
        counts = ["{} / {}".format(*prevalence_of(found, head, sense)) + f" of {n}" for head, sense in heads.items()]
        yield [variant.name, words, percent(overlap(first, variant.named)), *counts]


def leading(found: mi.LocatedHeads, count: int) -> dict[mi.Head, int]:
    """The heads that are named, then those that act in most problems (by the side where they do in fewer): their senses."""
    least = {(head, sense): min(prevalence_of(found, head, sense)) for head in found.heads for sense in (1, -1)}
    senses = dict(zip(found.heads, map(int, found.judged.sense), strict=True))
    order = [(head, senses[head]) for head in found.found if senses[head]]
    order += [key for key in sorted(least, key=lambda key: -least[key]) if key[0] not in found.found]
    return dict(order[:count])


def in_words(heads: Mapping[mi.Head, int]) -> list[str]:
    """Heads as columns are called; those against the effect say so."""
    return [f"{head}{'' if sense > 0 else ', against'}" for head, sense in heads.items()]


# ---------------------------------------------------------------------------------------------------------------- run


def rules_part(options: argparse.Namespace, page: Path | None) -> None:
    """Tables of what the rules of naming and of shares keep, beside those that they replaced."""
    write("one family", table(["heads", "n", "side by side", "one family"], one_family(options.draws)), page=None)
    head = ["what the head does in every problem", *(f"n = {n}" for n in RULE_SIZES)]
    write("border", table(head, border(options.draws)), page=page)
    head = ["part and total", *(f"n = {n}" for n in RULE_SIZES)]
    write("shares", table(head, shares(options.draws)), page=None)


def power_part(options: argparse.Namespace, page: Path | None) -> None:
    """Tables and pictures of strength, share and effects as they come."""
    strengths = (*STRENGTHS, 1 - sum(STRENGTHS))
    rates, again = strength_part(options.models, SIZES, STRENGTHS)
    write("strength", rate_table(rates, strengths, SIZES[1:], "strength", True), page=page)
    same = again[0.0, 0].right
    words = (
        f"Located anew, {len(again.measured[0.0])} of these data sets give {same.hits} of {same.sets} heads the same verdict; "
        f"no effect differs by {power_of_ten(max(again.measured[0.0]))} of the total or more."
    )
    write("anew", words, page=None)
    shares = share_part(options.models, SIZES, SHARES)
    write("share", rate_table(shares, SHARES, SIZES[1:], "share of problems", False), page=page)
    model = mi.load_model("demo", backend="bridge")
    demo = located(model, mi.load_problems("demo", limit=options.pool), 55)
    scatters = [resampled(demo, n, options.sets) for n in (16, 32, 64)]
    edges = (0, 0.5, 0.6, 0.7, 0.8, 1.0)
    rows: dict[str, list[object]] = {}
    for made in scatters:
        for name, cells, rate, said in made.rows(edges):
            rows.setdefault(name, [name, cells]).append(f"{in_hundred(rate)} / {in_hundred(said)}")
    rows["false"] = ["any false claim", "", *(str(made.false) for made in scatters)]
    head = ["prevalence", "heads × sides", *(f"n = {made.n}" for made in scatters)]
    write("demo", table(head, rows.values()), page=None)
    if page is not None:
        strength_picture(rates, strengths, SIZES, IMAGES / "calibration_strength.png")
        share_picture(shares, SHARES, SIZES, scatters, IMAGES / "calibration_share.png")


def sensitivity_part(options: argparse.Namespace, page: Path | None) -> None:
    """Tables and a picture of what templates, lengths and problems change."""
    sums: dict[str, list[float]] = {}
    for at, circuit in enumerate(("plain", "mixed", "rows", "against")):
        planted = small_planted(circuit, 100 + 10 * at)
        made = planted_variants(planted, options.problems, seeds=(0, 1, 2))
        expected = expected_of(planted)
        wanted = {head: e.verdict for head, e in expected.items() if e.verdict in mi.circuits.judge.NAMED}
        for variant in made:
            if variant.found is None:
                continue
            right = sum(variant.named.get(head) == kind for head, kind in wanted.items())
            acts = [max(prevalence_of(variant.found, head, expected[head].sense)) for head in wanted]
            lowest = min(acts) / len(variant.found.total)
            others = sum(head not in wanted for head in variant.named)
            old = sums.setdefault(variant.name, [0, 0, 0, 0, 0, 1])
            shared = overlap(made[0].named, variant.named)
            sums[variant.name] = [
                *(a + b for a, b in zip(old[:5], (1, len(wanted), right, others, shared), strict=True)),
                min(old[5], lowest),
            ]
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, (count, planted, right, others, shared, lowest) in sums.items():
        cells = f"{right:.0f} of {planted:.0f}", f"{others:.0f}", percent(shared / count), percent(lowest)
        alike.setdefault(cells, []).append(name)
    rows = [["; ".join(names), *cells] for cells, names in alike.items()]
    head = ["variant", "planted heads named right", "others named", "overlap with the first row", "lowest prevalence"]
    write("planted variants", table(head, rows), page=None)
    model = mi.load_model("demo", backend="bridge")
    many = mi.load_problems("demo", limit=2 * options.problems)
    demo = variants(model, lambda seed: many[seed * options.problems : (seed + 1) * options.problems])
    heads = leading(demo[0].found, 3)  # type: ignore[arg-type]
    head = ["variant", "named", "overlap", *in_words(heads)]
    write("demo variants", table(head, variant_rows(demo, heads)), page=None)
    groups = [(f"demo model, {options.problems} problems", demo, heads)]
    if not (options.stories / "config.json").is_file():
        print(f"\nstories260K: skipped, {options.stories} is absent; set MLESS_SHARED or --stories")
    else:
        stories = story_variants(options.stories, options.texts)
        heads = leading(stories[0].found, 3)  # type: ignore[arg-type]
        head = ["variant", "named", "overlap", *in_words(heads)]
        write("stories variants", table(head, variant_rows(stories, heads)), page=None)
        groups.append((f"stories260K, {options.texts} texts", stories, heads))
    if page is not None:
        variant_picture(groups, IMAGES / "calibration_sensitivity.png")


def backend_part(options: argparse.Namespace, _page: Path | None) -> None:
    """The table of whole analyses on all backends."""
    names = backends()
    made = agreements(names, options.problems // 3)
    rows = [
        [a.name, a.n_heads, a.named, a.verdicts, f"{a.counts} of {a.n_counts}", power_of_ten(a.difference)]
        for a in made
    ]
    head = ["model", "heads", "named", "other verdicts", "other counts of problems", "largest difference below"]
    write("backends", table(head, rows) + f"\n\nCompared: {', '.join(names)}.", page=None)


def strata_part(options: argparse.Namespace, _page: Path | None) -> None:
    """The table of names within strata that mean nothing."""
    head = ["strata", "n", "specialists, tags shuffled", "any name, coin tosses"]
    write("strata", table(head, strata_rows(options.draws)), page=None)


def readings_part(options: argparse.Namespace, _page: Path | None) -> None:
    """The table of tokens that are read where nothing is to be read, simulated and on random models."""
    head = ["own tokens", "n", "each problem's own against others'", "probes from all other folds", "lens", "probe"]
    write("readings", table(head, readings_rows(options.draws)), page=None)
    found = readings_of_models(options.models, 10, 64)
    words = (
        f"The whole analysis on {options.models} random models of 2 layers with 64 problems each, 10 tags drawn without "
        f"looking, one token in half of the problems: anything is called readable in {found} %."
    )
    write("readings of models", words, page=None)


PARTS = {
    "readings": readings_part,
    "rules": rules_part,
    "strata": strata_part,
    "power": power_part,
    "sensitivity": sensitivity_part,
    "backends": backend_part,
}


def main() -> int:
    """Run the parts, print their tables, write them and the pictures into the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS, help="default: all")
    parser.add_argument("--models", type=int, default=40, help="planted models per table (default 40)")
    parser.add_argument("--pool", type=int, default=128, help="problems of the demo model to draw from (default 128)")
    parser.add_argument("--sets", type=int, default=300, help="data sets drawn from them (default 300)")
    parser.add_argument(
        "--draws", type=int, default=2000, help="simulated data sets per cell of the rules (default 2000)"
    )
    parser.add_argument("--problems", type=int, default=48, help="problems of each variant (default 48)")
    parser.add_argument("--texts", type=int, default=128, help="texts of stories260K (default 128)")
    parser.add_argument("--stories", type=Path, default=STORIES, help="the folder of stories260K; skipped where absent")
    parser.add_argument("--dry", action="store_true", help="print only; leave page and pictures as they are")
    options = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    print(
        f"mless_interp {version('mless_interp')}, torch {version('torch')}, threads {torch.get_num_threads()}, float32"
    )
    for part in options.parts:
        began, used = time.perf_counter(), time.process_time()
        PARTS[part](options, None if options.dry else PAGE)
        print(f"\n{part}: {time.perf_counter() - began:.0f} s, {time.process_time() - used:.0f} s of CPU", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
