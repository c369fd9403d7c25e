"""How gate activations shift: against plain Hugging Face, laws of the contrasts, the claims, what is undefined."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from models_under_test import loaded, pairs_for
from scipy import stats

import mless_interp as mi
from mless_interp.mechanism import ActivationShift, activation_shift
from mless_interp.mechanism.activations import VALUES
from mless_interp.models.base import Model
from mless_interp.prompts.token_classes import CLASSES, token_classes, token_texts


@pytest.fixture(scope="module")
def found(tiny_model_dir: Any) -> ActivationShift:
    model = loaded(tiny_model_dir("qwen2"), "bridge")
    return activation_shift(model, pairs_for(model), contrasts=("content", "shift", "total"), progress=False)


def gini(values: np.ndarray) -> float:
    """Mean absolute difference of all pairs over twice the mean."""
    size = np.sort(np.abs(values).astype(float))
    ranks = np.arange(1, len(size) + 1)
    return float(((2 * ranks - len(size) - 1) * size).sum() / (len(size) ** 2 * size.mean()))


def by_numpy(values: np.ndarray, width: float, small: float, edges: np.ndarray) -> dict[str, Any]:
    """Every metric of activations `[token, d_mlp]`, near zero being below `width` (ARM's form) and `small` (quantile)."""
    a = values.ravel()
    bins, _ = np.histogram(np.clip(a, edges[0], edges[-1]), edges)
    spread, near = len(values) > 1, {"abs": 1.5 / a.size}  # at the threshold the two computations may round apart
    found = {
        "mean": a.mean(),
        "l1": np.abs(a).sum(),
        "mean_absolute": np.abs(a).mean(),
        "l2": np.sqrt((a**2).sum()),
        "root_mean_square": np.sqrt((a**2).mean()),
        "gini": gini(a),
        "minimum": a.min(),
        "kurtosis": stats.kurtosis(a),
        "variance": np.median(values.var(0, ddof=1)) if spread else np.nan,
        "deviation": np.abs(values - np.median(values, 0)).mean() if spread else np.nan,
        **{f"q{q:02d}": np.quantile(a, q / 100) for q in (1, 5, 95, 99)},
    }
    made = {name: pytest.approx(value, rel=2e-4, abs=2e-5, nan_ok=True) for name, value in found.items()}
    return made | {
        "near_zero_arm": pytest.approx((np.abs(a) < width).mean(), **near),
        "near_zero_quantile": pytest.approx((np.abs(a) < small).mean(), **near),
        "histogram_gini": pytest.approx(gini(bins), abs=0.01),
    }


def thresholds(base: np.ndarray, c: float, q: float) -> tuple[float, float]:
    size = np.abs(base).ravel()
    middle = np.sort(size)[(size.size - 1) // 2]
    return 1.4826 * c * max(np.sort(np.abs(size - middle))[(size.size - 1) // 2], 1e-12), float(np.quantile(size, q))


@pytest.mark.parametrize(("architecture", "layer"), [("qwen2", 0), ("gemma3", 2)])
def test_every_metric_agrees_with_numpy_on_hugging_face_s_own_activations(
    architecture: str, layer: int, tiny_model_dir: Any, model: Model
) -> None:
    from transformers import AutoModelForCausalLM

    pairs = pairs_for(model)
    shift = activation_shift(model, pairs, layer=layer, contrasts=("total",), c=0.3, q=0.2, bins=20, progress=False)
    plain = AutoModelForCausalLM.from_pretrained(tiny_model_dir(architecture), attn_implementation="eager").eval()
    seen: list[torch.Tensor] = []
    plain.model.layers[layer].mlp.act_fn.register_forward_hook(lambda module, args, out: seen.append(out[0]))
    for at, pair in enumerate(pairs):
        with torch.no_grad():
            plain(pair.base.tokens), plain(pair.inserted.tokens)
        base, inserted = seen[-2].double().numpy(), seen[-1][pair.shared].double().numpy()
        classes = np.array(token_classes(token_texts(pair.base.ids, model.tokenizer.decode)))
        near = thresholds(base, 0.3, 0.2)
        assert shift.thresholds[at] == pytest.approx(near, rel=1e-4)
        for group, name in enumerate(("all", *CLASSES)):
            chosen = np.ones(len(classes), bool) if name == "all" else classes == name
            n = int(chosen.sum())
            assert shift.n_tokens[at, group] == n
            for run, values in ((shift.before, base[chosen]), (shift.after, inserted[chosen])):
                mine = dict(zip(shift.metrics, run[at, 0, group], strict=True))
                if n:
                    expected = by_numpy(values, *near, shift.edges)
                    assert expected.keys() == VALUES.keys() - {"relative_sparsity"}
                    assert {metric: mine[metric] for metric in expected} == expected
                    assert mine["relative_sparsity"] == mine["near_zero_arm"]
                else:
                    assert all(np.isnan(value) for value in mine.values())
            if n:
                a, b = base[chosen].ravel(), inserted[chosen].ravel()
                assert shift.difference[at, 0, group, -2:] == pytest.approx(
                    [stats.wasserstein_distance(a, b), stats.ks_2samp(a, b).statistic], rel=1e-3, abs=2.5 / a.size
                )
    counts = shift.counts.sum(-1)
    assert (counts == shift.n_tokens.sum(0)[None, :, None] * model.info.d_mlp).all()


def test_content_and_shift_add_up_to_the_total(found: ActivationShift) -> None:
    """Gap equals masked on shared tokens, and near zero is measured with the base run's threshold in all of them."""
    content, shift, total = (found.difference[:, i] for i in range(3))
    for name in VALUES.keys() - {"relative_sparsity"}:
        k = found.metrics.index(name)
        scale = 1e-4 * (1 + np.abs(found.before[:, 2, :, k]))
        apart = np.abs(content[..., k] + shift[..., k] - total[..., k])
        assert np.isfinite(apart[:, 0]).all(), name
        if "near_zero" in name or name == "histogram_gini":
            scale = scale + 0.02
        assert (apart <= scale)[np.isfinite(apart)].all(), name
    assert np.abs(content[:, 0, :10]).max() > 1e-3 and np.abs(shift[:, 0, :10]).max() > 1e-3


def test_without_a_tokenizer_there_are_no_classes(model: Model) -> None:
    ids = [[5, 6, at + 3, 9, 9, 7] for at in range(3)]
    pairs = mi.pairs_from_ids(ids, [3, 4, 5], span=(3, 5))
    plain = copy.copy(model)
    plain.tokenizer = None
    shift = activation_shift(plain, pairs, contrasts=["content"], progress=False)
    assert (shift.n_tokens == [4, 0, 0, 0, 0]).all() and np.isfinite(shift.of("mean")).all()
    assert np.isnan(shift.of("mean", token_class="digit")).all()


UP = np.linspace(0.1, 0.3, 20)
TWO_LARGE = np.array([-0.1] * 18 + [40.0, 50.0])
"""They do not carry the sign test."""
TOO_SMALL = np.full(20, 1e-7)
"""Of values of 1: float32 cannot tell such differences from none."""
NOT_FOLLOWED = "undecided (most problems move one way, the mean's interval does not follow)"


@pytest.mark.parametrize(
    ("variance", "near_zero_arm", "mean", "verdicts"),
    [
        (UP, UP, np.where(np.arange(20) % 2, UP, -UP), ["supported", "contradicted", "undecided"]),
        (np.linspace(1, 2, 7), np.zeros(7), np.zeros(7), ["supported", *["undecided (no problem changed)"] * 2]),
        (np.ones(1), np.ones(1), np.ones(1), ["undefined (fewer than 2 problems)"] * 3),
        (TWO_LARGE, TOO_SMALL, -UP, [NOT_FOLLOWED, "undecided (no problem changed)", "contradicted"]),
    ],
)
def test_claims_are_supported_contradicted_or_neither(
    found: ActivationShift, variance: np.ndarray, near_zero_arm: np.ndarray, mean: np.ndarray, verdicts: list[str]
) -> None:
    n, metrics = len(mean), {"variance": variance, "near_zero_arm": near_zero_arm, "mean": mean}
    before = np.ones((n, *found.difference.shape[1:]))
    difference = 0 * before
    for metric, values in metrics.items():
        difference[:, 0, 0, found.metrics.index(metric)] = values
    arrays = {"before": before, "after": before + difference, "difference": difference, "thresholds": np.ones((n, 2))}
    ids = tuple(f"p{i}" for i in range(n))
    made = replace(found, problem_ids=ids, n_tokens=np.ones((n, 5), dtype=int), **arrays)
    assert made.table()["verdict"][:3].tolist() == verdicts
