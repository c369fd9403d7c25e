"""Sweeps and outcomes rule by rule: by hand, with passes replaced by numbers that are known."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from models_under_test import pairs_for, problems

from mless_interp.core.heads import Head
from mless_interp.models.base import Model
from mless_interp.patching.interventions import Intervention, MatchedMassKnockout
from mless_interp.patching.outcomes import OUTCOMES
from mless_interp.patching.prepared import Prepared, prepare
from mless_interp.patching.sweep import Engine, Sweep, _swept, patch_heads, sweep_heads
from mless_interp.prompts.conditions import CONTRASTS, DIRECTIONS
from mless_interp.prompts.insertions import Insertion
from mless_interp.prompts.pairs import PromptPair, make_pairs
from mless_interp.runtime.loop import RunOptions

HEADS = (Head(0, 1), Head(1, 0), Head(1, 6), Head(2, 7))


def alike(model: Model, outcome: str = "answer_logprob", count: int = 3, **place: Any) -> Prepared:
    """Problems of one geometry, which share a unit."""
    asked = [
        replace(problems()[0], id=f"p{at}", group=f"p{at}", question=problems()[0].question.replace("3", str(3 + at)))
        for at in range(count)
    ]
    ready = prepare(model, make_pairs(model, asked, Insertion.meaningless(" /", 4, **place)), outcome)
    assert ready.units == (tuple(range(count)),)
    return ready


@pytest.fixture
def pair(model: Model) -> PromptPair:
    made = pairs_for(model, count=1)[0].answered()
    return replace(made, answer_ids=(4, 5, 6), distractor_ids=(4, 7), solution_ids=(4, 5, 6), n_answer=3)


def log_p(logits: torch.Tensor) -> torch.Tensor:
    return (logits.double().exp() / logits.double().exp().sum(-1, keepdim=True)).log()


def test_every_outcome_is_what_its_name_says_and_is_read_where_its_tokens_are_predicted(pair: PromptPair) -> None:
    """The answer's tokens end one before the prompt does; two rows of each."""
    logits = torch.randn(2, 3, 9, generator=torch.Generator().manual_seed(0))
    clean = torch.randn(1, 3, 9, generator=torch.Generator().manual_seed(1))
    of_answer = log_p(logits)[:, range(3), [4, 5, 6]]
    kl = (log_p(clean).exp() * (log_p(clean) - log_p(logits))).sum(-1)
    first = [4, 3, 2]
    wanted = {
        "answer_logprob": (first, of_answer.sum(-1), "nats", "answer"),
        "answer_prob": (first, of_answer.mean(-1).exp(), "probability", "answer"),
        "solution_logprob": (first, of_answer.mean(-1), "nats per token", "solution"),
        "logit_diff": ([3], logits[:, -1, 5] - logits[:, -1, 7], "logits", "answer"),
        "kl": (list(range(pair.n_after, 0, -1)), kl.mean(-1), "nats per position", "answer"),
        "kl_last": ([4], kl.mean(-1), "nats", "answer"),
    }
    assert list(OUTCOMES) == list(wanted) and pair.n_after > 3
    for name, (reads, value, unit, appended) in wanted.items():
        made = OUTCOMES[name]
        assert made.reads(pair) == reads, name
        assert torch.allclose(made.value(logits, pair, clean).double(), value.double(), atol=1e-5), name
        assert (made.name, made.unit, made.appended) == (name, unit, appended)
        assert (made.needs_clean, made.needs_distractor) == (name.startswith("kl"), name == "logit_diff")


