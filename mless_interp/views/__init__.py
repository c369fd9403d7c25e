"""Pictures and pages of results; each is made when asked for, so that importing this loads no plotting library."""

import lazy_loader

PUBLIC = {
    "head_plots": ["forest", "head_map", "head_patterns", "lambda_map", "summary_plot"],
    "circuit_plots": ["direct_bars", "path_graph", "site_map"],
    "set_plots": ["set_growth", "transfer_bars"],
    "token_plots": ["token_bars"],
    "curve_plots": ["circuit_curve", "compare_profiles", "dose_response", "profile", "profiles"],
    "outcome_plots": ["accuracy_bars", "activation_histograms", "bars_and_profiles", "study_effects"],
    "mechanism_plots": [
        "affine_layers",
        "lambda_heads",
        "mediation",
        "near_zero",
        "read_effects",
        "shares",
        "span_map",
    ],
    "circuitsvis": ["attention", "tokens"],
}
"""module -> its public names."""
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs=PUBLIC)
