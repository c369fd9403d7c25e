"""How gate activations shift: against plain Hugging Face, laws of the contrasts, the claims, what is undefined."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ONE_OF_EACH
from models_under_test import loaded, pairs_for
from scipy import stats

from mless_interp.mechanism import ActivationShift, activation_shift
from mless_interp.metrics.token_classes import CLASSES, token_classes, token_texts
from mless_interp.models.base import Model
from mless_interp.models.info import GatedMlp

VALUES = (
    "near_zero_arm near_zero_quantile relative_sparsity mean variance deviation l1 mean_absolute l2 root_mean_square gini "
    "histogram_gini q01 q05 q95 q99 minimum kurtosis"
).split()
DISTANCES = ["wasserstein", "kolmogorov_smirnov"]
ALL = ("content", "shift", "total")


def shift_of(model: Model, **options: Any) -> ActivationShift:
    return activation_shift(model, pairs_for(model), progress=False, **options)


@pytest.fixture(scope="module")
def bridge(tiny_model_dir) -> Model:
    return loaded(tiny_model_dir("qwen2"), "bridge")


@pytest.fixture(scope="module")
def found(bridge: Model) -> ActivationShift:
    return shift_of(bridge, contrasts=ALL)


# -------------------------------------------------------------------------------------------------------------- oracle


def gini(values: np.ndarray) -> float:
    """Mean absolute difference of all pairs over twice the mean."""
    size = np.abs(values).astype(float)
    ordered = np.sort(size)
    below = np.cumsum(ordered) - ordered
    pairs = 2 * float((ordered * np.arange(len(ordered)) - below).sum())
    return pairs / (2 * len(size) ** 2 * size.mean())


@pytest.mark.parametrize(("architecture", "layer"), [("qwen2", 0), ("gemma3", 2)])
def test_every_metric_agrees_with_numpy_on_hugging_face_s_own_activations(
    architecture: str, layer: int, tiny_model_dir: Any
) -> None:
    from transformers import AutoModelForCausalLM

    model = loaded(tiny_model_dir(architecture), "bridge")
    pairs = pairs_for(model)
    shift = activation_shift(model, pairs, layer=layer, contrasts=("total",), c=0.3, q=0.2, bins=20, progress=False)
    plain = AutoModelForCausalLM.from_pretrained(tiny_model_dir(architecture), attn_implementation="eager").eval()
    seen: list[torch.Tensor] = []
    plain.model.layers[layer].mlp.act_fn.register_forward_hook(lambda module, args, out: seen.append(out[0]))
    for at, pair in enumerate(pairs):
        with torch.no_grad():
            plain(pair.base.tokens), plain(pair.inserted.tokens)
        base, inserted = seen[-2].double().numpy(), seen[-1][pair.shared].double().numpy()
        texts = token_texts(pair.base.ids, model.tokenizer.decode)
        classes = np.array(token_classes(texts))
        flat = np.abs(base).ravel()
        middle = np.sort(flat)[(flat.size - 1) // 2]
        eps = 1.4826 * 0.3 * np.sort(np.abs(flat - middle))[(flat.size - 1) // 2]
        assert shift.thresholds[at] == pytest.approx([eps, np.quantile(flat, 0.2)], rel=1e-4)
        for group in ("all", *CLASSES):
            chosen = np.ones(len(classes), bool) if group == "all" else classes == group
            n = int(chosen.sum())
            assert shift.n_tokens[at, shift.token_groups.index(group)] == n
            for run, values in ((shift.before, base[chosen]), (shift.after, inserted[chosen])):
                mine = dict(zip(shift.metrics, run[at, 0, shift.token_groups.index(group)], strict=True))
                if not n:
                    assert all(np.isnan(value) for value in mine.values())
                    continue
                a = values.ravel()
                bins, _ = np.histogram(np.clip(a, shift.edges[0], shift.edges[-1]), shift.edges)
                one_element = 1.5 / a.size  # at the threshold the two computations may round apart
                assert mine["near_zero_arm"] == pytest.approx((np.abs(a) < eps).mean(), abs=one_element)
                assert mine["relative_sparsity"] == mine["near_zero_arm"]
                assert mine["near_zero_quantile"] == pytest.approx(
                    (np.abs(a) < np.quantile(flat, 0.2)).mean(), abs=one_element
                )
                expected = {
                    "mean": a.mean(),
                    "l1": np.abs(a).sum(),
                    "mean_absolute": np.abs(a).mean(),
                    "l2": np.sqrt((a**2).sum()),
                    "root_mean_square": np.sqrt((a**2).mean()),
                    "gini": gini(a),
                    "minimum": a.min(),
                    "kurtosis": stats.kurtosis(a),
                    **{f"q{q:02d}": np.quantile(a, q / 100) for q in (1, 5, 95, 99)},
                }
                if n > 1:
                    expected["variance"] = np.median(values.var(0, ddof=1))
                    expected["deviation"] = np.abs(values - np.median(values, 0)).mean()
                else:
                    assert np.isnan(mine["variance"]) and np.isnan(mine["deviation"])
                for name, value in expected.items():
                    assert mine[name] == pytest.approx(value, rel=2e-4, abs=2e-5), (name, group)
                assert mine["histogram_gini"] == pytest.approx(gini(bins), abs=0.01)
            if n:
                apart = shift.difference[at, 0, shift.token_groups.index(group), -2:]
                a, b = base[chosen].ravel(), inserted[chosen].ravel()
                assert apart[0] == pytest.approx(stats.wasserstein_distance(a, b), rel=1e-3, abs=1e-5)
                assert apart[1] == pytest.approx(stats.ks_2samp(a, b).statistic, abs=2.5 / a.size)
    counts = shift.counts.sum(-1)
    assert (counts == shift.n_tokens.sum(0)[None, :, None] * model.info.d_mlp).all()


# ---------------------------------------------------------------------------------------------------------------- laws


@pytest.mark.parametrize(("architecture", "backend"), [each for each in ONE_OF_EACH if "bridge" not in each])
def test_backends_agree(backend: str, architecture: str, tiny_model_dir: Any) -> None:
    mine = shift_of(loaded(tiny_model_dir(architecture), backend), layer=1)
    theirs = shift_of(loaded(tiny_model_dir(architecture), "bridge"), layer=1)
    shares = [mine.metrics.index(name) for name in ("near_zero_arm", "near_zero_quantile", "relative_sparsity")]
    others = [k for k in range(len(mine.metrics)) if k not in shares]
    np.testing.assert_allclose(mine.after[..., others], theirs.after[..., others], rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(mine.after[..., shares], theirs.after[..., shares], atol=0.01)


def test_content_and_shift_add_up_to_the_total(found: ActivationShift) -> None:
    """Gap equals masked on shared tokens, and near zero is measured with the base run's threshold in all of them."""
    content, shift, total = (found.difference[:, i] for i in range(3))
    for name in VALUES:
        if name in ("relative_sparsity",):
            continue
        k = found.metrics.index(name)
        scale = 1e-4 * (1 + np.abs(found.before[:, 2, :, k]))
        apart = np.abs(content[..., k] + shift[..., k] - total[..., k])
        assert np.isfinite(apart[:, 0]).all(), name
        if "near_zero" in name or name == "histogram_gini":
            scale = scale + 0.02
        assert (apart <= scale)[np.isfinite(apart)].all(), name
    assert np.abs(content[:, 0, :10]).max() > 1e-3 and np.abs(shift[:, 0, :10]).max() > 1e-3


