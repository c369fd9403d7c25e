"""Results of an exact sweep: patched outcomes per problem and head, effects, fractions and intervals."""

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pandas as pd

from ..core.arguments import count_of
from ..core.heads import Head
from ..prompts.conditions import DIRECTIONS
from ..runtime.columns import columns_of
from ..runtime.results import (
    Quantity,
    Result,
    Shown,
    ShownTable,
    head_columns,
    head_map,
    largest_first,
    of_heads,
    rows_per_head,
)
from ..statistics import CONFIDENCE
from .effect import SMALLEST_EFFECT, check_smallest_effect
from .parts import WHOLE, Parts
from .prepared import Settings


@dataclass(frozen=True, eq=False, repr=False)
class PatchScores(Parts, Result):
    """Patched outcomes of an exact sweep, `[problem, layer, head]`; NaN for heads that were not patched.

    `total_effect` is the insertion's own (corrupted - clean) and `effect` the part of it that a head carries: what denoising
    the head takes out, what noising it brings in. `patching_changes` is patched - receiving: `effect` when noising, the same
    with its sign turned when denoising.

    What is *claimed* of a head is how many problems show more than the smallest effect, with the total effect or against it,
    and its `share` of the total effect. Means describe, and have no limits: a few problems often carry them. `effect_fraction`
    = mean effect / mean total effect; `recovered` = (patched - corrupted) / (clean - corrupted): 1 minus it when noising.

    `noise` `[problem, layer]` is how far the outcome of a row was off that continued the receiving run from that layer
    unedited: rounding (NaN: not swept; None: not measured). A head whose mean effect does not exceed `noise_floor` has no rank.
    """

    problem_ids: tuple[str, ...]
    patched: np.ndarray
    receiving: np.ndarray
    donor: np.ndarray
    heads: tuple[Head, ...]
    unit: str
    settings: Settings = field(default_factory=dict)
    seed: int = 0
    confidence: float = CONFIDENCE
    smallest_effect: float = SMALLEST_EFFECT
    noise: np.ndarray | None = None
    direction: str = "denoising"
    resolution: float = 0.0

    columns = columns_of("""
        patching_changes | patching changes | | patched - receiving, mean over problems, in the outcome's unit
        recovered | recovered | later | (patched - corrupted) / (clean - corrupted)
        noise | noise | | change of the outcome in a row of the head's layer without an edit: rounding
    """)
    picture = "forest"
    reported = (
        *("label", "layer", "head", "sense", "k", "n", "prevalence", "p_corrected"),
        *("median", "share", "effect", "effect_fraction", "rank"),
    )
    axes = (
        ("patched", "problem layer head_of_layer"),
        ("receiving", "problem"),
        ("donor", "problem"),
        ("noise", "problem layer"),
    )

    def __post_init__(self) -> None:
        check_smallest_effect(self.smallest_effect)

    @property
    def sign(self) -> int:
        """What turns changes of the receiving run into parts of the insertion's effect."""
        return DIRECTIONS[self.direction]

    @property
    def patching_changes(self) -> np.ndarray:
        """patched - receiving, `[problem, layer, head]`, in `unit`."""
        return self.patched - self.receiving[:, None, None]

    @property
    def effect(self) -> np.ndarray:
        """The part of the insertion's effect that each head carries, `[problem, layer, head]`, in `unit`."""
        return self.sign * self.patching_changes + 0.0  # no -0

    @property
    def per_head(self) -> np.ndarray:
        """`effect` of the patched heads, `[problem, head]` in the order of `heads`."""
        return of_heads(self.effect, self.heads)

    @property
    def per_cell(self) -> np.ndarray:
        """The same: a cell of an exact sweep is a head."""
        return self.per_head

    @property
    def total_effect(self) -> np.ndarray:
        """Return the insertion's effect on the outcome (corrupted - clean), `[problem]`, in `unit`."""
        return self.sign * (self.donor - self.receiving) + 0.0

    @cached_property
    def noise_floor(self) -> float:
        """The mean over problems of the largest |noise| of any layer, in `unit`: what rounding does to a mean effect.

        Over all layers, as a row that joins late has hardly rounded anew, but the run that it continues has.
        """
        return float("nan") if self.noise is None else float(np.nanmax(np.abs(self.noise), axis=1).mean())

    @property
    def rounding(self) -> float:
        """Effects up to this are taken for rounding, in `unit`: what the model resolves, or the sweep's own noise."""
        return float(np.fmax(super().rounding, self.noise_floor))

    @cached_property
    def rank(self) -> np.ndarray:
        """Rank of each head by |effect|, 1 the largest, in the order of `heads`; NaN where undefined or within the noise."""
        size = np.abs(self.mean_effect)
        return pd.Series(np.where(self.within_noise, np.nan, size)).rank(ascending=False, method="min").to_numpy()

    @property
    def within_noise(self) -> np.ndarray:
        """Return True for heads whose mean effect is no larger than `noise_floor`, in the order of `heads`."""
        return np.abs(self.mean_effect) <= self.noise_floor

    def mean(self) -> np.ndarray:
        """Mean effect over problems, `[layer, head]` (NaN where a problem's is undefined)."""
        return self.effect.mean(0)

    def table(self) -> pd.DataFrame:
        """One row per head, in order of layer and head.

        What is claimed: `sense` (+1 with the total effect, -1 against it), `k` of `n` problems with more than the smallest
        effect in it, `prevalence` = k / n, `p_corrected` (Holm over heads and senses), `median` and `share`. What describes:
        the means of `effect` and `patching_changes`, `effect_fraction`, `recovered`, `noise` (`noise_floor`), `rank`.
        """
        fraction = self.effect_fraction
        return pd.DataFrame(
            {
                **head_columns(self.heads),
                **self.claim_columns(),
                "patching_changes": self.sign * self.mean_effect + 0.0,
                "recovered": 1 - fraction if self.sign > 0 else fraction,
                "noise": self.noise_floor,
                "rank": self.rank,
            }
        )

    def quantity(self, column: str) -> Quantity:
        """An effect in the outcome's unit, or a share of the whole one or of the problems."""
        if column in ("noise", "rank"):
            return Quantity(self.unit if column == "noise" else "")
        made = super().quantity(column)
        if column == "recovered":
            return replace(made, unit=WHOLE, below="")
        return replace(made, below="patching lowers the outcome") if column == "patching_changes" else made

    def to_frame(self) -> pd.DataFrame:
        """One tidy row per measure, problem and head: the outcome of the `receiving`, `donor` and `patched` runs, what the
        patch changes, and the `effect`."""
        both = {"receiving": self.receiving, "donor": self.donor}
        values = {name: np.repeat(values[:, None], len(self.heads), 1) for name, values in both.items()}
        values |= {name: of_heads(getattr(self, name), self.heads) for name in ("patched", "patching_changes")}
        return rows_per_head(self.problem_ids, self.heads, values | {"effect": self.per_head})

    def top(self, k: int = 10) -> pd.DataFrame:
        """The `k` heads of largest |share| (largest |median| where shares are undefined); those without a rank come last."""
        table = self.table()
        ranked = largest_first(table, self.default_column(table)).sort_values("rank", key=np.isnan, kind="stable")
        return ranked.head(k).reset_index(drop=True)

    def details(self) -> list[str]:
        """Return how the heads were patched, the test, and which heads are undefined or within rounding."""
        s = self.settings
        found = [
            f"{s.get('edit', 'z')} patch of {count_of(len(self.heads), 'head')}, contrast {s.get('contrast')}, "
            f"{self.direction}, outcome {s.get('outcome')}, {count_of(len(self.problem_ids), 'problem')}.",
            *self._claim_words(),
        ]
        if undefined := int(np.isnan(self.per_head).any(0).sum()):
            found.append(f"Undefined on some problem (NaN): {count_of(undefined, 'head')}.")
        if within := int(self.within_noise.sum()):
            floor = f"{self.noise_floor:.1e} {self.unit}, what rounding does to rows that are not edited"
            found.append(f"Not ranked: {count_of(within, 'head')} with a mean effect within {floor}.")
        return found

    def in_order(self) -> pd.DataFrame:
        """Return the rows of `table`, the surest first, of equally sure ones the largest median."""
        table = self.table()
        keys = table.assign(_p=table["p_corrected"].fillna(2.0), _size=-table["median"].abs().fillna(0.0))
        return table.loc[keys.sort_values(["_p", "_size"], kind="stable").index].reset_index(drop=True)

    def printed(self) -> pd.DataFrame:
        """Return the heads that have a rank, the surest first."""
        columns = ["label", "share", "share_ci_low", "share_ci_high", "k", "n", "p_corrected", "median", "effect"]
        return self.in_order().dropna(subset="rank")[columns]

    def shown(self) -> Shown:
        """Every head's share as a map and a table."""
        columns = ["label", "paper_label", "share", "share_ci_low", "prevalence", "prevalence_ci_low", "k", "n"]
        columns += ["p_corrected", "median", "effect", "effect_fraction", "recovered"]
        table = self.table()
        key = self.default_column(table)
        marked = ((table["p_corrected"] < self.level) & table["rank"].notna()).tolist()
        means = f"outlined: {self._claim()}, p < {self.level:.3g} corrected for testing many heads"
        caption = f"Patched heads, the surest first. Effects are the parts of the insertion's, in {self.unit}."
        return Shown(
            (ShownTable(self.in_order(), caption, columns),),
            head_map(table, [key], columns, marked=marked, means=means),
        )
