"""Collapse inside the span, recovery after it, and spikes: from the attention that each token receives.

Profiles are `received_attention`, or better `relative_received`, which has no positional trend, NaN where undefined. Two are
compared over the same (shared) tokens, `inserted` already taken at the aligned positions (`profile[..., pi]`); tokens undefined
in either run leave the comparison. "Collapse" is low attention on the span (`span_collapse`), not entropy or rank collapse.
"""

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy.signal import find_peaks
from scipy.stats import rankdata
from torch import Tensor

from ..core.shapes import PerColumn, PerHead, Segment
from .patterns import check_segment, check_span, segment_mean, widened

LEAST_LEVEL = 1e-12  # a mean attention below it is taken for none


def span_collapse(received: PerColumn, *, span: Segment, reference: Segment) -> PerHead:
    r"""Return how far the mean level of the span lies below a reference level: C, a share of that level.

    $C = 1 - \bar r_I / \bar r_{\text{ref}} \in (-\infty, 1]$. 1: the span receives nothing; 0: as much as the reference.
    `reference` are usually the tokens before the span without the sink. NaN where there are none, or their level is 0. Source:
    project's own (methods 4.4); on relative received attention the headline $C_\rho$.

    >>> span_collapse(torch.tensor([0.4, 0.1, 0.1]), span=torch.tensor([False, True, True]),
    ...               reference=torch.tensor([True, False, False]))
    tensor(0.7500)
    """
    check_span(span, n_tokens=received.shape[-1])
    return 1 - recovery_ratio(received, before=reference, after=span)


def collapsed_share(relative: PerColumn, *, span: Segment, threshold: float = 0.25) -> PerHead:
    r"""Return the share of the span's tokens that receive less than `threshold` times uniform attention, in [0, 1].

    $|\{j \in I : \rho_j < \theta\}| / |I|$. 0: none is collapsed; 1: all are. Usual thresholds: 0.1, 0.25, 0.5.

    >>> collapsed_share(torch.tensor([1.0, 0.1, 0.3]), span=torch.tensor([False, True, True]))
    tensor(0.5000)
    """
    check_span(span, n_tokens=relative.shape[-1])
    relative = widened(relative)
    return segment_mean(torch.where(relative.isnan(), torch.nan, (relative < threshold).to(relative.dtype)), span)


def onset_step(relative: PerColumn, *, span: Segment, width: int = 5) -> PerHead:
    r"""Return the jump of the level at the start of the span, in the profile's unit.

    $\operatorname{mean}(\rho_{a}, \dots, \rho_{a+w-1}) - \operatorname{mean}(\rho_{a-w}, \dots, \rho_{a-1})$. Negative:
    attention drops. Windows stop at the span's end and the prompt's start; NaN where nothing defined precedes it. Make the
    sink NaN first, or it counts.

    >>> onset_step(torch.tensor([1.0, 1.0, 0.25, 0.25, 1.0]), span=torch.tensor([False, False, True, True, False]))
    tensor(-0.7500)
    """
    check_span(span, n_tokens=relative.shape[-1])
    offset = torch.arange(relative.shape[-1], device=relative.device) - span.int().argmax(-1, keepdim=True)
    if (span != (offset >= 0) & (offset < span.sum(-1, keepdim=True))).any():
        raise ValueError("the span has several pieces, and an onset is only defined for one block: use span_collapse")
    before = (offset < 0) & (offset >= -width)
    return segment_mean(relative, span & (offset < width)) - segment_mean(relative, before)


def span_variation(received: PerColumn, *, span: Segment) -> PerHead:
    r"""Return the coefficient of variation of the profile over the span: population deviation over mean, a pure number.

    $\mathrm{CV} = \operatorname{sd}_{j \in I}(r_j) \,/\, \bar r_I$. 0: every span token receives the same (the paper's claim).
    NaN with fewer than two defined tokens or a mean of 0.

    >>> span_variation(torch.tensor([9.0, 1.0, 3.0]), span=torch.tensor([False, True, True]))
    tensor(0.5000)
    """
    check_span(span, n_tokens=received.shape[-1])
    received = widened(received)
    mean = segment_mean(received, span)
    deviation = segment_mean((received - mean[..., None]).square(), span).sqrt()
    count = (span & ~received.isnan()).sum(-1)
    return torch.where((count > 1) & (mean >= LEAST_LEVEL), deviation / mean, torch.nan)


