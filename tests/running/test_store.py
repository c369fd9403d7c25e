"""Saved results: written whole or not at all, read back unchanged; and checkpoints: nothing finished is lost."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from models_under_test import loaded
from results_under_test import same

from mless_interp.heads import Head
from mless_interp.patching.scores import PatchScores
from mless_interp.running.checkpoint import Checkpoint
from mless_interp.running.store import load, new_folder, provenance, refuse_existing, save
from mless_interp.statistics import Interval


def contents(folder: Path) -> dict[str, str]:
    """Every file under a folder, hidden ones and leftovers too."""
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


def everything_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A folder with an old result, alone in its parent."""
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "old.txt").write_text("old")
    return folder


# ------------------------------------------------------------------------------------------------------- whole or not


def test_a_folder_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "out"
    with new_folder(target) as folder:
        (folder / "a.txt").write_text("a")
        assert not target.exists()
        assert folder.parent == target.parent  # the same disk, so that the last step is one rename
    assert contents(tmp_path) == {"deep/out/a.txt": "a"}


def test_a_new_folder_is_readable_by_others(tmp_path: Path) -> None:
    with new_folder(tmp_path / "out"):
        pass
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o755


def fail_half_way(target: Path, failure: BaseException) -> None:
    with new_folder(target, overwrite=True) as folder:
        (folder / "new.txt").write_text("new")
        raise failure


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="half way"):
        fail_half_way(tmp_path / "out", RuntimeError("half way"))
    assert everything_in(tmp_path) == []


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_a_failure_leaves_the_old_folder_as_it_was(old: Path, failure: type[BaseException]) -> None:
    with pytest.raises(failure):
        fail_half_way(old, failure())
    assert contents(old.parent) == {"out/old.txt": "old"}
    assert everything_in(old.parent) == ["out"]


def test_a_failure_of_the_last_step_brings_the_old_folder_back(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.replace

    def replace(source: Path, target: Path) -> None:
        if Path(target) == old and (Path(source) / "new.txt").exists():
            raise OSError("disk gone")
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OSError, match="disk gone"), new_folder(old, overwrite=True) as folder:
        (folder / "new.txt").write_text("new")
    assert contents(old.parent) == {"out/old.txt": "old"}
    assert everything_in(old.parent) == ["out"]


def test_overwriting_replaces_the_whole_folder(old: Path) -> None:
    with new_folder(old, overwrite=True) as folder:
        (folder / "new.txt").write_text("new")
        assert contents(old) == {"old.txt": "old"}
    assert contents(old.parent) == {"out/new.txt": "new"}
    assert everything_in(old.parent) == ["out"]


def test_an_existing_folder_is_refused_before_anything_is_made(old: Path) -> None:
    with (
        pytest.raises(FileExistsError, match=r"the folder '.*out' exists; choose another, .*--overwrite"),
        new_folder(old),
    ):
        pytest.fail("the body ran")
    assert everything_in(old.parent) == ["out"]
    with pytest.raises(FileExistsError, match="exists; choose another"):
        refuse_existing(old, overwrite=False)
    refuse_existing(old, overwrite=True)


