"""Do the same tokens spike with and without the span, and how high: timing and magnitude of attention spikes.

Inputs are two profiles over the same (shared) tokens, `inserted` already taken at the aligned positions (`profile[..., pi]`)
and NaN where undefined (sink, tail): tokens undefined in either run leave the comparison.
"""

import numpy as np
import torch
from jaxtyping import Bool
from scipy.signal import find_peaks
from scipy.stats import rankdata
from torch import Tensor

from mless_interp.core.shapes import PerColumn, PerHead
from mless_interp.metrics.segments import segment_mean, widened

Peaks = Bool[Tensor, "*lead src"]


def timing_pearson(base: PerColumn, inserted: PerColumn) -> PerHead:
    r"""Pearson correlation of two aligned profiles, in [-1, 1].

    $$ \frac{\sum_j (x_j - \bar x)(y_j - \bar y)}{\sqrt{\sum_j (x_j - \bar x)^2 \sum_j (y_j - \bar y)^2}} $$

    1: the same shape up to scale and offset; 0: unrelated. NaN where either is constant.

    >>> round(timing_pearson(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.0, 1.0, 2.0])).item(), 4)
    1.0
    """
    return _correlation(*_paired(base, inserted))


def timing_spearman(base: PerColumn, inserted: PerColumn) -> PerHead:
    r"""Spearman rank correlation of two aligned profiles, in [-1, 1]: do the same tokens rank high?

    Pearson's formula on ranks, ties sharing their mean rank. 1: the same order, whatever the heights; NaN where either is
    constant. High together with an `attenuation_slope` below 1 is "same timing, modulated magnitude". In the first layer
    against the gap condition that is nearly automatic.

    >>> round(timing_spearman(torch.tensor([1.0, 2.0, 9.0]), torch.tensor([0.1, 0.3, 0.4])).item(), 4)
    1.0
    """
    return _correlation(*(_ranks(x) for x in _paired(base, inserted)))


def attenuation_slope(base: PerColumn, inserted: PerColumn) -> PerHead:
    r"""Slope through the origin of the profile with the span on the profile without it, a ratio: attenuation.

    $$ \beta = \frac{\sum_j x_j y_j}{\sum_j x_j^2} $$

    1: unchanged; 0: everything gone; dominated by the spikes. NaN where the base is all zero.

    >>> attenuation_slope(torch.tensor([1.0, 2.0]), torch.tensor([0.5, 1.0]))
    tensor(0.5000)
    """
    x, y = _paired(base, inserted)
    square = x.square().nansum(-1)
    return torch.where(square > 0, (x * y).nansum(-1) / square, torch.nan)


def attenuation_r_squared(base: PerColumn, inserted: PerColumn) -> PerHead:
    r"""Share of the profile with the span that a pure scaling of the base profile explains.

    $$ R_0^2 = 1 - \frac{\sum_j (y_j - \beta x_j)^2}{\sum_j y_j^2} $$

    1: the same profile at another height; 0: a scaling explains nothing. About zero, not about the mean, as the line runs
    through the origin. NaN where either profile is all zero.

    >>> attenuation_r_squared(torch.tensor([1.0, 2.0]), torch.tensor([0.5, 1.0]))
    tensor(1.)
    """
    x, y = _paired(base, inserted)
    residual = y - attenuation_slope(base, inserted)[..., None] * x
    square = y.square().nansum(-1)
    undefined = (x.square().nansum(-1) == 0) | (square == 0)
    return torch.where(undefined, torch.nan, 1 - residual.square().nansum(-1) / square)


