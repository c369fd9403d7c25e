"""Decompose a head's read into scale, bias, and a place to park attention (methods §8)."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..core.arguments import checked, count_of, listed
from ..core.heads import Head
from ..models.base import Model
from ..prompts.pairs import PromptPair
from ..runtime.columns import columns_of
from ..runtime.results import Quantity, Result, Shown, ShownTable, head_columns, interval_columns, rows_per_head, tidy
from ..statistics import CONFIDENCE, holm, prevalence_test
from ..statistics.arguments import check_share
from .effect import SMALLEST_EFFECT
from .joint import CHOSEN_HERE
from .outcomes import Outcome
from .parts import WHOLE, Parts
from .prepared import Prepared, prepare
from .sweep import Sweep, sweep_heads

READ_EDITS = {
    "knockout": "knocking its read out",
    "knockout_zero": "cutting the span off without renormalising",
    "restore_scale": "restoring the scale",
    "reroute_to_sink": "parking the span's attention on the first token outside it",
    "reroute_uniform": "spreading it evenly over the other tokens",
}
"""The edits of a read and their words; the last axis of `ReadEffects.values`."""
FOLLOWS = {
    "knockout_zero": {
        "same": "what it takes from the span matters (bias)",
        "less": "what it takes from the span hardly matters by itself",
        "other": "what it takes from the span acts the other way",
    },
    "restore_scale": {
        "same": "the attention that it keeps for the rest matters (scale)",
        "less": "the attention that it keeps for the rest (scale) hardly matters by itself",
        "other": "the attention that it keeps for the rest (scale) acts the other way",
    },
    "reroute_to_sink": {
        "same": "sending that attention to the first token does not replace the span",
        "less": "sending that attention to the first token replaces the span",
        "other": "sending that attention to the first token does even more",
    },
    "reroute_uniform": {
        "same": "spreading it over all other tokens does not replace the span",
        "less": "spreading it over all other tokens replaces the span",
        "other": "spreading it over all other tokens does even more",
    },
}
"""What an edit says that is shown to act as the knockout does ("same"), next to nothing and less than half of it ("less"), or
against it."""
SO: dict[tuple[str, str], tuple[str, dict[str, tuple[str, ...]]]] = {
    ("knockout_zero", "less"): ("so the knockout acts by renormalising", {"restore_scale": ("less", "other")}),
    ("reroute_to_sink", "same"): (
        "so the span is more than a place to park attention",
        {"knockout_zero": ("less",), "reroute_uniform": ("less",)},
    ),
    ("reroute_to_sink", "less"): (
        "so the span is just a place to park attention",
        {"knockout_zero": ("same", "other"), "restore_scale": ("less", "other")},
    ),
    ("reroute_uniform", "same"): (
        "so this is more than dilution",
        {"knockout_zero": ("less",), "reroute_to_sink": ("less",)},
    ),
    ("reroute_uniform", "less"): (
        "so this is only dilution",
        {"knockout_zero": ("same", "other"), "restore_scale": ("less", "other")},
    ),
}
"""The conclusions from these, withheld where another edit contradicts them."""
ASKED = ("more", "against", "less")
"""The possible verdicts of a cell: beyond the smallest effect with or against the insertion's effect, or below it."""
BESIDE = ("half", "half_against")
"""The verdicts of an edit compared with the knockout: less than half of it, where that is with the effect, or against it."""


