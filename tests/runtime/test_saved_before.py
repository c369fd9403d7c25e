"""A folder that version 0.1 wrote: all of it can be read, means what it meant, and is written anew as today's are."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from results_under_test import same

import mless_interp as mi
from mless_interp.answers import GRADERS
from mless_interp.runtime.registry import RENAMED
from mless_interp.runtime.results import Result

FOLDER = Path(__file__).parent / "data" / "saved-0.1"
CLASSES = {
    "AccuracyResults": "Mless ' /' x6 100 %",
    "ActivationShift": "52 a problem",
    "AttentionDecomposition": "from 0.113 to 0.475",
    "AttentionProfile": "57 to 60 tokens",
    "CircuitCurve": "median +0.5270 nats",
    "DoseResponse": "+0.4485",
    "HeadAttribution": "by 0.5270 nats",
    "HeadScores": "-11.5610",
    "JointKnockout": "+0.2023 nats",
    "LocatedHeads": "mean +0.5492.",
    "Mediation": "its bias alone by +0.5270",
    "PatchScores": "mean +0.5492.",
}
"""The classes of then, and what the print of each said then (limits of means at few problems are wider today; the
total of a denoising sweep then had the other sign)."""

VERDICTS_OF_THEN = {
    f"LocatedHeads.{name}"
    for name in ("readers", "mediators", "p_reader", "p_mediator", "tested", "specific", "p_specific")
}


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return mi.load(FOLDER)


@pytest.fixture(scope="module")
def arrays() -> dict[str, np.ndarray]:
    with np.load(FOLDER / "arrays.npz") as kept:
        return dict(kept)


def written(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))["results"]


def classes_in(part: Any) -> set[str]:
    """Every class that a document names, however deep."""
    inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    here = {part["class"]} if isinstance(part, dict) and isinstance(part.get("class"), str) else set()
    return here.union(*map(classes_in, inner))


DROPPED = object()
"""A field of then that follows from the others today."""


def at(result: Any, path: list[str]) -> Any:
    """What stands at a path of fields, keys and places, fields by their names of then."""
    for name in path:
        if RENAMED.get(type(result).__name__, {}).get(name, name) is None:
            return DROPPED
        if isinstance(result, dict):
            result = result[name]
        elif isinstance(result, tuple | list):
            result = result[int(name)]
        else:
            result = getattr(result, RENAMED[type(result).__name__].get(name, name))
    return result


# ---------------------------------------------------------------------------------------------------------- all is read


def test_every_class_of_then_comes_back_as_the_class_of_today(found: dict[str, Any]) -> None:
    assert set(found) == set(CLASSES) | {"provenance"}
    assert {name: type(found[name]) for name in CLASSES} == {name: getattr(mi, name) for name in CLASSES}
    assert all(name.startswith("mless_interp.") for name in classes_in(written(FOLDER))), "as 0.1 named them"
    assert found["provenance"]["versions"]["mless_interp"] == "0.1.0"


@pytest.mark.parametrize(("name", "words"), CLASSES.items())
def test_what_is_read_says_what_it_said(name: str, words: str, found: dict[str, Any]) -> None:
    assert words in f"{found[name]!r} {found[name].explain()}" and len(found[name].to_frame())


def test_every_array_stands_where_it_stood(found: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    assert len(arrays) == 136 and {key.split(".")[0] for key in arrays} == set(CLASSES)
    dropped = set()
    for key, array in arrays.items():
        name, *path = key.split(".")
        here = at(found[name], path)
        if here is DROPPED:
            dropped.add(key)
        else:
            assert same(here, array), key
    assert dropped == VERDICTS_OF_THEN


def test_numbers_mean_what_they_meant(found: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    assert found["PatchScores"].settings["direction"] == "denoising"
    effect = arrays["PatchScores.receiving"][:, None, None] - arrays["PatchScores.patched"]
    total = arrays["PatchScores.receiving"] - arrays["PatchScores.donor"]
    assert np.array_equal(found["PatchScores"].total_effect, total) and total.mean() > 0.5, (
        "as located heads of then say"
    )
    patches = found["PatchScores"].table().set_index("label")
    assert patches.loc["L1H2", "effect"] == pytest.approx(effect[:, 1, 2].mean())
    assert patches.loc["L1H2", "effect_fraction"] == pytest.approx(effect[:, 1, 2].mean() / total.mean())
    mass = arrays["HeadScores.values.span_mass.inserted"]
    np.testing.assert_allclose(found["HeadScores"].mean("span_mass"), mass.mean(0))
    located = found["LocatedHeads"]
    rules = located.confidence, located.smallest_effect, located.resolution
    of_then = (1 - located.settings["alpha"], *(located.settings[name] for name in ("smallest_effect", "resolution")))
    assert rules == of_then and located.resolution > 0, "settings of then are fields today"
    assert not located.found
    truth = {mi.Head(0, 1): "reader", mi.Head(0, 3): "reader", mi.Head(1, 2): "mediator"}
    for at, (head, kind) in zip((1, 3, 6), truth.items(), strict=True):
        values = {name: array[:, [at]] for name, array in located.values.items()}
        alone = dataclasses.replace(located, heads=(head,), values=values)
        assert alone.found == {head: kind}, "but each of the three named then, if it had been asked of it alone"
        assert alone.control_table()["random_effect"].isna().all(), "controls of then are not"
    assert located.control_table().empty
    assert found["LocatedHeads"].patches.table()["effect"].tolist() == patches["effect"].tolist()
    assert found["JointKnockout"].heads == (mi.Head(0, 1),)
    answers = found["AccuracyResults"]
    assert answers.treatments == ("none", "Mless ' /' x6") and answers.golds == ("11", "9", "13")
    assert answers.completions[1] == (("Answer : \\boxed{ 9",), ("Answer : \\boxed{ 9",))
    cut_off = arrays["AccuracyResults.cut_off"]
    assert answers.table()["cut_off"].tolist() == cut_off.mean((0, 2)).tolist() == [1.0, 1.0]


# ---------------------------------------------------------------------------------------------------- and written anew


@pytest.fixture(scope="module")
def again(found: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same results in a folder of today."""
    results = {name: found[name] for name in CLASSES}
    return mi.save(tmp_path_factory.mktemp("saved") / "again", **results)


