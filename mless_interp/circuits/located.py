"""What locating heads gives: the heads named, in how many problems, what that rests on, and what could not be told."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from ..core.arguments import count_of, listed
from ..core.heads import Head, as_head
from ..patching.parts import WHOLE, concentration_words
from ..patching.reads import ReadEffects
from ..patching.scores import PatchScores
from ..prompts.conditions import CONTRASTS, Contrast
from ..runtime.columns import columns_of
from ..runtime.results import Quantity, Result, Shown, ShownTable, head_columns, head_map, interval_columns
from ..runtime.tables import Table
from ..scores import HeadScores
from ..scores.scored import is_sink
from ..statistics import defined_mean
from .confirmation import Confirmation, Verdicts, gap_words, sink_words, strata_words
from .judge import NAMED, PER_HEAD, SIDES, few_problems, measured
from .measure import MEASURES
from .specificity import beside_controls

NAMED_AT_MOST = 10
"""Undecided heads that a print names."""
NAMED_MARK = "outlined: named, by a test of most problems, corrected for testing many heads"
OF_THE_PATCH = ("effect_fraction", "recovered", "n", "rank")
"""Columns of the z sweep that stand in the table of located heads."""
SATURATES = (
    "Outcomes that saturate (log-probabilities near 0) make heads look redundant, or needed only together; also try "
    "outcome='logit_diff' if the problems have distractors."
)
READS_OF_COMPUTED = "Here a reader reads the question from the span's own rows; a mediator passes on what was read."
CANNOT_SAY = (
    "What this cannot say: a teacher-forced log-probability is not generated accuracy; heads are edited one at a time, and an "
    "unnamed head may still matter unless it is listed as negligible; all of it holds for problems like these."
)


@dataclass(frozen=True, eq=False, repr=False)
class LocatedHeads(Verdicts, Result):
    """The heads that carry the insertion's content effect (or another contrast's), with everything that the claim rests on.

    All verdicts (`judged`) follow from `values[measure]` `[problem, head]` (the two z patches, where nothing can be cut off),
    `total` `[problem]` and `heads`, the family that was tested. `patches`: their exact z sweep (denoising). `confirmation`:
    the named heads on fresh problems, where there were some; controls, `joint` and `reads` were then measured there. `sinks`:
    of the named heads that read, whether the span is an attention sink, on the problems that named them. `specialists` are
    heads that pass within some of the `strata` (`by=`).
    """

    patches: PatchScores = field(kw_only=True)
    confirmation: Confirmation | None = None
    sinks: HeadScores | None = None

    columns = columns_of("""
        reads_sink | reads a sink | verdict | the span that the head reads is an attention sink in most problems
        removed_share | undone | share | share of the whole effect that patching its output out undoes
        added_share | reproduced | share | share of the whole effect that patching its output in reproduces
        knockout_median | own read, median | | what hiding the inserted tokens from this head takes away
        mediated_removed_median | mediated, median | | the part of the head's effect that earlier heads cause
        edge_noise_median | own read added, median | | what showing them to this head alone brings
        mediated_added_median | mediated, added, median | | the part that earlier heads cause, patched in
        knockout_effect | knockout, mean | | the same measure, mean over problems
        knockout_k | knockout, problems | | problems in which it exceeds the smallest effect
        edge_noise_effect | edge noise, mean | | the same measure, mean over problems
        edge_noise_k | edge noise, problems | | problems in which it exceeds the smallest effect
        mediated_removed_effect | mediated removed, mean | | the same measure, mean over problems
        mediated_removed_k | mediated removed, problems | | problems in which it exceeds the smallest effect
        mediated_added_effect | mediated added, mean | | the same measure, mean over problems
        mediated_added_k | mediated added, problems | | problems in which it exceeds the smallest effect
        removed_prevalence | undone in, share | | of the problems, with exact limits
        added_prevalence | reproduced in, share | | of the problems, with exact limits
        p_either | p, either side | p | the smaller of both sides' corrected p
    """)
    picture = "forest"
    drawn = ("removed_share", "removed_median")
    reported = tuple(
        "label layer head kind strata sense confirmed removed_share removed_k added_share added_k n removed_p added_p "
        "reads_sink exceeds_random exceeds_random_n".split()
    )

    @property
    def specialists(self) -> dict[Head, tuple[str, ...]]:
        """The strata of each head that passes within some and is not shown to act over all problems."""
        found = [head for head, kind in self.found.items() if kind == "specialist"]
        return {head: tuple(each.stratum for each in self.judged.in_strata if each.head == head) for head in found}

    @property
    def confirmed_specialists(self) -> dict[Head, tuple[str, ...]]:
        """The strata of each specialist in which fresh problems confirm it, () in none; empty where none were given."""
        again = [] if self.confirmation is None else self.confirmation.confirmed_within
        found = self.specialists if self.confirmation is not None else ()
        return {head: tuple(each.stratum for each in again if each.head == head) for head in found}

    def by_stratum(self) -> pd.DataFrame:
        """One row per head and stratum that was tested, the largest first: `n` problems; for both sides `_k`, `_median`,
        `_share` of the stratum's total with limits, and corrected `_p`; `passes`, and whether fresh problems confirm it
        (`confirmed`)."""
        judged, rows = self.judged, []
        again = () if self.confirmation is None else self.confirmation.confirmed_within
        sure, passed = ({(each.head, each.stratum) for each in some} for some in (again, judged.in_strata))
        for stratum in judged.large:
            tests, inside = judged.within(stratum), np.array(self.strata) == stratum
            effect = judged.effect.only(inside)
            shares = {
                side: interval_columns(f"{side}_share", effect.share(measured(self.values, measure)[inside]))
                for side, measure in SIDES.items()
            }
            for at, head in enumerate(self.heads):
                row: dict[str, Any] = {"label": str(head), "stratum": stratum, "passes": (head, stratum) in passed}
                if self.confirmation is not None:
                    row["confirmed"] = (head, stratum) in sure if row["passes"] else None
                for side, test in tests.items():
                    better = int(np.argmax(test.count[:, at]))
                    row |= {"n": int(test.n[at]), f"{side}_k": test.count[better, at]}
                    row |= {f"{side}_p": np.fmin.reduce(test.p_corrected[:, at])}
                    row |= {f"{side}_median": np.median(judged.turned(SIDES[side])[inside, at])}
                    row |= {name: each[at] for name, each in shares[side].items()}
                rows.append(row)
        table = pd.DataFrame(rows)
        return table.astype({"confirmed": "boolean"}) if "confirmed" in table else table

    @property
    def found(self) -> dict[Head, str]:
        """Named heads and their kind (`judge.KINDS`)."""
        return dict(zip(self.judged.found.heads, self.judged.found.kinds, strict=True))

    @property
    def confirmed(self) -> dict[Head, str]:
        """The named heads that fresh problems confirm, and their kind; empty where none were given."""
        made = self.confirmation
        if made is None:
            return {}
        return {head: kind for head, kind, sure in zip(made.heads, made.kinds, made.confirmed, strict=True) if sure}

    @property
    def sure(self) -> dict[Head, str]:
        """The heads to report: confirmed ones where there were fresh problems, else the named ones."""
        return self.found if self.confirmation is None else self.confirmed

    def table(self) -> pd.DataFrame:
        """One row per tested head, the named ones first, then by size.

        Of the z sweep the fractions of `PatchScores.table()`; the verdict; for the sides `removed` (z patch, denoising) and
        `added` (noising): `_k` of `n` problems with more than the smallest effect in the head's sense, `_prevalence` with
        exact limits, the `_p` of the better sense (Holm over heads, sides and senses), the `_median` and the `_share` of the
        total (NaN where that is not established) with limits. `p_either`: the smaller p. For the four measures `_k`,
        `_median` and the mean (`_effect`). Last the controls of `control_table`, where they were run on these problems.
        """
        judged, effect = self.judged, self.judged.effect
        sense = np.where(judged.named, np.where(judged.sense > 0, "with", "against"), "")
        again = {} if self.confirmation is None else {"confirmed_strata": self.confirmation.confirmed_within}
        patched = self.patches.table()[[*head_columns(()), *OF_THE_PATCH]]
        columns: dict[str, Any] = dict(patched) | {
            "kind": list(judged.kinds),
            "sense": sense,
            **self._of_specialists(judged.kinds, strata=judged.in_strata, **again),
            "confirmed": pd.array([self.confirmed_or_unknown(head) for head in self.heads], dtype="boolean"),
            "reads_sink": pd.array([self.reads_sink(head) for head in self.heads], dtype="boolean"),
        }
        for side, measure in SIDES.items():
            counted, values = judged.counted(measure), measured(self.values, measure)
            columns |= {f"{side}_k": counted.count[0], f"{side}_prevalence": counted.share[0]}
            columns |= {f"{side}_prevalence_ci_low": counted.low[0], f"{side}_prevalence_ci_high": counted.high[0]}
            columns[f"{side}_p"] = np.fmin(*judged.sides[side].p_corrected)
            columns |= interval_columns(f"{side}_median", effect.cell_medians(values))
            columns |= interval_columns(f"{side}_share", effect.share(values))
        columns["p_either"] = np.fmin(columns["removed_p"], columns["added_p"])
        for measure in (name for name in MEASURES if name in self.values):
            columns[f"{measure}_k"] = judged.counted(measure).count[0]
            columns |= interval_columns(f"{measure}_median", effect.cell_medians(self.values[measure]))
            columns[f"{measure}_effect"] = defined_mean(self.values[measure])
        beside = self.control_table() if self.confirmation is None else self.control_table().head(0)
        beside = beside.drop(columns=["kind", *(name for name in beside if name.startswith("effect"))])
        table = pd.DataFrame(columns).merge(beside, on="label", how="left")
        size = table[["removed_median", "added_median"]].abs().max(axis=1)
        order = pd.DataFrame({"named": ~judged.named, "size": -size}).sort_values(["named", "size"], kind="stable")
        return table.loc[order.index].reset_index(drop=True)

    @property
    def read(self) -> ReadEffects | None:
        """What the reads of the named heads are: on fresh problems where there were some."""
        return self.reads if self.confirmation is None else self.confirmation.reads

    def confirmed_or_unknown(self, head: Head | str) -> bool | None:
        """Whether fresh problems confirm a head; None where it was not tested again."""
        made, head = self.confirmation, as_head(head)
        return None if made is None or head not in made.heads else bool(made.confirmed[made.heads.index(head)])

    def reads_sink(self, head: Head | str) -> bool | None:
        """Whether the span that a head reads is an attention sink in most problems; None where it was not looked at."""
        found, head = self.sinks, as_head(head)
        if found is None or head not in found.heads:
            return None
        return bool(2 * is_sink(found)[:, found.heads.index(head)].sum() > len(found.problem_ids))

    def quantity(self, column: str) -> Quantity:
        """A share of the whole effect or a part of it; strokes mark heads that pass on either side."""
        claim, level = f"> {self.smallest_words} in most problems", self.judged.effect.level
        if column.removesuffix("_share") in SIDES:
            limits = (f"{column}_ci_low", f"{column}_ci_high")
            return Quantity(WHOLE, True, limits, "p_either", claim, "against the effect", level)
        return replace(self.patches.quantity(column), p="p_either", claim=claim, level=level)

    def control_table(self) -> pd.DataFrame:
        """One row per named head: its effect beside the same under each control (`specificity.beside_controls`), on the fresh
        problems where there were some; else `p_specific` is NaN: the heads were chosen on these problems."""
        if self.confirmation is not None:
            return self.confirmation.control_table()
        named = {measure: values[:, self.judged.named] for measure, values in self.values.items()}
        # version 0.1 had controls of other heads, and kept no sizes
        controls = self.controls if "random_size_removed" in self.controls else {}
        return Table(beside_controls(self.judged.effect, self.judged.found, named, controls, fresh=False))

    def headline(self) -> str:
        """Return the total effect with its direction, how many heads carry it, and whether fresh problems confirm them."""
        s, effect, made = self.settings, self.judged.effect, self.confirmation
        whole = effect.headline(s["insertion"], s["outcome"], self.unit)
        if self.contrast.name not in ("total", "content"):
            whole += f" ({self.contrast.name})"
        fresh = s.get("n_fresh")
        unused = f", and the {fresh} fresh problems were not used" if fresh else ""
        if not self.established:
            return f"{whole}, so no head is named{unused}."
        of, share = f"of {count_of(len(self.heads), 'head')}", self.smallest_words
        found = {head: kind for head, kind in self.found.items() if kind != "specialist"}
        inside = self._specialist_words(more=bool(found))
        if not found:
            left = "" if self.found else unused
            return f"{whole}; none {of} is shown to carry more than {share} of it in most problems{inside}{left}."
        kinds = {kind: [head for head, one in found.items() if one == kind] for kind in found.values()}
        named = "; ".join(f"{listed(heads)} ({kind})" for kind, heads in kinds.items())
        carry = "carries" if len(found) == 1 else "carry"
        tested = "not yet confirmed on fresh problems" if made is None else made.in_short()
        return f"{whole}; {len(found)} {of} {carry} more than {share} of it in most: {named}; {tested}{inside}."

    def _specialist_words(self, *, more: bool) -> str:
        """Which heads pass in some strata alone, and which of these fresh problems confirm; "" where none does."""
        told, sure = [], self.confirmed_specialists
        for head, strata in self.specialists.items():
            again = sure.get(head, ())
            only = (
                ("confirmed" if again == strata else f"confirmed in {', '.join(again)}") if again else "not confirmed"
            )
            told.append(f"{head} ({', '.join(strata)}{f'; {only}' * (self.confirmation is not None)})")
        of = f"; {len(told)} {'more ' * more}only in strata of {self.settings.get('by')}: "
        return of + ", ".join(told) if told else ""

    def rest(self) -> str:
        """Return how many heads are negligible or undecided."""
        kinds = list(self.judged.kinds)
        undecided = [head for head, kind in zip(self.heads, kinds, strict=True) if kind == "undecided"]
        few = f" ({listed(undecided, NAMED_AT_MOST)})" * (0 < len(undecided) <= NAMED_AT_MOST)
        told = f"Not named: {kinds.count('negligible')} negligible, {len(undecided)} undecided{few}."
        return told if self.established else ""

    def caveats(self) -> list[str]:
        """Return what the problems could not show, and whether a few of them carry most of the effect."""
        few = few_problems(self.judged.effect.n, len(self.heads), self.confidence)
        some = [few] if few else []
        some += concentration_words(self.total, self.problem_ids, self.unit)
        if self.confirmation is None and self.found:
            some.append("Nothing was confirmed on fresh problems: confirm=pairs tests the named heads on others.")
        return [*some, *super().caveats()][:3]

    def details(self) -> list[str]:
        """Return how heads were tested, what the controls, the set and fresh problems show, and what stays open."""
        s, judged = self.settings, self.judged
        found = [
            f"{s['insertion']}, {count_of(len(self.problem_ids), 'problem')}, {count_of(len(self.heads), 'head')} tested "
            f"({s['swept']}), outcome {s['outcome']}.",
            judged.effect.details(self.unit, self.contrast.name),
            *self._way_words(),
        ]
        if not (np.abs(self.total) > self.resolution).any():
            found.append("This does not change the outcome at all.")
        elif self.established:
            found += [*self._named_words(), *sink_words(self.sinks)]
        made = self.confirmation
        if made is not None:
            found += [f"On fresh problems: {made.headline()}", *made.details()]
        held = self.controls if made is None else made.controls
        return [*found, *gap_words(held, judged.effect, self.unit), CANNOT_SAY]

    @property
    def contrast(self) -> Contrast:
        """Which two runs the effect lies between."""
        return CONTRASTS[self.settings.get("contrast", "content")]

    def _way_words(self) -> list[str]:
        """Which heads were tested, and what these problems can find: from the binomial alone, never from what was observed."""
        s, n, n_heads, found = self.settings, self.judged.effect.n, len(self.heads), []
        if s.get("why") and s.get("screened") is not None:
            left = f"of {count_of(s['n_candidates'] - n_heads, 'head')} that ranked below nothing is known"
            found.append(f"Screened by gradients: {s['why']}; {left}.")
        least = 100 * self.judged.effect.detectable(PER_HEAD * n_heads)
        power = f"one of {n_heads} heads is found 80 % of the time where it acts in {least:.0f} % of all problems"
        few = few_problems(n, n_heads, self.confidence)
        return [*found, few if np.isnan(least) else f"Power: with {n} problems, {power}."]

    def _named_words(self) -> list[str]:
        judged, s = self.judged, self.settings
        places = np.flatnonzero(judged.named)
        found = [
            f"Smallest effect of interest: {judged.effect.delta_words(self.unit)}; p < {judged.effect.level:.3g} after Holm "
            f"over {PER_HEAD * len(self.heads) * (1 + len(judged.large))} tests (heads, both sides, both senses"
            f"{', all problems and strata' if self.strata else ''})."
        ]
        if len(places) and self.contrast.name == "computed":
            found.append(READS_OF_COMPUTED)
        if self.strata:
            by, n = s.get("by"), len(judged.large)
            tested = f"{n} of {count_of(len(set(self.strata)), 'stratum', 'strata')} of {by} have enough problems to be tested"
            found += [f"{tested}.", *(strata_words(f"Within {by}", judged.in_strata) if n else [])]
        if any(judged.side[at] != "both" for at in places) and s["outcome"] != "logit_diff":
            found.append(SATURATES)
        return [
            *found,
            *(self._held_words() if self.confirmation is None and len(places) else []),
            *self._left_out_words(),
        ]

    def printed(self) -> pd.DataFrame:
        """Return the named heads, on fresh problems where they were tested there; the three largest where none is named."""
        if self.confirmation is not None:
            return self.confirmation.printed()
        names = "label kind strata confirmed_strata removed_share removed_share_ci_low removed_share_ci_high removed_k"
        names += f" added_k n removed_p {'reads_sink' * bool(sink_words(self.sinks))} exceeds_random exceeds_random_n"
        table = self.table().head(len(self.found) or 3)
        return table.reindex(columns=names.split()).dropna(axis=1, how="all")

    def shown(self) -> Shown:
        """Each head's share of the effect as a map, the named ones outlined; the tested heads and their controls as tables."""
        table = self.table()
        names = "label paper_label kind sense strata confirmed_strata confirmed reads_sink removed_k added_k n removed_share"
        names += " added_share removed_p added_p knockout_median mediated_removed_median effect_fraction"
        columns = [name for name in names.split() if name in table]
        caption = (
            f"Tested heads: named ones first, then by size. Counts of problems with more than {self.smallest_words} of the "
            "effect; effects are the parts of the insertion's, above 0 with it."
        )
        tables = [ShownTable(table, caption, columns)]
        if self.strata and len(strata := self.by_stratum()):
            of = f"Heads within strata of {self.settings['by']}"
            tables.append(ShownTable(strata, f"{of}; p: Holm over heads, sides, senses, strata and all problems."))
        beside = self.control_table()
        if len(beside):
            where = "fresh" if self.confirmation is not None else "the same"
            caption = f"The named heads' effect beside the same under each control, on {where} problems; medians ({self.unit})."
            tables.append(ShownTable(beside, caption))
        if self.confirmation is not None:
            tables.append(self.confirmation.shown().tables[0])
        if self.read is not None:
            tables += self.read.shown().tables
        marked = table["kind"].isin(NAMED).tolist()
        return Shown(tuple(tables), head_map(table, list(self.drawn), columns, marked=marked, means=NAMED_MARK))
