"""Sentences about located heads: power, controls, sets, and what the problems could not show."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from ..core.arguments import count_of, listed
from ..patching.effect import Effect, fewest_for
from ..patching.joint import CHOSEN_HERE, JointKnockout
from ..runtime.results import with_limits
from ..scores import HeadScores
from ..scores.scored import is_sink
from .judge import KINDS, PER_HEAD, InStratum, Judged, strata_sizes
from .specificity import OTHERS


def few_problems(n: int, n_heads: int, confidence: float, *, per_head: int = PER_HEAD) -> str:
    """What to say where so few problems cannot name any of so many heads; nothing where they can.

    `per_head`: tests of a head; 1: heads that were named before are to be confirmed.
    """
    needed, again = fewest_for(per_head * n_heads, confidence), per_head == 1
    if n >= needed:
        return ""
    heads = "a head" if n_heads == 1 else f"any of {n_heads} heads"
    return (
        f"{count_of(n, 'problem')} {'is' if n == 1 else 'are'} too few to {'confirm' if again else 'name'} {heads} (alpha "
        f"= {1 - confidence:.3g}): {needed} problems are needed, more where heads act in fewer than all."
    )


def few_in_strata(strata: Sequence[str], groups: Sequence[str], n_heads: int, confidence: float, by: str) -> str:
    """What to say where no stratum has problems enough to be tested; nothing where one has."""
    (name, largest), *others = strata_sizes(strata, groups).items()
    alone, each = (fewest_for(PER_HEAD * n_heads * (1 + k), confidence) for k in (1, 1 + len(others)))
    if largest >= alone:
        return ""
    more = f", {each} in each of {1 + len(others)} to test them all" if others else ""
    return (
        f"by={by!r}: no stratum has enough problems to be tested within, so no specialist can be named. The largest ({name}) "
        f"has {largest}; {alone} are needed to test it alone{more}."
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


def strata_words(what: str, found: Sequence[InStratum]) -> list[str]:
    """In which strata heads pass, head by head: `Confirmed within strata: L1H0 a, c; L1H2 b.`"""
    by_head: dict[Any, list[str]] = {}
    for each in found:
        by_head.setdefault(each.head, []).append(each.stratum + (" (against the effect)" if each.sense < 0 else ""))
    told = "; ".join(f"{head} {', '.join(strata)}" for head, strata in by_head.items())
    return [f"{what}: {told or 'none'}."]


def strata_columns(heads: Sequence[Any], kinds: Sequence[str], **found: Sequence[InStratum]) -> dict[str, list[str]]:
    """Columns with the strata of each specialist in words, "" of other heads; none where there are no specialists."""
    if "specialist" not in kinds:
        return {}
    named = [head if kind == "specialist" else None for head, kind in zip(heads, kinds, strict=True)]
    return {
        name: [", ".join(each.stratum for each in within if each.head == head) for head in named]
        for name, within in found.items()
    }


def specific_words(table: pd.DataFrame, *, level: float, n: int, confirmed: Sequence[str] | None = None) -> list[str]:
    """Return which heads do more than under random words of the same length, and where attention could not be matched.

    `confirmed`: those that fresh problems confirmed, which the table is then of; None where it is of the problems on which
    they were named.
    """
    if table.empty or not table["exceeds_random_n"].any():
        return ["Controls were not run, so whether the heads are specific is unknown."] if len(table) else []
    words = [f"Controls: `control_table()` ({CHOSEN_HERE})."]
    if confirmed is not None:
        passed = table.loc[table["p_specific"] < level, "label"]
        words = [
            f"Confirmed and specific to this insertion: {listed([label for label in passed if label in confirmed]) or 'none'}."
        ]
    needed = [name for name, kind in KINDS.items() if kind.reads and kind.side != "added"]
    short = table[table["kind"].isin(needed) & (table["exceeds_mass_n"] < n)]
    some = [f"{row.label} on {row.exceeds_mass_n}" for row in short.itertuples() if row.exceeds_mass_n]
    none = [row.label for row in short.itertuples() if not row.exceeds_mass_n]
    if some or none:
        where = [f"possible for {', '.join(some)} of {count_of(n, 'problem')}"] if some else []
        where += [f"not possible for {', '.join(none)} on any problem"] if none else []
        why = "too little other attention to remove; on too few, random words alone decide"
        words.append(f"Matched-attention control: {'; '.join(where)} ({why}).")
    return words


def readers_words(joint: JointKnockout) -> list[str]:
    """What the heads that read remove, as a set where they are several."""
    which = "Heads that attend to the span" if len(joint.heads) > 1 else "The head that attends to the span"
    return [f"{which}: {joint.headline()}", *joint.details()]


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
