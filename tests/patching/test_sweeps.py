"""Sweeps and outcomes rule by rule: by hand, with passes replaced by numbers that are known."""

from dataclasses import replace
from inspect import signature
from types import SimpleNamespace
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from conftest import tiny_model, word_tokenizer
from models_under_test import loaded, pairs_for, problems
from virtual_devices import ONE, OTHER

from mless_interp.heads import Head
from mless_interp.models.base import Model
from mless_interp.models.load import load_model
from mless_interp.patching import outcomes, sweep
from mless_interp.patching.interventions import LayerState
from mless_interp.patching.outcomes import OUTCOMES, Outcome, outcome_named
from mless_interp.patching.prepared import Prepared, prepare
from mless_interp.patching.sweep import Sweep, _Swept, patch_heads, sweep_heads
from mless_interp.prompts import pairs as prompt_pairs
from mless_interp.prompts.conditions import CONTRASTS, DIRECTIONS
from mless_interp.prompts.insertions import Insertion
from mless_interp.prompts.pairs import PromptPair, make_pairs

HEADS = (Head(0, 1), Head(1, 0), Head(1, 6), Head(2, 7))


@pytest.fixture
def model(tiny_model_dir: Any) -> Model:
    return loaded(tiny_model_dir("qwen2"), "bridge")


def alike(model: Model, outcome: str = "answer_logprob", count: int = 3, **place: Any) -> Prepared:
    """Problems of one geometry, which share a unit."""
    asked = [
        replace(problems()[0], id=f"p{at}", question=problems()[0].question.replace("3", str(3 + at)))
        for at in range(count)
    ]
    ready = prepare(model, make_pairs(model, asked, Insertion.meaningless(" /", 4, **place)), outcome)
    assert ready.units == (tuple(range(count)),)
    return ready


@pytest.fixture
def swept(model: Model) -> _Swept:
    """One unit of three problems, two rows a pass."""
    return _Swept(alike(model).runs((0, 1, 2)), Sweep.named(), 2)


# ------------------------------------------------------------------------------------------------------------ outcomes


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
    differ, read = outcomes._first_difference, OUTCOMES["logit_diff"]
    assert differ(pair) == 1 and differ(replace(pair, distractor_ids=(9, 7))) == 0
    none = replace(pair, distractor_ids=())
    same = [replace(pair, distractor_ids=ids) for ids in ((4, 5, 6), (4, 5), (4, 5, 6, 7))]
    assert [differ(each) for each in [none, *same]] == [None] * 4
    read.check([pair, pair])
    with pytest.raises(
        ValueError, match=rf"problem '{pair.id}' has no distractor, which outcome 'logit_diff' needs \(2 h"
    ):
        read.check([pair, none, none, *same])
    with pytest.raises(ValueError, match=rf"problem '{pair.id}': its answer .* outcome 'logit_diff' has .* \(3 such"):
        read.check([pair, *same])
    OUTCOMES["answer_logprob"].check([pair, none, *same])


def test_outcomes_are_found_by_name_and_taken_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    own = replace(OUTCOMES["kl"], name="own")
    assert outcome_named("kl") is OUTCOMES["kl"] and outcome_named(own) is own
    assert outcome_named("logit_diff", signed_for="locating") is OUTCOMES["logit_diff"]
    allowed = "answer_logprob, answer_prob, solution_logprob, logit_diff"
    for given in ("kl", own):
        name = given if isinstance(given, str) else given.name
        with pytest.raises(
            ValueError, match=rf"^locating needs a signed outcome \({allowed}\), and '{name}' is never neg"
        ):
            outcome_named(given, signed_for="locating")
    with pytest.raises(ValueError, match="unknown outcome 'x'; choose one of answer_logprob"):
        outcome_named("x")
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as without the type checks of tests
    with pytest.raises(TypeError, match="outcome must be a name or an Outcome, got 3"):
        outcome_named(3)


# -------------------------------------------------------------------------------------------------------------- sweeps


