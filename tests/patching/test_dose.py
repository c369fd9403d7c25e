"""Dose-response: a slope of exactly 1 where it must be, the outcome per dose, the script from end to end."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import ARCHITECTURES, BACKENDS, ROOT
from models_under_test import loaded, planted_here, planted_problems, problems
from scipy import stats
from scripts_under_test import Done, run_script
from small_results import doses

from mless_interp.commands.answers import of_doses
from mless_interp.ground_truth.planted import planted_model
from mless_interp.heads import Head
from mless_interp.models.sites import site
from mless_interp.patching.dose import DoseResponse, dose_response, slope_in_log_dose
from mless_interp.patching.sweep import patch_heads
from mless_interp.prompts.insertions import Insertion
from mless_interp.prompts.pairs import make_pairs
from mless_interp.running.store import load, save

DOSES = (1, 4, 16, 40)
SLASHES = Insertion.meaningless(" /", 55)


@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_held_slope_is_exactly_one_in_the_first_layer(architecture: str, backend: str, tiny_model_dir: Any) -> None:
    """I12, for every head and problem, on every backend."""
    model = loaded(tiny_model_dir(architecture), backend)
    found = dose_response(model, problems()[:2], SLASHES, doses=DOSES, progress=False)
    assert found.slopes("held") == pytest.approx(1, abs=1e-5)
    assert np.abs(found.slopes("inserted") - 1).max() > 1e-3, "where positions move as well it is not exact"
    constant = found.log_odds["held"] - np.log(DOSES)[None, :, None]
    assert np.abs(constant - constant[:, :1]).max() < 1e-5, "log N plus a constant, not only on average"


def test_held_slope_is_one_where_the_window_shows_the_span(tiny_model_dir: Any) -> None:
    """Gemma's first layer has a window of 16 positions; rows that see the span at every dose count."""
    model = loaded(tiny_model_dir("gemma3"), "bridge")
    found = dose_response(model, problems()[:2], SLASHES, doses=DOSES, progress=False)
    assert found.slopes("held") == pytest.approx(1, abs=1e-5)
    assert np.isfinite(found.slopes("inserted")).all()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_log_odds_are_those_of_the_model_s_own_pattern(architecture: str, tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir(architecture), "bridge")
    found = dose_response(model, problems()[:1], SLASHES, doses=(2, 8), layer=1, progress=False)
    (pair,) = make_pairs(model, problems()[:1], Insertion.meaningless(" /", 8))
    pair = pair.answered()
    name = site(1, "attn.hook_pattern")
    pattern = model.run(pair.inserted.tokens, capture={name: None}, logits_at="none").captured[name][0]
    mass = pattern[:, pair.span[1] :, pair.span_mask].sum(-1).double()
    assert found.log_odds["inserted"][0, 1] == pytest.approx(np.asarray(mass.logit().mean(-1)), abs=1e-4)


def test_outcomes_are_those_of_the_conditions(tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir("qwen2"), "bridge")
    found = dose_response(model, problems(), SLASHES, doses=(3, 9), progress=False)
    pairs = make_pairs(model, problems(), Insertion.meaningless(" /", 9))
    content, total = (
        patch_heads(model, pairs, contrast=contrast, heads=[Head(0, 0)], progress=False)
        for contrast in ("content", "total")
    )
    assert found.outcomes["inserted"][:, 1] == pytest.approx(content.receiving, abs=1e-4)
    assert found.outcomes["masked"][:, 1] == pytest.approx(content.donor, abs=1e-4)
    assert found.base == pytest.approx(total.donor, abs=1e-4)
    table = found.outcome_table().set_index("n_tokens")
    assert table.loc[9, "total"] == pytest.approx(table.loc[9, "content"] + table.loc[9, "shift"])
    assert table.loc[9, "total"] == pytest.approx((content.receiving - total.donor).mean(), abs=1e-4)


@pytest.mark.slow
def test_a_planted_model_s_effect_grows_with_the_dose() -> None:
    made, model = planted_here()
    found = dose_response(model, planted_problems(made, 6), SLASHES, doses=DOSES, progress=False)
    total = found.effects("total")
    assert (np.diff(total.estimate) > 0).all() and (total.low > 0).all()
    assert found.effects("shift").estimate == pytest.approx(0, abs=0.01)
    reader = made.readers[0].head
    assert found.slopes("inserted")[:, reader] == pytest.approx(1, abs=1e-3), "it matches content, not positions"
    table = found.summary().set_index("label")
    assert table.loc[str(made.readers[0]), "slope_held"] == pytest.approx(1, abs=1e-6)
    assert list(table.columns[:3]) == ["layer", "head", "paper_label"] and (table["n"] == 6).all()
    words = found.describe()
    assert "held positions 1.0000 to 1.0000 (1 for identical tokens in layer 0)" in words
    assert f"moves most at 40 tokens: {total.estimate[-1]:+.4f} nats" in words and "n_tokens" in repr(found)
    assert len(found.to_frame()) == 6 * 4 * 8


