"""Sets of heads that suffice, and sets that are needed: for heads that stand in for each other, or act only together."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from ..core.arguments import Arguments, check_count, checked, count_of, listed
from ..core.heads import Head
from ..metrics.outputs import circuit_distance, circuit_performance
from ..models.base import Model, refuse_without_gradients
from ..patching.attribution import HeadAttribution, attribute_heads
from ..patching.effect import SMALLEST_EFFECT, WHOLE, Effect
from ..patching.knockouts import CHOSEN_HERE, cutting, gate_row, gated_outcomes, random_sets
from ..patching.outcomes import Outcome
from ..patching.prepared import Measured, Prepared, Settings, prepare
from ..prompts.conditions import Contrast
from ..prompts.pairs import PromptPair, digest_of
from ..runtime.base_result import Quantity, interval_columns, of_heads, tidy
from ..runtime.columns import columns_of, ends_of
from ..runtime.folders import savable
from ..runtime.loop import RunOptions
from ..statistics import Prevalence, defined_mean, derive_generator, fewest_problems, holm, prevalence_test
from .cells import Asked, heads_of, named_on, named_words
from .locate import fresh_problems

N_CANDIDATES = 32  # of all heads, the best by gate gradient are tried
SIDES = ("sufficient", "necessary")
Members = tuple[Head, ...]
FRACTIONS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""MIB's sizes of circuits, as shares of all heads."""


@checked
def minimal_sets(
    model: Model,
    pairs: Iterable[PromptPair] | Prepared,
    heads: Asked | None = None,
    *,
    fresh: Iterable[PromptPair] | Prepared | None = None,
    contrast: str = "content",
    outcome: str | Outcome = "answer_logprob",
    share: float = 0.8,
    max_heads: int = 16,
    n_random_sets: int = 100,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    seed: int = 0,
) -> "MinimalSets":
    r"""Find the fewest heads whose sight of the span suffices, and the fewest whose blinding removes the effect.

    A set $S$ sees the span while no other head does, or is blind to it while all others see it:

    $$ \Delta^{\text{suff}}_p(S) = Y_p^{\,\text{only } S \text{ sees}} - Y_p^{\,\text{none sees}}, \qquad
       \Delta^{\text{nec}}_p(S) = Y_p^{\,\text{all see}} - Y_p^{\,\text{all but } S \text{ see}} $$

    A set is found where its median over problems is `share` of the median total effect or more. It grows by the head that adds
    most; where none adds 5 % of the effect, by what each does alone, then by gate gradient. It is pruned while the rest reaches
    the share; a smaller set can be missed. On fresh problems it is tested to do more than `share` of the problem's own effect
    in most (Holm over both sets), and ranked among `n_random_sets` sets of the same size and layers.

    Parameters
    ----------
    heads : candidates, or what `locate_heads` gave (its named heads). Default: the 32 best of all heads by gate gradient.
    fresh : problems to confirm on, none of them among `pairs`. Default: every second one of `pairs` is kept for that.
    contrast : "content"; "computed", what is opened and closed is then the span's sight of the question; "replaced", a closed
        head writes what it does in the clean run.
    share : of the median effect, above 0 and at most 1.
    checkpoint : a folder, as in `patch_heads`.

    Raises `ValueError` for too few problems (6 to find, 6 to confirm), `ModelError` where no gradients can be had.

    Source: methods §8.1; Wang et al. (2211.00593), Shi et al. (2410.13032) | differs in: attention to the span is what a set
    has or lacks, not the heads themselves.
    """
    between, options = cutting(contrast), RunOptions(checkpoint, progress, seed)
    if not 0 < share <= 1:
        raise ValueError(f"share is a part of the median effect, above 0 and at most 1, got {share!r}")
    check_count(max_heads, name="max_heads")
    check_count(n_random_sets, name="n_random_sets", at_least=0)
    prepared = prepare(model, pairs, outcome, signed_for="finding sets of heads")
    search, other = (each.under(between) for each in halves(prepared, fresh))
    for problems, n_tests, what in ((search, 2, "find sets"), (other, len(SIDES), "confirm them")):
        if problems.n_groups < (needed := fewest_problems(n_tests)):  # of the total effect both senses are tested
            raise ValueError(f"at least {needed} problems (or groups) are needed to {what}, got {problems.n_groups}")
    given = None if heads is None else heads_of(model, heads, "find sets of", contrast=contrast, outcome=outcome)
    refuse_without_gradients(model, "minimal_sets")
    kept = options.part("gates").checkpoint
    of: Arguments = {"contrast": contrast, "outcome": search.outcome, "method": "gate_ig" if between.cuts else "atp"}
    gradients = attribute_heads(model, search, **of, checkpoint=kept, progress=progress, verify=0)
    candidates = _by_gradient(gradients, given or model.info.heads)[: None if given else N_CANDIDATES]
    here, there = (_Measured(each, between, options) for each in (search, other))
    total, fresh_total = (each.effects(SIDES[0], [model.info.heads])[:, 0] for each in (here, there))
    whole = Effect(total, rounding=model.resolution, groups=search.groups)
    size = abs(float(whole.median.estimate))
    way = _Search(here, whole, share * size, SMALLEST_EFFECT * size)
    order = way.in_doubt(candidates) if whole.established else candidates
    made: Arguments = {}
    for side in SIDES:
        chosen = way.found(side, order, max_heads) if whole.established else ()
        swaps = way.swaps(side, chosen, order)
        tried = (chosen, *swaps) if chosen else ()
        others = random_sets(chosen, model.info, n_random_sets, seed=seed) if chosen else ()
        on_fresh, random = np.split(there.effects(side, [*tried, *others]), [len(tried)], axis=1)
        made[side] = HeadSet(side, chosen, swaps, here.effects(side, tried), on_fresh, others, random)
    settings: Settings = {"contrast": contrast, "max_heads": max_heads, "n_random_sets": n_random_sets, "seed": seed}
    settings |= {**named_on(heads, other.ids), "fresh_prompts": digest_of(other.pairs), "n_fresh": len(other.ids)}
    made |= {"candidates": order, "total": total, "fresh_total": fresh_total, "share": share, "seed": seed}
    return MinimalSets(fresh_ids=other.ids, fresh_groups=other.groups, **made, **search.fields(settings))


