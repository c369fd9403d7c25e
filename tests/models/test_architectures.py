"""Published architectures in small: every promise against its slow definition, on every backend; what is refused says why."""

import sys
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from architecture_features import FEATURES, model_of, pairs_of
from architectures_under_test import CONFIGS, folder_of
from conftest import word_tokenizer
from models_under_test import hooked, pairs_for

from mless_interp.models.hugging_face import hugging_face_info
from mless_interp.models.info import Inputs, ModelError
from mless_interp.models.load import load_model, wrap_model
from mless_interp.models.sites import site
from mless_interp.models.transformer_lens import has_hooked_transformer

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architectures.md").read_text(encoding="utf-8")

OFTEN = ("GPT-2", "nnsight")
COLUMNS = {"bridge": f"bridge ({version('transformer-lens').split('.')[0]}.x)", "nnsight": "nnsight"}
COLUMNS |= {"hooked_transformer": "HookedTransformer (3.x)"} if has_hooked_transformer() else {}


def page() -> dict[tuple[str, str], str]:
    """What docs/architectures.md says: "all" or "-", by architecture and column."""
    lines = [line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("|")]
    header, _, *rows = [[cell.strip() for cell in line] for line in lines]
    return {(row[0], column): cell for row in rows for column, cell in zip(header[1:], row[1:], strict=True)}


CASES = [
    pytest.param(name, backend, marks=() if (name, backend) == OFTEN else pytest.mark.slow)
    for name in CONFIGS
    for backend in COLUMNS
]


def test_the_page_has_every_architecture_and_says_why_where_it_says_less_than_all() -> None:
    found = page()
    assert {name for name, _ in found} == set(CONFIGS) and set(COLUMNS.values()) <= {column for _, column in found}
    for (name, column), cell in found.items():
        why = f"- {name}, {column}:" in PAGE
        assert cell in ("all", "-") or cell.startswith("not ")
        assert not why if cell == "all" else why or cell == "not run" or (cell == "-" and "Hooked" in column)


@pytest.mark.parametrize(("architecture", "backend"), CASES)
def test_an_architecture_does_what_the_page_says(architecture: str, backend: str) -> None:
    said = page()[architecture, COLUMNS[backend]]
    if said == "-":
        with pytest.raises(ModelError, match="cannot be converted|cannot take|failed its check|nnsight"):
            model_of(architecture, backend)
        return
    model, pairs = model_of(architecture, backend), pairs_of(architecture, backend)
    lacks = said.removeprefix("not ").split(", ")
    assert set(lacks) <= {*FEATURES, "all", "not run"}, said
    for name, feature in FEATURES.items():
        with pytest.raises((AssertionError, ModelError, ValueError)) if name in lacks else nullcontext():
            feature(model, pairs)


@pytest.mark.parametrize("backend", ["bridge", "nnsight"])
def test_granite_shows_and_takes_what_is_added_scaled(backend: str) -> None:
    model = model_of("Granite", backend)
    FEATURES["z sweep"](model, pairs_for(model, count=1))
    names = [site(1, name) for name in ("hook_resid_pre", "hook_attn_out", "hook_mlp_out", "hook_resid_post")]
    for edits in ({}, {names[1]: torch.zeros_like}):  # what is added is what is read, also where it was edited
        seen = model.run(torch.arange(9)[None], capture=dict.fromkeys(names), edits=edits, logits_at="none").captured
        before, attention, mlp, after = (seen[name] for name in names)
        torch.testing.assert_close(before + attention + mlp, after)
        assert bool(attention.any()) == (not edits)


@pytest.mark.skipif(not has_hooked_transformer(), reason="removed in TransformerLens 4.0")
def test_a_users_own_hooked_transformer_of_another_build() -> None:
    shape = {"n_layers": 3, "d_model": 32, "n_heads": 8, "d_mlp": 64, "n_ctx": 128, "d_vocab": len(word_tokenizer())}

    def wrapped(**other: Any) -> Any:
        build = {"attn_only": False, "normalization_type": "LN", "act_fn": "gelu", **shape, **other}
        return wrap_model(hooked(**build).underlying, tokenizer=word_tokenizer())

    with pytest.raises(ModelError, match="whose attention is 'bidirectional' sees later tokens"):
        wrapped(attention_dir="bidirectional")
    ungrouped = wrapped(n_key_value_heads=2, ungroup_grouped_query_attention=True)
    assert ungrouped.info.n_key_value_heads == 8  # its hooks show keys and values of every query head
    assert ungrouped.info.architecture == "HookedTransformer"
    FEATURES["decomposition"](ungrouped, pairs_for(ungrouped))
    for flag in ("use_attn_result", "use_hook_mlp_in", "use_split_qkv_input"):
        assert wrapped(**{flag: True}).stepper is not None
    begun, own = torch.tensor([[*[word_tokenizer().pad_token_id] * 2, 5, 6]]), ungrouped.underlying
    expected, own.tokenizer = ungrouped.run(begun).logits, word_tokenizer()  # TransformerLens masks what is its padding
    own.tokenizer.padding_side, own.cfg.default_prepend_bos = "left", False
    assert torch.equal(ungrouped.run(begun).logits, expected)


