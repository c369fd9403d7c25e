"""Every public function refuses arguments of the wrong kind, by name and before anything runs."""

import inspect
import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import jaxtyping
import numpy as np
import pytest
import torch
from models_under_test import planted_here, planted_pairs, planted_problems

import mless_interp as mi
from mless_interp.core.arguments import REMEDIES, as_annotated, checked
from mless_interp.models.base import Model
from mless_interp.models.info import ModelError


@pytest.fixture(autouse=True)
def as_users_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the type checks of the tests, which would speak before our own messages."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


class Stranger:
    """Of no kind that anything takes."""

    def __repr__(self) -> str:
        return "Stranger()"


@lru_cache
def good() -> dict[str, Any]:
    """One right value for every parameter that has no default, by name."""
    made, model = planted_here()
    pairs = planted_pairs(made, model, 2, n_tokens=4)
    head = mi.Head(0, 1)
    found = mi.patch_heads(model, pairs, heads=[head], progress=False)
    made_of = {"model": model, "pairs": pairs, "pair": pairs[0], "found": found, "tokenizer": made.tokenizer}
    made_of |= {"problems": planted_problems(made, 2), "problem": made.problems(1)[0], "prompt": pairs[0].base}
    made_of |= {"insertion": mi.Insertion.meaningless(" /", 4), "heads": [head], "ranking": [head], "cache": {}}
    texts = {"completion": r"\boxed{1}", "gold": "1", "text": "0:1", "kind": "text", "unit": " /", "name": "demo"}
    texts |= {"id": "p", "question": "q", "answer": "a", "system": "s", "path": "nowhere", "benchmark": "MATH-500"}
    counts = {"at": 1, "seed": 0, "n": 1, "layer": 0, "head": 0, "n_tokens": 4, "n_layers": 1, "n_heads": 1, "p1": 99}
    others = {"texts": ["one two three"], "span_ids": (1, 2), "thing": Stranger(), "c": 0.1, "overwrite": False}
    others["study"] = {"title": "t", "insertions": [{"name": "slashes", "kind": "meaningless"}]}
    return {**made_of, **texts, **counts, **others}


FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: getattr(mi, name) for names in mi.PUBLIC.values() for name in names if inspect.isfunction(getattr(mi, name))
} | {"save": mi.save}
METHODS: dict[str, Callable[..., Any]] = {
    f"{cls.__name__}.{name}": getattr(cls, name)
    for cls in (mi.Insertion, mi.Head, mi.ARM)
    for name, made in vars(cls).items()
    if isinstance(made, classmethod)
}
CLASSES: dict[str, Callable[..., Any]] = {
    each.__name__: each for each in (mi.Insertion, mi.Head, mi.ARM, mi.Treatment, mi.prompts.Template, mi.Problem)
}
OF_THEIR_OWN = {
    "with_examples": {"examples": [mi.Problem("e", "1 + 1 ?", "2")]},
    "from_key": {"key": "distractor"},
    "ids": {"token_ids": (5, 6)},
    "pairs_from_ids": {"ids": [[5, 1, 2, 6]], "answers": [3], "span": (1, 3)},
    "compare_hook": {"hook": [("blocks.0.attn.hook_z", print)]},
    "compare_capture": {"capture": list, "head": "L0H0"},
    "from_paper": {"model": "qwen2.5-7b", "layer": 1, "head": 1},
}
"""Right values for parameters that mean something else elsewhere, by function."""
FREE = {
    ("score_cache", "cache"),  # any mapping of tensors; asked of a wrong one below
    ("score_cache", "base"),
    ("save", "results"),
    ("save", "options"),
    ("load_problems", "source"),
    ("load_model", "name"),
    ("load_model", "device_map"),  # handed on to the library
    ("load_model", "quantization_config"),
    ("wrap_model", "thing"),
    ("wrap_model", "tokenizer"),
    ("evaluate_accuracy", "treatments"),
    ("pairs_from_ids", "tags"),  # whatever makes a data frame
    ("plan_run", "problems"),  # or pairs; asked of wrong ones beside the other tests of plans
}
"""Parameters that take anything, or say what they take in a test of their own."""


