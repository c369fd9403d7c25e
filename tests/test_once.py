"""What formulas share is computed once inside `computed_once`, and never kept outside."""

import torch

from mless_interp.metrics.patterns import computed_once, once

CALLS: list[int] = []


@once
def doubled(x: torch.Tensor, *, by: int = 2) -> torch.Tensor:
    CALLS.append(by)
    return x * by


def test_the_same_arguments_are_computed_once_inside_and_each_time_outside() -> None:
    CALLS.clear()
    x, y = torch.ones(2), torch.ones(2)
    with computed_once():
        first, again, other, more = doubled(x), doubled(x), doubled(y), doubled(x, by=3)
        assert first is again and other is not first and float(more[0]) == 3
        with computed_once():
            assert doubled(x) is not first, "blocks within blocks keep their own"
        assert doubled(x) is first
    assert CALLS == [2, 2, 3, 2]
    assert doubled(x) is not first and doubled(x) is not doubled(x)
    with computed_once():  # a tensor that is gone is not taken for another
        assert [float(doubled(torch.full((1,), value))) for value in (1.0, 2.0, 3.0, 4.0)] == [2.0, 4.0, 6.0, 8.0]
