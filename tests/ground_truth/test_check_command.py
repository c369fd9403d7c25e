"""`python -m mless_interp check MODEL` and `certify_model`: a true backend passes, each way of lying fails and is named."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from conftest import needs_hooked_transformer
from models_under_test import ignores_positions, loaded, lying
from typer.testing import CliRunner

import mless_interp as mi
from mless_interp.__main__ import app
from mless_interp.ground_truth import certificate
from mless_interp.ground_truth.certificate import NOT_APPLICABLE, certify_model, short_pairs
from mless_interp.ground_truth.identities import Case, Identity
from mless_interp.models.checks import FailedCheck, Finding
from mless_interp.models.info import BY_LAYERS, Inputs, Run

architecture = pytest.fixture(lambda: "llama")


def check(*arguments: Any) -> Any:
    """Run the command as a user does, in this process."""
    return CliRunner().invoke(app, ["check", *map(str, arguments), "--no-progress"])


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float64", marks=needs_hooked_transformer)])
def test_the_tolerance_follows_the_dtype(dtype: str, tiny_model_dir: Callable[[str], Path]) -> None:
    backend = "hooked_transformer" if dtype == "float64" else "bridge"
    found = certify_model(loaded(tiny_model_dir("qwen2"), backend, dtype), progress=False)
    (line,) = [verdict for verdict in found.verdicts if verdict.name == "I1"]
    assert found.passed and line.tolerance == (2e-2 if dtype == "bfloat16" else 1e-10)
    assert (line.error > 1e-4) == (dtype == "bfloat16")


def ignores_the_mask(run: Any, inputs: Inputs, options: dict[str, Any]) -> Run:
    return run(replace(inputs, attention_mask=None), **options)


def ignores_edits(run: Any, inputs: Inputs, options: dict[str, Any]) -> Run:
    return run(inputs, **{**options, "edits": None})


@pytest.mark.parametrize(
    ("lie", "names"),
    [(ignores_positions, {"I1", "I2", "I4", "I6"}), (ignores_the_mask, {"I6", "I7"}), (ignores_edits, {"I9"})],
)
def test_each_way_of_lying_is_named(
    lie: Callable[..., Any], names: set[str], tiny_model_dir: Callable[[str], Path]
) -> None:
    found = certify_model(lying(loaded(tiny_model_dir("qwen2"), "bridge"), lie), progress=False)
    assert names <= {v.name for v in found.failed} and not found.passed


def test_pairs_that_cannot_be_certified_on_are_refused(model: Any) -> None:
    with pytest.raises(ValueError, match="no pairs to certify"):
        certify_model(model, [])
    other = object.__new__(type(model))
    other.__dict__.update(model.__dict__, tokenizer=None)
    with pytest.raises(mi.ModelError, match="has no tokenizer, which certify_model without pairs needs"):
        short_pairs(other)


def test_a_line_is_the_worst_finding_and_what_cannot_be_computed_fails_it(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = short_pairs(model)
    errors = dict(zip(map(id, pairs), (1e-6, 3e-5, 2e-6, 1e-6), strict=True))

    def broken(case: Case) -> Finding:
        raise ValueError("it\nbroke")

    lines = (
        Identity("A", "", lambda case: Finding(errors[id(case.pair)], 1.0)),
        Identity("B", "", lambda case: Finding(10 * errors[id(case.pair)], 1.0), factor=10.0),
        Identity("C", "", lambda case: Finding(100 * errors[id(case.pair)], 1.0), factor=10.0),
        Identity("D", "", broken),
        Identity("E", "", broken, lambda case: "never"),
        Identity("F", "", lambda case: Finding(1e-4, 1.0), lambda case: "not here" if case.pair is pairs[0] else None),
    )
    monkeypatch.setattr(certificate, "IDENTITIES", lines)
    table = certify_model(model, pairs, progress=False).table()
    assert table.index.tolist() == [*range(11)] and "".join(table["name"]) == "CDS1S2S3S4S5ABEF"
    found = table.set_index("name").loc[list("ABCDEF")]
    assert found["status"].tolist() == ["pass", "pass", "fail", "fail", NOT_APPLICABLE, "pass"]
    assert found["error"].tolist() == pytest.approx([3e-5, 3e-4, 3e-3, np.nan, np.nan, 1e-4], nan_ok=True)
    assert found["tolerance"].tolist() == pytest.approx([1e-4, 1e-3, 1e-3, 1e-4, 1e-4, 1e-4])
    assert found["reason"].tolist() == ["", "", "", "it broke", "never", ""]


def test_lines_of_the_self_check_by_hand(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits are up to 4, so that 4e-3 is what a tolerance of 1e-3 allows; rows and outputs are shares already."""
    figures: dict[str, Any] = {"logits_difference": 4e-3, "row_sum_error": 1e-3, "gap_difference": 3e-3}
    figures |= {"replay_difference": 2e-3, "output_error": 1e-4, "largest_logit": 4.0, "tolerance": 1e-3}

    def lines(**changed: Any) -> list[certificate.Verdict]:
        return certificate._self_check(model.checked(replace(model.checks, replay=BY_LAYERS, **(figures | changed))))[0]

    every = lines()
    assert [each.error for each in every] == pytest.approx([1e-3, 1e-3, 7.5e-4, 5e-4, 1e-4])
    assert {(each.status, each.reason, each.tolerance) for each in every} == {("pass", "", 1e-3)}
    worse = lines(**dict.fromkeys(("logits_difference", "row_sum_error", "gap_difference", "output_error"), 0.005))
    assert [each.status for each in worse] == ["fail", "fail", "fail", "pass", NOT_APPLICABLE]
    none = lines(**{name: None for name in figures if name not in ("largest_logit", "tolerance")})
    assert {each.status for each in none} == {NOT_APPLICABLE} and np.isnan([each.error for each in none]).all()
    assert [each.name for each in none] == [f"S{at}" for at in range(1, 6)]
    reasons = (
        "a wrapped object has none",
        "",
        "not run where a remote model",
        BY_LAYERS,
        "what single heads write is not",
    )
    assert (
        all(each.reason.startswith(reason) for each, reason in zip(none, reasons, strict=True)) and not none[1].reason
    )
    fine = lines(tolerance=1e-7, largest_logit=0.5)
    assert [each.tolerance for each in fine] == [1e-7, 1e-5, 1e-7, 1e-7, 1e-5] and fine[0].error == 8e-3
    monkeypatch.setattr(certificate, "check_model", Mock(side_effect=FailedCheck("rows")))
    (broken,), nothing = certificate._self_check(model.checked(None))
    assert (broken.name, broken.status, broken.tolerance, broken.reason) == ("self-check", "fail", 1e-3, "rows")
    assert np.isnan(broken.error) and nothing is None