def halves(prepared: Prepared, fresh: Iterable[PromptPair] | Prepared | None) -> tuple[Prepared, Prepared]:
    """Return the problems to search and those to confirm on: fresh ones, checked to be so, or every second one."""
    if fresh is not None:
        return prepared, fresh_problems(prepare(prepared.model, fresh, prepared.outcome), prepared)
    return prepared.halves()


def _by_gradient(found: HeadAttribution, heads: Sequence[Head]) -> Members:
    """Sort heads by the largest of what gate gradients say: the integral, and both estimates at its ends (medians)."""
    estimates = [each for each in (found.scores, found.knockout, found.edge_noise) if each is not None]
    size = np.max([np.abs(np.nanmedian(found.by_group(of_heads(each, heads)), axis=0)) for each in estimates], axis=0)
    return tuple(heads[at] for at in np.argsort(-size, kind="stable"))


class _Measured:
    """What sets of heads do on some problems: each measured once."""

    def __init__(self, prepared: Prepared, contrast: Contrast, options: RunOptions) -> None:
        self.prepared, self.contrast, self.options = prepared, contrast, options
        self._known: dict[tuple[str, Members], np.ndarray] = {}

    def effects(self, side: str, sets: Sequence[Sequence[Head]]) -> np.ndarray:
        """Return what each set brings, or takes, `[problem, set]`: against a run beside it with nothing opened, or closed."""
        asked = [(side, tuple(sorted(each))) for each in sets]
        new = [each for each in dict.fromkeys(asked) if each not in self._known]
        if new:
            info, closed, names = self.prepared.model.info, side == "necessary", [named(heads) for _, heads in new]
            values = gated_outcomes(
                self.prepared,
                torch.stack([gate_row(heads, info, closed=closed) for heads in ((), *(heads for _, heads in new))]),
                label=f"{side} sets of {count_of(max(map(len, sets)), 'head')}",
                settings={"side": side, "sets": names, "contrast": self.contrast.name},
                contrast=self.contrast,
                options=self.options.part(side, names, digest_of(self.prepared.pairs)),
            )
            brought = values[:, :1] - values[:, 1:] if closed else values[:, 1:] - values[:, :1]
            self._known |= zip(new, brought.T, strict=True)
        return np.array([self._known[each] for each in asked]).reshape(len(sets), len(self.prepared.ids)).T


