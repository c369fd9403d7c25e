"""`mediate`: what the scale and the bias that attention takes on each do to the MLP's activations and to the answer."""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..heads import Head
from ..metrics.activations import mean_absolute, median_variance, near_zero_fraction
from ..metrics.segments import widened
from ..models.base import Model
from ..models.sites import site
from ..patching.outcomes import OUTCOMES, Outcome, named
from ..patching.sweep import DIRECTIONS, hash_ids
from ..prompts.pairs import PromptPair
from ..running.checkpoint import Checkpoint
from ..running.progress import progress_bar
from .activation_summaries import Thresholds, check_widths
from .mediation_results import ARMS, EDITED, READINGS, Mediation
from .runs import CONTRASTS, HELD, chosen_heads, fit_pairs, read_span, side_by_side

MEDIATED = ("content", "held")


def mediate(
    model: Model,
    pairs: Iterable[PromptPair],
    *,
    layer: int = 0,
    heads: Iterable[Head] | None = None,
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

    at every token after the insertion, all `heads` of `layer` together, and read the same layer's gate activations at the
    tokens that both prompts have, and the outcome. Effects are against `reference` ($z \leftarrow z_i$) in the same run;
    interaction = both - scale - bias; rest = patched - both (0 in layer 0, where the affine form is an identity).

    Parameters
    ----------
    heads : of `layer`, edited together; default all of it. For one head's part give that head.
    contrast : "content" (inserted against gap) or "held" (held against base); z' and Sigma are the first run's, z the
        second's.
    direction : the run that is edited. "noising": the one that cannot see the span, so that only what is added here
        acts; "denoising": the one with the span, so that what is *missing* here acts and later layers still read it.
    outcome : "answer_logprob", "solution_logprob", "logit_diff".
    c, q : near zero, as in `activation_shift`: 1.4826 MAD c of the base run's |a|, and its q quantile. Both depend on
        these numbers, for which there is no rule.
    checkpoint : a file that receives each finished problem; a run started again with the same settings goes on there.

    Raises `ModelError` for a model without gated MLP or rotated queries and keys, `ValueError` for heads of other layers.
    Source: methods §5 (mediation); arXiv 2510.01032, section 3, whose claims are made of scale and bias together.
    """
    read_outcome = named(outcome, OUTCOMES, "outcome", Outcome)
    if read_outcome.needs_clean:
        raise ValueError(f"mediation needs a signed outcome such as 'answer_logprob', got {read_outcome.name!r}")
    for given, known, what in ((contrast, MEDIATED, "contrast"), (direction, DIRECTIONS, "direction")):
        if given not in known:
            raise ValueError(f"unknown {what} {given!r}; choose one of {', '.join(known)}")
    if held_positions not in HELD:
        raise ValueError(f'held_positions must be "first" or "spread", got {held_positions!r}')
    check_widths(c=c, q=q)
    chosen_heads(model, None, [layer], what="mediate")
    chosen = chosen_heads(model, heads, None if heads is not None else [layer], what="mediate")
    elsewhere = [head for head in chosen if head.layer != layer]
    if elsewhere:
        raise ValueError(f"{elsewhere[0]} is not in layer {layer} (zero-based): heads are edited together in one layer")
    gate = model.gated_mlp(layer)
    bare = fit_pairs(model, pairs, what="mediate")
    answered = [pair.answered(read_outcome.appended) for pair in bare]
    read_outcome.check(answered)
    settings = {
        "layer": layer,
        "heads": [str(head) for head in chosen],
        "all_heads": len(chosen) == model.info.n_heads,
        "contrast": contrast,
        "direction": direction,
        "outcome": read_outcome.name,
        "c": c,
        "q": q,
        "held_positions": held_positions,
        "insertion": bare[0].insertion.label,
        "model": model.info.name,
        "backend": model.info.backend,
        "dtype": model.info.dtype,
    }
    prompts = [[pair.id, *pair.span, pair.n_answer, hash_ids(pair.inserted.ids)] for pair in answered]
    saved = Checkpoint(checkpoint, {**settings, "prompts": prompts})
    one = _OnePair(model, layer, chosen, contrast, direction, read_outcome, gate.activation, c, q, held_positions)
    values = []
    with progress_bar(len(bare), f"mediation in layer {layer}", enabled=progress) as bar:
        for pair, longer in zip(bare, answered, strict=True):
            done = saved.get(pair.id)
            if done is None:
                done = one.measured(pair, longer)
                saved.put(pair.id, done.tolist() if checkpoint is not None else {})
            values.append(np.asarray(done, dtype=float))
            bar.update(1)
    return Mediation(
        problem_ids=tuple(pair.id for pair in bare),
        readings=(*READINGS, "outcome"),
        arms=ARMS,
        values=np.stack(values),
        unit=read_outcome.unit,
        settings=settings,
        seed=seed,
    )


class _OnePair:
    """What stays the same from problem to problem; short-lived."""

    def __init__(
        self,
        model: Model,
        layer: int,
        heads: tuple[Head, ...],
        contrast: str,
        direction: str,
        outcome: Outcome,
        activation: Callable[[Tensor], Tensor],
        c: float,
        q: float,
        held_positions: str,
    ) -> None:
        self.model, self.layer, self.outcome, self.activation = model, layer, outcome, activation
        self.numbers = [head.head for head in heads]
        self.c, self.q, self.held_positions = c, q, held_positions
        self.new, self.reference = CONTRASTS[contrast]
        receiving = self.reference if direction == "noising" else self.new
        self.runs = (self.reference, self.new, "base", *(receiving,) * len(EDITED))

    def measured(self, pair: PromptPair, answered: PromptPair) -> np.ndarray:
        """`[reading, arm]` of one problem, from one forward pass: two ends, the base run, an edited run per arm."""
        inputs = side_by_side(answered, self.runs, held_positions=self.held_positions).to(self.model.info.device)
        visible = self.model.visible(inputs)[self.layer]
        stop = answered.span[1]
        held: dict[str, Tensor] = {}

        def hold(part: str) -> Callable[[Tensor], None]:
            return lambda value: held.__setitem__(part, value)

        def edit(z: Tensor) -> Tensor:
            q, k, v = (held.pop(part)[1:2] for part in ("rot_q", "rot_k", "v"))
            rule = self.model.attention_rule(self.layer)
            read = read_span(q, k, v, visible[1:2].to(z.device), rule, span=answered.span)
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
            thresholds = Thresholds.of(self.activation(pre[2, at]), c=self.c, q=self.q)
            return torch.stack([_readings(self.activation(pre[row, at]), thresholds) for row in range(len(pre))])

        length = len(answered.inserted)
        mlp = site(self.layer, "mlp.hook_pre")
        result = self.model.run(
            inputs,
            capture={
                **{site(self.layer, f"attn.hook_{part}"): hold(part) for part in ("v", "rot_q", "rot_k")},
                mlp: summarise,
            },
            edits={site(self.layer, "attn.hook_z"): edit},
            logits_at=[length - back for back in self.outcome.reads(answered)],
        )
        assert result.logits is not None
        outcomes = self.outcome.value(result.logits, answered, None)
        rows = torch.cat([result.captured[mlp].double().cpu(), outcomes.double().cpu()[:, None]], 1)
        kept = [0, 1, *range(3, len(rows))]  # the base run only gives the thresholds
        return rows[kept].T.numpy()


def _readings(activations: Tensor, thresholds: Thresholds) -> Tensor:
    """The numbers of `READINGS` of one run's gate activations `[token, d_mlp]`."""
    flat = widened(activations).flatten()
    near = [near_zero_fraction(flat, threshold=threshold) for threshold in (thresholds.arm, thresholds.quantile)]
    return torch.stack([*near, flat.mean(), mean_absolute(flat), median_variance(activations)])
