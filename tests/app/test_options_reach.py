"""What is asked on a command line reaches the analysis: functions of the library that only note what they are asked."""

from pathlib import Path
from typing import Any

import pytest
from small_results import RESULTS
from typer.testing import CliRunner

from mless_interp.__main__ import app

BASE = "--limit 3 --seed 5 --no-progress --backend bridge --out {out}"
QUICK = f"{BASE} --n-tokens 4"
LONG = {"progress": False, "seed": 5}
Calls = dict[str, tuple[str, dict[str, Any]]]
ASKED: dict[str, tuple[str, Calls]] = {
    "dose": (
        f"{BASE} --doses 1,8 --layer 1 --outcome answer_prob --template text",
        {"patching.dose.dose_response": ("DoseResponse", {
            "doses": (1, 8), "layer": 1, "outcome": "answer_prob", "template": "text", "checkpoint": "doses.jsonl",
        })},
    ),
    "mechanism": (
        f"{QUICK} --layer 1 --layers 1 --contrast held --outcome answer_prob --c 0.2",
        {
            "mechanism.mediate": ("Mediation", {
                "layer": 1, "c": 0.2, "outcome": "answer_prob", "checkpoint": "mediation.jsonl",
            }),
            "mechanism.activation_shift": ("ActivationShift", {"layer": 1, "c": 0.2, "checkpoint": "activations.jsonl"}),
            "mechanism.decompose_attention": ("AttentionDecomposition", {
                "heads": 8, "contrasts": ("held", "total", "content"), "n_control_draws": 5,
                "checkpoint": "decomposition.jsonl",
            }),
        },
    ),
    "profiles": (
        f"{QUICK} --heads 0:2 --metrics span_mass --conditions base,masked,inserted --rows all --twins 0",
        {
            "scores.score_heads": ("HeadScores", {
                "heads": 1, "metrics": ("span_mass",), "conditions": ("base", "masked", "inserted"), "rows": "all",
                "checkpoint": "scores.jsonl",
            }),
            "scores.attention_profile": ("AttentionProfile", {
                "heads": 3, "conditions": ("base", "masked", "inserted"), "rows": "all", "checkpoint": "profile.jsonl",
            }),
        },
    ),
    "circuit": (
        f"{QUICK} --confirm 4 --by answer --most-heads 3 --mlps all --n-rows 2 --without sets --outcome answer_prob "
        "--contrast inside",
        {
            "circuits.locate.locate_heads": ("LocatedHeads", {
                "confirm": 4, "by": "answer", "outcome": "answer_prob", "contrast": "inside", "checkpoint": "located",
            }),
            "circuits.circuit.trace_circuit": ("Circuit", {
                "fresh": 4, "parts": 6, "outcome": "answer_prob", "contrast": "inside", "mlps": "all", "n_rows": 2,
                "most_heads": 3, "checkpoint": ".x.partial",
            }),
        },
    ),
    "locate": (
        f"{QUICK} --mode sweep --layers 0 --contrast total --direction noising --edit knockout --outcome answer_prob",
        {"patching.sweep.patch_heads": ("PatchScores", {
            "heads": 8, "contrast": "total", "direction": "noising", "edit": "knockout", "outcome": "answer_prob",
            "checkpoint": "sweep.jsonl",
        })},
    ),
    "read-span": (
        f"{QUICK} --what answer --place at-2",
        {"mechanism.read_span": ("SpanReadings", {"what": "answer", "checkpoint": "readings.jsonl"})},
    ),
    "accuracy": (
        f"{QUICK} --treatments none,mless --n-samples 2 --temperature 0.5 --top-p 0.9 --max-new-tokens 3 --batch-size 2",
        {"answers.evaluate_accuracy": ("AccuracyResults", {
            "n_samples": 2, "temperature": 0.5, "top_p": 0.9, "max_new_tokens": 3, "batch_size": 2, "engine": "auto",
            "template": "raw", "checkpoint": "answers.jsonl",
        })},
    ),
}  # fmt: skip
"""Of each command: what is asked, and with which options each function is called; of lists how long they are."""


@pytest.mark.parametrize("name", ASKED)
def test_every_option_reaches_the_analysis(
    name: str, planted_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, calls = ASKED[name]
    noted: dict[str, dict[str, Any]] = {}

    def instead(function: str, gives: str) -> Any:
        def call(*_: Any, **how: Any) -> Any:
            of_pairs = ("heads", "parts", "confirm", "fresh")
            told = {key: len(each) if key in of_pairs else each for key, each in how.items()}
            noted[function] = told | {"checkpoint": Path(how["checkpoint"]).name}
            return RESULTS[gives]()

        return call

    for function, (gives, _) in calls.items():
        monkeypatch.setattr(f"mless_interp.{function}", instead(function, gives))
    monkeypatch.setattr("mless_interp.app.run_folder._keep_and_show", lambda *_: None)
    if name in SHOWS:
        monkeypatch.setattr(f"mless_interp.app.{SHOWS[name]}.shown_attention", lambda *_: {})
    model = [str(planted_dir)] if name == "circuit" else ["--model", str(planted_dir)]
    done = CliRunner().invoke(app, [name, *model, *line.format(out=tmp_path / "x").split()])
    assert done.exit_code == 0, done.stderr
    assert noted == {function: LONG | how for function, (_, how) in calls.items()}


SHOWS = {"dose": "dose_response", "mechanism": "mechanism", "profiles": "head_profiles", "locate": "patch_heads"}
"""The file of each command that shows attention."""
