"""Every metric of attention patterns takes probabilities and refuses everything else that could pass for them."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any

import pytest
import torch

from mless_interp import metrics
from mless_interp.metrics.distances import renormalised_rows
from mless_interp.metrics.patterns import with_sink_key

NAN = float("nan")
GOOD = torch.tensor([[1.0, 0.0, 0.0], [0.6, 0.4, 0.0], [0.5, 0.3, 0.2]])
WRONG = {
    "negative": ([0.9, -0.3, 0.4], "negative entry"),
    "above 1": ([1.5, -0.5, 0.0], "negative entry"),
    "too little": ([0.5, 0.3, 0.1], "must sum to 1"),
    "too much": ([0.5, 0.5, 0.5], "must sum to 1"),
    "one NaN": ([NAN, 0.5, 0.5], "must sum to 1"),
    "infinite": ([float("inf"), 0.5, 0.5], "must sum to 1"),
}
OTHERS: dict[str, Any] = {
    "span": torch.tensor([False, True, False]),
    "sink": torch.tensor([True, False, False]),
    "values": torch.eye(3),
    "min_rows": 1,
}


def takes(parameter: str) -> list[Callable[..., Any]]:
    found = []
    for module in pkgutil.iter_modules(metrics.__path__):
        made = importlib.import_module(f"{metrics.__name__}.{module.name}")
        found += [
            each
            for name, each in inspect.getmembers(made, inspect.isfunction)
            if each.__module__ == made.__name__ and not name.startswith(("_", "x_"))  # x_: what mutation testing adds
            if next(iter(inspect.signature(each).parameters), None) == parameter
        ]
    return found


NO_PROBABILITIES_NEEDED = {"row_positions", "renormalised_rows", "prepared", "with_sink_key"}
OF_A_PATTERN = [each for each in takes("pattern") if each.__name__ not in NO_PROBABILITIES_NEEDED]
OF_ROWS = takes("p")


def asked(metric: Callable[..., Any]) -> dict[str, Any]:
    """What a metric needs beside the pattern."""
    _, *parameters = inspect.signature(metric).parameters.values()
    return {
        each.name: OTHERS[each.name] for each in parameters if each.default is each.empty or each.name == "min_rows"
    }


def test_there_are_such_metrics() -> None:
    assert len(OF_A_PATTERN) >= 14 and len(OF_ROWS) == 4 and len(takes("patterns")) == 2


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("metric", OF_A_PATTERN, ids=lambda metric: metric.__name__)
def test_a_row_that_is_no_probability_is_refused(metric: Callable[..., Any], wrong: str) -> None:
    row, message = WRONG[wrong]
    metric(GOOD, **asked(metric))
    with pytest.raises(ValueError, match=message):
        metric(torch.cat([GOOD[:2], torch.tensor([row])]), **asked(metric))


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("metric", takes("patterns"), ids=lambda metric: metric.__name__)
def test_layers_of_them_are_refused_too(metric: Callable[..., Any], wrong: str) -> None:
    row, message = WRONG[wrong]
    metric(torch.stack([GOOD, GOOD]), **asked(metric))
    with pytest.raises(ValueError, match=message):
        metric(torch.stack([GOOD, torch.cat([GOOD[:2], torch.tensor([row])])]), **asked(metric))


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("metric", OF_ROWS, ids=lambda metric: metric.__name__)
def test_distances_are_of_probabilities(metric: Callable[..., Any], wrong: str) -> None:
    row, message = WRONG[wrong]
    for pair in ((GOOD[2], torch.tensor(row)), (torch.tensor(row), GOOD[2])):
        with pytest.raises(
            ValueError, match=message.replace("negative entry", "probabilities, but one has a negative entry")
        ):
            metric(*pair)


@pytest.mark.parametrize("metric", OF_ROWS, ids=lambda metric: metric.__name__)
def test_a_row_that_is_undefined_altogether_stays_so(metric: Callable[..., Any]) -> None:
    nothing_left = renormalised_rows(torch.tensor([[0.0, 1.0, 0.0]]), alignment=torch.tensor([0, 2]))
    assert metric(nothing_left, torch.tensor([[0.5, 0.5]])).isnan().all()


@pytest.mark.parametrize("metric", OF_A_PATTERN, ids=lambda metric: metric.__name__)
def test_a_negative_zero_of_rounding_is_zero(metric: Callable[..., Any]) -> None:
    rounded = GOOD.clone()
    rounded[2, 2] = -1e-7
    rounded[2, 0] += 0.2
    found = metric(rounded, **asked(metric))
    for value in found if isinstance(found, tuple) else [found]:
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.ndim == 1:
            clean = metric(rounded.clamp(min=0), **asked(metric))
            clean = clean[0] if isinstance(clean, tuple) else clean
            torch.testing.assert_close(value, clean, equal_nan=True)
            break


@pytest.mark.parametrize("wrong", [name for name in WRONG if name != "too little"])
def test_what_a_learned_sink_lacks_is_never_less_than_nothing(wrong: str) -> None:
    row, _ = WRONG[wrong]
    assert with_sink_key(GOOD / 2)[0][:, -1].tolist() == [0.5] * 3
    with pytest.raises(ValueError, match=r"shares of at most 1 together, but row \[2\]"):
        with_sink_key(torch.cat([GOOD[:2], torch.tensor([row])]))
