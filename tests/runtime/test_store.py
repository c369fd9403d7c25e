"""Saved results: written whole or not at all, read back unchanged, and refused by name where they are damaged."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models_under_test import loaded
from results_under_test import same

from mless_interp.circuits.paths import Mlp
from mless_interp.core.heads import Head
from mless_interp.patching.sweep import PatchScores
from mless_interp.runtime.folders import write_manifest
from mless_interp.runtime.store import load, save


def made_scores(**changes: Any) -> PatchScores:
    """Three problems, two layers of two heads, of which three were patched."""
    patched = np.array([[[1.0, 2.0], [0.5, np.nan]]] * 3) * np.array([1.0, 2.0, 4.0])[:, None, None]
    fields: dict[str, Any] = {
        "problem_ids": ("a", "b/1", "ü"),
        "patched": patched,
        "receiving": np.array([0.5, 0.25, 0.125]),
        "donor": np.array([2.0, 4.0, 8.0]),
        "heads": (Head(0, 0), Head(0, 1), Head(1, 0)),
        "unit": "nats",
        "settings": {"contrast": "content", "heads": ["L0H0"], "nested": {"x": (1, 2.5, None), "y": True}},
        "seed": 3,
    }
    return PatchScores(**(fields | changes))


def test_every_kind_of_value_is_written_under_its_own_name(tmp_path: Path) -> None:
    """What other versions and programs read: it stays as it is."""
    settings = {
        "array": np.array([1.0, -np.nan]),
        "words": np.array(["a", "b"], dtype=object),
        "tuple": ("x", Mlp(1)),
        "list": [None, True, 2.5, np.int64(3)],
        "a.%": {"deep": np.arange(2)},
        "head": Head(1, 2),
    }
    folder = save(tmp_path / "out", found=made_scores(settings=settings))
    document = json.loads((folder / "results.json").read_text())
    found = document["results"]["found"]
    assert set(document) == {"format", "results", "provenance"} and document["format"] == 1
    assert set(found) == {"class", "fields"} and found["class"] == "PatchScores"
    assert found["fields"]["settings"] == {
        "dict": {
            "array": {"array": "found.settings.array"},
            "words": {"array": "found.settings.words"},
            "tuple": {"tuple": ["x", {"result": {"class": "Mlp", "fields": {"layer": 1}}}]},
            "list": [None, True, 2.5, 3],
            "a.%": {"dict": {"deep": {"array": "found.settings.a%2E%25.deep"}}},
            "head": {"head": [1, 2]},
        }
    }
    with np.load(folder / "arrays.npz") as arrays:
        words = arrays["found.settings.words"]
        assert words.tolist() == ["a", "b"] and words.dtype.kind == "U"
        assert not np.signbit(arrays["found.settings.array"][1]), "one kind of NaN"
    again = load(folder)["found"].settings
    assert again["tuple"] == ("x", Mlp(1)) and again["list"] == [None, True, 2.5, 3] and again["head"] == Head(1, 2)
    with pytest.raises(FileExistsError, match="exists; choose another"):
        save(folder, made_scores())
    assert load(save(folder, made_scores(seed=4), overwrite=True))["PatchScores"].seed == 4
    with pytest.raises(TypeError, match=r"found.settings.x.1: a set cannot be saved and loaded unchanged; keep it as"):
        save(tmp_path / "set", found=made_scores(settings={"x": (1, {2})}))
    with pytest.raises(TypeError, match=r"found.settings.x: a dict cannot be saved"):
        save(tmp_path / "keys", found=made_scores(settings={"x": {1: 2}}))


def changed(folder: Path, edit: Callable[[Any], object] = lambda found: None, **arrays: np.ndarray) -> Path:
    """A saved result whose document and arrays were changed by hand, with a manifest of what they are now."""
    save(folder, made_scores(noise=np.zeros((3, 2))))
    document = json.loads((folder / "results.json").read_text())
    edit(document)
    (folder / "results.json").write_text(json.dumps(document))
    with np.load(folder / "arrays.npz") as kept:
        held = dict(kept)
    np.savez(folder / "arrays.npz", **held | {f"PatchScores.{name}": array for name, array in arrays.items()})
    write_manifest(folder)
    return folder


def of_class(name: str) -> Callable[[Any], object]:
    return lambda document: document["results"]["PatchScores"].update({"class": name})


@pytest.mark.parametrize(
    ("edit", "arrays", "message"),
    [
        (of_class("subprocess.Popen"), {}, "has no result 'subprocess.Popen'"),
        (lambda document: document.update(format=2), {}, "it has format 2, this version reads format 1"),
        (len, {"donor": np.array([{"a": 1}], dtype=object)}, "allow_pickle=False"),
    ],
)
def test_what_is_no_whole_result_is_refused(tmp_path: Path, edit: Any, arrays: Any, message: str) -> None:
    with pytest.raises(ValueError, match=rf"out' cannot be loaded \(\w+: .*{message}.*; take a copy that is whole"):
        load(changed(tmp_path / "out", edit, **arrays))


def test_names_with_dots_keep_their_own_arrays(tmp_path: Path) -> None:
    """Also where another's field has that name, or a name ends as files of arrays do."""
    first, second, third = (made_scores(donor=np.full(3, value)) for value in (1.0, 2.0, 3.0))
    settings = {"a": np.zeros(2), "a.npy": np.ones(2), "b.c": np.full(2, 3.0), "b": {"c": np.full(2, 4.0)}}
    everything = {"x": first, "x.settings": second, "x%2Esettings": third, "x.npy": made_scores(settings=settings)}
    found = load(save(tmp_path / "out", **everything))
    assert all(same(found[name], scores) for name, scores in everything.items())


def test_the_model_and_its_check_figures_travel_with_the_result(
    tmp_path: Path, tiny_model_dir: Callable[[str], Path]
) -> None:
    model = loaded(tiny_model_dir("gemma3"), "bridge")
    save(tmp_path / "out", made_scores(), model=model)
    came = load(tmp_path / "out")["provenance"]
    assert came["model"]["name"] == model.info.name and came["model"]["windows"] == [16, None, 16]
    assert came["model"]["weights_hash"] == model.weights_hash
    assert came["checks"] == asdict(model.checks) and 0 <= came["checks"]["row_sum_error"] < 1e-5


def test_what_cannot_be_saved_or_loaded_is_told(tmp_path: Path) -> None:
    for results, named in (((made_scores(), made_scores()), {}), ((), {}), ((), {"provenance": made_scores()})):
        with pytest.raises(ValueError, match=r"one result or more; two of the same class need names, save\(path, fir"):
            save(tmp_path / "out", *results, **named)
    with pytest.raises(TypeError, match="mine: only results of this toolkit can be saved, got dict"):
        save(tmp_path / "dict", mine={"a": 1})
    with pytest.raises(FileNotFoundError, match=r"holds no saved results \(no results.json\)"):
        load(tmp_path)
    save(tmp_path / "run" / "results", mine=made_scores())
    (tmp_path / "run" / "run.json").write_text("{}")
    assert list(load(tmp_path / "run")) == ["mine", "provenance"], "of a run's folder its results"