@dataclass(frozen=True)
class _Search:
    """Look for sets that reach `target`; a step of `little` is none of its own (both in the outcome's unit)."""

    measured: _Measured
    whole: Effect
    target: float
    little: float

    def _medians(self, side: str, sets: Sequence[Members]) -> np.ndarray:
        effects = self.whole.units(self.whole.turned(self.measured.effects(side, sets)))
        return np.nan_to_num(np.nanmedian(effects, axis=0), nan=-np.inf)  # what is never defined is no set

    def in_doubt(self, candidates: Sequence[Head]) -> Members:
        """Return the candidates by what each does alone, open or closed; those that do little stay in their order behind."""
        alone = np.max([self._medians(side, [(head,) for head in candidates]) for side in SIDES], axis=0)
        return tuple(candidates[at] for at in np.argsort(-np.where(alone > self.little, alone, 0), kind="stable"))

    def found(self, side: str, order: Sequence[Head], most: int) -> Members:
        """Return the set, grown head by head, then pruned: empty where none was found."""
        chosen: Members = ()
        waiting, best = list(order), 0.0
        while best < self.target and waiting and len(chosen) < most:
            medians = self._medians(side, [(*chosen, head) for head in waiting])
            at = int(np.argmax(medians)) if float(medians.max()) > best + self.little else 0
            chosen, best = (*chosen, waiting.pop(at)), float(medians[at])
        if best < self.target:
            return ()
        while len(chosen) > 1:
            fewer = [tuple(head for head in chosen if head != left) for left in chosen]
            medians = self._medians(side, fewer)
            if not float(medians.max()) >= self.target:
                break
            chosen = fewer[int(np.argmax(medians))]
        return chosen

    def swaps(self, side: str, chosen: Members, order: Sequence[Head]) -> tuple[Members, ...]:
        """Return the sets with one member replaced by another candidate that reach the target too."""
        others = [head for head in order if head not in chosen]
        tried = [tuple(other if head == left else head for head in chosen) for left in chosen for other in others]
        return tuple(compress(tried, self._medians(side, tried) >= self.target))


@savable
@dataclass(frozen=True, eq=False)
class HeadSet:
    """One set of heads that `minimal_sets` looked for, `side` "sufficient" or "necessary"; no `heads` where there is none.

    `swaps` are sets with one member replaced that do as well. `effects` `[problem, set or swap]` is what the set, then each of
    them, does on the problems of the search, `fresh` on others; `random` `[fresh, set]` what `sets`, others of the same size
    and layers, do.
    """

    side: str
    heads: Members
    swaps: tuple[Members, ...]
    effects: np.ndarray
    fresh: np.ndarray
    sets: tuple[Members, ...]
    random: np.ndarray

    @property
    def own(self) -> np.ndarray:
        """What the set does on the fresh problems, `[fresh]`; NaN where there is none."""
        return self.fresh[:, 0] if self.heads else np.full(len(self.fresh), np.nan)

    @property
    def stand_ins(self) -> dict[Head, Members]:
        """Member -> the heads of which each, in its place, reaches the share too on the problems of the search."""
        stands: dict[Head, Members] = {}
        for one in self.swaps:
            (member,), (other,) = set(self.heads) - set(one), set(one) - set(self.heads)
            stands[member] = (*stands.get(member, ()), other)
        return {head: stands[head] for head in self.heads if head in stands}