def recovery_ratio(received: PerColumn, *, before: Segment, after: Segment) -> PerHead:
    r"""Return the level after the span relative to the level before it, within one run, a ratio.

    $R_{\text{ratio}} = \bar r_{\text{post}} / \bar r_{\text{pre}}$ of the question (`after`) and the prefix without its sink
    (`before`). 1: the level is back. NaN where the level before is 0. On the raw profile largely positional.

    >>> recovery_ratio(torch.tensor([0.4, 0.1, 0.2]), before=torch.tensor([True, False, False]),
    ...                after=torch.tensor([False, False, True]))
    tensor(0.5000)
    """
    level = segment_mean(received, before)
    return torch.where(level >= LEAST_LEVEL, segment_mean(received, after) / level, torch.nan)


def recovery_fraction(
    received: PerColumn, *, before: Segment, span: Segment, after: Segment, tolerance: float = 0.05
) -> PerHead:
    r"""Return the share of the drop from before the span to inside it that is made up after it.

    $R_{\text{frac}} = (\bar r_{\text{post}} - \bar r_{\text{span}}) / (\bar r_{\text{pre}} - \bar r_{\text{span}})$. 0: none;
    1: full; above 1: overshoot. NaN without a step to recover from:
    $|\text{pre} - \text{span}| < \text{tolerance} \cdot \max(\text{pre}, \text{span})$.

    >>> recovery_fraction(torch.tensor([0.5, 0.1, 0.2]), before=torch.tensor([True, False, False]),
    ...                   span=torch.tensor([False, True, False]), after=torch.tensor([False, False, True]))
    tensor(0.2500)
    """
    check_span(span, n_tokens=received.shape[-1])
    pre, inside, post = (segment_mean(received, segment) for segment in (before, span, after))
    step = pre - inside
    defined = (step != 0) & (step.abs() >= tolerance * torch.maximum(pre, inside))
    return torch.where(defined, (post - inside) / step, torch.nan)


def aligned_recovery(base: PerColumn, inserted: PerColumn, *, tokens: Segment) -> PerHead:
    r"""Return the attention that the same tokens keep when the span is inserted, a ratio of sums: retention across conditions.

    $R_{\text{aligned}} = \sum_{j \in S} r'_{\pi(j)} / \sum_{j \in S} r_j$, both over shared rows; `tokens` is usually the
    question. 1: all of it. NaN where the base sum is 0. Against the gap or masked condition instead of the plain prompt it is
    content only.

    >>> aligned_recovery(torch.tensor([0.5, 0.3]), torch.tensor([0.4, 0.15]), tokens=torch.tensor([False, True]))
    tensor(0.5000)
    """
    check_segment(tokens, name="tokens", n_tokens=base.shape[-1])
    base, inserted = widened(base), widened(inserted)
    keep = tokens & ~base.isnan() & ~inserted.isnan()
    total = torch.where(keep, base, 0).sum(-1)
    return torch.where(total > 0, torch.where(keep, inserted, 0).sum(-1) / total, torch.nan)


def aligned_ratio(base: PerColumn, inserted: PerColumn) -> PerColumn:
    r"""Return the attention that each aligned token receives with the span relative to without it, a ratio.

    $r'_{\pi(j)} / r_j$. 1: unchanged; below 1: attenuated. NaN where the base receives nothing.

    >>> aligned_ratio(torch.tensor([0.5, 0.0]), torch.tensor([0.25, 0.1]))
    tensor([0.5000,    nan])
    """
    base = widened(base)
    return torch.where(base >= LEAST_LEVEL, widened(inserted) / base, torch.nan)


def recovery_latency(
    after: PerColumn, reference: Float[Tensor, "*#lead #src"], *, width: int = 5, threshold: float = 0.5
) -> PerHead:
    r"""Count the tokens after the span until the level has come back to a share of its reference.

    $t^* = \min\{t \ge 0 : \operatorname{mean}(\rho'_{b+t}, \dots, \rho'_{b+t+w-1}) \ge \theta \cdot \text{ref}_t\}$. 0: at
    once; inf: never within the question (censored: take medians). `after` is the profile from the span's end on; `reference`
    that of the same tokens without the span (preferred), or one level per head, as `[..., None]`. NaN if no window is defined
    with a reference above 0.

    >>> recovery_latency(torch.tensor([0.1, 0.2, 0.6, 0.8]), torch.tensor([1.0]), width=2)
    tensor(2.)
    """
    after, reference = widened(after), widened(reference)
    if after.shape[-1] < width:
        return after.new_full(after.shape[:-1], torch.nan)
    level = after.unfold(-1, width, 1).mean(-1)
    aim = threshold * reference.expand(after.shape).unfold(-1, width, 1).mean(-1)
    defined = ~level.isnan() & (aim > 0)
    reached = defined & (level >= aim)
    latency = torch.where(reached.any(-1), reached.int().argmax(-1).to(after.dtype), torch.inf)
    return torch.where(defined.any(-1), latency, torch.nan)


