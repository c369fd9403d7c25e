"""Saving and loading results: one folder, written whole or not at all, with where it came from."""

import dataclasses
import datetime
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from ..given import checked
from ..heads import Head
from .checkpoint import plain
from .registry import RENAMED, SAVED

PACKAGES = ("mless_interp", "torch", "transformers", "transformer-lens", "nnsight", "circuitsvis", "numpy")


@checked
@contextmanager
def new_folder(path: str | Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A folder that appears under its name only when everything in it is written.

    Refuses an existing one unless `overwrite`; the old one is replaced only when the new one is whole, and stays if
    anything fails.
    """
    refuse_existing(path, overwrite=overwrite)
    target = Path(path).resolve()  # a link to a folder stays a link
    target.parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield making
        making.chmod(0o755)
        if target.exists():
            old = making.with_name(making.name + "-old")
            os.replace(target, old)
            try:
                os.replace(making, target)
            except BaseException:
                os.replace(old, target)
                raise
            shutil.rmtree(old)
        else:
            os.replace(making, target)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise


@checked
def refuse_existing(path: str | Path, *, overwrite: bool) -> None:
    """Raise `FileExistsError` if `path` exists and may not be replaced (call it before anything long)."""
    target = Path(path)
    if target.exists() and not target.is_dir():
        raise FileExistsError(f"{str(target)!r} is a file, not a folder; choose another name")
    if Path.cwd().resolve().is_relative_to(target.resolve()):
        raise FileExistsError(f"{str(target)!r} holds the current directory and is never replaced; choose another name")
    if target.exists() and any(target.iterdir()) and not overwrite:
        raise FileExistsError(
            f"the folder {str(target)!r} exists; choose another, or allow overwriting it (--overwrite)"
        )


@checked
def provenance(model: Any = None, *, command: list[str] | None = None, **more: Any) -> dict[str, Any]:
    """Where a result comes from: versions, machine, the model with its check figures, the command, the time (UTC)."""
    found: dict[str, Any] = {
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command if command is not None else sys.argv,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: _version(name) for name in PACKAGES},
    }
    if model is not None:
        found["model"] = plain(dataclasses.asdict(model.info))
        found["checks"] = None if model.checks is None else model.checks.to_dict()
    return found | plain(more)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


@checked
def save(path: str | Path, *results: Any, overwrite: bool = False, model: Any = None, **named: Any) -> Path:
    """Save results of this toolkit in one folder: arrays as `arrays.npz`, everything else as `results.json`.

    `save("results/slashes", patches, scores)` keeps them under their public names, `save(path, first=a, second=b)` under
    yours. `model` adds its geometry and check figures. Written whole or not at all; an existing folder needs
    `overwrite=True`.
    """
    everything = {type(result).__name__: result for result in results} | named
    if len(everything) != len(results) + len(named):
        raise ValueError("two results of the same class need names: save(path, first=..., second=...)")
    if "provenance" in everything:
        raise ValueError('"provenance" is the name under which load gives where the results come from; choose another')
    if not everything:
        raise ValueError("there is nothing to save")
    arrays: dict[str, np.ndarray] = {}
    described = {name: _describe(result, name, arrays) for name, result in everything.items()}
    with new_folder(path, overwrite=overwrite) as folder:
        np.savez_compressed(folder / "arrays.npz", allow_pickle=False, **arrays)
        document = {"format": 1, "results": described, "provenance": provenance(model)}
        (folder / "results.json").write_text(json.dumps(document, indent=2), encoding="utf-8")
    return Path(path)


@checked
def load(path: str | Path) -> dict[str, Any]:
    """The results of a folder written by `save`, by name, with their provenance under "provenance"."""
    folder = Path(path)
    if not (folder / "results.json").is_file():
        raise FileNotFoundError(f"{str(folder)!r} holds no saved results (no results.json)")
    document = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    if document.get("format") != 1:
        raise ValueError(f"{str(folder)!r} has format {document.get('format')!r}, this version reads format 1")
    with np.load(folder / "arrays.npz", allow_pickle=False) as arrays:
        found = {name: _rebuild(part, arrays) for name, part in document["results"].items()}
    return found | {"provenance": document["provenance"]}


def _describe(result: Any, name: str, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    kind = type(result)
    if SAVED.get(kind.__name__) is not kind:
        raise TypeError(f"{name}: only results of this toolkit can be saved, got {kind.__name__}")
    fields = {
        field.name: _encode(getattr(result, field.name), f"{name}.{field.name}", arrays)
        for field in dataclasses.fields(result)
        if field.init
    }
    return {"class": kind.__name__, "fields": fields}


def _encode(value: Any, key: str, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(value, np.ndarray):
        arrays[key] = value if value.dtype != object else value.astype(str)
        return {"array": key}
    if isinstance(value, Head):
        return {"head": [value.layer, value.head]}
    if SAVED.get(type(value).__name__) is type(value):
        return {"result": _describe(value, key, arrays)}
    if isinstance(value, tuple):
        return {"tuple": [_encode(v, f"{key}.{i}", arrays) for i, v in enumerate(value)]}
    if isinstance(value, dict) and all(isinstance(k, str) for k in value):
        return {"dict": {k: _encode(v, f"{key}.{k}", arrays) for k, v in value.items()}}
    if isinstance(value, list):
        return [_encode(v, f"{key}.{i}", arrays) for i, v in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str | np.generic):
        return plain(value)
    raise TypeError(
        f"{key}: a {type(value).__name__} cannot be saved and loaded unchanged; keep it as a numpy array or text"
    )


def _decode(value: Any, arrays: Any) -> Any:
    if isinstance(value, list):
        return [_decode(v, arrays) for v in value]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "array":
        return arrays[inner]
    if kind == "head":
        return Head(*inner)
    if kind == "result":
        return _rebuild(inner, arrays)
    if kind == "tuple":
        return tuple(_decode(v, arrays) for v in inner)
    return {k: _decode(v, arrays) for k, v in inner.items()}


def _rebuild(part: dict[str, Any], arrays: Any) -> Any:
    kind = _result_class(part["class"])
    renamed = RENAMED[kind.__name__]
    fields = {renamed.get(key, key): _decode(value, arrays) for key, value in part["fields"].items()}
    return kind(**{key: value for key, value in fields.items() if key is not None})


def _result_class(name: str) -> Any:
    """The result class of that public name; folders written before 0.2 name its module as well, which may have moved."""
    short = name.rpartition(".")[2]
    if name not in (short, f"mless_interp.{name.partition('.')[2]}"):
        raise ValueError(f"refusing to load class {name!r}: it is not part of this toolkit")
    package = sys.modules["mless_interp"]
    if short not in SAVED and short in package.__all__:
        getattr(package, short)  # its module enters it there
    if short not in SAVED:
        raise ValueError(f"this version of the toolkit has no result {name!r}")
    return SAVED[short]