@dataclass(frozen=True, eq=False, repr=False)
class MinimalSets(Measured):
    """A sufficient and a necessary set of heads (`HeadSet`), from the same candidates.

    Effects are parts of `total` `[problem]`, on the problems of the search, and of `fresh_total` `[fresh]`, on those of
    `fresh_ids` (in `fresh_groups`).
    """

    fresh_ids: tuple[str, ...]
    candidates: Members
    total: np.ndarray
    fresh_total: np.ndarray
    sufficient: HeadSet
    necessary: HeadSet
    unit: str
    share: float
    fresh_groups: tuple[str, ...] = field(default=(), kw_only=True)

    columns = columns_of("""
        share | share | share | what the set brings on the problems that chose it, of the effect in the middle one
        confirmed | confirmed | verdict | passes again on fresh problems
        fresh_share | share on fresh problems | share | what the set brings there, of the effect in the middle problem
        p_random | p, random sets | p | rank among random sets of the same size and layers, on fresh problems
        random_share | share of random sets | share | median over them, on fresh problems
    """)
    drawn = ("fresh_share", "share")
    caption = "The sets; shares are of the whole effect."

    @property
    def both(self) -> tuple[HeadSet, HeadSet]:
        return self.sufficient, self.necessary

    @cached_property
    def wholes(self) -> tuple[Effect, Effect]:
        """The total effect where sets were sought, and on the fresh problems, where its sign is claimed."""
        here = Effect(self.total, self.confidence, rounding=self.resolution, groups=self.groups)
        return here, replace(here, total=self.fresh_total, claimed=here.direction, groups=self.fresh_groups)

    def test(self, each: HeadSet) -> Prevalence:
        """Count the fresh problems in which a set does more than `share` of the problem's own effect, if that has its sign."""
        there = self.wholes[1]
        whole, own = there.turned(self.fresh_total), there.turned(each.own)
        more = there.units(np.minimum(own - self.share * whole, whole)[:, None])
        return prevalence_test(more, there.rounding, senses=(1,), tested=np.array([there.established]))

    @property
    def p(self) -> np.ndarray:
        """Corrected p of both sets, `[side]`: do they reach the share of the problem's own effect in most fresh problems?"""
        return holm(np.array([float(self.test(each).p[0, 0]) for each in self.both]))

    @property
    def confirmed(self) -> dict[str, bool]:
        """Whether each set is shown to do its share in most fresh problems."""
        return {each.side: bool(p < self.level) for each, p in zip(self.both, self.p, strict=True)}

    def table(self) -> pd.DataFrame:
        """Return a row per set: the share reached on either half, k of n fresh problems, p; NaN where there is no such set."""
        rows, (here, there) = [], self.wholes
        for each, p in zip(self.both, self.p, strict=True):
            test, reached = self.test(each), interval_columns("fresh_share", there.share(each.fresh))
            reached |= interval_columns("share", here.share(each.effects))
            row = {"side": each.side, "heads": named(each.heads), "n_heads": len(each.heads)}
            row |= {name: float(shares[0]) if each.heads else np.nan for name, shares in reached.items()}
            row |= {"k": int(test.count[0, 0]), "n": int(test.n[0]), "p_corrected": float(p)}
            row |= {"confirmed": self.confirmed[each.side], "p_random": rank_among(there, each.own, each.random)}
            random = np.median(there.share(each.random).estimate) if each.sets else np.nan
            rows.append({**row, "random_share": float(random)})
        return pd.DataFrame(rows)

    def quantity(self, column: str) -> Quantity:
        return Quantity(WHOLE, True, "p_corrected")

    def to_frame(self) -> pd.DataFrame:
        """Return one tidy row per measured set and problem, of both sides and both halves (`half`: "search" or "fresh")."""
        frames = [pd.DataFrame(columns=["side", "half", "set", "heads", "problem", "effect", "total"])]
        for each in self.both:
            tried = [("set", each.heads)] * bool(each.heads) + [("swap", heads) for heads in each.swaps]
            fresh = [*tried, *(("random", heads) for heads in each.sets)]
            for half, ids, total, sets, effects in (
                ("search", self.problem_ids, self.total, tried, each.effects),
                ("fresh", self.fresh_ids, self.fresh_total, fresh, np.c_[each.fresh, each.random]),
            ):
                for (kind, heads), effect in zip(sets, effects.T, strict=True):
                    of = {"side": each.side, "half": half, "set": kind, "heads": named(heads)}
                    frames.append(pd.DataFrame({**of, "problem": ids, "effect": effect, "total": total}))
        return pd.concat(frames[1:] or frames, ignore_index=True)

    def headline(self) -> str:
        told = []
        for each in self.both:
            sure = f"{'' if self.confirmed[each.side] else 'not '}confirmed on fresh problems"
            told.append(f"{each.side}: {listed(each.heads)} ({sure})" if each.heads else f"{each.side}: no set")
        short = "; ".join(told)
        return f"{short[0].upper()}{short[1:]}."

    def details(self) -> list[str]:
        found: list[str] = []
        here, there = self.wholes
        for each in self.both:
            side = each.side.capitalize()
            if not here.established:
                found.append(f"No {each.side} set: most problems do not show an effect of one sign.")
            elif not each.heads:
                most = f"{min(self.settings['max_heads'], len(self.candidates))} of these {len(self.candidates)} heads"
                enough = f"{100 * self.share:z.0f} % of the median effect"
                found.append(f"No {each.side} set of up to {most} reaches {enough}.")
            elif not there.established:
                found.append(f"{side}: on fresh problems no such effect is established.")
            found += [f"{side}, in place of {head}: {listed(others)} too." for head, others in each.stand_ins.items()]
        return [*found, *named_words(self.settings)]

    @property
    def printed_of(self) -> str:
        return "Table: fresh problems; share: those that chose the sets."

    def printed(self) -> pd.DataFrame:
        table = self.table()
        share = self.default_column(table)  # the one that is drawn: room for its interval
        columns = ["fresh_share", "share", *ends_of(share), "k", "n", "p_corrected", "p_random", "heads"]
        return table[["side", "n_heads", *columns]]


