"""Answers beside heads: does what a head does on a problem go with a changed answer to that problem?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..arguments import count_of
from ..heads import Head
from ..locating.located import LocatedHeads
from ..patching.attribution import HeadAttribution
from ..patching.scores import PatchScores
from ..running.results import Result, Shown, ShownTable, head_columns, of_heads
from ..scores.scored import HeadScores
from ..statistics import TwoGroups, by_group, two_groups

CHANGES = ("any", "lost", "gained")
_WORDS = {1.0: "gained", -1.0: "lost", 0.0: "same"}


@dataclass(frozen=True, eq=False, repr=False)
class LinkedAccuracy(Result):
    """Scores of heads on the problems whose answers were graded under a reference and other treatments.

    `scores[metric]` is `[problem, head]`; `right[treatment]` `[problem]` is 1 where most samples are right, 0 where not, NaN
    where nothing was run, with the reference first. `left_out` problems were scored or graded only. Infinite scores have no
    mean: they are kept, counted in the sentences, and stay out of the comparison of means.
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
        """The treatment that the others are compared with."""
        return next(iter(self.right))

    @property
    def treatments(self) -> tuple[str, ...]:
        """The treatments that are compared with the reference."""
        return tuple(self.right)[1:]

    def change(self, treatment: str) -> np.ndarray:
        """1 gained, -1 lost, 0 the same, NaN not run, `[problem]`."""
        if treatment not in self.treatments:
            raise ValueError(f"no treatment {treatment!r} here; there are {', '.join(map(repr, self.treatments))}")
        return self.right[treatment] - self.right[self.reference]

    def to_frame(self) -> pd.DataFrame:
        """One tidy row per problem, treatment, head and metric: score, right under both treatments, and change."""
        n, per_head = len(self.problem_ids), len(self.heads)
        parts = []
        for treatment in self.treatments:
            words = [_WORDS.get(float(value), "not run") for value in self.change(treatment)]
            for metric, values in self.scores.items():
                columns = {
                    "problem": np.repeat(self.problem_ids, per_head),
                    "treatment": treatment,
                    **head_columns(self.heads, times=n),
                    "metric": metric,
                    "score": values.ravel(),
                    "right_reference": np.repeat(self.right[self.reference], per_head),
                    "right": np.repeat(self.right[treatment], per_head),
                    "change": np.repeat(words, per_head),
                }
                parts.append(pd.DataFrame(columns))
        return pd.concat(parts, ignore_index=True)

    def two_groups(self, treatment: str, *, change: str = "any") -> TwoGroups:
        """The scores `[metric, head]` of problems that changed against those that could have and did not.

        "any": changed against unchanged; "lost": lost against still right; "gained": gained against still wrong. Corrected
        over all heads and metrics.
        """
        if change not in CHANGES:
            raise ValueError(f"change must be one of {', '.join(map(repr, CHANGES))}, got {change!r}")
        moved, before = self.change(treatment), self.right[self.reference]
        asked = ~np.isnan(moved)
        if change != "any":
            asked &= before == (1.0 if change == "lost" else 0.0)
        values = np.stack([self.scores[metric] for metric in self.scores], axis=1)[asked]
        values = np.where(np.isinf(values), np.nan, values)
        if len(values) < 2:
            values = np.full((2, *values.shape[1:]), np.nan)
            return two_groups(values, np.array([True, False]), seed=self.seed)
        return two_groups(values, moved[asked] != 0, seed=self.seed)

    def summary(self, *, change: str = "any") -> pd.DataFrame:
        """One row per treatment, metric and head, the smallest p first: `mean_changed`, `mean_same`, their difference with
        a 95 % interval (uncorrected), `n_changed`, `n_same`, `p`, and `p_corrected` over the treatment's heads and metrics.

        NaN where fewer than two problems changed, or fewer than two did not.
        """
        parts = []
        for treatment in self.treatments:
            found = self.two_groups(treatment, change=change)
            by_metric = [
                pd.DataFrame(
                    {
                        "treatment": treatment,
                        "metric": metric,
                        "change": change,
                        **head_columns(self.heads),
                        "mean_changed": found.mean_in[at],
                        "mean_same": found.mean_out[at],
                        "difference": found.mean_in[at] - found.mean_out[at],
                        "low": found.low[at],
                        "high": found.high[at],
                        "n_changed": found.n_in[at],
                        "n_same": found.n_out[at],
                        "p": found.p[at],
                        "p_corrected": found.p_corrected[at],
                    }
                )
                for at, metric in enumerate(self.scores)
            ]
            parts.append(pd.concat(by_metric).sort_values(["p_corrected", "p"], kind="stable"))
        return pd.concat(parts, ignore_index=True)

    def sentences(self) -> list[str]:
        """What stands beside what, and how many answers changed: an association, not a cause."""
        found = [
            f"{', '.join(self.scores)} of {count_of(len(self.heads), 'head')} beside the answers to "
            f"{count_of(len(self.problem_ids), 'problem')} "
            f"({self.grader} grades, reference {self.reference!r})."
        ]
        for treatment in self.treatments:
            moved = self.change(treatment)
            few = " (too few to compare heads)" if int((np.abs(moved) > 0).sum()) < 2 else ""
            gained, lost = int((moved > 0).sum()), int((moved < 0).sum())
            found.append(f"{treatment!r}: {gained} gained, {lost} lost{few}.")
        if self.left_out:
            found.append(f"Left out, as scored or graded only: {count_of(self.left_out, 'problem')}.")
        infinite = {metric: int(np.isinf(values).sum()) for metric, values in self.scores.items()}
        found += [
            f"{n} infinite values of {metric} have no mean and stay out of it." for metric, n in infinite.items() if n
        ]
        return [*found, "A head that goes with changed answers need not cause them: patch it."]

    def printed(self) -> pd.DataFrame:
        """The five heads of each treatment that go most with changed answers."""
        columns = [
            "treatment",
            "metric",
            "label",
            "mean_changed",
            "mean_same",
            "difference",
            "low",
            "high",
            "p_corrected",
        ]
        return self.summary().dropna(subset="p").groupby("treatment", sort=False).head(5)[columns]

    def shown(self) -> Shown:
        """Every head beside the changed answers, as a table."""
        caption = "Scores of heads on problems whose answers changed and on the others, the smallest p first."
        table = self.summary()
        return Shown((ShownTable(table, caption, [name for name in table if name not in ("layer", "head")]),))


