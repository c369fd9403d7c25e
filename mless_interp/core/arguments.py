"""Validate arguments of public functions against their annotations, before anything runs."""

import difflib
import functools
import inspect
import math
import numbers
import os
import re
import sys
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Literal, SupportsIndex, TypeVar, Union, get_args, get_origin, overload

Arguments = dict[str, Any]  # arguments that are handed on by name; what each may be, whoever takes them says
F = TypeVar("F", bound=Callable[..., object])
T = TypeVar("T")

REMEDIES = {
    "Model": "load_model(...) gives one, wrap_model(...) makes one of another library's",
    "PromptPair": "make_pairs(model, problems, insertion) makes them",
    "Problem": "load_problems(...) reads a file of them",
    "Insertion": 'for example Insertion.meaningless(" /", n_tokens=55)',
    "InMemory": "a model in memory is an object with its name, hf_model and tokenizer, as types.SimpleNamespace is",
    "Head": "write Head(layer, head) or 'L0H13' (zero-based)",
    "PatchScores": "locate_heads or patch_heads gives one",
}
"""What to do where an object of this class was expected."""
INTERNAL = "a Prepared"  # what only analyses give to each other: no error asks a caller for it


@contextmanager
def outside_autocast() -> Iterator[None]:
    """Compute in the dtypes of the operands, also inside a caller's `torch.autocast`."""
    torch: Any = sys.modules.get("torch")  # importing it takes seconds, and without it there is no autocast
    with ExitStack() as stack:
        for device in ("cpu", "cuda") if torch else ():
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


def checked(function: F) -> F:
    """Check plainly typed arguments of a function (or dataclass) before it runs, outside `torch.autocast`.

    NumPy's numbers become Python's, iterables tuples, and a head's name a `Head`. `TypeError` (`ValueError` for NaN) says what
    was expected, what came and what to do. Annotations of other kinds (arrays with shapes) are left to the function.

    >>> @checked
    ... def doubled(n: int) -> int:
    ...     return 2 * n
    >>> doubled(True)
    Traceback (most recent call last):
    ...
    TypeError: n must be a whole number, got True (bool)
    """
    if is_dataclass(function):
        function.__init__ = checked(function.__init__)  # type: ignore[method-assign]
        return function
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: object, **kwargs: object) -> object:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return function(*args, **kwargs)  # which says it with its name
        for name, value in bound.arguments.items():
            parameter = signature.parameters[name]
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                bound.arguments[name] = as_annotated(value, parameter.annotation, name)
        with outside_autocast():
            return function(*bound.args, **bound.kwargs)

    return call  # type: ignore[return-value]


def as_annotated(value: object, annotation: object, name: str) -> Any:
    """Return the value of the argument `name` as its annotation wants it; `TypeError` or `ValueError` for anything else."""
    try:
        return _fitted(value, annotation)
    except _Unfit as found:
        (wrong, where), expected = found.args, _words(annotation)
        kind = ValueError if isinstance(wrong, float) and not math.isfinite(wrong) else TypeError
        raise kind(f"{name} must be {expected}, got {shown(wrong)}{where}{_remedy(expected, wrong)}") from None
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def shown(value: object) -> str:
    """Return what came, in a few words."""
    kind = type(value).__name__
    if value is None:
        return "None"
    if isinstance(value, list | tuple) and value and type(value[0]).__name__ in REMEDIES:
        return f"several {type(value[0]).__name__}s"
    if isinstance(value, str | bytes | numbers.Number | Path):
        text = repr(value)
        return f"{text if len(text) <= 60 else text[:57] + '...'} ({kind})"
    return f"{_article(kind)} {kind}"


def _article(noun: str) -> str:
    return "an" if noun[0] in "AEIOUaeiou" else "a"


def listed(items: Iterable[object], at_most: int = 6) -> str:
    """Return items with commas, those that are too many counted: "a, b and 1 more"."""
    found = [str(item) for item in items]
    more = len(found) - at_most
    return ", ".join(found[:at_most]) + (f" and {more} more" if more > 0 else "")


def nearest(name: object, known: Iterable[str]) -> str:
    """Return the known name that is most like this one, as a question; "" where none is."""
    found = difflib.get_close_matches(str(name), known, cutoff=0.7)
    return f" (did you mean {found[0]}?)" if found else ""


def beside(path: Path) -> list[str]:
    """Return the names in the folder of a path; none where there is no such folder."""
    return [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []


def cells_of(table: str) -> list[list[str]]:
    """Return the cells of a table that is written as text: a line is a row, `|` stands between cells."""
    return [[cell.strip() for cell in line.split("|")] for line in table.splitlines() if line.strip()]


def n_alike(first: Sequence[object], second: Sequence[object]) -> int:
    """Return how many first elements two sequences have in common."""
    both = enumerate(zip(first, second, strict=False))
    return next((at for at, (x, y) in both if x != y), min(len(first), len(second)))


def count_of(n: SupportsIndex, one: str, several: str = "") -> str:
    """Return a count with its noun; `several` where the plural is more than an s."""
    return f"{n} {one if n == 1 else several or one + 's'}"


def check_count(value: object, *, name: str, at_least: int = 1) -> int:
    """Return a whole number that is large enough, as an `int`."""
    number: int = as_annotated(value, int, name)
    if number < at_least:
        raise ValueError(f"{name} must be {at_least} or more, got {number}")
    return number


def check_share(value: float, *, name: str) -> None:
    """Refuse what is no number strictly between 0 and 1."""
    if not 0.0 < as_annotated(value, float, name) < 1.0:
        raise ValueError(f"{name} must lie between 0 and 1, got {value!r}")


@overload
def one_of(name: object, known: Mapping[str, T], what: str) -> T: ...  # type: ignore[overload-overlap]
@overload
def one_of(name: object, known: Collection[str], what: str) -> str: ...
def one_of(name: object, known: Collection[str], what: str) -> object:
    """Return the entry of that name in a table, or a name that is known; `ValueError` lists the names."""
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"unknown {what} {name!r}; choose one of {', '.join(known)}{nearest(name, known)}")
    return known[name] if isinstance(known, Mapping) else name


