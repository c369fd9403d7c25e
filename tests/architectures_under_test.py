"""Tiny random models of published architectures, saved to folders: what their users have, in small.

`python tests/architectures_under_test.py` writes anew what is known of each before it runs (`KEPT`).
"""

from dataclasses import fields
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from conftest import word_tokenizer

D_MODEL, N_LAYERS, N_HEADS, CONTEXT, WINDOW = 64, 3, 8, 256, 16


def _named(**other: Any) -> dict[str, Any]:
    """The names that most configs have."""
    shape = {"hidden_size": D_MODEL, "num_hidden_layers": N_LAYERS, "num_attention_heads": N_HEADS}
    return shape | {"max_position_embeddings": CONTEXT, **other}


_GPT: dict[str, Any] = {"n_embd": D_MODEL, "n_layer": N_LAYERS, "n_head": N_HEADS, "n_positions": CONTEXT}
_EXPERTS = {"num_experts_per_tok": 2, "intermediate_size": 48, "num_key_value_heads": 2}
_LOCAL = {"num_layers": 4, "num_heads": N_HEADS, "window_size": WINDOW, "attention_types": [[["global", "local"], 2]]}
_PARTLY = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}
_CAPPED = {"query_pre_attn_scalar": 4, "attn_logit_softcapping": 1.0, "final_logit_softcapping": 2.0}  # felt here
_GROUPED = {"intermediate_size": 128, "num_key_value_heads": 2}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
_UNCUT = {**_YARN, "truncate": False}
_LATENT: dict[str, Any] = {"kv_lora_rank": 24, "qk_nope_head_dim": 10, "qk_rope_head_dim": 4, "v_head_dim": 6}
_LATENT |= {"intermediate_size": 96, "num_key_value_heads": N_HEADS, "moe_intermediate_size": 24, "n_routed_experts": 4}
_LATENT |= {"num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1}
_BETAS = {"beta_fast": 16.0, "beta_slow": 2.0}
_LONGER = {**_YARN, "beta_fast": 32.0, "beta_slow": 1.0}


def _latent(rank: int | None, rope: dict[str, float], **other: Any) -> dict[str, Any]:
    return _named(q_lora_rank=rank, rope_parameters={**_LONGER, **rope}, **{**_LATENT, **other})


CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT-2": ("GPT2", _GPT),
    "GPT-2, scaled by layer": ("GPT2", {**_GPT, "scale_attn_by_inverse_layer_idx": True}),
    "GPT-Neo": ("GPTNeo", {"hidden_size": D_MODEL, "max_position_embeddings": CONTEXT, **_LOCAL}),
    "GPT-J": ("GPTJ", {**_GPT, "rotary_dim": 4}),
    "GPT-NeoX (Pythia)": ("GPTNeoX", _named(intermediate_size=128, **_PARTLY)),
    "GPT-NeoX, in sequence": ("GPTNeoX", _named(intermediate_size=128, use_parallel_residual=False)),
    "OPT": ("OPT", _named(ffn_dim=128, word_embed_proj_dim=D_MODEL)),
    "Falcon 7B": ("Falcon", _named()),
    "Falcon 40B": ("Falcon", _named(num_kv_heads=2, new_decoder_architecture=True)),
    "Phi-2": ("Phi", _named(intermediate_size=128, **_PARTLY)),
    "Phi-3": ("Phi3", _named(**_GROUPED)),
    "StableLM": ("StableLm", _named(**_GROUPED, **_PARTLY)),
    "StableLM 2 12B": ("StableLm", _named(**_GROUPED, use_parallel_residual=True, qk_layernorm=True)),
    "OLMo 2": ("Olmo2", _named(**_GROUPED)),
    "Cohere": ("Cohere", _named(**_GROUPED)),
    "Mixtral": ("Mixtral", _named(num_local_experts=4, **_EXPERTS)),
    "Qwen3-MoE": ("Qwen3Moe", _named(num_experts=4, moe_intermediate_size=24, head_dim=8, **_EXPERTS)),
    "GPT-OSS": (
        "GptOss",
        _named(**_EXPERTS, head_dim=8, num_local_experts=4, sliding_window=WINDOW, rope_parameters=_UNCUT),
    ),
    "DeepSeek-V2": ("DeepseekV2", _latent(None, {"mscale": 0.707, "mscale_all_dim": 0.5})),
    "DeepSeek-V3": ("DeepseekV3", _latent(20, {"mscale": 1.0, "mscale_all_dim": 0.8}, n_group=2, topk_group=1)),
    "Kimi-K2": (
        "DeepseekV3",
        _latent(24, {"mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 1.0}, n_routed_experts=6, rope_interleave=False)
        | {"n_group": 1, "topk_group": 1},
    ),
    "GLM-4.7 Flash": ("Glm4MoeLite", _named(**_LATENT, q_lora_rank=20, n_group=1, topk_group=1)),
    "Granite MoE": ("GraniteMoe", _named(num_local_experts=4, **_EXPERTS)),
    "SmolLM3": ("SmolLM3", _named(**_GROUPED, no_rope_layer_interval=2)),
    "HunYuan": ("HunYuanDenseV1", _named(**_GROUPED, head_dim=8)),
    "Llama": ("Llama", _named(**_GROUPED)),
    "Llama, LoRA": ("Llama", _named(**_GROUPED)),
    "Llama, LoRA merged": ("Llama", _named(**_GROUPED)),
    "Qwen2": ("Qwen2", _named(**_GROUPED)),
    "Qwen3": ("Qwen3", _named(**_GROUPED, head_dim=16)),
    "Gemma 2": ("Gemma2", _named(**_GROUPED, head_dim=16, sliding_window=WINDOW, **_CAPPED)),
}
"""Name -> Hugging Face's name and what its config is given."""
_ROPE: dict[str, Any] = {"rope_theta": 500.0, "factor": 3.0, "original_max_position_embeddings": 32}
_BANDS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LONG = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
_MADE = {"residual_multiplier": 0.3, "logits_scaling": 3.0, "attention_multiplier": 0.5, "embedding_multiplier": 2}
_KINDS = ["sliding_attention", "full_attention", "sliding_attention"]
BUILDS: dict[str, tuple[str, dict[str, Any]]] = CONFIGS | {
    "Granite": ("Granite", _named(**_GROUPED, **_MADE)),
    "Gemma 3": ("Gemma3Text", _named(**_GROUPED, head_dim=16, sliding_window=WINDOW, layer_types=_KINDS)),
    "Qwen2, windows": (
        "Qwen2",
        _named(**_GROUPED, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1),
    ),
    "GPT-2, wide": ("GPT2", {**_GPT, "n_inner": 96}),
    "OPT, norms after": ("OPT", _named(ffn_dim=128, word_embed_proj_dim=D_MODEL, do_layer_norm_before=False)),
    "Falcon, all heads": ("Falcon", _named(multi_query=False)),
    "Llama, a window that it does not know": ("Llama", _named(**_GROUPED, sliding_window=6)),
    "Phi-3, longrope": ("Phi3", _named(**_GROUPED, rope_parameters={"rope_type": "longrope", **_ROPE, **_LONG})),
    "Llama 3": ("Llama", _named(**_GROUPED, rope_parameters={"rope_type": "llama3", **_ROPE, **_BANDS})),
    "Llama, linear": ("Llama", _named(**_GROUPED, rope_parameters={"rope_type": "linear", **_ROPE})),
    "Llama, YaRN": ("Llama", _named(**_GROUPED, rope_parameters={"rope_type": "yarn", **_ROPE})),
    "Llama, YaRN told": (
        "Llama",
        _named(**_GROUPED, rope_parameters={**_ROPE, **_UNCUT, **_BETAS, "attention_factor": 1.5}),
    ),
}
"""And other builds of them, which no page lists."""


def random_model(name: str, **options: Any) -> Any:
    """A model of this architecture, random weights large enough for uneven attention; `options` of its config."""
    import transformers

    kind, shape = BUILDS[name]
    tokenizer = word_tokenizer()
    ids = {f"{which}_token_id": getattr(tokenizer, f"{which}_token_id") for which in ("pad", "eos", "bos")}
    config = getattr(transformers, f"{kind}Config")(vocab_size=len(tokenizer), **ids, **{**shape, **options})
    model = transformers.AutoModelForCausalLM.from_config(config)
    norm = 0.0 if kind.startswith("Gemma") else 1.0  # Gemma's norms multiply by 1 + weight
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for label, weight in model.named_parameters():
            if label.endswith("sinks"):
                weight.normal_(1.0, 1.0, generator=generator)  # a good part of every row
            elif weight.dim() > 1:
                weight.normal_(0.0, 0.12, generator=generator)
            else:
                is_scale = label.endswith("weight")
                weight.normal_(norm if is_scale else 0.0, 0.1, generator=generator)
    return model.eval()


def with_lora(model: Any) -> Any:
    """The model with random low-rank adapters at every linear layer, not merged: a `PeftModel`."""
    import peft

    adapted = peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for label, weight in adapted.named_parameters():
            if "lora_" in label:
                weight.normal_(0.0, 0.2, generator=generator)
    return adapted.eval()


@cache
def folder_of(name: str) -> Path:
    """Where such a model is saved, with a tokenizer of words; made once per process, to be read only."""
    folder = Path(mkdtemp(prefix="architecture-"))
    made = random_model(name)
    if name.endswith("LoRA merged"):
        made = with_lora(made).merge_and_unload()
    made.save_pretrained(folder)
    if name.endswith("LoRA"):
        with_lora(made).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return folder


def described(name: str, model: Any) -> str:
    """Everything that is known of a model before it runs: its geometry, and its first and last layer's parts."""
    from mless_interp.models.architectures import Positions, attention_rule_of, decoder_layers
    from mless_interp.models.hugging_face import hugging_face_info
    from mless_interp.models.nnsight import Operations, _places
    from mless_interp.models.transformer_lens import CONVERTERS, _hooked_config

    info = hugging_face_info(model, name=name, backend="none")
    layers = decoder_layers(model, info)
    lines = [str(info), f"cached {info.n_cached}, unknown {layers[0].unknown}, parallel {layers[0].parallel}"]
    parts = []
    for part in (layers[0], layers[-1]):
        inputs, output = part.inputs, part.attention_output(info)
        names = [each for field in fields(part) if isinstance(each := getattr(part, field.name), str)]
        found = [
            f"{' '.join(names)} {part.norms}",
            f"{inputs.layout} {inputs.paths} last {inputs.norms_last} {[inputs.part(at) for at in range(3)]}",
            f"{part.mlp and part.mlp.paths} {part.mlp and part.mlp.gate is not None} {part.share}",
            f"{attention_rule_of(part.attention, d_head=info.d_head)} {output and output.weights.shape}",
        ]
        if part.norms:
            sites = _places(Operations("call", ("scores",), ("call", "pattern")), part, d_head=info.d_head)
            found += [f"  {at}: {tuple(where)}" for at, where in sites.items()]
        parts.append("\n".join(found))
    lines += dict.fromkeys(parts)  # the last where it is another
    places = Positions.of(model, layers)
    known = ("learned", "adjacent", "whole_only", "width", "prescaled", "_rotated", "_paired", "_by_type")
    lines.append(str({key: getattr(places, key) for key in known}))
    if (kind := type(model).__name__) in CONVERTERS and output and "longrope" not in name:
        lines += [f"  {key} = {value}" for key, value in sorted(_hooked_config(model, kind).items())]
    return "\n".join([f"=== {name}", *lines])


def told(value: Any) -> str:
    """An argument of a run in words: of numbers their shape, dtype and sum."""
    if isinstance(value, torch.Tensor):
        return f"{list(value.shape)} {value.dtype} {float(value.double().sum()):.3g}"
    if isinstance(value, dict):
        return " ".join(f"{name}={told(each)}" for name, each in value.items())
    if type(value).__name__ == "Inputs":
        return told({name: each for name, each in vars(value).items() if each is not None})
    if callable(value):
        made = getattr(value, "func", value)
        return f"{getattr(made, '__name__', type(made).__name__)} {told(getattr(value, 'keywords', {}))}".strip()
    return "recording" if hasattr(value, "z") else str(value)


def self_check() -> str:
    """What the self-check asks of a small planted model."""
    from unittest.mock import patch

    from models_under_test import planted_here

    from mless_interp.models.checks import check_model

    model, lines = planted_here()[1], ["=== self-check"]

    def noted(name: str) -> Any:
        own = getattr(type(model), name)

        def call(self: Any, *given: Any, **options: Any) -> Any:
            lines.append(f"{name} {' | '.join(map(told, given))} | {told(options)}")
            return own(self, *given, **options)

        return call

    with patch.multiple(type(model), **{name: noted(name) for name in ("run", "record", "replay")}):
        check_model(model)
    return "\n".join(lines)


KEPT = Path(__file__).with_name("kept_architectures.txt")

if __name__ == "__main__":
    made = [*(described(name, random_model(name)) for name in BUILDS), self_check()]
    KEPT.write_text("\n".join(made) + "\n", encoding="utf-8")
