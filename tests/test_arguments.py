"""Every public function refuses arguments of the wrong kind, by name and before anything runs."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from models_under_test import planted_here, planted_pairs, planted_problems

import mless_interp as mi
from mless_interp.core.arguments import checked
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
    "problems_from_file": {"path": "texts.txt"},
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


def test_each_message_says_what_was_expected_what_came_and_what_to_do() -> None:
    model, pairs, problems = (good()[name] for name in ("model", "pairs", "problems"))
    patch, text = mi.patch_heads, r"\(str\)"
    for do, message in (
        (lambda: patch("demo", pairs), f"model must be a Model, got 'demo' {text}: load it first, load_model"),
        (lambda: patch(pairs, model), "model must be a Model, got several PromptPairs: load_model"),
        (lambda: patch(model, problems), r"several PromptPairs, got a Problem at place 0 .*: make_pairs\(model"),
        (lambda: patch(model, pairs, heads="L0H1"), f"several Heads or texts or None, got 'L0H1' {text}: write"),
        (lambda: patch(model, pairs, heads=["x"]), "heads: cannot read 'x' as a head: write LAYER:HEAD"),
        (lambda: patch(model, pairs, max_rows=0), "max_rows must be 1 or more, got 0"),
        (lambda: mi.make_pairs(model, problems, " /"), f"an Insertion, got ' /' {text}: for example"),
        (lambda: mi.Insertion.meaningless("", 5), "meaningless needs the unit to insert, which is empty"),
        (lambda: mi.dose_response(model, problems, good()["insertion"], doses=(1, 2.5)), "got 2.5 .* at place 1"),
        (lambda: mi.locate_heads(model, pairs, confidence=1.0), "confidence must lie between 0 and 1"),
        (lambda: mi.score_heads(model, pairs, sink=True), "score_heads.. got an unexpected keyword argument 'sink'"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            do()


def test_another_librarys_model_is_to_be_wrapped() -> None:
    class HookedTransformer:
        __module__ = "transformer_lens.HookedTransformer"

    with pytest.raises(TypeError, match=r"model must be a Model, got a HookedTransformer: wrap it first, wrap_model\("):
        mi.locate_heads(HookedTransformer(), good()["pairs"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^name must be .*, got a HookedTransformer: wrap it first, wrap_model\(...\)"):
        mi.load_model(HookedTransformer())  # type: ignore[arg-type]


@checked
def takes(
    n: int = 1,
    x: float = 1.0,
    on: bool = False,
    where: str | Path | None = None,
    several: Iterable[int] = (),
    by_head: Mapping[mi.Head, float] | None = None,
    model: Model | None = None,
    array: jaxtyping.Float[torch.Tensor, " n"] | None = None,
    later: "Undefined" = None,  # type: ignore[name-defined]  # noqa: F821
    *rest: int,
    **more: Any,
) -> tuple[Any, ...]:
    """What is taken."""
    return n, x, on, where, several, by_head


def test_what_fits_goes_through_and_what_can_be_gone_through_once_becomes_a_tuple() -> None:
    found = takes(np.int8(2), 3, True, Path("a"), iter([1, np.int64(2)]), {"L0H1": 1}, array=3, later=4, other=5)
    assert found == (2, 3, True, Path("a"), (1, 2), {mi.Head(0, 1): 1})
    assert type(found[0]) is int and type(found[1]) is int, "a whole number stays one"
    assert takes.__name__ == "takes" and takes.__doc__ == "What is taken."


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x": float("nan")}, r"x must be a number, got nan \(float\)"),
        ({"x": "no"}, r"x must be a number, got 'no' \(str\)"),
        ({"n": 1.5}, r"n must be a whole number, got 1.5 \(float\)"),
        ({"on": 1}, r"on must be True or False, got 1 \(int\)"),
        ({"on": np.array([True])}, "on must be True or False, got a ndarray"),
        ({"where": b"a"}, r"where must be a text or a path or None, got b'a' \(bytes\)"),
        ({"several": 3}, r"several must be several whole numbers, got 3 \(int\)"),
        ({"several": "12"}, "several must be several whole numbers, got '12'"),
        ({"several": [1, None]}, r"several must be several whole numbers, got None at place 1 \(zero-based\)"),
        ({"by_head": {"L0H1": "much"}}, "by_head must be a Mapping of Heads to numbers or None, got 'much'"),
        ({"by_head": [1]}, "by_head must be a Mapping of Heads to numbers or None, got a list"),
        ({"n": "1" * 99}, r"n must be a whole number, got '1{56}\.\.\. \(str\)"),
    ],
)
def test_what_does_not_fit_is_said_in_words(given: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        takes(**given)


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
    same_id = [first, replace(other, id=first.id), other]
    renamed = [first, replace(first, id="again"), replace(first, id="once more", question=f" {first.question}  ")]
    own = "problems" in inspect.signature(FUNCTIONS[name]).parameters
    for problems, message in (
        (same_id, "the problem id .* is given twice"),
        (renamed, "problem 'again' asks the same as"),
    ):
        pairs = [replace(good()["pairs"][0], problem=each) for each in problems]
        given = {"problems": problems} if own else {"pairs": pairs}
        with pytest.raises(ValueError, match=message):
            call(FUNCTIONS[name], model=model, **given, **OPTIONS.get(name, {}), progress=False)