def test_what_a_problem_lacks_is_told_with_the_first_and_how_many(pair: PromptPair) -> None:
    read, none = OUTCOMES["logit_diff"], replace(pair, distractor_ids=())
    assert read.reads(pair) == [3] and read.reads(replace(pair, distractor_ids=(9, 7))) == [4]
    same = [replace(pair, distractor_ids=ids) for ids in ((4, 5, 6), (4, 5), (4, 5, 6, 7))]
    read.check([pair, replace(pair, distractor_ids=(9, 7))])
    with pytest.raises(ValueError, match=rf"problem '{pair.id}' has no distractor, .*'logit_diff' .*\(5 such"):
        read.check([pair, none, none, *same])
    with pytest.raises(ValueError, match=rf"problem '{pair.id}' has a distractor with which .* \(3 such"):
        read.check([pair, *same])
    OUTCOMES["answer_logprob"].check([pair, none, *same])


def test_what_nothing_is_read_behind_is_left_out_where_it_does_not_fit(model: Model) -> None:
    (bare,), read = pairs_for(model, n_tokens=4, count=1), OUTCOMES["answer_logprob"]
    whole = len(read.asked(bare, model.info).inserted)
    for room, left_out in ((whole + 1, 0), (whole, 0), (whole - 1, 1)):
        made = read.asked(bare, replace(model.info, context_length=room))
        assert (len(made.inserted), read.reads(made)) == (whole - left_out, [2 - left_out])


@pytest.mark.parametrize("outcome", ["answer_logprob", "kl"])
@pytest.mark.parametrize("direction", ["denoising", "noising"])
def test_heads_are_edited_at_rows_of_both_prompts_that_belong_together(
    direction: str, model: Model, outcome: str
) -> None:
    """As places in the prompts: which rows of the receiving run are replaced, and by which of the donor's."""
    ready = alike(model, outcome)
    runs, pair = ready.runs((0, 1, 2)), ready.pairs[0]
    (first, stop), long, short, read = pair.span, len(pair.inserted), len(pair.base), pair.n_answer + 1
    assert first > 0 and stop - first == 4 == long - short and 1 < read < long - stop
    after, last = range(stop, long), range(long - read, long)
    wanted = {
        ("content", "question"): (after, after),
        ("content", "last"): (last, last),
        ("content", "all"): (range(long), range(long)),
        ("computed", "question"): (range(first, long), range(first, long)),
        ("shift", "question"): (range(first, short), range(first, short)),
        ("shift", "all"): (range(short), range(short)),
        ("total", "question"): (after, range(first, short)),
        ("total", "last"): (last, range(short - read, short)),
    }
    for asked, places in wanted.items():
        made = Engine(runs, Sweep.named(asked[0], direction, positions=asked[1]), 1)
        pairs = (made.here, made.receiving), (made.there, made.donor)
        found = [(at + run.start).tolist() for at, run in pairs]
        assert found == [list(at) for at in (places if direction == "denoising" else places[::-1])], asked


def replayed(monkeypatch: pytest.MonkeyPatch, most: int = 99, error: Exception | None = None) -> list[list[int]]:
    """Passes of heads, the layers of their rows; one of more than `most` rows stops with an error."""
    passes: list[list[int]] = []
    replay = Model.replay

    def seen(self: Model, receiving: Any, joins: Any, z: torch.Tensor, **options: Any) -> torch.Tensor:
        passes.append(list(joins))
        if len(passes[-1]) > most and error is not None:
            raise error
        return replay(self, receiving, joins, z, **options)

    monkeypatch.setattr(Model, "replay", seen)
    return passes


