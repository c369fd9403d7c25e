"""Metrics of activations: near zero, size, inequality, tails, the shift between two runs, and what a linear probe reads.

Functions of MLP activations reduce the last axis (`element`): flatten tokens and neurons into it, of the *shared* tokens only
(span tokens exist in one run), or keep tokens as a leading axis for one number per token.
"""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .patterns import widened

Activations = Float[Tensor, "*lead element"]
Summary = Float[Tensor, "*lead"]


def arm_threshold(activations: Activations, *, c: float, absolute: bool = True) -> Summary:
    r"""Return the half-width of "near zero" by the paper's ARM, in the activations' unit.

    $$ \epsilon = 1.4826 \cdot \operatorname{MAD} \cdot c, \qquad
       \operatorname{MAD} = \operatorname{med}\bigl|\,|a| - \operatorname{med}|a|\,\bigr| $$

    Both medians are the *lower* middle value, and MAD is at least 1e-12, as in the released code; the paper's text takes MAD
    of the activations themselves (`absolute=False`). c runs from 0.05 to 0.45 in the paper, without a rule: vary it.

    >>> arm_threshold(torch.tensor([0.0, 1.0, -2.0, 3.0]), c=1.0)
    tensor(1.4826)
    """
    values = widened(activations)
    size = values.abs() if absolute else values
    centre = size.median(-1, keepdim=True).values
    return 1.4826 * c * (size - centre).abs().median(-1).values.clamp(min=1e-12)


def quantile(activations: Activations, *, q: float) -> Summary:
    """Return the `q` quantile of the activations, linearly interpolated, in their unit; `torch.quantile` stops at 16 million.

    >>> quantile(torch.tensor([0.0, 4.0, 1.0]), q=0.75)
    tensor(2.5000)
    """
    values = widened(activations)
    place = q * (values.shape[-1] - 1)
    low = int(place)
    lower = values.kthvalue(low + 1).values
    if place == low:
        return lower
    return torch.lerp(lower, values.kthvalue(low + 2).values, place - low)


def near_zero_fraction(activations: Activations, *, threshold: Float[Tensor, "*#lead"] | float) -> Summary:
    r"""Return the share of activations closer to zero than `threshold`, in [0, 1].

    $\mathrm{nz}(\epsilon) = \operatorname{mean}[\,|a| < \epsilon\,]$. Take the threshold from the base run
    (`arm_threshold`, or a `quantile` of the absolute activations) and use it for both.

    >>> near_zero_fraction(torch.tensor([0.0, -0.1, 0.5, 1.0]), threshold=0.2)
    tensor(0.5000)
    """
    activations = widened(activations)
    bar = torch.as_tensor(threshold, dtype=activations.dtype, device=activations.device)
    return (activations.abs() < bar[..., None]).to(activations.dtype).mean(-1)


def l1_norm(activations: Activations) -> Summary:
    """Return the sum of absolute activations, in their unit; grows with the number of elements.

    >>> l1_norm(torch.tensor([3.0, -4.0]))
    tensor(7.)
    """
    return widened(activations).abs().sum(-1)


def l2_norm(activations: Activations) -> Summary:
    """Return the Euclidean norm of the activations, in their unit; grows with the number of elements.

    >>> l2_norm(torch.tensor([3.0, -4.0]))
    tensor(5.)
    """
    return widened(activations).norm(dim=-1)


def mean_absolute(activations: Activations) -> Summary:
    """Return the mean absolute activation, in their unit: the L1 norm per element.

    >>> mean_absolute(torch.tensor([3.0, -4.0]))
    tensor(3.5000)
    """
    return widened(activations).abs().mean(-1)


def root_mean_square(activations: Activations) -> Summary:
    """Return the root mean square activation, in their unit: the L2 norm per root of elements.

    >>> root_mean_square(torch.tensor([1.0, -1.0]))
    tensor(1.)
    """
    return widened(activations).square().mean(-1).sqrt()


def gini(values: Activations) -> Summary:
    r"""Return the Gini coefficient of the absolute values, in [0, 1 - 1/n]: inequality among elements.

    $G = \frac{\sum_k (2k - n - 1)\, |a|_{(k)}}{n \sum_k |a|_k}, \qquad |a|_{(1)} \le \dots \le |a|_{(n)}$. 0: all equal;
    $1 - 1/n$: one element has everything. NaN where all are zero. Source: Hurley & Rickard 2009 (arXiv 0811.4706). The paper
    (arXiv 2510.01032, Fig. 4; no bins given) applies it to the counts of a `histogram`, the same bins for both runs: 0 where
    every bin is equally full.

    >>> gini(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    tensor(0.2500)
    """
    ordered = widened(values).abs().sort(-1).values
    n = ordered.shape[-1]
    weights = 2 * torch.arange(1, n + 1, device=ordered.device) - n - 1
    return (weights * ordered).sum(-1) / (n * ordered.sum(-1))  # 0 / 0 is NaN


def histogram(activations: Activations, *, edges: Float[Tensor, " edge"]) -> Float[Tensor, "*lead bin"]:
    """Count how many activations fall into each bin of increasing `edges`; values beyond them count in the outer bins.

    >>> histogram(torch.tensor([0.1, 0.2, 0.9, 7.0]), edges=torch.tensor([0.0, 0.5, 1.0]))
    tensor([2., 2.])
    """
    activations = widened(activations)
    bins = torch.bucketize(activations, edges[1:-1].to(activations), right=True)
    counts = activations.new_zeros((*activations.shape[:-1], len(edges) - 1))
    return counts.scatter_add(-1, bins, torch.ones_like(activations))


