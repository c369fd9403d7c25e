"""What `decompose_attention` gives: numbers per problem, layer and head, intervals, tests against a null, words."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from ..core.arguments import count_of
from ..core.heads import Head
from ..patching.prepared import Settings
from ..runtime.columns import columns_of
from ..runtime.results import (
    Found,
    Quantity,
    Result,
    Shown,
    ShownTable,
    head_columns,
    head_map,
    interval_columns,
    largest_first,
    of_heads,
    place_of,
    rows_of,
    undefined,
)
from ..statistics import CONFIDENCE, Prevalence, defined_mean, fewest_problems, mean_interval, prevalence_test

PARTS = ("", "scale_", "bias_", "shift_", "rest_")
SHARES = tuple(f"{part}share{after}" for after in ("", "_after_norm") for part in PARTS)
"""Metrics whose sum over heads is the layer's; after the norm of attention's output its scale is frozen."""
METRICS: dict[str, str] = {
    **dict.fromkeys(("lam", "lam_sd", "lam_last"), "probability"),
    "sigma_norm": "norm of z",
    "direction_coherence": "share",
    "value_cosine": "cosine",
    "value_spectral_share": "share",
    "value_effective_rank": "directions",
    **dict.fromkeys(("change", "residual", "shift_left_out"), "ratio of norms"),
    "fit_slope": "slope",
    "fit_r2": "R squared",
    **dict.fromkeys(SHARES, "share"),
}
"""Metric -> unit."""
NULLS = {"uniform": ("lam_null", "lam_p"), "control": ("lam_control", "lam_control_p")}
"""What lambda is compared with -> the columns of a table with its mean and with the corrected p-values."""
CLAIM = "differs from uniform attention, the same way in most problems"
"""What a small `lam_p` says."""
FIRST = (
    *("lam", "lam_null", "lam_p", "lam_control", "lam_control_p", "residual", "fit_slope", "fit_r2"),
    *("share", "scale_share", "bias_share", "lam_n"),
)
"""Columns of a page's first table; all others are further measures."""
SAME = 1e-6
"""Attention masses that are no further apart than this are the same up to rounding."""


