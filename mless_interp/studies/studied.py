"""`StudyResult`: what every insertion of a study does, a row for each."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from ..accuracy import AccuracyResults
from ..locating.located import LocatedHeads
from ..patching.scores import PatchScores
from ..running.results import Quantity, Result, Shown, ShownTable, of_heads, place_of, tidy, with_limits
from ..scores.scored import HeadScores
from ..statistics import Interval, mean_interval, prevalence_test
from ..statistics.multiplicity import holm
from .asked import NONE

ALPHA = 0.05
"""The level of every test."""


@dataclass(frozen=True, eq=False, repr=False)
class StudyResult(Result):
    """Effects, attention, heads and answers of several insertions on the same problems.

    `effects[insertion][contrast][outcome]` is a `PatchScores`, of which the whole effect is read; `attention[insertion]` a
    `HeadScores`, `located[insertion]` a `LocatedHeads`, `answers` an `AccuracyResults` with a treatment for each insertion
    after `none`; empty or None where the study does not ask for them.
    """

    title: str
    source: str
    claims: str
    problem_ids: tuple[str, ...]
    insertions: tuple[str, ...]
    contrasts: tuple[str, ...]
    outcomes: tuple[str, ...]
    effects: dict[str, dict[str, dict[str, PatchScores]]]
    attention: dict[str, HeadScores]
    located: dict[str, LocatedHeads]
    answers: AccuracyResults | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    signed = True

    def effect_of(self, insertion: str, contrast: str | None = None, outcome: str | None = None) -> PatchScores:
        """The sweep that holds one whole effect (`total_effect`, `median_total`); the first contrast and outcome by default."""
        contrast, outcome = contrast or self.contrasts[0], outcome or self.outcomes[0]
        place_of(insertion, self.insertions, "insertion")
        place_of(contrast, self.contrasts, "contrast")
        place_of(outcome, self.outcomes, "outcome")
        return self.effects[insertion][contrast][outcome]

    def _cells(self) -> Iterator[tuple[str, str, str]]:
        """Every insertion, contrast and outcome."""
        for insertion in self.insertions:
            for contrast in self.contrasts:
                yield from ((insertion, contrast, outcome) for outcome in self.outcomes)

    @cached_property
    def _effects(self) -> pd.DataFrame:
        rows = []
        for insertion, contrast, outcome in self._cells():
            made = self.effects[insertion][contrast][outcome]
            total, middle = made.total_effect, made.median_total
            size = made.settings.get("resolution", 0.0)
            told = prevalence_test(made.direction * total, size, senses=(1,), confidence=made.confidence)
            rows.append(
                {
                    "insertion": insertion,
                    "contrast": contrast,
                    "outcome": outcome,
                    "median": float(middle.estimate),
                    "median_ci_low": float(middle.low),
                    "median_ci_high": float(middle.high),
                    "unit": made.unit,
                    "k": int(told.count[0]),
                    "n": int(told.n),
                    "prevalence": float(told.share[0]),
                    "prevalence_ci_low": float(told.low[0]),
                    "prevalence_ci_high": float(told.high[0]),
                    "p": made.p_total,
                }
            )
        table = pd.DataFrame(rows)
        p = table["p"].to_numpy(dtype=float)
        return table.assign(p_holm=holm(p) if np.isfinite(p).any() else p)

    def effect_table(self) -> pd.DataFrame:
        """One row per insertion, contrast and outcome: the median effect over problems with its interval, in `unit`; `k` of
        `n` problems have its sign (beyond rounding), `prevalence` = k / n with its exact limits; `p` of the sign test,
        `p_holm` after Holm over all rows."""
        return self._effects.copy()

    def attention_to(self, insertion: str) -> tuple[Interval, float]:
        """What the rows after the span pay to it: the mean over heads and problems of the share of their attention, with its
        interval over problems, and the same of uniform attention."""
        made = self.attention[insertion]
        cells = of_heads(made.of("span_mass", "inserted"), made.heads).mean(1)
        null = made.null["span_mass"]["inserted"][:, [head.layer for head in made.heads]]
        return mean_interval(cells, confidence=made.confidence, seed=made.seed), float(np.nanmean(null))

    def summary(self) -> pd.DataFrame:
        """One row per insertion: `inserts`; each contrast's median effect with its limits (`content`, `content_ci_low`, ...;
        with several outcomes `content_logit_diff`), `_k` of `_n` problems of its sign and `_p` (sign test, Holm over all);
        `span_mass` with its limits, `span_mass_null` of uniform attention and the head that reads the span most
        (`most_read_by`); the other metrics, means over heads and problems; `heads` named and `confirmed`;
        `accuracy` and its `difference` from no insertion with limits and p (Holm)."""
        effects = self._effects.set_index(["insertion", "contrast", "outcome"])
        compared = None if self.answers is None else self.answers.compare_all(NONE).summary().set_index("second")
        rows = []
        for name in self.insertions:
            row: dict[str, Any] = {"insertion": name, "inserts": self.settings.get("insertions", {}).get(name, "")}
            for contrast in self.contrasts:
                for outcome in self.outcomes:
                    cell = effects.loc[(name, contrast, outcome)]
                    key = contrast if len(self.outcomes) == 1 else f"{contrast}_{outcome}"
                    row |= {key: cell["median"], f"{key}_ci_low": cell["median_ci_low"]}
                    row |= {f"{key}_ci_high": cell["median_ci_high"], f"{key}_k": cell["k"], f"{key}_n": cell["n"]}
                    row[f"{key}_p"] = cell["p_holm"]
            if name in self.attention:
                mass, null = self.attention_to(name)
                row |= {"span_mass": float(mass.estimate), "span_mass_ci_low": float(mass.low)}
                row |= {"span_mass_ci_high": float(mass.high), "span_mass_null": null}
                scores = self.attention[name]
                row["most_read_by"] = str(scores.top("span_mass", 1)["label"].iloc[0])
                for metric in scores.metrics[1:]:
                    values = of_heads(scores.of(metric, "inserted"), scores.heads)
                    row[metric] = float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")
            if name in self.located:
                found = self.located[name]
                row |= {"heads": _listed(found.found), "confirmed": _listed(found.confirmed)}
            if compared is not None:
                one = compared.loc[name]
                row |= {"accuracy": one["accuracy_second"], "difference": one["difference"]}
                row |= {"difference_ci_low": one["low"], "difference_ci_high": one["high"]}
                row["difference_p"] = one["p_holm"]
            rows.append(row)
        return pd.DataFrame(rows)

    def to_frame(self) -> pd.DataFrame:
        """One tidy row per insertion, measure and problem: the contrast with its outcome and unit, `span_mass` (mean over
        heads), `right` (share of right answers; also of `none`)."""
        parts = []
        for insertion, contrast, outcome in self._cells():
            made = self.effects[insertion][contrast][outcome]
            rows = tidy({"problem": made.problem_ids}, value=made.total_effect)
            parts.append(rows.assign(insertion=insertion, measure=contrast, outcome=outcome, unit=made.unit))
        for insertion, scores in self.attention.items():
            mass = of_heads(scores.of("span_mass", "inserted"), scores.heads).mean(1)
            rows = tidy({"problem": scores.problem_ids}, value=mass)
            parts.append(rows.assign(insertion=insertion, measure="span_mass", outcome="", unit="share"))
        if self.answers is not None:
            right = self.answers.share_right()
            for at, name in enumerate(self.answers.treatments):
                rows = tidy({"problem": self.answers.problem_ids}, value=right[:, at])
                parts.append(rows.assign(insertion=name, measure="right", outcome="", unit="share"))
        table = pd.concat(parts, ignore_index=True)
        return table[["insertion", "measure", "outcome", "problem", "value", "unit"]]

    @property
    def established(self) -> list[tuple[str, str, str]]:
        """Insertion, contrast and outcome of the effects that most problems show with one sign (p < 0.05 after Holm)."""
        table = self._effects
        sure = table[table["p_holm"] < ALPHA]
        return list(zip(sure["insertion"], sure["contrast"], sure["outcome"], strict=True))

    def sentences(self) -> list[str]:
        """What was asked, what each insertion does, and what the source claims."""
        n = len(self.problem_ids)
        many = len(self._effects)
        found = [
            f"{self.title.rstrip('.?')}: {len(self.insertions)} insertions on {n} problems, contrasts "
            f"{', '.join(self.contrasts)}, outcomes {', '.join(self.outcomes)}; effects are medians over problems, with p of "
            f"sign tests after Holm over all {many}."
        ]
        if self.answers is not None:
            first = self.answers.summary().iloc[0]
            found.append(f"Without insertion {100 * first['accuracy']:.1f} % of {int(first['n'])} problems are right.")
        table = self.summary().set_index("insertion")
        found += [self._row_words(name, table.loc[name]) for name in self.insertions]
        where = self.source or "its source"
        if self.claims:
            found.append(f"Claimed in {where}: {self.claims.rstrip('.')}.")
        found.append("Effects of inserted tokens are in this model, on these problems; no other model is told of.")
        return found

    def _row_words(self, name: str, row: Any) -> str:
        words = []
        for contrast in self.contrasts:
            for outcome in self.outcomes:
                key = contrast if len(self.outcomes) == 1 else f"{contrast}_{outcome}"
                made = self.effects[name][contrast][outcome]
                if not np.any(made.total_effect):
                    words.append(f"{contrast} exactly 0 in every problem")
                    continue
                sure = "" if row[f"{key}_p"] < ALPHA else ", not established"
                of = "" if len(self.outcomes) == 1 else f" on {outcome}"
                words.append(
                    f"{contrast}{of} {with_limits(made.median_total, made.unit)}, of this sign in {row[f'{key}_k']} of "
                    f"{row[f'{key}_n']} problems (p = {row[f'{key}_p']:.2g}{sure})"
                )
        if name in self.attention:
            words.append(
                f"its tokens get {100 * row['span_mass']:.0f} % of the attention of the rows after them (uniform attention: "
                f"{100 * row['span_mass_null']:.0f} %), most from {row['most_read_by']}"
            )
        if name in self.located:
            found = self.located[name]
            told = f"heads named: {_listed(found.found) or 'none'}"
            if found.found and found.confirmation is not None:
                told += (
                    f", confirmed on {len(found.confirmation.problem_ids)} fresh problems: {row['confirmed'] or 'none'}"
                )
            words.append(told)
        if self.answers is not None:
            change = [100 * row[f"difference{end}"] for end in ("", "_ci_low", "_ci_high")]
            words.append(
                f"{100 * row['accuracy']:.1f} % right, {change[0]:+.1f} points [{change[1]:+.1f}, {change[2]:+.1f}] (p = "
                f"{row['difference_p']:.2g})"
            )
        inserts = row["inserts"]
        return f'"{name}"{f" ({inserts})" if inserts else ""}: {"; ".join(words)}.'

    def quantity(self, column: str) -> Quantity:
        """An effect in its outcome's unit, or a share."""
        contrast, _, outcome = column.partition("_")
        if contrast in self.contrasts and outcome in ("", *self.outcomes):
            unit = self.effect_of(self.insertions[0], contrast, outcome or None).unit
            return Quantity(unit, True, (f"{column}_ci_low", f"{column}_ci_high"), f"{column}_p")
        return super().quantity(column)

    def printed(self) -> pd.DataFrame:
        """A row per insertion, the estimates alone."""
        table = self.summary()
        ends = ("_ci_low", "_ci_high", "_k", "_n", "_p")
        return table[[name for name in table.columns if name != "inserts" and not name.endswith(ends)]]

    def shown(self) -> Shown:
        """A row per insertion, and a row per effect with its prevalence."""
        table = self.summary()
        unit = self.effect_of(self.insertions[0]).unit
        left = ("_n",)
        columns = [name for name in table.columns if not name.endswith(left)]
        side = (
            f"What each insertion does. Contrasts: median effects over problems in {unit}; k: problems of its sign, of "
            f"{len(self.problem_ids)}; p after Holm over the study."
        )
        each = "Each effect: median, problems of its sign with the prevalence's exact limits, sign test before and after Holm."
        return Shown((ShownTable(table, side, columns), ShownTable(self.effect_table(), each)))


def _listed(heads: Any) -> str:
    """Heads with their kinds, or one by one.

    >>> _listed({})
    ''
    """
    kinds = heads.items() if isinstance(heads, dict) else ((head, "") for head in heads)
    return ", ".join(f"{head} ({kind})" if kind else str(head) for head, kind in kinds)
