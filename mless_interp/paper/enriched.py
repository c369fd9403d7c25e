"""Are some heads, the paper's say, ranked higher by their effect than random heads of the same layers?"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from ..given import checked
from ..heads import Head, as_heads
from ..locating.located import LocatedHeads
from ..patching.scores import PatchScores
from ..running.results import Result, Shown, ShownTable, head_columns
from ..statistics import CONFIDENCE, rank_enrichment


@dataclass(frozen=True, eq=False, repr=False)
class Enrichment(Result):
    """Heads' ranks in their layers by |mean effect| (1: the largest; ties share the middle rank), against random heads.

    `ranks` by label; `limits` by label: the rank's interval from a bootstrap over problems (none of a single problem).
    """

    heads: tuple[Head, ...]
    mean_rank: float
    expected_rank: float
    p: float
    ranks: dict[str, float]
    limits: dict[str, tuple[float, float]] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

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
        """One row per head: its rank in its layer, 1 for the largest, with its limits."""
        names = [str(head) for head in self.heads]
        limits = [self.limits.get(name, (np.nan, np.nan)) for name in names]
        return pd.DataFrame(
            head_columns(self.heads)
            | {
                "rank": [self.ranks[name] for name in names],
                "rank_ci_low": [low for low, _ in limits],
                "rank_ci_high": [high for _, high in limits],
            }
        )

    def sentences(self) -> list[str]:
        """The mean rank against random heads, and each head's with its interval."""
        ranks = ", ".join(f"{head} {_rank_words(rank, self.limits.get(head))}" for head, rank in self.ranks.items())
        return [
            f"Mean rank {self.mean_rank:.1f} (random heads: {self.expected_rank:.1f}), p = {self.p:.4f}.",
            f"Ranks: {ranks}.",
        ]

    def printed(self) -> pd.DataFrame:
        """Nothing more: the sentences have every rank."""
        return pd.DataFrame()

    def shown(self) -> Shown:
        """Every head's rank."""
        columns = ["label", "paper_label", "rank", "rank_ci_low", "rank_ci_high"]
        return Shown((ShownTable(self.to_frame(), "Rank of each head in its layer; 1: the largest effect.", columns),))


@checked
def enrichment(
    found: LocatedHeads | PatchScores,
    heads: Iterable[Head | str],
    *,
    n_draws: int = 10_000,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> Enrichment:
    """Are these heads ranked higher by their effect than random heads of the same layers?

    Of `LocatedHeads` by |mean knockout effect|, of `PatchScores` by |mean effect|. Rank 1 is the largest of its layer, equal
    heads share the middle rank; the null draws as many heads from each layer. A p-value near 1 says that they are not
    special here, which is a result too. The heads must be named without these problems (as the paper's are). Each rank has
    a bootstrap interval over problems: a wide one says that the order of the heads is not known.

    `ValueError` for heads that were not tested, or given twice. Source: methods §8, E9.
    """
    chosen, family = as_heads(heads), list(found.heads)
    missing = [str(head) for head in chosen if head not in family]
    if missing or not chosen:
        raise ValueError(f"these heads were not tested: {', '.join(missing) or '(none given)'}")
    twice = {str(head) for head in chosen if chosen.count(head) > 1}
    if twice:
        raise ValueError(f"{min(twice)} is given twice")
    effects = (
        found.per_head
        if isinstance(found, PatchScores)
        else found.values["knockout" if "knockout" in found.values else "z_removed"]
    )
    made = rank_enrichment(
        effects,
        np.array([family.index(head) for head in chosen]),
        strata=np.array([head.layer for head in family]),
        confidence=confidence,
        n_draws=n_draws,
        seed=seed,
    )
    names = [str(head) for head in chosen]
    limits = {name: (low, high) for name, low, high in zip(names, made.low.tolist(), made.high.tolist(), strict=True)}
    return Enrichment(
        heads=chosen,
        mean_rank=made.mean_rank,
        expected_rank=made.expected,
        p=made.p,
        ranks=dict(zip(names, made.rank.tolist(), strict=True)),
        limits=limits,
        settings={"n_problems": len(found.problem_ids), "confidence": confidence},
    )


def _rank_words(rank: float, limits: tuple[float, float] | None) -> str:
    if limits is None or np.isnan(limits).any():
        return f"{rank:g}"
    return f"{rank:g} [{limits[0]:g}, {limits[1]:g}]"
