"""Whether given heads, the paper's say, rank higher than others of their layers."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..heads import Head
from ..running.results import Result, Shown, ShownTable, head_columns
from .located import LocatedHeads


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