def rank_among(whole: Effect, own: np.ndarray, random: np.ndarray) -> float:
    """Rank a set `[problem]`: p of its median among random sets' `[problem, set]` and its own; NaN without any."""
    if not (n := random.shape[1]):
        return float("nan")
    mine, others = (whole.cell_medians(whole.turned(each)).estimate for each in (own, random))
    return float(1 + (others >= mine - whole.rounding).sum()) / (1 + n)


def named(heads: Sequence[Head]) -> str:
    return " ".join(map(str, heads))


@checked
def circuit_curve(
    model: Model,
    pairs: Iterable[PromptPair] | Prepared,
    ranking: Sequence[Head | str],
    *,
    contrast: str = "content",
    outcome: str | Outcome = "answer_logprob",
    n_random: int = 20,
    chosen_elsewhere: bool = False,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    seed: int = 0,
) -> "CircuitCurve":
    r"""Start where no head sees the span, let the first k heads of a ranking see it, and read the outcome.

    $$ f(k) = \frac{\bar Y_k - \bar Y_{\text{masked}}}{\bar Y_{\text{inserted}} - \bar Y_{\text{masked}}}, \qquad
       \mathrm{CPR} = \int f, \quad \mathrm{CMD} = \int |1 - f| $$

    For the ranking, for the same ranking backwards, and for `n_random` random orders with the ranking's layer profile.

    Parameters
    ----------
    contrast : "content"; "computed", the heads then let the span's rows see the question; "replaced", they write what they do
        in the run under study, all others what they do in the clean one.
    ranking : best head first; heads that it leaves out follow in order of layer and head. Of such a ranking CPR and CMD depend
        on what follows: what counts is the share that the given heads restore alone.
    chosen_elsewhere : the ranking was made without these problems; only then is it tested against the random orders.

    Source: MIB, Mueller et al. 2025 (2504.13151) | differs in: attention to the span is what a circuit has or lacks.
    """
    between, info = cutting(contrast), model.info
    prepared = prepare(model, pairs, outcome, signed_for="a circuit curve").under(between)
    check_count(n_random, name="n_random", at_least=0)
    given = info.chosen(ranking, what="rank")
    order = (*given, *(head for head in info.heads if head not in set(given)))
    n = len(order)
    sizes = np.array(sorted({0, len(given), n, *(int(part * n + 1e-9) for part in FRACTIONS)}))  # 0.3 * 10 is 3, not 2
    orders = {"ranking": order, "reversed": order[::-1]}
    orders |= {f"random {draw}": same_layers(order, seed=seed, draw=draw) for draw in range(n_random)}
    sets = [(), order, *(heads[:k] for heads in orders.values() for k in sizes[1:-1])]
    settings: Settings = {"ablation": between.cuts or "head outputs of the clean run", "contrast": contrast}
    settings |= {"n_ranked": len(given), "ranking": list(map(str, order)), "n_random": n_random, "seed": seed}
    values = gated_outcomes(
        prepared,
        torch.stack([gate_row(heads, info, closed=False) for heads in sets]),
        label="growing circuits",
        settings={**settings, "sizes": sizes.tolist()},
        contrast=between,
        options=RunOptions(checkpoint, progress),
    )
    masked, inserted = (np.repeat(end[:, None, None], len(orders), 1) for end in (values[:, 0], values[:, 1]))
    inner = values[:, 2:].reshape(len(values), len(orders), -1)
    made: Arguments = {"ranking": order, "sizes": sizes, "orders": tuple(orders), "seed": seed}
    made |= {"values": np.concatenate([masked, inner, inserted], -1), "chosen_elsewhere": chosen_elsewhere}
    return CircuitCurve(**made, **prepared.fields(settings))


