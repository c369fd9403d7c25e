"""One prompt pair, all runs of its contrasts in one forward pass, every layer reduced where it is made."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..metrics.attention import span_mass_null
from ..metrics.outputs import (
    AffineParts,
    affine_fit,
    affine_parts,
    affine_residual,
    direction_coherence,
    frozen_gain,
    residual_share,
    value_cosine,
    value_effective_rank,
    value_spectral_share,
)
from ..models.arithmetic import with_extra
from ..models.base import Model
from ..models.inputs import Reducer
from ..models.sites import Held, attention_sites, site
from ..prompts.conditions import CONDITIONS, CONTRASTS
from ..prompts.pairs import PromptPair
from .runs import Read, at_inserted_positions, read_span, rounding

HeadNumbers = dict[tuple[str, str], Tensor]
"""(metric, contrast) -> `[head]`."""
LayerNumbers = dict[tuple[str, str], float]
"""(metric, contrast) -> one number of the layer."""


@dataclass(frozen=True, eq=False)
class LayerRuns:
    """What one layer shows of all runs, at the rows after the span; lives only inside that layer.

    `z[run]` `[head, row, d_head]`, `read[run]` of the runs that see the span, `v` `[run, token, kv_head, d_head]`.
    """

    z: dict[str, Tensor]
    read: dict[str, Read]
    v: Tensor

    def parts(self, contrast: str) -> AffineParts:
        """The change of this contrast, split."""
        between = CONTRASTS[contrast]
        read, shifted = self.read[between.corrupted], at_inserted_positions(between)
        matched = None if shifted is None else self.z[shifted]
        before, after = self.z[between.clean], self.z[between.corrupted]
        return affine_parts(after, before, lam=read.lam, sigma=read.sigma, matched=matched)


def each_layer(
    model: Model,
    pair: PromptPair,
    runs: Sequence[str],
    *,
    layers: Iterable[int],
    held_positions: str,
    visit: Callable[[int, LayerRuns, Tensor], None],
) -> None:
    """One forward pass of all runs; `visit(layer, runs, visible)` is called inside each layer, and nothing outlives it."""
    inputs = pair.side_by_side(runs, held_positions=held_positions).to(model.info.device)
    visible_in, held, span = model.visible(inputs), Held(), pair.span_mask
    stop = int(span.nonzero()[-1]) + 1

    def reducer(layer: int, parts: tuple[str, ...]) -> Reducer:
        def reduce(z: Tensor) -> None:
            q, k, v = held.take(*parts)
            visible, rule = visible_in[layer].to(z.device), model.attention_rule(layer)
            read = {}
            for row, run in enumerate(runs):
                if CONDITIONS[run].reads_span:
                    one = slice(row, row + 1)
                    read[run] = read_span(q[one], k[one], v[one], visible[one], rule, span=span)
            after = {run: z[row, stop:].transpose(0, 1) for row, run in enumerate(runs)}
            visit(layer, LayerRuns(after, read, v), visible)

        return reduce

    capture: dict[str, Reducer] = {}
    for layer in layers:
        parts = attention_sites(layer, "rot_q", "rot_k", "v")
        capture |= {**held.captures(*parts), site(layer, "attn.hook_z"): reducer(layer, parts)}
    model.run(inputs, capture=capture, logits_at="none")


def layer_numbers(
    model: Model, pair: PromptPair, contrasts: Sequence[str], layer: int, runs: LayerRuns, visible: Tensor
) -> tuple[HeadNumbers, LayerNumbers]:
    """All numbers of a layer: per head, and of the layer as a whole."""
    heads: HeadNumbers = {}
    whole: LayerNumbers = {}
    span = pair.span_mask.to(visible.device)
    inside = torch.ones(pair.n_inserted, dtype=torch.bool, device=visible.device)
    groups = model.info.n_heads // model.info.n_key_value_heads
    for contrast in contrasts:
        new, reference = CONTRASTS[contrast].corrupted, CONTRASTS[contrast].clean
        read, parts = runs.read[new], runs.parts(contrast)
        before = runs.z[reference]
        row = list(runs.z).index(new)
        values = runs.v[row, span.to(runs.v.device)].transpose(0, 1)
        size = before.float().flatten(-2).norm(dim=-1)
        change = parts.change.flatten(-2).norm(dim=-1)
        floor = rounding(model, before.dtype) * size
        fit = affine_fit(before, runs.z[new])
        found = {
            "lam": read.lam.mean(-1),
            "lam_sd": read.lam.std(-1, correction=0),
            "lam_last": read.lam[:, -1],
            "sigma_norm": read.sigma.norm(dim=-1).mean(-1),
            "direction_coherence": direction_coherence(read.sigma),
            "change": torch.where(size > 0, change / size, torch.nan),
            "residual": affine_residual(parts.rest, parts.change, rounding=floor),
            "fit_slope": fit.slope,
            "fit_r2": fit.r2,
        }
        for name, metric in _VALUE_METRICS.items():
            found[name] = metric(values, span=inside).repeat_interleave(groups, 0)
        if parts.shift is not None:
            found["shift_left_out"] = affine_residual(parts.rest + parts.shift, parts.change, rounding=floor)
        shares, rescaled = _shares(model, layer, runs.z[new], before, parts)
        found |= shares
        heads |= {(name, contrast): value for name, value in found.items()}
        keys, rule = visible[row, :1, pair.span[1] :], model.attention_rule(layer)
        null = span_mass_null(with_extra(keys, rule, value=True), span=with_extra(span, rule), dtype=torch.float64)
        whole["lam_null", contrast] = float((1 - null).mean())
        if rescaled is not None:
            whole["norm_share", contrast] = rescaled
    return heads, whole


_VALUE_METRICS = {
    "value_cosine": value_cosine,
    "value_spectral_share": value_spectral_share,
    "value_effective_rank": value_effective_rank,
}


def _shares(
    model: Model, layer: int, after: Tensor, before: Tensor, parts: AffineParts
) -> tuple[dict[str, Tensor], float | None]:
    """Shares of the residual change before the layer's norm of attention's output and, where it has one, after it.

    With the second, the share that no head has: that the norm divides the two runs by different numbers.
    """
    output = model.attention_output(layer)
    wide = parts.change.dtype
    new, old = (output.before_norm(z.transpose(0, 1).to(wide)) for z in (after, before))
    weights = output.weights.to(parts.change)
    pieces = {"": parts.change, "scale_": parts.scale, "bias_": parts.bias, "rest_": parts.rest}
    if parts.shift is not None:
        pieces["shift_"] = parts.shift
    added = torch.einsum("hrd,hdm->rm", parts.change, weights)
    if float(added.norm()) < 10 * rounding(model, before.dtype) * float(old.norm()):
        added = torch.full_like(added, torch.nan)  # nothing but rounding
    found = {f"{name}share": residual_share(piece, added, output_weights=weights) for name, piece in pieces.items()}
    if output.norm is None:
        return found, None
    gain, gain_before = frozen_gain(output.norm, new), frozen_gain(output.norm, old)
    normed = gain.to(wide) * new - gain_before.to(wide) * old + 0 * added
    for name, piece in pieces.items():
        found[f"{name}share_after_norm"] = residual_share(piece, normed, output_weights=weights, gain=gain.to(wide))
    total = normed.square().sum()
    rescaled = ((gain - gain_before).to(wide) * old * normed).sum() / total
    return found, float(torch.where(total > 0, rescaled, torch.nan))