def several_of(names: Collection[str], known: Collection[str], what: str) -> tuple[str, ...]:
    """Return one or more different names that are known, as a tuple; `ValueError` lists what there is."""
    if isinstance(names, str) or not names or len(set(names)) != len(names):
        raise ValueError(f"{what}s must be one or more different names of {', '.join(known)}, got {names!r}")
    return tuple(one_of(name, tuple(known), what) for name in names)


class _Unfit(Exception):
    """(what is not what was expected, where it stands among several)."""


def _fits(value: Any, kind: Any) -> bool:
    if kind is bool:
        return isinstance(value, bool) or (getattr(value, "dtype", None) == "bool" and not value.shape)
    return isinstance(value, kind) and not isinstance(value, bool) and value == value  # NaN is not


_PLAIN: dict[object, tuple[str, type, Callable[[Any], object]]] = {
    bool: ("True or False", bool, bool),
    int: ("whole number", numbers.Integral, int),
    float: ("number", numbers.Real, lambda value: int(value) if isinstance(value, numbers.Integral) else float(value)),
    str: ("text", str, str),
    Path: ("path", os.PathLike, lambda value: value),
    type(None): ("None", type(None), lambda value: value),
}
"""Kinds of arguments: the noun, the class of what fits, and what it becomes."""
UNIONS = (Union, types.UnionType)
SEQUENCES = (Iterable, Sequence, list)


def _fitted(value: object, wanted: Any, where: str = "") -> object:
    """Return the value as the annotation wants it; `_Unfit`, with `where` among several it stands, if it is something else."""
    origin, inner = get_origin(wanted), get_args(wanted)
    if origin is Literal:
        wanted = str  # which words it knows the function says
    if wanted in _PLAIN:
        _, kind, made = _PLAIN[wanted]
        if _fits(value, kind):
            return made(value)
    elif origin in UNIONS:
        refused = []
        for alternative in inner:
            try:
                return _fitted(value, alternative, where)
            except _Unfit as found:
                refused.append(found)
        raise max(refused, key=lambda each: bool(each.args[1]))
    elif origin in SEQUENCES or (origin is tuple and inner[1:] == (...,)):
        if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping):
            return tuple(
                _fitted(item, inner[0], where or f" at place {place} (zero-based)") for place, item in enumerate(value)
            )
    elif origin is Mapping:
        if isinstance(value, Mapping):
            return {_fitted(key, inner[0]): _fitted(held, inner[1]) for key, held in value.items()}
    elif origin is Callable:
        if callable(value):
            return value
    elif wanted in (Any, inspect.Parameter.empty) or not isinstance(wanted, type) or "jaxtyping" in wanted.__module__:
        return value  # of which the function knows more
    elif isinstance(value, wanted):
        return value
    elif isinstance(value, str) and hasattr(wanted, "parse"):
        return wanted.parse(value)
    raise _Unfit(value, where)


def _words(wanted: Any, *, plural: bool = False) -> str:
    origin, inner = get_origin(wanted), get_args(wanted)
    if origin in UNIONS:
        alternatives = dict.fromkeys(_words(each, plural=plural) for each in inner)
        return " or ".join(each for each in alternatives if each != INTERNAL)
    if origin in (*SEQUENCES, tuple):
        return f"several {_words(inner[0], plural=True)}"
    if origin is Mapping:
        return f"a Mapping of {' to '.join(_words(each, plural=True) for each in inner)}"
    if origin is Literal:
        wanted = str
    noun = "function" if origin is Callable else getattr(wanted, "__name__", str(wanted))
    noun = _PLAIN[wanted][0] if wanted in _PLAIN else noun
    if wanted in (bool, type(None)):
        return noun
    return f"{noun}s" if plural else f"{_article(noun)} {noun}"


def _remedy(expected: str, wrong: object) -> str:
    found = next((says for name, says in REMEDIES.items() if re.search(rf"\b{name}s?\b", expected)), "")
    if isinstance(wrong, str) and expected.startswith("several text"):
        found = f"put it in a list, [{wrong!r}]"
    elif "a Model" in expected or "an InMemory" in expected:
        if isinstance(wrong, str):
            found = f"load it first, load_model({wrong!r})"
        elif type(wrong).__module__.partition(".")[0] in ("transformer_lens", "nnsight"):
            found = "wrap it first, wrap_model(...)"
    return found and f": {found}"
