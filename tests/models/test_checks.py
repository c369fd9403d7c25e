"""The self-check: each promise that a backend can break is found, and the model that is checked stays as it is."""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from architectures_under_test import KEPT, self_check
from models_under_test import ignores_positions, loaded, lying, planted_here

import mless_interp as mi
from mless_interp.ground_truth.certificate import _self_check
from mless_interp.models.base import Model
from mless_interp.models.checks import TOLERANCE, FailedCheck, _resolution, check_model, probe_tokens
from mless_interp.models.hugging_face import reference_logits
from mless_interp.models.info import BY_LAYERS, Inputs


def shows(change: Any, end: str = "pattern") -> Any:
    """What a run shows at sites of this end is changed."""

    def lie(run: Any, inputs: Inputs, options: dict[str, Any]) -> Any:
        done = run(inputs, **options)
        shown = {name: change(value) if name.endswith(end) else value for name, value in done.captured.items()}
        return SimpleNamespace(captured=shown, logits=done.logits)

    return lie


def obeys_edits(which: Any = lambda name: False) -> Any:
    """Edits of these sites alone."""

    def lie(run: Any, inputs: Inputs, options: dict[str, Any]) -> Any:
        edits = {name: edit for name, edit in (options.get("edits") or {}).items() if which(name)}
        return run(inputs, **{**options, "edits": edits})

    return lie


def times(share: float, run: Any, inputs: Inputs, options: dict[str, Any]) -> Any:
    done = run(inputs, **options)
    return SimpleNamespace(captured=done.captured, logits=done.logits * share)


LOST = shows(lambda p: p * (torch.arange(12) != 5)[:, None], "blocks.2.attn.hook_pattern")
"""A row of the last pattern, as HookedTransformer does where a row of the scores is NaN."""


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        (lambda *run: times(float("nan"), *run), "its logits contain NaN or infinity"),
        (lambda *run: times(0.0, *run), "its logits are all 0"),
        (lambda *run: {}["hook_rot_q"], "it has no 'hook_rot_q'; use another backend"),
        (shows(lambda p: p * 0.99), "the rows of its attention pattern .* off by 0.01"),
        (LOST, "the rows of its attention pattern .* off by 1 "),
        (obeys_edits(), "an edit of its attention pattern is not obeyed"),
        (obeys_edits(lambda name: name.startswith("blocks.0.")), "an edit of its attention pattern is not obeyed"),
        (ignores_positions, "the gap condition differs from the masked one on shared tokens by"),
    ],
)
def test_a_broken_promise_is_named(lie: Any, message: str, tiny_model_dir: Any) -> None:
    with pytest.raises(FailedCheck, match=rf"on backend 'bridge' failed its check: {message}"):
        check_model(lying(loaded(tiny_model_dir("qwen2"), "bridge"), lie))


@pytest.mark.parametrize(
    "lie", [shows(lambda q: q * 1.1, "rot_q"), obeys_edits(lambda name: not name.endswith("rot_q"))]
)
def test_queries_that_are_not_those_of_the_scores_are_found_out(lie: Any, tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir("llama"), "bridge")
    assert model.checks.entering_error < 1e-5 and model.shows_rotated
    found = check_model(lying(model, lie))
    assert not found.shows_rotated and found.entering_error > 1e-3 and found.replay.startswith("whole forward passes")
    assert re.match(r"heads' outputs are off by .* of the largest value", found.entering)


def test_it_asks_what_it_asked_and_tells_what_it_found() -> None:
    assert self_check() == "=== " + KEPT.read_text(encoding="utf-8").strip().split("=== ")[-1]
    made, model = planted_here()
    tokens = probe_tokens(model.info.d_vocab)
    found = check_model(model, reference_logits(made.hf_model, tokens))
    errors = [name for name in vars(found) if name.endswith(("_error", "_difference"))]
    assert len(errors) == 6
    assert all(0 <= getattr(found, name) < 1e-4 for name in errors) and found.tolerance == TOLERANCE["float32"]
    assert found.largest_logit == pytest.approx(float(model.run(tokens).logits.abs().max()))
    assert (found.replay, found.shows_rotated, found.entering) == (BY_LAYERS, True, "") and 0 < found.resolution < 1e-4
    assert check_model(model).logits_difference is None