def test_a_single_problem_has_no_interval_and_none_is_written() -> None:
    one = doses(n=1)
    assert "95 % interval undefined (for all 4 doses together" in one.describe() and "nan" not in repr(one)
    assert "nan" not in of_doses(one) and "with slope 1.10 (at held positions 1.00: arithmetic" in of_doses(one)
    assert ", which holds 0" not in one.describe()


def test_where_no_head_reads_there_is_no_line_to_compare_with() -> None:
    blind = replace(doses(), log_odds={name: np.full_like(read, np.nan) for name, read in doses().log_odds.items()})
    assert blind.reading_table()["slope_1"].isna().all()


def test_unlike_tokens_have_another_slope(tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir("qwen2"), "bridge")
    sentence = Insertion.random_sentence(55, seed=1)
    found = dose_response(model, problems()[:1], sentence, doses=DOSES, progress=False)
    assert np.abs(found.slopes("held") - 1).max() > 0.01


def test_slopes_by_hand() -> None:
    # log2 as a function of ln has slope 1 / ln 2
    assert slope_in_log_dose(np.array([0.0, 1.0, 2.0]), [1, 2, 4]) == pytest.approx(1 / np.log(2))
    assert slope_in_log_dose(np.array([[1.0, 1.0], [np.nan, 1.0]]), (1, 2))[0] == 0
    assert np.isnan(slope_in_log_dose(np.array([np.nan, 1.0]), (1, 2)))
    with pytest.raises(ValueError, match="at least two different doses"):
        slope_in_log_dose(np.array([1.0]), [5])


def test_the_dose_picked_by_its_effect_has_an_interval_for_all_doses_together() -> None:
    made = doses(n=8)
    alone, together = made.effects(), made.effects(together=True)
    assert (together.high - together.low > alone.high - alone.low).all()
    half = stats.t.isf(0.025 / 4, 7) * made.outcomes["inserted"].std(0, ddof=1) / 8**0.5
    assert together.high - together.estimate == pytest.approx(half), "Bonferroni over 4 doses"
    table = made.outcome_table()
    assert table["total_together_ci_low"].to_numpy() == pytest.approx(together.low)
    words = f"95 % interval [{together.low[3]:+.4f}, {together.high[3]:+.4f}] (for all 4 doses together"
    assert words in made.describe()


def test_noise_alone_rarely_moves_the_outcome_at_the_largest_dose() -> None:
    """Of doses that do nothing the one picked by its effect leaves out 0 in 5 % of the data sets, not in 18."""
    draws, made, false = np.random.default_rng(0), doses(n=12), 0
    for _ in range(200):
        noise = draws.normal(size=(12, 4))
        found = replace(
            made,
            outcomes=dict.fromkeys(made.outcomes, noise),
        )
        false += "which holds 0" not in found.sentences()[-1]
    assert false / 200 <= 0.05 + 2 * (0.05 * 0.95 / 200) ** 0.5


def test_what_is_drawn_of_the_heads_stands_in_one_table() -> None:
    found = doses(slope=2.0)
    table = found.reading_table("held")
    heads = ["L0H0", "L0H1", "L0H2", "L0H3"]
    assert list(table.columns) == ["n_tokens", *heads, "mean", "mean_ci_low", "mean_ci_high", "slope_1"]
    assert table["mean"].to_numpy() == pytest.approx(table[heads].mean(axis=1).to_numpy())
    assert table["mean"].to_numpy() == pytest.approx(2 * np.log([1, 2, 4, 8]) - 2.5)
    assert (table["mean_ci_low"] < table["mean"]).all() and (table["mean"] < table["mean_ci_high"]).all()
    assert np.diff(table["slope_1"]) == pytest.approx(np.log(2)), "one unit per unit of log N"
    above = table[heads].to_numpy() - table[["slope_1"]].to_numpy()
    assert np.median(above) == pytest.approx(0), "through the middle of the heads"
    slope = found.mean_slope("inserted")
    assert float(slope.estimate) == pytest.approx(2.2) and float(slope.low) <= 2.2 + 1e-9
    with pytest.raises(ValueError, match="unknown condition 'masked'; choose one of held, inserted"):
        found.reading_table("masked")


def test_same_twice_and_after_saving(tiny_model_dir: Any, tmp_path: Any) -> None:
    model = loaded(tiny_model_dir("llama"), "bridge")
    first, second = (dose_response(model, problems()[:2], SLASHES, doses=(1, 8), progress=False) for _ in range(2))
    assert all(np.array_equal(first.log_odds[name], second.log_odds[name]) for name in first.log_odds)
    kept = load(save(tmp_path / "doses", first))["DoseResponse"]
    assert kept.describe() == first.describe() and kept.summary().equals(first.summary())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"doses": (5,)}, r"doses must be at least two increasing numbers of tokens from 1 up, got \[5\]"),
        ({"doses": (0, 5)}, "from 1 up"),
        ({"doses": (5, 2)}, "increasing"),
        ({"doses": (2, 2)}, "increasing"),
        ({"layer": 3}, r"layer 3 is out of range \(zero-based\): 0 to 2"),
        ({"outcome": "kl"}, "dose-response needs a signed outcome"),
        ({"outcome": "x"}, "unknown outcome 'x'"),
        ({"insertion": Insertion.text(" / /")}, "of kind 'text' has one length only"),
        ({"doses": (1, 900)}, "has a context of 512: insert fewer tokens"),
        ({"problems": []}, "there are no problems"),
    ],
)
def test_wrong_requests_are_named(options: dict[str, Any], message: str, tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir("qwen2"), "bridge")
    given = {"problems": problems()[:1], "insertion": SLASHES, "doses": DOSES, **options}
    with pytest.raises(ValueError, match=message):
        dose_response(model, given.pop("problems"), given.pop("insertion"), progress=False, **given)


