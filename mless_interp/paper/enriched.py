"""`enrichment`: are some heads, the paper's say, ranked higher by their effect than random heads of the same layers?"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from ..circuits.located import LocatedHeads
from ..core.arguments import checked, count_of
from ..core.heads import Head, as_heads
from ..patching.sweep import PatchScores
from ..runtime.columns import columns_of
from ..runtime.results import Result, Shown, ShownTable, head_columns
from ..statistics import CONFIDENCE, derive_generator

N_RESAMPLES = 2_000


@dataclass(frozen=True, eq=False, repr=False)
class Enrichment(Result):
    """Hold heads' ranks in their layers by |mean effect| (1: the largest; ties share the middle rank), against random heads.

    `ranks` by label; `limits` by label: the rank's interval from a bootstrap over problems (none of a single problem).
    """

    heads: tuple[Head, ...]
    mean_rank: float
    expected_rank: float
    p: float
    ranks: dict[str, float]
    limits: dict[str, tuple[float, float]] = field(default_factory=dict)
    settings: dict[str, object] = field(default_factory=dict)

    columns = columns_of("""
        mean_rank | mean rank | count | of these heads in their layers; 1 is the largest effect
        expected_rank | of random heads | count | the mean rank that random heads of these layers have
    """)

    def table(self) -> pd.DataFrame:
        """Return one row: the mean rank, that of random heads, p, and of how many heads."""
        row = {"mean_rank": self.mean_rank, "expected_rank": self.expected_rank, "p": self.p}
        return pd.DataFrame([row | {"n_heads": len(self.heads)}])

    def to_frame(self) -> pd.DataFrame:
        ends = np.array([self.limits.get(str(head), (np.nan, np.nan)) for head in self.heads])
        ranks = {"rank": [self.ranks[str(head)] for head in self.heads]}
        return pd.DataFrame(head_columns(self.heads) | ranks | {"rank_ci_low": ends[:, 0], "rank_ci_high": ends[:, 1]})

    def headline(self) -> str:
        """Return the mean rank beside that of random heads."""
        of, random = count_of(len(self.heads), "head"), f"random heads: {self.expected_rank:.1f}"
        n = self.settings.get("n_problems")
        return f"{of} rank {self.mean_rank:.1f} on average ({random}), p = {self.p:.2g}, {n} problems."

    def details(self) -> list[str]:
        return ["Rank 1 is the largest effect of its layer; intervals are of a bootstrap over problems."]

    def printed(self) -> pd.DataFrame:
        return self.to_frame()[["label", "rank", "rank_ci_low", "rank_ci_high"]]

    def shown(self) -> Shown:
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
    """Test whether these heads are ranked higher by their effect than random heads of the same layers.

    Of `LocatedHeads` by |mean knockout effect|, of `PatchScores` by |mean effect|. Rank 1 is the largest of its layer, equal
    heads share the middle rank; the null draws as many heads from each layer: `p` = (1 + draws whose mean rank is as small)
    / (1 + draws). The heads must be named without these problems (as the paper's are). Each rank has a bootstrap interval
    over problems.

    `ValueError` for heads that were not tested, or given twice. Source: methods §8, E9.
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
        members = [at for at, head in enumerate(family) if head.layer == layer]
        of_layer = effects[:, members]
        if np.isnan(of_layer).any():
            raise ValueError(f"heads of layer {layer} are undefined (NaN) on some problems: leave out those problems")
        rank, resampled = (rankdata(-np.abs(means), axis=-1) for means in (of_layer.mean(0), weights @ of_layer))
        low = np.quantile(resampled, (1 - confidence) / 2, axis=0, method="lower")
        high = np.quantile(resampled, (1 + confidence) / 2, axis=0, method="higher")
        for place, at in enumerate(members):
            if family[at] in chosen:
                ranks[str(family[at])] = float(rank[place])
                limits[str(family[at])] = (float(low[place]), float(high[place])) if n > 1 else (np.nan, np.nan)
        n_chosen = sum(head.layer == layer for head in chosen)
        drawn += generator.permuted(np.tile(rank, (n_draws, 1)), axis=1)[:, :n_chosen].sum(1)
        expected += n_chosen * (len(members) + 1) / 2
    total = sum(ranks.values())
    return Enrichment(
        heads=chosen,
        mean_rank=total / len(chosen),
        expected_rank=expected / len(chosen),
        p=float(1 + (drawn <= total + 1e-9).sum()) / (1 + n_draws),
        ranks=ranks,
        limits=limits,
        settings={"n_problems": n, "confidence": confidence},
    )