def test_the_resolution_is_twice_the_change_of_a_tokens_log_probability(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay that raises all logits alike changes none; one that raises the token's alone makes it certain."""
    model, tokens = planted_here()[1], torch.zeros(1, 12, dtype=torch.long)
    before = model.run(tokens).logits.double().log_softmax(-1)[0, 6:11, 0]
    certain = torch.tensor([100.0] + [0.0] * (model.info.d_vocab - 1))
    for raised, moved in ((torch.ones(1), 0), (certain, float(before.square().mean().sqrt()))):
        monkeypatch.setattr(Model, "replay", lambda self, run, *of, by=raised, **at: (run.logits + by).repeat(8, 1, 1))
        assert _resolution(model, tokens) == pytest.approx(2 * moved, abs=1e-5)


def test_logits_that_differ_from_hugging_face_are_refused(tiny_model_dir: Any) -> None:
    model = lying(loaded(tiny_model_dir("llama"), "bridge"), lambda *run: times(0.01, *run))
    with pytest.raises(FailedCheck, match="its logits differ from the plain Hugging Face forward pass by"):
        check_model(model, 1.003 * model.run(probe_tokens(model.info.d_vocab)).logits)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_replay_is_held_against_what_rounding_does_to_the_same_logits(dtype: str) -> None:
    """A share of the largest logit of another run says nothing of it. A wrong one is refused also where rounding is coarse."""
    made = mi.planted_model(readers=[mi.Head(0, 2)], mediators=[mi.Head(1, 4)], n_heads=8, n_key_value_heads=2, seed=7)
    model = mi.load_model(made, backend="bridge", dtype=dtype)
    checks = model.checks
    if dtype == "bfloat16":
        share = TOLERANCE[dtype] * max(checks.largest_logit, 1)
        assert checks.replay_difference > 3 * share, "else this model shows nothing"
    assert checks.replay == BY_LAYERS
    (line,) = [line for line in _self_check(model)[0] if line.name == "S4"]
    assert line.status == "pass"
    attention_out = model.layers.attention_out
    model.layers.attention_out = lambda layer, z: attention_out(layer, z.flip(2))
    said = r"whole forward passes \(continuing layer by layer was off by .* more than rounding"
    assert re.match(said, check_model(model).replay)


def test_a_replay_that_disagrees_is_reported_and_switched_off_where_the_figures_are_taken_over(
    tiny_model_dir: Any,
) -> None:
    model = mi.load_model(tiny_model_dir("llama"), backend="bridge")
    mlp_out = model.layers.mlp_out
    model.layers.mlp_out = lambda layer, resid: mlp_out(layer, resid) * 1.1
    figures = check_model(model)
    assert figures.replay.startswith("whole forward passes (continuing layer by layer was off by")
    assert model.stepper is not None, "the model is left as it was"
    slow = model.checked(figures)
    assert slow.stepper is None and check_model(slow) == figures
    assert slow.checked(None).stepper is not None


def test_longer_prompts_are_checked_when_they_come(tiny_model_dir: Any) -> None:
    model = mi.load_model(tiny_model_dir("llama"), backend="bridge")
    mlp_out, right = model.layers.mlp_out, model.info
    for width, told in ((100, "its check: .* is right on .* up to 12"), (165, "is right on .* up to 160")):
        model.info = replace(right, windows=(*right.windows[1:], width))
        with pytest.raises(mi.ModelError, match=f"{told} tokens, but with an explicit causal mask of"):
            model.checked(check_model(model)).visible(Inputs(torch.zeros(1, 170, dtype=torch.long)))
    model.info = right
    later = model.checked(check_model(model))
    model.layers.mlp_out = lambda layer, resid: 1.1 * mlp_out(layer, resid)
    for n_tokens, whole in ((160, False), (170, True)):
        later.reach(n_tokens)
        assert (later.stepper is None) == whole == ("off by" in later.checks.replay)
