"""What rounding does to a log-probability, measured: which steps are made, where, and how they are summed up."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from models_under_test import loaded

from mless_interp.models.base import Model
from mless_interp.models.checks import _resolution
from mless_interp.models.inputs import Recording

TOKENS = torch.arange(3, 16)[None]


class Seen:
    """A model of a pretended depth, whose replays give numbers that are known."""

    def __init__(self, model: Model, n_layers: int) -> None:
        self.joins: list[int] = []
        seen = self

        class Pretended(type(model)):  # type: ignore[misc]
            def record(self, inputs: Any, *, start: int, logits_at: Any = "none") -> Recording:
                seen.start, seen.read = start, logits_at
                seen.own = own = model.record(inputs, start=start, logits_at=logits_at)
                deep = tuple(own.z[layer % len(own.z)] for layer in range(n_layers))
                return replace(own, z=deep)

            def replay(self, receiving: Recording, layer: Any, z: torch.Tensor, *, logits_at: Any) -> torch.Tensor:
                seen.joins, seen.z, seen.replayed = list(layer), z, logits_at
                shape = (len(seen.joins), len(logits_at), model.info.d_vocab)
                seen.logits = torch.randn(shape, generator=torch.Generator().manual_seed(0))
                return seen.logits

        self.model = object.__new__(Pretended)
        self.model.__dict__.update(model.__dict__)
        self.model.info = replace(model.info, n_layers=n_layers)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("n_layers", "layers"), [(12, [0, 4, 8, 11]), (3, [0, 1, 2]), (1, [0])])
def test_heads_outputs_are_moved_by_their_smallest_step(
    n_layers: int, layers: list[int], dtype: str, tiny_model_dir: Any
) -> None:
    model = loaded(tiny_model_dir("llama"), "bridge", dtype)
    seen = Seen(model, n_layers)
    found = _resolution(seen.model, TOKENS)
    assert seen.joins == [layer for layer in layers for _ in range(4)]
    assert seen.start == 6 and seen.read == seen.replayed == list(range(6, 12)), "every position that predicts a token"
    step = torch.finfo(getattr(torch, dtype)).eps
    rows = seen.z.unflatten(0, (len(layers), 4))
    for layer, (kept, *moved) in zip(layers, rows, strict=True):
        own = seen.own.z[layer % len(seen.own.z)][0]
        assert kept.dtype == own.dtype and torch.equal(kept, own), "put back as it is"
        for z in moved:
            share = ((z - own) / own)[own != 0].double()
            assert (share.abs() < 1.34 * step).all() and (share.abs() > 0.49 * step).all()
            assert 0.4 < (share > 0).double().mean() < 0.6, "up as often as down"
        assert not torch.equal(moved[0], moved[1])
    off = []
    for row in range(len(seen.joins)):
        for at, place in enumerate(seen.read):
            token = int(TOKENS[0, place + 1])
            new, old = (x.double().log_softmax(-1)[token] for x in (seen.logits[row, at], seen.own.logits[0, at]))
            off.append(float(new - old) ** 2)
    assert found == pytest.approx(2 * (sum(off) / len(off)) ** 0.5, rel=1e-9)
    assert found == _resolution(seen.model, TOKENS), "the same each time"


def test_the_same_numbers_put_back_leave_a_resolution_of_a_few_steps(tiny_model_dir: Any) -> None:
    for dtype in ("float32", "bfloat16"):
        model = loaded(tiny_model_dir("llama"), "bridge", dtype)
        assert 0 < _resolution(model, TOKENS) < 100 * torch.finfo(getattr(torch, dtype)).eps