def running_median(series: PerColumn, *, width: int = 5) -> PerColumn:
    """Return the median of each value and its neighbours (`width` is odd) without NaN; windows shrink evenly at the ends.

    >>> running_median(torch.tensor([1.0, 2.0, 9.0, 3.0, 4.0]), width=3)
    tensor([1., 2., 3., 4., 4.])
    """
    series = widened(series)
    n, half = series.shape[-1], width // 2
    windows = torch.nn.functional.pad(series, (half, half), value=torch.nan).unfold(-1, width, 1)
    position = torch.arange(n, device=series.device)
    reach = torch.minimum(position, n - 1 - position)[:, None]
    offset = torch.arange(-half, half + 1, device=series.device).abs()
    return torch.where(offset <= reach, windows, torch.nan).nanquantile(0.5, dim=-1)


def recovery_time_constant(ratio: PerColumn, *, min_points: int = 8, min_r_squared: float = 0.1) -> PerHead:
    r"""Return the time constant of the recovery after the span, in tokens, by least squares.

    $y(t) = y_\infty - (y_\infty - y_0)\, e^{-t/\tau}$, $\tau \in [0.2, n]$: at an end, shorter or longer than the series can
    tell. `ratio` is `running_median(aligned_ratio(...))` from the span's end on. For each tau on a logarithmic grid, refined
    twice around its best point, the other two are linear. NaN with fewer than `min_points` defined values or an R squared
    below `min_r_squared`.

    >>> recovery_time_constant(0.3 - 0.2 * torch.exp(-torch.arange(8.0) / 2))
    tensor(2.0000)
    """
    series = ratio.double()
    keep = series.isfinite()
    count = keep.sum(-1)
    n = count.clamp(min=1)
    filled = torch.where(keep, series, 0)
    y = torch.where(keep, filled - (filled.sum(-1) / n)[..., None], 0)
    total = y.square().sum(-1)
    varied = total > 1e-12 * filled.square().sum(-1)  # else it is float32's rounding
    times = torch.arange(series.shape[-1], dtype=torch.float64, device=series.device)

    def residual(tau: Tensor) -> Tensor:
        decay = torch.where(keep[..., None, :], (-times / tau[..., None]).exp(), 0)
        decay = torch.where(keep[..., None, :], decay - (decay.sum(-1) / n[..., None])[..., None], 0)
        slope = (decay * y[..., None, :]).sum(-1) / decay.square().sum(-1).clamp(min=1e-300)
        return (y[..., None, :] - slope[..., None] * decay).square().sum(-1)

    steps = torch.linspace(0, 1, 64, dtype=torch.float64, device=series.device)
    low, high = torch.full_like(total, 0.2).log(), n.double().clamp(min=1).log()
    for _ in range(3):
        grid = low[..., None] + (high - low)[..., None] * steps
        errors = residual(grid.exp())
        best = errors.argmin(-1)
        low, high = (grid.gather(-1, (best + side).clamp(0, len(steps) - 1)[..., None])[..., 0] for side in (-1, 1))
    tau = grid.gather(-1, best[..., None])[..., 0].exp()
    error = errors.gather(-1, best[..., None])[..., 0]
    r_squared = torch.where((count >= min_points) & varied, 1 - error / total, torch.nan)
    return torch.where(r_squared >= min_r_squared, tau, torch.nan).to(widened(ratio).dtype)


Peaks = Bool[Tensor, "*lead src"]


def timing_pearson(base: PerColumn, inserted: PerColumn) -> PerHead:
    r"""Return the Pearson correlation of two aligned profiles, in [-1, 1].

    1: the same shape up to scale and offset; 0: unrelated. NaN where either is constant.

    >>> round(timing_pearson(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.0, 1.0, 2.0])).item(), 4)
    1.0
    """
    return _correlation(*_paired(base, inserted))


def timing_spearman(base: PerColumn, inserted: PerColumn) -> PerHead:
    r"""Return the Spearman rank correlation of two aligned profiles, in [-1, 1]: do the same tokens rank high?

    Ties share their mean rank; NaN where either is constant. High together with an `attenuation_slope` below 1 is "same timing,
    modulated magnitude". In the first layer against the gap that is automatic.

    >>> round(timing_spearman(torch.tensor([1.0, 2.0, 9.0]), torch.tensor([0.1, 0.3, 0.4])).item(), 4)
    1.0
    """
    return _correlation(*(_ranks(values) for values in _paired(base, inserted)))


