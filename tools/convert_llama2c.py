"""Turn a model and a tokenizer of llama2.c (legacy format, version 0) into a Hugging Face folder.

python tools/convert_llama2c.py stories260K.bin tok512.bin models/stories260K

The folder gets config.json, model.safetensors, tokenizer.json and what transformers writes beside them; `load_model` and
`AutoModelForCausalLM` read it. Published files: github.com/karpathy/llama2.c and its tinyllamas (MIT).

A model file is seven int32 (dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len; vocab_size is negative
where the output has weights of its own) and float32 weights; a tokenizer file an int32, the longest token's length in
bytes, and per token a float32 score, an int32 length, the bytes. All little-endian.
"""

import argparse
import struct
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, processors
from tokenizers.models import BPE
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

ROPE_THETA, NORM_EPS = 10000.0, 1e-5  # llama2.c has no others
UNK, BOS, EOS = "<unk>", "<s>", "</s>"
SPECIAL = (UNK, BOS, EOS, *(f"<0x{value:02X}>" for value in range(256)))
"""What every tokenizer of llama2.c begins with."""
SPACE = "▁"
_HEADER = struct.Struct("<7i")
_LAYER = {
    "input_layernorm": "norm",
    "self_attn.q_proj": "query",
    "self_attn.k_proj": "key",
    "self_attn.v_proj": "value",
    "self_attn.o_proj": "output",
    "post_attention_layernorm": "norm",
    "mlp.gate_proj": "up",
    "mlp.down_proj": "down",
    "mlp.up_proj": "up",
}
"""Each layer's weights in the order of the file (every one for all layers before the next): Hugging Face's name -> shape."""


