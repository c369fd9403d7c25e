"""Beside a control insertion: the span's own rows change, and what heads write there is found."""

from typing import Any

import numpy as np
import pytest
from architectures_under_test import folder_of
from circuits_under_test import ByHand
from models_under_test import loaded, pairs_for, planted_problems, problems
from torch import Tensor

import mless_interp as mi
from mless_interp.ground_truth.planted import planted_model
from mless_interp.models.transformer_lens import bridge_from
from mless_interp.prompts.insertions import Insertion
from mless_interp.prompts.pairs import PromptPair, make_pairs

EDGES = [
    "L0H1 -> L1H2 q",
    "L0H1 -> L1H2 k",
    "L0H1 -> L1H2 v",
    "L0H6 -> L2H3",
    "L1H2 -> MLP1",
    "MLP0 -> L1H2",
    "L2H3 -> logits",
]


class BesideByHand(ByHand):
    """The donor is the run of another pair."""

    def __init__(self, model: mi.Model, pair: PromptPair, control: PromptPair) -> None:
        self.control = control.answered()
        super().__init__(model, pair, donor="control", start=pair.spans[0][0])

    def seen(self, name: str, condition: str = "", **edits: Tensor) -> Tensor:
        if condition != "control":
            return super().seen(name, condition, **edits)
        inputs = self.control.condition("inserted")
        return self.model.run(inputs, capture={name: None}, logits_at="none").captured[name]

    def difference(self) -> float:
        """What the insertion does more than the control."""
        other = self.model.run(self.control.condition("inserted"), logits_at=self.read).logits
        return self.value() - float(self._outcome(other))


def both(model: mi.Model, count: int = 2, **place: Any) -> tuple[tuple[PromptPair, ...], tuple[PromptPair, ...]]:
    one, other = (
        make_pairs(model, problems()[:count], Insertion.meaningless(text, 12, **place)) for text in (" /", " ,")
    )
    return one, other


@pytest.mark.slow
@pytest.mark.parametrize("place", [{}, {"after": "question"}])
@pytest.mark.parametrize("name", ["Llama", "GPT-2", "Gemma 2"])
def test_edges_are_those_of_two_whole_passes_each(name: str, place: dict[str, Any]) -> None:
    model = loaded(folder_of(name), "bridge")
    pairs, controls = both(model, **place)
    found = mi.trace_paths(model, pairs, edges=EDGES, control=controls, progress=False)
    back = mi.trace_paths(model, controls, edges=EDGES, control=pairs, direction="noising", progress=False)
    for row, (pair, control) in enumerate(zip(pairs, controls, strict=True)):
        hand = BesideByHand(model, pair, control)
        expected = [hand.edge(edge, parallel=False) for edge in found.edges]
        np.testing.assert_allclose(found.values[row], expected, atol=1e-5)
        np.testing.assert_allclose(found.total[row], hand.difference(), atol=1e-5)
        assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(back.values, -found.values, atol=1e-5)  # the same runs, the other way round
    split = mi.direct_effects(model, pairs, ["L2H3"], control=controls, progress=False)
    np.testing.assert_allclose(split.direct[:, 0], found.values[:, -1], atol=1e-5)


@pytest.mark.parametrize("direction", ["denoising", "noising"])
def test_the_tokens_themselves_carry_everything_and_the_question_nothing(direction: str) -> None:
    model = loaded(folder_of("Llama"), "bridge")
    pairs, controls = both(model)
    options: dict[str, Any] = {
        "sites": ("resid_pre", "resid_post"),
        "n_rows": 2,
        "direction": direction,
        "progress": False,
    }
    found = mi.patch_sites(model, pairs, control=controls, **options)
    at = {name: found.by_site[:, :, :, place] for place, name in enumerate(found.positions)}
    np.testing.assert_allclose(at["span all"][:, 0, 0], found.total, atol=1e-5)
    np.testing.assert_allclose(at["all"][:, 1, -1], found.total, atol=1e-5)
    assert not any(at[name][:, 0, 0].any() for name in ("0", "1", "-2", "-1"))
    assert np.abs(found.total).min() > 1e-3 and found.settings["contrast"] == "replaced"


@pytest.mark.slow
def test_a_writer_in_the_rows_of_the_span_is_found() -> None:
    writer, relay, idle = mi.Head(0, 5), mi.Head(1, 2), mi.Head(0, 7)
    made = planted_model([], [], relayed={relay: writer}, n_heads=8, n_key_value_heads=2, seed=1)
    model = bridge_from(made.hf_model, made.tokenizer, name="writes in the span")
    some = planted_problems(made, 16)
    pairs, controls = (make_pairs(model, some, Insertion.meaningless(text, 20)) for text in (" /", " ,"))
    options: dict[str, Any] = {"outcome": "logit_diff", "progress": False}
    where = mi.map_positions(model, pairs, [writer, relay, idle], n_rows=1, control=controls, **options)
    table = where.table().set_index("label")
    shown = set(table.index[table["p_corrected"] < where.level])
    assert {f"{writer} row span all", f"{relay} row all"} <= shown and f"{relay} row span all" not in shown
    assert not any(name.startswith((str(idle), f"{writer} row -1", f"{writer} row 0")) for name in shown)
    edges = [f"{sender} -> {relay} {part}" for sender in (writer, idle) for part in "qkv"]
    beside = mi.trace_paths(model, pairs, edges=edges, control=controls, **options)
    assert list(map(str, beside.found)) == [f"{writer} -> {relay} v"]
    assert not mi.trace_paths(model, pairs, edges=edges, **options).found  # of the question's rows nothing is seen


def test_controls_that_are_none_are_refused() -> None:
    model = loaded(folder_of("Llama"), "bridge")
    pairs, controls = both(model)
    heads = ["L0H1", "L1H2"]
    for options, words in (
        ({"control": controls[:1]}, "the same problems in the same order"),
        ({"control": controls[::-1]}, "the same problems in the same order"),
        ({"control": pairs}, "the very same tokens"),
        ({"control": pairs_for(model, 13, 2)}, "as many other tokens at the same places"),
        ({"control": controls, "contrast": "total"}, "a contrast of its own"),
        ({"control": controls, "edit": "knockout"}, "a contrast of its own"),
        ({"control": controls, "direction": "both"}, "unknown direction"),
    ):
        with pytest.raises(ValueError, match=words):
            mi.trace_paths(model, pairs, heads, **options)