@dataclass(frozen=True, eq=False, repr=False)
class AttentionDecomposition(Result):
    """Head outputs with a span as lambda z + Sigma, per problem, layer and head.

    `values[metric][contrast]` `[problem, layer, head]`: `METRICS`, NaN where undefined or not asked for.
    `layer_values[metric][contrast]` `[problem, layer]`: "lam_null", lambda of uniform attention, and, where the model
    norms what attention writes, "norm_share", the share of the change after that norm that no head has. `control` is
    lambda under other insertions of the same length `[problem, layer, head]` (mean over their draws), if asked for.
    """

    problem_ids: tuple[str, ...]
    contrasts: tuple[str, ...]
    heads: tuple[Head, ...]
    values: Found
    layer_values: Found
    control: np.ndarray | None = None
    settings: Settings = field(default_factory=dict)
    seed: int = 0
    confidence: float = CONFIDENCE

    picture = "lambda_map"
    columns = columns_of("""
        lam | lambda | | share of attention left to the tokens that are not inserted, mean over queries
        lam_null | lambda of uniform attention | | what even attention to all tokens would leave
        lam_p | p, corrected | p | that lambda differs from uniform attention's in most problems; corrected for all heads
        lam_control | lambda under random words | | the same with random words of the same length
        lam_control_p | p against random words | p | that lambda differs from that under random words; corrected
        lam_n | n | | problems where lambda is defined
        lam_minus_uniform | lambda minus uniform | | more than 0: the inserted tokens are read less than evenly
        lam_sd | spread of lambda | | over the queries: one number per head is an approximation
        lam_last | lambda of the last query | | the query that predicts the answer
        sigma_norm | norm of Sigma | | length of what the span contributes to the output, mean over queries
        direction_coherence | coherence of Sigma | | how far Sigma points one way at all queries
        value_cosine | cosine of values | | mean cosine of the span's value vectors
        value_spectral_share | values on one direction | | share of the span's value energy on its first direction
        value_effective_rank | directions of values | | how many directions the span's values fill
        residual | residual | | change that lambda z + Sigma leaves unexplained; 0: affine
        shift_left_out | residual without shift | | the same without the term of the shifted positions (the paper's Eq. 2)
        fit_slope | slope of the best fit | | of the output with the span on that without; another number than lambda
        fit_r2 | R² of the fit | | share of variance that the best affine fit explains
        layer_share | of the layer's change | share | the head's share in what the layer's attention changes; signed
        scale_share | by scale | share | part of the layer's change that scaling the head's old output makes; signed
        bias_share | by bias | share | part of the layer's change that adding the span's values makes; signed
        shift_share | by shift | share | part of the layer's change that shifted positions make; signed
        rest_share | from upstream | share | part of the layer's change that earlier layers make; signed
    """)
    drawn = ("lam",)
    reported = ("label", "layer", "head", "lam", "lam_n", "lam_null", "lam_p", "share", "scale_share", "bias_share")
    axes = (
        ("values", "problem layer head_of_layer"),
        ("layer_values", "problem layer"),
        ("control", "problem layer head_of_layer"),
    )

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that are here, zero-based."""
        return tuple(sorted({head.layer for head in self.heads}))

    @property
    def alpha(self) -> float:
        """The level of every test: 1 - `confidence`."""
        return 1 - self.confidence

    def of(self, metric: str, contrast: str | None = None) -> np.ndarray:
        """One metric `[problem, layer, head]`; `contrast` defaults to the first one that has it."""
        place_of(metric, self.values, "metric")
        found = self.values[metric]
        contrast = next(iter(found)) if contrast is None else contrast
        if contrast not in found:
            raise ValueError(f"{metric!r} is not defined for contrast {contrast!r}, only for {', '.join(found)}")
        return found[contrast]

    def mean(self, metric: str, contrast: str | None = None) -> np.ndarray:
        """Mean over the problems where it is defined, `[layer, head]`; NaN where there is none."""
        return defined_mean(self.by_group(self.of(metric, contrast)))

    def null(self, against: str = "uniform", contrast: str | None = None) -> np.ndarray:
        """Lambda of the null, `[problem, layer, head]`: "uniform" attention, or the "control" insertion."""
        place_of(against, NULLS, "null")
        lam = self.of("lam", contrast)
        if against == "uniform":
            return np.where(np.isnan(lam), np.nan, self.layer_values["lam_null"][self._contrast(contrast)][:, :, None])
        if self.control is None:
            raise ValueError('no control insertion was run: decompose_attention(..., control="random_sentence")')
        return self.control

    def null_test(self, against: str = "uniform", contrast: str | None = None) -> Prevalence | None:
        """In how many problems is lambda above its null, and below it? `[sense, head]`, heads as in `heads`; exact, Holm.

        Heads that differ by rounding alone are left out (p = NaN). None with a single problem, or where no head differs.
        """
        difference = self.by_group(of_heads(self.of("lam", contrast) - self.null(against, contrast), self.heads))
        differs = (np.abs(difference) > SAME).any(0)
        if len(difference) < 2 or not differs.any():
            return None
        return prevalence_test(difference, SAME, tested=differs, confidence=self.confidence)

    def table(self, contrast: str | None = None) -> pd.DataFrame:
        """One row per head: every metric's mean over problems with its interval `_ci_low`, `_ci_high` and `_n`; lambda
        beside `lam_null` and `lam_p` (and `lam_control`, `lam_control_p`), p-values corrected over all heads."""
        contrast = self._contrast(contrast)
        columns: dict[str, Sequence[object] | np.ndarray | float] = dict(head_columns(self.heads))
        for metric, found in self.values.items():
            if contrast not in found:
                continue
            columns |= (made := self._with_n(metric, of_heads(found[contrast], self.heads)))
            if metric == "lam":
                means = {}
                for name in self._nulls(contrast):
                    test = self.null_test(name, contrast)
                    means[name] = defined_mean(self.by_group(of_heads(self.null(name, contrast), self.heads)))
                    p_corrected = np.nan if test is None else np.fmin(*test.p_corrected)
                    columns |= dict(zip(NULLS[name], (means[name], p_corrected), strict=True))
                columns["lam_minus_uniform"] = made["lam"] - means["uniform"]
        return pd.DataFrame(columns)

    def to_frame(self) -> pd.DataFrame:
        """One tidy row per problem, contrast, head and metric, with its unit."""
        frames = [
            rows_of(self.problem_ids, self.heads, array, metric, contrast=contrast).assign(unit=METRICS[metric])
            for metric, found in self.values.items()
            for contrast, array in found.items()
        ]
        return pd.concat(frames, ignore_index=True)

    def layer_table(self, contrast: str | None = None) -> pd.DataFrame:
        """One row per layer: means over heads of `lam`, `lam_null`, `residual`, `fit_slope`, `fit_r2`, shares of the layer's
        change summed over heads, `norm_share`; intervals are over problems."""
        contrast = self._contrast(contrast)
        layers = list(self.layers)
        columns: dict[str, list[int] | np.ndarray] = {"layer": layers, "paper_layer": [layer + 1 for layer in layers]}
        per_layer: dict[str, np.ndarray] = {}
        for metric in ("lam", "residual", "shift_left_out", "fit_slope", "fit_r2", *SHARES):
            if contrast in self.values.get(metric, {}):
                array = self.of(metric, contrast)
                mean, summed = defined_mean(np.moveaxis(array, 2, 0)), np.nansum(array, 2)
                per_layer[metric] = np.where(np.isnan(mean), np.nan, summed) if metric in SHARES else mean
        per_layer |= {name: found[contrast] for name, found in self.layer_values.items() if contrast in found}
        for metric, array in per_layer.items():
            columns |= self._with_n(metric, array[:, layers])
        return pd.DataFrame(columns)

    def _with_n(self, metric: str, values: np.ndarray) -> dict[str, np.ndarray]:
        """The columns of a metric `[problem, row]`: mean over problems, limits, n."""
        made = mean_interval(self.by_group(values), confidence=self.confidence, seed=self.seed)
        return interval_columns(metric, made) | {f"{metric}_n": made.n}

    def _contrast(self, contrast: str | None) -> str:
        contrast = self.contrasts[0] if contrast is None else contrast
        return self.contrasts[place_of(contrast, self.contrasts, "contrast")]

    def _nulls(self, contrast: str) -> tuple[str, ...]:
        """What lambda is compared with in a contrast: the control stands where the insertion does, not at held positions."""
        return tuple(NULLS) if self.control is not None and contrast != "held" else ("uniform",)

    def quantity(self, column: str) -> Quantity:
        """A metric in its unit; lambda is tested against uniform attention."""
        made = replace(super().quantity(column), unit=METRICS.get(column, ""))
        if column == "lam_minus_uniform":
            return replace(made, unit="share", signed=True, p="lam_p", claim=CLAIM)
        return replace(made, p="lam_p", claim=CLAIM) if column == "lam" else made

    def headline(self) -> str:
        """Return how far lambda lies from uniform attention's."""
        contrast = self.contrasts[0]
        lam = self.mean("lam", contrast)
        null = self.layer_values["lam_null"][contrast][:, list(self.layers)].mean(0)
        low, high = float(np.nanmin(null)), float(np.nanmax(null))
        kept = f"{low:.3f}" if high - low < 5e-4 else f"{low:.3f} to {high:.3f}, by layer"
        words = f"Lambda runs from {np.nanmin(lam):.3f} to {np.nanmax(lam):.3f} over heads; uniform attention would keep {kept}"
        if self.n_groups < 2:
            return f"{words}; a single problem tests nothing."
        names = {"uniform": "uniform attention", "control": str(self.settings.get("control"))}
        told = (self._tested(self.null_test(each, contrast), names[each]) for each in self._nulls(contrast))
        return "; ".join([words, *told]) + "."

    def _tested(self, test: Prevalence | None, name: str) -> str:
        """How many heads differ from a null."""
        if test is None:
            return f"no head differs from {name}"
        least = fewest_problems(2 * int(np.isfinite(test.p[0]).sum()), alpha=self.alpha)
        if test.n.max() < least:
            n = count_of(self.n_groups, "problem")
            return f"{n} are too few to test a head against {name} ({least} needed)"
        above, below = (int((p < self.alpha).sum()) for p in test.p_corrected)
        keep = f"{count_of(above, 'head')} {'keeps' if above == 1 else 'keep'} more and {below} less"
        return f"against {name} {keep} in most problems (corrected p < {self.alpha:.3g})"

    def details(self) -> list[str]:
        """Return what was decomposed, what the first layer's change is made of, and what is undefined."""
        contrast, layer = self.contrasts[0], self.layers[0]
        found = [
            f"{count_of(len(self.heads), 'head')} in {count_of(len(self.layers), 'layer')} (zero-based), "
            f"{count_of(len(self.problem_ids), 'problem')}, {self.settings.get('insertion', 'an insertion')}, contrast "
            f"{contrast!r}."
        ]
        row = self.layer_table(contrast).iloc[0]
        if np.isfinite(row["share"]):
            found.append(
                f"The change of attention's output in layer {layer} is {row['scale_share']:+.2f} scale, "
                f"{row['bias_share']:+.2f} bias and {row['rest_share']:+.2f} upstream (shares are signed)."
            )
        residual = self.of("residual", contrast)[:, 0]
        if np.isfinite(residual).any():
            found.append(
                f"In layer 0 z' = lambda z + Sigma leaves {np.nanmax(residual):.1e} of the change open at most: an identity, "
                "for any inserted text, not a finding."
            )
        counted = undefined(self.values, self.heads)
        return [*found, *([f"Undefined (no change beyond rounding, or too few rows): {counted}."] if counted else [])]

    def printed(self) -> pd.DataFrame:
        """Return the heads, the largest share first (without the cost of intervals)."""
        contrast = self.contrasts[0]
        table = pd.DataFrame(head_columns(self.heads)).drop(columns=["layer", "head", "paper_label"])
        for name in ("lam", "share", "scale_share", "bias_share", "residual", "fit_slope", "fit_r2"):
            table[name] = of_heads(self.mean(name, contrast), self.heads)
        null = self.layer_values["lam_null"][contrast].mean(0)
        table.insert(2, "lam_null", null[[head.layer for head in self.heads]])
        return largest_first(table, "share").rename(columns={"share": "layer_share"})

    def shown(self) -> Shown:
        """Lambda against uniform attention as a map, with what each head adds to its layer's change; further measures."""
        table, labels = self.table(), ["label", "paper_label"]
        caption = "Lambda, the share of attention outside of the span, and each head's part in its layer's change."
        named = {name: "" for name in (*labels, *FIRST) if name in table} | {"share": "of the layer's change"}
        rest = [metric for metric in self.values if metric in table and metric not in FIRST]
        tables = [
            ShownTable(table, caption, named),
            ShownTable(table, "Further measures of each head.", [*labels, *rest]),
        ]
        told = [*labels, "lam_minus_uniform", "lam", "lam_null", "lam_control", "residual", "share"]
        marked = (table["lam_p"] < self.alpha).tolist()
        means = f"outlined: {CLAIM}, p < {self.alpha:.3g} corrected for testing many heads"
        return Shown(tuple(tables), head_map(table, ["lam_minus_uniform"], told, marked=marked, means=means))
