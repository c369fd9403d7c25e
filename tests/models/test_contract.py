"""The same tests on every backend: what the seam promises, whatever library runs the model."""

from functools import partial

import pytest
import torch
from architectures_under_test import folder_of
from conftest import ARCHITECTURES, needs_hooked_transformer
from models_under_test import loaded, logits_of, pairs_for, without_stepper

from mless_interp.models.base import Model
from mless_interp.models.info import Inputs, ModelError
from mless_interp.models.nnsight import _operations_of_its_kind
from mless_interp.models.sites import SITES, site

EDITABLE = [name for name in SITES if name != "hook_resid_mid"]
OFTEN = (("qwen2", "hooked_transformer"), ("llama", "bridge"), ("gemma3", "nnsight"))
CASES = [
    pytest.param(
        (architecture, backend),
        marks=[needs_hooked_transformer] * (backend == "hooked_transformer")
        + [pytest.mark.slow] * ((architecture, backend) not in OFTEN),
        id=f"{backend}-{architecture}",
    )
    for architecture in ARCHITECTURES
    for backend in ("hooked_transformer", "bridge", "nnsight")
]


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param


@pytest.fixture
def model(case: tuple[str, str], tiny_model_dir) -> Model:
    return loaded(tiny_model_dir(case[0]), case[1])


@pytest.fixture
def bridge(case: tuple[str, str], tiny_model_dir) -> Model:
    return loaded(tiny_model_dir(case[0]), "bridge")


def close(a: torch.Tensor, b: torch.Tensor, tolerance: float = 1e-5) -> bool:
    return bool(((a - b).abs() <= tolerance * (1 + b.abs())).all())


def test_every_site_has_the_documented_shape_and_agrees_with_the_bridge(model: Model, bridge: Model) -> None:
    inputs = pairs_for(model)[0].condition("inserted")
    names = [site(layer, name) for layer in range(model.info.n_layers) for name in SITES]
    mine, theirs = (each.run(inputs, capture=dict.fromkeys(names)).captured for each in (model, bridge))
    info, t = model.info, inputs.n_tokens
    sizes = {"batch": 1, "token": t, "dest": t, "src": t, "head": info.n_heads, "kv_head": info.n_key_value_heads}
    sizes |= {"d_head": info.d_head, "d_model": info.d_model, "d_mlp": info.d_mlp}
    for name, value in mine.items():
        axes = SITES[name.split(".", 2)[2]].partition("]")[0].strip("[").split(", ")
        assert list(value.shape) == [sizes[axis] for axis in axes], name
        shown, expected = value, theirs[name]
        if name.endswith("attn_scores"):  # what nobody can see is -inf in one library, the lowest number in others
            visible = torch.ones(t, t, dtype=torch.bool).tril() & (expected > -1e30)
            shown, expected = shown[visible], expected[visible]
        assert close(shown, expected), (name, float((shown - expected).abs().max()))


def test_an_edit_of_every_site_changes_the_logits_as_in_the_bridge(model: Model, bridge: Model) -> None:
    inputs = pairs_for(model, count=1)[0].condition("inserted")
    before = logits_of(model, inputs)

    def edit(value: torch.Tensor, name: str) -> torch.Tensor:
        if name == "attn.hook_attn_scores":
            return torch.where(value < -1e30, value, value * 0.5)
        if name == "attn.hook_pattern":
            return torch.eye(value.shape[-1]).expand_as(value)
        return torch.cat([value[:, :5], value[:, 5:] * 0.5 + 0.1], 1)

    for name in EDITABLE:
        edits = {site(1, name): partial(edit, name=name)}
        after, expected = (each.run(inputs.tokens, edits=edits).logits for each in (model, bridge))
        assert not close(after, before, 1e-3), name
        assert close(after, expected, 5e-5), name
    assert torch.equal(logits_of(model, inputs), before), "an edit outlived its run"


def test_captures_are_reduced_inside_and_see_the_edit(model: Model) -> None:
    inputs = pairs_for(model)[0].condition("base")
    name, seen = site(1, "attn.hook_z"), lambda z: (tuple(z.shape), float(z.abs().max()))
    run = model.run(inputs.tokens, capture={name: seen}, edits={name: torch.zeros_like}, logits_at="none")
    assert run.logits is None and run.captured[name] == ((1, inputs.n_tokens, 8, model.info.d_head), 0.0)


def test_a_recording_holds_no_more_than_it_shows(model: Model) -> None:
    inputs = pairs_for(model)[0].condition("inserted")
    recording = model.record(inputs, start=inputs.n_tokens - 3)
    gemma3 = model.info.architecture.startswith("Gemma3")
    assert model.checks.output_error < 1e-5 and (model.attention_output(0).norm is not None) == gemma3
    for held in (recording.resid_pre, recording.q, recording.k, recording.v, recording.z):
        assert len(held) == 3
        assert all(part.untyped_storage().nbytes() == part.numel() * part.element_size() for part in held)


