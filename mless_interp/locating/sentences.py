"""How verdicts are told: in how many problems, out of how many, and what the problems could not tell."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from ..arguments import count_of
from ..patching.effect import Effect, fewest_for
from ..patching.joint import CHOSEN_HERE, JointKnockout
from ..patching.parts import FEWEST, share_words
from ..running.results import interval_columns, with_limits
from ..scores import HeadScores
from ..scores.scored import is_sink
from ..statistics import SENSES, concentration, defined_mean
from .control import OTHERS
from .judge import KINDS, SIDES, InStratum, Judged, measured

PER_HEAD = len(SIDES) * len(SENSES)
"""Tests of a head in the family that names heads."""


def few_problems(n: int, n_heads: int, confidence: float, *, per_head: int = PER_HEAD) -> str:
    """What to say where so few problems cannot name any of so many heads; nothing where they can.

    `per_head`: tests of a head; 1: heads that were named before are to be confirmed.
    """
    needed, again = fewest_for(per_head * n_heads, confidence), per_head == 1
    if n >= needed:
        return ""
    heads = "a head" if n_heads == 1 else f"any of {n_heads} heads"
    return (
        f"{count_of(n, 'problem')} {'is' if n == 1 else 'are'} too few to {'confirm' if again else 'name'} {heads} at alpha "
        f"= {1 - confidence:.3g}: not even a head that acts "
        f"in every problem would pass. {needed} problems are needed, more where heads act in fewer than all."
    )


def power_words(judged: Judged) -> str:
    """What these problems can find: from the binomial alone, never from what was observed."""
    n, n_heads = judged.effect.n, len(judged.heads)
    least = judged.effect.detectable(PER_HEAD * n_heads)
    if np.isnan(least):
        return few_problems(n, n_heads, judged.effect.confidence)
    return (
        f"Power: with {n} problems, one of {n_heads} heads is found 80 % of the time where it acts in "
        f"{100 * least:.0f} % of all problems."
    )


def smallest_words(effect: Effect) -> str:
    """The smallest effect of interest as it is said: a share of the effect."""
    return f"{100 * effect.smallest_effect:.3g} %"


def total_words(judged: Judged, unit: str, contrast: str = "content") -> list[str]:
    """The whole effect: its median, in how many problems it is of one sign, its mean, and who carries the mean."""
    effect = judged.effect
    agree = int((effect.units(effect.turned(effect.total)) > effect.rounding).sum())
    sign = "this sign" if judged.claims is None else "the sign claimed"
    name = "" if contrast == "total" else f"{contrast} "
    return [
        f"Total {name}effect: median {with_limits(effect.median, unit)}, of {sign} in {agree} of "
        f"{effect.counted(effect.n)} (sign test, p = {effect.p:.2g}); mean {defined_mean(effect.total):+.4f}."
    ]


def concentration_words(total: np.ndarray, ids: Sequence[str], unit: str, outcome: str) -> list[str]:
    """Where a few problems carry most of an effect: which, how much, what is left without them, what to do."""
    if not np.any(total):
        return []
    found = concentration(total)
    if not found.concentrated or len(total) < FEWEST:
        return []
    which = ", ".join(ids[at] for at in found.problems[:5]) + (", ..." if len(found.problems) > 5 else "")
    words = (
        f"A few problems carry most of it: {100 * found.share:.0f} % of all that happens lies in {len(found.problems)} of "
        f"{count_of(len(total), 'problem')} ({which}); leaving them out one after another, the mean ranges from "
        f"{found.low:+.4f} to {found.high:+.4f} {unit}. Means and fractions below rest on them; the counts of problems do not."
    )
    if outcome != "answer_prob":
        words += " The bounded outcome answer_prob has no such tails."
    return [words]


def verdict_words(judged: Judged, at: int, kind: str) -> str:
    """One head's verdict: its kind, in how many problems it removes and adds the effect, and the share.

    "L0H13: reader; removes more than 5 % of the effect in 61 of 64 problems, adds it in 60; 31 % [28, 34] of the total"
    """
    side = "added" if KINDS[kind].side == "added" else "removed"
    other = next(name for name in SIDES if name != side)
    with_it = judged.told_in[at] > 0
    verbs = {"removed": "removes", "added": "adds"}
    against = {"removed": "taking it out raises", "added": "putting it in lowers"}
    counts = {name: judged.counted(measure) for name, measure in SIDES.items()}
    did, n, did_other = int(counts[side].count[0, at]), int(counts[side].n[at]), int(counts[other].count[0, at])
    smallest = smallest_words(judged.effect)
    if with_it:
        of = judged.effect.counted(n)
        told = f"{verbs[side]} more than {smallest} of the effect in {did} of {of}, {verbs[other]} it in {did_other}"
    else:
        told = (
            f"against the effect: {against[side]} it by more than {smallest} in {did} of {judged.effect.counted(n)}, "
            f"{against[other]} it in {did_other}"
        )
    share = judged.effect.share(measured(judged.values, SIDES[side])[:, at])
    words = share_words({name: float(value) for name, value in interval_columns("share", share).items()})
    return f"{judged.heads[at]}: {kind}; {told}; {words} of the total"


def strata_words(what: str, found: Sequence[InStratum]) -> list[str]:
    """In which strata heads pass, head by head: `Confirmed within strata: L1H0 a, c; L1H2 b.`"""
    by_head: dict[Any, list[str]] = {}
    for each in found:
        by_head.setdefault(each.head, []).append(each.stratum + (" (against the effect)" if each.sense < 0 else ""))
    told = "; ".join(f"{head} {', '.join(strata)}" for head, strata in by_head.items())
    return [f"{what}: {told or 'none'}."]


def specific_words(table: pd.DataFrame, *, level: float, n: int, confirmed: Sequence[str] | None = None) -> list[str]:
    """Whether the named heads do more than under random words of the same length, and than a knockout of as much attention.

    `confirmed`: those that fresh problems confirmed, which the table is then of; None where it is of the problems on which
    they were named.
    """
    fresh = confirmed is not None
    if table.empty or not table["exceeds_random_n"].any():
        return ["Controls were not run, so whether they are specific is unknown."] if len(table) else []
    counts = []
    for row in table.itertuples():
        mass = (
            f", than as much attention elsewhere in {row.exceeds_mass} of {row.exceeds_mass_n}"
            if row.exceeds_mass_n
            else ""
        )
        p = f" (p = {row.p_specific:.2g})" if fresh and not np.isnan(row.p_specific) else ""
        share = share_words(row._asdict(), "random_words_share")
        also = "" if np.isnan(row.random_words_share) else f"; {share} of it comes with random words too"
        counts.append(
            f"{row.label} more than random words of the same length in {row.exceeds_random} of {row.exceeds_random_n}{mass}"
            f"{p}{also}"
        )
    if confirmed is not None:
        passed = table.loc[table["p_specific"] < level, "label"]
        specific = ", ".join(label for label in passed if label in confirmed) or "none"
        words = [f"Confirmed and specific to this insertion: {specific}. {'; '.join(counts)}."]
    else:
        words = [f"Beside their controls ({CHOSEN_HERE}): {'; '.join(counts)}."]
    needed = [name for name, kind in KINDS.items() if kind.reads and kind.side != "added"]
    short = table[table["kind"].isin(needed) & (table["exceeds_mass_n"] < n)]
    some = [f"{row.label} on {row.exceeds_mass_n}" for row in short.itertuples() if row.exceeds_mass_n]
    none = [row.label for row in short.itertuples() if not row.exceeds_mass_n]
    if some or none:
        where = [f"possible for {', '.join(some)} of {count_of(n, 'problem')}"] if some else []
        where += [f"not possible for {', '.join(none)} on any problem"] if none else []
        words.append(
            f"Matched-attention control: {'; '.join(where)} (too little other attention to remove); where it is "
            "possible on too few, random words alone decide."
        )
    return words


def readers_words(joint: JointKnockout) -> list[str]:
    """What the heads that read remove, as a set where they are several."""
    first, *rest = joint.sentences()
    return [f"{'Heads that read, as a set' if len(joint.heads) > 1 else 'The head that reads'}: {first}", *rest]


def left_out_words(left_out: dict[str, str]) -> list[str]:
    """Which controls could not be run, and why."""
    return [f"The control of {OTHERS[name]} was left out: {why}." for name, why in left_out.items()]


def gap_words(controls: dict[str, Any], effect: Effect, unit: str) -> list[str]:
    """What the change of positions does with nothing inserted, by the rules of the whole `effect`."""
    if "shift_total" not in controls:
        return []
    shift = replace(effect, total=controls["shift_total"], claimed=0.0)
    words = (
        f"Gap only (positions shifted as by the insertion, nothing inserted): median {with_limits(shift.median, unit)}"
    )
    if not (np.abs(shift.total) > shift.rounding).any():
        return [f"{words}: no change at all."]
    return [f"{words}{'' if shift.established else ': not established'}."]


def sink_words(scores: HeadScores | None) -> list[str]:
    """Which heads read a span that is a sink in most problems; nothing where none does."""
    if scores is None:
        return []
    counts, n = is_sink(scores).sum(0), len(scores.problem_ids)
    flagged = [
        f"{head} (in {count} of {count_of(n, 'problem')})"
        for head, count in zip(scores.heads, counts, strict=True)
        if 2 * count > n
    ]
    if not flagged:
        return []
    return [
        f"Reading a span that is an attention sink: {', '.join(flagged)}. Attention rests on a sink whatever stands there, so "
        "that these heads read the span does not show that they use what it says."
    ]
