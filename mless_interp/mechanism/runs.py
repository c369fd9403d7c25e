"""The runs of a contrast side by side in one forward pass, so that nothing has to outlive the layer that made it.

Runs without the span are made at full length: with the span masked for everything outside it, shared tokens have exactly
the activations of the shorter prompt at the same positions (methods §2: gap equals masked; in the same way base equals
masked at held positions). So all runs of a pair are rows of one batch.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..heads import Head, check_heads
from ..metrics.attention import retained_mass, span_mass
from ..metrics.outputs import span_output
from ..models.attention import masked_scores, softmax, values_of_heads
from ..models.base import Model
from ..models.info import AttentionRule, ModelError
from ..models.inputs import Inputs
from ..patching.sweep import checked_pairs
from ..prompts.pairs import PromptPair

CONTRASTS: dict[str, tuple[str, str]] = {
    "content": ("inserted", "gap"),
    "total": ("inserted", "base"),
    "held": ("held", "base"),
}
"""contrast -> (the run with the span, the run that it is compared with)."""
HELD = ("first", "spread")
BLOCK_ELEMENTS = 2**20
"""Largest heads x rows x keys of a pattern that is held at once."""


def runs_of(contrasts: Iterable[str]) -> tuple[str, ...]:
    """The runs that these contrasts need, in the order of the batch."""
    wanted = {run for contrast in contrasts for run in CONTRASTS[contrast]}
    if "total" in contrasts:
        wanted.add("gap")
    return tuple(run for run in ("inserted", "gap", "held", "base") if run in wanted)


def side_by_side(pair: PromptPair, runs: Sequence[str], *, held_positions: str = "first") -> Inputs:
    """The runs as rows of one batch, all of the inserted prompt's length, each with its own mask and positions."""
    n = len(pair.inserted)
    held = pair.condition("held", held_positions=held_positions).position_ids  # type: ignore[arg-type]
    assert held is not None
    plain = torch.arange(n)[None].to(held)
    masked = pair.condition("masked").attention_mask
    assert masked is not None
    everyone = torch.ones_like(masked)
    return Inputs(
        pair.inserted.tokens.expand(len(runs), n),
        position_ids=torch.cat([held if run in ("held", "base") else plain for run in runs]),
        attention_mask=torch.cat([masked if run in ("gap", "base") else everyone for run in runs]),
    )


@dataclass(frozen=True, eq=False)
class Read:
    """What the rows after the span read in one run of one layer.

    `lam` and `drop` `[head, row]` (attention kept outside the span, and on it), `sigma` `[head, row, d_head]`.
    """

    lam: Tensor
    drop: Tensor
    sigma: Tensor


def read_span(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, rule: AttentionRule, *, span: tuple[int, int]) -> Read:
    """Retained mass, drop and Sigma of one run `[1, token, ...]`, a block of rows at a time; never in half precision."""
    q, k, v = (x.float() if x.element_size() < 4 else x for x in (q, k, v))
    start, stop = span
    n, n_heads = q.shape[1:3]
    inside = torch.arange(n, device=q.device)
    inside = (inside >= start) & (inside < stop)
    values = values_of_heads(v[0], n_heads)
    step = max(1, BLOCK_ELEMENTS // (n_heads * n))
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for a in range(stop, n, step):
        b = min(a + step, n)
        seen = visible[:, :, a:b, :b]
        pattern = softmax(masked_scores(q[:, a:b], k[:, :b], seen, rule))[0]
        options = {"visible": seen[0], "dest_positions": torch.arange(a, b, device=q.device), "span": inside[:b]}
        parts.append(
            (
                retained_mass(pattern, **options),
                span_mass(pattern, **options),
                span_output(pattern, values[:, :b], **options),
            )
        )
    lam, drop, sigma = (torch.cat(blocks, 1) for blocks in zip(*parts, strict=True))
    return Read(lam, drop, sigma)


def fit_pairs(model: Model, pairs: Iterable[PromptPair], *, what: str) -> tuple[PromptPair, ...]:
    """The pairs, fit for comparing runs with and without the span; errors name the reason before anything runs."""
    found = tuple(pairs)
    if not found:
        raise ValueError(f"there are no prompt pairs to {what}")
    found = checked_pairs(found)
    if not model.shows_rotated:
        raise ModelError(
            f"{model.info.name} ({model.info.architecture}) shows no rotated queries and keys on backend "
            f"{model.info.backend!r}, from which lambda and Sigma are computed: use another backend, or a model with "
            "rotary positions"
        )
    return found


def chosen_heads(
    model: Model, heads: Iterable[Head] | None, layers: Iterable[int] | None, *, what: str
) -> tuple[Head, ...]:
    """The heads asked for by name or by layer (zero-based), in range and none twice; all of them for neither."""
    info = model.info
    if heads is not None and layers is not None:
        raise ValueError("give heads or layers, not both")
    if heads is not None:
        chosen = check_heads(heads, n_layers=info.n_layers, n_heads=info.n_heads)
        if not chosen:
            raise ValueError(f"no heads to {what}")
        return chosen
    asked = list(range(info.n_layers)) if layers is None else list(layers)
    if not asked:
        raise ValueError(f"no layers to {what}")
    for layer in asked:
        if isinstance(layer, bool) or not isinstance(layer, int):
            raise TypeError(f"a layer is a whole number (zero-based), got {layer!r}")
        if not 0 <= layer < info.n_layers:
            raise ValueError(f"layer {layer} is out of range (zero-based): 0 to {info.n_layers - 1}")
        if asked.count(layer) > 1:
            raise ValueError(f"layer {layer} is given twice")
    return tuple(Head(layer, head) for layer in sorted(asked) for head in range(info.n_heads))


def rounding(model: Model, dtype: torch.dtype) -> float:
    """Relative error that rounding alone may leave in a head's output: four units in the last place.

    Hugging Face's eager softmax is float32 even in a float64 model.
    """
    eps = torch.finfo(dtype).eps
    if model.info.attention == "eager" and model.info.backend != "hooked_transformer":
        eps = max(eps, torch.finfo(torch.float32).eps)
    return 4 * eps
