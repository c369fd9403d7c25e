"""llama2.c files become Hugging Face folders: the way back is written here, and both ways together change nothing."""

import random
import struct
from pathlib import Path

import pytest
import torch
from convert_llama2c import SPECIAL, convert
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

PIECES = [*" helo,wrd", " h", "el", " he", "ll", " hell", "lo", " hello", "wor"]
SCORES = [-20.0 - i for i in range(9)] + [0.0, -1.0, -2.0, -3.0, -4.0, -5.0, -6.0, -7.0]
TEXTS = ("hello world", "hellhole", "  two  spaces", "a\nline, Ünïcode ☃ and 7", "", "wordword")


def pairs_again(weight: torch.Tensor, n_heads: int) -> torch.Tensor:
    """Rows of q or k as llama2.c has them: channels i and i + d/2 of a head become neighbours."""
    rows, dim = weight.shape
    d = rows // n_heads
    order = [head * d + half * (d // 2) + i for head in range(n_heads) for i in range(d // 2) for half in (0, 1)]
    return weight[order].reshape(rows, dim)


def written_model(model: LlamaForCausalLM) -> bytes:
    """A llama2.c file of version 0 with the weights of a Hugging Face Llama."""
    c, weights = model.config, model.state_dict()
    tied = c.tie_word_embeddings
    d, positions = c.head_dim, torch.arange(c.max_position_embeddings)
    sizes = (c.hidden_size, c.intermediate_size, c.num_hidden_layers, c.num_attention_heads, c.num_key_value_heads)
    header = struct.pack("<7i", *sizes, c.vocab_size if tied else -c.vocab_size, c.max_position_embeddings)
    names = ["input_layernorm", *(f"self_attn.{x}_proj" for x in "qkvo"), "post_attention_layernorm"]
    names += [f"mlp.{x}_proj" for x in ("gate", "down", "up")]
    parts = [weights["model.embed_tokens.weight"]]
    for name in names:
        for layer in range(c.num_hidden_layers):
            weight = weights[f"model.layers.{layer}.{name}.weight"]
            heads = {"self_attn.q_proj": c.num_attention_heads, "self_attn.k_proj": c.num_key_value_heads}.get(name)
            parts.append(weight if heads is None else pairs_again(weight, heads))
    angle = torch.outer(positions, 1.0 / 10000.0 ** (torch.arange(0, d, 2) / d))
    parts += [weights["model.norm.weight"], angle.cos(), angle.sin(), *([] if tied else [weights["lm_head.weight"]])]
    return header + b"".join(part.detach().numpy().astype("<f4").tobytes() for part in parts)


def written_tokenizer(tokens: list[str], scores: list[float], *, raw_bytes: bool = False) -> bytes:
    """A llama2.c tokenizer file; with `raw_bytes` as its earlier exports wrote bytes."""
    raw = [token.replace("▁", " ").encode() for token in tokens]
    raw[1], raw[2] = b"\n<s>\n", b"\n</s>\n"
    if raw_bytes:
        raw[3:259] = [chr(value).encode() for value in range(256)]
    parts = [struct.pack("<fi", score, len(token)) + token for token, score in zip(raw, scores, strict=True)]
    return struct.pack("<i", max(map(len, raw))) + b"".join(parts)


def small_llama(*, tied: bool) -> LlamaForCausalLM:
    sizes = {"hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "head_dim": 6, "vocab_size": len(SPECIAL) + len(PIECES)}
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    how = {"max_position_embeddings": 32, "rms_norm_eps": 1e-5, "rope_parameters": rope, "tie_word_embeddings": tied}
    config = LlamaConfig(**sizes, **how)
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0.3, 0.6)
    return model


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A model file, its tokenizer's, and a place for the folder."""
    model, tokenizer = tmp_path / "model.bin", tmp_path / "tok.bin"
    model.write_bytes(written_model(small_llama(tied=True)))
    tokenizer.write_bytes(written_tokenizer([*SPECIAL, *PIECES], [0.0] * len(SPECIAL) + SCORES))
    return model, tokenizer, tmp_path / "out"


@pytest.mark.parametrize("tied", [True, False])
def test_a_converted_model_has_the_logits_of_the_one_it_was_written_from(tied: bool, files: tuple[Path, ...]) -> None:
    model, tokenizer, out = files
    original = small_llama(tied=tied)
    model.write_bytes(written_model(original))
    convert(model, tokenizer, out)
    again = AutoModelForCausalLM.from_pretrained(out)
    assert again.config.tie_word_embeddings == tied and written_model(again) == model.read_bytes()
    ids = torch.randint(0, original.config.vocab_size, (2, 32), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.equal(again(ids).logits, original(ids).logits)


def encoded(text: str, tokens: list[str], scores: list[float]) -> list[int]:
    """llama2.c's own rule, slowly: characters (bytes where unknown), then always the neighbours of the best score."""
    vocabulary = {token: at for at, token in enumerate(tokens)}
    pieces: list[str] = []
    for sign in f" {text}" if text else "":
        pieces += [sign] if sign in PIECES else [f"<0x{value:02X}>" for value in sign.encode()]
    while True:
        joined = [(at, "".join(pieces[at : at + 2])) for at in range(len(pieces) - 1)]
        known = [(scores[vocabulary[token]], -at) for at, token in joined if token in PIECES]
        if not known:
            return [1, *(vocabulary[piece] for piece in pieces)]
        at = -max(known)[1]
        pieces[at : at + 2] = ["".join(pieces[at : at + 2])]


@pytest.mark.parametrize("raw_bytes", [False, True])
def test_texts_are_encoded_by_llama2c_s_rule_and_come_back(raw_bytes: bool, files: tuple[Path, Path, Path]) -> None:
    model, tokenizer, out = files
    tokens, scores = [*SPECIAL, *PIECES], [0.0] * len(SPECIAL) + SCORES
    tokenizer.write_bytes(written_tokenizer(tokens, scores, raw_bytes=raw_bytes))
    convert(model, tokenizer, out)
    made = AutoTokenizer.from_pretrained(out)
    assert (made.unk_token_id, made.bos_token_id, made.eos_token_id, len(made)) == (0, 1, 2, len(tokens))
    rng = random.Random(0)
    drawn = ["".join(rng.choice(" helo,wrdé") for _ in range(rng.randint(1, 25))) for _ in range(60)]
    for text in (*TEXTS, *drawn):
        ids = made(text)["input_ids"]
        assert ids == encoded(text, tokens, scores), text
        assert made.decode(ids, skip_special_tokens=True) == text
    assert made("hello").tokens() == ["<s>", "▁h", "el", "lo"]  # by hand: the best score first, never the longest token
