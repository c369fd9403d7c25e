"""What `decompose_attention` gives: numbers per problem, layer and head, intervals, tests against a null, words."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from ..core.arguments import count_of
from ..core.heads import Head
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

METRICS: dict[str, tuple[str, str]] = {
    "lam": ("probability", "retained mass lambda: attention kept outside the span, mean over queries"),
    "lam_sd": ("probability", "spread of lambda over the queries (one number per head is an approximation)"),
    "lam_last": ("probability", "lambda of the last query"),
    "sigma_norm": ("norm of z", "length of the span's contribution Sigma, mean over queries"),
    "direction_coherence": ("share", "how far Sigma points one way at all queries"),
    "value_cosine": ("cosine", "mean cosine of the span's value vectors"),
    "value_spectral_share": ("share", "value energy of the span on one direction"),
    "value_effective_rank": ("directions", "directions that the span's values fill"),
    "change": ("ratio of norms", "size of the head's change against its output before"),
    "residual": ("ratio of norms", "part of the change that the affine form leaves open (0 in layer 0)"),
    "shift_left_out": ("ratio of norms", "the same without the term of the shifted positions (the paper's Eq. 2)"),
    "fit_slope": ("slope", "slope of the best global affine fit over queries: a regression slope, not lambda"),
    "fit_r2": ("R squared", "variance that the best global affine fit explains; says nothing about lambda"),
    "share": ("share", "head's share in what the layer's attention changes in the residual stream"),
    "scale_share": ("share", "of it, from scaling what was there: (lambda - 1) z"),
    "bias_share": ("share", "of it, from what is added: Sigma"),
    "shift_share": ("share", "of it, from the shifted positions: lambda (z_gap - z_base)"),
    "rest_share": ("share", "of it, from upstream changes (0 in layer 0)"),
    "share_after_norm": ("share", "share after the norm of attention's output, its scale frozen"),
    "scale_share_after_norm": ("share", "of it, scale"),
    "bias_share_after_norm": ("share", "of it, bias"),
    "shift_share_after_norm": ("share", "of it, shift of positions"),
    "rest_share_after_norm": ("share", "of it, upstream"),
}
"""metric -> (unit, what it is)."""
PARTS = ("", "scale_", "bias_", "shift_", "rest_")
SHARES = tuple(f"{part}share{after}" for after in ("", "_after_norm") for part in PARTS)
"""Metrics whose sum over heads is the layer's."""
NULLS = {"uniform": ("lam_null", "lam_p"), "control": ("lam_control", "lam_control_p")}
"""What lambda is compared with -> the columns of a table with its mean and with the corrected p-values."""
CLAIM = "differs from uniform attention, the same way in most problems"
"""What a small `lam_p` says."""
TOLD = {
    "label": "",
    "paper_label": "",
    "lam": "lambda",
    "lam_null": "uniform attention's",
    "lam_p": "p, corrected",
    "lam_control": "random words'",
    "lam_control_p": "p against it, corrected",
    "residual": "residual (0: affine)",
    "fit_slope": "slope of the fit (not lambda)",
    "fit_r2": "R² of the fit",
    "share": "share of the layer's change",
    "scale_share": "by scale",
    "bias_share": "by bias",
    "lam_n": "n",
}
"""Columns of a page's first table, as people read them; all others are further measures."""
SAME = 1e-6
"""Attention masses that are no further apart than this are the same up to rounding."""


