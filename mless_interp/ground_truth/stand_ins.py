"""Small random models with the geometry of real ones: to try a script, or test it, where the real weights are not.

Their attention means nothing. Each has the architecture, the query and key-value heads and the use of a
beginning-of-sequence token of the model that it stands in for, but few layers and a head size of 8.
"""

from types import SimpleNamespace
from typing import Literal

import torch
from tokenizers import processors
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from ..models.base import Model
from ..models.load import load_model
from ..prompts.problems import Problem
from .tokenizer import build_tokenizer, draw_records, draw_vocabulary

Architecture = Literal["qwen2", "llama", "gemma3"]
D_HEAD = 8
CONTEXT = 1024
BOS = "<bos>"


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
    """Return a checked model with random weights, uneven attention, a word-level tokenizer and the given head counts."""
    bos = [] if architecture == "qwen2" else [BOS]
    tokenizer = build_tokenizer([*draw_vocabulary(0).tokens, *bos], model_max_length=CONTEXT)
    if bos:
        tokenizer.add_special_tokens({"bos_token": BOS})
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, tokenizer.bos_token_id)]
        )
    made = _random_model(architecture, tokenizer, n_heads, n_key_value_heads, n_layers, seed)
    random_one = SimpleNamespace(name=f"stand-in for {name} (random weights)", hf_model=made, tokenizer=tokenizer)
    return load_model(random_one, backend=backend, device="cpu", attn_implementation=attn_implementation)


def stand_in_problems(n: int, *, seed: int = 0) -> tuple[Problem, ...]:
    """Return problems in the words that the stand-ins' tokenizer knows, 40 to 60 tokens long."""
    drawn = draw_records(draw_vocabulary(0), n, seed=seed, name="stand-in", n_clauses=(4, 5))
    return tuple(Problem.from_dict({key: value for key, value in found.items() if key != "system"}) for found in drawn)


def _random_model(
    architecture: str, tokenizer: PreTrainedTokenizerFast, n_heads: int, n_kv: int, n_layers: int, seed: int
) -> PreTrainedModel:
    width = D_HEAD * n_heads
    shape: dict[str, object] = {
        "vocab_size": len(tokenizer),
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": n_layers,
        "num_attention_heads": n_heads,
        "num_key_value_heads": n_kv,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": True,
        **{f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "eos", "bos")},
    }
    kind = architecture
    if architecture == "gemma3":
        kind = "gemma3_text"
        shape |= {"head_dim": D_HEAD, "query_pre_attn_scalar": D_HEAD, "sliding_window": 64}
        shape["layer_types"] = ["sliding_attention", *["full_attention"] * (n_layers - 1)]
    model: PreTrainedModel = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **shape))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for label, weight in model.named_parameters():
            mean, spread = 0.0, 1.3 * width**-0.5 if "proj" in label else 1.0
            if "norm" in label:
                mean, spread = float(architecture != "gemma3"), 0.1  # Gemma's norms count from 1
            elif label.endswith("bias"):
                spread = 0.3
            weight.normal_(mean, spread, generator=generator)
    return model.eval()
