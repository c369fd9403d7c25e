"""Decompose a head's read into scale, bias, and a place to park attention (methods §8)."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from ..core.arguments import check_share, checked, count_of, listed
from ..core.heads import Head
from ..models.base import Model
from ..prompts.pairs import PromptPair
from ..runtime.columns import columns_of
from ..runtime.loop import RunOptions
from ..runtime.results import (
    Quantity,
    Result,
    Shown,
    ShownTable,
    head_columns,
    interval_columns,
    limits_of,
    rows_per_head,
    tidy,
)
from ..statistics import CONFIDENCE, holm, prevalence_test
from .effect import SMALLEST_EFFECT
from .joint import CHOSEN_HERE
from .outcomes import Outcome
from .parts import WHOLE, Parts
from .prepared import Prepared, Settings, prepare
from .sweep import Sweep, sweep_heads

READ_EDITS = {
    "knockout": "knocking its read out",
    "knockout_zero": "cutting the span off without renormalising",
    "restore_scale": "restoring the scale",
    "reroute_to_sink": "parking the span's attention on the first token outside it",
    "reroute_uniform": "spreading it evenly over the other tokens",
}
"""The edits of a read and their words; the last axis of `ReadEffects.values`."""
_SCALE, _SINK = "the attention that it keeps for the rest", "sending that attention to the first token"
_TAKES, _ALL = "what it takes from the span", "spreading it over all other tokens"
FOLLOWS = {
    ("knockout_zero", "same"): f"{_TAKES} matters (bias)",
    ("knockout_zero", "less"): f"{_TAKES} hardly matters by itself",
    ("knockout_zero", "other"): f"{_TAKES} acts the other way",
    ("restore_scale", "same"): f"{_SCALE} matters (scale)",
    ("restore_scale", "less"): f"{_SCALE} (scale) hardly matters by itself",
    ("restore_scale", "other"): f"{_SCALE} (scale) acts the other way",
    ("reroute_to_sink", "same"): f"{_SINK} does not replace the span",
    ("reroute_to_sink", "less"): f"{_SINK} replaces the span",
    ("reroute_to_sink", "other"): f"{_SINK} does even more",
    ("reroute_uniform", "same"): f"{_ALL} does not replace the span",
    ("reroute_uniform", "less"): f"{_ALL} replaces the span",
    ("reroute_uniform", "other"): f"{_ALL} does even more",
}
"""What an edit says that is shown to act as the knockout does ("same"), next to nothing and less than half of it ("less"), or
against it ("other")."""
_UNLIKE_SCALE = {
    ("knockout_zero", "same"),
    ("knockout_zero", "other"),
    ("restore_scale", "less"),
    ("restore_scale", "other"),
}
SO = {
    ("knockout_zero", "less"): (
        "so the knockout acts by renormalising",
        {("restore_scale", "less"), ("restore_scale", "other")},
    ),
    ("reroute_to_sink", "same"): (
        "so the span is more than a place to park attention",
        {("knockout_zero", "less"), ("reroute_uniform", "less")},
    ),
    ("reroute_to_sink", "less"): ("so the span is just a place to park attention", _UNLIKE_SCALE),
    ("reroute_uniform", "same"): (
        "so this is more than dilution",
        {("knockout_zero", "less"), ("reroute_to_sink", "less")},
    ),
    ("reroute_uniform", "less"): ("so this is only dilution", _UNLIKE_SCALE),
}
"""The conclusions from these, and what contradicts them."""
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
    attention that it keeps for the rest, $z_-$ what the rest alone would give it and $\Sigma$ what it takes from the span. Each
    edit puts something else in its place at every token after the insertion, and removes $Y_\text{receiving} -
    Y_\text{patched}$ of the insertion's effect:

    - `knockout`, $z_-$: the whole direct read. The other four say something of the head only where this does, and "next to
      nothing" of them is also less than half of what this removes.
    - `knockout_zero`, $\lambda z_-$: the **bias** alone. As much goes: what is taken from the span matters. Next to nothing:
      the knockout acts by renormalising.
    - `restore_scale`, $z^\text{ref} + \Sigma$ with the output of the run without the span: the **scale** alone, in layer 0;
      deeper it also undoes what earlier layers changed, so nothing is concluded from it there.
    - `reroute_to_sink`, $\lambda z_- + (1 - \lambda) u$ with the value $u$ of the first token outside the span. Next to nothing
      goes although the knockout acts: the span is just a place to park attention. NaN where a row cannot see that token.
    - `reroute_uniform`, the same with the mean value of the other tokens. Next to nothing: only dilution.

    heads : usually the readers that `locate_heads` names.
    outcome : one with a sign: "answer_logprob", "answer_prob", "solution_logprob", "logit_diff".
    smallest_effect : of interest, as a share of the |median total effect|, above 0.
    confidence : of intervals; 1 - confidence is the level of all tests together.
    chosen_elsewhere : True says that the heads were chosen without these problems (on others, from the literature, by
        their planting); only then are there p-values, else what is found describes these problems.
    checkpoint : a file that keeps each finished problem; started again with the same settings the run goes on there.
    max_rows : rows of one batch at most (default: sized to memory).
    Source: methods §3 (I1, I7, I8), §6, §8.
    """
    _check_levels(confidence, smallest_effect)
    prepared = prepare(model, pairs, outcome, signed_for="taking a read apart")
    chosen = model.info.chosen(heads, what="take apart")
    sweeps = {name: Sweep.named(edit=name) for name in READ_EDITS}
    swept = sweep_heads(prepared, sweeps, chosen, options=RunOptions(checkpoint, progress, max_rows=max_rows))
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
class ReadEffects(Parts, Result):
    """The effect that each edit of each head's read removes: `values` `[problem, head, intervention]` (`READ_EDITS`).

    `total` `[problem]` is the insertion's content effect (inserted - masked), in the outcome's unit. A problem where a cell is
    NaN (undefined) leaves its n.

    A cell is *shown* to remove "more" than the smallest effect (with the effect, or "against" it), or "less" than that, where
    most problems do. That an edit does next to nothing is concluded where it is also smaller than half of what the knockout
    removes, in most problems and in the knockout's sense. Exact binomial tests, Holm over all of them (heads x (interventions x
    3 questions + the 4 edits beside the knockout x 2 senses)), at the level of `whole`. Nothing is shown where the total effect
    is not established. Unless the heads were `chosen_elsewhere` p is NaN, and what is shown describes these problems.
    """

    problem_ids: tuple[str, ...]
    heads: tuple[Head, ...]
    values: np.ndarray
    total: np.ndarray
    unit: str
    smallest_effect: float = SMALLEST_EFFECT
    resolution: float = 0.0
    settings: Settings = field(default_factory=dict)
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
        """p `[more | against | less | half | half_against, head, intervention]`, after Holm; NaN where nothing is tested."""
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

        The last two: the edit is smaller than half of what the knockout removes with the effect, or against it. NaN where
        nothing can be tested, and where the heads were chosen on these problems.
        """
        return self._corrected if self.chosen_elsewhere else np.full_like(self._corrected, np.nan)

    @cached_property
    def verdicts(self) -> np.ndarray:
        """The verdict of each cell, `[head, intervention]`: one of `ASKED` (each is about most problems), "" for none."""
        return np.select(list(self._sure[: len(ASKED)]), ASKED, default="")

    def table(self) -> pd.DataFrame:
        """One row per head and intervention.

        `median` of what the edit removes of the insertion's effect, in `unit`; `share` of the total effect; `k` of `n` problems
        in which more than delta is removed, `prevalence` = k / n, all with limits; corrected `p` of each question; `shown`:
        verdict.
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
            f"What each edit of a head's attention to the span removes of the insertion's effect (median, {self.unit}), and in "
            f"which share of the problems it is more than {self._least} of the total. Shown: more than that, as much against "
            f"the effect, or less ({'p after Holm over all tests' if self.chosen_elsewhere else CHOSEN_HERE})."
        )
        value = "share" if self.established else "median"
        named = dict.fromkeys(("label", "paper_label", "intervention"), "") | {
            value: "removed (share)" if self.established else "removed",
            **dict.fromkeys((f"{value}_ci_low", f"{value}_ci_high", "shown"), ""),
            "prevalence": "more in (share of problems)",
            **{f"p_{name}": f"p ({name.replace('_', ' ')})" for name in ASKED + BESIDE if self.chosen_elsewhere},
            "n": "",
        }
        return Shown((ShownTable(self.table(), caption, named),))

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
        if not self.established:
            return []
        n_tests = len(self.heads) * (len(ASKED) * len(READ_EDITS) + len(BESIDE) * (len(READ_EDITS) - 1))
        needed, least = self.whole.fewest(n_tests), f"smallest effect {self.whole.delta_words(self.unit)}"
        if len(self.total) < needed:
            first = (
                f"Nothing can be shown with fewer than {count_of(needed, 'problem')}: the edits are described, no more."
            )
        elif self.chosen_elsewhere:
            first = (
                f"Conclusions below hold in most problems: {least}, p < {self.whole.level:.3g} after Holm over "
                f"{np.isfinite(self.p).sum()} tests."
            )
        else:
            first = f"{CHOSEN_HERE.capitalize()}: what follows describes these problems, most of them: {least}."
        return [first, *(self._conclusion(at) for at in range(len(self.heads)))]

    @property
    def _least(self) -> str:
        return f"{100 * self.smallest_effect:g} %"

    def _amount(self, at: int, k: int) -> str:
        """Write the effect of a cell with its interval: percent of an established total, else its median in `unit`."""
        made, scale, unit, form = self.median, 1, self.unit, "+z.4f"
        if self.established:
            made, scale, unit, form = self.share, 100, "%", "z.0f"
        middle = scale * float(made.estimate[at, k])
        limits = limits_of(made.low[at, k], made.high[at, k], form, scale=scale)
        return f"{middle:{form}} {unit}{limits}" if np.isfinite(middle) else "undefined"

    def _conclusion(self, at: int) -> str:
        """Write the conclusions on one head's read, if its knockout has an effect."""
        head, found = self.heads[at], dict(zip(READ_EDITS, self.verdicts[at], strict=True))
        whole = found.pop("knockout")
        if whole == "less":
            return f"{head}: its read does next to nothing, so there is nothing to take apart."
        if not whole:
            return f"{head}: that its read as a whole does anything is not shown, so nothing is concluded of its parts."
        if head.layer > 0:
            del found["restore_scale"]  # there it undoes more than the scale
        smaller = dict(zip(READ_EDITS, self._sure[len(ASKED) + (whole == "against"), at], strict=True))
        alike = [READ_EDITS[name] for name, shown in found.items() if shown == "less" and not smaller[name]]
        says = [
            (name, "same" if shown == whole else "less" if shown == "less" else "other")
            for name, shown in found.items()
            if shown and (shown != "less" or smaller[name])
        ]
        said = [f"its read matters{', against the effect' if whole == 'against' else ''}"]
        if not says:
            said[0] += ", which part of it is not shown"
        for each in says:
            so, unless = SO.get(each, ("", set()))
            said.append(FOLLOWS[each] + (f", {so}" if so and unless.isdisjoint(says) else ""))
        if alike:
            said.append(f"small, but not told apart from the knockout: {', '.join(alike)}")
        return f"{head}: {'; '.join(said)}."


def _check_levels(confidence: float, smallest_effect: float) -> None:
    check_share(confidence, name="confidence")
    check_share(smallest_effect, name="smallest_effect")