def spike_peaks(received: PerColumn, *, min_prominence: float | None = None) -> Peaks:
    r"""The tokens at which a profile peaks: local maxima that stand out.

    A strict local maximum (of a plateau its leftmost token) with a prominence of at least `min_prominence`, by default $1.4826
    \cdot \operatorname{MAD}$ of the profile. Undefined tokens are passed over as if absent; the first and last are never peaks.
    Source: project's own (methods 4.6), on `scipy.signal.find_peaks`.

    >>> spike_peaks(torch.tensor([0.1, 0.5, 0.1, 0.11, 0.1, 0.3, 0.2])).int().tolist()
    [0, 1, 0, 0, 0, 1, 0]
    """
    received = widened(received).detach()
    deviation = (received - received.nanquantile(0.5, dim=-1, keepdim=True)).abs()
    bars = (1.4826 * deviation.nanquantile(0.5, dim=-1)).cpu().numpy()
    profiles = received.cpu().numpy()
    peaks = np.zeros(profiles.shape, dtype=bool)
    for index in np.ndindex(profiles.shape[:-1]):
        (tokens,) = np.nonzero(~np.isnan(profiles[index]))
        values = profiles[index][tokens]
        if len(values) < 3:
            continue
        bar = bars[index] if min_prominence is None else min_prominence
        _, found = find_peaks(values, prominence=bar, plateau_size=1)
        peaks[index][tokens[found["left_edges"]]] = True
    return torch.from_numpy(peaks).to(received.device)


def matched_peaks_f1(base_peaks: Peaks, inserted_peaks: Peaks, *, tolerance: int = 0) -> PerHead:
    r"""How many peaks two aligned profiles share, as an F1 score in [0, 1].

    $$ F_1 = \frac{2\,TP}{|P_x| + |P_y|} $$

    1: all peaks coincide within `tolerance` tokens, each used once; 0: none. NaN where neither has a peak.

    >>> matched_peaks_f1(torch.tensor([True, False, True]), torch.tensor([True, False, False]))
    tensor(0.6667)
    """
    left, right = base_peaks.cpu().numpy(), inserted_peaks.cpu().numpy()
    matched = np.zeros(left.shape[:-1])
    for index in np.ndindex(matched.shape):
        a, b = np.flatnonzero(left[index]), np.flatnonzero(right[index])
        i = j = 0
        while i < len(a) and j < len(b):
            if abs(a[i] - b[j]) <= tolerance:
                matched[index] += 1
                i, j = i + 1, j + 1
            elif a[i] < b[j]:
                i += 1
            else:
                j += 1
    total = base_peaks.sum(-1) + inserted_peaks.sum(-1)
    share = 2 * torch.from_numpy(matched).to(base_peaks.device) / total
    return torch.where(total > 0, share, torch.nan).float()


def peak_attenuation(base: PerColumn, inserted: PerColumn, *, peaks: Peaks) -> PerHead:
    r"""Mean height of the base profile's peaks that is left with the span, a ratio.

    $$ \frac{1}{|P_x|} \sum_{j \in P_x} y_j / x_j $$

    1: spikes unchanged; 0: gone. `peaks` are `spike_peaks(base)`; NaN where there is none.

    >>> peak_attenuation(torch.tensor([0.1, 0.4]), torch.tensor([0.1, 0.1]), peaks=torch.tensor([False, True]))
    tensor(0.2500)
    """
    x, y = _paired(base, inserted)
    return segment_mean(torch.where(x > 0, y / x, torch.nan), peaks)


def _paired(base: Tensor, inserted: Tensor) -> tuple[Tensor, Tensor]:
    """Both profiles, NaN where either is."""
    base, inserted = widened(base), widened(inserted)
    drop = base.isnan() | inserted.isnan()
    return base.masked_fill(drop, torch.nan), inserted.masked_fill(drop, torch.nan)


def _ranks(values: Tensor) -> Tensor:
    ranks = rankdata(values.detach().cpu().numpy(), axis=-1, nan_policy="omit")
    return torch.from_numpy(np.asarray(ranks)).to(values.device, values.dtype)


def _correlation(x: Tensor, y: Tensor) -> Tensor:
    """Pearson's correlation over the defined entries (the same in both), NaN where either is constant."""
    product = (_standardised(x) * _standardised(y)).nansum(-1).clamp(-1, 1)
    varied = [v.nan_to_num(nan=-torch.inf).amax(-1) > v.nan_to_num(nan=torch.inf).amin(-1) for v in (x, y)]
    return torch.where(varied[0] & varied[1], product, torch.nan)


def _standardised(values: Tensor) -> Tensor:
    centred = values - values.nanmean(-1, keepdim=True)
    return centred / centred.square().nansum(-1, keepdim=True).sqrt()
