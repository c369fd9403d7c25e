"""`mediate`: what the scale and the bias that attention takes on each do to the MLP's activations and to the answer."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..core.arguments import checked
from ..core.heads import Head
from ..metrics.activations import mean_absolute, median_variance, near_zero_fraction
from ..metrics.patterns import widened
from ..models.base import Model
from ..models.sites import Held, attention_sites, site
from ..patching.outcomes import Outcome
from ..patching.prepared import Prepared, prepare, single
from ..prompts.conditions import DIRECTIONS, HELD_POSITIONS, Contrast, one_of
from ..prompts.pairs import PromptPair
from ..runtime.loop import RunOptions
from .activation_summaries import NearZero, check_widths
from .mediation_results import ARMS, EDITED, READINGS, Mediation
from .runs import DECOMPOSED, read_span

MEDIATED = {name: contrast for name, contrast in DECOMPOSED.items() if contrast.same_positions}
"""Contrasts without any shift of positions: all of the change is scale and bias (and what upstream layers changed)."""


@checked
def mediate(
    model: Model,
    pairs: Iterable[PromptPair] | Prepared,
    *,
    layer: int = 0,
    heads: Iterable[Head | str] | None = None,
    contrast: str = "content",
    direction: str = "noising",
    outcome: str | Outcome = "answer_logprob",
    c: float = 0.13,
    q: float = 0.1,
    held_positions: str = "first",
    checkpoint: str | Path | None = None,
    progress: bool = True,
    seed: int = 0,
) -> Mediation:
    r"""Give a layer's heads only the scale, only the bias, or both parts of the change that an inserted span makes.

    $$ \text{scale}: z \leftarrow \lambda_i z_i, \qquad \text{bias}: z \leftarrow z_i + \Sigma_i, \qquad
       \text{both}: z \leftarrow \lambda_i z_i + \Sigma_i, \qquad \text{patched}: z \leftarrow z'_i $$

    at every token after the insertion, all `heads` of `layer` together, and read the same layer's MLP activations at the
    tokens that both prompts have, and the outcome. Effects are against `reference` ($z \leftarrow z_i$) in the same run;
    interaction = both - scale - bias; rest = patched - both (0 in layer 0, where the affine form is an identity).

    Parameters
    ----------
    heads : of `layer`, edited together; default all of it. For one head's part give that head.
    contrast : "content" (masked -> inserted) or "held" (base -> held); z is the first run's, z' and Sigma the second's.
    direction : the run that is edited. "noising": the one that cannot see the span, so that only what is added here
        acts; "denoising": the one with the span, so that what is *missing* here acts and later layers still read it.
    outcome : "answer_logprob", "answer_prob", "solution_logprob", "logit_diff".
    c, q : near zero, as in `activation_shift`: 1.4826 MAD c of the base run's |a|, and its q quantile. Both depend on
        these numbers, for which there is no rule.
    checkpoint : a file that receives each finished problem; a run started again with the same settings goes on there.

    Without a gate the activations are act(up(x)), as in `activation_shift`. Where attention and MLP read the same input, no
    edit of attention reaches its own layer's activations: their effects are 0, and the outcome's is what there is.

    Raises `ModelError` for experts (which share no activation) and where queries and keys cannot be had as they enter the
    scores, `ValueError` for heads of other layers and insertions in several blocks.
    Source: methods §5 (mediation); arXiv 2510.01032, section 3, whose claims are made of scale and bias together.
    """
    between = one_of(contrast, MEDIATED, "contrast")
    one_of(direction, DIRECTIONS, "direction")
    one_of(held_positions, dict.fromkeys(HELD_POSITIONS), "held_positions")
    check_widths(c=c, q=q)
    model.info.check_layer(layer)
    chosen = model.info.chosen(heads, None if heads is not None else [layer], what="mediate")
    elsewhere = [head for head in chosen if head.layer != layer]
    if elsewhere:
        raise ValueError(f"{elsewhere[0]} is not in layer {layer} (zero-based): heads are edited together in one layer")
    gate = model.gated_mlp(layer)
    model.need_rotated("lambda and Sigma")
    prepared = prepare(model, pairs, outcome, signed_for="mediation")
    for pair in prepared.pairs:
        pair.one_block("mediation, which edits the rows after the span,")
    settings = {
        "layer": layer,
        "gated": gate.gated,
        "heads": [str(head) for head in chosen],
        "all_heads": len(chosen) == model.info.n_heads,
        "contrast": contrast,
        "direction": direction,
        "c": c,
        "q": q,
        "held_positions": held_positions,
    }
    numbers = [head.head for head in chosen]
    one = _OnePair(model, layer, numbers, between, direction, prepared.outcome, gate.activation, c, q, held_positions)
    values = prepared.each(
        single(lambda at: one.measured(prepared.bare[at], prepared.pairs[at])),
        label=f"mediation in layer {layer}",
        settings=settings,
        options=RunOptions(checkpoint, progress),
        alone=True,
    )
    return Mediation(
        problem_ids=prepared.ids,
        groups=prepared.groups,
        readings=(*READINGS, "outcome"),
        arms=ARMS,
        values=np.array(values, dtype=float),
        unit=prepared.outcome.unit,
        settings={**settings, **prepared.settings},
        seed=seed,
    )


@dataclass(frozen=True, eq=False)
class _OnePair:
    """What stays the same from problem to problem; `numbers` are the heads of the layer."""

    model: Model
    layer: int
    numbers: list[int]
    contrast: Contrast
    direction: str
    outcome: Outcome
    activation: Callable[[Tensor], Tensor]
    c: float
    q: float
    held_positions: str

    def measured(self, pair: PromptPair, answered: PromptPair) -> np.ndarray:
        """`[reading, arm]` of one problem, from one forward pass: two ends, the base run, an edited run per arm."""
        new, reference = self.contrast.corrupted, self.contrast.clean
        pair = pair if pair.n_after else answered  # activations are read where they can change
        receiving = reference if self.direction == "noising" else new
        runs = (reference, new, "base", *(receiving,) * len(EDITED))
        inputs = answered.side_by_side(runs, held_positions=self.held_positions).to(self.model.info.device)
        visible = self.model.visible(inputs)[self.layer]
        stop = answered.span[1]
        held, parts = Held(), attention_sites(self.layer, "rot_q", "rot_k", "v")

        def edit(z: Tensor) -> Tensor:
            q, k, v = (whole[1:2] for whole in held.take(*parts))
            rule = self.model.attention_rule(self.layer)
            read = read_span(q, k, v, visible[1:2].to(z.device), rule, span=answered.span_mask)
            old, new = (widened(z[row, stop:].transpose(0, 1)) for row in (0, 1))
            lam = read.lam[..., None].to(old)
            sigma = read.sigma.to(old)
            of_arm = {
                "reference": old,
                "scale": lam * old,
                "bias": old + sigma,
                "both": lam * old + sigma,
                "patched": new,
            }
            edited = z.clone()
            for row, arm in enumerate(EDITED, start=3):
                edited[row, stop:, self.numbers] = of_arm[arm].transpose(0, 1)[:, self.numbers].to(z.dtype)
            return edited

        def summarise(pre: Tensor) -> Tensor:
            at = pair.shared.to(pre.device)
            thresholds = NearZero.of(self.activation(pre[2, at]), c=self.c, q=self.q)
            return torch.stack([_readings(self.activation(pre[row, at]), thresholds) for row in range(len(pre))])

        length = len(answered.inserted)
        mlp = site(self.layer, "mlp.hook_pre")
        result = self.model.run(
            inputs,
            capture={**held.captures(*parts), mlp: summarise},
            edits={site(self.layer, "attn.hook_z"): edit},
            logits_at=[length - back for back in self.outcome.reads(answered)],
        )
        assert result.logits is not None
        outcomes = self.outcome.value(result.logits, answered, None)
        rows = torch.cat([result.captured[mlp].double().cpu(), outcomes.double().cpu()[:, None]], 1)
        kept = [0, 1, *range(3, len(rows))]  # the base run only gives the thresholds
        return rows[kept].T.numpy()


def _readings(activations: Tensor, thresholds: NearZero) -> Tensor:
    """The numbers of `READINGS` of one run's activations `[token, d_mlp]`."""
    flat = widened(activations).flatten()
    near = [near_zero_fraction(flat, threshold=threshold) for threshold in (thresholds.arm, thresholds.quantile)]
    return torch.stack([*near, flat.mean(), mean_absolute(flat), median_variance(activations)])