def test_positions_of_a_table_are_whole_numbers() -> None:
    model = model_of("GPT-2", "nnsight")
    tokens = torch.arange(5)[None]
    whole = torch.tensor([[0.0, 1, 2, 3, 7]])
    found, expected = (model.run(Inputs(tokens, ids)).logits for ids in (whole, whole.long()))
    torch.testing.assert_close(found, expected)
    with pytest.raises(ValueError, match="looks positions up in a table: position_ids must be whole numbers"):
        model.run(Inputs(tokens, whole + 0.5))


def test_auto_takes_the_first_backend_that_does_it() -> None:
    assert load_model(folder_of("GPT-2")).info.backend == list(COLUMNS)[-1 if has_hooked_transformer() else 0]
    assert load_model(folder_of("Falcon 40B")).info.backend == "nnsight"


@pytest.mark.parametrize(
    ("architecture", "backend"),
    [("GPT-OSS", backend) for backend in COLUMNS]
    + [(name, one) for name in ("DeepSeek-V2", "DeepSeek-V3", "Kimi-K2") for one in ("bridge", "nnsight")],
)
def test_sinks_and_latent_keys_act_as_the_layers_say(architecture: str, backend: str) -> None:
    for name in ("layer by layer", "z sweep", "knockout"):
        FEATURES[name](model_of(architecture, backend), pairs_of(architecture, backend))


def test_a_bridge_installs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TransformerLens runs pip for a model that reads images where torchvision is not here."""
    import subprocess

    import transformers

    def never(command: Any, *args: Any, **options: Any) -> None:
        raise AssertionError(f"ran {command}")

    monkeypatch.setattr(subprocess, "check_call", never)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    shape = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {"vocab_size": len(word_tokenizer()), "num_key_value_heads": 1, "head_dim": 16, **shape}
    config = transformers.Gemma3Config(
        text_config=text, vision_config={"image_size": 28, "patch_size": 14, **shape}, mm_tokens_per_image=4
    )
    transformers.Gemma3ForConditionalGeneration(config).save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="cannot take .*torchvision"):
        load_model(tmp_path, backend="bridge")
    assert load_model(tmp_path, backend="nnsight").stepper is not None


KV = {"num_key_value_heads": 2}
LATENT_SHAPE = {"num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 16, "v_head_dim": 8}
LATENT_SHAPE |= {"qk_rope_head_dim": 4, "qk_nope_head_dim": 4}
CHUNKS = {"layer_types": ["chunked_attention", "full_attention"], "attention_chunk_size": 8, "num_local_experts": 2}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "Mamba": ({}, "MambaForCausalLM. has no num_attention_heads in its config"),
    "Olmo": ({"clip_qkv": 0.3}, "clips its queries, keys and values"),
    "Llama4Text": ({**KV, **CHUNKS, "head_dim": 8}, "has layers of chunked_attention, neither full attention nor"),
    "Bert": ({}, "BertLMHeadModel. is an encoder"),
    "Bloom": ({"n_layer": 2, "n_head": 4}, "by ALiBi, which has no position ids"),
    "BitNet": (KV, "norms the outputs of all heads together"),
    "MiniCPM3": (LATENT_SHAPE, "of a latent vector by MiniCPM3Attention"),
    "Doge": (KV, "failed its check"),
    "DiffLlama": (KV, "what it mixes is not its heads' outputs"),
    "Gemma4Text": ({**KV, "head_dim": 8}, "has layers whose heads differ in number or width"),
    "OPT": ({"ffn_dim": 32, "word_embed_proj_dim": 16}, "embeds its tokens in 16 dimensions, .*it is not taken"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_attention_of_another_form_is_refused_with_what_it_is(kind: str, tmp_path: Path) -> None:
    import transformers

    options, why = REFUSED[kind]
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    sizes = {name: size for name, size in sizes.items() if kind not in ("Mamba", "Bloom") or name == "hidden_size"}
    sizes |= {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0, "vocab_size": len(word_tokenizer())}
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, f"{kind}Config")(**sizes, **options))
    kernel = {"Doge": "eager", "DiffLlama": "sdpa"}.get(kind)  # nothing that is known of these says so
    for part in (model, word_tokenizer()) if kernel else ():
        part.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=why):
        load_model(tmp_path, backend="nnsight", attn_implementation=kernel) if kernel else hugging_face_info(model)


def test_an_opt_that_norms_after_is_refused_with_what_is_not_known_of_it() -> None:
    with pytest.raises(ModelError, match=r'its norms go by names that are not known here.*backend="bridge"'):
        model_of("OPT, norms after", "nnsight")