@dataclass(frozen=True, eq=False, repr=False)
class AttentionDecomposition(Result):
    """Head outputs with a span as lambda z + Sigma, per problem, layer and head.

    `values[metric][contrast]` is `[problem, layer, head]` (metrics in `METRICS`; NaN where undefined or not asked for);
    contrasts: "content" (inserted against gap), "total" (inserted against base), "held" (held against base).
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
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    confidence: float = CONFIDENCE

    picture = "lambda_map"
    columns = columns_of("""
        lam | lambda | | share of attention left to the tokens that are not inserted
        lam_null | lambda of uniform attention | | what even attention to all tokens would leave
        lam_p | p, corrected | p | that lambda differs from uniform attention's in most problems; corrected for all heads
        lam_control | lambda under random words | | the same with random words of the same length
        lam_control_p | p against random words | p | that lambda differs from that under random words; corrected
        lam_n | n | | problems where lambda is defined
        lam_minus_uniform | lambda minus uniform | | more than 0: the inserted tokens are read less than evenly
        sigma_norm | norm of Sigma | | length of what the span contributes to the output, mean over queries
        residual | residual | | change that lambda z + Sigma leaves unexplained; 0: affine
        fit_slope | slope of the best fit | | of the output with the span on that without; another number than lambda
        fit_r2 | R² of the fit | | share of variance that the best affine fit explains
        layer_share | of the layer's change | share | the head's share in what the layer's attention changes; signed
        scale_share | by scale | share | part of the layer's change that scaling the head's old output makes; signed
        bias_share | by bias | share | part of the layer's change that adding the span's values makes; signed
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
    def metrics(self) -> tuple[str, ...]:
        """The metrics that are here."""
        return tuple(self.values)

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that are here, zero-based."""
        return tuple(sorted({head.layer for head in self.heads}))

    def of(self, metric: str, contrast: str | None = None) -> np.ndarray:
        """One metric `[problem, layer, head]`; `contrast` defaults to the first one that has it."""
        place_of(metric, self.values, "metric")
        found = self.values[metric]
        contrast = next(iter(found)) if contrast is None else contrast
        if contrast not in found:
            raise ValueError(f"{metric!r} is not defined for contrast {contrast!r}, only for {', '.join(found)}")
        return found[contrast]

    def mean(self, metric: str, contrast: str | None = None) -> np.ndarray:
        """Mean over the problems where it is defined, `[layer, head]`; NaN where there is none (see `count`)."""
        return defined_mean(self.by_group(self.of(metric, contrast)))

    def count(self, metric: str, contrast: str | None = None) -> np.ndarray:
        """Problems where the metric is defined, `[layer, head]`."""
        return np.isfinite(self.by_group(self.of(metric, contrast))).sum(0)

    def null(self, against: str = "uniform", contrast: str | None = None) -> np.ndarray:
        """Lambda of the null, `[problem, layer, head]`: "uniform" attention, or the "control" insertion."""
        if against not in NULLS:
            raise ValueError(f"unknown null {against!r}; choose one of {', '.join(NULLS)}")
        lam = self.of("lam", contrast)
        if against == "uniform":
            contrast = self.contrasts[0] if contrast is None else contrast
            return np.where(np.isnan(lam), np.nan, self.layer_values["lam_null"][contrast][:, :, None])
        if self.control is None:
            raise ValueError('no control insertion was run: decompose_attention(..., control="random_sentence")')
        return self.control

    @property
    def alpha(self) -> float:
        """The level of every test: 1 - `confidence`."""
        return 1 - self.confidence

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
        columns: dict[str, Any] = dict(head_columns(self.heads))
        for metric, found in self.values.items():
            if contrast not in found:
                continue
            columns |= self._with_n(metric, of_heads(found[contrast], self.heads))
            if metric == "lam":
                for against in self._nulls(contrast):
                    null, p = NULLS[against]
                    test = self.null_test(against, contrast)
                    columns[null] = defined_mean(self.by_group(of_heads(self.null(against, contrast), self.heads)))
                    columns[p] = np.nan if test is None else np.fmin(*test.p_corrected)
                columns["lam_minus_uniform"] = columns["lam"] - columns["lam_null"]
        return pd.DataFrame(columns)

    def to_frame(self) -> pd.DataFrame:
        """One tidy row per problem, contrast, head and metric: value, unit, what it is."""
        return pd.concat(
            [
                rows_of(self.problem_ids, self.heads, array, metric, contrast=contrast).assign(
                    unit=METRICS[metric][0], what=METRICS[metric][1]
                )
                for metric, found in self.values.items()
                for contrast, array in found.items()
            ],
            ignore_index=True,
        )

    def layer_table(self, contrast: str | None = None) -> pd.DataFrame:
        """One row per layer: means over heads of `lam`, `lam_null`, `residual`, `fit_slope`, `fit_r2`, shares of the layer's
        change summed over heads, `norm_share`; intervals are over problems."""
        contrast = self._contrast(contrast)
        layers = list(self.layers)
        columns: dict[str, Any] = {"layer": layers, "paper_layer": [layer + 1 for layer in layers]}
        per_layer: dict[str, np.ndarray] = {}
        for metric in ("lam", "residual", "shift_left_out", "fit_slope", "fit_r2"):
            if contrast in self.values.get(metric, {}):
                per_layer[metric] = defined_mean(np.moveaxis(self.of(metric, contrast), 2, 0))
        for metric in SHARES:
            if contrast in self.values.get(metric, {}):
                array = self.of(metric, contrast)
                defined = np.isfinite(array).any(2)
                per_layer[metric] = np.where(defined, np.nansum(array, 2), np.nan)
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

    def _nulls(self, contrast: str) -> Sequence[str]:
        """What lambda is compared with in a contrast: the control stands where the insertion does, not at held positions."""
        return tuple(NULLS) if self.control is not None and contrast != "held" else ("uniform",)

    def top(self, k: int = 10, contrast: str | None = None) -> pd.DataFrame:
        """The `k` heads with the largest share (by magnitude) in the residual change, as rows of `table`."""
        return largest_first(self.table(contrast), "share").head(k)

    def quantity(self, column: str) -> Quantity:
        """A metric in its unit; lambda is tested against uniform attention."""
        made = super().quantity(column)
        if column == "lam_minus_uniform":
            return replace(made, unit="share", signed=True, p="lam_p", claim=CLAIM)
        unit = METRICS[column][0] if column in METRICS else ""
        return replace(made, unit=unit, p="lam_p", claim=CLAIM) if column == "lam" else replace(made, unit=unit)

    def headline(self) -> str:
        """Return how far lambda lies from uniform attention's."""
        return self._lambda_words(self.contrasts[0])

    def details(self) -> list[str]:
        """Return what is arithmetic, what each head adds, and what cannot be said."""
        contrast = self.contrasts[0]
        return [
            f"{count_of(len(self.heads), 'head')} in {count_of(len(self.layers), 'layer')} (zero-based), "
            f"{count_of(len(self.problem_ids), 'problem')}, "
            f"{self.settings.get('insertion', 'an insertion')}, contrast {contrast!r}.",
            *self._identity_words(contrast),
            *self._share_words(contrast),
            *self._undefined_words(),
        ]

    def _identity_words(self, contrast: str) -> list[str]:
        residual = self.of("residual", contrast)
        left = {at: float(np.nanmedian(residual[:, at])) for at in self.layers if np.isfinite(residual[:, at]).any()}
        words = []
        if 0 in left:
            words.append(
                f"In layer 0 z' = lambda z + Sigma leaves {np.nanmax(residual[:, 0]):.1e} of the change open at most: that "
                "form is an identity there, for any inserted text, not a finding."
            )
        if deeper := {at: size for at, size in left.items() if at}:
            ends = sorted({min(deeper, key=deeper.__getitem__), max(deeper, key=deeper.__getitem__)})
            sizes = " and ".join(f"{deeper[at]:.2f} in layer {at}" for at in ends)
            words.append(f"In deeper layers upstream changes leave more open, medians: {sizes}.")
        return words

    def _lambda_words(self, contrast: str) -> str:
        lam = self.mean("lam", contrast)
        null = self.layer_values["lam_null"][contrast][:, list(self.layers)].mean(0)
        low, high = float(np.nanmin(null)), float(np.nanmax(null))
        kept = f"{low:.3f}" if high - low < 5e-4 else f"{low:.3f} to {high:.3f}, by layer"
        words = [
            f"Lambda runs from {np.nanmin(lam):.3f} to {np.nanmax(lam):.3f} over heads; uniform attention would keep {kept}"
        ]
        if self.n_groups < 2:
            return f"{words[0]}; a single problem tests nothing."
        for against in self._nulls(contrast):
            name = str(self.settings.get("control")) if against == "control" else "uniform attention"
            test = self.null_test(against, contrast)
            if test is None:
                words.append(f"no head differs from {name}")
                continue
            least = fewest_problems(2 * int(np.isfinite(test.p[0]).sum()), alpha=self.alpha)
            if test.n.max() < least:
                n = count_of(self.n_groups, "problem")
                words.append(f"{n} are too few to test a head against {name} ({least} needed)")
                continue
            above, below = (int((p < self.alpha).sum()) for p in test.p_corrected)
            keep = f"{count_of(above, 'head')} {'keeps' if above == 1 else 'keep'} more and {below} less"
            words.append(f"against {name} {keep} in most problems (corrected p < {self.alpha:.3g})")
        return "; ".join(words) + "."

    def _share_words(self, contrast: str) -> list[str]:
        layer = self.layers[0]
        row = self.layer_table(contrast).set_index("layer").loc[layer]
        if not np.isfinite(row["share"]):
            return []
        complete = len([head for head in self.heads if head.layer == layer]) == self.settings.get("n_heads")
        words = (
            f"In layer {layer} the change of attention's output is {row['scale_share']:+.2f} scale, "
            f"{row['bias_share']:+.2f} bias and {row['rest_share']:+.2f} from upstream, "
            f"{'of the whole' if complete else 'of the asked heads'} (shares are signed)"
        )
        if "norm_share" in row and np.isfinite(row["norm_share"]):
            words += (
                f"; after this model's norm of it {row['scale_share_after_norm']:+.2f} and "
                f"{row['bias_share_after_norm']:+.2f}, with {row['norm_share']:+.2f} for the norm's own rescaling"
            )
        return [f"{words}."]

    def _undefined_words(self) -> list[str]:
        counted = undefined(self.values, self.heads)
        return [f"Undefined (NaN; no change beyond rounding, or too few rows): {counted}."] if counted else []

    def printed(self) -> pd.DataFrame:
        """Return the heads, the largest share first (without the cost of intervals)."""
        contrast = self.contrasts[0]
        table = pd.DataFrame(head_columns(self.heads)).drop(columns=["layer", "head"])
        for name in ("lam", "share", "scale_share", "bias_share", "residual", "fit_slope", "fit_r2"):
            table[name] = of_heads(self.mean(name, contrast), self.heads)
        null = self.layer_values["lam_null"][contrast].mean(0)
        table.insert(3, "lam_null", null[[head.layer for head in self.heads]])
        return largest_first(table, "share").drop(columns="paper_label").rename(columns={"share": "layer_share"})

    def shown(self) -> Shown:
        """Lambda against uniform attention as a map, with what each head adds to its layer's change; further measures."""
        table = self.table()
        told = ["label", "paper_label", "lam_minus_uniform", "lam", "lam_null", "lam_control", "residual", "share"]
        caption = (
            "Lambda, the share of attention that stays outside of the span, and what each head adds to its layer's "
            "change."
        )
        first = {name: words for name, words in TOLD.items() if name in table}
        rest = [metric for metric in self.values if metric in table and metric not in TOLD]
        tables = [ShownTable(table, caption, first)]
        if rest:
            tables.append(ShownTable(table, "Further measures of each head.", ["label", "paper_label", *rest]))
        marked = (table["lam_p"] < self.alpha).tolist()
        means = f"outlined: {CLAIM}, p < {self.alpha:.3g} corrected for testing many heads"
        return Shown(tuple(tables), head_map(table, ["lam_minus_uniform"], told, marked=marked, means=means))
