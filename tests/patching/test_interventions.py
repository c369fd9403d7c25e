"""Interventions by their formulas, as sets of heads in one run, and while generating."""

import itertools
from typing import Any

import pytest
import torch

from mless_interp.models.info import AttentionRule
from mless_interp.patching.interventions import (
    EdgeNoise,
    Gate,
    Knockout,
    KnockoutZero,
    LayerState,
    MatchedMassKnockout,
    PatchInput,
    PatchZ,
    RerouteToSink,
    RerouteUniform,
    RestoreScale,
)


def state_by_hand(**changes: Any) -> LayerState:
    """One head, one row: pattern (0.1, 0.2, 0.3, 0.4) over (sink, span, other, itself), values 1, 10, 100, 1000."""
    pattern = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    parts: dict[str, Any] = {
        "q": torch.ones(1, 1, 1, 1, dtype=torch.float64),
        "k": pattern.log().view(1, 4, 1, 1),
        "v": torch.tensor([1.0, 10.0, 100.0, 1000.0], dtype=torch.float64).view(1, 4, 1, 1),
        "z": torch.zeros(1, 1, 1, 1, dtype=torch.float64),
        "visible": torch.ones(1, 1, 1, 4, dtype=torch.bool),
        "unmasked": torch.ones(1, 1, 1, 4, dtype=torch.bool),
        "rule": AttentionRule(1.0),
        "span": torch.tensor([[False, True, False, False]]),
    }
    return LayerState(**parts | changes)


def value(intervention: Any, state: LayerState | None = None) -> float:
    return float(intervention(state if state is not None else state_by_hand()))


def test_the_formulas_by_hand() -> None:
    state = state_by_hand()
    assert float(state.mixed(state.pattern())) == pytest.approx(0.1 + 2 + 30 + 400)
    assert value(Gate(1.0)) == pytest.approx(432.1) and value(Gate(0.0)) == value(Knockout())
    assert value(Gate(0.5)) == pytest.approx((0.1 + 1 + 30 + 400) / 0.9)
    with pytest.raises(ValueError, match=r"between 0 and 1, got 1\.5"):
        Gate(1.5)
    # only "other" may be taken from: 0.2 of its 0.3, and the row renormalised
    assert value(MatchedMassKnockout()) == pytest.approx((0.1 + 2 + 10 + 400) / 0.8)


def test_a_learned_sink_keeps_its_share() -> None:
    """Its weight, e^0, stands beside the four of the tokens."""
    state = state_by_hand(rule=AttentionRule(1.0, sinks=torch.zeros(1, dtype=torch.float64)))
    assert value(Knockout(), state) == pytest.approx((0.1 + 30 + 400) / 1.8)
    assert value(Gate(0.5), state) == pytest.approx((0.1 + 1 + 30 + 400) / 1.9)
    assert value(MatchedMassKnockout(), state) == pytest.approx((0.1 + 2 + 10 + 400) / 1.8)


def test_what_a_row_cannot_see() -> None:
    hidden = torch.tensor([[[[True, False, True, True]]]])
    assert value(EdgeNoise(), state_by_hand(visible=hidden)) == pytest.approx(432.1), "opened for this head alone"
    window = torch.tensor([[[[False, False, True, True]]]])
    shut = state_by_hand(visible=window, unmasked=window)
    assert value(EdgeNoise(), shut) == pytest.approx((30 + 400) / 0.7), "what a window hides stays hidden"
    window = torch.tensor([[[[False, True, True, True]]]])
    sinkless = RerouteToSink()(state_by_hand(visible=window, unmasked=window))
    assert torch.isnan(sinkless).all(), "NaN, never no change: the span's attention has nowhere to go"
    span = torch.tensor([[False, True, True, False]])
    assert torch.isnan(MatchedMassKnockout()(state_by_hand(span=span))).all(), "the others hold too little"


def test_patches_take_from_the_donor() -> None:
    donor = state_by_hand(z=torch.full((1, 1, 1, 1), 7.0, dtype=torch.float64), v=state_by_hand().v * 2)
    state = state_by_hand(donor=donor)
    assert value(PatchZ(), state) == 7
    assert value(RestoreScale(), state) == pytest.approx(7 + 2)
    assert value(PatchInput("v"), state) == pytest.approx(864.2)
    assert value(PatchInput("q"), state) == pytest.approx(432.1)
    assert PatchInput("v").label == "input(part=v)" and PatchZ().label == "z" and PatchZ() == PatchZ() != Knockout()