def test_an_unknown_condition_or_contrast_is_named(tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir("qwen2"), "bridge")
    found = dose_response(model, problems()[:1], SLASHES, doses=(1, 2), progress=False)
    with pytest.raises(ValueError, match="unknown condition 'gap'; choose one of inserted, held"):
        found.slopes("gap")
    with pytest.raises(ValueError, match="unknown contrast 'x'; choose one of content, shift, total, held"):
        found.effects("x")


def test_the_picture_shows_both_conditions_and_the_outcome(tiny_model_dir: Any, tmp_path: Any) -> None:
    from mless_interp import views

    model = loaded(tiny_model_dir("qwen2"), "bridge")
    found: DoseResponse = dose_response(model, problems(), SLASHES, doses=DOSES, progress=False)
    picture = views.dose_response(found)
    assert picture.save(tmp_path / "doses.png").stat().st_size > 10_000
    assert [axes.get_title() for axes in picture.axes[:2]] == [
        "layer 0 (paper: layer 1), positions held",
        "layer 0 (paper: layer 1), as inserted",
    ]
    assert "answer_logprob (nats)" in picture.axes[2].get_ylabel()


# ----------------------------------------------------------------------------------------------------------- the script


@pytest.fixture(scope="module")
def planted_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planted") / "model"
    planted_model(n_heads=8, n_key_value_heads=2, seed=1).save(folder, n_problems=4)
    return folder


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The script in this process, as its command line would run it: (exit code, standard output, standard error)."""

    def call(*arguments: Any) -> Done:
        script = ROOT / "analyses" / "dose_response.py"
        return run_script(script, arguments, cwd=tmp_path, capsys=capsys, monkeypatch=monkeypatch)

    return call


@pytest.mark.slow
def test_the_script_writes_everything(planted_folder: Path, tmp_path: Path, run: Any) -> None:
    common = ["--model", planted_folder, "--backend", "bridge", "--doses", "1,4,16", "--no-progress"]
    code, shown, error = run(*common, "--out", "doses", "--report")
    assert code == 0, error
    assert "held positions 1.0000 to 1.0000" in " ".join(shown.split()) and "doses/slopes.csv" in shown
    out = tmp_path / "doses"
    names = {
        "slopes.csv",
        "outcomes.csv",
        "doses.parquet",
        "dose_response.png",
        "results",
        "shown",
        "run.json",
        "manifest.json",
        "report.html",
    }
    assert {path.name for path in out.iterdir()} == names
    slopes = pd.read_csv(out / "slopes.csv")
    assert slopes["slope_held"].to_numpy() == pytest.approx(1, abs=1e-6) and len(slopes) == 8
    outcomes = pd.read_csv(out / "outcomes.csv")
    assert list(outcomes["n_tokens"]) == [1, 4, 16] and (outcomes["total_ci_low"] > 0).all()
    assert len(pd.read_parquet(out / "doses.parquet")) == 4 * 3 * 8
    kept = json.loads((out / "run.json").read_text())
    assert kept["settings"]["doses"] == [1, 4, 16] and kept["n_problems"] == 4 and kept["checks"]
    assert "--doses" in kept["repeat"] and "Slope of logit" in kept["conclusion"]
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Slope of logit" in page and page.count("<table") == 2 and page.count("<img") == 1
    assert page.count('class="mless-view"') == 1 and "--doses 1,4,16" in page
    code, _, error = run(*common, "--out", "doses")
    assert code == 2 and "allow overwriting it (--overwrite)" in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--doses", "1,x"], "--doses: cannot read 'x' as a number of tokens: write 1,2,4"),
        (["--doses", "4,2"], "doses must be at least two increasing numbers"),
        (["--doses", "1,9999"], "leave no room for a question"),
        (["--layer", "7"], "layer 7 is out of range (zero-based)"),
        (["--insertion", "text", "--unit", " /"], "of kind 'text' has one length only"),
        (["--outcome", "kl"], "dose-response needs a signed outcome"),
        (["--limit", "0"], "Invalid value for '--limit'"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_two(
    arguments: list[str], message: str, planted_folder: Path, tmp_path: Path, run: Any
) -> None:
    code, _, error = run(
        "--model", planted_folder, "--backend", "bridge", *arguments, "--out", tmp_path / "out", "--no-progress"
    )
    errors = [line for line in error.splitlines() if line.startswith("error: ")]
    assert code == 2 and len(errors) == 1 and message in errors[0]
    assert "Traceback" not in error and not (tmp_path / "out").exists()
