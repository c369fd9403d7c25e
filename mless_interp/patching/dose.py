"""Dose-response: how attention to the inserted tokens, and the outcome, grow with their number."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from ..core.arguments import Arguments, checked, count_of, one_of
from ..core.heads import Head
from ..metrics.attention import span_log_odds
from ..models.attention_math import masked_scores, with_extra, with_sinks
from ..models.base import Model
from ..models.sites import site
from ..prompts.conditions import CONDITIONS, CONTRASTS
from ..prompts.insertions import KINDS, Insertion
from ..prompts.pairs import make_pairs, over_pairs
from ..prompts.problems import Problem
from ..prompts.prompt import Template
from ..runtime.base_result import Shown, ShownTable, counted, head_columns, interval_columns, limits_of, stacked, tidy
from ..runtime.columns import columns_of
from ..runtime.loop import RunOptions
from ..runtime.workers import Tick, Unit
from ..statistics import Interval, defined_mean, mean_interval, median_interval
from .outcomes import Outcome, outcome_named
from .prepared import Measured, Runs, prepare

DOSES = (1, 2, 4, 8, 16, 32, 55, 70, 110)
READ = ("inserted", "held")  # conditions in which the heads' reading of the span is measured
ANSWERED = ("inserted", "held", "masked")
"""Conditions in which the outcome is read at every dose; `base` once, as it has no dose, and `gap` as its twin `masked`."""


def checked_doses(doses: Sequence[int], kind: str) -> tuple[int, ...]:
    """Check numbers of tokens, two or more, increasing, for insertions of a kind that can have any length."""
    if one_of(kind, KINDS, "insertion").own_length:
        raise ValueError(f"an insertion of kind {kind!r} has one length only, so it has no dose")
    found = tuple(map(int, doses))
    if len(found) < 2 or min(found) < 1 or list(found) != sorted(set(found)):
        raise ValueError(f"doses must be at least two increasing numbers of tokens from 1 up, got {list(found)}")
    return found


@checked
def dose_response(
    model: Model,
    problems: Iterable[Problem],
    insertion: Insertion,
    *,
    doses: Sequence[int] = DOSES,
    layer: int = 0,
    outcome: str | Outcome = "answer_logprob",
    template: str | Template = "raw",
    checkpoint: str | Path | None = None,
    progress: bool = True,
    seed: int = 0,
) -> "DoseResponse":
    r"""Insert 1, 2, 4 ... tokens; measure each head's log odds of reading them, and the outcome.

    For N identical tokens whose question keeps its positions (condition "held"), in layer 0 of a model with rotary positions,
    the slope is exactly 1 for every head and query, which checks the whole measurement:

    $$ \operatorname{logit}(1 - \lambda_i) = \ln N + \text{const} $$

    In the condition "inserted" positions move as well. Log odds are means over the rows after the insertion that see the span
    at every dose.

    insertion : its `n_tokens` is replaced by each of `doses`.
    layer : whose heads are read (zero-based).
    Source: methods §3 (I12).
    """
    options, read_outcome = RunOptions(checkpoint, progress, seed), outcome_named(outcome, signed_for="dose-response")
    doses = checked_doses(doses, insertion.kind)
    model.info.check_layer(layer)
    model.need_rotated("the log odds of reading the span")
    asked = tuple(problems)
    each = (make_pairs(model, asked, replace(insertion, n_tokens=dose), template=template) for dose in doses)
    by_dose = [prepare(model, pairs, read_outcome) for pairs in each]
    follows = all(pair.n_after or pair.answer_prefix_ids for pair in by_dose[0].bare)
    answered = ANSWERED + ("gap",) * (not follows)  # its twin differs where an inserted token is what is read

    def measured(unit: Unit, tick: Tick) -> list[dict[str, object]]:
        per_dose = []
        for prepared in by_dose:
            per_dose.append({condition: _one(prepared.runs(unit), condition, layer) for condition in answered})
            tick(1)
        log_odds = {}
        for condition in READ:  # of rows that see the span at every dose
            read = np.stack([each[condition][0] for each in per_dose])
            log_odds[condition] = defined_mean(np.where(np.isfinite(read).all(0), read, np.nan), -1)
        outcomes = {condition: [each[condition][1] for each in per_dose] for condition in answered}
        base = {"base": _one(by_dose[0].runs(unit), "base", layer)[1]}
        return [{"base": base, "outcomes": outcomes, "log_odds": log_odds}]

    last = by_dose[-1]
    settings = {"doses": list(doses), "layer": layer, "template": last.pairs[0].template.name, **last.settings}
    prompts = [[pair.fingerprint() for pair in each] for each in zip(*(each.pairs for each in by_dose), strict=True)]
    how: Arguments = {"settings": settings, "prompts": prompts, "steps": len(doses), "options": options}
    found = stacked(over_pairs(model, last.pairs, measured, label="doses", **how))
    read: Arguments = {"log_odds": found["log_odds"], "outcomes": found["outcomes"], "base": found["base"]["base"]}
    return DoseResponse(doses=np.array(doses), layer=layer, seed=seed, **read, **last.fields(settings))


def _one(runs: Runs, condition: str, layer: int) -> tuple[np.ndarray, float]:
    """Read the log odds of reading the span `[head, row after the span]` (none where not asked), and the outcome."""
    model, inputs, pair = runs.model, runs.inputs(condition), runs.first
    names = [site(layer, f"attn.hook_rot_{part}") for part in "qk"] if condition in READ else []
    result = model.run(inputs, capture=dict.fromkeys(names), logits_at=runs.read(condition))
    value = float(runs.outcomes(result.logits)[0, 0])
    if not names:
        return np.empty(0), value
    q, k = (result.captured[name].double() for name in names)
    rule, after = model.attention_rule(layer), slice(pair.span[1], inputs.n_tokens)
    visible = model.visible(inputs)[layer].to(q.device)[:, :, after]
    scores = masked_scores(q[:, after], k, visible, rule)
    span = with_extra(pair.span_mask.to(scores.device), rule)
    shown = with_extra(visible.expand(scores.shape), rule, value=True)
    return span_log_odds(with_sinks(scores, rule.column), span=span, visible=shown)[0].cpu().numpy(), value


@dataclass(frozen=True, eq=False, repr=False)
class DoseResponse(Measured):
    """Log odds of reading the span per problem, dose and head of one layer, and the outcome per problem and dose.

    `log_odds[condition]` `[problem, dose, head]` for "inserted" and "held"; `outcomes[condition]` `[problem, dose]` for these
    and "masked" ("gap" too where an inserted token is read); `base` `[problem]` is the outcome without any insertion.
    """

    doses: np.ndarray
    layer: int
    log_odds: dict[str, np.ndarray]
    outcomes: dict[str, np.ndarray]
    base: np.ndarray
    unit: str

    picture = "dose_response"
    signed = True
    columns = columns_of("""
        outcome | mean outcome | | mean over problems, with the insertion
        content | content effect | | with the insertion - the same positions, insertion hidden; median over problems
        shift | effect of the shift | | shifted positions, nothing inserted - unshifted; median over problems
        held | effect at held positions | | with the insertion, positions as without - without it; median over problems
        slope_held | slope, positions held | | of the log odds of reading the span in log N; 1 for identical tokens in layer 0
        slope_inserted | slope, as inserted | | the same where later tokens are shifted by the insertion
    """)

    @property
    def heads(self) -> tuple[Head, ...]:
        return tuple(Head(self.layer, head) for head in range(self.log_odds["held"].shape[-1]))

    def slopes(self, condition: str = "held") -> np.ndarray:
        """Return the least-squares slope of logit(1 - lambda) in log N, `[problem, head]`."""
        x = np.log(self.doses)
        values, centred = np.moveaxis(one_of(condition, self.log_odds, "condition"), 1, -1), x - x.mean()
        return np.asarray((values * centred).sum(-1) / (centred**2).sum())

    def mean_slope(self, condition: str = "held") -> Interval:
        """Return the slope of the heads' mean log odds in log N with its interval over problems."""
        return mean_interval(self.by_group(self.slopes(condition).mean(1)), confidence=self.confidence, seed=self.seed)

    def effects(self, contrast: str = "total", *, together: bool = False) -> Interval:
        """Return the median effect (corrupted - clean) of each dose on the outcome, `[dose]`; `together`: with intervals that
        hold for all doses at once (Bonferroni)."""
        ran = {"base", *self.outcomes, *(CONDITIONS[name].twin for name in self.outcomes)}
        known = {name: each for name, each in CONTRASTS.items() if {each.clean, each.corrupted} <= ran}
        found = one_of(contrast, known, "contrast of these runs")
        confidence = 1 - (1 - self.confidence) / len(self.doses) if together else self.confidence
        values = self._outcome(found.corrupted) - self._outcome(found.clean)
        return median_interval(self.by_group(values), confidence=confidence)

    def _outcome(self, condition: str) -> np.ndarray:
        if condition == "base":
            return self.base[:, None]
        twin = CONDITIONS[condition].twin
        return self.outcomes[condition if condition in self.outcomes or twin is None else twin]

    def table(self) -> pd.DataFrame:
        """Return one row per head: both slopes, and the log odds at the largest dose. Effects of doses: `outcome_table`."""
        table: dict[str, object] = dict(head_columns(self.heads))
        for condition in READ[::-1]:
            slopes = self.by_group(self.slopes(condition))
            made = mean_interval(slopes, confidence=self.confidence, seed=self.seed)
            table |= interval_columns(f"slope_{condition}", made)
        table[f"log_odds_at_{self.doses[-1]}"] = self.by_group(self.log_odds["inserted"][:, -1]).mean(0)
        return pd.DataFrame(table | {"n": np.isfinite(slopes).sum(0)})

    def outcome_table(self) -> pd.DataFrame:
        """Return one row per dose: the mean outcome, and each contrast's median effect."""
        inserted = self.by_group(self.outcomes["inserted"])
        table = {"n_tokens": self.doses, "outcome": defined_mean(inserted)}
        for contrast in ("total", "content", "shift", "held"):
            table |= interval_columns(contrast, self.effects(contrast))
        both = self.effects(together=True)
        table |= {"total_together_ci_low": both.low, "total_together_ci_high": both.high}
        return pd.DataFrame(table | {"n": np.isfinite(inserted).sum(0)})

    def reading_table(self, condition: str = "held") -> pd.DataFrame:
        """Return one row per dose: the log odds of each head, their mean, and a line of slope 1 through their middle."""
        log_odds = one_of(condition, self.log_odds, "condition")
        heads = self.by_group(log_odds).mean(0)
        above = heads - np.log(self.doses)[:, None]
        middle = np.median(above[np.isfinite(above)]) if np.isfinite(above).any() else np.nan
        table = {"n_tokens": self.doses} | {str(head): heads[:, at] for at, head in enumerate(self.heads)}
        made = mean_interval(self.by_group(log_odds.mean(2)), confidence=self.confidence, seed=self.seed)
        table |= interval_columns("mean", made)
        return pd.DataFrame(table | {"slope_1": np.log(self.doses) + middle})

    def to_frame(self) -> pd.DataFrame:
        """Return one tidy row per problem, dose and head, with the problem's outcomes in every condition at that dose."""
        axes = {"problem": self.problem_ids, "n_tokens": self.doses, "label": [str(head) for head in self.heads]}
        read, shape = {f"log_odds_{name}": each for name, each in self.log_odds.items()}, self.log_odds["held"].shape
        every = {name: np.broadcast_to(self._outcome(name)[..., None], shape) for name in ("base", *self.outcomes)}
        return tidy(axes, **read, **{f"outcome_{name}": each for name, each in every.items()})

    def headline(self) -> str:
        total, slope, outcome = self.effects(together=True), self.mean_slope("inserted"), self.settings.get("outcome")
        size, shown = np.abs(total.estimate), total.low * total.high > 0
        if np.isnan(size).all():
            return f"{outcome} is undefined in every problem."
        most = int(np.nanargmax(np.where(shown, size, 0) if shown.any() else size))
        moved, low, high = (float(each[most]) for each in (total.estimate, total.low, total.high))
        said = f"{self.doses[most]} inserted tokens {'raise' if moved > 0 else 'lower'} {outcome} most"
        if size[most] < np.nanmax(size):
            said += f" of {shown.sum()} that are shown to change it (more at {self.doses[np.nanargmax(size)]}, which is not)"
        if not shown.any():
            said = f"No number of inserted tokens is shown to change {outcome}; the largest change is at {self.doses[most]}"
        over = counted(int(total.n[most]), self.groups)
        together = f"its interval for all {len(self.doses)} doses at once, {over}"
        if np.isnan([low, high]).any():
            together = f"{over}, too few for an interval of all {len(self.doses)} doses at once"
        grows = f"{float(slope.estimate):.2f}{limits_of(slope.low, slope.high, '.2f')} per unit of ln N"
        amount = f"{moved:+#.3g} {self.unit}{limits_of(low, high, '+#.3g')} (median, {together})"
        heads = f"layer {self.layer}, as inserted, mean of {count_of(len(self.heads), 'head')}"
        return f"{said}: {amount}; the log odds of attending to the span ({heads}) grow by {grows}."

    def details(self) -> list[str]:
        said = "In layer 0 with held positions, identical tokens give slope 1 exactly: it checks the arithmetic."
        return [said] * (self.layer == 0)

    def printed(self) -> pd.DataFrame:
        return self.outcome_table()

    def shown(self) -> Shown:
        outcome = ShownTable(self.outcome_table(), f"Outcome by number of inserted tokens, in {self.unit}.")
        slopes = self.table().drop(columns=["layer", "head"])
        return Shown((outcome, ShownTable(slopes, "Slope of the log odds of reading the span in log N, per head.")))
