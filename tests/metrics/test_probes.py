"""Ridge regressions on tokens: the dual against the primal."""

import numpy as np

from mless_interp.metrics.activations import PENALTIES, ridge_scores


def test_the_dual_is_the_primal_and_its_penalty_leaves_one_out() -> None:
    draw = np.random.default_rng(0)
    x, labels = draw.normal(size=(20, 6)) + 2, np.arange(20) % 3
    x[:, 0] += labels
    train, test = np.arange(14), np.arange(14, 20)
    y = np.eye(3)[labels]

    def primal(rows: np.ndarray, read: np.ndarray, penalty: float) -> np.ndarray:
        centre, mean = x[rows].mean(0), y[rows].mean(0)
        centred = x[rows] - centre
        weights = np.linalg.solve(centred.T @ centred + penalty * np.eye(6), centred.T @ (y[rows] - mean))
        return (x[read] - centre) @ weights + mean

    centred = x[train] - x[train].mean(0)
    choices = np.array(PENALTIES) * np.trace(centred @ centred.T) / len(train)
    # a row that is left out changes the others' mean and products; PRESS says by how much without fitting again
    errors = [
        sum(((y[out] - primal(np.delete(train, out), np.array([out]), each)) ** 2).sum() for out in train)
        for each in choices
    ]
    expected = primal(train, test, float(choices[int(np.argmin(errors))]))
    np.testing.assert_allclose(ridge_scores(x @ x.T, labels, train, test), expected, atol=1e-9)
    assert 0 < int(np.argmin(errors)) < len(PENALTIES) - 1, "the choice is not at an end"
    tiny = 1e-6 * x + np.ones(6)
    blunt = ridge_scores(tiny @ tiny.T, labels, train, test, least=0.01)
    np.testing.assert_allclose(blunt, np.tile(y[train].mean(0), (6, 1)), atol=1e-3)
    unseen = ridge_scores(x @ x.T, np.where(np.arange(20) == 19, 3, labels), train, test)
    assert np.isnan(unseen[:, 3]).all() and np.isfinite(unseen[:, :3]).all()
    np.testing.assert_allclose(unseen[:, :3].sum(1), 1)
