"""`decompose_attention`: a head's output with an inserted span as lambda z + Sigma, measured on any model."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.arguments import check_count, checked
from ..core.heads import Head
from ..models.base import Model
from ..patching.prepared import single
from ..prompts.conditions import HELD_POSITIONS, one_of, several_of
from ..prompts.insertions import Insertion
from ..prompts.pairs import PromptPair, digest_of, followed, over_pairs, pairs_like
from ..prompts.problems import groups_of
from ..runtime.loop import RunOptions
from ..runtime.results import Found, put, stacked
from .decomposition import METRICS, AttentionDecomposition
from .reduction import LayerRuns, each_layer, layer_numbers
from .runs import DECOMPOSED, readable_pairs, runs_of, span_reads


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
    control : another insertion of the same length and place, to compare lambda with: "random_sentence", an `Insertion`,
        or None. `n_control_draws` draws of random words per problem are averaged within the problem.
    checkpoint : a file that receives each finished problem; a run started again with the same settings goes on there.

    Raises `ValueError` for pairs without tokens after the insertion, no heads or layers, heads or layers given twice or
    out of range; `ModelError` where the model shows no rotated queries and keys or no output weights.

    Source: arXiv 2510.01032, Eq. 1-2; methods §3 (I1, I2, I9, I10). The paper calls lambda the drop and takes one number.
    """
    found = readable_pairs(model, pairs, what="decompose")
    contrasts = several_of(contrasts, DECOMPOSED, "contrast")
    one_of(held_positions, dict.fromkeys(HELD_POSITIONS), "held_positions")
    chosen = model.info.chosen(heads, layers, what="decompose")
    controls = _control_pairs(model, found, control, n_control_draws, seed)
    asked = sorted({head.layer for head in chosen})
    norms = [model.attention_output(layer).norm is not None for layer in asked]
    settings = {
        "contrasts": list(contrasts),
        "held_positions": held_positions,
        "heads": [str(head) for head in chosen],
        "n_heads": model.info.n_heads,
        "insertion": found[0].insertion.label,
        "control": None if controls is None else controls.label,
        "control_draws": 0 if controls is None else len(controls.draws),
        "control_seed": None if controls is None else controls.draws[0][0].insertion.seed,
        "control_prompts": None if controls is None else [digest_of(draw) for draw in controls.draws],
        "norms_attention_output": any(norms),
        **model.identity,
        "prompts": digest_of(found),
    }
    one = _OnePair(model, contrasts, model.info.mask_of(chosen), held_positions)

    def measured(at: int) -> dict[str, Any]:
        kept = one.measured(found[at])
        return kept if controls is None else {**kept, "control": one.control([draw[at] for draw in controls.draws])}

    done = over_pairs(
        model,
        found,
        single(measured),
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
        control=None if controls is None else np.stack([np.asarray(each["control"], dtype=float) for each in done]),
        settings=settings,
        seed=seed,
    )


@dataclass(frozen=True, eq=False)
class _Controls:
    """Pairs with another insertion, draw by draw, in the order of the problems."""

    label: str
    draws: tuple[tuple[PromptPair, ...], ...]


@dataclass(frozen=True, eq=False)
class _OnePair:
    """What stays the same from problem to problem; `asked` `[layer, head]`."""

    model: Model
    contrasts: tuple[str, ...]
    asked: np.ndarray
    held_positions: str

    @property
    def layers(self) -> list[int]:
        return np.flatnonzero(self.asked.any(1)).tolist()

    def measured(self, pair: PromptPair) -> dict[str, Any]:
        """`heads[metric][contrast]` `[layer, head]` and `layers[metric][contrast]` `[layer]` of one pair."""
        by_head: Found = {}
        by_layer: Found = {}

        def visit(layer: int, runs: LayerRuns, visible: Tensor) -> None:
            heads, whole = layer_numbers(self.model, pair, self.contrasts, layer, runs, visible)
            found = (
                torch.stack([values.double() for values in heads.values()]).detach().cpu().numpy()
            )  # waited for once
            for (metric, contrast), values in zip(heads, found, strict=True):
                asked = np.where(self.asked[layer], values, np.nan)
                put(by_head, metric, contrast, layer, asked, shape=self.asked.shape)
            for (metric, contrast), number in whole.items():
                put(by_layer, metric, contrast, layer, number, shape=len(self.asked))

        runs = runs_of(self.contrasts)
        each_layer(self.model, pair, runs, layers=self.layers, held_positions=self.held_positions, visit=visit)
        return {"heads": by_head, "layers": by_layer}

    def control(self, draws: Sequence[PromptPair]) -> np.ndarray:
        """Mean lambda `[layer, head]` under other insertions."""
        grid = np.full(self.asked.shape, np.nan)
        grid[self.layers] = np.mean([span_reads(self.model, pair, self.layers)["lam"] for pair in draws], axis=0)
        return np.where(self.asked, grid, np.nan)


def _control_pairs(
    model: Model, pairs: tuple[PromptPair, ...], control: str | Insertion | None, n_draws: int, seed: int
) -> _Controls | None:
    if control is None:
        return None
    check_count(n_draws, name="n_control_draws (control=None leaves it out)")
    if control == "random_sentence":
        insertion = Insertion.random_sentence(pairs[0].n_inserted, seed=seed)
    elif isinstance(control, Insertion):
        insertion = control
    else:
        raise ValueError(f'control must be "random_sentence", an Insertion or None, got {control!r}')
    insertion = insertion.placed_as(pairs[0].insertion)
    drawn = range(n_draws if insertion.kind == "random_sentence" else 1)
    draws = tuple(
        followed(pairs_like(model, pairs, replace(insertion, draw=insertion.draw + number))) for number in drawn
    )
    for pair, ours in zip(draws[0], pairs, strict=True):
        if pair.n_inserted != ours.n_inserted or pair.base.ids != ours.base.ids[: len(pair.base)]:
            raise ValueError(
                f"problem {pair.id!r}: the control must insert as many tokens into the same prompt ({ours.n_inserted}), but "
                f"{insertion.label} inserts {pair.n_inserted}"
            )
    return _Controls(insertion.label, draws)