def test_saved_again_and_loaded_again_everything_is_the_same(
    found: dict[str, Any], arrays: dict[str, np.ndarray], again: Path
) -> None:
    with np.load(again / "arrays.npz") as kept:
        assert same(
            {key: kept[key] for key in sorted(kept.files)},
            {key: arrays[key] for key in sorted(set(arrays) - VERDICTS_OF_THEN)},
        )
    loaded = mi.load(again)
    for name in CLASSES:
        assert same(loaded[name], found[name]), name
        assert repr(loaded[name]) == repr(found[name])


def test_nothing_written_today_says_in_which_module_a_class_lives(again: Path) -> None:
    document = written(again)
    assert classes_in(document) >= set(CLASSES) and not any("." in name for name in classes_in(document))
    assert "mless_interp" not in json.dumps(document)
    assert "treatments" in document["AccuracyResults"]["fields"]
    assert "conditions" not in document["AccuracyResults"]["fields"]


def every_result(kind: type) -> set[str]:
    return {kind.__name__}.union(*(every_result(inner) for inner in kind.__subclasses__()))


@pytest.mark.slow
def test_every_result_is_public_so_that_a_new_process_finds_it(tmp_path: Path) -> None:
    named = {name for names in mi.RESULTS.values() for name in names}
    for name in (*mi.__all__, *named, "paper"):
        getattr(mi, name)  # every room is imported
    results = every_result(Result) - {"Result", "ClaimChecks"}  # the paper's claims are written as a table
    assert results >= set(CLASSES) | {"Comparison", "Comparisons"}
    assert results <= named
    right = np.ones((3, 2, 1))
    answers = mi.AccuracyResults(
        ("a", "b", "c"), ("none", "mless"), dict.fromkeys(GRADERS, right), right, 0 * right, right,
        ((("7",), ("7",)),) * 3, np.full(right.shape, "text"),
    )  # fmt: skip
    folder = mi.save(tmp_path / "compared", answers.compare_all())
    code = "import sys, mless_interp as mi; print(mi.load(sys.argv[1])['Comparisons'])"
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("No change is shown for 'mless'"), done.stderr