def test_tokens_before_the_insertion_only_dilute(bridge: Model, found: ActivationShift) -> None:
    question = shift_of(bridge, positions="question")
    assert (question.n_tokens[:, 0] < found.n_tokens[:, 0]).all()
    for contrast in ("content", "shift"):
        part, whole = question.of("mean", contrast=contrast), found.of("mean", contrast=contrast)
        share = question.n_tokens[:, 0] / found.n_tokens[:, 0]
        np.testing.assert_allclose(part * share, whole, rtol=1e-3, atol=1e-6)


def test_a_class_of_unchanged_tokens_is_tied_not_counted(bridge: Model) -> None:
    """All tokens before the insertion called conjunctions: their differences are rounding at most."""
    shift = shift_of(
        bridge, classify=lambda pair: ["conjunction" if t < pair.span[0] else "other" for t in range(len(pair.base))]
    )
    table = shift.by_class().query("token_class == 'conjunction' and metric not in @DISTANCES")
    assert (table["n_tied"] == 3).all() and (table["n"] == 3).all()
    moved = shift.by_class().query("token_class == 'other' and metric == 'mean'")
    assert (moved["n_tied"] == 0).all()


# ------------------------------------------------------------------------------------------------------------- claims


def made_up(found: ActivationShift, **differences: np.ndarray) -> ActivationShift:
    """The same result with other differences of all tokens, one value per problem, in the first contrast."""
    n = len(next(iter(differences.values())))
    shape = (n, *found.difference.shape[1:])
    before, difference = np.ones(shape), np.zeros(shape)
    for metric, values in differences.items():
        difference[:, 0, 0, found.metrics.index(metric)] = values
    return replace(
        found,
        problem_ids=tuple(f"p{i}" for i in range(n)),
        before=before,
        after=before + difference,
        difference=difference,
        n_tokens=np.ones((n, 5), dtype=int),
        thresholds=np.ones((n, 2)),
    )


