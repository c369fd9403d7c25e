"""Answers beside heads: does what a head does on a problem go with a changed answer to that problem?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..heads import Head
from ..running.results import Result
from ..statistics import TwoGroups, max_t_two_groups

CHANGES = ("any", "lost", "gained")
_WORDS = {1.0: "gained", -1.0: "lost", 0.0: "same"}


@dataclass(frozen=True, eq=False, repr=False)
class LinkedAccuracy(Result):
    """Scores of heads on the problems whose answers were graded under a reference and other conditions.

    `scores[metric]` is `[problem, head]`; `right[condition]` `[problem]` is 1 where most samples are right, 0 where not, NaN
    where nothing was run, with the reference first. `left_out` problems were scored or graded only.
    """

    problem_ids: tuple[str, ...]
    heads: tuple[Head, ...]
    scores: dict[str, np.ndarray]
    right: dict[str, np.ndarray]
    grader: str
    left_out: int
    seed: int = 0

    @property
    def reference(self) -> str:
        """The condition that the others are compared with."""
        return next(iter(self.right))

    @property
    def conditions(self) -> tuple[str, ...]:
        """The conditions that are compared with the reference."""
        return tuple(self.right)[1:]

    def change(self, condition: str) -> np.ndarray:
        """1 gained, -1 lost, 0 the same, NaN not run, `[problem]`."""
        if condition not in self.conditions:
            raise ValueError(f"no condition {condition!r} here; there are {', '.join(map(repr, self.conditions))}")
        return self.right[condition] - self.right[self.reference]

    def to_frame(self) -> Any:
        """One tidy row per problem, condition, head and metric: score, right under both conditions, and change."""
        import pandas as pd

        n, per_head = len(self.problem_ids), len(self.heads)
        parts = []
        for condition in self.conditions:
            words = [_WORDS.get(float(value), "not run") for value in self.change(condition)]
            for metric, values in self.scores.items():
                columns = {
                    "problem": np.repeat(self.problem_ids, per_head),
                    "condition": condition,
                    "layer": [head.layer for head in self.heads] * n,
                    "head": [head.head for head in self.heads] * n,
                    "label": [str(head) for head in self.heads] * n,
                    "paper_label": [head.paper_label for head in self.heads] * n,
                    "metric": metric,
                    "score": values.ravel(),
                    "right_reference": np.repeat(self.right[self.reference], per_head),
                    "right": np.repeat(self.right[condition], per_head),
                    "change": np.repeat(words, per_head),
                }
                parts.append(pd.DataFrame(columns))
        return pd.concat(parts, ignore_index=True)

    def groups(self, condition: str, *, change: str = "any") -> TwoGroups:
        """The scores `[metric, head]` of problems that changed against those that could have and did not.

        "any": changed against unchanged; "lost": lost against still right; "gained": gained against still wrong. Corrected
        over all heads and metrics.
        """
        if change not in CHANGES:
            raise ValueError(f"change must be one of {', '.join(map(repr, CHANGES))}, got {change!r}")
        moved, before = self.change(condition), self.right[self.reference]
        asked = ~np.isnan(moved)
        if change != "any":
            asked &= before == (1.0 if change == "lost" else 0.0)
        values = np.stack([self.scores[metric] for metric in self.scores], axis=1)[asked]
        if len(values) < 2:
            values = np.full((2, *values.shape[1:]), np.nan)
            return max_t_two_groups(values, np.array([True, False]), seed=self.seed)
        return max_t_two_groups(values, moved[asked] != 0, seed=self.seed)

    def summary(self, *, change: str = "any") -> Any:
        """One row per condition, metric and head, the smallest p first: `mean_changed`, `mean_same`, their difference with
        a 95 % interval (uncorrected), `n_changed`, `n_same`, `p`, and `p_corrected` over the condition's heads and metrics.

        NaN where fewer than two problems changed, or fewer than two did not.
        """
        import pandas as pd

        parts = []
        for condition in self.conditions:
            found = self.groups(condition, change=change)
            for at, metric in enumerate(self.scores):
                columns = {
                    "condition": condition,
                    "metric": metric,
                    "change": change,
                    "layer": [head.layer for head in self.heads],
                    "head": [head.head for head in self.heads],
                    "label": [str(head) for head in self.heads],
                    "paper_label": [head.paper_label for head in self.heads],
                    "mean_changed": found.mean_in[at],
                    "mean_same": found.mean_out[at],
                    "difference": found.difference[at],
                    "low": found.low[at],
                    "high": found.high[at],
                    "n_changed": found.n_in[at],
                    "n_same": found.n_out[at],
                    "p": found.p[at],
                    "p_corrected": found.p_corrected[at],
                }
                parts.append(pd.DataFrame(columns))
        table = pd.concat(parts, ignore_index=True)
        order = {condition: at for at, condition in enumerate(self.conditions)}
        return (
            table.assign(_order=table["condition"].map(order))
            .sort_values(["_order", "p_corrected", "p"], kind="stable")
            .drop(columns="_order")
            .reset_index(drop=True)
        )

    def sentences(self) -> list[str]:
        """What stands beside what, and how many answers changed: an association, not a cause."""
        found = [
            f"{', '.join(self.scores)} of {len(self.heads)} heads beside the answers to {len(self.problem_ids)} problems "
            f"({self.grader} grades, reference {self.reference!r})."
        ]
        for condition in self.conditions:
            moved = self.change(condition)
            few = " (too few to compare heads)" if (np.abs(moved) > 0).sum() < 2 else ""
            found.append(f"{condition!r}: {int((moved > 0).sum())} gained, {int((moved < 0).sum())} lost{few}.")
        if self.left_out:
            found.append(f"{self.left_out} problems were scored or graded only, and are left out.")
        return [*found, "A head that goes with changed answers need not cause them: patch it."]

    def printed(self) -> Any:
        """The five heads of each condition with the smallest p."""
        columns = [
            "condition",
            "metric",
            "label",
            "mean_changed",
            "mean_same",
            "difference",
            "low",
            "high",
            "p_corrected",
        ]
        return self.summary().dropna(subset="p").groupby("condition", sort=False).head(5)[columns]


def link(
    scores: Any,
    *,
    shares: dict[str, np.ndarray],
    problem_ids: tuple[str, ...],
    metrics: Sequence[str] | None,
    grader: str,
    seed: int,
) -> LinkedAccuracy:
    """Join shares of right samples `[problem]` per condition, the reference first, with the scores of heads."""
    scored_ids, heads, values = per_head(scores, metrics)
    place = {problem: at for at, problem in enumerate(scored_ids)}
    common = [problem for problem in problem_ids if problem in place]
    if not common:
        raise ValueError(
            f"the scores and the answers share no problem: scored are {', '.join(scored_ids[:3])} ..., graded are "
            f"{', '.join(problem_ids[:3])} ...; score the problems that were answered"
        )
    scored = [place[problem] for problem in common]
    graded = [at for at, problem in enumerate(problem_ids) if problem in place]
    return LinkedAccuracy(
        problem_ids=tuple(common),
        heads=heads,
        scores={metric: array[scored] for metric, array in values.items()},
        right={name: _mostly(share[graded]) for name, share in shares.items()},
        grader=grader,
        left_out=len(set(problem_ids) ^ set(scored_ids)),
        seed=seed,
    )


def _mostly(share: np.ndarray) -> np.ndarray:
    """1 where more than half of the samples are right, else 0; NaN where none was run."""
    return np.where(np.isnan(share), np.nan, (share > 0.5).astype(float))


def per_head(
    scores: Any, metrics: Sequence[str] | None = None
) -> tuple[tuple[str, ...], tuple[Head, ...], dict[str, np.ndarray]]:
    """Problem ids, heads, and `[problem, head]` per metric, of any of the toolkit's results that score heads."""
    kind = type(scores).__name__
    if kind == "HeadScores":
        found = {metric: scores.of(metric) for metric in scores.metrics}
        usual = ("span_mass",) if "span_mass" in found else tuple(found)
    elif kind == "PatchScores":
        s = scores.settings
        name = " ".join(str(s[key]) for key in ("contrast", "direction", "edit") if key in s)
        found = {f"{name} effect".strip(): scores.effect}
        usual = tuple(found)
    elif kind == "HeadAttribution":
        method = str(scores.settings.get("method", "attribution"))
        found = {method: scores.scores, "knockout": scores.knockout, "edge_noise": scores.edge_noise}
        found = {name: array for name, array in found.items() if array is not None}
        usual = (method,)
    elif kind == "LocatedHeads":
        found, usual = dict(scores.values), tuple(scores.values)
    else:
        raise TypeError(
            f"linked takes HeadScores, PatchScores, HeadAttribution or LocatedHeads (results of score_heads, patch_heads, "
            f"attribute_heads, locate_heads), got {kind}"
        )
    chosen = tuple(usual if metrics is None else metrics)
    unknown = [metric for metric in chosen if metric not in found]
    if unknown or not chosen:
        raise ValueError(f"no metric {', '.join(map(repr, unknown)) or 'named'}; there are {', '.join(found)}")
    heads = _heads_of(scores, found[chosen[0]])
    layers, numbers = [head.layer for head in heads], [head.head for head in heads]
    values = {}
    for metric in chosen:
        array = found[metric] if found[metric].ndim == 2 else found[metric][:, layers, numbers]
        values[metric] = np.where(np.isfinite(array), array, np.nan)
    return tuple(scores.problem_ids), heads, values


def _heads_of(scores: Any, array: np.ndarray) -> tuple[Head, ...]:
    """The heads that were scored: those named, or all of `[problem, layer, head]`."""
    named = getattr(scores, "heads", None)
    if named is not None:
        return tuple(named)
    return tuple(Head(layer, head) for layer in range(array.shape[1]) for head in range(array.shape[2]))
