"""How Hugging Face decoders are described: what is found in them, what is known of their norms, what can be stepped through."""

from typing import Any

import pytest
import torch
import transformers
from conftest import tiny_model, word_tokenizer

from mless_interp.models.arithmetic import fused
from mless_interp.models.decoder import NORMS, HuggingFaceLayers, Positions, decoder_layers, linear
from mless_interp.models.hugging_face import hugging_face_info

LLAMA = next(iter(NORMS))


SHAPE: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "head_dim": 8,
}
SHAPE |= {"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64}
SHAPE |= {"pad_token_id": 1, "bos_token_id": 3, "eos_token_id": 2}


@pytest.mark.parametrize("kind", ["Qwen3", "Gemma2", "Olmo2", "Cohere", "Phi"])
def test_decoders_all_of_whose_parts_are_known_are_stepped_through(kind: str) -> None:
    model = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**SHAPE))
    layers = decoder_layers(model, hugging_face_info(model))
    found = HuggingFaceLayers.of(model, layers, Positions.of(model, layers), d_head=8)
    assert found is not None


class Experts(torch.nn.Module):
    """Gives its router's scores beside what it adds."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, str]:
        return self.inner(x), "router"


def test_an_mlp_of_another_build_is_asked_as_a_whole() -> None:
    """The layer is stepped through all the same, only what is inside the MLP is not known."""
    model, made = tiny_model("llama", word_tokenizer()), []
    x = torch.randn(2, 5, 64, generator=torch.Generator().manual_seed(0))
    for inside in (True, False):
        layers = decoder_layers(model, hugging_face_info(model))
        assert (layers[1].mlp is not None) == (layers[1].gated_mlp is not None) == inside and layers[1].unknown is None
        steps = HuggingFaceLayers.of(model, layers, Positions.of(model, layers), d_head=16)
        assert steps is not None
        made.append(steps.mlp_out(1, x))
        model.model.layers[1].mlp = Experts(model.model.layers[1].mlp)
    torch.testing.assert_close(*made)


def test_norms_in_a_layout_that_is_not_known_are_not_guessed() -> None:
    model = tiny_model("llama", word_tokenizer())
    model.model.layers[0].another_norm = torch.nn.Identity()
    first, second = decoder_layers(model, hugging_face_info(model))[:2]
    assert first.norms is None and first.attention_output(hugging_face_info(model)) is None
    assert second.norms is not None and second.attention_output(hugging_face_info(model)) is not None


def test_the_fast_product_of_a_linear_layer_is_the_layer_s_own() -> None:
    """Which it is not in float64, with gradients or with hooks: there the layer itself is asked."""
    layer, x = torch.nn.Linear(4, 3), torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0))
    gradients = [torch.autograd.grad(made.square().sum(), layer.weight)[0] for made in (linear(layer, x), layer(x))]
    assert torch.equal(*gradients)
    with torch.no_grad():
        torch.testing.assert_close(linear(layer, x), layer(x))
        hook = layer.register_forward_hook(lambda module, args, output: output * 0)
        assert not linear(layer, x).any()
        hook.remove()
        assert torch.equal(linear(layer.double(), x.double()), layer(x.double()))


def test_the_fast_product_of_a_conv_1d_is_its_own_of_rows_that_lie_apart_too() -> None:
    """Which GPT-2's own does not take."""
    generator = torch.Generator().manual_seed(0)
    layer, x = transformers.pytorch_utils.Conv1D(3, 4), torch.randn(2, 5, 4, generator=generator)
    torch.nn.init.normal_(layer.bias, generator=generator)
    with torch.no_grad():
        expected = layer(x.contiguous())[:, 1:4]
        for grad in (False, True):
            with torch.set_grad_enabled(grad):
                torch.testing.assert_close(linear(layer, x[:, 1:4]), expected)


@pytest.mark.parametrize("name", ["gelu_new", "gelu_fast", "silu"])
def test_an_activation_in_one_step_is_the_one_in_many(name: str) -> None:
    act, x = transformers.activations.ACT2FN[name], torch.linspace(-9, 9, 999)
    torch.testing.assert_close(fused(act)(x), act(x), rtol=1e-5, atol=1e-6)
    assert (fused(act) is act) == (name == "silu")
