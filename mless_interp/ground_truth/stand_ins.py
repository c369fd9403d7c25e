"""Small random models with the geometry of real ones: to try a script, or test it, where the real weights are not.

Their attention means nothing. Each has the architecture, the query and key-value heads and the use of a
beginning-of-sequence token of the model that it stands in for, but few layers and a head size of 8.
"""

from typing import Any, Literal, NamedTuple

import torch
from tokenizers import processors
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from ..models.base import Model
from ..models.load import load_model
from ..prompts.problems import Problem
from .tokenizer import build_tokenizer, draw_records, draw_vocabulary

Architecture = Literal["qwen2", "llama", "gemma3"]
D_HEAD = 8
CONTEXT = 1024
BOS = "<bos>"


class StandIn(NamedTuple):
    """A random model in memory, as `load_model` takes it."""

    name: str
    hf_model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast


def stand_in(
    architecture: Architecture,
    *,
    name: str,
    n_heads: int,
    n_key_value_heads: int,
    n_layers: int = 3,
    seed: int = 0,
    backend: str = "auto",
    attn_implementation: str = "eager",
) -> Model:
    """A checked model with random weights, uneven attention, a word-level tokenizer and the given head counts."""
    tokenizer = _tokenizer(bos=architecture != "qwen2")
    made = _random_model(architecture, tokenizer, n_heads, n_key_value_heads, n_layers, seed)
    random_one = StandIn(f"stand-in for {name} (random weights)", made, tokenizer)
    return load_model(random_one, backend=backend, device="cpu", attn_implementation=attn_implementation)


def stand_in_problems(n: int, *, seed: int = 0) -> tuple[Problem, ...]:
    """Problems in the words that the stand-ins' tokenizer knows, 40 to 60 tokens long."""
    if n < 1:
        raise ValueError(f"n must be 1 or more, got {n}")
    drawn = draw_records(draw_vocabulary(0), n, seed=seed, name="stand-in", n_clauses=(4, 5), swap=False)
    return tuple(Problem.from_dict({key: value for key, value in found.items() if key != "system"}) for found in drawn)


def _tokenizer(*, bos: bool) -> PreTrainedTokenizerFast:
    tokens = draw_vocabulary(0).tokens
    tokenizer = build_tokenizer([*tokens, *([BOS] if bos else [])], model_max_length=CONTEXT)
    if bos:
        tokenizer.add_special_tokens({"bos_token": BOS})
        backend = tokenizer.backend_tokenizer
        backend.post_processor = processors.TemplateProcessing(
            single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, tokenizer.bos_token_id)]
        )
    return tokenizer


def _random_model(
    architecture: str, tokenizer: PreTrainedTokenizerFast, n_heads: int, n_kv: int, n_layers: int, seed: int
) -> PreTrainedModel:
    shape: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": D_HEAD * n_heads,
        "intermediate_size": 2 * D_HEAD * n_heads,
        "num_hidden_layers": n_layers,
        "num_attention_heads": n_heads,
        "num_key_value_heads": n_kv,
        "max_position_embeddings": CONTEXT,
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": tokenizer.bos_token_id,
    }
    if architecture == "qwen2":
        model: Any = Qwen2ForCausalLM(Qwen2Config(tie_word_embeddings=True, **shape))
    elif architecture == "llama":
        model = LlamaForCausalLM(LlamaConfig(tie_word_embeddings=True, **shape))
    else:
        kinds = ["sliding_attention", *["full_attention"] * (n_layers - 1)]
        window: dict[str, Any] = {
            "head_dim": D_HEAD,
            "query_pre_attn_scalar": D_HEAD,
            "sliding_window": 64,
            "layer_types": kinds,
        }
        model = Gemma3ForCausalLM(Gemma3TextConfig(**window, **shape))
    generator = torch.Generator().manual_seed(seed)
    size = shape["hidden_size"] ** -0.5
    with torch.no_grad():
        for label, weight in model.named_parameters():
            if "norm" in label:
                weight.normal_(0.0 if architecture == "gemma3" else 1.0, 0.1, generator=generator)
            elif label.endswith("bias"):
                weight.normal_(0.0, 0.3, generator=generator)
            else:
                weight.normal_(0.0, 1.3 * size if "proj" in label else 1.0, generator=generator)
    return model.eval()
