"""The sentences under an `AttentionDecomposition`: what was found, what is arithmetic, what cannot be said."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .decomposition import AttentionDecomposition

ALPHA = 0.05


def described(found: "AttentionDecomposition") -> str:
    """All sentences, in order of what they rest on."""
    contrast = found.contrasts[0]
    sentences = [
        f"{len(found.heads)} heads in {len(found.layers)} layers (zero-based), {len(found.problem_ids)} problems, "
        f"{found.settings.get('insertion', 'an insertion')}, contrast {contrast!r}.",
        _identity(found, contrast),
        _lambda(found, contrast),
        _fit(found, contrast),
        _shares(found, contrast),
        _shift(found),
        _undefined(found),
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def small_table(found: "AttentionDecomposition", k: int = 10) -> str:
    """The heads with the largest share, with both numbers that are called lambda."""
    contrast = found.contrasts[0]
    names = ["lam", "residual", "fit_slope", "fit_r2", "share", "scale_share", "bias_share"]
    import pandas as pd

    table = pd.DataFrame({"label": [str(head) for head in found.heads]})
    table["paper_label"] = [head.paper_label for head in found.heads]
    layers, heads = [head.layer for head in found.heads], [head.head for head in found.heads]
    for name in names:
        table[name] = found.mean(name, contrast)[layers, heads]
    null = found.layer_values["lam_null"][contrast].mean(0)
    table.insert(3, "lam_null", null[layers])
    order = table["share"].abs().sort_values(ascending=False, kind="stable").index
    shown = table.loc[order].head(k).rename(columns={"fit_slope": "fit_slope(not_lam)"})
    return shown.to_string(index=False, float_format=lambda x: f"{x:.4f}")


def _identity(found: "AttentionDecomposition", contrast: str) -> str:
    residual = found.of("residual", contrast)
    words = []
    if 0 in found.layers:
        largest = _largest(residual[:, 0])
        if np.isfinite(largest):
            words.append(
                f"In layer 0 z' = lambda z + Sigma leaves {largest:.1e} of the change open at most: that form is an "
                "identity there, for any inserted text, not a finding."
            )
    deeper = [layer for layer in found.layers if layer]
    per_layer = {layer: _middle(residual[:, layer]) for layer in deeper}
    known = {layer: value for layer, value in per_layer.items() if np.isfinite(value)}
    if known:
        low, high = min(known, key=known.__getitem__), max(known, key=known.__getitem__)
        where = f"(layer {low}) to {known[high]:.2f} (layer {high})" if low != high else f"(layer {low})"
        words.append(
            f"In deeper layers it leaves a residual of {known[low]:.2f} {where} of the change, median over heads and "
            "problems: what upstream layers changed."
        )
    return " ".join(words)


def _lambda(found: "AttentionDecomposition", contrast: str) -> str:
    lam = found.mean("lam", contrast)
    null = found.layer_values["lam_null"][contrast][:, list(found.layers)]
    words = f"Lambda runs from {np.nanmin(lam):.3f} to {np.nanmax(lam):.3f} over heads; uniform attention would keep "
    low, high = float(np.nanmin(null.mean(0))), float(np.nanmax(null.mean(0)))
    words += f"{low:.3f}" if high - low < 5e-4 else f"{low:.3f} to {high:.3f}, by layer"
    for against, name in (("uniform", "uniform"), ("control", str(found.settings.get("control")))):
        if against == "control" and (found.control is None or contrast == "held"):
            continue
        test = found.null_test(against, contrast)
        if test is None:
            alone = len(found.problem_ids) < 2
            words += "; a single problem tests nothing" if alone else f"; no head differs from {name}"
            continue
        with np.errstate(invalid="ignore"):
            sure = test.p_corrected < ALPHA
        above, below = int((sure & (test.statistic > 0)).sum()), int((sure & (test.statistic < 0)).sum())
        words += f"; against {name} {above} heads keep more and {below} less (corrected p < {ALPHA:g}"
        words += f", smallest reachable {test.smallest_p:.2g})" if test.smallest_p >= ALPHA else ")"
    return words + "."


def _fit(found: "AttentionDecomposition", contrast: str) -> str:
    slope, r2, lam = (found.mean(name, contrast) for name in ("fit_slope", "fit_r2", "lam"))
    if not np.isfinite(slope).any():
        return ""
    apart = np.abs(slope - lam)
    outside = int(((slope < 0) | (slope > 1)).sum())
    return (
        "The slope of the best global affine fit is another number than lambda: median difference "
        f"{np.nanmedian(apart):.3f}, largest {np.nanmax(apart):.3f}, {outside} heads outside [0, 1], where lambda always "
        f"lies; its R squared has median {np.nanmedian(r2):.3f}."
    )


def _shares(found: "AttentionDecomposition", contrast: str) -> str:
    table = found.layer_table(contrast).set_index("layer")
    layer = found.layers[0]
    row = table.loc[layer]
    if not np.isfinite(row["share"]):
        return ""
    words = (
        f"In layer {layer} the change of attention's output is {row['scale_share']:+.2f} scale and "
        f"{row['bias_share']:+.2f} bias"
    )
    words += "" if layer == 0 else f" and {row['rest_share']:+.2f} from upstream"
    complete = len([head for head in found.heads if head.layer == layer]) == found.settings.get("n_heads")
    words += " of the whole (shares are signed)" if complete else " (of the asked heads; shares are signed)"
    if "norm_share" in table and np.isfinite(row["norm_share"]):
        words += (
            f"; this model norms what attention writes, so shares are exact before that norm, and after it "
            f"(scale frozen) {row['scale_share_after_norm']:+.2f} and {row['bias_share_after_norm']:+.2f} with "
            f"{row['norm_share']:+.2f} for the norm's own rescaling"
        )
    return words + ". That a head writes something does not say whether anything reads it: that needs patching."


def _shift(found: "AttentionDecomposition") -> str:
    if "total" not in found.contrasts or 0 not in found.layers:
        return ""
    left = _middle(found.of("shift_left_out", "total")[:, 0])
    if not np.isfinite(left):
        return ""
    return (
        f"Against the plain prompt the paper's Eq. 2 leaves out the shift of positions, lambda (z_gap - z_base): in "
        f"layer 0 a median of {left:.2f} of the change."
    )


def _undefined(found: "AttentionDecomposition") -> str:
    counted = []
    for metric, by_contrast in found.values.items():
        missing = sum(int(np.isnan(found._cells(array)).sum()) for array in by_contrast.values())
        total = sum(found._cells(array).size for array in by_contrast.values())
        if missing:
            counted.append(f"{metric} {missing}/{total}")
    return f"Undefined (NaN; no change beyond rounding, or too few rows): {', '.join(counted)}." if counted else ""


def _middle(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if finite.size else float("nan")


def _largest(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.max()) if finite.size else float("nan")