class Header(NamedTuple):
    """The seven numbers a model file begins with; `tied`: the output uses the embeddings."""

    dim: int
    hidden_dim: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    vocab_size: int
    seq_len: int
    tied: bool

    @property
    def d_head(self) -> int:
        """Channels of one head."""
        return self.dim // self.n_heads

    def shape(self, part: str) -> tuple[int, ...]:
        """The shape of one layer's weight, `[out, in]`."""
        keys = self.n_kv_heads * self.d_head
        return {
            "norm": (self.dim,),
            "query": (self.dim, self.dim),
            "key": (keys, self.dim),
            "value": (keys, self.dim),
            "output": (self.dim, self.dim),
            "up": (self.hidden_dim, self.dim),
            "down": (self.dim, self.hidden_dim),
        }[part]

    def blocks(self) -> list[tuple[str, tuple[int, ...]]]:
        """Every block of the file in its order: Hugging Face's name ("{}" for all layers) or the table's, and shape."""
        return [
            ("model.embed_tokens.weight", (self.vocab_size, self.dim)),
            *(
                (f"model.layers.{{}}.{name}.weight", (self.n_layers, *self.shape(part)))
                for name, part in _LAYER.items()
            ),
            ("model.norm.weight", (self.dim,)),
            ("cos", (self.seq_len, self.d_head // 2)),
            ("sin", (self.seq_len, self.d_head // 2)),
            *([] if self.tied else [("lm_head.weight", (self.vocab_size, self.dim))]),
        ]


def read_header(content: bytes, name: str) -> Header:
    """The header of a model file; `ValueError` where it cannot be one."""
    if content[:4] == b"24ka":
        raise ValueError(
            f"{name} is a llama2.c file of a later version than 0 (it begins with 'ak42'): export it with --version 0"
        )
    if len(content) < _HEADER.size:
        raise ValueError(f"{name} has {len(content)} bytes, fewer than the header's {_HEADER.size}: it is damaged")
    *sizes, vocab_size, seq_len = _HEADER.unpack_from(content)
    header = Header(*sizes, abs(vocab_size), seq_len, vocab_size > 0)
    dim, heads, kv = header.dim, header.n_heads, header.n_kv_heads
    whole = min(header[:7]) > 0 and dim % (2 * heads) == 0 and heads % kv == 0
    if not whole:
        raise ValueError(
            f"{name} is no llama2.c model of version 0: its header says {dict(zip(header._fields, header[:7], strict=False))}, "
            "and all must be above 0, dim an even multiple of n_heads, n_heads a multiple of n_kv_heads"
        )
    return header


def halves(weight: Tensor, n_heads: int) -> Tensor:
    """Rows of q or k `[head x d, in]` for Hugging Face, which turns channel i with i + d/2, not 2i with 2i + 1."""
    rows, dim = weight.shape
    return weight.view(n_heads, rows // n_heads // 2, 2, dim).transpose(1, 2).reshape(rows, dim)


def read_model(file: Path) -> tuple[Header, dict[str, Tensor]]:
    """The header and the weights by their Hugging Face names, `[out, in]`; `ValueError` for anything but a whole file."""
    content = file.read_bytes()
    header = read_header(content, file.name)
    blocks = header.blocks()
    expected = _HEADER.size + 4 * sum(int(np.prod(shape, dtype=object)) for _, shape in blocks)
    if len(content) != expected:
        what = "is cut off" if len(content) < expected else "has bytes after its end"
        raise ValueError(f"{file.name} {what}: its header asks for {expected} bytes, and it has {len(content)}")
    numbers = np.frombuffer(content, dtype="<f4", offset=_HEADER.size).astype(np.float32)
    if not np.isfinite(numbers).all():
        raise ValueError(f"{file.name} is damaged: {int((~np.isfinite(numbers)).sum())} of its weights are not finite")
    weights: dict[str, Tensor] = {}
    start = 0
    for name, shape in blocks:
        size = int(np.prod(shape))
        block = torch.from_numpy(numbers[start : start + size].reshape(shape))
        start += size
        weights |= {name.format(at): each for at, each in enumerate(block)} if "{}" in name else {name: block}
    _check_rope(header, weights.pop("cos"), weights.pop("sin"), file.name)
    for name, weight in weights.items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            weights[name] = halves(weight, header.n_heads if "q_proj" in name else header.n_kv_heads)
    return header, {name: weight.clone() for name, weight in weights.items()}


def _check_rope(header: Header, cos: Tensor, sin: Tensor, name: str) -> None:
    """The file's tables of RoPE must be those of the only base that llama2.c knows."""
    rate = ROPE_THETA ** (-torch.arange(0, header.d_head, 2, dtype=torch.float64) / header.d_head)
    angle = torch.arange(header.seq_len, dtype=torch.float64)[:, None] * rate
    worst = max(float((cos - angle.cos()).abs().max()), float((sin - angle.sin()).abs().max()))
    if not worst <= 1e-3:
        raise ValueError(
            f"{name} is damaged, or no llama2.c model: its tables of RoPE differ by {worst:.3g} from those of base "
            f"{ROPE_THETA:g}"
        )


def read_tokenizer(file: Path, vocab_size: int) -> tuple[list[str], list[float]]:
    """The tokens, with "▁" for a space and `<0x..>` for bytes, and their scores; `ValueError` for anything else."""
    content = file.read_bytes()
    tokens: list[str] = []
    scores: list[float] = []
    try:
        (longest,) = struct.unpack_from("<i", content)
        start = 4
        while start < len(content):
            score, length = struct.unpack_from("<fi", content, start)
            raw = content[start + 8 : start + 8 + length]
            if not 0 < length == len(raw) <= longest or not np.isfinite(score):
                raise ValueError(f"token {len(tokens)} is cut off, too long or without a score")
            tokens.append(_token(raw.decode(), len(tokens)))
            scores.append(score)
            start += 8 + length
    except (struct.error, ValueError) as error:
        raise ValueError(f"{file.name} is damaged, or no tokenizer of llama2.c: {error}") from error
    if len(tokens) != vocab_size or vocab_size < len(SPECIAL):
        raise ValueError(f"{file.name} has {len(tokens)} tokens, the model {vocab_size}: it belongs to another model")
    return tokens, scores


def _token(text: str, at: int) -> str:
    if at >= len(SPECIAL):
        return text.replace(" ", SPACE)
    written = SPECIAL[at] if at < 3 else chr(at - 3)  # by earlier exports; later ones write bytes as <0x..>
    if text not in (SPECIAL[at], written, f"\n{written}\n"):
        raise ValueError(f"token {at} must be {SPECIAL[at]!r}, got {text!r}")
    return SPECIAL[at]


def build_tokenizer(tokens: list[str], scores: list[float], *, seq_len: int) -> PreTrainedTokenizerFast:
    """SentencePiece's BPE with bytes for what it does not know: the pair whose token has the best score is merged first."""
    vocabulary = {token: at for at, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise ValueError(f"the tokenizer has {len(tokens) - len(vocabulary)} tokens twice: the file is damaged")
    words = {token: score for token, score in zip(tokens, scores, strict=True) if token not in SPECIAL}
    pairs = [(word[:at], word[at:]) for word in words for at in range(1, len(word))]
    merges = [pair for pair in pairs if words.keys() >= {*pair}]
    merges.sort(key=lambda pair: (-words["".join(pair)], len(pair[0])))
    tokenizer = Tokenizer(BPE(vocabulary, merges, unk_token=UNK, fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B:1", special_tokens=[(BOS, vocabulary[BOS])]
    )
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in (UNK, BOS, EOS)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=UNK,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=UNK,
        clean_up_tokenization_spaces=False,
        model_max_length=seq_len,
    )


def convert(model_file: Path, tokenizer_file: Path, out: Path) -> LlamaForCausalLM:
    """Write the folder; `ValueError` for damaged files and for a folder that is not empty. Returns the model."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} exists and is not an empty folder; choose another one or remove it")
    header, weights = read_model(model_file)
    tokens, scores = read_tokenizer(tokenizer_file, header.vocab_size)
    tokenizer = build_tokenizer(tokens, scores, seq_len=header.seq_len)
    shape: dict[str, Any] = {
        "hidden_size": header.dim,
        "intermediate_size": header.hidden_dim,
        "num_hidden_layers": header.n_layers,
        "num_attention_heads": header.n_heads,
        "num_key_value_heads": header.n_kv_heads,
        "head_dim": header.d_head,
        "vocab_size": header.vocab_size,
        "max_position_embeddings": header.seq_len,
    }
    config = LlamaConfig(
        **shape,
        rms_norm_eps=NORM_EPS,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        tie_word_embeddings=header.tied,
        unk_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        dtype=torch.float32,
    )
    with torch.random.fork_rng(devices=[]):  # the random initialisation is replaced
        model = LlamaForCausalLM(config)
    tied = {"lm_head.weight": weights["model.embed_tokens.weight"]} if header.tied else {}
    model.load_state_dict(weights | tied)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return model.eval()


def main(arguments: list[str] | None = None) -> int:
    """The command; exit code 2 and one line that says what is wrong for input that cannot be converted."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, metavar="MODEL.bin", help="weights, such as stories260K.bin")
    parser.add_argument("tokenizer", type=Path, metavar="TOKENIZER.bin", help="its tokenizer, such as tok512.bin")
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder to make")
    given = parser.parse_args(arguments)
    try:
        model = convert(given.model, given.tokenizer, given.out)
    except (OSError, ValueError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    c = model.config
    print(
        f"{given.out}: {c.num_hidden_layers} layers, {c.num_attention_heads} query heads over {c.num_key_value_heads} "
        f"key-value heads, {c.vocab_size} tokens, {c.max_position_embeddings} positions, {model.num_parameters():,} parameters"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