def link(
    scores: Any,
    *,
    shares: dict[str, np.ndarray],
    problem_ids: tuple[str, ...],
    groups: tuple[str, ...] = (),
    metrics: Sequence[str] | None,
    grader: str,
    seed: int,
) -> LinkedAccuracy:
    """Join shares of right samples `[problem]` per treatment, the reference first, with the scores of heads.

    Variants of one problem are joined into one, which bears the name of their group.
    """
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
    variants = tuple(groups[at] for at in graded) if groups else ()
    return LinkedAccuracy(
        problem_ids=tuple(dict.fromkeys(variants or common)),
        heads=heads,
        scores={metric: by_group(array[scored], variants) for metric, array in values.items()},
        right={name: _mostly(by_group(share[graded], variants, mean=True)) for name, share in shares.items()},
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
    heads, found, usual = _scored(scores)
    chosen = tuple(usual if metrics is None else metrics)
    unknown = [metric for metric in chosen if metric not in found]
    if unknown or not chosen:
        raise ValueError(f"no metric {', '.join(map(repr, unknown)) or 'named'}; there are {', '.join(found)}")
    values = {}
    for metric in chosen:
        array = found[metric] if found[metric].ndim == 2 else of_heads(found[metric], heads)
        values[metric] = array
    return tuple(scores.problem_ids), heads, values


def _scored(scores: Any) -> tuple[tuple[Head, ...], dict[str, np.ndarray], tuple[str, ...]]:
    """The heads that were scored, `[problem, head]` or `[problem, layer, head]` by metric, and the metrics usually taken."""
    match scores:
        case HeadScores():
            found = {metric: scores.of(metric) for metric in scores.metrics}
            return scores.heads, found, ("span_mass",) if "span_mass" in found else tuple(found)
        case PatchScores():
            s = scores.settings
            name = " ".join(str(s[key]) for key in ("contrast", "direction", "edit") if key in s)
            found = {f"{name} effect".strip(): scores.effect}
            return scores.heads, found, tuple(found)
        case HeadAttribution():
            method = str(scores.settings.get("method", "attribution"))
            every = {method: scores.scores, "knockout": scores.knockout, "edge_noise": scores.edge_noise}
            _, n_layers, n_heads = scores.scores.shape
            heads = tuple(Head(layer, head) for layer in range(n_layers) for head in range(n_heads))
            return heads, {name: array for name, array in every.items() if array is not None}, (method,)
        case LocatedHeads():
            return scores.heads, dict(scores.values), tuple(scores.values)
    raise TypeError(
        f"linked takes HeadScores, PatchScores, HeadAttribution or LocatedHeads (results of score_heads, patch_heads, "
        f"attribute_heads, locate_heads), got {type(scores).__name__}"
    )