def test_prompts_are_made_of_a_unit_that_is_one_token(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificate, "UNITS", (" no single token of any vocabulary", "/"))
    first, second, behind = short_pairs(model, n=2)
    assert first.n_inserted == 12 and len(set(first.span_ids)) == 1 and first.span_sees_question is False
    assert behind.span_sees_question and behind.base.ids[-1:] == second.answer_ids
    monkeypatch.setattr(certificate, "UNITS", certificate.UNITS[:1])
    with pytest.raises(mi.ModelError, match="none of ' no single .*' is a single token of"):
        short_pairs(model)


def test_a_true_model_passes_every_line(tiny_model_dir: Callable[[str], Path]) -> None:
    done = check(tiny_model_dir("qwen2"), "--backend", "bridge", "--n-prompts", 1)
    assert done.exit_code == 0 and "20 passed, 0" in done.output, done.output
    model = loaded(tiny_model_dir("qwen2"), "bridge")
    found = certify_model(model, short_pairs(model, n=1), progress=False)
    assert found.info.n_heads == 8
    first, behind = (each["base_ids"] for each in found.prompts)
    assert first == behind[: len(first)] and found.prompts[1]["span"][0] == len(first)
    assert [line.status for line in found.verdicts] == ["pass"] * 20
    assert np.isfinite([line.error for line in found.verdicts]).all()


@needs_hooked_transformer
def test_weights_changed_since_loading_are_checked_again(tiny_model_dir: Callable[[str], Path]) -> None:
    model = mi.load_model(tiny_model_dir("llama"), backend="hooked_transformer")
    with torch.no_grad():
        model.underlying.blocks[0].attn.W_O[1] *= 1.5
    status = certify_model(model, progress=False).table().set_index("name")["status"]
    assert (status["S1"], status["S4"], model.checks.logits_difference < 1e-3) == (NOT_APPLICABLE, "pass", True)


def test_a_model_that_fails_when_loaded_ends_with_exit_code_1(
    tiny_model_dir: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = "'x' on backend 'bridge' failed its check: the rows do not sum to 1"

    def load(*arguments: Any, **options: Any) -> Any:
        raise FailedCheck(error)

    monkeypatch.setattr("mless_interp.models.load.load_model", load)
    done = check(tiny_model_dir("qwen2"))
    assert done.exit_code == 1 and "failed its check: the rows do not sum to 1" in done.output


def test_a_failure_ends_with_exit_code_1(
    tiny_model_dir: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    true = loaded(tiny_model_dir("qwen2"), "bridge")
    monkeypatch.setattr("mless_interp.models.load.load_model", lambda *a, **k: lying(true, ignores_positions))
    assert check(tiny_model_dir("qwen2")).exit_code == 1
