"""How verdicts are told: in how many problems, out of how many, and what the problems could not tell."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ..given import count_of
from ..patching.joint import CHOSEN_HERE, JointKnockout
from ..patching.parts import FEWEST
from ..running.results import with_limits
from ..statistics import (
    concentration,
    detectable_prevalence,
    fewest_problems,
    mean_interval,
    median_interval,
)
from .control import OTHERS
from .judge import KINDS, SIDES, Judged, established


def few_problems(n: int, n_heads: int, alpha: float, *, again: bool = False) -> str:
    """What to say where so few problems cannot name any of so many heads; nothing where they can.

    `again`: heads that were named before are to be confirmed, each in its own sense; the total effect has two signs still.
    """
    needed = max(fewest_problems(n_heads, alpha=alpha, n_senses=1 if again else 2), fewest_problems(1, alpha=alpha))
    if n >= needed:
        return ""
    heads = "a head" if n_heads == 1 else f"any of {n_heads} heads"
    return (
        f"{count_of(n, 'problem')} {'is' if n == 1 else 'are'} too few to {'confirm' if again else 'name'} {heads} at alpha "
        f"= {alpha:g}: not even a head that acts "
        f"in every problem would pass. {needed} problems are needed, more where heads act in fewer than all."
    )


def power_words(n: int, n_heads: int, alpha: float) -> str:
    """What these problems can find: from the binomial alone, never from what was observed."""
    least = detectable_prevalence(n, n_heads, alpha=alpha)
    if np.isnan(least):
        return few_problems(n, n_heads, alpha)
    return f"{n} problems name one of {n_heads} heads with 80 % power where it acts in {100 * least:.0f} % of all problems."


def share_words(share: float) -> str:
    """The smallest effect of interest as it is said: a share of the effect."""
    return f"{100 * share:.3g} %"


def total_words(judged: Judged, unit: str, contrast: str = "content") -> list[str]:
    """The whole effect: its median, in how many problems it is of one sign, its mean, and who carries the mean."""
    total = judged.total
    agree = int((judged.direction * total > judged.rounding).sum())
    sign = "this sign" if judged.claims is None else "the sign claimed"
    name = "" if contrast == "total" else f"{contrast} "
    return [
        f"Total {name}effect: median {with_limits(median_interval(total), unit)}, of {sign} in {agree} of {len(total)} "
        f"problems (sign test, p = {judged.p_total:.2g}); mean {with_limits(mean_interval(total))}."
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
        f"{count_of(len(total), 'problem')} ({which}); as they are left out, its mean lies between {found.low:+.4f} and "
        f"{found.high:+.4f} {unit}. Means and fractions below rest on them; the counts of problems do not."
    )
    if outcome != "answer_prob":
        words += " The bounded outcome answer_prob has no such tails."
    return [words]


def verdict_words(judged: Judged, at: int, kind: str) -> str:
    """One head's verdict: its kind, in how many problems it removes and adds the effect, and the median share.

    "L0H13: reader; removes more than 5 % of the effect in 61 of 64 problems, adds it in 60; median 31 % [28, 34] of the
    total"
    """
    side = "added" if KINDS[kind].side == "added" else "removed"
    other = next(name for name in SIDES if name != side)
    with_it = judged.told_in[at] > 0
    verbs = {"removed": "removes", "added": "adds"}
    against = {"removed": "taking it out raises", "added": "putting it in lowers"}
    counts = {name: judged.counted(measure) for name, measure in SIDES.items()}
    did, n, did_other = int(counts[side].count[0, at]), int(counts[side].n[at]), int(counts[other].count[0, at])
    smallest = share_words(judged.smallest_effect)
    if with_it:
        of = count_of(n, "problem")
        told = f"{verbs[side]} more than {smallest} of the effect in {did} of {of}, {verbs[other]} it in {did_other}"
    else:
        told = (
            f"against the effect: {against[side]} it by more than {smallest} in {did} of {count_of(n, 'problem')}, "
            f"{against[other]} it in {did_other}"
        )
    share = median_interval(judged.turned(SIDES[side])[:, at])
    whole = abs(float(np.median(judged.total))) / 100
    limits = "" if np.isnan(share.low) else f" [{float(share.low) / whole:.0f}, {float(share.high) / whole:.0f}]"
    return f"{judged.heads[at]}: {kind}; {told}; median {float(share.estimate) / whole:.0f} %{limits} of the total"


def specific_words(table: pd.DataFrame, *, alpha: float, n: int, confirmed: Sequence[str] | None = None) -> list[str]:
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
        counts.append(
            f"{row.label} more than random words of the same length in {row.exceeds_random} of {row.exceeds_random_n}{mass}{p}"
        )
    if confirmed is not None:
        passed = table.loc[table["p_specific"] < alpha, "label"]
        specific = ", ".join(label for label in passed if label in confirmed) or "none"
        words = [f"Confirmed and specific to this insertion: {specific}. {'; '.join(counts)}."]
    else:
        words = [f"Beside their controls ({CHOSEN_HERE}): {'; '.join(counts)}."]
    needed = [name for name, kind in KINDS.items() if kind.reads and kind.side != "added"]
    short = table[table["kind"].isin(needed) & (table["exceeds_mass_n"] < n)]
    lacking = [f"{row.label} on {row.exceeds_mass_n}" for row in short.itertuples()]
    if lacking:
        words.append(
            f"Taking as much attention elsewhere is possible on fewer than all {count_of(n, 'problem')} for "
            f"{', '.join(lacking)} (not enough other attention to take); where it is on too few, random words alone decide."
        )
    return words


def readers_words(joint: JointKnockout) -> list[str]:
    """What the heads that read remove, as a set where they are several."""
    first, *rest = joint.sentences()
    return [f"{'Heads that read, as a set' if len(joint.heads) > 1 else 'The head that reads'}: {first}", *rest]


def left_out_words(left_out: dict[str, str]) -> list[str]:
    """Which controls could not be run, and why."""
    return [f"The control of {OTHERS[name]} was left out: {why}." for name, why in left_out.items()]


def gap_words(controls: dict[str, Any], *, unit: str, alpha: float, rounding: float) -> list[str]:
    """What the change of positions does with nothing inserted."""
    if "shift_total" not in controls:
        return []
    shift = controls["shift_total"]
    words = (
        "Gap only (positions shifted as by the insertion, nothing inserted): median "
        f"{with_limits(median_interval(shift), unit)}"
    )
    if not (np.abs(shift) > rounding).any():
        return [f"{words}: no change at all."]
    return [f"{words}{'' if established(shift, resolution=rounding, alpha=alpha) else ': not established'}."]
