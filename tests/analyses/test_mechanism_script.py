"""analyses/mechanism.py from end to end on a small planted model, its pictures, and what it says to wrong input."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from models_under_test import loaded, pairs_for
from scripts_under_test import Done, run_script

import mless_interp as mi
from mless_interp.ground_truth.planted import planted_model
from mless_interp.heads import Head
from mless_interp.mechanism import activation_shift, decompose_attention, mediate
from mless_interp.running.store import load
from mless_interp.views import mechanism_plots as views

TABLES = {"heads", "heads_total", "layers", "activations", "claims", "mediation"}
PICTURES = {"lambda", "lambda_map", "shares", "layers", "activations", "near_zero", "mediation"}


@pytest.fixture(scope="module")
def planted_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planted") / "model"
    planted_model(readers=[Head(0, 2)], mediators=[Head(1, 4)], n_heads=8, n_key_value_heads=2, seed=5).save(
        folder, n_problems=4
    )
    return folder


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The script in this process, as its command line would run it, in an empty folder: (code, shown, error)."""

    def call(*arguments: Any) -> Done:
        script = ROOT / "analyses" / "mechanism.py"
        return run_script(script, arguments, cwd=tmp_path, capsys=capsys, monkeypatch=monkeypatch)

    return call


@pytest.mark.slow
def test_the_script_writes_everything(planted_folder: Path, tmp_path: Path, run: Any) -> None:
    common = ["--model", planted_folder, "--backend", "bridge", "--n-tokens", 20, "--no-progress"]
    code, shown, error = run(*common, "--out", "mechanism", "--report")
    assert code == 0, error
    out = tmp_path / "mechanism"
    names = {f"{name}.csv" for name in TABLES} | {f"{name}.png" for name in PICTURES}
    names |= {"decomposition.parquet", "results", "shown", "run.json", "report.html", "manifest.json"}
    assert {path.name for path in out.iterdir()} == names
    assert all((out / f"{name}.png").stat().st_size > 5000 for name in PICTURES)
    text = " ".join(shown.split())
    for words in ("an identity there", "another number than lambda", "whether anything reads it", "Mediation through"):
        assert words in text
    heads = pd.read_csv(out / "heads.csv")
    assert len(heads) == 16 and {"lam", "lam_null", "lam_control", "lam_p", "fit_slope", "share_ci_low"} <= set(heads)
    assert heads[heads["layer"] == 0]["residual"].max() < 1e-4
    reader = heads.set_index("label").loc["L0H2"]
    assert reader["lam"] < reader["lam_null"] and reader["bias_share"] > 0.9 * reader["share"] > 0
    total = pd.read_csv(out / "heads_total.csv")
    assert "shift_share" in total and "shift_share" not in heads
    mediation = pd.read_csv(out / "mediation.csv").set_index(["reading", "effect"])
    assert mediation.loc[("outcome", "bias"), "mean"] == pytest.approx(
        mediation.loc[("outcome", "both"), "mean"], rel=0.1
    )
    kept = load(out / "results")
    assert set(kept) == {"AttentionDecomposition", "ActivationShift", "Mediation", "provenance"}
    assert kept["AttentionDecomposition"].mean("lam")[0, 2] == pytest.approx(reader["lam"])
    run_record = json.loads((out / "run.json").read_text())
    assert run_record["n_problems"] == 4 and len(run_record["conclusion"]) == 3 and run_record["checks"]
    page = (out / "report.html").read_text(encoding="utf-8")
    assert page.count("<img") == 6 and "Scale or bias" in page and page.count('class="mless-view"') == 1
    assert "claims about MLP activations" in page and len(page) < 4_000_000
    code, _, error = run(*common, "--out", "mechanism")
    assert code == 2 and "allow overwriting it (--overwrite)" in error
    assert not list(tmp_path.glob(".mechanism*"))


@pytest.mark.slow
def test_chosen_layers_and_denoising(planted_folder: Path, tmp_path: Path, run: Any) -> None:
    code, shown, error = run(
        *(
            "--model",
            planted_folder,
            "--backend",
            "bridge",
            "--n-tokens",
            6,
            "--limit",
            2,
            "--layers",
            "1",
            "--layer",
            1,
        ),
        *("--direction", "denoising", "--contrast", "held", "--no-control", "--no-progress", "--out", "one"),
    )
    assert code == 0, error
    heads = pd.read_csv(tmp_path / "one" / "heads.csv")
    assert set(heads["layer"]) == {1} and "lam_control" not in heads
    assert "denoising" in shown and "'rest', not scale or bias" in " ".join(shown.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--contrast", "shift"], "unknown contrast 'shift'; choose content or held"),
        (["--layer", "7"], "layer 7 is out of range (zero-based)"),
        (["--layers", "0,9"], "layer 9 is out of range (zero-based)"),
        (["--n-tokens", "9999"], "leave no room for a question"),
        (["--outcome", "kl"], "mediation needs a signed outcome"),
        (["--direction", "up"], "unknown direction 'up'"),
        (["--c", "0"], "Invalid value for '--c': must be greater than 0, got '0'"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_two(
    arguments: list[str], message: str, planted_folder: Path, tmp_path: Path, run: Any
) -> None:
    common = ["--model", planted_folder, "--backend", "bridge", "--n-tokens", 4, "--limit", 4, "--no-progress"]
    code, _, error = run(*common, *arguments, "--out", tmp_path / "out")
    assert code == 2 and error.startswith("error: ") and message in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["qwen2", "gemma3"])
def test_pictures_show_the_numbers(architecture: str, tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir(architecture), "bridge")
    pairs = pairs_for(model, n_tokens=9)
    parts = decompose_attention(model, pairs, progress=False)
    picture = mi.views.lambda_heads(parts, layer=1, contrast="held")
    shown = [line.get_ydata() for line in picture.axes[0].lines]
    assert any(len(y) == 8 and np.allclose(y, parts.mean("fit_slope", "held")[1]) for y in shown)
    points = np.concatenate([y for y in shown if len(y)])
    assert all(np.isclose(points, value).any() for value in parts.mean("lam", "held")[1])
    bars = mi.views.shares(parts, layer=0, contrast="total").axes[0].patches
    heights = sum(bar.get_height() for bar in bars)
    assert heights == pytest.approx(1, abs=1e-4), "scale, bias and shift of all heads of layer 0"
    layers = mi.views.affine_layers(parts).axes[0].lines[0].get_ydata()
    assert layers == pytest.approx(parts.layer_table()["residual"].to_numpy())
    if architecture == "gemma3":
        assert "after the norm" in views.shares(parts, after_norm=True).axes[0].get_title()
    else:
        with pytest.raises(ValueError, match="does not norm what attention writes"):
            views.shares(parts, after_norm=True)
    with pytest.raises(ValueError, match=r"layer 5 \(zero-based\) is not in this result; there are \[0, 1, 2\]"):
        views.lambda_heads(parts, layer=5)
    found = mediate(model, pairs, progress=False)
    axes = mi.views.mediation(found).axes
    assert len(axes) == 6 and axes[0].get_title() == "near-zero share (ARM's form)"
    shift = activation_shift(model, pairs, progress=False)
    assert len(mi.views.near_zero(shift).axes[0].get_xticks()) == len(shift.groups)
    with pytest.raises(ValueError, match="no 'sparsity' for contrast 'content' here"):
        mi.views.near_zero(shift, metric="sparsity")
