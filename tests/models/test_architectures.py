"""Published architectures in small: every promise against its slow definition, on every backend; what is refused says why."""

import sys
from contextlib import ExitStack, nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from architecture_features import FEATURES, model_of, pairs_of
from architectures_under_test import CONFIGS, folder_of, random_model
from conftest import word_tokenizer
from models_under_test import hooked, loaded, pairs_for

from mless_interp.models.hugging_face import hugging_face_info
from mless_interp.models.info import Inputs, ModelError
from mless_interp.models.load import load_model, wrap_model
from mless_interp.models.sites import site
from mless_interp.models.transformer_lens import has_hooked_transformer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

OFTEN = ("GPT-2", "nnsight")
COLUMNS = {"bridge": f"bridge ({version('transformer-lens').split('.')[0]}.x)", "nnsight": "nnsight"}
COLUMNS |= {"hooked_transformer": "HookedTransformer (3.x)"} if has_hooked_transformer() else {}


def page() -> dict[tuple[str, str], str]:
    """What docs/architectures.md says: "all" or "-", by architecture and column."""
    lines = (ROOT / "docs" / "architectures.md").read_text(encoding="utf-8").splitlines()
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return {(row[0], column): cell for row in rows for column, cell in zip(header[1:], row[1:], strict=True)}


CASES = [
    pytest.param(name, backend, marks=() if (name, backend) == OFTEN else pytest.mark.slow)
    for name in CONFIGS
    for backend in COLUMNS
]


def test_the_page_has_every_architecture_and_says_why_where_it_says_less_than_all() -> None:
    found = page()
    assert {name for name, _ in found} == set(CONFIGS) and set(COLUMNS.values()) <= {column for _, column in found}
    text = (ROOT / "docs" / "architectures.md").read_text(encoding="utf-8")
    for (name, column), cell in found.items():
        why = f"- {name}, {column}:" in text
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


