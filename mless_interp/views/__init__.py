"""Pictures and pages of results; each is made when asked for, so that importing this loads no plotting library."""

from importlib import import_module
from typing import Any

_PUBLIC = {
    "head_map": "head_plots",
    "lambda_map": "head_plots",
    "forest": "head_plots",
    "head_patterns": "head_plots",
    "profile": "curve_plots",
    "profiles": "curve_plots",
    "compare_profiles": "curve_plots",
    "circuit_curve": "curve_plots",
    "dose_response": "curve_plots",
    "accuracy_bars": "outcome_plots",
    "activation_histograms": "outcome_plots",
    "bars_and_profiles": "outcome_plots",
    "lambda_heads": "mechanism",
    "shares": "mechanism",
    "affine_layers": "mechanism",
    "mediation": "mechanism",
    "near_zero": "mechanism",
    "attention": "circuits",
    "tokens": "circuits",
}
__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(f".{_PUBLIC[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
