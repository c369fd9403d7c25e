"""The runs of a contrast side by side in one forward pass (`PromptPair.side_by_side`), reduced in the layer that made them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..metrics.attention import retained_mass, span_mass
from ..metrics.outputs import span_output
from ..models.arithmetic import masked_scores, softmax, values_of_heads, with_extra, with_sinks
from ..models.base import Model
from ..models.info import AttentionRule
from ..models.inputs import Reducer
from ..models.sites import Held, attention_sites, site
from ..patching.prepared import fit_pairs
from ..prompts.conditions import CONTRASTS, Contrast
from ..prompts.pairs import PromptPair, followed, own_pairs

DECOMPOSED = {name: contrast for name, contrast in CONTRASTS.items() if contrast.reads_span}
"""Contrasts whose corrupted run reads the span: what it reads is lambda and Sigma."""
BLOCK_ELEMENTS = 2**20
"""Largest heads x rows x keys of a pattern that is held at once."""


def at_inserted_positions(contrast: Contrast) -> str | None:
    """The run that stands where the corrupted one does and cannot see the span, where the clean run stands elsewhere.

    What separates it from the clean run is the shift of positions alone.
    """
    return None if contrast.same_positions else CONTRASTS["content"].clean


def runs_of(contrasts: Iterable[str]) -> tuple[str, ...]:
    """The conditions that these contrasts need, in the order of the batch."""
    wanted: set[str] = set()
    for contrast in (CONTRASTS[name] for name in contrasts):
        wanted |= {contrast.clean, contrast.corrupted}
        shifted = at_inserted_positions(contrast)
        wanted |= set() if shifted is None else {shifted}
    return tuple(name for name in ("inserted", "masked", "held", "blind", "base") if name in wanted)


@dataclass(frozen=True, eq=False)
class Read:
    """What the rows after the span read in one run of one layer.

    `lam` and `drop` `[head, row]` (attention kept outside the span, a learned sink's share with it, and on it), `sigma`
    `[head, row, d_head]`.
    """

    lam: Tensor
    drop: Tensor
    sigma: Tensor


def read_span(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, rule: AttentionRule, *, span: Tensor) -> Read:
    """Retained mass, drop and Sigma of one run `[1, token, ...]`, a block of rows at a time; never in half precision.

    `span` is boolean `[token]`; read are the rows after its last token.
    """
    q, k, v = (x.float() if x.element_size() < 4 else x for x in (q, k, v))
    n, n_heads = q.shape[1:3]
    inside, stop = span.to(q.device), int(span.nonzero()[-1]) + 1
    values = values_of_heads(v[0], n_heads)
    step = max(1, BLOCK_ELEMENTS // (n_heads * n))
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for a in range(stop, n, step):
        b = min(a + step, n)
        seen = visible[:, :, a:b, :b]
        pattern = softmax(with_sinks(masked_scores(q[:, a:b], k[:, :b], seen, rule), rule.column))[0]
        options = {
            "visible": with_extra(seen[0], rule, value=True),
            "dest_positions": torch.arange(a, b, device=q.device),
            "span": with_extra(inside[:b], rule),
        }
        parts.append(
            (
                retained_mass(pattern, **options),
                span_mass(pattern, **options),
                span_output(pattern, torch.nn.functional.pad(values[:, :b], (0, 0, 0, rule.n_extra)), **options),
            )
        )
    lam, drop, sigma = (torch.cat(blocks, 1) for blocks in zip(*parts, strict=True))
    return Read(lam, drop, sigma)


def span_reads(
    model: Model, pair: PromptPair, layers: Sequence[int], condition: str = "inserted", *, rows: bool = False
) -> dict[str, np.ndarray]:
    """Lambda `[layer, head]` and Sigma `[layer, head, d_head]` of one problem, means over the rows after the span.

    `rows`: each of them instead, `[layer, head, row]` and `[layer, head, row, d_head]`.
    """
    inputs = pair.condition(condition).to(model.info.device)
    visible, held = model.visible(inputs), Held()
    kept: dict[int, tuple[Tensor, Tensor]] = {}

    def reduce(layer: int, parts: tuple[str, ...]) -> Reducer:
        def take(z: Tensor) -> None:  # by then queries, keys and values have come, in whatever order
            q, k, v = held.take(*parts)
            rule = model.attention_rule(layer)
            read = read_span(q, k, v, visible[layer].to(k.device), rule, span=pair.span_mask)
            kept[layer] = (read.lam, read.sigma) if rows else (read.lam.mean(1), read.sigma.mean(1))

        return take

    capture: dict[str, Reducer] = {}
    for layer in layers:
        parts = attention_sites(layer, "rot_q", "rot_k", "v")
        capture |= {**held.captures(*parts), site(layer, "attn.hook_z"): reduce(layer, parts)}
    model.run(inputs, capture=capture, logits_at="none")
    lam, sigma = (np.stack([kept[layer][at].double().cpu().numpy() for layer in layers]) for at in (0, 1))
    return {"lam": lam, "sigma": sigma}


def readable_pairs(model: Model, pairs: Iterable[PromptPair], *, what: str) -> tuple[PromptPair, ...]:
    """The pairs, fit for comparing runs with and without the span on a model that shows what is read."""
    model.need_rotated("lambda and Sigma")
    found = own_pairs(model, fit_pairs(followed(pairs), what=what))
    for pair in found:
        pair.need_span("what is read of it")
    return found


def rounding(model: Model, dtype: torch.dtype) -> float:
    """Relative error that rounding alone may leave in a head's output: four units in the last place."""
    eps = torch.finfo(dtype).eps
    if model.float32_softmax:
        eps = max(eps, torch.finfo(torch.float32).eps)
    return 4 * eps
