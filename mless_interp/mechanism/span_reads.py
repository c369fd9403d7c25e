"""What heads read of the inserted tokens: lambda and Sigma of one run, reduced inside the layer that made them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ..metrics.attention import retained_mass
from ..metrics.outputs import span_output
from ..models.arithmetic import masked_scores, softmax, values_of_heads, with_extra, with_sinks
from ..models.base import Model
from ..models.info import AttentionRule, Reducer
from ..models.sites import Held, attention_sites, site
from ..patching.prepared import fit_pairs
from ..prompts.conditions import CONTRASTS
from ..prompts.pairs import PromptPair, followed, own_pairs

DECOMPOSED = {name: contrast for name, contrast in CONTRASTS.items() if contrast.reads_span}
"""Contrasts whose corrupted run reads the span: what it reads is lambda and Sigma."""
BLOCK_ELEMENTS = 2**20
"""Largest heads x rows x keys of a pattern that is held at once."""

Visit = Callable[[int, Tensor, Tensor, Tensor, Tensor], None]
"""Takes a layer, and what it shows of the run: queries and keys as they enter the scores, values, head outputs."""


@dataclass(frozen=True, eq=False)
class Read:
    """What the rows after the span read in one run of one layer.

    `lam` `[head, row]` is the attention kept outside the span (a learned sink's share with it), `sigma` `[head, row, d_head]`.
    """

    lam: Tensor
    sigma: Tensor

    @classmethod
    def of(cls, q: Tensor, k: Tensor, v: Tensor, visible: Tensor, rule: AttentionRule, *, span: Tensor) -> "Read":
        """From one run `[1, token, ...]`, a block of rows at a time; never in half precision.

        `span` is boolean `[token]`; read are the rows after its last token.
        """
        q, k, v = (x.float() if x.element_size() < 4 else x for x in (q, k, v))
        n, n_heads = q.shape[1:3]
        inside, values = span.to(q.device), values_of_heads(v[0], n_heads)
        step = max(1, BLOCK_ELEMENTS // (n_heads * n))
        parts: list[tuple[Tensor, Tensor]] = []
        for a in range(int(span.nonzero()[-1]) + 1, n, step):
            b = min(a + step, n)
            seen = visible[:, :, a:b, :b]
            pattern = softmax(with_sinks(masked_scores(q[:, a:b], k[:, :b], seen, rule), rule.column))[0]
            keys = {
                "visible": with_extra(seen[0], rule, value=True),
                "dest_positions": torch.arange(a, b, device=q.device),
                "span": with_extra(inside[:b], rule),
            }
            padded = torch.nn.functional.pad(values[:, :b], (0, 0, 0, rule.n_extra))
            parts.append((retained_mass(pattern, **keys), span_output(pattern, padded, **keys)))
        lam, sigma = (torch.cat(blocks, 1) for blocks in zip(*parts, strict=True))
        return cls(lam, sigma)


def visiting(layers: Iterable[int], visit: Visit) -> dict[str, Reducer]:
    """Captures of a run that call `visit` inside each of these layers; nothing outlives it."""
    held = Held()

    def reduce(layer: int, parts: Sequence[str], z: Tensor) -> None:
        q, k, v = held.take(*parts)  # by now they have come, in whatever order
        visit(layer, q, k, v, z)

    capture: dict[str, Reducer] = {}
    for layer in layers:
        parts = attention_sites(layer, "rot_q", "rot_k", "v")
        capture |= {**held.captures(*parts), site(layer, "attn.hook_z"): partial(reduce, layer, parts)}
    return capture


def span_reads(
    model: Model, pair: PromptPair, layers: Sequence[int], condition: str = "inserted", *, rows: bool = False
) -> dict[str, np.ndarray]:
    """Lambda `[layer, head]` and Sigma `[layer, head, d_head]` of one problem, means over the rows after the span.

    `rows`: each of them instead, `[layer, head, row]` and `[layer, head, row, d_head]`.
    """
    inputs = pair.condition(condition).to(model.info.device)
    visible = model.visible(inputs)
    kept: dict[int, tuple[Tensor, Tensor]] = {}

    def visit(layer: int, q: Tensor, k: Tensor, v: Tensor, z: Tensor) -> None:
        seen, rule = visible[layer].to(k.device), model.attention_rule(layer)
        read = Read.of(q, k, v, seen, rule, span=pair.span_mask)
        kept[layer] = (read.lam, read.sigma) if rows else (read.lam.mean(1), read.sigma.mean(1))

    model.run(inputs, capture=visiting(layers, visit), logits_at="none")
    lam, sigma = (np.stack([kept[layer][at].double().cpu().numpy() for layer in layers]) for at in (0, 1))
    return {"lam": lam, "sigma": sigma}


def readable_pairs(model: Model, pairs: Iterable[PromptPair], *, what: str) -> tuple[PromptPair, ...]:
    """The pairs, fit for comparing runs with and without the span on a model that shows what is read."""
    model.need_rotated("lambda and Sigma")
    found = own_pairs(model, fit_pairs(followed(pairs), what=what))
    for pair in found:
        pair.need_span("what is read of it")
    return found
