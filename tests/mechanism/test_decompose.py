"""Attention as lambda z + Sigma: exact in the first layer on every backend, open in deeper ones, shares that add up."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from architectures_under_test import folder_of
from conftest import needs_hooked_transformer
from models_under_test import loaded, pairs_for, planted_here, planted_pairs

import mless_interp as mi
from mless_interp.mechanism import decompose_attention
from mless_interp.metrics.attention import retained_mass
from mless_interp.models.base import Model
from mless_interp.models.info import Inputs, ModelError
from mless_interp.models.sites import site
from mless_interp.prompts.pairs import PromptPair, pairs_like
from mless_interp.scores import streaming

ACROSS = pytest.mark.parametrize(
    ("backend", "attention", "tolerance", "architecture", "held_positions"),
    [
        pytest.param("hooked_transformer", "eager", 1e-10, "qwen2", "first", marks=needs_hooked_transformer),
        ("bridge", "eager", 1e-4, "gemma3", "spread"),
        ("nnsight", "eager", 1e-4, "llama", "first"),
        ("nnsight", "sdpa", 1e-10, "gemma3", "first"),
    ],
)
CONTRASTS = ("content", "total", "held")


def layer_of(model: Model, inputs: Inputs, layer: int, name: str) -> torch.Tensor:
    full = site(layer, name)
    return model.run(inputs, capture={full: None}, logits_at="none").captured[full]


@ACROSS
def test_first_layer_is_exact_and_deeper_ones_are_not(
    backend: str, attention: str, tolerance: float, architecture: str, held_positions: str, tiny_model_dir: Any
) -> None:
    """I1, I2 and I10 on every backend; the same formula leaves a real residual from layer 1 on."""
    model = loaded(tiny_model_dir(architecture), backend, "float64", attention)
    pairs = pairs_for(model, n_tokens=9, count=2)
    found = decompose_attention(model, pairs, held_positions=held_positions, progress=False)
    for contrast in CONTRASTS:
        residual = found.of("residual", contrast)
        assert np.nanmax(residual[:, 0]) < tolerance
        assert np.nanmedian(residual[:, 1:]) > 0.05
        shares = {name: found.of(f"{name}share", contrast) for name in ("", "scale_", "bias_", "rest_")}
        whole = shares["scale_"] + shares["bias_"] + shares["rest_"]
        if contrast == "total":
            shift = found.of("shift_share", contrast)
            assert np.abs(shift[:, 0]).max() > 1e-3
            whole = whole + shift
        assert shares[""] == pytest.approx(whole, abs=10 * tolerance)
        assert shares[""].sum(-1) == pytest.approx(1, abs=10 * tolerance)
        assert np.abs(shares["rest_"][:, 0]).max() < tolerance
    assert "shift_share" in found.values and "content" not in found.values["shift_share"]


@pytest.mark.parametrize("architecture", ["gemma3"])
def test_numbers_are_those_of_the_model_s_own_pattern(model: Model) -> None:
    pair = pairs_for(model, n_tokens=9)[2]
    found = decompose_attention(model, [pair], progress=False)
    after = slice(pair.span[1], len(pair.inserted))
    for contrast, run in (("content", "inserted"), ("total", "inserted"), ("held", "held")):
        inputs = pair.condition(run)
        for layer in (0, 1):
            pattern = layer_of(model, inputs, layer, "attn.hook_pattern")[0]
            lam = retained_mass(pattern, span=pair.span_mask, visible=model.visible(inputs)[layer][0])[:, after]
            assert found.of("lam", contrast)[0, layer] == pytest.approx(lam.mean(-1).numpy(), abs=1e-5)
            assert found.of("lam_last", contrast)[0, layer] == pytest.approx(lam[:, -1].numpy(), abs=1e-5)
            assert found.of("lam_sd", contrast)[0, layer] == pytest.approx(lam.std(-1, correction=0).numpy(), abs=1e-5)
            seen = model.visible(inputs)[layer][0, :, after]
            null = 1 - ((seen & pair.span_mask).sum(-1) / seen.sum(-1)).mean()
            assert found.uniform[contrast][0, layer] == pytest.approx(float(null), abs=1e-6)
            here = found.nulls(contrast)["lam_null"][0, 8 * layer : 8 * layer + 8]
            assert here == pytest.approx(float(null), abs=1e-6)


@pytest.mark.parametrize(("contrast", "runs"), [("content", ("inserted", "masked")), ("total", ("inserted", "base"))])
def test_shares_are_of_what_heads_write_together(contrast: str, runs: tuple[str, str], tiny_model_dir: Any) -> None:
    """I9, before Gemma's norm of attention's output."""
    model = loaded(tiny_model_dir("gemma3"), "bridge", "float64")
    pair = pairs_for(model, n_tokens=9)[0]
    found = decompose_attention(model, [pair], contrasts=[contrast], progress=False)
    for layer in range(3):
        new, old = (layer_of(model, pair.condition(run), layer, "attn.hook_z")[0, -pair.n_after :] for run in runs)
        wrote = torch.einsum("rhd,hdm->hrm", new - old, model.attention_output(layer).weights)
        shares = (wrote * wrote.sum(0)).sum((1, 2)) / wrote.sum(0).square().sum()
        assert found.of("share", contrast)[0, layer] == pytest.approx(shares.numpy(), abs=1e-4)


@pytest.mark.parametrize("case", [{"seed": 1}, {"seed": 5, "random": True}], ids=str)
def test_planted_heads_show_what_each_kind_does(case: dict[str, Any]) -> None:
    """Readers write Sigma, mediators only what came from upstream, a silent decoy attends and writes nothing; a share is
    no proof that anybody reads it: the unread decoy has one too."""
    made, model = planted_here(**case)
    assert "random" in case or {"reader", "mediator", "silent", "unread", "avoids"} <= set(made.truth.values())
    layers = sorted({head.layer for head in made.truth})
    found = decompose_attention(model, planted_pairs(made, model, 12), layers=layers, n_control_draws=2, progress=False)
    table = found.table().set_index("label")
    usual = table["share"].abs().median()
    for head, kind in made.truth.items():
        row = table.loc[str(head)]
        if kind in ("reader", "mediator", "unread"):
            assert row["share"] > 10 * usual
        if kind == "reader":
            assert row["bias_share"] == pytest.approx(row["share"], rel=0.1)
            assert (
                row["lam"] < min(row["lam_null"], row["lam_control"]) and max(row["lam_p"], row["lam_control_p"]) < 0.05
            )
        if kind == "mediator":
            assert row["rest_share"] == pytest.approx(row["share"], rel=0.05)
        if kind == "silent":
            assert row["lam"] < row["lam_null"] and row["share"] == 0
        if kind == "avoids":
            assert row["lam"] > 0.99 and abs(row["bias_share"]) < 1e-3


@pytest.fixture(scope="module")
def tiny(tiny_model_dir: Any) -> tuple[Model, tuple[PromptPair, ...]]:
    model = loaded(tiny_model_dir("qwen2"), "bridge")
    return model, pairs_for(model, n_tokens=9)


def test_rows_between_two_places_are_read_too(tiny: Any) -> None:
    """As scores take them: of everything after the first place that is not inserted; exact in the first layer there too."""
    model, _ = tiny
    pairs = [pair.answered() for pair in pairs_for(model, 8, 2, before="question", after="question")]
    found = decompose_attention(model, pairs, contrasts=("content",), progress=False)
    read = mi.score_heads(model, pairs, metrics="lam", conditions=("inserted",), progress=False)
    np.testing.assert_allclose(found.of("lam"), read.of("lam", "inserted"), atol=1e-5)
    assert np.nanmax(found.of("residual")[:, 0]) < 1e-4 < np.nanmedian(found.of("residual")[:, 1:])


def test_lambda_under_random_words_is_the_mean_of_draws(tiny: Any) -> None:
    """Whatever the order in which queries, keys and values come."""

    def found(model: Any, pairs: Any, n: int) -> mi.AttentionDecomposition:
        options: dict[str, Any] = {"contrasts": ["content"], "n_control_draws": n, "progress": False}
        return decompose_attention(model, pairs, heads=["L0H1"], **options)

    pythia = loaded(folder_of("GPT-NeoX (Pythia)"), "bridge")
    for model, pairs in (tiny, (pythia, pairs_for(pythia, 9, 2))):
        two = found(model, pairs, 2)
        words = [mi.Insertion.random_sentence(9, draw=draw) for draw in (0, 1)]
        alone = [found(model, pairs_like(model, pairs, each), 0).of("lam")[:, 0, 1] for each in words]
        assert np.abs(alone[0] - alone[1]).max() > 1e-3
        np.testing.assert_allclose(two.control[:, 0, 1], np.mean(alone, 0), atol=1e-6)
        assert np.isnan(two.control[:, 0, 0]).all() and np.isnan(two.control[:, 1]).all()
        assert "lam_control" in two.nulls() and "lam_control" not in replace(two, control=None).nulls()


def test_random_words_need_text(tiny: Any) -> None:
    model, pairs = tiny
    given = mi.pairs_from_ids([pair.inserted.ids for pair in pairs], [3] * len(pairs), span=(2, 5))
    with pytest.raises(ValueError, match=r"no text that random words could stand in"):
        decompose_attention(model, given, n_control_draws=1, progress=False)


def test_rows_may_be_read_in_blocks(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, pairs = tiny
    whole = decompose_attention(model, pairs[:1], progress=False)
    monkeypatch.setattr(streaming, "BLOCK_ELEMENTS", 3 * model.info.n_heads * len(pairs[0].inserted))
    parts = decompose_attention(model, pairs[:1], progress=False)
    for metric, found in whole.values.items():
        for contrast, values in found.items():
            assert parts.of(metric, contrast) == pytest.approx(values, rel=1e-4, abs=1e-5, nan_ok=True), metric


def test_models_that_do_not_show_their_scores_are_refused(tiny: Any) -> None:
    model, pairs = tiny
    blind = model.checked(replace(model.checks, shows_rotated=False))
    with pytest.raises(ModelError, match=r"shows no queries and keys as they enter the scores on backend 'bridge'"):
        decompose_attention(blind, pairs, progress=False)
