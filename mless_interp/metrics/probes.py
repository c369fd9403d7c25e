"""Linear probes: what a ridge regression reads from activations."""

import numpy as np
from jaxtyping import Float, Int

PENALTIES = (1e3, 1e2, 10.0, 1.0, 0.1, 1e-2, 1e-3)
"""Of the ridge, as multiples of the mean eigenvalue; of equally good ones the largest is taken."""
Gram = Float[np.ndarray, "row row"]


def ridge_scores(
    gram: Gram, labels: Int[np.ndarray, " row"], train: np.ndarray, test: np.ndarray, *, least: float = 0.0
) -> Float[np.ndarray, "test label"]:
    r"""Return the score of every label in the tested rows by a ridge regression on the training rows, in the dual.

    Labels 0, 1, ... become indicators $Y$; with $K$ the centred products of training rows and $k$ those of a tested row with
    them, as the training rows' mean centres them,

    $$ s = \bar y + k\, (K + \alpha I)^{-1} (Y - \bar y) $$

    so that scores of one row sum to 1, and that of a label is about its probability. $\alpha$ is the one of `PENALTIES` (times
    the mean eigenvalue of $K$) with the smallest leave-one-out error of the training rows (PRESS). NaN for labels that no
    training row has. The penalty is that of a reader which cannot tell rows that differ by less than `least` of their length,
    $\alpha \ge n\, \ell^2\, \overline{|x|^2}$: of what is smaller little comes through, however regular. Source: Hoerl &
    Kennard 1970; Allen 1974 (PRESS); linear probes Alain & Bengio (1610.01644).

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
    if eigenvalues.any():
        penalties = [max(each * eigenvalues.mean(), floor) for each in PENALTIES]
        errors = [_left_out(eigenvalues, vectors, turned, y - mean, each) for each in penalties]
        penalty = penalties[int(np.argmin(errors))]
        scores += across @ (vectors @ (turned / (eigenvalues + penalty)[:, None]))
    scores[:, mean == 0] = np.nan
    return scores


def _left_out(
    eigenvalues: np.ndarray, vectors: np.ndarray, turned: np.ndarray, wanted: np.ndarray, penalty: float
) -> float:
    """Sum of squared errors of each row read by all others."""
    kept = eigenvalues / (eigenvalues + penalty)
    leverage = (vectors**2 * kept).sum(1) + 1 / len(vectors)
    errors = (wanted - vectors @ (turned * kept[:, None])) / np.maximum(1 - leverage, 1e-9)[:, None]
    return float((errors**2).sum())
