"""`decompose_attention`: a head's output with an inserted span as lambda z + Sigma, measured on any model."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..core.arguments import check_choice, check_count, checked
from ..core.heads import Head
from ..metrics import outputs
from ..metrics.attention import retained_mass, span_mass_null
from ..metrics.outputs import span_output
from ..models.arithmetic import masked_scores, softmax, values_of_heads, with_extra, with_sinks
from ..models.base import Model
from ..models.info import AttentionRule, Reducer
from ..models.sites import Held, attention_sites, site
from ..patching.prepared import fit_pairs, single
from ..prompts.conditions import CONDITIONS, CONTRASTS, HELD_POSITIONS, Contrast, one_of, several_of
from ..prompts.insertions import Insertion
from ..prompts.pairs import PromptPair, digest_of, followed, over_pairs, own_pairs, pairs_like
from ..prompts.problems import groups_of
from ..runtime.loop import RunOptions
from ..runtime.results import Found, put, stacked
from .decomposition import METRICS, AttentionDecomposition

DECOMPOSED = {name: contrast for name, contrast in CONTRASTS.items() if contrast.reads_span}
"""Contrasts whose corrupted run reads the span: what it reads is lambda and Sigma."""
RUNS = ("inserted", "masked", "held", "blind", "base")
"""The order of runs in a batch."""
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
    model: Model, pair: PromptPair, layers: Sequence[int], condition: str = "inserted"
) -> dict[str, np.ndarray]:
    """Lambda `[layer, head]` and Sigma `[layer, head, d_head]` of one problem, means over the rows after the span."""
    inputs = pair.condition(condition).to(model.info.device)
    visible = model.visible(inputs)
    kept: dict[int, tuple[Tensor, Tensor]] = {}

    def visit(layer: int, q: Tensor, k: Tensor, v: Tensor, z: Tensor) -> None:
        seen, rule = visible[layer].to(k.device), model.attention_rule(layer)
        read = Read.of(q, k, v, seen, rule, span=pair.span_mask)
        kept[layer] = read.lam.mean(1), read.sigma.mean(1)

    model.run(inputs, capture=visiting(layers, visit), logits_at="none")
    lam, sigma = (np.stack([kept[layer][at].double().cpu().numpy() for layer in layers]) for at in (0, 1))
    return {"lam": lam, "sigma": sigma}


@checked
def decompose_attention(
    model: Model,
    pairs: Iterable[PromptPair],
    *,
    heads: Iterable[Head | str] | None = None,
    layers: Iterable[int] | None = None,
    contrasts: Sequence[str] = ("content", "total", "held"),
    held_positions: str = "first",
    control: str | Insertion | None = None,
    n_control_draws: int = 5,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    seed: int = 0,
) -> AttentionDecomposition:
    r"""Split what an inserted span does to every head's output into scale, bias and shift, and say what is left.

    $$ z'_i = \lambda_i z_i + \Sigma_i, \qquad \lambda_i = 1 - \sum_{k \in I} A'_{ik}, \qquad
       \Sigma_i = \sum_{k \in I} A'_{ik} v_k $$

    per query and head. Against the run without the span at the same positions this is an identity in layer 0, whatever
    is inserted; against the plain prompt there is a third term, $\lambda_i (z^{\text{gap}}_i - z^{\text{base}}_i)$; in
    deeper layers a residual is left, which says how far attention is *not* affine there. Beside the true lambda the best
    global affine fit over queries is given, which is another number (`fit_slope`, `fit_r2`).

    Parameters
    ----------
    heads, layers : which (zero-based), one or the other; default all. Shares are of all heads of a layer in any case.
    contrasts : "content" (masked -> inserted, C3 and C1; C3 equals the gap C2 on the tokens of both prompts), "total"
        (base -> inserted, C0 and C1), "held" (base -> held, C0 and C4: content without any shift of positions). The first
        one is what is printed.
    held_positions : the span's own positions in C4, "first" or "spread" (methods §2 asks to report both).
    control : another insertion of the same length and place to compare lambda with: "random_sentence" (the mean of
        `n_control_draws` draws per problem), an `Insertion`, or None.
    checkpoint : a file that receives each finished problem; a run started again with the same settings goes on there.

    Raises `ValueError` for pairs without tokens after the insertion, no heads or layers, heads or layers given twice or
    out of range; `ModelError` where the model shows no rotated queries and keys or no output weights.

    Source: arXiv 2510.01032, Eq. 1-2; methods §3 (I1, I2, I9, I10). The paper calls lambda the drop and takes one number.
    """
    model.need_rotated("lambda and Sigma")
    found = own_pairs(model, fit_pairs(followed(pairs), what="decompose"))
    for pair in found:
        pair.need_span("what is read of it")
    contrasts = several_of(contrasts, DECOMPOSED, "contrast")
    one_of(held_positions, dict.fromkeys(HELD_POSITIONS), "held_positions")
    chosen = model.info.chosen(heads, layers, what="decompose")
    label, draws = _controls(model, found, control, n_control_draws, seed)
    grid, runs = model.info.mask_of(chosen), runs_of(contrasts)
    layers_of = np.flatnonzero(grid.any(1)).tolist()
    for layer in layers_of:
        model.attention_output(layer)  # what is not known is told before anything runs
    settings = {
        "contrasts": list(contrasts),
        "held_positions": held_positions,
        "heads": [str(head) for head in chosen],
        "n_heads": model.info.n_heads,
        "insertion": found[0].insertion.label,
        "control": label,
        "control_prompts": [digest_of(draw) for draw in draws],
        **model.identity,
        "prompts": digest_of(found),
    }

    def measured(pair: PromptPair, others: Sequence[PromptPair]) -> dict[str, Found | np.ndarray | None]:
        """`heads[metric][contrast]` `[layer, head]`, `layers[metric][contrast]` `[layer]`, and the mean lambda `[layer, head]`
        under other insertions: one forward pass of all runs of the pair, each layer reduced where it is made."""
        by_head: Found = {}
        by_layer: Found = {}
        inputs = pair.side_by_side(runs, held_positions=held_positions).to(model.info.device)
        visible_in, stop = model.visible(inputs), pair.span[1]

        def visit(layer: int, q: Tensor, k: Tensor, v: Tensor, z: Tensor) -> None:
            visible, rule = visible_in[layer].to(z.device), model.attention_rule(layer)
            read = {
                run: Read.of(q[row, None], k[row, None], v[row, None], visible[row, None], rule, span=pair.span_mask)
                for row, run in enumerate(runs)
                if CONDITIONS[run].reads_span
            }
            after = {run: z[row, stop:].transpose(0, 1) for row, run in enumerate(runs)}
            for contrast in contrasts:
                row = runs.index(CONTRASTS[contrast].corrupted)
                numbers, share = _numbers(model, layer, pair, CONTRASTS[contrast], after, read, v[row])
                together = torch.stack([values.double() for values in numbers.values()]).detach().cpu().numpy()
                for metric, values in zip(numbers, np.where(grid[layer], together, np.nan), strict=True):
                    put(by_head, metric, contrast, layer, values, shape=grid.shape)
                seen = with_extra(visible[row, :1, stop:], rule, value=True)
                span = with_extra(pair.span_mask.to(visible.device), rule)
                null = float((1 - span_mass_null(seen, span=span, dtype=torch.float64)).mean())
                put(by_layer, "lam_null", contrast, layer, null, shape=len(grid))
                if share is not None:
                    put(by_layer, "norm_share", contrast, layer, share, shape=len(grid))

        model.run(inputs, capture=visiting(layers_of, visit), logits_at="none")
        lam = None
        if others:
            lam = np.full(grid.shape, np.nan)
            lam[layers_of] = np.mean([span_reads(model, other, layers_of)["lam"] for other in others], axis=0)
            lam = np.where(grid, lam, np.nan)
        return {"heads": by_head, "layers": by_layer, "control": lam}

    done = over_pairs(
        model,
        found,
        single(lambda at: measured(found[at], [draw[at] for draw in draws])),
        label="decomposing attention",
        settings={**settings, "seed": seed},
        options=RunOptions(checkpoint, progress),
    )
    return AttentionDecomposition(
        problem_ids=tuple(pair.id for pair in found),
        groups=groups_of(pair.problem for pair in found),
        contrasts=contrasts,
        heads=chosen,
        values=stacked([each["heads"] for each in done], METRICS),
        layer_values=stacked([each["layers"] for each in done], ("lam_null", "norm_share")),
        control=np.stack([np.asarray(each["control"], dtype=float) for each in done]) if draws else None,
        settings=settings,
        seed=seed,
    )


def _controls(
    model: Model, pairs: tuple[PromptPair, ...], control: str | Insertion | None, n_draws: int, seed: int
) -> tuple[str | None, list[tuple[PromptPair, ...]]]:
    """The control's name, and its pairs draw by draw, in the order of the problems."""
    if control is None:
        return None, []
    check_count(n_draws, name="n_control_draws (control=None leaves it out)")
    if isinstance(control, str):
        check_choice(control, name="control", choices=("random_sentence", "an Insertion"))
        control = Insertion.random_sentence(pairs[0].n_inserted, seed=seed)
    insertion = control.placed_as(pairs[0].insertion)
    drawn = range(n_draws if insertion.kind == "random_sentence" else 1)
    each = (replace(insertion, draw=insertion.draw + number) for number in drawn)
    draws = [followed(pairs_like(model, pairs, one)) for one in each]
    for pair, ours in zip(draws[0], pairs, strict=True):
        if pair.n_inserted != ours.n_inserted or pair.base.ids != ours.base.ids[: len(pair.base)]:
            raise ValueError(
                f"problem {pair.id!r}: the control must insert as many tokens into the same prompt ({ours.n_inserted}), but "
                f"{insertion.label} inserts {pair.n_inserted}"
            )
    return insertion.label, draws