@pytest.mark.slow
@pytest.mark.parametrize("backend", COLUMNS)
def test_gpt_neos_own_windows_are_lifted_where_positions_are_set(backend: str, tmp_path: Path) -> None:
    """It hides by index, whatever mask it is given: where positions lie closer than indices, too much."""
    folder = saved(tmp_path, "GPT-Neo", attention_types=[[["local"], 4]])
    model = load_model(folder, backend=backend)
    pairs = pairs_for(model, count=1)
    FEATURES["identities"](model, pairs)
    held = pairs[0].condition("held")
    recording = model.record(held, start=held.n_tokens // 2)
    whole = model.run(held).logits[:, held.n_tokens // 2 :]
    torch.testing.assert_close(model.replay(recording, 0, recording.z[0], logits_at="all"), whole, atol=1e-4, rtol=1e-4)
    if model.hf_model is not None:  # they are as they were
        attentions = [model._attention(layer) for layer in range(4)]
        assert all(attention.bias.shape[-1] == 256 and not attention.bias[0, 0, 20, 2] for attention in attentions)


@pytest.mark.skipif(not has_hooked_transformer(), reason="removed in TransformerLens 4.0")
def test_a_users_own_hooked_transformer_of_another_build() -> None:
    shape = {"n_layers": 3, "d_model": 32, "n_heads": 8, "d_mlp": 64, "n_ctx": 128, "d_vocab": len(word_tokenizer())}

    def wrapped(**other: Any) -> Any:
        build = {"attn_only": False, "normalization_type": "LN", "act_fn": "gelu", **shape, **other}
        return wrap_model(hooked(**build).underlying, tokenizer=word_tokenizer())

    with pytest.raises(ModelError, match="whose attention is 'bidirectional' sees later tokens"):
        wrapped(attention_dir="bidirectional")
    with pytest.raises(ModelError, match="with 'alibi' positions has no position ids"):
        wrapped(positional_embedding_type="alibi")
    ungrouped = wrapped(n_key_value_heads=2, ungroup_grouped_query_attention=True)
    assert ungrouped.info.n_key_value_heads == 8  # its hooks show keys and values of every query head
    FEATURES["decomposition"](ungrouped, pairs_for(ungrouped))
    for flag in ("use_attn_result", "use_hook_mlp_in", "use_split_qkv_input"):
        assert wrapped(**{flag: True}).stepper is not None
    experts = wrapped(num_experts=4, experts_per_token=2, gated_mlp=True, act_fn="silu", normalization_type="RMS")
    assert experts.info.d_mlp is None


def saved(folder: Path, architecture: str, **options: Any) -> Path:
    random_model(architecture, **options).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("architecture", ["GPT-2", "GPT-J"])
def test_positions_of_a_table_are_whole_numbers(architecture: str) -> None:
    model = model_of(architecture, "nnsight")
    tokens = torch.arange(5)[None]
    whole = torch.tensor([[0.0, 1, 2, 3, 7]])
    found, expected = (model.run(Inputs(tokens, ids)).logits for ids in (whole, whole.long()))
    torch.testing.assert_close(found, expected)
    with pytest.raises(ValueError, match="looks positions up in a table: position_ids must be whole numbers"):
        model.run(Inputs(tokens, whole + 0.5))


def test_auto_takes_the_first_backend_that_does_it() -> None:
    assert load_model(folder_of("GPT-2")).info.backend == list(COLUMNS)[-1 if has_hooked_transformer() else 0]
    assert load_model(folder_of("Falcon 40B")).info.backend == "nnsight"


class Plain:
    """A model by Hugging Face's own modules and masks: nothing of this project."""

    def __init__(self, architecture: str, dtype: str) -> None:
        import transformers

        options: dict[str, Any] = {"attn_implementation": "eager", "dtype": getattr(torch, dtype)}
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder_of(architecture), **options).eval()
        self.model.set_experts_implementation("eager")

    def run(self, tokens: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits `[token, vocab]` and patterns `[layer, head, dest, src]` of a prompt; `hidden` `[head, dest, src]` beside
        causality and each layer's window."""
        config, back = self.model.config, torch.arange(tokens.shape[1])[:, None] - torch.arange(tokens.shape[1])
        with ExitStack() as hooks, torch.no_grad():
            for number, layer in enumerate(self.model.model.layers):
                slides = getattr(config, "layer_types", None) and config.layer_types[number] == "sliding_attention"
                shown = (back >= 0) & (back < (config.sliding_window if slides else len(back))) & ~hidden
                mask = torch.zeros(shown.shape).masked_fill(~shown, torch.finfo(torch.float32).min)[None]
                give = lambda module, args, kwargs, mask=mask: (args, {**kwargs, "attention_mask": mask})  # noqa: E731
                hooks.enter_context(layer.self_attn.register_forward_pre_hook(give, with_kwargs=True))
            out = self.model(input_ids=tokens, output_attentions=True, use_cache=False)
        return out.logits, torch.stack(out.attentions)[:, 0]


LATENT = ("DeepSeek-V2", "DeepSeek-V3", "Kimi-K2")


@pytest.mark.parametrize(
    ("architecture", "backend"),
    [("GPT-OSS", backend) for backend in COLUMNS] + [(name, one) for name in LATENT for one in ("bridge", "nnsight")],
)
def test_numbers_are_those_of_hugging_faces_own_module(architecture: str, backend: str) -> None:
    """Logits and patterns, plain and where one head may not see some keys: where rows have a learned sink, and where keys and
    values come of a latent vector and z is narrower than queries."""
    dtype, allowed = ("float32", 1e-4) if architecture == "GPT-OSS" else ("float64", 1e-6)
    plain, model = Plain(architecture, dtype), loaded(folder_of(architecture), backend, dtype)
    tokens = pairs_for(model)[0].condition("inserted").tokens
    hidden = torch.zeros(model.info.n_heads, tokens.shape[1], tokens.shape[1], dtype=torch.bool)
    names = [site(layer, "attn.hook_pattern") for layer in range(model.info.n_layers)]
    gave = []
    for columns in (slice(0), slice(4, 20)):
        hidden[1, 20:, columns] = True
        logits, patterns = plain.run(tokens, hidden)
        run = model.run(Inputs(tokens, None, ~hidden[None]), capture=dict.fromkeys(names))
        torch.testing.assert_close(
            torch.cat([run.captured[name] for name in names]), patterns, atol=allowed / 10, rtol=allowed
        )
        torch.testing.assert_close(run.logits, logits, atol=allowed, rtol=allowed)
        assert architecture != "GPT-OSS" or float((1 - patterns.sum(-1)).mean()) > 0.1, "the sinks take a good part"
        gave.append(logits)
    assert not torch.allclose(*gave, atol=1e-2)


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
    vision = {"image_size": 28, "patch_size": 14, **shape}
    config = transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
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
    "Gemma4Text": ({**KV, "head_dim": 8}, "has layers whose heads differ in number or width"),
    "MiMoV2Flash": (
        {**KV, "head_dim": 8, "swa_num_key_value_heads": 4, "n_routed_experts": 2, "num_experts_per_tok": 1},
        "has layers whose heads differ in number or width",
    ),
    "OPT": ({"ffn_dim": 32, "word_embed_proj_dim": 16}, "embeds its tokens in 16 dimensions, .*it is not taken"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_attention_of_another_form_is_refused_with_what_it_is(kind: str, tmp_path: Path) -> None:
    import transformers

    options, why = REFUSED[kind]
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    sizes = {name: size for name, size in sizes.items() if kind not in ("Mamba", "Bloom") or name == "hidden_size"}
    ids = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
    config = getattr(transformers, f"{kind}Config")(vocab_size=len(word_tokenizer()), **ids, **sizes, **options)
    model = transformers.AutoModelForCausalLM.from_config(config)
    if kind == "Doge":  # nothing that is known of it says so
        model.save_pretrained(tmp_path)
        word_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=why):
        load_model(tmp_path, backend="nnsight") if kind == "Doge" else hugging_face_info(model)


def test_an_opt_that_norms_after_is_refused_with_what_is_not_known_of_it(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r'its norms go by names that are not known here.*backend="bridge"'):
        load_model(saved(tmp_path, "OPT", do_layer_norm_before=False), backend="nnsight")