@checked
def read_effects(
    model: Model,
    pairs: Iterable[PromptPair] | Prepared,
    heads: Iterable[Head | str],
    *,
    outcome: str | Outcome = "answer_logprob",
    confidence: float = CONFIDENCE,
    smallest_effect: float = SMALLEST_EFFECT,
    chosen_elsewhere: bool = False,
    checkpoint: str | Path | None = None,
    max_rows: int | None = None,
    progress: bool = True,
) -> "ReadEffects":
    r"""Take the read of heads apart: five edits of each head's attention to the span, one head at a time, exactly.

    In the run that sees the span (content contrast, denoising) a head writes $z' = \lambda z_- + \Sigma$, with $\lambda$ the
    attention that it keeps for the rest, $z_-$ what the rest alone would give it and $\Sigma$ what it takes from the span.
    Each edit puts something else in place of $z'$ at every token after the insertion:

    $$ \text{knockout}: z_-, \qquad \text{knockout\_zero}: \lambda z_- = z' - \Sigma, \qquad
       \text{restore\_scale}: z^\text{ref} + \Sigma, \qquad
       \text{reroute}: \lambda z_- + (1 - \lambda)\, u $$

    and what it removes of the insertion's effect is $Y_\text{receiving} - Y_\text{patched}$.
    The comparison reads like this:

    - `knockout` removes scale and bias: the whole direct read. The other four say something of the head only where this does,
      and "next to nothing" of them is also less than half of what this removes.
    - `knockout_zero` removes the **bias** alone. It removes as much: what is taken from the span matters. It removes next to
      nothing: the knockout acts by renormalising, so the scale is what matters.
    - `restore_scale` removes the **scale** alone; $z^\text{ref}$ is the output in the run without the span. In layer 0 it is
      $z_-$, and the two changes of z add up to the knockout's exactly (their effects on the outcome need not). Above layer 0
      it also undoes what earlier layers changed, so nothing is concluded from it there.
    - `reroute_to_sink` gives the span's mass to the first token outside it ($u$ = that token's value). It removes next to
      nothing although the knockout does: the span is just a place to park attention, and that token would do. NaN where
      some row cannot see that token (a sliding window).
    - `reroute_uniform` spreads the mass evenly over the other tokens ($u$ = their mean value). It removes next to nothing
      although the knockout does: only dilution, and any tokens would do.

    Parameters
    ----------
    heads : usually the readers that `locate_heads` names; zero-based. Where the same problems chose them by their
        knockout, `knockout` is no second evidence for them.
    outcome : one with a sign: "answer_logprob", "answer_prob", "solution_logprob", "logit_diff".
    smallest_effect : of interest, as a share of the |median total effect|, above 0.
    confidence : of intervals; 1 - confidence is the level of all tests together.
    chosen_elsewhere : True says that the heads were chosen without these problems (on others, from the literature, by
        their planting); only then are there p-values, else what is found describes these problems.
    checkpoint : a file that receives each finished problem; started again with the same settings the run goes on there.
    max_rows : rows of one batch at most (default: sized to memory).

    Returns `ReadEffects` with values `[problem, head, intervention]`. Models with folded value biases give other numbers for
    `knockout_zero` (rows no longer sum to 1); nothing is folded here. Raises `ValueError` before anything runs for heads out
    of range or none, outcomes without a sign, and pairs that cannot be patched.

    Source: methods §3 (I1, I7, I8), §6, §8.
    """
    _check_levels(confidence, smallest_effect)
    prepared = prepare(model, pairs, outcome, signed_for="taking a read apart")
    chosen = model.info.chosen(heads, what="take apart")
    sweeps = {name: Sweep.named(edit=name) for name in READ_EDITS}
    swept = sweep_heads(prepared, sweeps, chosen, checkpoint=checkpoint, max_rows=max_rows, progress=progress)
    return ReadEffects(
        problem_ids=prepared.ids,
        groups=prepared.groups,
        heads=chosen,
        values=np.stack([swept[name].per_head for name in READ_EDITS], -1),
        total=swept["knockout"].total_effect,
        unit=prepared.outcome.unit,
        confidence=confidence,
        smallest_effect=smallest_effect,
        resolution=model.resolution,
        chosen_elsewhere=chosen_elsewhere,
        settings={"heads": list(map(str, chosen)), "contrast": "content", **prepared.settings},
    )