def test_an_error_inside_an_edit_leaves_no_hook_behind(model: Model) -> None:
    inputs = pairs_for(model)[0].condition("masked")
    before = logits_of(model, inputs)

    def broken(value: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("broken on purpose")

    level = getattr(model.underlying, "context_level", None)  # of TransformerLens' hooks
    with pytest.raises(RuntimeError, match="broken on purpose"):
        model.run(inputs, edits={site(1, "attn.hook_z"): broken})
    assert torch.equal(logits_of(model, inputs), before)
    assert getattr(model.underlying, "context_level", None) == level
    with pytest.raises(ValueError, match="must return a tensor of shape"):
        model.run(inputs.tokens, edits={site(0, "attn.hook_z"): lambda z: z[:, :2]})


@pytest.mark.parametrize("condition", ["inserted", "masked", "gap", "held"])
def test_rows_join_the_pass_at_their_own_layers(model: Model, condition: str) -> None:
    one = pairs_for(model)[0].condition(condition)
    parts = (one.tokens, one.position_ids, one.attention_mask)
    both = Inputs(*(None if part is None else torch.cat([part, part]) for part in parts))
    both.tokens[1, -3] = both.tokens[1, 0]
    start = both.tokens.shape[1] - pairs_for(model)[0].n_after
    recording = model.record(both, start=start)
    layers = [0, 0, 1, 2, 2, 2]
    noise = torch.randn((2, 6, *recording.z[1].shape[1:]), generator=torch.Generator().manual_seed(0))
    z = (torch.stack([recording.z[layer] for layer in layers], 1) + noise).flatten(0, 1)
    assert model.stepper is not None, "this backend fell back to whole forward passes"
    for reads in ("all", "last", [start + 2, start + 5]):
        fast = model.replay(recording, layers, z, logits_at=reads)
        slow = model if reads == "all" else without_stepper(model)
        assert close(fast, slow.replay(recording, layers, z, logits_at=reads, exact_forward=reads == "all"), 1e-4)
        alone = model.replay(recording, 1, z.unflatten(0, (2, 6))[:, 2], logits_at=reads)
        assert close(fast.unflatten(0, (2, 6))[:, 2], alone, 1e-5)


@pytest.mark.parametrize("asked", ["capture", "edits"])
def test_a_site_that_an_architecture_lacks_is_refused_by_name(asked: str, backend: str) -> None:
    """GPT-2's MLP has no gate. An edit that reaches nothing is no edit. And masks reach its attention, too."""
    model = loaded(folder_of("GPT-2"), backend)
    mask = torch.ones(1, 1, 6, 6, dtype=torch.bool)
    mask[..., 3:, 2] = False
    seen = [logits_of(model, Inputs(torch.tensor([[0, 1, at, 3, 4, 5]]), None, mask)) for at in (2, 7)]
    assert close(seen[0][:, 3:], seen[1][:, 3:]) and not close(seen[0][:, 2], seen[1][:, 2], 1e-2)
    name = site(0, "mlp.hook_pre_linear")
    with pytest.raises(ModelError, match=f"{name}|mlp.hook_pre_linear in layer 0"):
        model.run(torch.arange(6)[None], **{asked: {name: torch.zeros_like}})


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nnsight_and_bridge_are_equal_and_fused_attention_has_no_pattern(architecture: str, tiny_model_dir) -> None:
    bridge, nnsight = (loaded(tiny_model_dir(architecture), backend) for backend in ("bridge", "nnsight"))
    lean = loaded(tiny_model_dir(architecture), "nnsight", attention="sdpa")
    for model in (nnsight, lean):
        assert _operations_of_its_kind(model.underlying, model.tokenizer) == model.operations
    with pytest.raises(ModelError, match="attn_implementation="):
        lean.run(torch.tensor([[1, 2]]), capture={"blocks.0.attn.hook_pattern": None})
    for name in ("base", "inserted", "masked", "gap", "held"):
        inputs = pairs_for(lean)[0].condition(name)
        assert torch.equal(logits_of(nnsight, inputs), logits_of(bridge, inputs)), name
        assert close(logits_of(lean, inputs), logits_of(bridge, inputs), 5e-5)


def test_a_per_head_mask_reaches_only_its_head(model: Model) -> None:
    inputs = pairs_for(model)[0].condition("inserted")
    t = inputs.n_tokens
    mask = torch.ones(1, 8, t, t, dtype=torch.bool)
    mask[:, 3, -1, : t - 2] = False
    name = site(0, "attn.hook_pattern")
    free = model.run(inputs.tokens, capture={name: None}).captured[name]
    held = model.run(Inputs(inputs.tokens, None, mask), capture={name: None}).captured[name]
    assert float(held[0, 3, -1, : t - 2].sum()) == 0 and float(free[0, 3, -1, : t - 2].sum()) > 0.1
    assert close(held[:, torch.arange(8) != 3], free[:, torch.arange(8) != 3])


def test_what_a_backend_says_of_its_softmax_is_so(case: tuple[str, str], tiny_model_dir) -> None:
    """In float64 a row's sum is 1 to float64's precision, or only to float32's."""
    model, name = loaded(tiny_model_dir(case[0]), case[1], "float64"), site(1, "attn.hook_pattern")
    pattern = model.run(torch.arange(4, 30)[None], capture={name: None}, logits_at="none").captured[name]
    assert (float((pattern.sum(-1) - 1).abs().max()) > 1e-10) == model.float32_softmax


def test_what_is_captured_is_what_it_was_also_where_the_library_adds_to_it_in_place() -> None:
    model, name = loaded(folder_of("Falcon 7B"), "bridge"), site(1, "hook_mlp_out")
    hows = (None, torch.clone, lambda value: value[:, 2:])
    kept, copied, part = (model.run(torch.arange(9)[None], capture={name: how}).captured[name] for how in hows)
    assert torch.equal(kept, copied) and torch.equal(part, copied[:, 2:])