def test_a_sweep_of_nothing_said_is_of_z_between_masked_and_inserted() -> None:
    made = Sweep.named()
    assert made.settings == {"contrast": "content", "direction": "denoising", "edit": "z", "positions": "question"}
    assert (made.donor, made.receiving, made.positions) == ("masked", "inserted", "question")
    for name, options in (
        ("contrast", {"contrast": "x"}), ("direction", {"direction": "x"}), ("positions", {"positions": "x"})
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"unknown {name} 'x'; choose one of"):
            Sweep.named(**options)
    for positions in ("question", "last"):
        assert Sweep.named("total", positions=positions).positions == positions
    assert Sweep.named("shift", positions="all").positions == "all"
    for contrast in ("shift", "total"):
        with pytest.raises(
            ValueError, match=f"edit 'knockout' acts on attention to the inserted span.*got '{contrast}'"
        ):
            Sweep.named(contrast, edit="knockout")
    assert Sweep.named(edit="knockout").intervention.name != Sweep.named(edit="z").intervention.name


@pytest.mark.parametrize("direction", ["denoising", "noising"])
def test_heads_are_edited_at_rows_of_both_prompts_that_belong_together(direction: str, model: Model) -> None:
    """As places in the prompts: which rows of the receiving run are replaced, and by which of the donor's."""
    ready = alike(model)
    runs, pair = ready.runs((0, 1, 2)), ready.pairs[0]
    (first, stop), long, short, read = pair.span, len(pair.inserted), len(pair.base), pair.n_answer + 1
    assert first > 0 and stop - first == 4 == long - short and 1 < read < long - stop
    after, last = range(stop, long), range(long - read, long)
    wanted = {
        ("content", "question"): (after, after),
        ("content", "last"): (last, last),
        ("content", "prefix"): (range(first), range(first)),
        ("content", "span"): (range(first, stop), range(first, stop)),
        ("content", "all"): (range(long), range(long)),
        ("computed", "question"): (range(first, long), range(first, long)),
        ("shift", "question"): (range(first, short), range(first, short)),
        ("shift", "prefix"): (range(first), range(first)),
        ("shift", "span"): (range(0), range(0)),
        ("shift", "all"): (range(short), range(short)),
        ("total", "question"): (after, range(first, short)),
        ("total", "last"): (last, range(short - read, short)),
    }
    for (contrast, positions), places in wanted.items():
        made = _Swept(runs, Sweep.named(contrast, direction, positions=positions), 1)
        pairs = (made.edited, made.receiving), (made.given, made.donor)
        found = [(at.on(run.z[0]) + run.start).tolist() for at, run in pairs]
        assert found == [list(at) for at in (places if direction == "denoising" else places[::-1])], (
            contrast,
            positions,
        )


