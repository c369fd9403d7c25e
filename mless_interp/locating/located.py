"""What locating heads gives: the heads named, what the claim rests on, and what could not be told."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from ..heads import Head
from ..patching.joint import JointKnockout
from ..patching.scores import WHOLE, PatchScores
from ..running.results import (
    Quantity,
    Result,
    Shown,
    ShownTable,
    as_text,
    head_columns,
    head_map,
    interval_columns,
    tidy,
)
from ..statistics import Interval, cohen_dz, mean_interval, sample_size
from .judge import established
from .measure import MEASURES

KINDS = ("reader", "mediator", "reader+mediator", "neither")
CONTROLS = ("random", "mful", "matched_mass", "shift")
READS = ("reader", "reader+mediator")
NAMED_MARK = "outlined: named a reader or a mediator, corrected for testing many heads"
CANNOT_SAY = (
    "What this cannot say: a teacher-forced log-probability is not generated accuracy; the content contrast does not see "
    "heads that only respond to the shift of positions (contrast='shift' in patch_heads is there for them); heads are "
    "edited one at a time, so those that stand in for each other may all go unnamed, and a head that is not named is not "
    "shown to do nothing; all of it holds for this model, this insertion and problems like these.",
)


@dataclass(frozen=True, eq=False, repr=False)
class LocatedHeads(Result):
    """The heads that carry the insertion's content effect, with everything that the claim rests on.

    `values[measure]` `[problem, head]` for the four measures (sign of the insertion's effect), `total` `[problem]`,
    `heads` the family that was tested; arrays `[head]` in its order: `readers`, `mediators` (truth values), `p_reader`,
    `p_mediator` (the larger of the two corrected p-values), `specific` (1, 0, NaN = unknown) and `p_specific`;
    `patches` is the exact z sweep (denoising) of the same heads and problems. Of the controls, `controls[name]` holds
    effects `[problem, named]` of the named heads (and `shift_total` `[problem]`, what the gap alone does), `joint` the
    readers knocked out together.
    """

    problem_ids: tuple[str, ...]
    heads: tuple[Head, ...]
    values: dict[str, np.ndarray]
    total: np.ndarray
    readers: np.ndarray
    mediators: np.ndarray
    p_reader: np.ndarray
    p_mediator: np.ndarray
    tested: np.ndarray
    specific: np.ndarray
    patches: PatchScores
    controls: dict[str, np.ndarray] = field(default_factory=dict)
    unit: str = "nats"
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    p_specific: np.ndarray | None = None
    joint: JointKnockout | None = None

    drawn = ("knockout_fraction", "effect_fraction", "effect")

    @property
    def found(self) -> dict[Head, str]:
        """Named heads and their kind: reader, mediator or reader+mediator."""
        return {head: kind for head, kind in zip(self.heads, self._kinds(), strict=True) if kind != "neither"}

    def _kinds(self) -> list[str]:
        words = {(True, False): "reader", (False, True): "mediator", (True, True): "reader+mediator"}
        return [words.get((bool(r), bool(m)), "neither") for r, m in zip(self.readers, self.mediators, strict=True)]

    @property
    def established(self) -> bool:
        """Whether the total content effect is more than rounding and its interval does not hold 0."""
        return established(self.total, resolution=self.settings["resolution"], seed=self.seed)

    @property
    def total_interval(self) -> Interval:
        """Mean content effect (inserted - masked) with its interval over problems."""
        return mean_interval(self.total, seed=self.seed)

    @property
    def smallest_effect(self) -> float:
        """The smallest effect of interest in the outcome's unit; NaN where the total is not established."""
        total = abs(float(self.total_interval.estimate)) if self.established else np.nan
        return float(self.settings["smallest_effect"] * total)

    def summary(self) -> pd.DataFrame:
        """One row per tested head, the named ones first, then by size.

        The columns of `PatchScores.summary()` for the z sweep, then kind, specific, corrected p-values (`p_either`: the
        smaller of a reader's and a mediator's), the four measures with intervals (in the sign of the insertion's own
        effect), their fractions of the total effect (NaN where that is not established), and, of named heads, the
        controls of `control_table`.
        """
        total = float(self.total_interval.estimate) if self.established else np.nan
        unknown = np.full(len(self.heads), np.nan)
        columns: dict[str, Any] = dict(self.patches.summary()) | {
            "kind": self._kinds(),
            "specific": pd.array([None if np.isnan(s) else bool(s) for s in self.specific], dtype="boolean"),
            "p_reader": self.p_reader,
            "p_mediator": self.p_mediator,
            "p_either": np.fmin(self.p_reader, self.p_mediator),
            "p_specific": unknown if self.p_specific is None else self.p_specific,
            "tested": self.tested,
        }
        for measure in MEASURES:
            columns |= interval_columns(f"{measure}_effect", mean_interval(self.values[measure], seed=self.seed))
        columns["knockout_fraction"] = columns["knockout_effect"] / total
        columns["mediated_fraction"] = columns["mediated_removed_effect"] / total + 0.0  # no -0 in layer 0
        table = pd.DataFrame(columns)
        beside = self.control_table().drop(columns=["kind", "specific", "p_specific", "effect"])
        table = table.merge(beside, on="label", how="left")
        size = table[["knockout_effect", "mediated_removed_effect"]].abs().max(axis=1)
        order = pd.DataFrame({"named": table["kind"] == "neither", "size": -size}).sort_values(
            ["named", "size"], kind="stable"
        )
        return table.loc[order.index].reset_index(drop=True)

    def quantity(self, column: str) -> Quantity:
        """A share of the whole effect or a part of it; strokes mark heads that are significant either way."""
        if column in ("knockout_fraction", "mediated_fraction"):
            return Quantity(WHOLE, True, None, "p_either")
        return replace(self.patches.quantity(column), p="p_either")

    def control_table(self) -> pd.DataFrame:
        """One row per named head: its effect and the same measure under each control, with intervals over problems.

        A head that reads is measured by its knockout, another mediator by its mediated part (`mediated_removed`).
        `random`: sentences of the same length; `mful`: a repeated word; `matched_mass`: as much attention taken elsewhere
        (readers; `matched_mass_n` problems have enough); `shift`: the head's part in what the gap alone does. NaN where a
        control was not run or does not apply.
        """
        rows = []
        for at, (head, kind) in enumerate(self.found.items()):
            i = self.heads.index(head)
            measure = "knockout" if kind in READS else "mediated_removed"
            used = {
                "effect": self.values[measure][:, i],
                "random": self._control(f"random_{measure}", at),
                "mful": self._control(f"mful_{measure}", at),
                "matched_mass": self._control("matched_mass", at) if kind in READS else None,
                "shift": self._control("shift_removed", at),
            }
            row: dict[str, Any] = {"label": str(head), "kind": kind}
            for name, values in used.items():
                shown = np.full(len(self.total), np.nan) if values is None else values
                known = shown[np.isfinite(shown)]
                made = mean_interval(known, seed=self.seed) if len(known) else None
                label = name if name == "effect" else f"{name}_effect"
                row[label] = np.nan if made is None else float(made.estimate)
                if name != "effect":
                    row[f"{label}_ci_low"] = np.nan if made is None else float(made.low)
                    row[f"{label}_ci_high"] = np.nan if made is None else float(made.high)
                if name == "matched_mass":
                    row["matched_mass_n"] = len(known)
            row["specific"] = self.specific[i]
            row["p_specific"] = np.nan if self.p_specific is None else self.p_specific[i]
            rows.append(row)
        names = ["label", "kind", "effect"]
        for name in CONTROLS:
            names += [f"{name}_effect", f"{name}_effect_ci_low", f"{name}_effect_ci_high"]
            names += ["matched_mass_n"] if name == "matched_mass" else []
        return pd.DataFrame(rows, columns=[*names, "specific", "p_specific"])

    def _control(self, name: str, at: int) -> np.ndarray | None:
        found = self.controls.get(name)
        return None if found is None else found[:, at]

    def to_frame(self) -> pd.DataFrame:
        """One tidy row per problem and head, with the four measures."""
        return tidy({"problem": self.problem_ids, "label": [str(head) for head in self.heads]}, **self.values)

    def sentences(self) -> list[str]:
        """What was found, what could not be told, how many problems more would be needed, what this cannot say."""
        s, total = self.settings, self.total_interval
        low, high = float(total.low), float(total.high)
        found = [
            f"{s['insertion']}, {len(self.problem_ids)} problems, {len(self.heads)} heads tested ({s['swept']}), outcome "
            f"{s['outcome']}.",
            f"Total content effect {float(total.estimate):+.4f} {self.unit}, 95 % interval [{low:+.4f}, {high:+.4f}].",
            *self._way_words(),
        ]
        if abs(float(total.estimate)) <= s["resolution"]:
            found.append(
                f"That is no change at all (rounding reaches {s['resolution']:g}): the insertion's content does nothing to "
                "this outcome, so no head is named."
            )
        elif not self.established:
            found.append(
                "That interval holds 0: the insertion's content has no established effect here, so no head is named."
            )
            found += self._total_power_words()
        else:
            found += self._named_words()
        return [*found, *self._gap_words(), *CANNOT_SAY]

    def _way_words(self) -> list[str]:
        why, screened = self.settings.get("why"), self.settings.get("screened")
        if not why:
            return []
        if screened is None:
            return [f"Swept exactly: {why}."]
        left = self.settings["n_candidates"] - len(screened)
        return [
            f"Screened by gradients: {why}.",
            f"{left} heads ranked below and were not tested: nothing is known of them.",
        ]

    def _named_words(self) -> list[str]:
        smallest = self.smallest_effect
        if self.found:
            named = [
                f"{head} ({head.paper_label} in the paper's counting): {kind}" for head, kind in self.found.items()
            ]
            found = [f"Named: {'; '.join(named)}.", *self._specific_words()]
        else:
            found = ["No head reaches significance and the smallest effect of interest in both directions."]
        if self.joint is not None:
            first, *rest = self.joint.sentences()
            found += [f"Readers as a set: {first}", *rest]
        found.append(
            f"Smallest effect of interest: {smallest:.4f} {self.unit} ({self.settings['smallest_effect']:.0%} of the total)."
        )
        return found + self._power_words(smallest)

    def _specific_words(self) -> list[str]:
        if "matched_mass" not in self.controls:
            return ["Controls were not run, so whether they are specific is unknown."]
        table = self.control_table()
        specific = table.loc[table["specific"] == 1, "label"]
        found = [f"Specific (more than random sentences of the same length): {', '.join(specific) or 'none'}."]
        reads = table["kind"].isin(READS)
        lacking = table.loc[reads & (table["matched_mass_n"] < len(self.total)), ["label", "matched_mass_n"]]
        if len(lacking):
            shown = ", ".join(f"{row.label} on {int(row.matched_mass_n)}" for row in lacking.itertuples())
            found.append(
                f"Taking as much attention elsewhere is possible on fewer than all {len(self.total)} problems for {shown} "
                "(not enough other attention to take); where it is on too few, the random sentences alone decide."
            )
        if self.settings.get("mful_left_out"):
            found.append(f"Mful was left out: {self.settings['mful_left_out'].rstrip('.')}.")
        return found

    def _gap_words(self) -> list[str]:
        """What the change of positions does with nothing inserted."""
        if "shift_total" not in self.controls:
            return []
        shift = self.controls["shift_total"]
        made = mean_interval(shift, seed=self.seed)
        words = (
            f"Gap only (positions shifted as by the insertion, nothing inserted): {float(made.estimate):+.4f} {self.unit} "
            f"[{float(made.low):+.4f}, {float(made.high):+.4f}]"
        )
        if abs(float(made.estimate)) <= self.settings["resolution"]:
            return [f"{words}: no change at all."]
        return [f"{words}{'' if established(shift, resolution=0.0, seed=self.seed) else ': not established'}."]

    def _total_power_words(self) -> list[str]:
        """For a total effect that is not established: the problems that 80 % power would take at this size."""
        d_z = float(cohen_dz(self.total))
        if not np.isfinite(d_z) or d_z == 0:
            return []
        size = sample_size(d_z, method="t" if abs(d_z) > 0.02 else "normal")
        return [
            f"If it is as large as it looks, about {size} problems would establish it with 80 % power "
            f"({max(0, size - len(self.total))} more)."
        ]

    def _power_words(self, smallest: float) -> list[str]:
        """For heads that are large enough but not significant: the problems that 80 % power would take."""
        needed = []
        for i, kind in enumerate(self._kinds()):
            for measure in ("knockout", "mediated_removed"):
                values = self.values[measure][:, i]
                spread = values.std(ddof=1)
                if kind == "neither" and spread > 0 and abs(values.mean()) >= smallest:
                    needed.append(sample_size(float(abs(values.mean()) / spread), n_tests=len(self.heads), method="t"))
        if not needed:
            return []
        fewest, most = min(needed), max(needed)
        size = str(most) if fewest == most else f"{fewest} to {most}"
        effects = "1 effect is" if len(needed) == 1 else f"{len(needed)} effects are"
        return [
            f"{effects} large enough on average but not established in both directions; about {size} problems would tell "
            f"with 80 % power ({max(0, most - len(self.total))} more than here at most)."
        ]

    def printed(self) -> pd.DataFrame:
        """The named heads and some more, with what the verdicts rest on."""
        columns = ["label", "paper_label", "kind", "specific", "knockout_effect", "knockout_effect_ci_low"]
        columns += ["knockout_effect_ci_high", "knockout_fraction", "mediated_fraction", "p_reader", "p_mediator"]
        shorter = {f"knockout_effect_ci_{end}": end for end in ("low", "high")} | {"knockout_effect": "knockout"}
        return self.summary().head(max(8, len(self.found)))[columns].rename(columns=shorter)

    def shown(self) -> Shown:
        """Each head's share of the effect as a map, the named ones outlined, and the tested heads as a table."""
        columns = ["label", "paper_label", "kind", "specific", "knockout_fraction", "mediated_fraction", "p_reader"]
        columns += ["p_mediator", "effect_fraction", "ci_low", "knockout_effect", "mediated_removed_effect", "n"]
        table = self.summary()
        marked = (table["kind"] != "neither").tolist()
        caption = "Tested heads: named ones first, then by size. Effects have the sign of the insertion's own effect."
        return Shown(
            (ShownTable(table, caption, columns),),
            head_map(table, ["effect_fraction", "effect"], columns, marked=marked, means=NAMED_MARK),
        )

    def __repr__(self) -> str:
        found = "\n".join([*self.sentences(), as_text(self.printed())])
        if "matched_mass" not in self.controls:
            return found
        short = ["label", "effect", *(f"{name}_effect" for name in CONTROLS), "matched_mass_n", "p_specific"]
        beside = self.control_table()[short].rename(columns={f"{name}_effect": name for name in CONTROLS})
        return f"{found}\nThe named heads' effect beside the same under each control ({self.unit}):\n{as_text(beside)}"


@dataclass(frozen=True, eq=False, repr=False)
class Enrichment(Result):
    """Whether given heads rank higher than random ones of the same layer: mean rank, its null mean, one-sided p."""

    heads: tuple[Head, ...]
    mean_rank: float
    expected_rank: float
    p: float
    ranks: dict[str, int]

    def summary(self) -> pd.DataFrame:
        """One row: the mean rank, that of random heads, p, and of how many heads."""
        return pd.DataFrame(
            {
                "mean_rank": [self.mean_rank],
                "expected_rank": [self.expected_rank],
                "p": [self.p],
                "n_heads": [len(self.heads)],
            }
        )

    def to_frame(self) -> pd.DataFrame:
        """One row per head: its rank in its layer, 1 for the largest."""
        return pd.DataFrame(head_columns(self.heads) | {"rank": [self.ranks[str(head)] for head in self.heads]})

    def sentences(self) -> list[str]:
        """The mean rank against random heads, and each head's."""
        ranks = ", ".join(f"{head} {rank}" for head, rank in self.ranks.items())
        return [
            f"Mean rank {self.mean_rank:.1f} (random heads: {self.expected_rank:.1f}), p = {self.p:.4f}.",
            f"Ranks: {ranks}.",
        ]

    def printed(self) -> pd.DataFrame:
        """Nothing more: the sentences have every rank."""
        return pd.DataFrame()

    def shown(self) -> Shown:
        """Every head's rank."""
        columns = ["label", "paper_label", "rank"]
        return Shown((ShownTable(self.to_frame(), "Rank of each head in its layer; 1: the largest effect.", columns),))


def enrichment(found: LocatedHeads, heads: Iterable[Head], *, n_draws: int = 10_000, seed: int = 0) -> Enrichment:
    """Are these heads (the paper's, say) ranked higher by |knockout effect| than random heads of the same layers?

    Rank 1 is the largest of its layer; the null draws as many heads from each layer. A p-value near 1 says that they are
    not special here, which is a result too. Source: methods §8, E9.
    """
    chosen = tuple(heads)
    missing = [str(head) for head in chosen if head not in found.heads]
    if missing or not chosen:
        raise ValueError(f"these heads were not tested: {', '.join(missing) or '(none given)'}")
    twice = {str(head) for head in chosen if chosen.count(head) > 1}
    if twice:
        raise ValueError(f"{min(twice)} is given twice")
    size = np.abs(found.values["knockout"].mean(0))
    rank: dict[Head, int] = {}
    layers: dict[int, list[Head]] = {}
    for head in found.heads:
        layers.setdefault(head.layer, []).append(head)
    for members in layers.values():
        ordered = sorted(members, key=lambda head: -size[found.heads.index(head)])
        rank |= {head: at + 1 for at, head in enumerate(ordered)}
    observed = float(np.mean([rank[head] for head in chosen]))
    generator = np.random.default_rng(seed)
    counts = {layer: sum(head.layer == layer for head in chosen) for layer in layers}
    draws = np.zeros(n_draws)
    for layer, count in counts.items():
        if count:
            order = generator.random((n_draws, len(layers[layer]))).argsort(1)[:, :count]
            draws += (order + 1).sum(1)
    draws /= len(chosen)
    p = (1 + int((draws <= observed + 1e-12).sum())) / (n_draws + 1)
    return Enrichment(chosen, observed, float(draws.mean()), p, {str(head): rank[head] for head in chosen})
