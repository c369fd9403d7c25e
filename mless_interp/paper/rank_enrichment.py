"""`enrichment`: are some heads, the paper's say, ranked higher by their effect than random heads of the same layers?"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from ..circuits.located import LocatedHeads
from ..core.arguments import Arguments, checked, count_of
from ..core.heads import Head, as_heads
from ..patching.sweep import PatchScores
from ..runtime.base_result import Result, counted, head_columns
from ..statistics import CONFIDENCE, derive_generator

N_RESAMPLES = 2_000


@dataclass(frozen=True, eq=False, repr=False)
class Enrichment(Result):
    """Hold heads' ranks in their layers by |mean effect| (1: the largest; ties share the middle rank), against random heads.
    `ranks` by label; `limits` by label: the rank's interval from a bootstrap over problems (none of a single problem)."""

    heads: tuple[Head, ...]
    mean_rank: float
    expected_rank: float
    p: float
    ranks: dict[str, float]
    limits: dict[str, tuple[float, float]]

    caption = "Rank of each head in its layer; 1: the largest effect."

    def table(self) -> pd.DataFrame:
        """Return one row per head: its rank in its layer, with an interval over problems."""
        low, high = np.array([self.limits[str(head)] for head in self.heads]).T
        ranks = {"rank": [self.ranks[str(head)] for head in self.heads]}
        return pd.DataFrame(head_columns(self.heads) | ranks | {"rank_ci_low": low, "rank_ci_high": high})

    to_frame = table

    def headline(self) -> str:
        of, random = count_of(len(self.heads), "head"), f"random heads: {self.expected_rank:.1f}"
        over = f", {counted(self.settings['n_problems'], self.groups)}" if "n_problems" in self.settings else ""
        return f"{of} rank {self.mean_rank:.1f} on average ({random}), p = {self.p:.2g}{over}."

    def details(self) -> list[str]:
        return ["Rank 1 is the largest effect of its layer; intervals are of a bootstrap over problems."]


@checked
def enrichment(
    found: LocatedHeads | PatchScores,
    heads: Iterable[Head | str],
    *,
    n_draws: int = 10_000,
    seed: int = 0,
) -> Enrichment:
    """Test whether these heads are ranked higher by their effect than random heads of the same layers.

    Of `LocatedHeads` by |mean knockout effect|, of `PatchScores` by |mean effect|. Rank 1 is the largest of its layer, equal
    heads share the middle rank; the null draws as many heads from each layer: `p` = (1 + draws whose mean rank is as small)
    / (1 + draws). The heads must be named without these problems (as the paper's are). Each rank has a bootstrap interval
    over problems.

    `ValueError` for heads that were not tested, or given twice. Source: methods §9 (ranking).
    """
    chosen, family = as_heads(heads), list(found.heads)
    missing = [str(head) for head in chosen if head not in family]
    if missing or not chosen:
        raise ValueError(f"these heads were not tested: {', '.join(missing) or '(none given)'}")
    if twice := {str(head) for head in chosen if chosen.count(head) > 1}:
        raise ValueError(f"{min(twice)} is given twice")
    if isinstance(found, PatchScores):
        effects = found.by_group(found.per_head)
    else:
        effects = found.by_group(found.values["knockout" if "knockout" in found.values else "z_removed"])
    n, generator = len(effects), derive_generator(seed, "rank enrichment", *map(str, chosen))
    weights = generator.multinomial(n, np.full(n, 1 / n), N_RESAMPLES) / n
    ranks, limits, drawn, expected = {}, {}, np.zeros(n_draws), 0.0
    for layer in {head.layer for head in chosen}:
        members = [head for head in family if head.layer == layer]
        of_layer = effects[:, [family.index(head) for head in members]]
        if np.isnan(of_layer).any():
            raise ValueError(f"heads of layer {layer} are undefined (NaN) on some problems: leave out those problems")
        rank, resampled = (rankdata(-np.abs(means), axis=-1) for means in (of_layer.mean(0), weights @ of_layer))
        low = np.quantile(resampled, (1 - CONFIDENCE) / 2, axis=0, method="lower")
        high = np.quantile(resampled, (1 + CONFIDENCE) / 2, axis=0, method="higher")
        here = {head: place for place, head in enumerate(members) if head in chosen}
        for head, at in here.items():
            ranks[str(head)] = float(rank[at])
            limits[str(head)] = (float(low[at]), float(high[at])) if n > 1 else (np.nan, np.nan)
        drawn += generator.permuted(np.tile(rank, (n_draws, 1)), axis=1)[:, : len(here)].sum(1)
        expected += len(here) * (len(members) + 1) / 2
    total = sum(ranks.values())
    p = float(1 + (drawn <= total + 1e-9).sum()) / (1 + n_draws)
    ends: Arguments = {"groups": found.groups, "settings": {"n_problems": n, "confidence": CONFIDENCE}}
    return Enrichment(chosen, total / len(chosen), expected / len(chosen), p, ranks, limits, **ends)
