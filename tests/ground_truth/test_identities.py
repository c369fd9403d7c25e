"""Identities I0 to I14 of methods §3: they hold on every backend, each notices its lie, and what does not apply is said."""

from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from conftest import needs_hooked_transformer
from models_under_test import loaded, problems

from mless_interp.ground_truth.identities import IDENTITIES, Case, Identity, tolerance_of
from mless_interp.models.checks import size
from mless_interp.models.sites import site
from mless_interp.prompts.insertions import Insertion
from mless_interp.prompts.pairs import make_pairs

ACROSS = [  # backend, attention, largest error, architecture, where the span stands, what cannot hold there
    pytest.param("hooked_transformer", "eager", 1e-10, "qwen2", {}, {"I14"}, marks=needs_hooked_transformer),
    ("bridge", "eager", 1e-5, "gemma3", {}, {"I9", "I10", "I12", "I14"}),
    ("nnsight", "eager", 1e-5, "qwen2", {}, {"I14"}),
    ("nnsight", "sdpa", 1e-10, "llama", {}, {"I14"}),
    ("nnsight", "sdpa", 1e-10, "qwen2", {"after": "question"}, {"I13"}),
    ("nnsight", "sdpa", 1e-10, "qwen2", {"before": "question", "after": "question"}, {"I13"}),
]


def named(name: str) -> Identity:
    return next(each for each in IDENTITIES if each.name == name)


def case_of(directory: Any, backend: str = "bridge", attention: str = "eager", **place: Any) -> Case:
    """One case per process and setting: its conditions are run once for all identities."""
    return _made(directory, backend, attention, tuple(place.items()))


@lru_cache(maxsize=16)
def _made(directory: Any, backend: str, attention: str, place: tuple[tuple[str, Any], ...]) -> Case:
    model = loaded(directory, backend, "float64", attention)
    (pair,) = make_pairs(model, problems()[:1], Insertion.meaningless(" /", 9, **dict(place)))
    return Case(model, pair.answered() if place else pair)  # behind the question its rows are read by the answer's


@pytest.mark.parametrize(("backend", "attention", "tolerance", "architecture", "place", "left_out"), ACROSS)
@pytest.mark.parametrize("name", [identity.name for identity in IDENTITIES])
def test_the_identity_holds(
    name: str,
    backend: str,
    attention: str,
    tolerance: float,
    architecture: str,
    place: dict[str, Any],
    left_out: set[str],
    tiny_model_dir: Any,
) -> None:
    case, identity = case_of(tiny_model_dir(architecture), backend, attention, **place), named(name)
    assert len(case.pair.spans) == max(len(place), 1) and case.pair.n_after
    reason = identity.applies(case)
    assert (reason is not None) == (name in left_out), "only what an architecture or a place cannot have is left out"
    if reason is None:
        found = identity.formula(case)
        if name == "I0" and attention == "eager":
            tolerance = max(tolerance, 1e-6)  # the pattern shown is float32
        assert found.error < tolerance * identity.factor * max(found.scale, 1.0)
        assert found.relative <= identity.factor * tolerance_of(case.model)
        if name in ("I2", "I9", "I10"):  # differences are held against what they are differences of
            whole = case.layer("inserted").z if name == "I2" else case.resid_mid("inserted")
            assert found.scale == pytest.approx(size(whole))


def test_what_does_not_apply_is_said_and_is_false_there(tiny_model_dir: Any) -> None:
    before, behind = case_of(tiny_model_dir("qwen2")), case_of(tiny_model_dir("qwen2"), after="question")
    words = make_pairs(before.model, problems()[:1], Insertion.random_sentence(9))[0]
    checks = replace(before.model.checks, shows_rotated=False, entering_error=None)
    hidden = Case(before.model.checked(checks), before.pair)
    for name in ("I0", "I1", "I2", "I6"):  # by the patterns that the library shows
        found = named(name).formula(hidden)
        assert found.relative <= named(name).factor * tolerance_of(before.model)
    assert hidden.run("gap").keys() < before.run("gap").keys()
    never = "this backend shows no queries and keys as they enter the scores of this architecture"
    for name, case, reason in (
        *((name, hidden, never) for name in ("I3", "I7", "I8", "I12")),
        ("I13", behind, "the span stands after the question, or part of it"),
        ("I14", before, "nothing of the question stands before the span"),
        ("I3", Case(before.model, words), "the inserted tokens are not all the same"),
        ("I12", Case(before.model, words), "the insertion is not a repeated unit"),
    ):
        assert named(name).applies(case) == reason
        assert case.pair is before.pair or name == "I12" or named(name).formula(case).error > 1e-3


