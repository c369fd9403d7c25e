"""What locating heads gives: the heads named, what the claim rests on, and what could not be told."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .heads import Head
from .patch_scores import PatchScores, interval_of
from .statistics import Interval, sample_size

MEASURES = ("knockout", "edge_noise", "mediated_removed", "mediated_added")
KINDS = ("reader", "mediator", "reader+mediator", "neither")
CANNOT_SAY = (
    "What this cannot say: a teacher-forced log-probability is not generated accuracy, and the content contrast does not "
    "see heads that only respond to the shift of positions (contrast='shift' in patch_heads is there for them)."
)


def established(total: np.ndarray, *, resolution: float, seed: int = 0) -> bool:
    """Whether the insertion's effect `[problem]` is there: larger than rounding, and its 95 % interval does not hold 0."""
    interval = interval_of(total, 0.95, seed)
    return abs(float(interval.estimate)) > resolution and float(interval.low) * float(interval.high) > 0


@dataclass(frozen=True, eq=False)
class LocatedHeads:
    """The heads that carry the insertion's content effect, with everything that the claim rests on.

    `values[measure]` `[problem, head]` for the four measures (sign of the insertion's effect), `total` `[problem]`,
    `heads` the family that was tested; arrays `[head]` in its order: `readers`, `mediators` (truth values), `p_reader`,
    `p_mediator` (the larger of the two corrected p-values), `specific` (1, 0, NaN = unknown), `controls` `[problem, named]`;
    `patches` is the exact z sweep (denoising) of the same heads and problems.
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
        return interval_of(self.total, 0.95, self.seed)

    def summary(self) -> Any:
        """One row per tested head, the named ones first, then by size.

        The columns of `PatchScores.summary()` for the z sweep, then kind, specific, corrected p-values, the four measures
        with intervals (in the sign of the insertion's own effect), and their fractions of the total effect (NaN where
        that is not established).
        """
        import pandas as pd

        total = float(self.total_interval.estimate) if self.established else np.nan
        columns: dict[str, Any] = dict(self.patches.summary()) | {
            "kind": self._kinds(),
            "specific": pd.array([None if np.isnan(s) else bool(s) for s in self.specific], dtype="boolean"),
            "p_reader": self.p_reader,
            "p_mediator": self.p_mediator,
            "tested": self.tested,
        }
        for measure in MEASURES:
            made = interval_of(self.values[measure], 0.95, self.seed)
            name = f"{measure}_effect"
            columns |= {name: made.estimate, f"{name}_ci_low": made.low, f"{name}_ci_high": made.high}
        columns["knockout_fraction"] = columns["knockout_effect"] / total
        columns["mediated_fraction"] = columns["mediated_removed_effect"] / total
        table = pd.DataFrame(columns)
        size = table[["knockout_effect", "mediated_removed_effect"]].abs().max(axis=1)
        order = pd.DataFrame({"named": table["kind"] == "neither", "size": -size}).sort_values(
            ["named", "size"], kind="stable"
        )
        return table.loc[order.index].reset_index(drop=True)

    def to_frame(self) -> Any:
        """One tidy row per problem and head, with the four measures."""
        import pandas as pd

        n = len(self.heads)
        table = {
            "problem": np.repeat(self.problem_ids, n),
            "label": [str(head) for head in self.heads] * len(self.total),
        }
        table |= {measure: self.values[measure].ravel() for measure in MEASURES}
        return pd.DataFrame(table)

    def describe(self) -> str:
        """What was found, what could not be told, how many problems more would be needed, what this cannot say."""
        s, total = self.settings, self.total_interval
        low, high = float(total.low), float(total.high)
        words = [
            f"{s['insertion']}, {len(self.problem_ids)} problems, {len(self.heads)} heads tested ({s['swept']}), outcome "
            f"{s['outcome']}. Total content effect {float(total.estimate):+.4f} {self.unit}, 95 % interval "
            f"[{low:+.4f}, {high:+.4f}]."
        ]
        if abs(float(total.estimate)) <= s["resolution"]:
            words.append(
                f"That is no change at all (rounding reaches {s['resolution']:g}): the insertion's content does nothing to "
                "this outcome, so no head is named."
            )
            return " ".join([*words, CANNOT_SAY])
        if not self.established:
            words.append(
                "That interval holds 0: the insertion's content has no established effect here, so no head is named."
            )
            return " ".join([*words, CANNOT_SAY])
        smallest = s["smallest_effect"] * abs(float(total.estimate))
        found = self.found
        if found:
            named = [f"{head} ({head.paper_label} in the paper's counting): {kind}" for head, kind in found.items()]
            words.append(f"Named: {'; '.join(named)}.")
            words.append(self._specific_words())
        else:
            words.append("No head reaches significance and the smallest effect of interest in both directions.")
        words.append(
            f"Smallest effect of interest: {smallest:.4f} {self.unit} ({s['smallest_effect']:.0%} of the total)."
        )
        words.append(self._power_words(smallest))
        return " ".join([word for word in words if word] + [CANNOT_SAY])

    def _specific_words(self) -> str:
        if not self.controls:
            return "Controls were not run, so whether they are specific is unknown."
        flags = dict(zip(self.heads, self.specific, strict=True))
        specific = [str(head) for head in self.found if flags[head] == 1]
        words = f"Specific (more than random sentences of the same length): {', '.join(specific) or 'none'}."
        unreachable = int(np.isnan(self.controls["matched_mass"]).any(0).sum())
        if unreachable:
            words += (
                f" The matched-mass knockout is undefined on some problems for {unreachable} of them (not enough other "
                "attention to take)."
            )
        return words

    def _power_words(self, smallest: float) -> str:
        """For heads that are large enough but not significant: the problems that 80 % power would take."""
        needed = []
        for i, kind in enumerate(self._kinds()):
            for measure in ("knockout", "mediated_removed"):
                values = self.values[measure][:, i]
                spread = values.std(ddof=1)
                if kind == "neither" and spread > 0 and abs(values.mean()) >= smallest:
                    needed.append(sample_size(float(abs(values.mean()) / spread), n_tests=len(self.heads), method="t"))
        if not needed:
            return ""
        fewest, most = min(needed), max(needed)
        size = str(most) if fewest == most else f"{fewest} to {most}"
        effects = "1 effect is" if len(needed) == 1 else f"{len(needed)} effects are"
        return (
            f"{effects} large enough on average but not established in both directions; about {size} problems would tell "
            "with 80 % power."
        )

    def __repr__(self) -> str:
        columns = [
            "label",
            "paper_label",
            "kind",
            "specific",
            "knockout_fraction",
            "mediated_fraction",
            "p_reader",
            "p_mediator",
        ]
        table = self.summary().head(max(8, len(self.found)))[columns]
        return f"{self.describe()}\n{table.to_string(index=False, float_format=lambda x: f'{x:.4f}')}"


@dataclass(frozen=True)
class Enrichment:
    """Whether given heads rank higher than random ones of the same layer: mean rank, its null mean, one-sided p."""

    heads: tuple[Head, ...]
    mean_rank: float
    expected_rank: float
    p: float
    ranks: dict[str, int]

    def __repr__(self) -> str:
        ranks = ", ".join(f"{head} {rank}" for head, rank in self.ranks.items())
        return (
            f"mean rank {self.mean_rank:.1f} (random heads: {self.expected_rank:.1f}), p = {self.p:.4f}; ranks: {ranks}"
        )


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