def test_the_rows_of_a_pass_are_sized_by_what_it_computes(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(sweep, "rows_per_pass", lambda *given, **how: asked.append((*given, how)) or 7)
    ready = alike(model, "kl")
    pair = ready.pairs[0]
    assert _Swept(ready.runs((0, 1, 2)), Sweep.named(), None).rows == 7
    assert _Swept(ready.runs((0, 1, 2)), Sweep.named(), 2).rows == 2
    size = {"batch": 3, "changed": pair.n_after, "length": len(pair.inserted), "read": pair.n_after}
    assert asked == [(model.info, size | {"devices": model.devices})]


def of_cells(cells: list[tuple[int, int]], n: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """What a pass is made to give: another number for each problem, layer and head; head 6 of layer 1 does nothing to p1."""
    values = [[100.0 * at + 10 * layer + head for layer, head in cells] for at in range(n)]
    same = [[(at, layer, head) == (1, 1, 6) for layer, head in cells] for at in range(n)]
    return np.array(values), np.array(same)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_passes_give_is_put_in_its_place(dtype: str, tiny_model_dir: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An edit that changes nothing has the receiving run's outcome; in half precision the layer's noise is taken off."""
    model = loaded(tiny_model_dir("qwen2"), "bridge", dtype)
    ready = alike(model)
    made, passes, ticks = _Swept(ready.runs((0, 1, 2)), Sweep.named(), 2), [], []
    ends = [made.runs.outcomes(run.logits)[:, 0] for run in (made.receiving, made.donor)]
    monkeypatch.setattr(_Swept, "_patched", lambda self, cells: (passes.append(cells), of_cells(cells))[1])
    found = made.all_heads(HEADS, ticks.append)
    assert passes == [[(0, -1), (0, 1)], [(1, -1), (1, 0)], [(1, 6), (2, -1)], [(2, 7)]]
    assert ticks == [3, 3, 3, 3] and set(found) == {"patched", "ends", "noise"}
    assert np.array_equal(found["ends"], np.stack(ends, -1)) and np.abs(ends[0] - ends[1]).min() > 0
    noise = np.array([[100.0 * at + 10 * layer - 1 for layer in range(3)] for at in range(3)]) - ends[0][:, None]
    assert np.array_equal(found["noise"], noise)
    wanted = np.full((3, model.info.n_layers, model.info.n_heads), np.nan)
    for layer, head in [(0, 1), (1, 0), (1, 6), (2, 7)]:
        wanted[:, layer, head] = of_cells([(layer, head)])[0][:, 0] - (noise[:, layer] if dtype == "bfloat16" else 0)
    wanted[1, 1, 6] = ends[0][1]
    assert found["patched"].shape == wanted.shape and np.allclose(found["patched"], wanted, rtol=1e-12, equal_nan=True)


def test_what_another_sweep_edited_alike_in_layer_0_is_not_made_again(
    swept: _Swept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its noise there is measured all the same, and steps not made are told, so that a bar ends full."""
    passes, ticks = [], []
    monkeypatch.setattr(_Swept, "_patched", lambda self, cells: (passes.append(cells), of_cells(cells))[1])
    knocked_out = np.full((3, swept.model.info.n_layers, swept.model.info.n_heads), np.nan)
    knocked_out[:, 0, 1] = [7.0, 8.0, 9.0]
    found = swept.all_heads(HEADS, ticks.append, first={"patched": knocked_out})
    assert passes == [[(0, -1), (1, -1)], [(1, 0), (1, 6)], [(2, -1), (2, 7)]] and sum(ticks) == 3 * len(HEADS)
    assert found["patched"][:, 0, 1].tolist() == [7.0, 8.0, 9.0] and np.isnan(found["patched"][:, 0, 0]).all()
    assert found["patched"][0, 1:, :][~np.isnan(found["patched"][0, 1:, :])].tolist() == [10.0, 16.0, 27.0]
    assert np.isfinite(found["noise"][:, :3]).all()


@pytest.mark.parametrize(
    ("name", "like", "entered"),
    [
        ("z", "knockout", True),
        ("knockout", "z", False),
        ("knockout", "knockout", False),
        ("z", "z", False),
        ("z", "knockout_zero", False),
        ("z", "edge_noise", False),
    ],
)
def test_in_layer_0_a_z_patch_is_its_own_directions_knockout_and_nothing_else(
    name: str, like: str, entered: bool
) -> None:
    one, other = Sweep.named(edit=name), Sweep.named(edit=like)
    assert one.enters_as(other) == entered
    other_places = Sweep.named(edit=like, positions="all")
    assert not one.enters_as(other_places) and not one.enters_as(Sweep.named("computed", edit=like))
    assert not one.enters_as(Sweep.named(direction="noising", edit=like))
    assert Sweep.named(direction="noising").enters_as(Sweep.named(direction="noising", edit="knockout"))


@pytest.mark.parametrize("contrast", [name for name, made in CONTRASTS.items() if made.cuts])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_patches_of_a_joint_sweep_are_those_of_their_own(model: Model, contrast: str, direction: str) -> None:
    """Whatever order they are given in; layer 0 has the knockouts' bits."""
    ready = alike(model, **({"after": "question"} if contrast == "computed" else {}))
    both = {edit: Sweep.named(contrast, direction, edit) for edit in ("z", "knockout")}
    joint = sweep_heads(ready, both, model.info.heads, progress=False)
    for edit, each in both.items():
        alone = sweep_heads(ready, {edit: each}, model.info.heads, progress=False)[edit]
        assert np.allclose(joint[edit].patched, alone.patched, atol=1e-5, rtol=0)
    assert np.array_equal(joint["z"].patched[:, 0], joint["knockout"].patched[:, 0])
    assert not np.array_equal(joint["z"].patched[:, 1], joint["knockout"].patched[:, 1])


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("pretended"), MemoryError()])
def test_a_pass_that_memory_does_not_hold_is_made_in_halves(
    error: Exception, swept: _Swept, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def small(self: _Swept, cells: list[tuple[int, int]]) -> Any:
        sizes.append(len(cells))
        if len(cells) > 2:
            raise error
        return of_cells(cells)

    monkeypatch.setattr(_Swept, "_patched", small)
    swept.rows = 5
    found = swept.all_heads(HEADS, lambda _: None)
    assert sizes == [5, 2, 2, 2, 1] and np.isfinite(found["patched"]).sum() == 3 * len(HEADS)
    monkeypatch.setattr(_Swept, "_patched", lambda *_: (_ for _ in ()).throw(RuntimeError("another reason")))
    with pytest.raises(RuntimeError, match="another reason"):
        swept.all_heads(HEADS, lambda _: None)


def test_a_sweep_of_heads_in_high_layers_measures_the_first_layer_s_noise_too(
    swept: _Swept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Swept, "_patched", lambda self, cells: of_cells(cells))
    noise = swept.all_heads([Head(2, 0)], lambda _: None)["noise"]
    assert np.isfinite(noise).tolist() == [[True, False, True]] * 3


@pytest.mark.parametrize("edit", ["z", "knockout", "q"])
def test_rows_of_a_pass_and_what_is_made_for_a_layer_once(
    edit: str, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, states, replay, of = [], [], type(model).replay, LayerState.of.__func__

    def seen(self: Model, receiving: Any, joins: Any, z: torch.Tensor, **options: Any) -> torch.Tensor:
        rows.append((list(joins), len(z), options["logits_at"]))
        return replay(self, receiving, joins, z, **options)

    monkeypatch.setattr(type(model), "replay", seen)
    seen_state = classmethod(lambda cls, *given, **how: (states.append((given, how)), of(cls, *given, **how))[1])
    monkeypatch.setattr(LayerState, "of", seen_state)
    ready = alike(model, count=2)
    found = patch_heads(model, ready, heads=HEADS, edit=edit, max_rows=1, progress=False)
    read = [len(ready.pairs[0].inserted) - 2]
    assert rows == [([layer], 2, read) for layer in (0, 0, 1, 1, 1, 2, 2)]
    assert [given[2] for given, _ in states] == {"z": [], "knockout": [0, 1, 2], "q": [0, 0, 1, 1, 2, 2]}[edit]
    named = {name for name, each in signature(of).parameters.items() if each.kind is each.KEYWORD_ONLY}
    for (own, _, _), how in states[1::2] if edit == "q" else states:  # a donor's state comes first
        assert own is model and set(how) == named and how["names"] == ["p0", "p1"] and how["span"].sum() == 2 * 4
        assert (how["donor"] is not None) is (edit == "q")
    rows.clear()
    together = patch_heads(model, ready, heads=HEADS, edit=edit, max_rows=7, progress=False)
    assert rows == [([0, 0, 1, 1, 1, 2, 2], 14, read)]
    assert np.allclose(found.patched, together.patched, atol=1e-5, equal_nan=True)
    rows.clear()
    assert patch_heads(model, ready, heads=HEADS, edit=edit, progress=False) and len(rows) == 1, "as many as fit"


def test_an_unedited_row_changes_nothing_and_an_edit_without_effect_is_exactly_none(swept: _Swept) -> None:
    outcomes, same = swept._patched([(0, -1), (1, 2), (2, -1)])
    assert outcomes.shape == same.shape == (3, 3) and same.tolist() == [[True, False, True]] * 3
    receiving = swept._outcomes(swept.receiving.logits)[:, 0]
    assert np.abs(outcomes[:, [0, 2]] - receiving[:, None]).max() < 1e-5
    assert np.abs(outcomes[:, 1] - receiving).min() > 1e-5


def test_segments_before_the_question_change_nothing_and_the_last_positions_a_part(model: Model) -> None:
    ready = prepare(model, pairs_for(model, n_tokens=4, count=2))
    found = {
        positions: patch_heads(model, ready, heads=HEADS, positions=positions, progress=False).effect
        for positions in sweep.POSITIONS
    }
    for nothing in ("prefix", "span"):
        assert not np.nan_to_num(found[nothing]).any()
    assert np.allclose(found["all"], found["question"], atol=1e-4, equal_nan=True)
    assert np.nanmax(np.abs(found["last"] - found["question"])) > 1e-3 and np.nanmax(np.abs(found["last"])) > 1e-4


def test_several_sweeps_at_once_are_those_alone(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    loop = prompt_pairs.over_problems
    monkeypatch.setattr(prompt_pairs, "over_problems", lambda *a, **how: (asked.append(how), loop(*a, **how))[1])
    ready = prepare(model, pairs_for(model, n_tokens=4, count=2), "kl")
    sweeps = {"one": Sweep.named(), "two": Sweep.named("shift", "noising")}
    both = sweep_heads(ready, sweeps, HEADS, progress=False, seed=5, max_rows=3)
    assert list(both) == ["one", "two"]
    labels = [str(head) for head in HEADS]
    (how,) = asked
    assert (how["label"], how["steps"], how["progress"], how["checkpoint"]) == (
        f"patching 4 heads ({ready.insertion})",
        8,
        False,
        None,
    )
    assert how["settings"]["heads"] == labels and how["settings"]["noise"] == "one unedited row per layer"
    assert how["settings"]["sweeps"] == {name: made.settings for name, made in sweeps.items()}
    for name, options in {"one": {}, "two": {"contrast": "shift", "direction": "noising"}}.items():
        alone = patch_heads(model, ready, outcome="kl", heads=HEADS, progress=False, max_rows=3, **options)
        found = both[name]
        for field in ("patched", "receiving", "donor", "noise"):
            values = getattr(found, field)
            assert np.array_equal(values, getattr(alone, field), equal_nan=True) and values.dtype == np.float64
        assert found.settings == alone.settings and found.settings["heads"] == labels and found.seed == 5
        assert {**found.settings, **sweeps[name].settings, **ready.settings} == found.settings
        assert (found.problem_ids, found.heads, found.unit) == (ready.ids, HEADS, "nats per position")
    assert np.allclose(both["one"].donor, 0) and (both["one"].receiving > 0).all()
    assert np.allclose(both["two"].receiving, 0), "noising goes out from the clean run"
    assert sweep_heads(ready, {"one": Sweep.named()}, HEADS[:1], progress=False)["one"].seed == 0
    with pytest.raises(ValueError, match="max_rows must be 1 or more, got 0"):
        sweep_heads(ready, sweeps, HEADS, max_rows=0)


def test_progress_is_shown_unless_it_is_not_wanted(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def nothing(ids: Any, compute: Any, *, progress: bool, **_: Any) -> list[Any]:
        asked.append(progress)
        raise KeyboardInterrupt

    monkeypatch.setattr(prompt_pairs, "over_problems", nothing)
    ready = prepare(model, pairs_for(model, n_tokens=4, count=1))
    for options in ({}, {"progress": False}):
        for begin in (patch_heads, sweep_heads):
            with pytest.raises(KeyboardInterrupt):
                begin(*((model, ready) if begin is patch_heads else (ready, {"one": Sweep.named()}, HEADS)), **options)
    assert asked == [True, True, False, False]


def test_a_model_of_one_layer_in_half_precision_is_swept() -> None:
    weights = tiny_model("llama", word_tokenizer())
    weights.model.layers, weights.config.num_hidden_layers = weights.model.layers[:1], 1
    made = SimpleNamespace(name="shallow", hf_model=weights, tokenizer=word_tokenizer())
    model = load_model(made, backend="bridge", dtype="bfloat16")
    found = patch_heads(model, pairs_for(model, n_tokens=4, count=1), progress=False)
    assert found.patched.shape == (1, 1, 8) and np.isfinite(found.patched).all() and np.abs(found.effect).max() > 0


def test_layers_on_two_devices_join_one_pass(tiny_model_dir: Any) -> None:
    """What the memory gives, up to rounding."""
    folder, parts = tiny_model_dir("llama"), ("embed_tokens", "rotary_emb", "layers.0", "layers.1", "layers.2", "norm")
    places = {f"model.{part}": OTHER if part in parts[3:] else ONE for part in parts} | {"lm_head": OTHER}
    split = load_model(folder, backend="nnsight", device_map=places)
    for edit in ("z", "knockout"):
        found, wanted = (
            patch_heads(each, pairs_for(each, n_tokens=4, count=1), heads=HEADS, edit=edit, max_rows=9, progress=False)
            for each in (split, loaded(folder, "nnsight"))
        )
        assert np.allclose(found.patched, wanted.patched, rtol=1e-3, atol=1e-5, equal_nan=True)


def test_an_outcome_of_one_s_own_is_taken(model: Model) -> None:
    base = OUTCOMES["answer_logprob"]
    own = Outcome(
        "own", "answer", "points", base.reads, lambda logits, pair, clean: 2 * base.value(logits, pair, clean)
    )
    pairs = pairs_for(model, n_tokens=4, count=1)
    twice, once = (patch_heads(model, pairs, outcome=made, heads=HEADS[:1], progress=False) for made in (own, base))
    assert twice.unit == "points" and np.allclose(twice.effect, 2 * once.effect, equal_nan=True, atol=1e-6)
