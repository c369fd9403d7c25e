"""`StudyResult`: what every insertion of a study does, a row for each."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from ..answers import AccuracyResults
from ..circuits.located import LocatedHeads
from ..core.arguments import count_of, listed
from ..core.heads import Head
from ..patching.outcomes import OUTCOMES
from ..patching.sweep import PatchScores
from ..prompts.conditions import CONTRASTS
from ..runtime.columns import Column, columns_of, declare
from ..runtime.results import Result, Shown, ShownTable, interval_columns, limits_of, of_heads, place_of
from ..scores.catalogue import metric_named
from ..scores.score import HeadScores
from ..statistics import CONFIDENCE, Interval, defined_mean, fewest_problems, holm, mean_interval, prevalence_test

NONE = "none"
"""The treatment that answers under insertions are compared with."""
OF_EFFECTS = {
    "median": ("median effect", "median over problems of what the contrast does to the outcome", ""),
    "k": ("problems", "problems in which the effect has the median's sign, beyond rounding", "of {}_n"),
    "p": ("p, corrected", "that most problems show one sign (sign test; Holm over all effects of the study)", "p"),
    "n_undefined": ("undefined", "problems where the outcome is not defined", ""),
}
"""What columns such as `content_median` and `shift_logit_diff_k` hold, by their ends."""
declare(
    *(
        Column(f"{key}_{end}", f"{key}, {word}", f"{note} ({CONTRASTS[name].says})", role=role.format(key))
        for name in CONTRASTS
        for key in (name, *(f"{name}_{outcome}" for outcome in OUTCOMES))
        for end, (word, note, role) in OF_EFFECTS.items()
    )
)


@dataclass(frozen=True, eq=False, repr=False)
class StudyResult(Result):
    """Hold effects, attention, heads and answers of several insertions on the same problems.

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
    confidence: float = CONFIDENCE

    picture = "study_effects"
    columns = columns_of("""
        inserts | inserts | | which tokens, how many, and where if not before the question
        insertion | insertion | | its name in the study
        most_read_by | most read by | | the head with the largest share of attention on the inserted tokens, mean over problems
        shown_again | heads confirmed | | heads that were named and pass again on fresh problems
        answers_n | answered | | problems answered without the insertion and with it
        difference_p | p, answers | p | that right answers change; corrected for all insertions of the study
    """)

    @property
    def reported(self) -> tuple[str, ...]:
        """The first contrast's effect on the first outcome, `span_mass`, `most_read_by`, the heads, the answers."""
        key = self.key(self.contrasts[0], self.outcomes[0])
        effect = (f"{key}_median", f"{key}_k", f"{key}_n", f"{key}_p")
        answers = ("accuracy", "answers_n", "difference", "difference_p")
        return ("insertion", "inserts", *effect, "span_mass", "most_read_by", "heads", "shown_again", *answers)

    @property
    def alpha(self) -> float:
        """The level of all effects together, and of all heads that any insertion names: 1 - `confidence`."""
        return 1 - self.confidence

    def effect_of(self, insertion: str, contrast: str | None = None, outcome: str | None = None) -> PatchScores:
        """Return the sweep that holds one whole effect (`total_effect`, `whole`); the first contrast and outcome by default."""
        contrast, outcome = contrast or self.contrasts[0], outcome or self.outcomes[0]
        place_of(insertion, self.insertions, "insertion")
        place_of(contrast, self.contrasts, "contrast")
        place_of(outcome, self.outcomes, "outcome")
        return self.effects[insertion][contrast][outcome]

    def _cells(self) -> Iterator[tuple[tuple[str, str, str], PatchScores]]:
        """Every insertion, contrast and outcome with its sweep."""
        for cell in product(self.insertions, self.contrasts, self.outcomes):
            yield cell, self.effect_of(*cell)

    @cached_property
    def _effects(self) -> pd.DataFrame:
        rows = []
        for (insertion, contrast, outcome), made in self._cells():
            whole, total = made.whole, made.total_effect
            told = prevalence_test(
                whole.units(whole.turned(total)), whole.rounding, senses=(1,), confidence=made.confidence
            )
            rows.append(
                {"insertion": insertion, "contrast": contrast, "outcome": outcome}
                | {name: float(end) for name, end in interval_columns("median", whole.median).items()}
                | {"unit": made.unit, "k": int(told.count[0]), "n": int(told.n)}
                | {"n_undefined": int(np.isnan(total).sum()), "prevalence": float(told.share[0])}
                | {"prevalence_ci_low": float(told.low[0]), "prevalence_ci_high": float(told.high[0]), "p": whole.p}
            )
        table = pd.DataFrame(rows)
        p = table["p"].to_numpy(dtype=float)
        return table.assign(p_corrected=holm(p) if np.isfinite(p).any() else p)

    def effect_table(self) -> pd.DataFrame:
        """Return one row per insertion, contrast and outcome: the median effect over problems with its interval, in `unit`; `k`
        of the `n` problems where it is defined have its sign (beyond rounding), `prevalence` = k / n with its exact limits;
        `n_undefined` others; `p` of the sign test, `p_corrected` after Holm over all rows."""
        return self._effects.copy()

    def attention_to(self, insertion: str, metric: str = "span_mass") -> tuple[np.ndarray, Interval]:
        """Return a metric of the runs with this insertion, mean over heads where it is defined, `[problem]`; and that mean
        over problems with its interval (no limits where it is infinite on one)."""
        place_of(insertion, self.attention, "insertion with attention")
        made = self.attention[insertion]
        values = defined_mean(of_heads(made.of(metric, "inserted"), made.heads), axis=1)
        finite = np.where(np.isinf(values), np.nan, values)
        limits = mean_interval(finite, confidence=made.confidence, seed=made.seed)
        if np.isinf(values).any():
            unknown = np.array(np.nan)
            limits = replace(limits, estimate=defined_mean(values), low=unknown, high=unknown)
        return values, limits

    def key(self, contrast: str, outcome: str) -> str:
        """Return the prefix of an effect's columns: the contrast, and with several outcomes the outcome's name."""
        return contrast if len(self.outcomes) == 1 else f"{contrast}_{outcome}"

    def table(self) -> pd.DataFrame:
        """Return one row per insertion: `inserts`; each contrast's median effect with its limits (`content_median`,
        `content_median_ci_low`, ...; with several outcomes `content_logit_diff_median`), `_k` of `_n` problems of its sign,
        `_n_undefined` others and `_p` (sign test, Holm over all); `span_mass` and every other metric, means over heads and
        problems with limits, and `_n` problems where they are defined; `span_mass_null` of uniform attention and the head that
        reads the span most (`most_read_by`); `heads` named and those `shown_again` on fresh problems; the share of right
        answers `accuracy` of `answers_n` problems and its `difference` from no insertion, with limits and p (Holm); `emitted`:
        how much of a filler the model emitted that was asked to."""
        effects = self._effects.set_index(["insertion", "contrast", "outcome"])
        compared = None if self.answers is None else self.answers.compare_all(NONE).table().set_index("second")
        rows = []
        for name in self.insertions:
            row: dict[str, object] = {"insertion": name, "inserts": self.settings.get("insertions", {}).get(name, "")}
            for contrast, outcome in product(self.contrasts, self.outcomes):
                cell, key = effects.loc[(name, contrast, outcome)], self.key(contrast, outcome)
                ends = ("median", "median_ci_low", "median_ci_high", "k", "n", "n_undefined")
                row |= {f"{key}_{each}": cell[each] for each in ends} | {f"{key}_p": cell["p_corrected"]}
            if name in self.attention:
                scores = self.attention[name]
                for metric in scores.metrics:
                    values, mean = self.attention_to(name, metric)
                    row |= {each: float(end) for each, end in interval_columns(metric, mean).items()}
                    row[f"{metric}_n"] = int((~np.isnan(values)).sum())
                uniform = scores.null["span_mass"]["inserted"][:, [head.layer for head in scores.heads]]
                row["span_mass_null"] = float(defined_mean(uniform.ravel()))
                row["most_read_by"] = str(scores.top("span_mass", 1)["label"].iloc[0])
            if name in self.located:
                found = self.located[name]
                row["heads"] = _listed(found.found)
                if self.settings.get("n_fresh"):
                    row["shown_again"] = _listed(found.confirmed)
            if compared is not None:
                one = compared.loc[name]
                row |= {"accuracy": one["accuracy_second"], "answers_n": one["n"]}
                row |= {each: one[each] for each in ("difference", "difference_ci_low", "difference_ci_high")}
                row["difference_p"] = one["p_corrected"]
                if name in self._emitted:
                    row["emitted"] = self._emitted[name]
            rows.append(row)
        return pd.DataFrame(rows)

    def to_frame(self) -> pd.DataFrame:
        """Return one tidy row per insertion, measure and problem: the contrast with its outcome and unit, each metric (mean
        over heads), `right` (share of right answers; also of `none`)."""
        parts = [
            (insertion, contrast, outcome, made.problem_ids, made.total_effect, made.unit)
            for (insertion, contrast, outcome), made in self._cells()
        ]
        for insertion, scores in self.attention.items():
            for metric in scores.metrics:
                values, unit = self.attention_to(insertion, metric)[0], metric_named(metric).unit
                parts.append((insertion, metric, "", scores.problem_ids, values, unit))
        if self.answers is not None:
            for name, right in zip(self.answers.treatments, self.answers.share_right().T, strict=True):
                parts.append((name, "right", "", self.answers.problem_ids, right, "share"))
        names = ("insertion", "measure", "outcome", "problem", "value", "unit")
        return pd.concat([pd.DataFrame(dict(zip(names, part, strict=True))) for part in parts], ignore_index=True)

    @property
    def established(self) -> list[tuple[str, str, str]]:
        """Insertion, contrast and outcome of the effects that most problems show with one sign (corrected p, Holm)."""
        sure = self._effects[self._effects["p_corrected"] < self.alpha]
        return list(zip(sure["insertion"], sure["contrast"], sure["outcome"], strict=True))

    @property
    def _emitted(self) -> Mapping[str, float]:
        """How much of a filler the model emitted, by insertion."""
        return {} if self.answers is None else self.answers.emitted_shares

    def headline(self) -> str:
        """Return which insertions have an established effect and how large, and which heads carry it."""
        contrast, outcome = self.contrasts[0], self.outcomes[0]
        table = self.effect_table().query("contrast == @contrast and outcome == @outcome")
        sure = table[table["p_corrected"] < self.alpha].to_dict("records")
        have = "has" if 1 in (len(sure), len(table)) else "have"
        n = count_of(len(table), "insertion")
        told = f"{len(sure)} of {n} {have} an established {contrast} effect on {outcome}"
        if sure:
            sizes = (
                f"{row['insertion']!r} {row['median']:+.2f}{limits_of(row['median_ci_low'], row['median_ci_high'], '+.2f')}"
                for row in sure
            )
            told += f" (median, {sure[0]['unit']}): {listed(sizes)}"
        if self.located:
            tested = any(made.confirmation is not None for made in self.located.values())
            named = {name: list(made.confirmed if tested else made.found) for name, made in self.located.items()}
            heads = [f"{listed(heads)} under {name!r}" for name, heads in named.items() if heads]
            told += f"; heads {'confirmed' if tested else 'named'}: {'; '.join(heads) or 'none'}"
        return f"{told} ({count_of(len(self.problem_ids), 'problem')})."

    def caveats(self) -> list[str]:
        """Return what effects of an emitted filler are, and that so few problems establish nothing, where they are too few."""
        told = []
        if emitted := self._emitted:
            names, shares = listed(map(repr, emitted)), listed(f"{100 * share:.0f} %" for share in emitted.values())
            told.append(f"Effects of {names} are those of the filler inserted; the model emitted {shares} of it.")
        table = self._effects[self._effects["p"].notna()]
        n, m = table["n"].max(), len(table)
        if m and n < (needed := fewest_problems(2 * m, alpha=self.alpha)):
            few = f"{count_of(n, 'problem')} are too few to establish any of {m} effects; {needed} problems are needed."
            told.append(few)
        return [*told, *super().caveats()][:3]

    def details(self) -> list[str]:
        contrasts, outcomes = ", ".join(self.contrasts), ", ".join(self.outcomes)
        found = [
            f"Contrasts {contrasts}, outcomes {outcomes}; p of sign tests after Holm over all {len(self._effects)}."
        ]
        if self.answers is not None:
            first = self.answers.table().iloc[0]
            n = count_of(int(first["n"]), "problem")
            found.append(f"Without insertion {100 * first['accuracy']:.1f} % of {n} are right.")
        if self.located:
            n = count_of(len(self.located), "insertion")
            found.append(f"Heads are named for {n}, each at {self.alpha:.3g} / {len(self.located)}.")
        if self.claims:
            found.append(f"Claimed in {self.source or 'its source'}: {self.claims.rstrip('.')}.")
        return found

    def printed(self) -> pd.DataFrame:
        table = self.table()
        ends = ("_ci_low", "_ci_high", "_k", "_n", "_n_undefined", "_p")
        return table[[name for name in table.columns if name != "inserts" and not name.endswith(ends)]]

    def shown(self) -> Shown:
        table, unit = self.table(), self.effect_of(self.insertions[0]).unit
        side = (
            f"What each insertion does, {count_of(len(self.problem_ids), 'problem')}: medians of effects on the outcome over "
            f"problems, in {unit}, and in how many problems it has that sign; p after Holm over the study."
        )
        each = "Each effect: median, problems of its sign with the prevalence's exact limits, sign test before and after Holm."
        columns = [name for name in table.columns if not name.endswith("_n")]
        return Shown((ShownTable(table, side, columns), ShownTable(self.effect_table(), each)))


def _listed(heads: Mapping[Head, str]) -> str:
    """Heads by their kinds: L0H1, L0H2 (reader); L1H0 (mediator)."""
    kinds: dict[str, list[str]] = {}
    for head, kind in heads.items():
        kinds.setdefault(kind, []).append(str(head))
    return "; ".join(f"{', '.join(names)} ({kind})" for kind, names in kinds.items()) or "none"
