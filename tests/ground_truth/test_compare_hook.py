"""A user's own hook beside the exact edit: the usual silent errors of this field are each named."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from architectures_under_test import folder_of
from conftest import needs_hooked_transformer
from models_under_test import loaded

import mless_interp as mi
from mless_interp.ground_truth.compare_hook import MIXED
from mless_interp.patching.interventions import INTERVENTIONS, run_edits

QUESTIONS = ("Anna has 3 apples. How many?", "Ben had 9 coins and lost 2 of them. How many coins does Ben have now?")
compare = partial(mi.compare_hook, progress=False)


@pytest.fixture(scope="module", params=["bridge", "nnsight"])
def case(request: pytest.FixtureRequest, tiny_model_dir: Callable[[str], Path]) -> tuple[mi.Model, Any]:
    return _case(tiny_model_dir, request.param)


def _case(tiny_model_dir: Callable[[str], Path], backend: str) -> tuple[mi.Model, Any]:
    model = loaded(tiny_model_dir("qwen2"), backend)
    problems = [mi.Problem(id=f"p{i}", question=q, answer="7") for i, q in enumerate(QUESTIONS)]
    return model, mi.make_pairs(model, problems, mi.Insertion.meaningless(" /", n_tokens=6))


def projection(hf: Any, layer: int = 1) -> Any:
    return hf.model.layers[layer].self_attn.o_proj


def ablation(model: mi.Model, heads: Any, rows: slice = slice(None), *, factor: float = 0.0, layer: int = 1) -> Any:
    """Hooks of PyTorch's own, as many write them: the input of the output projection, sliced by heads."""
    d = model.info.d_head

    def before(module: Any, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        changed = args[0].clone()
        for head in heads:
            changed[:, rows, head * d : (head + 1) * d] *= factor
        return (changed,)

    return lambda library: projection(model.hf_model, layer).register_forward_pre_hook(before)


def sliced_output(model: mi.Model) -> Any:
    def after(module: Any, args: Any, out: torch.Tensor) -> torch.Tensor:
        changed = out.clone()
        changed[..., : model.info.d_head] = 0
        return changed

    return lambda library: [projection(model.hf_model).register_forward_hook(after)]


def test_the_exact_ablation_is_as_meant_and_nothing_is_left_behind(case: Any) -> None:
    model, pairs = case
    found = compare(model, pairs, ablation(model, [0, 2]), ["L1H0", "L1H2"])
    assert found.headline() == "Yes, this is the edit 'zero' of L1H0, L1H2, in 2 of 2 problems."
    assert found.passed and (found.error < 1e-4).all()
    assert found.settings == {"model": model.info.name, "backend": model.info.backend}
    assert model.hooks == ()


def test_each_usual_error_is_named(tiny_model_dir: Callable[[str], Path]) -> None:
    model, pairs = _case(tiny_model_dir, "bridge")
    first = ablation(model, [0], layer=0)
    coordinates = f"it changes coordinates 0 to {model.info.d_head - 1} of blocks.1.hook_attn_out, {MIXED}"
    behind = lambda library: [first(library), *sliced_output(model)(library)]  # noqa: E731
    unembedding = lambda library: model.hf_model.lm_head.register_forward_hook(lambda module, given, made: 2 * made)  # noqa: E731
    for hook, heads, words in (
        (ablation(model, [1]), ["L1H0"], "it changes L1H1, not L1H0"),
        (ablation(model, [0], slice(-1, None)), ["L1H0"], "it changes the last row only"),
        (ablation(model, [0, 1]), ["L1H0"], "it changes L1H0, L1H1, not L1H0"),
        (ablation(model, [0], slice(4, 9)), ["L1H0"], "it changes rows 4 to 8 only"),
        (ablation(model, [0], slice(4, 9, 2)), ["L1H0"], "it changes 3 rows only"),
        (ablation(model, [0], slice(4, 5)), ["L1H0"], "it changes row 4 only"),
        (ablation(model, [0]), ["L2H1"], "it changes L1H0, not L2H1"),
        (ablation(model, [0], factor=0.5), ["L1H0"], "it gives L1H0 other values than that edit"),
        (unembedding, ["L1H0"], "it leaves L1H0 as it is; it changes the logits alone"),
        (ablation(model, [0], factor=1.0), ["L1H0"], "it has no effect"),
        (sliced_output(model), ["L1H0"], f"it leaves L1H0 as it is; {coordinates}"),
        # behind a right edit of layer 0 a head of layer 1 is left as it is, or what attention adds there is changed, too
        (first, ["L0H0", "L1H2"], "it gives L1H2 other values than that edit"),
        (behind, ["L0H0"], coordinates),
    ):
        found = compare(model, pairs[:1], hook, heads)
        assert found.found == (words,) and not found.passed, (words, found.found)
        assert found.error[0] > 1e-3 and found.headline().startswith("No, this is not")
    assert model.hooks == ()


def test_a_knockout_hides_the_inserted_tokens_alone_where_they_stand_at_two_places(case: Any) -> None:
    model, pairs = case
    parts = mi.Insertion.meaningless(" /", n_tokens=6, before="question", after="question")
    (pair,) = mi.make_pairs(model, [pairs[0].problem], parts)
    span = pair.span_mask[None]
    assert int(span.sum()) == 6 < pair.span[1] - pair.span[0]
    inputs, name = pair.condition("inserted"), "blocks.1.attn.hook_z"
    edits = run_edits(model, inputs, INTERVENTIONS["knockout"], ["L1H0"], span=span, rows=~span, start=0)
    z = model.run(inputs, edits=edits, capture={name: None}).captured[name][0, :, 0]
    width = model.info.d_head

    def hide(module: Any, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (torch.cat([z[None].to(args[0].dtype), args[0][..., width:]], -1),)

    add = lambda library: projection(model.hf_model).register_forward_pre_hook(hide)  # noqa: E731
    assert compare(model, [pair], add, ["L1H0"], edit="knockout").passed


def test_what_is_found_in_some_problems_only_is_counted(case: Any) -> None:
    model, pairs = case
    last = len(pairs[0].inserted) - 1
    absolute = ablation(model, [0], slice(last, last + 1))
    found = compare(model, pairs, absolute, ["L1H0"], edit=lambda z: torch.cat([z[:, :-1], 0 * z[:, -1:]], 1))
    other = "it gives L1H0 other values than that edit"
    assert found.headline() == f"No, this is not your edit of L1H0; in 1 of 2 problems {other}."
    assert found.details() == ["In 1 of 2: as meant."]
    table = {"found": ["as meant", other], "k": [1, 1], "n": [2, 2], "error": [*found.error]}
    assert found.table().to_dict("list") == table and found.error[0] < 1e-4 < found.error[1]


def test_a_hook_that_raises_leaves_nothing_behind(tiny_model_dir: Callable[[str], Path]) -> None:
    model, pairs = _case(tiny_model_dir, "bridge")

    def bad(library: Any) -> Any:
        ablation(model, [0])(library)
        raise RuntimeError("mine")

    for hook, edit, error, words in (
        (bad, "zero", RuntimeError, "mine"),
        (5, "zero", TypeError, "hook must be .* got 5"),
        (ablation(model, [0]), "mean", ValueError, "unknown edit '.*'; choose one of zero"),
    ):
        with pytest.raises(error, match=words):
            compare(model, pairs, hook, ["L1H0"], edit=edit)
        assert model.hooks == ()


@needs_hooked_transformer
def test_hooks_of_transformer_lens_by_name(tiny_model_dir: Callable[[str], Path]) -> None:
    model, pairs = _case(tiny_model_dir, "hooked_transformer")

    def zero(value: torch.Tensor, hook: Any) -> torch.Tensor:
        value[:, :, 0] = 0
        return value

    at_z = [("blocks.1.attn.hook_z", zero)]
    assert compare(model, pairs, at_z, ["L1H0"]).passed
    assert compare(model, pairs, lambda library: library.hooks(fwd_hooks=at_z), ["L1H0"]).passed
    result = [("blocks.1.attn.hook_result", zero)]
    never = compare(model, pairs, result, ["L1H0"])
    assert "nothing passes at blocks.1.attn.hook_result (it needs set_use_attn_result(True))" in never.headline()
    passing = compare(model, pairs, [("blocks.1.hook_attn_in", zero)], ["L1H0"]).found
    assert passing == ("it has no effect: nothing passes at blocks.1.hook_attn_in",) * 2
    model.underlying.set_use_attn_result(True)
    assert compare(model, pairs, result, ["L1H0"]).passed, "behind z, it is the same edit"
    model.underlying.set_use_attn_result(False)
    with pytest.raises(ValueError, match="no hook point 'blocks.1.attn.hook_zz' .did you mean blocks.1.attn.hook_z"):
        compare(model, pairs, [("blocks.1.attn.hook_zz", zero)], ["L1H0"])
    start, end = pairs[0].span

    def blind(pattern: torch.Tensor, hook: Any, first: int) -> torch.Tensor:
        shown = pattern.clone()
        shown[:, 0, first:, start:end] = 0
        return shown / shown.sum(-1, keepdim=True)

    own_rows = "it gives L1H0 other values than that edit in rows of the inserted tokens"
    for first, words in ((end, "as meant"), (0, own_rows)):
        hook = [("blocks.1.attn.hook_pattern", partial(blind, first=first))]
        knocked = compare(model, pairs, hook, ["L1H0"], edit="knockout")
        assert all(found.startswith(words) for found in knocked.found), knocked.found


def test_a_capture_is_recognised(case: Any) -> None:
    model, pairs = case
    hf, d = model.hf_model, model.info.d_head

    def captured(prompts: list[list[int]], part: slice, *, before: bool = True) -> list[torch.Tensor]:
        longest, kept = max(map(len, prompts)), []
        ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
        shown = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        keep = lambda module, args, out: kept.append((args[0] if before else out)[..., part].detach())  # noqa: E731
        handle = projection(hf).register_forward_hook(keep)
        with torch.no_grad():
            hf(ids, attention_mask=shown, position_ids=(shown.cumsum(-1) - 1).clamp(min=0))
        handle.remove()
        return list(kept[0])

    def alone(part: slice, **how: Any) -> Callable[[list[list[int]]], list[torch.Tensor]]:
        return lambda prompts: [captured([prompt], part, **how)[0] for prompt in prompts]

    first, second, n, wide = slice(0, d), slice(d, 2 * d), len(pairs[0].inserted), model.info.d_model
    last, added = slice(wide - d, wide), f"of blocks.1.hook_attn_out, {MIXED}"
    assert mi.compare_capture(model, pairs, alone(first), "L1H0").passed
    for capture, words in (
        (alone(second), "it is z of L1H1"),
        (alone(first, before=False), f"it is coordinates 0 to {d - 1} {added}"),
        (alone(last, before=False), f"it is coordinates {wide - d} to {wide - 1} {added}"),
        (alone(slice(0, 2 * d)), f"it has shape [{n}, {2 * d}], where [{n}, {d}] is meant"),
        (lambda ids: [alone(second)(ids)[0][:-1]], f"it has shape [{n - 1}, {d}], where [{n}, {d}] is meant"),
        (lambda ids: [alone(second)(ids)[0][None]], f"it has shape [1, {n}, {d}], where [{n}, {d}] is meant"),
        (lambda ids: [torch.cat([alone(second)(ids)[0][:1]] * n)], "it is nothing that was looked for"),
    ):
        found = mi.compare_capture(model, pairs[:1], capture, "L1H0")
        assert found.found == (words,) and not found.passed, found.found
        assert found.headline() == f"No, this is not z of L1H0; in 1 of 1 problem {words}."
    padded = mi.compare_capture(model, pairs, lambda prompts: captured(prompts, first), "L1H0")
    left = "it is z of L1H0, but rows of padding stand before it: the batch is padded on the left"
    assert padded.found == (left, "as meant")
    with pytest.raises(ValueError, match="one entry per prompt, 2, got None"):
        mi.compare_capture(model, pairs, lambda _: cast("Any", None), "L1H0")


def test_a_capture_of_latent_attention_whose_keys_are_wider_than_its_values() -> None:
    model = loaded(folder_of("DeepSeek-V3"), "nnsight")
    problems = [mi.Problem(id="p", question=QUESTIONS[0], answer="7")]
    pairs = mi.make_pairs(model, problems, mi.Insertion.meaningless(" /", n_tokens=6))
    name, d = "blocks.1.hook_attn_out", model.info.d_head
    run = model.run(pairs[0].condition("inserted"), capture={name: None})
    found = mi.compare_capture(model, pairs, lambda _: [run.captured[name][0, :, d : 2 * d]], "L1H1")
    assert found.found[0].startswith(f"it is coordinates {d} to {2 * d - 1} of {name}")
