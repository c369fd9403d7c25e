"""ARM against a slow, literal reference; its edits on every backend; the published settings."""

import numpy as np
import pytest
import torch
from conftest import ONE_OF_EACH
from models_under_test import pairs_for

from mless_interp.mechanism import ARM
from mless_interp.metrics.activations import arm_threshold, near_zero_fraction
from mless_interp.models.base import Model
from mless_interp.models.sites import site

EXAMPLE = torch.tensor([[-0.2, -0.05, 0, 0.01], [0.02, 0.1, 0.5, 1]], dtype=torch.float64)  # methods 13


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def activations(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """SiLU of normal numbers, as a gate gives them."""
    return torch.nn.functional.silu(torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)).to(dtype)


def lower_median(values: list[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]


def reference(arm: ARM, a: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The table of methods 1.5, one element at a time, in Python floats."""
    draws = torch.rand(a.shape, generator=generator, dtype=torch.float32)
    groups = [range(len(a))] if arm.scope == "tensor" else [[t] for t in range(len(a))]
    out = a.clone()
    for tokens in groups:
        places = [(t, d) for t in tokens for d in range(a.shape[1])]
        values = [float(a[place]) for place in places]
        sizes = [abs(value) for value in values]
        n = len(values)
        measured = sizes if arm.mad == "absolute" else values
        middle = lower_median(measured)
        mad = max(lower_median([abs(value - middle) for value in measured]), 1e-12)
        eps = 1.4826 * mad * arm.c
        near = sum(size <= eps if arm.reading == "paper_add" else size < eps for size in sizes)
        fraction = arm.c if arm.fraction == "direct" else min(max(arm.k * near / n, arm.p_min), arm.p_max)
        if arm.selection == "quantile":
            bar = np.quantile(sizes, fraction)
            chosen = [i for i in range(n) if sizes[i] <= bar]
        else:
            chosen = sorted(range(n), key=lambda i: (sizes[i], i))[: max(1, round(fraction * n))]
        upper = float(np.percentile(values if arm.upper == "signed" else sizes, arm.p1))
        negative = [value for value in values if value < 0]
        for i in chosen:
            draw = float(draws[places[i]])
            if arm.reading == "paper_add":
                new = values[i] + (min(values) + draw * (upper - min(values)))
            elif values[i] < 0:
                new = -draw * abs(min(negative))
            else:
                new = draw * upper
            out[places[i]] = new
    return out


SETTINGS = [
    {"c": 0.13, "p1": 99.5},
    {"c": 0.32, "p1": 90.0, "p_min": 0.2},
    {"c": 0.001, "p1": 95.0},  # too few near zero: p_min decides
    {"c": 3.0, "p1": 70.0},  # too many: p_max decides
    {"c": 0.2, "p1": 20.0},  # an upper bound below zero
    {"c": 0.2, "p1": 0.0, "k": 2.0, "mad": "signed"},
    {"c": 0.25, "p1": 85.0, "fraction": "direct", "selection": "quantile", "upper": "absolute"},
    {"c": 0.5, "p1": 100.0, "fraction": "direct"},
]


@pytest.mark.parametrize("reading", ["paper_add", "code_replace"])
@pytest.mark.parametrize("scope", ["tensor", "token"])
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: " ".join(f"{k}={v}" for k, v in s.items()))
def test_it_equals_the_slow_reference_element_by_element(reading: str, scope: str, settings: dict) -> None:
    arm = ARM(reading=reading, scope=scope, **settings)
    tied = activations(6, 10).mul(4).round().div(4)  # few different values: many ties, many zeros of both signs
    equal = [torch.full((4, 25), value, dtype=torch.float64) for value in (0.0, -1.5)]
    for seed, a in enumerate([tied, *equal, *(activations(*shape) for shape in [(7, 12), (1, 33), (5, 20), (4, 1)])]):
        torch.testing.assert_close(
            arm.redistribute(a, generator=seeded(seed)), reference(arm, a, seeded(seed)), rtol=1e-12, atol=1e-14
        )


def test_the_worked_example_of_methods_13_changes_only_the_zero() -> None:
    arm = ARM(c=0.13, p1=95, reading="code_replace")
    threshold = float(arm_threshold(EXAMPLE.flatten(), c=0.13))
    assert threshold == pytest.approx(0.0096369, abs=1e-8)
    assert near_zero_fraction(EXAMPLE.flatten(), threshold=threshold) == 0.125
    selected, lower, upper = arm._plan(EXAMPLE)
    assert upper.item() == pytest.approx(0.825) and lower.item() == 0.2
    assert selected.nonzero().tolist() == [[0, 2]]
    for seed in range(50):
        made = arm.redistribute(EXAMPLE, generator=seeded(seed))
        same = made == EXAMPLE
        assert same.sum() == 7 and 0 <= made[0, 2] < 0.825


@pytest.mark.parametrize(("dtype", "reading"), [(torch.float32, "paper_add"), (torch.bfloat16, "code_replace")])
def test_shape_dtype_and_input_are_kept_and_only_the_selected_change(dtype: torch.dtype, reading: str) -> None:
    a = activations(9, 40, dtype=dtype)
    before = a.clone()
    arm = ARM(c=0.3, p1=99, reading=reading)
    state = torch.get_rng_state()
    made = arm.redistribute(a, generator=seeded())
    assert torch.equal(a, before) and torch.equal(torch.get_rng_state(), state)
    assert made.dtype == dtype and made.shape == a.shape and made.data_ptr() != a.data_ptr()
    selected = arm._plan(a.float())[0]
    assert torch.equal(made[~selected], a[~selected])
    assert (made != a)[selected].float().mean() > (0.9 if dtype in (torch.bfloat16, torch.float16) else 0.999)


POSTS = [site(layer, "mlp.hook_post") for layer in range(3)]


@pytest.mark.parametrize(("architecture", "backend"), ONE_OF_EACH)
def test_edits_put_the_redistributed_gate_into_the_product(backend: str, model: Model) -> None:
    inputs = pairs_for(model)[0].condition("inserted")
    arm = ARM(c=0.3, p1=99, layers=(0, 2))
    pre, linear = site(0, "mlp.hook_pre"), site(0, "mlp.hook_pre_linear")
    plain = model.run(inputs.tokens, capture={pre: None, linear: None, **dict.fromkeys(POSTS)}).captured
    edits = arm.edits(model, keys=["p0"])
    edited = model.run(inputs.tokens, edits=edits, capture=dict.fromkeys(POSTS))
    gate = model.gated_mlp(0).activation(plain[pre])[0]
    made = arm.redistribute(gate, generator=arm.generator("p0"))
    torch.testing.assert_close(edited.captured[POSTS[0]][0], made * plain[linear][0], rtol=1e-5, atol=1e-6)
    unchanged = ~arm._plan(gate)[0]
    assert torch.equal(edited.captured[POSTS[0]][0][unchanged], plain[POSTS[0]][0][unchanged])
    assert not torch.equal(edited.captured[POSTS[1]], plain[POSTS[1]])  # what layer 0 wrote reaches layer 1
    again = model.run(inputs.tokens, edits=edits, capture=dict.fromkeys(POSTS))
    assert all(torch.equal(again.captured[name], edited.captured[name]) for name in POSTS)
    after = model.run(inputs.tokens, capture=dict.fromkeys(POSTS)).captured
    assert all(torch.equal(after[name], plain[name]) for name in POSTS)  # nothing stays behind
    with pytest.raises(ValueError, match="layer 7 is out of range"):
        ARM(c=0.1, p1=99, layers=(7,)).edits(model, keys=["p0"])