def wasserstein(base: Activations, inserted: Float[Tensor, "*lead inserted_element"]) -> Summary:
    r"""Return the Wasserstein-1 distance of two equally large samples, in their unit: how far values moved on average.

    $W_1 = \operatorname{mean}_k \bigl|a_{(k)} - b_{(k)}\bigr|$. 0: the same values in any order.

    >>> wasserstein(torch.tensor([0.0, 1.0]), torch.tensor([3.0, 2.0]))
    tensor(2.)
    """
    return (widened(base).sort(-1).values - widened(inserted).sort(-1).values).abs().mean(-1)


def kolmogorov_smirnov(base: Activations, inserted: Float[Tensor, "*lead inserted_element"]) -> Summary:
    r"""Return the largest gap between the cumulative distributions of two samples, in [0, 1].

    $D = \sup_x |F_a(x) - F_b(x)|$. 1: no overlap. Elements are dependent, so its usual p-value means nothing.

    >>> kolmogorov_smirnov(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0]))
    tensor(0.5000)
    """
    a, b = (widened(x).sort(-1).values for x in (base, inserted))
    a, b = a.contiguous(), b.contiguous()
    points = torch.cat([a, b], -1)
    cumulative = [torch.searchsorted(x, points, right=True).to(points.dtype) / x.shape[-1] for x in (a, b)]
    return (cumulative[0] - cumulative[1]).abs().amax(-1)


def median_variance(activations: Float[Tensor, "*lead token d_mlp"]) -> Summary:
    r"""Return the variance of each neuron across tokens, median over neurons, in squared units of the activations.

    $\operatorname{med}_d \operatorname{Var}_t(a_{td})$, $n - 1$; NaN with fewer than two tokens. Compare per prompt, not per
    element.

    >>> median_variance(torch.tensor([[0.0, 0.0, 5.0], [2.0, 4.0, 5.0]]))
    tensor(2.)
    """
    activations = widened(activations)
    if activations.shape[-2] < 2:
        return activations.new_full(activations.shape[:-2], torch.nan)
    return quantile(activations.var(-2), q=0.5)


PENALTIES = (1e3, 1e2, 10.0, 1.0, 0.1, 1e-2, 1e-3)
"""Of the ridge, as multiples of the mean eigenvalue; of equally good ones the largest is taken."""
Gram = Float[np.ndarray, "row row"]


def ridge_scores(
    gram: Gram, labels: Int[np.ndarray, " row"], train: np.ndarray, test: np.ndarray, *, least: float = 0.0
) -> Float[np.ndarray, "test label"]:
    r"""Return the score of every label in the tested rows by a ridge regression on the training rows, in the dual.

    Labels 0, 1, ... become indicators $Y$; $K$ are the centred products of training rows, $k$ those of a tested row with them:

    $s = \bar y + k\, (K + \alpha I)^{-1} (Y - \bar y)$. Scores of a row sum to 1. $\alpha$ is the one of `PENALTIES` (times
    the mean eigenvalue of $K$) with the smallest leave-one-out error of the training rows (PRESS), and at least
    $n\, \ell^2\, \overline{|x|^2}$: a reader's which cannot tell rows that differ by less than `least` of their length. NaN
    for labels that no training row has. Source: Hoerl & Kennard 1970; Allen 1974; linear probes Alain & Bengio (1610.01644).

    >>> x = np.array([[0.0], [1], [0], [1], [0.9]])
    >>> int(ridge_scores(x @ x.T, np.array([0, 1, 0, 1, 0]), np.arange(4), np.array([4])).argmax())
    1
    """
    y = (labels[train][:, None] == np.arange(labels.max() + 1)).astype(float)
    mean = y.mean(0)
    inner = gram[np.ix_(train, train)]
    row = inner.mean(0)
    centred = inner - row - row[:, None] + row.mean()
    across = gram[np.ix_(test, train)]
    across = across - across.mean(1, keepdims=True) - row + row.mean()
    eigenvalues, vectors = np.linalg.eigh((centred + centred.T) / 2)
    eigenvalues = np.maximum(eigenvalues, 0.0)
    floor = least**2 * np.trace(inner)
    turned, scores = vectors.T @ (y - mean), np.tile(mean, (len(test), 1))

    def left_out(penalty: float) -> float:
        """Return the sum of squared errors of each training row read by all others."""
        kept = eigenvalues / (eigenvalues + penalty)
        leverage = (vectors**2 * kept).sum(1) + 1 / len(vectors)
        errors = (y - mean - vectors @ (turned * kept[:, None])) / np.maximum(1 - leverage, 1e-9)[:, None]
        return float((errors**2).sum())

    if eigenvalues.any():
        penalties = [max(each * eigenvalues.mean(), floor) for each in PENALTIES]
        penalty = min(penalties, key=left_out)  # the first of equal ones
        scores += across @ (vectors @ (turned / (eigenvalues + penalty)[:, None]))
    scores[:, mean == 0] = np.nan
    return scores