def matched_run(contrast: Contrast) -> str | None:
    """The run without the span at the corrupted one's positions, where the clean run has others: the shift alone is between."""
    return None if contrast.same_positions else CONTRASTS["content"].clean


def runs_of(contrasts: Iterable[str]) -> tuple[str, ...]:
    """The conditions that these contrasts need, in the order of the batch."""
    needed = {
        run
        for contrast in map(CONTRASTS.__getitem__, contrasts)
        for run in (contrast.clean, contrast.corrupted, matched_run(contrast))
    }
    return tuple(run for run in RUNS if run in needed)


def _numbers(
    model: Model,
    layer: int,
    pair: PromptPair,
    contrast: Contrast,
    z: Mapping[str, Tensor],
    reads: Mapping[str, Read],
    v: Tensor,
) -> tuple[dict[str, Tensor], float | None]:
    """Every metric `[head]` of a layer in one contrast, and the share of the change after a norm that no head has.

    `z[run]` `[head, row, d_head]` and `reads[run]` at the rows after the span, `v` `[token, kv_head, d_head]`.
    """
    before, after, read = z[contrast.clean], z[contrast.corrupted], reads[contrast.corrupted]
    matched = matched_run(contrast)
    parts = outputs.affine_parts(
        after, before, lam=read.lam, sigma=read.sigma, matched=None if matched is None else z[matched]
    )
    size = before.float().flatten(-2).norm(dim=-1)
    change = parts.change.flatten(-2).norm(dim=-1)
    # the relative error that rounding alone may leave in a head's output: four units in the last place
    eps = torch.finfo(before.dtype).eps
    noise = 4 * (max(eps, torch.finfo(torch.float32).eps) if model.float32_softmax else eps)
    fit = outputs.affine_fit(before, after)
    values = v[pair.span_mask.to(v.device)].transpose(0, 1)
    inside = torch.ones(pair.n_inserted, dtype=torch.bool, device=values.device)
    of_values = (outputs.value_cosine, outputs.value_spectral_share, outputs.value_effective_rank)
    group = model.info.n_heads // model.info.n_key_value_heads
    found = {
        "lam": read.lam.mean(-1),
        "lam_sd": read.lam.std(-1, correction=0),
        "lam_last": read.lam[:, -1],
        "sigma_norm": read.sigma.norm(dim=-1).mean(-1),
        "direction_coherence": outputs.direction_coherence(read.sigma),
        **{each.__name__: each(values, span=inside).repeat_interleave(group, 0) for each in of_values},
        "change": torch.where(size > 0, change / size, torch.nan),
        "residual": outputs.affine_residual(parts.rest, parts.change, rounding=noise * size),
        "fit_slope": fit.slope,
        "fit_r2": fit.r2,
    }
    if parts.shift is not None:
        found["shift_left_out"] = outputs.affine_residual(parts.rest + parts.shift, parts.change, rounding=noise * size)
    shares, rescaled = _shares(model, layer, after, before, parts, noise)
    return found | shares, rescaled


def _shares(
    model: Model, layer: int, after: Tensor, before: Tensor, parts: outputs.AffineParts, noise: float
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
    if float(added.norm()) < 10 * noise * float(old.norm()):
        added = torch.full_like(added, torch.nan)  # nothing but rounding
    found = {
        f"{name}share": outputs.residual_share(piece, added, output_weights=weights) for name, piece in pieces.items()
    }
    if output.norm is None:
        return found, None
    gain, gain_before = (outputs.frozen_gain(output.norm, summed) for summed in (new, old))
    normed = gain.to(wide) * new - gain_before.to(wide) * old + 0 * added
    for name, piece in pieces.items():
        found[f"{name}share_after_norm"] = outputs.residual_share(
            piece, normed, output_weights=weights, gain=gain.to(wide)
        )
    total = normed.square().sum()
    rescaled = ((gain - gain_before).to(wide) * old * normed).sum() / total
    return found, float(torch.where(total > 0, rescaled, torch.nan))