def cases() -> list[Any]:
    found = []
    for where, function in {**FUNCTIONS, **METHODS, **CLASSES}.items():
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL) or (where, name) in FREE:
                continue
            found.append(pytest.param(function, name, id=f"{where}-{name}"))
    return found


def call(function: Callable[..., Any], **given: Any) -> Any:
    parameters = inspect.signature(function).parameters
    needed = {name: good()[name] for name, each in parameters.items() if each.default is each.empty and name in good()}
    known = {name: value for name, value in needed.items() if parameters[name].kind != parameters[name].VAR_POSITIONAL}
    known |= {name: value for name, value in OF_THEIR_OWN.get(function.__name__, {}).items() if name in parameters}
    made = function(**{**known, **given})
    return next(iter(made)) if inspect.isgenerator(made) else made


@pytest.mark.parametrize(("function", "name"), cases())
def test_a_wrong_kind_is_refused_by_name_before_anything_runs(
    function: Callable[..., Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(good()["model"]), "run", None)
    with pytest.raises((TypeError, ValueError, ModelError), match=name) as refused:
        call(function, **{name: Stranger()})
    assert "unexpected keyword" not in str(refused.value) and "object is not" not in str(refused.value)


def test_every_public_function_is_asked() -> None:
    asked = {each.id.partition("-")[0] for each in cases()}
    assert len(cases()) > 200 and set(FUNCTIONS) <= asked
    takes = {(where, name) for where, made in FUNCTIONS.items() for name in inspect.signature(made).parameters}
    assert takes >= FREE, "nothing stands in FREE that is no parameter"


@checked
def takes(
    n: int = 1,
    several: Iterable[int] = (),
    array: jaxtyping.Float[torch.Tensor, " n"] | None = None,
    later: "Undefined" = None,  # type: ignore[name-defined]  # noqa: F821
    *rest: int,
    **more: Any,
) -> tuple[Any, ...]:
    """What is taken."""
    return n, several, array, later


def of_class(name: str, module: str = "") -> Any:
    return type(name, (), {"__module__": module})()


FITS = [
    (int, np.int8(2), 2),
    (float, 3, 3),
    (str | Path | None, Path("a"), Path("a")),
    (Iterable[int], np.arange(1, 3), (1, 2)),
    (tuple[int, ...], [1], (1,)),
    (Mapping[mi.Head, float], {"L0H1": 1}, {mi.Head(0, 1): 1}),
    (Literal["a"], "b", "b"),  # which words it knows the function says
    (mi.Head, "0:1", mi.Head(0, 1)),
    *((free, "x", "x") for free in (Any, inspect.Parameter.empty, "Undefined", jaxtyping.Float[torch.Tensor, " n"])),
]


@pytest.mark.parametrize(("annotation", "value", "becomes"), FITS)
def test_what_fits_goes_through_and_what_can_be_gone_through_once_becomes_a_tuple(
    annotation: Any, value: Any, becomes: Any
) -> None:
    found = as_annotated(value, annotation, "x")
    assert found == becomes and type(found) is type(becomes)


def test_a_view_refuses_a_result_of_another_kind() -> None:
    for _ in range(2):
        with pytest.raises(TypeError, match="found must be a PathEffects, got a PatchScores"):
            mi.views.path_graph(good()["found"])
    assert pickle.loads(pickle.dumps(mi.views.path_graph)) is mi.views.path_graph


def test_a_checked_function_is_still_itself() -> None:
    assert takes(np.int8(2), iter([1]), array=3, later=4, other=5) == (2, (1,), 3, 4)
    assert takes.__name__ == "takes" and takes.__doc__ == "What is taken."
    with pytest.raises(TypeError, match="score_heads.. got an unexpected keyword argument 'sink'"):
        mi.score_heads(None, (), sink=True)  # type: ignore[arg-type,call-arg]


HEADS = "write Head(layer, head) or 'L0H13' (zero-based)"
UNFIT = [
    (float, float("nan"), "a number, got nan (float)"),
    (int, 1.5, "a whole number, got 1.5 (float)"),
    (int, True, "a whole number, got True (bool)"),
    (int, [mi.Head(0, 1)], "a whole number, got several Heads"),
    (int, "1" * 99, f"a whole number, got '{'1' * 56}... (str)"),
    (bool, 1, "True or False, got 1 (int)"),
    (str | Path | None, b"a", "a text or a path or None, got b'a' (bytes)"),
    (Iterable[int], "12", "several whole numbers, got '12' (str)"),
    (Iterable[int] | None, [1, None], "several whole numbers or None, got None at place 1 (zero-based)"),
    (Iterable[str], "ab", "several texts, got 'ab' (str): put it in a list, ['ab']"),
    (Iterable["Undefined"], 3, "several Undefineds, got 3 (int)"),  # type: ignore[name-defined]  # noqa: F821
    (Mapping[mi.Head, float], {"L0H1": "much"}, f"a Mapping of Heads to numbers, got 'much' (str): {HEADS}"),
    (Callable[..., int], 3, "a function, got 3 (int)"),
    (mi.Insertion, " /", "an Insertion, got ' /' (str): for example Insertion.meaningless(\" /\", n_tokens=55)"),
    (type(of_class("PromptPair")), 3, f"a PromptPair, got 3 (int): {REMEDIES['PromptPair']}"),
    (Model, "demo", "a Model, got 'demo' (str): load it first, load_model('demo')"),
    (Model, of_class("Their", "nnsight.of.some"), "a Model, got a Their: wrap it first, wrap_model(...)"),
]


@pytest.mark.parametrize(("annotation", "value", "message"), UNFIT)
def test_what_does_not_fit_is_said_in_words(annotation: Any, value: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError)) as refused:
        as_annotated(value, annotation, "x")
    assert str(refused.value) == f"x must be {message}" and (refused.type is ValueError) == (value != value)