def swept(ready: Prepared, rows: int = 9) -> np.ndarray:
    return _swept(Engine(ready.runs((0, 1, 2)), Sweep.named(), rows), HEADS, print)["patched"]


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("pretended"), MemoryError()])
def test_a_pass_that_memory_does_not_hold_is_made_in_halves(
    error: Exception, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = alike(model)
    whole = swept(ready)
    passes = replayed(monkeypatch, 2, error)
    found = swept(ready, 5)
    assert list(map(len, passes)) == [5, 2, 3, 1, 2, 1, 1]
    assert np.allclose(found, whole, atol=1e-5, equal_nan=True)
    replayed(monkeypatch, 0, RuntimeError("another reason"))
    with pytest.raises(RuntimeError, match="another reason"):
        swept(ready, 5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_edit_without_effect_is_exactly_none_and_half_precision_loses_the_common_rounding(
    dtype: str, model: Model
) -> None:
    """Two rows that join a pass alike differ by nothing, whatever both are off."""
    engine = Engine(alike(model).runs((0, 1, 2)), Sweep.named(), 9)
    old, receiving = engine.receiving.z[1], engine.ends[:, 0]
    edits = [(1, old), (1, old + 1e-30), engine.head_edit(Head(1, 2))]
    values, noise = engine.outcomes(edits, print)
    assert np.array_equal(values[:, 0], receiving) and list(noise) == [1]
    assert np.abs(values[:, 2] - receiving).min() > 1e-4
    exact = engine._continued
    engine._continued = lambda rows: exact(rows) + 0.5  # every row is off by half a nat
    assert np.allclose(engine.outcomes(edits, print)[0] - values, [0, 0, 0.5 * (dtype == "float32")], atol=1e-9)
    engine._continued, engine.of_heads = exact, False
    changes = engine.outcomes([(6, torch.zeros_like(engine.receiving.resid_pre[0]))], print)
    assert np.array_equal(changes[0][:, 0], receiving) and list(changes[1]) == [6] * (dtype == "bfloat16")


@pytest.mark.parametrize("contrast", [name for name, made in CONTRASTS.items() if made.cuts])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_patches_of_a_joint_sweep_are_those_of_their_own(model: Model, contrast: str, direction: str) -> None:
    """Whatever order they are given in; layer 0 has the knockouts' bits."""
    ready = alike(model, **({"after": "question"} if contrast == "computed" else {}))
    both = {edit: Sweep.named(contrast, direction, edit) for edit in ("z", "knockout")}
    joint = sweep_heads(ready, both, model.info.heads, options=RunOptions(progress=False))
    for edit, each in both.items():
        alone = sweep_heads(ready, {edit: each}, model.info.heads, options=RunOptions(progress=False))[edit]
        assert np.allclose(joint[edit].patched, alone.patched, atol=1e-5, rtol=0)
    assert np.array_equal(joint["z"].patched[:, 0], joint["knockout"].patched[:, 0])
    assert not np.array_equal(joint["z"].patched[:, 1], joint["knockout"].patched[:, 1])


def test_an_outcome_of_one_s_own_is_taken(model: Model) -> None:
    base = OUTCOMES["answer_logprob"]
    own = replace(base, name="own", unit="points", value=lambda *of: 2 * base.value(*of))
    pairs = pairs_for(model, n_tokens=4, count=1)
    twice, once = (patch_heads(model, pairs, outcome=made, heads=HEADS[:1], progress=False) for made in (own, base))
    assert twice.unit == "points" and np.allclose(twice.effect, 2 * once.effect, equal_nan=True, atol=1e-6)
    with pytest.raises(ValueError, match=r"'own' must give a number per run .*: expected \[.\], got \[., 1\]"):
        patch_heads(model, pairs, outcome=replace(own, value=lambda *of: own.value(*of)[:, None]), progress=False)
    edit = type("Own", (Intervention,), {"name": "own", "__call__": lambda self, state: state.z.zero_()})()
    in_place = {"outcome": replace(own, value=lambda logits, *of: base.value(logits.mul_(2), *of)), "edit": edit}
    for name, given in in_place.items():
        with pytest.raises(ValueError, match="'own' changes in place what it is given, which others read, too"):
            patch_heads(model, pairs, **{name: given}, progress=False)
    seeded = [
        patch_heads(model, pairs, edit=each, seed=7, progress=False)
        for each in ("matched_mass", MatchedMassKnockout(7))
    ]
    assert np.array_equal(*(each.patched for each in seeded), equal_nan=True)
