"""The numbers that one layer's MLP activations of one run are reduced to, for any set of tokens."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..core.arguments import check_share
from ..metrics import activations as metrics
from ..metrics.received import kurtosis
from ..metrics.token_classes import CLASSES

VALUES: dict[str, str] = {
    "near_zero_arm": "share",
    "near_zero_quantile": "share",
    "relative_sparsity": "share",
    "mean": "activation",
    "variance": "activation²",
    "deviation": "activation",
    "l1": "activation",
    "mean_absolute": "activation",
    "l2": "activation",
    "root_mean_square": "activation",
    "gini": "number",
    "histogram_gini": "number",
    "q01": "activation",
    "q05": "activation",
    "q95": "activation",
    "q99": "activation",
    "minimum": "activation",
    "kurtosis": "number",
}
"""Metric -> unit; each has a value before and after."""
DISTANCES: dict[str, str] = {"wasserstein": "activation", "kolmogorov_smirnov": "number"}
"""Metric -> unit; each compares the two runs and has no value of its own before or after."""
GROUPS = ("all", *CLASSES)
"""All tokens together, then each token class."""


@dataclass(frozen=True)
class NearZero:
    """What counts as near zero, in the activations' unit: ARM's form and the quantile form, from one base run."""

    arm: float
    quantile: float

    @classmethod
    def of(cls, activations: Float[Tensor, "token d_mlp"], *, c: float, q: float) -> "NearZero":
        """The thresholds of a run, over all its tokens."""
        flat = activations.flatten()
        return cls(float(metrics.arm_threshold(flat, c=c)), float(metrics.quantile(flat.abs(), q=q)))


def summarise(
    activations: Float[Tensor, "token d_mlp"],
    *,
    thresholds: NearZero,
    own_threshold: float,
    edges: Float[Tensor, " edge"],
) -> dict[str, float]:
    """Every metric of `VALUES` for these tokens; all NaN where there is no token."""
    if not len(activations):
        return dict.fromkeys(VALUES, torch.nan)
    flat = activations.flatten()
    centre = metrics.quantile(activations.T, q=0.5)
    found = {
        "near_zero_arm": metrics.near_zero_fraction(flat, threshold=thresholds.arm),
        "near_zero_quantile": metrics.near_zero_fraction(flat, threshold=thresholds.quantile),
        "relative_sparsity": metrics.near_zero_fraction(flat, threshold=own_threshold),
        "mean": flat.mean(),
        "variance": metrics.median_variance(activations),
        "deviation": (activations - centre).abs().mean() if len(activations) > 1 else torch.nan,
        "l1": metrics.l1_norm(flat),
        "mean_absolute": metrics.mean_absolute(flat),
        "l2": metrics.l2_norm(flat),
        "root_mean_square": metrics.root_mean_square(flat),
        "gini": metrics.gini(flat),
        "histogram_gini": metrics.histogram_gini(flat, edges=edges.to(flat.device)),
        **{name: metrics.quantile(flat, q=int(name[1:]) / 100) for name in ("q01", "q05", "q95", "q99")},
        "minimum": flat.amin(),
        "kurtosis": kurtosis(flat),
    }
    return {name: float(found[name]) for name in VALUES}


def distances(before: Float[Tensor, "token d_mlp"], after: Float[Tensor, "token d_mlp"]) -> dict[str, float]:
    """Every metric of `DISTANCES` between the same tokens of two runs; NaN where there is no token."""
    if not len(before):
        return dict.fromkeys(DISTANCES, torch.nan)
    a, b = before.flatten(), after.flatten()
    return {
        "wasserstein": float(metrics.wasserstein(a, b)),
        "kolmogorov_smirnov": float(metrics.kolmogorov_smirnov(a, b)),
    }


def token_groups_of(classes: tuple[str, ...]) -> dict[str, Bool[Tensor, " token"]]:
    """Which tokens are in each of `GROUPS`."""
    masks = {name: torch.tensor([found == name for found in classes], dtype=torch.bool) for name in CLASSES}
    return {"all": torch.ones(len(classes), dtype=torch.bool)} | masks


def histogram_edges(activations: Float[Tensor, "token d_mlp"], *, bins: int) -> Float[Tensor, " edge"]:
    """Equal bins from the 0.1 to the 99.9 per cent quantile; what lies outside counts in the outer bins."""
    flat = activations.flatten().cpu()
    low, high = (float(metrics.quantile(flat, q=q)) for q in (0.001, 0.999))
    if not high > low:  # all activations are equal
        low, high = low - 1, low + 1
    return torch.linspace(low, high, bins + 1, dtype=torch.float64)


def check_widths(*, c: float, q: float) -> None:
    """`ValueError` unless both widths of near zero can be used."""
    if not 0 < c < float("inf"):
        raise ValueError(f"c is the width of near zero in robust standard deviations and must be positive, got {c!r}")
    check_share(q, name="q")