TWO = {"heads": ["L0H1", "L1H2"]}
OPTIONS: dict[str, dict[str, Any]] = {
    "dose_response": {"doses": (1, 2)},
    "evaluate_accuracy": {"max_new_tokens": 2},
    "trace_paths": TWO,
    "minimal_sets": TWO,
    "trace_circuit": {"heads": ["L0H1"], "parts": ["direct"]},
    "run_study": {"study": {"title": "t", "limit": 3, "insertions": [{"name": "slashes", "kind": "meaningless"}]}},
}
REPLICATIONS = sorted(
    name
    for name, parameters in ((name, set(inspect.signature(made).parameters)) for name, made in FUNCTIONS.items())
    if {"pairs", "problems"} & parameters
    and "progress" in parameters
    and name not in ("certify_model", "compare_hook")  # these test code on every prompt: no replication
)
"""Every function whose problems are replications."""


@pytest.mark.filterwarnings("ignore:the questions of problems")
@pytest.mark.parametrize("name", REPLICATIONS)
def test_one_problem_three_times_is_refused_by_every_analysis(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = good()["model"]
    monkeypatch.setattr(type(model), "run", None)
    first, other = good()["problems"]
    own = "problems" in inspect.signature(FUNCTIONS[name]).parameters
    for twice, message in (
        (replace(other, id=first.id), "the problem id .* is given twice"),
        (replace(first, id="again", question=f" {first.question}  "), "problem 'again' asks the same as"),
    ):
        problems = [first, twice, other]
        pairs = [replace(good()["pairs"][0], problem=each) for each in problems]
        given = {"problems": problems} if own else {"pairs": pairs}
        with pytest.raises(ValueError, match=message):
            call(FUNCTIONS[name], model=model, **given, **OPTIONS.get(name, {}), progress=False)