def test_heads_add_up_where_their_weights_are_not_known(tiny_model_dir: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of(tiny_model_dir("qwen2"))
    monkeypatch.setattr(case.model, "_attention_output", lambda layer: None)
    assert [named(name).applies(case) for name in ("I9", "I10")] == [None, None]


def test_what_stands_behind_a_question_is_hidden_with_it(tiny_model_dir: Any) -> None:
    """The end of a chat turn has read the question: a span behind it that sees it would not be blind."""
    model = loaded(tiny_model_dir("qwen2"), "bridge", "float64", "eager")
    insertion = Insertion.meaningless(" /", 4, after="template")
    runs = []
    for text in ("Anna gets three apples", "Anna gets seven apples"):
        (pair,) = make_pairs(model, [replace(problems()[0], question=text)], insertion, template="chat")
        assert set(pair.inserted.segments[pair.inserted.indices("question")[-1] + 1 : pair.span[0]]) == {"template"}
        rows = pair.span_mask.nonzero()[:, 0].tolist()
        blind, sees = (model.run(pair.condition(name), logits_at=rows).logits for name in ("blind", "inserted"))
        assert not torch.equal(blind, sees)
        runs.append(blind)
    torch.testing.assert_close(*runs, atol=1e-6, rtol=0)


def spoiled(case: Case, condition: str, name: str, change: Any) -> Case:
    """The case with one captured tensor of one condition changed, as if the backend had shown something else."""
    runs = {key: dict(run) for key, run in case.runs.items()}
    runs.setdefault(condition, dict(case.run(condition)))
    runs[condition][name] = change(runs[condition][name])
    return Case(case.model, case.pair, runs)


@pytest.mark.parametrize(
    ("name", "condition", "where", "at"),
    [
        ("I0", "inserted", "attn.hook_pattern", "last"),
        ("I0", "inserted", "attn.hook_z", "last"),
        ("I1", "held", "attn.hook_z", "last"),
        ("I2", "gap", "attn.hook_z", "last"),
        ("I3", "inserted", "attn.hook_v", "first"),
        ("I4", "gap", "attn.hook_rot_k", "last"),
        ("I5", "inserted", "hook_resid_post", "before"),
        ("I6", "masked", "attn.hook_z", "last"),
        ("I8", "gap", "attn.hook_z", "last"),
        ("I13", "blind", "attn.hook_z", "last"),
        ("I14", "blind", "attn.hook_z", "first"),
        ("I14", "blind", "attn.hook_z", "behind"),
        ("I14", "masked", "attn.hook_z", "first"),
    ],
)
def test_one_wrong_token_is_noticed(name: str, condition: str, where: str, at: str, tiny_model_dir: Any) -> None:
    case = case_of(tiny_model_dir("qwen2"), **({"after": "question"} if name == "I14" else {}))
    start, stop = case.pair.span
    token = {"last": -1, "first": start, "before": start - 1, "behind": stop}[at]

    def change(value: torch.Tensor) -> torch.Tensor:
        new = value.clone()
        if where == "attn.hook_pattern":
            new[..., token, :] = new[..., token, :].flip(-1)
        else:
            new[:, token] = new[:, token] * 1.01 + 0.01
        return new

    wrong = spoiled(case, condition, site(0, where), change)
    allowed = named(name).factor * tolerance_of(case.model)
    assert named(name).formula(case).relative <= allowed < named(name).formula(wrong).relative


def test_the_entropy_chain_and_the_slope_notice_another_score_rule(tiny_model_dir: Any) -> None:
    """I11 is arithmetic of one pattern, so only rows that are no distribution break it; I12 breaks with the scores."""
    case = case_of(tiny_model_dir("qwen2"))
    inside = case.pair.span_mask

    class Lying(type(case.model)):  # type: ignore[misc]
        def run(self, tokens: torch.Tensor, **options: Any) -> Any:
            done = super().run(tokens, **options)
            for key in options.get("capture", {}):
                if key.endswith("hook_rot_k") and done.captured[key].shape[1] > len(inside):  # the longer dose only
                    done.captured[key] *= 1.05
            return done

    model = object.__new__(Lying)
    model.__dict__.update(case.model.__dict__)
    broken = Case(model, case.pair)
    assert named("I12").formula(broken).relative > 10 * named("I12").factor * tolerance_of(case.model)