def same_layers(order: Sequence[Head], *, seed: int, draw: int) -> tuple[Head, ...]:
    """Return a random order whose every place holds a head of the same layer as in `order`."""
    generator, layers = derive_generator(seed, "circuit order", draw), [head.layer for head in order]
    return tuple(pd.Series(order).groupby(layers, sort=False).transform(lambda own: generator.permutation(own)[::-1]))


@dataclass(frozen=True, eq=False, repr=False)
class CircuitCurve(Measured):
    """Outcomes of growing circuits, `values` `[problem, order, size]`, for the ranking, its reverse and random orders.
    `sizes` are numbers of heads that see the span, from 0 (masked) to all (inserted)."""

    ranking: tuple[Head, ...]
    sizes: np.ndarray
    orders: tuple[str, ...]
    values: np.ndarray
    unit: str
    chosen_elsewhere: bool = False

    picture = "circuit_curve"
    columns = columns_of("""
        fraction | share of the heads | share | heads that see the span / all ranked heads
        faithfulness | effect restored | share | share of the whole effect that these heads restore
        reversed | reversed ranking | share | the same for the ranking from its end
        random_mean | random orders | share | the same for heads in random order, mean
        random_low | random orders, from | share | the least that a random order restores
        random_high | random orders, to | share | the most that a random order restores
    """)

    @property
    def n_tail(self) -> int:
        """How many heads were not given: they end the ranking, by layer."""
        return len(self.ranking) - int(self.settings.get("n_ranked", len(self.ranking)))

    @property
    def fractions(self) -> np.ndarray:
        return self.sizes / len(self.ranking)

    @property
    def total(self) -> np.ndarray:
        """Effect of letting every head see the span (inserted - masked), `[problem]`."""
        return self.values[:, 0, -1] - self.values[:, 0, 0]

    @cached_property
    def whole(self) -> Effect:
        return Effect(self.total, self.confidence, rounding=self.resolution, groups=self.groups)

    @property
    def faithfulness(self) -> np.ndarray:
        """Restored share of the effect, ratio of means, `[order, size]`; NaN where there is no mean to have a share of."""
        restored = defined_mean(self.by_group(self.values - self.values[:, :, :1]))
        return restored / (self.whole.mean if self.whole.established else np.nan)

    @property
    def cpr(self) -> np.ndarray:
        """Area under the faithfulness curve, `[order]`: higher is better."""
        return circuit_performance(torch.tensor(self.fractions), torch.tensor(self.faithfulness)).numpy()

    @property
    def cmd(self) -> np.ndarray:
        """Area between the faithfulness curve and 1, `[order]`: lower is better."""
        return circuit_distance(torch.tensor(self.fractions), torch.tensor(self.faithfulness)).numpy()

    @property
    def alone(self) -> np.ndarray:
        """Share of the effect that the given heads restore alone, `[order]`: as many of each order, of the same layers."""
        return self.faithfulness[:, self.sizes.tolist().index(len(self.ranking) - self.n_tail)]

    @property
    def p_random(self) -> float:
        """Share of orders, random or its own, with a CMD as low as the ranking's (of a partial one: whose first heads come as
        near to the whole effect as the given ones alone); NaN without any, or where the ranking was made here."""
        far = np.abs(1 - self.alone) if self.n_tail else self.cmd
        own, random = far[0], far[2:]
        if not self.chosen_elsewhere or not len(random) or np.isnan(own):
            return float("nan")
        return float((1 + (random <= own + 1e-12).sum()) / (1 + len(random)))

    def table(self) -> pd.DataFrame:
        """Return one row per size: the ranking's faithfulness, the reverse, the random orders' mean and range."""
        ranked, backwards, *random = self.faithfulness
        spread = np.array(random) if random else np.full((1, len(self.sizes)), np.nan)
        columns = {"n_heads": self.sizes, "fraction": self.fractions, "faithfulness": ranked, "reversed": backwards}
        columns |= {"random_mean": spread.mean(0), "random_low": spread.min(0), "random_high": spread.max(0)}
        return pd.DataFrame(columns)

    def to_frame(self) -> pd.DataFrame:
        """Return one tidy row per problem, order and size."""
        return tidy({"problem": self.problem_ids, "order": self.orders, "n_heads": self.sizes}, outcome=self.values)

    def headline(self) -> str:
        whole = self.whole.headline(self.settings.get("insertion"), self.settings.get("outcome"), self.unit)
        if np.isnan(self.faithfulness).all():
            return f"{whole}, and its mean is not told from 0, so there is no curve to draw."
        if self.n_tail:
            heads = count_of(len(self.ranking) - self.n_tail, "given head restores", "given heads restore")
            return f"{whole}; the {heads} {100 * self.alone[0]:.1f} % of it alone."
        at = int(np.argmax(self.faithfulness[0] >= 0.5))
        first, last = self.sizes[at - 1] + 1, self.sizes[at]
        size = last if first >= last else f"{first} to {last}"
        of = f"{size} of {count_of(len(self.ranking), 'head')}"
        cpr = "CPR {:.2f}, reversed {:.2f}".format(*self.cpr)
        return f"{whole}; half of it returns with the first {of} ({cpr})."

    def rest(self) -> str:
        given = f"Given and ranked: {count_of(len(self.ranking) - self.n_tail, 'head')}"
        return f"{given}; the other {self.n_tail} follow by layer." if self.n_tail else ""

    def printed(self) -> pd.DataFrame:
        made = super().printed().drop(columns=["reversed"] * bool(self.n_tail), errors="ignore")
        return made if "faithfulness" in made else made.head(0)  # no curve, no sizes

    def details(self) -> list[str]:
        words, n = [f"Ablation: {self.settings.get('ablation')}."], len(self.orders) - 2
        if n and not np.isnan(self.cmd[0]):
            of = " for the CMD" * (not self.n_tail)
            p = CHOSEN_HERE if np.isnan(self.p_random) else f"p = {self.p_random:.3f}{of}"
            told = {"restored alone": self.alone} if self.n_tail else {"CPR": self.cpr, "CMD": self.cmd}
            own = ", ".join(f"{name} {each[0]:.3f}" for name, each in told.items())
            others = ", ".join(f"{name} {each[2:].mean():.3f}" for name, each in told.items())
            words.append(
                f"{own[0].upper()}{own[1:]}; {n} random orders with the same layers: {others} on average; {p}."
            )
        return words
