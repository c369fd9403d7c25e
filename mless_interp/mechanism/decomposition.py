"""What `decompose_attention` gives: numbers per problem, layer and head, intervals, tests against a null, words."""

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..heads import Head
from ..running.results import Result
from ..statistics import CONFIDENCE, SignFlipTest, max_t_sign_flip, mean_interval

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
NULLS = ("uniform", "control")
SAME = 1e-6
"""Attention masses that are no further apart than this are the same up to rounding."""

Found = dict[str, dict[str, np.ndarray]]
"""metric -> contrast -> values."""


@dataclass(frozen=True, eq=False)
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
        if metric not in self.values:
            raise ValueError(f"no metric {metric!r} here; there are {', '.join(self.values)}")
        found = self.values[metric]
        contrast = next(iter(found)) if contrast is None else contrast
        if contrast not in found:
            raise ValueError(f"{metric!r} is not defined for contrast {contrast!r}, only for {', '.join(found)}")
        return found[contrast]

    def mean(self, metric: str, contrast: str | None = None) -> np.ndarray:
        """Mean over the problems where it is defined, `[layer, head]`; NaN where there is none (see `count`)."""
        return _mean(self.of(metric, contrast))

    def count(self, metric: str, contrast: str | None = None) -> np.ndarray:
        """Problems where the metric is defined, `[layer, head]`."""
        return np.isfinite(self.of(metric, contrast)).sum(0)

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

    def null_test(self, against: str = "uniform", contrast: str | None = None) -> SignFlipTest | None:
        """Does lambda differ from its null? Max-T sign flips of whole problems over all heads, cells as `heads`.

        Heads that differ by rounding alone are left out (p = NaN). None with a single problem (nothing replicates), or
        where no head differs.
        """
        difference = self._cells(self.of("lam", contrast) - self.null(against, contrast))
        differs = (np.abs(difference).max(0) > SAME) & (np.ptp(difference, 0) > 0)
        if len(difference) < 2 or not differs.any():
            return None
        with warnings.catch_warnings():  # how small a p-value can get is part of the result
            warnings.simplefilter("ignore")
            return max_t_sign_flip(difference, tested=differs, seed=self.seed)

    def summary(self, contrast: str | None = None) -> Any:
        """One row per head: every metric's mean over problems with its interval `_ci_low`, `_ci_high` and `_n`; lambda
        beside `lam_null` and `lam_p` (and `lam_control`, `lam_control_p`), p-values corrected over all heads.

        `fit_slope` is the slope of the best affine fit, not lambda.
        """
        import pandas as pd

        contrast = self.contrasts[0] if contrast is None else contrast
        if contrast not in self.contrasts:
            raise ValueError(f"no contrast {contrast!r} here; there are {', '.join(self.contrasts)}")
        columns: dict[str, Any] = {
            "layer": [head.layer for head in self.heads],
            "head": [head.head for head in self.heads],
            "label": [str(head) for head in self.heads],
            "paper_label": [head.paper_label for head in self.heads],
        }
        for metric, found in self.values.items():
            if contrast not in found:
                continue
            made = mean_interval(self._cells(found[contrast]), confidence=self.confidence, seed=self.seed)
            columns |= {metric: made.estimate, f"{metric}_ci_low": made.low, f"{metric}_ci_high": made.high}
            columns[f"{metric}_n"] = made.n
            if metric == "lam":
                for against in NULLS if self.control is not None and contrast != "held" else NULLS[:1]:
                    name = {"uniform": "lam_null", "control": "lam_control"}[against]
                    test = self.null_test(against, contrast)
                    columns[name] = _mean(self._cells(self.null(against, contrast)))
                    p_name = "lam_p" if against == "uniform" else "lam_control_p"
                    columns[p_name] = np.nan if test is None else test.p_corrected
        return pd.DataFrame(columns)

    def to_frame(self) -> Any:
        """One tidy row per problem, contrast, head and metric: value, unit, what it is."""
        import pandas as pd

        n, per_head = len(self.problem_ids), len(self.heads)
        parts = []
        for metric, found in self.values.items():
            unit, what = METRICS[metric]
            for contrast, array in found.items():
                table = {
                    "problem": np.repeat(self.problem_ids, per_head),
                    "contrast": contrast,
                    "layer": [head.layer for head in self.heads] * n,
                    "head": [head.head for head in self.heads] * n,
                    "label": [str(head) for head in self.heads] * n,
                    "metric": metric,
                    "value": self._cells(array).ravel(),
                    "unit": unit,
                    "what": what,
                }
                parts.append(pd.DataFrame(table))
        return pd.concat(parts, ignore_index=True)

    def layer_table(self, contrast: str | None = None) -> Any:
        """One row per layer: mean over heads and problems of what says how far attention is affine there.

        `residual` is 0 in layer 0 (an identity); `lam`, `lam_null`, `fit_slope`, `fit_r2`; shares of the layer's change
        summed over heads (`scale_share`, `bias_share`, `shift_share`, `rest_share`), `norm_share`; intervals are over
        problems.
        """
        import pandas as pd

        contrast = self.contrasts[0] if contrast is None else contrast
        layers = list(self.layers)
        columns: dict[str, Any] = {"layer": layers, "paper_layer": [layer + 1 for layer in layers]}
        per_layer: dict[str, np.ndarray] = {}
        for metric in ("lam", "residual", "shift_left_out", "fit_slope", "fit_r2"):
            if contrast in self.values.get(metric, {}):
                per_layer[metric] = _mean(np.moveaxis(self.of(metric, contrast), 2, 0))
        for metric in self.values:
            if metric.partition("share")[1] and contrast in self.values[metric] and metric != "value_spectral_share":
                array = self.of(metric, contrast)
                defined = np.isfinite(array).any(2)
                per_layer[metric] = np.where(defined, np.nansum(array, 2), np.nan)
        per_layer |= {name: found[contrast] for name, found in self.layer_values.items() if contrast in found}
        for metric, array in per_layer.items():
            made = mean_interval(array[:, layers], confidence=self.confidence, seed=self.seed)
            columns |= {metric: made.estimate, f"{metric}_ci_low": made.low, f"{metric}_ci_high": made.high}
            columns[f"{metric}_n"] = made.n
        return pd.DataFrame(columns)

    def top(self, k: int = 10, contrast: str | None = None) -> Any:
        """The `k` heads with the largest share (by magnitude) in the residual change, as rows of `summary`."""
        table = self.summary(contrast)
        order = table["share"].abs().sort_values(ascending=False, kind="stable").index
        return table.loc[order].head(k).reset_index(drop=True)

    def describe(self) -> str:
        """What was found, what is arithmetic, what cannot be said."""
        from .words import described

        return described(self)

    def __repr__(self) -> str:
        from .words import small_table

        return f"{self.describe()}\n{small_table(self)}"

    def _cells(self, array: np.ndarray) -> np.ndarray:
        return array[:, [head.layer for head in self.heads], [head.head for head in self.heads]]


def _mean(values: np.ndarray) -> np.ndarray:
    """Mean over the first axis of what is defined; NaN where nothing is."""
    defined = np.isfinite(values)
    count = defined.sum(0)
    return np.where(count > 0, np.where(defined, values, 0.0).sum(0) / np.maximum(count, 1), np.nan)