def test_matched_mass_is_drawn_for_a_problem_by_its_name() -> None:
    """The same alone and in a batch, at whatever place; another for another name, draw, seed or layer."""
    n = 12
    generator = torch.Generator().manual_seed(0)
    scores, values = torch.rand(1, n, 1, 1, generator=generator), torch.rand(1, n, 1, 1, generator=generator)
    span = torch.zeros(1, n, dtype=torch.bool)
    span[:, 3:5] = True

    def taken(*names: str, layer: int = 0, **options: int) -> list[float]:
        seen = torch.ones(len(names), 1, 1, n, dtype=torch.bool)
        given: dict[str, Any] = {"k": scores, "v": values, "q": torch.ones(1, 1, 1, 1), "z": torch.zeros(1, 1, 1, 1)}
        given = {name: each.expand(len(names), *each.shape[1:]) for name, each in (given | {"span": span}).items()}
        state = state_by_hand(**given, visible=seen, unmasked=seen, layer=layer, names=names)
        return MatchedMassKnockout(**options)(state).flatten().tolist()

    a, b = taken("a", "b")
    assert taken("a") == [a] and taken("b", "a") == [b, a]
    others = [b, *taken("a", layer=1), *taken("a", seed=1), *taken("a", draw=1)]
    assert len({a, *others}) == 5


def rows_by_hand(kind: str, row: torch.Tensor, v: torch.Tensor, span: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """One row's head output, from its attention `[src]`, its head's values `[src, d]`, the span and what it sees."""
    mass, kept = row[span].sum(), torch.where(span, 0.0, row)
    sink = int((~span).int().argmax())
    match kind:
        case "knockout":
            changed = kept / kept.sum() if kept.sum() > 0 else row
        case "knockout_zero":
            changed = kept
        case "reroute_to_sink":
            changed = kept + mass * torch.nn.functional.one_hot(torch.tensor(sink), len(row))
            changed = changed if seen[sink] else torch.full_like(row, torch.nan)
        case "reroute_uniform":
            others = seen & ~span
            changed = kept + mass * others / max(1, int(others.sum()))
        case "restore_scale":
            changed = torch.where(span, row, 0.0)
    return changed @ v


@pytest.mark.parametrize(
    "intervention", [Knockout(), KnockoutZero(), RerouteToSink(), RerouteUniform(), RestoreScale()]
)
def test_every_row_of_every_head_is_edited_by_itself(intervention: Any) -> None:
    """Two prompts with spans of their own, four query heads over two key-value heads, the last five of seven rows."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    span = torch.tensor([[0, 0, 1, 1, 0, 0, 0], [1, 1, 1, 0, 0, 0, 0]], dtype=torch.bool)
    visible = torch.ones(7, 7, dtype=torch.bool).tril()[2:].expand(2, 1, 5, 7)
    parts: dict[str, Any] = {"q": draw(2, 5, 4, 3), "k": draw(2, 7, 2, 3), "v": draw(2, 7, 2, 3), "z": draw(2, 5, 4, 3)}
    parts |= {"visible": visible, "unmasked": visible, "span": span}
    state = state_by_hand(**parts, donor=state_by_hand(**{**parts, "z": draw(2, 5, 4, 3)}))
    found, pattern = intervention(state), state.pattern()
    for prompt, head, row in itertools.product(range(2), range(4), range(5)):
        attention, values = pattern[prompt, head, row], state.v[prompt, :, head // 2]
        expected = rows_by_hand(intervention.name, attention, values, span[prompt], visible[prompt, 0, row])
        if intervention.name == "restore_scale":
            expected = expected + state.donor.z[prompt, row, head]
        torch.testing.assert_close(found[prompt, row, head], expected, equal_nan=True)


def test_matched_mass_takes_as_much_from_keys_that_may_be_taken_from() -> None:
    """Values that are the unit vectors show the pattern itself."""
    generator = torch.Generator().manual_seed(1)
    n = 9
    span = torch.tensor([0, 1, 1, 0, 0, 0, 0, 0, 0], dtype=torch.bool)[None]
    visible = torch.ones(n, n, dtype=torch.bool).tril()[5:].expand(1, 1, 4, n)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    parts: dict[str, Any] = {"q": draw(1, 4, 2, 3), "k": draw(1, n, 1, 3), "z": draw(1, 4, 2, n), "visible": visible}
    state = state_by_hand(**parts, unmasked=visible, span=span, v=torch.eye(n, dtype=torch.float64).view(1, n, 1, n))
    before, after = state.pattern()[0], MatchedMassKnockout()(state)[0].transpose(0, 1)
    mass = before[..., span[0]].sum(-1)
    own = torch.arange(5, 9)
    reached = 0
    for head, row in itertools.product(range(2), range(4)):
        others = torch.arange(3, int(own[row]))
        if before[head, row, others].sum() < mass[head, row]:
            assert after[head, row].isnan().all()
            continue
        reached += 1
        left = after[head, row] * (1 - mass[head, row])
        untouched = [0, 1, 2, *range(int(own[row]), n)]
        torch.testing.assert_close(left[untouched], before[head, row, untouched])
        taken = before[head, row, others] - left[others]
        assert (taken > -1e-12).all() and float(taken.sum()) == pytest.approx(float(mass[head, row]))
        assert ((taken > 1e-12) & (left[others] > 1e-12)).sum() <= 1, "only the last key is taken from in part"
    assert reached >= 2
