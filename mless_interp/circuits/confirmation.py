"""Named heads tested again on problems that had no part in naming them."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from ..core.arguments import count_of, listed
from ..core.heads import Head
from ..patching.effect import SMALLEST_EFFECT
from ..patching.joint import JointKnockout
from ..patching.reads import ReadEffects
from ..runtime.results import Result, Shown, ShownTable, head_columns, interval_columns, rows_per_head
from ..statistics import CONFIDENCE, Prevalence, holm
from .judge import KINDS, SIDES, Claims, InStratum, Verdicts, measured
from .sentences import (
    few_problems,
    left_out_words,
    readers_words,
    smallest_words,
    specific_words,
    strata_columns,
    strata_words,
)
from .specificity import beside_controls


@dataclass(frozen=True, eq=False, repr=False)
class Confirmation(Verdicts, Result):
    """The heads that were named elsewhere, and nothing else, on fresh problems: Holm over these heads alone.

    `heads`, `kinds` and `senses` `[head]` are the claims, `direction` the sign of the effect that they are told by;
    `values[measure]` `[problem, head]` and `total` `[problem]` were measured on the fresh problems. So were the controls
    (`controls[name]` `[problem, head]`), and the readers knocked out together (`joint`): all
    chosen on other problems, so that their p-values mean something. `within` are the claims about strata,
    `strata` names the stratum of each fresh problem.
    """

    problem_ids: tuple[str, ...]
    heads: tuple[Head, ...]
    kinds: tuple[str, ...]
    senses: np.ndarray
    direction: float
    values: dict[str, np.ndarray]
    total: np.ndarray
    controls: dict[str, np.ndarray] = field(default_factory=dict)
    joint: JointKnockout | None = None
    reads: ReadEffects | None = None
    unit: str = "nats"
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    confidence: float = CONFIDENCE
    smallest_effect: float = SMALLEST_EFFECT
    resolution: float = 0.0
    within: tuple[InStratum, ...] = ()
    strata: tuple[str, ...] = ()

    reported = (
        *("label", "layer", "head", "claimed", "confirmed", "kind", "confirmed_strata", "p_corrected", "removed_share"),
        *("removed_k", "added_k", "n", "removed_p", "added_p", "exceeds_random", "exceeds_random_n", "p_specific"),
    )
    axes = (
        ("values", "problem head"),
        ("total", "problem"),
        ("senses", "head"),
    )

    @property
    def claims(self) -> Claims:
        """What was claimed."""
        return Claims(self.direction, self.heads, self.kinds, self.senses, self.within)

    @property
    def confirmed(self) -> np.ndarray:
        """Whether every side that a head was named for passes again, in its sense, `[head]`; of a specialist, in a stratum."""
        return np.nan_to_num(self.p, nan=1.0) < self.judged.effect.level

    @property
    def confirmed_within(self) -> tuple[InStratum, ...]:
        """The claims about strata that pass again on fresh problems of the same stratum."""
        p = np.nan_to_num(self._p[1], nan=1.0)
        return tuple(each for each, one in zip(self.within, p, strict=True) if one < self.judged.effect.level)

    @property
    def p(self) -> np.ndarray:
        """Corrected p of each head's claim, `[head]`: the larger of its sides' own, Holm over the heads and their strata; of a
        specialist the smallest of its strata's."""
        return self._p[0]

    @cached_property
    def _p(self) -> tuple[np.ndarray, np.ndarray]:
        """Corrected p of the heads' claims (of specialists their strata's smallest), and of the claims about strata."""
        whole = [self._larger(self.judged.sides, KINDS[kind].side, at) for at, kind in enumerate(self.kinds)]
        whole = [np.nan if kind == "specialist" else p for p, kind in zip(whole, self.kinds, strict=True)]
        p = np.array([*whole, *(self._within(each) for each in self.within)], dtype=float)
        p = holm(p) if np.isfinite(p).any() else p
        heads, inside = p[: len(whole)], p[len(whole) :]
        for at, (head, kind) in enumerate(zip(self.heads, self.kinds, strict=True)):
            if kind == "specialist":
                own = [p for each, p in zip(self.within, inside, strict=True) if each.head == head]
                heads[at] = np.fmin.reduce(own, initial=np.nan)
        return heads, inside

    def _larger(self, tests: dict[str, Prevalence], wanted: str, at: int) -> float:
        return max(float(tests[side].p[0, at]) for side in SIDES if wanted in ("both", side))

    def _within(self, claim: InStratum) -> float:
        """The p of a claim about a stratum, on the fresh problems of that stratum; NaN where there are none."""
        inside, at = np.array([name == claim.stratum for name in self.strata]), self.heads.index(claim.head)
        if not inside.any():
            return float("nan")
        both = np.stack([measured(self.values, measure)[:, [at]] for measure in SIDES.values()], 1)
        test = self.judged.effect.prevalence(np.where(inside[:, None, None], both, np.nan) * claim.sense, senses=(1,))
        return self._larger({side: test.of(place) for place, side in enumerate(SIDES)}, claim.side, 0)

    @property
    def kinds_again(self) -> tuple[str, ...]:
        """The verdict on each head here, `[head]`; "specialist" for one that passes again in a stratum that named it."""
        again = {each.head for each in self.confirmed_within}
        return tuple(
            claimed if claimed == "specialist" and head in again else kind
            for head, claimed, kind in zip(self.heads, self.kinds, self.judged.kinds, strict=True)
        )

    @property
    def same_kind(self) -> np.ndarray:
        """Whether a head is confirmed, and as the same kind, `[head]`."""
        return self.confirmed & (np.array(self.kinds_again) == np.array(self.kinds))

    def _strata_columns(self) -> dict[str, list[str]]:
        """Of specialists the strata that named them, and those that confirm them; nothing where there are none."""
        return strata_columns(self.heads, self.kinds, strata=self.within, confirmed_strata=self.confirmed_within)

    @property
    def specific(self) -> tuple[Head, ...]:
        """Heads that do more than under random words of the same length, by more than the smallest effect."""
        table = self.control_table()
        passed = set(table.loc[table["p_specific"] < self.judged.effect.level, "label"])
        return tuple(head for head in self.heads if str(head) in passed)

    def control_table(self) -> pd.DataFrame:
        """One row per head: its effect beside the same under each control, with the test (`control.beside_controls`)."""
        return beside_controls(self.judged.effect, self.claims, self.values, self.controls, fresh=True)

    def table(self) -> pd.DataFrame:
        """One row per head: claim, verdict here, counts of problems, corrected p of each side, the median with limits; and
        whether it does more than under random words (`control_table`)."""
        columns: dict[str, Any] = head_columns(self.heads) | {
            "claimed": list(self.kinds),
            "confirmed": self.confirmed,
            "p_corrected": self.p,
            "kind": list(self.kinds_again),
            **self._strata_columns(),
            "n": np.full(len(self.heads), self.judged.effect.n),
        }
        for side, measure in SIDES.items():
            test = self.judged.sides[side]
            columns |= {f"{side}_k": test.count[0], f"{side}_p": test.p_corrected[0]}
            if side == "removed":
                values = measured(self.values, measure)
                columns |= interval_columns(f"{side}_median", self.judged.effect.cell_medians(values))
                columns |= interval_columns(f"{side}_share", self.judged.effect.share(values))
        beside = self.control_table().reindex(columns=["label", "exceeds_random", "exceeds_random_n", "p_specific"])
        return pd.DataFrame(columns).merge(beside, on="label", how="left")

    def to_frame(self) -> pd.DataFrame:
        """One tidy row per measure (`measure.MEASURES`), problem and head."""
        return rows_per_head(self.problem_ids, self.heads, self.values)

    def headline(self) -> str:
        """Return whether the effect comes again, and which heads are confirmed."""
        s, effect = self.settings, self.judged.effect
        whole = effect.headline(s.get("insertion", "The insertion"), s.get("outcome", "the outcome"), self.unit)
        if not effect.established:
            return f"{whole}, in the direction claimed, so no head is confirmed."
        sure, lost = (
            [head for head, one in zip(self.heads, self.confirmed, strict=True) if one == is_sure]
            for is_sure in (True, False)
        )
        return f"{whole}; confirmed: {listed(sure) or 'none'}" + (f"; not confirmed: {listed(lost)}." if lost else ".")

    def in_short(self) -> str:
        """Return which of the heads are confirmed, and which of these are specific to the insertion, as a clause."""
        sure = [head for head, one in zip(self.heads, self.confirmed, strict=True) if one]
        every = "all" if len(self.heads) > 2 else "both" if len(self.heads) == 2 else str(self.heads[0])
        who = every if len(sure) == len(self.heads) else listed(sure) or "none"
        told = (
            f"on {count_of(len(self.problem_ids), 'fresh problem')} {who} {'is' if len(sure) < 2 else 'are'} confirmed"
        )
        if not sure or "random_size_removed" not in self.controls:
            return told + ", specificity not tested" * bool(sure)
        which = [head for head in sure if head in self.specific]
        if len(which) == len(sure):
            return f"{told}, {['', 'and ', 'both ', 'all '][min(len(sure), 3)]}specific to this insertion"
        return f"{told}, {listed(which) or 'none'} specific to this insertion"

    def caveats(self) -> list[str]:
        """Return that so few problems can confirm no head, where they are too few."""
        few = few_problems(self.judged.effect.n, len(self.heads), self.confidence, per_head=1)
        return [*([few] if few else []), *super().caveats()]

    def details(self) -> list[str]:
        """Return what the set and the controls show on these problems."""
        s, n, level = self.settings, len(self.total), self.judged.effect.level
        found = [
            f"{count_of(n, 'fresh problem')}, none of them used to name the heads; {count_of(len(self.heads), 'head')} tested.",
            self.judged.effect.details(self.unit, s.get("contrast", "content")),
        ]
        if not self.judged.established or np.isnan(self.judged.effect.delta):
            return found
        sure = [str(head) for head, one in zip(self.heads, self.confirmed, strict=True) if one]
        found += strata_words("Confirmed within strata", self.confirmed_within) if self.within else []
        found += specific_words(self.control_table(), level=level, n=n, confirmed=sure)
        found += readers_words(self.joint) if self.joint is not None else []
        found += [self.reads.headline(), *self.reads.details()] if self.reads is not None else []
        return [*found, *left_out_words(s.get("left_out") or {})]

    def shown(self) -> Shown:
        """The claims and what came of them, and the effects beside the controls."""
        columns = ["label", "paper_label", "claimed", "confirmed", "kind", *self._strata_columns()]
        columns += ["removed_k", "added_k", "n"]
        columns += ["removed_median", "removed_p", "added_p"]
        smallest = smallest_words(self.judged.effect)
        caption = f"Named heads on fresh problems; counts of problems with more than {smallest} of the effect."
        tables = [ShownTable(self.table(), caption, columns)]
        if self.controls:
            tables.append(
                ShownTable(self.control_table(), "The same heads beside their controls; medians over problems.")
            )
        return Shown(tuple(tables))

    def printed(self) -> pd.DataFrame:
        """Return the claims and what came of them, with the control of random words where it was run."""
        columns = [
            "label",
            "claimed",
            *self._strata_columns(),
            "removed_share",
            "removed_share_ci_low",
            "removed_share_ci_high",
            "removed_k",
        ]
        table = self.table()
        columns += ["added_k", "n", "p_corrected", "confirmed"]
        columns += ["exceeds_random", "exceeds_random_n", "p_specific"] * bool(table["exceeds_random_n"].gt(0).any())
        return table.reindex(columns=columns).dropna(axis=1, how="all")
