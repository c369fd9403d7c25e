"""Saving and loading results: one folder, written whole or not at all, with where it came from."""

import dataclasses
import datetime
import json
import platform
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from ..core.arguments import checked
from ..core.heads import Head
from .checkpoint import plain
from .folders import RESULTS, RUN, SAVED, damaged_files, new_folder

DOCUMENT, ARRAYS = "results.json", "arrays.npz"
PACKAGES = ("mless_interp", "torch", "transformers", "transformer-lens", "nnsight", "circuitsvis", "numpy")


@checked
def provenance(model: Any = None, **more: object) -> dict[str, object]:
    """Return where a result comes from: versions, machine, the model with its check figures, the command, the time (UTC)."""
    found: dict[str, object] = {
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": list(sys.argv),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: version(name) for name in PACKAGES},
    }
    if model is not None:
        found["model"] = plain(dataclasses.asdict(model.info)) | {"weights_hash": model.weights_hash}
        found["checks"] = None if model.checks is None else dataclasses.asdict(model.checks)
    return found | plain(more)


@checked
def save(path: str | Path, *results: object, overwrite: bool = False, model: object = None, **named: object) -> Path:
    """Save results of this toolkit in one folder, whole or not at all; an existing one needs `overwrite=True`.

    `save("results/slashes", patches, scores)` keeps them under their public names, `save(path, first=a, second=b)` under
    yours. `model` adds its geometry and check figures.
    """
    everything = {type(result).__name__: result for result in results} | named
    if len(everything) != len(results) + len(named) or "provenance" in everything or not everything:
        raise ValueError(
            "save takes one result or more; two of the same class need names, save(path, first=..., second=...), of which "
            '"provenance" is taken'
        )
    arrays: dict[str, np.ndarray] = {}
    described = {name: _describe(result, _part(name), arrays) for name, result in everything.items()}
    with new_folder(path, overwrite=overwrite) as folder:
        np.savez_compressed(folder / ARRAYS, allow_pickle=False, **arrays)
        document = {"format": 1, "results": described, "provenance": provenance(model)}
        (folder / DOCUMENT).write_text(json.dumps(document, indent=2))
    return Path(path)


@checked
def load(path: str | Path) -> dict[str, object]:
    """Load the results of a folder that `save` or a run (`--out`) wrote, by name, with where they come from as "provenance".

    `ValueError` names a file that is missing or changed, by the folder's manifest.
    """
    folder = Path(path) / RESULTS if (Path(path) / RUN).is_file() else Path(path)
    for name, why in damaged_files(folder, (DOCUMENT, ARRAYS)).items():
        said = "the saved results are damaged; take a copy that is whole, or make them again"
        raise ValueError(f"{str(folder / name)!r} {why}: {said}")
    if not (folder / DOCUMENT).is_file():
        raise FileNotFoundError(f"{str(folder)!r} holds no saved results (no {DOCUMENT})")
    try:
        document = json.loads((folder / DOCUMENT).read_bytes())
        if document["format"] != 1:
            raise ValueError(f"it has format {document['format']!r}, this version reads format 1")
        with np.load(folder / ARRAYS, allow_pickle=False) as kept:
            arrays = {name: kept[name] for name in kept.files}
        results = {name: _rebuild(part, arrays) for name, part in document["results"].items()}
    except Exception as error:
        raise ValueError(
            f"{str(folder)!r} cannot be loaded ({type(error).__name__}: {' '.join(str(error).split())}); take a copy that is "
            "whole, or make the results again"
        ) from error
    return results | {"provenance": document["provenance"]}


def _describe(result: object, name: str, arrays: dict[str, np.ndarray]) -> dict[str, object]:
    kind = type(result)
    if SAVED.get(kind.__name__) is not kind:
        raise TypeError(f"{name}: only results of this toolkit can be saved, got {kind.__name__}")
    fields = {
        field.name: _encode(getattr(result, field.name), f"{name}.{field.name}", arrays)
        for field in dataclasses.fields(kind)  # type: ignore[arg-type]
        if field.init
    }
    return {"class": kind.__name__, "fields": fields}


def _encode(value: object, key: str, arrays: dict[str, np.ndarray]) -> object:
    """Return a field as JSON: one entry with its kind, or as it is; arrays go into `arrays` by their key."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "f":  # one kind of NaN: those that a resumed run has read back have lost their sign
            value = np.where(np.isnan(value), value.dtype.type(np.nan), value)
        arrays[key] = value if value.dtype != object else value.astype(str)
        return {"array": key}
    if isinstance(value, Head):
        return {"head": [value.layer, value.head]}
    if SAVED.get(type(value).__name__) is type(value):
        return {"result": _describe(value, key, arrays)}
    if isinstance(value, list | tuple):
        parts = [_encode(inner, f"{key}.{at}", arrays) for at, inner in enumerate(value)]
        return parts if isinstance(value, list) else {"tuple": parts}
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return {"dict": {name: _encode(inner, f"{key}.{_part(name)}", arrays) for name, inner in value.items()}}
    if value is None or isinstance(value, bool | int | float | str | np.generic):
        return plain(value)
    raise TypeError(
        f"{key}: a {type(value).__name__} cannot be saved and loaded unchanged; keep it as a numpy array or text"
    )


def _part(name: str) -> str:
    """Return a name as one part of an array's, whose parts are joined by dots."""
    return name.replace("%", "%25").replace(".", "%2E")


def _decode(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    if isinstance(value, list):
        return [_decode(inner, arrays) for inner in value]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    match kind:
        case "array":
            return arrays[inner]
        case "head":
            return Head(*inner)
        case "result":
            return _rebuild(inner, arrays)
        case "tuple":
            return tuple(_decode(inner, arrays))
        case _:
            return {name: _decode(held, arrays) for name, held in inner.items()}


def _rebuild(part: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> object:
    name, package = part["class"], sys.modules["mless_interp"]
    getattr(package, name, None)  # the module of a public one enters it into SAVED
    if name not in SAVED:
        raise ValueError(f"this version of the toolkit has no result {name!r}")
    return SAVED[name](**{key: _decode(value, arrays) for key, value in part["fields"].items()})