def test_an_empty_folder_may_be_filled(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with new_folder(tmp_path / "out") as folder:
        (folder / "a.txt").write_text("a")
    assert contents(tmp_path) == {"out/a.txt": "a"}


def test_a_file_in_the_way_is_refused_even_with_overwrite(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(FileExistsError, match="'.*out' is a file, not a folder; choose another name"):
        refuse_existing(tmp_path / "out", overwrite=True)


def test_a_link_to_a_folder_stays_a_link(old: Path) -> None:
    link = old.parent / "link"
    link.symlink_to(old)
    with new_folder(link, overwrite=True) as folder:
        (folder / "new.txt").write_text("new")
    assert link.is_symlink() and contents(old) == {"new.txt": "new"}
    assert everything_in(old.parent) == ["link", "out"]


@pytest.mark.parametrize("name", [".", "..", "../.."])
def test_the_current_directory_and_those_above_are_never_replaced(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "a" / "b"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    with pytest.raises(FileExistsError, match="holds the current directory and is never replaced; choose another name"):
        refuse_existing(name, overwrite=True)


# ------------------------------------------------------------------------------------------------- saving and loading


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


def test_patch_scores_come_back_unchanged(tmp_path: Path) -> None:
    scores = made_scores()
    save(tmp_path / "out", scores)
    found = load(tmp_path / "out")
    assert list(found) == ["PatchScores", "provenance"]
    assert same(found["PatchScores"], scores)
    assert np.isnan(found["PatchScores"].patched[0, 1, 1])
    assert found["PatchScores"].summary().equals(scores.summary())


def test_results_within_results_come_back_unchanged(tmp_path: Path) -> None:
    interval = Interval(
        estimate=np.array([0.25, np.nan]),
        low=np.array([-1.0, np.nan]),
        high=np.array([np.inf, np.nan]),
        standard_error=np.array([1e-17, np.nan]),
        n=np.array([3, 0]),
        flag=np.array(["", "undefined"], dtype=object),
        confidence=0.95,
        method="bca",
    )
    scores = made_scores(settings={"parts": [interval, (interval, Head(3, 2))], "named": {"one": interval}})
    save(tmp_path / "out", first=scores, second=made_scores())
    found = load(tmp_path / "out")
    parts = found["first"].settings["parts"]
    assert list(found) == ["first", "second", "provenance"]
    assert isinstance(parts[0], Interval) and parts[1][1] == Head(3, 2)
    assert list(parts[0].flag) == ["", "undefined"]
    for name in ("estimate", "low", "high", "standard_error", "n"):
        assert same(getattr(parts[0], name), getattr(interval, name))
        assert same(getattr(found["first"].settings["named"]["one"], name), getattr(interval, name))


def test_numbers_survive_to_the_last_bit(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).normal(size=3) / 3
    save(
        tmp_path / "out", made_scores(donor=numbers, settings={"lam": float(numbers[0]), "np": np.float64(numbers[1])})
    )
    found = load(tmp_path / "out")["PatchScores"]
    assert np.array_equal(found.donor, numbers)
    assert found.settings == {"lam": numbers[0], "np": numbers[1]}


def test_two_results_of_one_class_need_names(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"two results of the same class need names: save\(path, first="):
        save(tmp_path / "out", made_scores(), made_scores())


def test_saving_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is nothing to save"):
        save(tmp_path / "out")


def test_the_name_provenance_is_taken(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match='"provenance" is the name under which load gives'):
        save(tmp_path / "out", provenance=made_scores())


@pytest.mark.parametrize("foreign", [{"a": 1}, np.zeros(3), 3, SimpleNamespace(a=1), PatchScores])
def test_only_results_of_this_toolkit_are_saved(tmp_path: Path, foreign: Any) -> None:
    with pytest.raises(TypeError, match="mine: only results of this toolkit can be saved, got"):
        save(tmp_path / "out", mine=foreign)
    assert everything_in(tmp_path) == []


@pytest.mark.parametrize("value", [torch.ones(2), {1, 2}, Path("x"), {1: "a"}, 1j])
def test_what_would_come_back_as_something_else_is_not_saved(tmp_path: Path, value: Any) -> None:
    with pytest.raises(TypeError, match=r"PatchScores.settings.odd: a \w+ cannot be saved and loaded unchanged"):
        save(tmp_path / "out", made_scores(settings={"odd": value}))
    assert everything_in(tmp_path) == []


def test_saving_over_a_result_needs_overwrite_and_a_whole_new_one(tmp_path: Path) -> None:
    folder = save(tmp_path / "out", made_scores())
    with pytest.raises(FileExistsError, match="exists; choose another"):
        save(folder, made_scores(seed=4))
    with pytest.raises(TypeError, match="cannot be saved"):
        save(folder, made_scores(seed=4, settings={"odd": {1}}), overwrite=True)
    assert load(folder)["PatchScores"].seed == 3
    save(folder, made_scores(seed=4), overwrite=True)
    assert load(folder)["PatchScores"].seed == 4
    assert everything_in(tmp_path) == ["out"]


def test_loading_from_elsewhere_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"holds no saved results \(no results.json\)"):
        load(tmp_path)


def rewritten(folder: Path, **changes: Any) -> Path:
    """A saved result whose document was changed by hand."""
    save(folder, made_scores())
    document = json.loads((folder / "results.json").read_text())
    document["results"]["PatchScores"] |= {key: value for key, value in changes.items() if key == "class"}
    document |= {key: value for key, value in changes.items() if key != "class"}
    (folder / "results.json").write_text(json.dumps(document))
    return folder


def test_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has format 2, this version reads format 1"):
        load(rewritten(tmp_path / "out", format=2))


@pytest.mark.parametrize("name", ["subprocess.Popen", "os.system", "builtins.dict", "mless_interpreter.x.Y"])
def test_a_class_from_outside_is_never_loaded(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"refusing to load class '{name}': it is not part of this toolkit"):
        load(rewritten(tmp_path / "out", **{"class": name}))


@pytest.mark.parametrize(
    "name",
    [
        "eval",
        "Path",
        "Gone",
        "mless_interp.patching.sweep.Gone",
        "mless_interp.running.store.save",  # a function of ours
        "save",
        "mless_interp.running.store.Path",  # another library's class, by way of a module of ours
        "Head",  # ours, and public, but no result
        "mless_interp.running.checkpoint.Checkpoint",
    ],
)
def test_only_results_are_loaded_not_what_else_there_is(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"this version of the toolkit has no result '{name}'"):
        load(rewritten(tmp_path / "out", **{"class": name}))


def test_a_result_is_known_by_its_name_wherever_its_module_went(tmp_path: Path) -> None:
    for name in ("mless_interp.patch_scores.PatchScores", "mless_interp.gone.PatchScores", "PatchScores"):
        (found,) = [
            value for key, value in load(rewritten(tmp_path / name, **{"class": name})).items() if key != "provenance"
        ]
        assert type(found) is PatchScores


def test_pickled_objects_are_never_loaded(tmp_path: Path) -> None:
    folder = save(tmp_path / "out", made_scores())
    with np.load(folder / "arrays.npz") as arrays:
        changed = dict(arrays) | {"PatchScores.donor": np.array([{"a": 1}], dtype=object)}
    np.savez(folder / "arrays.npz", **changed)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        load(folder)


# --------------------------------------------------------------------------------------------------------- provenance


def test_the_model_and_its_check_figures_travel_with_the_result(
    tmp_path: Path, tiny_model_dir: Callable[[str], Path]
) -> None:
    model = loaded(tiny_model_dir("gemma3"), "bridge")
    save(tmp_path / "out", made_scores(), model=model)
    came = load(tmp_path / "out")["provenance"]
    assert came["model"]["name"] == model.info.name and came["model"]["windows"] == [16, None, 16]
    assert came["checks"] == model.checks.to_dict() and 0 <= came["checks"]["row_sum_error"] < 1e-5


def test_provenance_says_which_versions_command_and_when() -> None:
    came = provenance(command=["a", "b"], seed=np.int64(3), shape=(1, 2), out=Path("x"))
    assert came["command"] == ["a", "b"]
    assert came["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert {"mless_interp", "transformers", "transformer-lens", "nnsight"} <= set(came["versions"])
    assert came["made"].endswith("+00:00")
    assert (came["seed"], came["shape"], came["out"]) == (3, [1, 2], "x")
    assert "model" not in came
    json.dumps(came)


def test_a_package_that_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mless_interp.running.store.PACKAGES", ("no-such-package",))
    assert provenance()["versions"] == {"no-such-package": None}


# -------------------------------------------------------------------------------------------------------- checkpoints

SETTINGS: dict[str, Any] = {"edit": "z", "heads": ("L0H0", "L0H1"), "seed": 0}


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """A checkpoint with two finished problems."""
    path = tmp_path / "runs" / "c.jsonl"
    checkpoint = Checkpoint(path, SETTINGS)
    checkpoint.put({"a": [1.0, float("nan")]})
    checkpoint.put({"b\u2028": {"x": 0.1}})
    return path


def test_a_finished_problem_is_on_disk_at_once(begun: Path) -> None:
    assert [record.get("id") for record in lines_of(begun)] == [None, "a", "b\u2028"]
    assert lines_of(begun)[0] == {"settings": {"edit": "z", "heads": ["L0H0", "L0H1"], "seed": 0}}


def test_a_run_goes_on_from_what_is_finished(begun: Path) -> None:
    again = Checkpoint(begun, SETTINGS)
    assert len(again) == 2 and not again.repaired
    assert again.get("a")[0] == 1.0 and np.isnan(again.get("a")[1])
    assert again.get("b\u2028") == {"x": 0.1}
    assert again.get("c") is None
    again.put({"c": 3})
    assert Checkpoint(begun, SETTINGS).get("c") == 3


def test_resuming_alone_changes_nothing_on_disk(begun: Path) -> None:
    before = begun.read_bytes()
    Checkpoint(begun, SETTINGS)
    assert begun.read_bytes() == before


def test_no_path_keeps_nothing_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint = Checkpoint(None, SETTINGS)
    checkpoint.put({"a": 1})
    assert checkpoint.get("a") is None and len(checkpoint) == 0 and everything_in(tmp_path) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edit": "knockout"}, "edit was 'z', now 'knockout'; use the old settings, choose another file, or delete"),
        ({"seed": 1, "edit": "q"}, r"edit was 'z', now 'q' \(and 1 more\); use"),
        ({"new": 5}, "new was None, now 5; use"),
        ({"heads": ["L9H9"] * 50}, r"heads was \['L0H0', 'L0H1'\], now \['L9H9'.{40,50}\.\.\.; use"),
    ],
)
def test_other_settings_are_refused_with_the_difference(begun: Path, changes: dict[str, Any], message: str) -> None:
    before = begun.read_bytes()
    with pytest.raises(ValueError, match=f"c.jsonl was made with other settings: {message}"):
        Checkpoint(begun, SETTINGS | changes)
    assert begun.read_bytes() == before


def test_a_setting_that_is_gone_is_a_difference(begun: Path) -> None:
    with pytest.raises(ValueError, match="seed was 0, now None"):
        Checkpoint(begun, {"edit": "z", "heads": ["L0H0", "L0H1"]})


@pytest.mark.parametrize("cut", [1, 2, 5, 20])
def test_a_run_cut_off_at_any_byte_of_its_last_line_goes_on(begun: Path, cut: int) -> None:
    begun.write_bytes(begun.read_bytes()[:-cut])
    again = Checkpoint(begun, SETTINGS)
    assert again.repaired
    assert again.get("a") is not None
    if cut == 1:  # only the line's end was lost
        assert again.get("b\u2028") == {"x": 0.1}
    else:
        assert again.get("b\u2028") is None
    again.put({"c": 3})
    whole = Checkpoint(begun, SETTINGS)
    assert not whole.repaired and whole.get("c") == 3 and len(whole) == len(again)
    assert everything_in(begun.parent) == ["c.jsonl"]


def test_other_settings_never_repair_anothers_file(begun: Path) -> None:
    begun.write_bytes(begun.read_bytes()[:-5])
    before = begun.read_bytes()
    with pytest.raises(ValueError, match="other settings"):
        Checkpoint(begun, SETTINGS | {"edit": "q"})
    assert begun.read_bytes() == before


def test_a_fault_before_the_last_line_is_refused_with_its_number(begun: Path) -> None:
    lines = begun.read_text().splitlines()
    begun.write_text("\n".join([lines[0], lines[1][:-3], lines[2]]) + "\n")
    with pytest.raises(ValueError, match=r"c.jsonl, line 2: not valid JSON; delete the line .* to go on, or the file"):
        Checkpoint(begun, SETTINGS)


@pytest.mark.parametrize(
    "text", ["my notes\n", "[1]\n", "3\n", '{"id": "a"}\n', '{"settings": 3}\n', '{"settings": {}}\n{"a": 1}\n', "\n"]
)
def test_a_file_that_is_no_checkpoint_is_refused_and_kept(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match="mine.jsonl is no checkpoint of this toolkit; choose another file"):
        Checkpoint(path, SETTINGS)
    assert path.read_text() == text


def test_an_empty_file_becomes_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").touch()
    Checkpoint(tmp_path / "c.jsonl", SETTINGS)
    assert len(lines_of(tmp_path / "c.jsonl")) == 1