def test_claims_are_supported_contradicted_or_neither(found: ActivationShift) -> None:
    up = np.linspace(0.1, 0.3, 20)
    mixed = np.where(np.arange(20) % 2, up, -up)
    table = made_up(found, variance=up, near_zero_arm=up, mean=mixed).claims().set_index(["contrast", "claim"])
    first = table.loc["content"]
    assert first["verdict"].tolist() == ["supported", "contradicted", "undecided"]
    assert first["p"].tolist()[:2] == pytest.approx([2**-19] * 2)  # 2 x 2^-20
    assert first["p_corrected"].tolist() == pytest.approx([3 * 2**-19, 3 * 2**-19, 1.0])
    assert first["change"].tolist()[0] == pytest.approx(0.2) and (first["change_ci_low"] < first["change"]).all()
    assert first["primary"].all() and not table.loc["shift"]["primary"].any()
    assert set(table.loc["shift"]["verdict"]) == {"undecided (no problem changed)"}
    down = made_up(found, variance=-up, near_zero_arm=-up, mean=-up).claims()["verdict"][:3].tolist()
    assert down == ["contradicted", "supported", "contradicted"]


def test_too_few_problems_never_decide(found: ActivationShift) -> None:
    six = made_up(found, variance=np.full(6, 1.0), near_zero_arm=-np.ones(6), mean=np.ones(6))
    assert set(six.claims()["verdict"][:3]) == {"undecided (6 problems that change are too few to tell)"}
    seven = made_up(found, variance=np.linspace(1, 2, 7))  # 3 x 2 / 2^7 = 0.047
    assert seven.claims()["verdict"][0] == "supported"
    assert "fewer than 2 problems" in made_up(found, mean=np.ones(1)).claims()["verdict"][2]


def test_a_few_large_problems_do_not_carry_the_sign_test(found: ActivationShift) -> None:
    values = np.array([-0.1] * 18 + [40.0, 50.0])
    row = made_up(found, mean=values).claims().iloc[2]
    assert row["p_corrected"] < 0.05 and row["change"] > 0
    assert row["verdict"].startswith("undecided (most problems move one way")


def test_rounding_is_a_tie(found: ActivationShift) -> None:
    """Values of 1 with differences of 1e-7: float32 cannot tell them from none."""
    rows = made_up(found, mean=np.full(20, 1e-7), variance=np.full(20, 1e-5)).claims().set_index("claim").iloc[:3]
    assert rows.loc["mean rises", "n_tied"] == 20 and rows.loc["mean rises", "verdict"].startswith("undecided")
    assert rows.loc["variance rises", "n_up"] == 20


# ------------------------------------------------------------------------------------------------- tables, print, saving


def test_histograms_are_densities_too(found: ActivationShift) -> None:
    table = found.histograms().query("contrast == 'content' and token_class == 'all'")
    widths = table["bin_high"] - table["bin_low"]
    for run in ("before", "after"):
        assert (table[f"{run}_density"] * widths).sum() == pytest.approx(1)
        share = table[run] / table[run].sum() / widths
        np.testing.assert_allclose(table[f"{run}_density"], share)
    np.testing.assert_allclose(table["density_change"], table["after_density"] - table["before_density"])


# ------------------------------------------------------------------------------------------------- undefined, bad input


@pytest.mark.parametrize("value", [0.0, 1.5])
def test_equal_activations_have_no_inequality_and_no_shift(
    bridge: Model, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    monkeypatch.setattr(bridge, "_gated_mlp", lambda layer: GatedMlp(lambda pre: torch.full_like(pre, value)))
    shift = shift_of(bridge)
    values = dict(zip(shift.metrics, shift.before[0, 0, 0], strict=True))
    assert np.isnan(values["kurtosis"]) and values["variance"] == 0 and values["mean"] == value
    assert values["near_zero_arm"] == (1 if value == 0 else 0)
    assert np.isnan(values["gini"]) if value == 0 else values["gini"] == pytest.approx(0, abs=1e-6)
    assert values["histogram_gini"] == pytest.approx(0.99)
    assert set(shift.claims()["verdict"]) == {"undecided (no problem changed)"}
    table = shift.by_class().query("token_class == 'all'").set_index(["contrast", "metric"])
    assert table.loc[("content", "kurtosis"), "n"] == 0 and table.loc[("content", "kurtosis"), "n_undefined"] == 3
    assert (shift.of("wasserstein") == 0).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"c": 0.0}, "c is the width of near zero"),
        ({"classify": lambda pair: ["digit"]}, "problem 'p0': classify must give one of digit, operator"),
    ],
)
def test_what_cannot_be_measured_is_said(bridge: Model, options: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        shift_of(bridge, **options)