def _correlation(x: PerColumn, y: PerColumn) -> PerHead:
    varied = [v.nan_to_num(nan=-torch.inf).amax(-1) > v.nan_to_num(nan=torch.inf).amin(-1) for v in (x, y)]
    centred = [values - values.nanmean(-1, keepdim=True) for values in (x, y)]
    x, y = (values / values.square().nansum(-1, keepdim=True).sqrt() for values in centred)
    return torch.where(varied[0] & varied[1], (x * y).nansum(-1).clamp(-1, 1), torch.nan)


def attenuation_slope(base: PerColumn, inserted: PerColumn) -> PerHead:
    r"""Return the slope through the origin of the profile with the span on the profile without it, a ratio: attenuation.

    $\beta = \sum_j x_j y_j / \sum_j x_j^2$. 1: unchanged; 0: everything gone. NaN where the base is all zero.

    >>> attenuation_slope(torch.tensor([1.0, 2.0]), torch.tensor([0.5, 1.0]))
    tensor(0.5000)
    """
    x, y = _paired(base, inserted)
    square = x.square().nansum(-1)  # 0 also where squares are too small for float32
    return torch.where(square > 0, (x * y).nansum(-1) / square, torch.nan)


def attenuation_r_squared(base: PerColumn, inserted: PerColumn) -> PerHead:
    r"""Return the share of the profile with the span that a pure scaling of the base profile explains.

    $R_0^2 = 1 - \sum_j (y_j - \beta x_j)^2 / \sum_j y_j^2$, about zero. 1: the same profile at another height. NaN where
    either is all zero.

    >>> attenuation_r_squared(torch.tensor([1.0, 2.0]), torch.tensor([0.5, 1.0]))
    tensor(1.)
    """
    x, y = _paired(base, inserted)
    residual = y - attenuation_slope(base, inserted)[..., None] * x
    square = y.square().nansum(-1)
    undefined = (x.square().nansum(-1) == 0) | (square == 0)
    return torch.where(undefined, torch.nan, 1 - residual.square().nansum(-1) / square)


def spike_peaks(received: PerColumn) -> Peaks:
    r"""Return the tokens at which a profile peaks: local maxima that stand out.

    A strict local maximum (of a plateau its leftmost token) with a prominence of at least 1.4826 MAD of the profile. Undefined
    tokens are passed over as if absent; the first and last are never peaks (methods 4.6).

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
        _, found = find_peaks(values, prominence=bars[index], plateau_size=1)
        peaks[index][tokens[found["left_edges"]]] = True
    return torch.from_numpy(peaks).to(received.device)


def matched_peaks_f1(base_peaks: Peaks, inserted_peaks: Peaks) -> PerHead:
    r"""Return how many peaks two aligned profiles share, as an F1 score in [0, 1].

    $F_1 = 2\,TP / (|P_x| + |P_y|)$. 1: all coincide. NaN where neither has a peak.

    >>> matched_peaks_f1(torch.tensor([True, False, True]), torch.tensor([True, False, False]))
    tensor(0.6667)
    """
    return 2 * (base_peaks & inserted_peaks).sum(-1) / (base_peaks.sum(-1) + inserted_peaks.sum(-1))


def peak_attenuation(base: PerColumn, inserted: PerColumn, *, peaks: Peaks) -> PerHead:
    r"""Return the mean height of the base profile's peaks that is left with the span, a ratio.

    $\frac{1}{|P_x|} \sum_{j \in P_x} y_j / x_j$ with the peaks of `spike_peaks(base)`. 1: unchanged; 0: gone. NaN where there
    is none.

    >>> peak_attenuation(torch.tensor([0.1, 0.4]), torch.tensor([0.1, 0.1]), peaks=torch.tensor([False, True]))
    tensor(0.2500)
    """
    x, y = _paired(base, inserted)
    return segment_mean(torch.where(x > 0, y / x, torch.nan), peaks)


def _paired(base: Tensor, inserted: Tensor) -> tuple[Tensor, Tensor]:
    base, inserted = widened(base), widened(inserted)
    drop = base.isnan() | inserted.isnan()
    return base.masked_fill(drop, torch.nan), inserted.masked_fill(drop, torch.nan)


def _ranks(values: Tensor) -> Tensor:
    ranks = rankdata(values.detach().cpu().numpy(), axis=-1, nan_policy="omit")
    return torch.from_numpy(np.asarray(ranks)).to(values.device, values.dtype)
