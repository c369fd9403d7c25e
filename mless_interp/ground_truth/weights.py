"""The weights of the planted models, set in code. What the parts do is told in `planted.py`.

Everything is written in a readable basis (one residual channel per feature) and turned at the end: the residual stream
by one random rotation, the values of each key-value head by another. RMSNorm has one weight for all channels, so it
commutes with the rotation. All arithmetic is float64; `x` below is a normalised residual, about equal to the residual.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil

import torch
from torch import Tensor

from ..core.heads import Head
from .roles import Roles
from .tokenizer import ANSWER_PREFIX, EOS, NEUTRAL, NUMBERS, SYSTEM, Vocabulary

ROPE_THETA = 1e8
CONSTANT = 32.0
"""The embeddings' constant; other features are about 1, so a head that writes 1 changes RMSNorm's scale by 0.1 %."""

_KEY_FEATURES = ("unit", "question", "system", "number", "size")
_IDENTITIES = tuple(f"is {number}" for number in NUMBERS)
_COPIES = tuple(f"copied {number}" for number in NUMBERS)
_ANSWERS = tuple(f"answer {number}" for number in NUMBERS)
_VALUE_FEATURES = ("word", "unit", "signal", *_IDENTITIES)
_NEXT = dict(zip(("?", *ANSWER_PREFIX), (*ANSWER_PREFIX, "number"), strict=True)) | {"number": "}", "}": EOS}
_NEXT_CHANNELS = tuple(f"next {token}" for token in dict.fromkeys(_NEXT.values()))
_CHANNELS = (
    "constant", *_KEY_FEATURES, *_IDENTITIES, *_COPIES, *_ANSWERS, "signal", "carried", "drive", *_NEXT_CHANNELS
)  # fmt: skip

_NEXT_LOGIT = 12.0
_DRIVE = 1.0  # what one `avoids` head adds to the factor of the answer
_FACTOR = {1: (2.0, 2.0), -1: (4.0, -2.0)}  # the answer's factor without the span, and what all readers add to it
_STEEP = 20.0  # slope of the step between enough and too little, where heads do not simply add up
_BLIND = -8.0  # the score of the unit in rows from which a head does not look at it
_UNREAD_SIZE = 1.5
_IDLE_SCALE = 0.04  # of idle queries and keys: scores of idle heads have a standard deviation near 1
_MIN_IDLE_CHANNELS = 24
_MAX_TURN = 0.01  # radians that RoPE may turn a key feature over _TURN_POSITIONS
_TURN_POSITIONS = 512

_Normal = Callable[..., Tensor]  # (*shape, scale=...) → seeded normal numbers


@dataclass(frozen=True)
class PlantedWeights:
    """What fixes the weights of a planted model; `gains`: how much each head writes, `reads`: the tokens that are read."""

    vocabulary: Vocabulary
    roles: Roles
    gains: Mapping[Head, float]
    reads: Sequence[str]
    n_heads: int
    n_key_value_heads: int
    seed: int
    sign: int
    noise: float

    @cached_property
    def channel(self) -> dict[str, int]:
        """Where each feature stands in the residual stream, before it is turned."""
        own = [f"unread {head}" for head in self.roles.decoys["unread"]]
        own += [f"from {head}" for head in self.roles.reads_from]
        own += [f"switch {head}" for head in self.roles.switches]
        return {name: at for at, name in enumerate([*_CHANNELS, *own, *(["noted"] if self.roles.relayed else [])])}

    @property
    def d_head(self) -> int:
        return 16 * ceil((len(self.channel) + _MIN_IDLE_CHANNELS) / (16 * self.n_heads))

    @property
    def d_model(self) -> int:
        return self.n_heads * self.d_head

    @property
    def d_mlp(self) -> int:
        """Neurons of every MLP: one per number (three for a step), and some idle ones."""
        return (2 if self.roles.combine == "sum" else 4) * len(NUMBERS)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the weights by their Hugging Face names, `[out, in]`, float64."""
        generator = torch.Generator().manual_seed(self.seed)

        def normal(*shape: int, scale: float) -> Tensor:
            return scale * torch.randn(*shape, generator=generator, dtype=torch.float64)

        def rotation(n: int) -> Tensor:
            return torch.linalg.qr(normal(n, n, scale=1.0)).Q

        embedding, n = self._features(), len(self.channel)
        embedding[:, n:] = torch.nn.functional.normalize(normal(len(embedding), self.d_model - n, scale=1.0))
        norm = torch.full((self.d_model,), float(embedding.square().mean().sqrt()), dtype=torch.float64)
        turn = rotation(self.d_model)
        weights = {
            "model.embed_tokens.weight": embedding @ turn,
            "model.norm.weight": norm,
            "lm_head.weight": self._unembedding(normal) @ turn,
        }
        group = self.n_heads // self.n_key_value_heads
        for layer in range(self.roles.n_layers):
            q, k, v, o = self._attention(layer, normal)
            turns = [rotation(self.d_head) for _ in range(self.n_key_value_heads)]
            v = torch.cat([turns[i] @ rows for i, rows in enumerate(v.split(self.d_head))])
            o = torch.cat([part @ turns[i // group].T for i, part in enumerate(o.split(self.d_head, dim=1))], dim=1)
            gate, up, down = self._mlp(layer, normal)
            name = f"model.layers.{layer}"
            reading = {"self_attn.q": q, "self_attn.k": k, "self_attn.v": v, "mlp.gate": gate, "mlp.up": up}
            weights |= {f"{name}.{part}_proj.weight": weight @ turn for part, weight in reading.items()}
            weights |= {
                f"{name}.self_attn.o_proj.weight": turn.T @ o,
                f"{name}.mlp.down_proj.weight": turn.T @ down,
                f"{name}.input_layernorm.weight": norm,
                f"{name}.post_attention_layernorm.weight": norm,
            }
        return weights

    def _features(self) -> Tensor:
        """Return what each token is, `[token, channel]`, without its own random direction."""
        channel = self.channel
        features = torch.zeros(len(self.vocabulary.tokens), self.d_model, dtype=torch.float64)
        features[:, channel["constant"]] = CONSTANT
        for row, token in zip(features, self.vocabulary.tokens, strict=True):
            if token in self.reads:
                row[channel["unit"]] = 1
            elif token in SYSTEM:
                row[channel["system"]] = 1
            elif token not in NEUTRAL:
                row[channel["question"]] = 1
            if token in NUMBERS:
                value = NUMBERS.index(token)
                row[channel["number"]] = 1
                row[channel["size"]] = value / (len(NUMBERS) - 1)
                row[channel[_IDENTITIES[value]]] = 1
            for head, tokens in self.roles.reads_from.items():
                row[channel[f"from {head}"]] = token in tokens
            following = _NEXT.get("number" if token in NUMBERS else token)
            if following is not None:
                row[channel[f"next {following}"]] = 1
        return features

    def _unembedding(self, normal: _Normal) -> Tensor:
        channel = self.channel
        rows = torch.zeros(len(self.vocabulary.tokens), self.d_model, dtype=torch.float64)
        rows[:, channel["constant"]] = normal(len(rows), scale=0.4 / CONSTANT)
        for row, token in zip(rows, self.vocabulary.tokens, strict=True):
            if token in NUMBERS:
                row[channel[_ANSWERS[NUMBERS.index(token)]]] = 1
                row[channel["next number"]] = _NEXT_LOGIT
            elif f"next {token}" in channel:
                row[channel[f"next {token}"]] = _NEXT_LOGIT
        return rows

    def _attention(self, layer: int, normal: _Normal) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return query, key, value and output matrices of one layer, `[out, in]` as in Hugging Face."""
        d, channel = self.d_head, self.channel
        # dimensions of a key that RoPE (Hugging Face's pairs i, i + d / 2) hardly turns
        slow = [i for i in range(d // 2) if ROPE_THETA ** (-i / (d // 2)) * _TURN_POSITIONS < _MAX_TURN]
        still = [*slow, *(i + d // 2 for i in slow)]
        key_of = dict(zip(_KEY_FEATURES, still, strict=False))
        moving = [i for i in range(d) if i not in still]
        value_of = {name: i for i, name in enumerate((*_VALUE_FEATURES, *(["noted"] if self.roles.relayed else [])))}

        k = torch.zeros(self.n_key_value_heads, d, self.d_model, dtype=torch.float64)
        v = torch.zeros_like(k)
        k[:, moving] = normal(self.n_key_value_heads, len(moving), self.d_model, scale=_IDLE_SCALE)
        for name, i in key_of.items():
            k[:, i, channel[name]] = 1
        for name, i in value_of.items():
            for source in ("question", "system") if name == "word" else (name,):
                v[:, i, channel[source]] = 1
        v[:, len(value_of) :] = normal(self.n_key_value_heads, d - len(value_of), self.d_model, scale=_IDLE_SCALE)

        q = torch.zeros(self.n_heads, d, self.d_model, dtype=torch.float64)
        o = torch.zeros(self.n_heads, self.d_model, d, dtype=torch.float64)
        for head in (Head(layer, h) for h in range(self.n_heads)):
            if head not in self.roles.kinds:
                q[head.head, moving] = normal(len(moving), self.d_model, scale=_IDLE_SCALE)
                o[head.head] = normal(self.d_model, d, scale=self.noise)
                continue
            for name, source, score in self._scores(head, normal):
                size = CONSTANT if source == "constant" else 1.0
                q[head.head, key_of[name], channel[source]] = score * d**0.5 / size
            for source, target, size in self._writes(head):
                o[head.head, channel[target], value_of[source]] = size
        return q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), o.transpose(0, 1).reshape(self.d_model, -1)

    def _scores(self, head: Head, normal: _Normal) -> list[tuple[str, str, float]]:
        """Return a head's scores of features of a key: (feature, the query's channel, score); constant channel: all rows."""
        lift = 0.2 * float(normal(1, scale=1.0).clamp(-2, 2))
        sees = 2.0 + lift if self.roles.combine == "sum" else 3.5 + lift
        blind = ("unit", "constant", _BLIND)
        if head in self.roles.reads_from:
            return [blind, ("unit", f"from {head}", sees - _BLIND)]
        match self.roles.kinds[head]:
            case "reader" | "against" | "relay":
                return [("unit", "constant", sees)]
            case "silent" | "unread" | "switch":
                return [("unit", "constant", 3.5 + lift)]
            case "recaller":
                return [("system", "constant", 6.0), ("unit", "constant", 12.0 + lift)]
            case "thinker":  # in the span's rows at the numbers; elsewhere, and without any, at the system prompt
                return [("system", "constant", 8.0), blind, ("number", "unit", 20.0), ("size", "unit", 6.0)]
            case "conditional":
                return [blind, ("unit", f"switch {self.roles.conditional[head]}", 3.0 + lift - _BLIND)]
            case "span writer":
                return [blind, ("unit", "unit", 4.0 + lift - _BLIND)]
            case "mediator":
                return [("number", "constant", 8.0), blind]
            case "avoids":
                return [("question", "constant", 8.0), ("system", "constant", 8.0), blind]
            case _:  # the copier
                return [("number", "constant", 8.0), ("size", "constant", 5.0), blind]

    def _writes(self, head: Head) -> list[tuple[str, str, float]]:
        """Return what a head does with what it reads: (value feature, residual channel, size)."""
        base, slope = _FACTOR[self.sign]
        kind, gain = self.roles.kinds[head], self.gains.get(head, 0.0)
        if kind in ("copier", "thinker", "recaller"):  # the answer's factor multiplies what is copied
            size = gain * slope / base if kind == "recaller" else 1.0
            targets = _IDENTITIES if kind == "thinker" else _COPIES
            return [(source, target, size) for source, target in zip(_IDENTITIES, targets, strict=True)]
        writes = {
            **dict.fromkeys(("reader", "conditional"), ("unit", "signal", gain)),
            "mediator": ("signal", "carried", gain),
            "against": ("unit", "carried", gain),
            "relay": ("noted", "carried", gain),
            "switch": ("unit", f"switch {head}", 1.0),
            "span writer": ("unit", "noted", 1.0),
            "unread": ("unit", f"unread {head}", _UNREAD_SIZE),
            "avoids": ("word", "drive", _DRIVE),
        }
        return [writes[kind]] if kind in writes else []  # silent

    def _mlp(self, layer: int, normal: _Normal) -> tuple[Tensor, Tensor, Tensor]:
        """Return gate, up and down matrices: noise, but the last MLP multiplies the copied numbers by the answer's factor."""
        gate = normal(self.d_mlp, self.d_model, scale=_IDLE_SCALE)
        up = normal(self.d_mlp, self.d_model, scale=_IDLE_SCALE)
        down = normal(self.d_model, self.d_mlp, scale=self.noise)
        if layer < self.roles.n_layers - 1:
            return gate, up, down
        channel, n, threshold = self.channel, len(NUMBERS), self.roles.threshold
        base, slope = _FACTOR[self.sign]
        base -= _DRIVE * len(self.roles.decoys["avoids"])
        parts = [(base, slope, 1.0)]  # bias, slope, what it counts
        if threshold is not None:  # silu(u + 1) - silu(u - 1) rises from 0 to 2 around u = 0
            u = -_STEEP * threshold
            parts = [(base, 0.0, 1.0), (u + 1, _STEEP, slope / 2), (u - 1, _STEEP, -slope / 2)]
        for part, (bias, steep, counts) in enumerate(parts):
            rows = slice(part * n, (part + 1) * n)
            gate[rows], up[rows], down[:, rows] = 0, 0, 0
            gate[rows, channel["constant"]] = bias / CONSTANT
            gate[rows, channel["drive"]] = float(part == 0)
            gate[rows, [channel["signal"], channel["carried"]]] = steep
            for i, copied, answer in zip(range(rows.start, rows.stop), _COPIES, _ANSWERS, strict=True):
                up[i, channel[copied]] = 1
                down[channel[answer], i] = counts
        return gate, up, down