@dataclass(frozen=True, eq=False, repr=False)
class ReadEffects(Parts, Result, renamed={"alpha": None}):
    """Store the effect that each edit of each head's read removes: `values` `[problem, head, intervention]` (`READ_EDITS`).

    `total` `[problem]` is the insertion's content effect (inserted - masked), `values` the parts of it that go, both in the
    outcome's unit; `turned` are the parts in the direction of the effect: positive with it, negative against it. `whole` is the
    total `Effect`, with the smallest effect of interest (`delta`); effects up to `resolution` are rounding. NaN is
    undefined: the problem leaves that cell's n.

    A cell is *shown* to remove "more" than the smallest effect (with the effect, or "against" it), or "less" than that, where
    most problems do. That an edit does next to nothing is concluded where it is also shown to be smaller than half of what
    the knockout removes, in most problems and in the knockout's sense. Exact binomial tests, Holm over all of them (heads x
    (interventions x 3 questions + the 4 edits beside the knockout x 2 senses)), at the level of `whole`. Where the total effect
    is not established (sign test over problems) there are no shares, and nothing is shown.

    `chosen_elsewhere`: the heads were not chosen on these problems, so that `p` means something; else it is NaN, and what is
    shown by the same rule describes these problems.
    """

    problem_ids: tuple[str, ...]
    heads: tuple[Head, ...]
    values: np.ndarray
    total: np.ndarray
    unit: str
    smallest_effect: float = SMALLEST_EFFECT
    resolution: float = 0.0
    settings: dict[str, Any] = field(default_factory=dict)
    confidence: float = CONFIDENCE
    chosen_elsewhere: bool = False

    picture = "read_effects"
    columns = columns_of("""
        intervention | edit | | what is done to the head's attention to the span
        shown | shown | verdict | what most problems show, by an exact test
        p_more | p, more | p | that it does more than the smallest effect in most problems
        p_against | p, against | p | that it does more than the smallest effect against the insertion's in most problems
        p_less | p, less | p | that it does less than the smallest effect in most problems
        p_half | p, half | p | that it does more than half of the knockout in most problems
        p_half_against | p, half, against | p | that it does more than half of the knockout against the insertion's effect
    """)
    drawn = ("share", "median")
    reported = (
        *("label", "layer", "head", "intervention", "shown", "k", "n", "n_undefined", "median", "share"),
        *(f"p_{name}" for name in ASKED + BESIDE),
    )
    axes = (("values", "problem head intervention"), ("total", "problem"))

    def __post_init__(self) -> None:
        _check_levels(self.confidence, self.smallest_effect)

    # -------------------------------------------------------------------------------------------------------- numbers

    @property
    def per_cell(self) -> np.ndarray:
        """`values`."""
        return self.values

    @property
    def total_effect(self) -> np.ndarray:
        """`total`."""
        return self.total

    @property
    def turned(self) -> np.ndarray:
        """`values`, positive where a part of the insertion's effect in most problems goes."""
        return self.whole.turned(self.values)

    @cached_property
    def _corrected(self) -> np.ndarray:
        """`[more | against | less | half | half_against, head, intervention]`, Holm over all; NaN where nothing is tested."""
        if np.isnan(self.whole.delta):
            return np.full((len(ASKED + BESIDE), *self.values.shape[1:]), np.nan)
        knocked = self.turned[..., :1]
        below_half = np.sign(knocked) * np.maximum(np.abs(knocked) - 2 * np.abs(self.turned), 0.0)
        half = prevalence_test(self.whole.units(below_half), 0.0).p
        half[..., 0] = np.nan  # the knockout beside itself
        return holm(np.concatenate([self.prevalence.p, self.whole.within(self.values)[0][None], half]))

    @property
    def _sure(self) -> np.ndarray:
        """Which of these are below the level."""
        return np.nan_to_num(self._corrected, nan=1.0) < self.whole.level

    @property
    def p(self) -> np.ndarray:
        """`[more | against | less | half | half_against, head, intervention]`, Holm over all of them.

        The last two: the edit is smaller than half of what the knockout removes with the effect, or against it (NaN for the
        knockout). NaN where nothing can be tested, and where the heads were chosen on these problems.
        """
        return self._corrected if self.chosen_elsewhere else np.full_like(self._corrected, np.nan)

    @cached_property
    def verdicts(self) -> np.ndarray:
        """Return the verdict of each cell, `[head, intervention]`: one of `ASKED`, "" for none."""
        # one of the three at most: each is about most problems
        return np.select(list(self._sure[: len(ASKED)]), ASKED, default="")

    # --------------------------------------------------------------------------------------------------------- tables

    def table(self) -> pd.DataFrame:
        """One row per head and intervention.

        `median` over problems of what the edit removes of the insertion's effect, with its interval, in `unit`; `share` of the
        total effect with exact limits; `k` of `n` problems in which more than delta is removed, `prevalence` = k / n with exact
        limits, `n_undefined` others; corrected p of removing more, of acting against the effect, of removing less, and of less
        than half of the knockout (NaN where the heads were chosen on these problems); `shown`: which of the first three is
        shown.
        """
        made, counted = self.median, self.prevalence
        columns = interval_columns("median", made) | interval_columns("share", self.share)
        columns |= {"k": counted.count[0], "prevalence": counted.share[0], "prevalence_ci_low": counted.low[0]}
        columns["prevalence_ci_high"] = counted.high[0]
        columns |= {f"p_{name}": p for name, p in zip(ASKED + BESIDE, self.p, strict=True)}
        columns |= {"shown": self.verdicts, "n": made.n, "n_undefined": len(self.total) - made.n}
        heads = pd.DataFrame(head_columns(self.heads)).loc[np.repeat(np.arange(len(self.heads)), len(READ_EDITS))]
        edits = tidy({"place": self.heads, "intervention": list(READ_EDITS)}, **columns).drop(columns="place")
        return pd.concat([heads.reset_index(drop=True), edits], axis=1)

    def quantity(self, column: str) -> Quantity:
        """An amount in the outcome's unit, a share of the median total effect, or of the problems."""
        unit = {"share": WHOLE, "prevalence": "1: every problem"}.get(column, self.unit)
        return Quantity(unit, column != "prevalence", (f"{column}_ci_low", f"{column}_ci_high"))

    def to_frame(self) -> pd.DataFrame:
        """One tidy row per edit (the `measure`), problem and head: what it removes of the problem's total effect."""
        edits = {name: self.values[..., at] for at, name in enumerate(READ_EDITS)}
        return rows_per_head(self.problem_ids, self.heads, edits)

    def printed(self) -> pd.DataFrame:
        """One row per head: every edit's median with its interval, and what is shown of it."""
        said = {"": "", "more": f" (> {self._least})", "less": f" (< {self._least})", "against": " (against)"}
        rows = [
            {"label": str(head)}
            | {name: f"{self._amount(at, k)}{said[self.verdicts[at, k]]}" for k, name in enumerate(READ_EDITS)}
            for at, head in enumerate(self.heads)
        ]
        return pd.DataFrame(rows)

    def shown(self) -> Shown:
        """Every edit of every head."""
        caption = (
            f"What each edit of a head's attention to the span removes of the insertion's effect: median over problems "
            f"({self.unit}; and as a share of the total effect), and in which share of the "
            f"problems it is more than {self._least} of the total. Shown: more than that, as much against the effect, or "
            "less, in most problems ("
            + ("p after Holm over all tests" if self.chosen_elsewhere else CHOSEN_HERE)
            + ")."
        )
        value = "share" if self.established else "median"
        named = dict.fromkeys(("label", "paper_label", "intervention"), "") | {
            value: "removed (share)" if self.established else "removed",
            f"{value}_ci_low": "",
            f"{value}_ci_high": "",
            "shown": "",
            "prevalence": "more in (share of problems)",
            **{f"p_{name}": f"p ({name.replace('_', ' ')})" for name in ASKED + BESIDE if self.chosen_elsewhere},
            "n": "",
        }
        return Shown((ShownTable(self.table(), caption, named),))

    # ---------------------------------------------------------------------------------------------------------- words

    def headline(self) -> str:
        """Return what cutting each head's attention to the span removes of the total effect."""
        if not self.established:
            s = self.settings
            return f"{self.whole.headline(s.get('insertion'), s.get('outcome'), self.unit)}, so no read is judged."
        told = listed(f"{head} {self._amount(at, 0)}" for at, head in enumerate(self.heads))
        n = count_of(len(self.problem_ids), "problem")
        return f"Without attention to the span, this share of the effect disappears (median over {n}): {told}."

    def details(self) -> list[str]:
        """Return what is concluded of each head's read."""
        found, n = [], len(self.total)
        n_tests = len(self.heads) * (len(ASKED) * len(READ_EDITS) + len(BESIDE) * len(FOLLOWS))
        needed = self.whole.fewest(n_tests)
        least = f"smallest effect {self.whole.delta_words(self.unit)}"
        if not self.established:
            return []
        if n < needed:
            found.append(
                f"Nothing can be shown with fewer than {count_of(needed, 'problem')}: the edits are described, no more."
            )
        elif self.chosen_elsewhere:
            found.append(
                f"Conclusions below hold in most problems: {least}, p < {self.whole.level:.3g} after Holm over "
                f"{np.isfinite(self.p).sum()} tests."
            )
        else:
            found.append(f"{CHOSEN_HERE.capitalize()}: what follows describes these problems, most of them: {least}.")
        for at in range(len(self.heads)):
            found += self._conclusion(at)
        deeper = ", ".join(str(head) for head in self.heads if head.layer > 0)
        if deeper and self.established:
            found.append(
                f"Above layer 0 ({deeper}) restoring the scale also undoes what earlier layers changed, so nothing is "
                "concluded from it there."
            )
        return found

    @property
    def _least(self) -> str:
        return f"{100 * self.smallest_effect:g} %"

    def _amount(self, at: int, k: int) -> str:
        """Write the effect of a cell with its interval: percent of an established total, else its median in `unit`."""
        made = self.share if self.established else self.median
        numbers = [float(values[at, k]) for values in (made.estimate, made.low, made.high)]
        if not np.isfinite(numbers[0]):
            return "undefined"
        if not self.established:
            return _with_limits(numbers, self.unit)
        return _with_limits([100 * x for x in numbers], "%", form="z.0f")

    def _conclusion(self, at: int) -> list[str]:
        """Write the conclusions on one head's read, if its knockout has an effect."""
        if np.isnan(self.whole.delta):
            return []
        head, found = self.heads[at], dict(zip(READ_EDITS, self.verdicts[at], strict=True))
        whole = found.pop("knockout")
        if whole == "less":
            return [f"{head}: its read does next to nothing, so there is nothing to take apart."]
        if not whole:
            return [
                f"{head}: that its read as a whole does anything is not shown, so nothing is concluded of its parts."
            ]
        if head.layer > 0:
            del found["restore_scale"]  # there it undoes more than the scale
        smaller = dict(zip(READ_EDITS, self._sure[len(ASKED) + (whole == "against"), at], strict=True))
        alike = [READ_EDITS[name] for name, shown in found.items() if shown == "less" and not smaller[name]]
        says = {
            name: "same" if shown == whole else "less" if shown == "less" else "other"
            for name, shown in found.items()
            if shown and (shown != "less" or smaller[name])
        }
        said = [f"its read matters{', against the effect' if whole == 'against' else ''}"]
        if not says:
            said[0] += ", which part of it is not shown"
        for name, says_it in says.items():
            so, unless = SO.get((name, says_it), ("", {}))
            follows = so and not any(says.get(other) in others for other, others in unless.items())
            said.append(FOLLOWS[name][says_it] + (f", {so}" if follows else ""))
        if alike:
            said.append(f"small, but not told apart from the knockout: {', '.join(alike)}")
        return [f"{head}: {'; '.join(said)}."]


def _with_limits(numbers: list[float], unit: str, *, form: str = "+z.4f") -> str:
    """`31 % [28, 34]`; the first number alone where there is no interval (few problems)."""
    middle, low, high = (format(x, form) for x in numbers)
    return f"{middle} {unit}" + (f" [{low}, {high}]" if np.isfinite(numbers).all() else "")


def _check_levels(confidence: float, smallest_effect: float) -> None:
    check_share(confidence, name="confidence")
    if not 0 < smallest_effect < np.inf:
        raise ValueError(
            f"smallest_effect must be above 0, a share of the total effect such as 0.05, got {smallest_effect}: without one "
            "nothing can be shown to do next to nothing"
        )
