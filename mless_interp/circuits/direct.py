"""What a head writes straight to the answer, and what goes through later parts of the model."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from torch import Tensor

from ..core.arguments import checked, count_of
from ..core.heads import Head
from ..models.base import Model
from ..models.replay import stage
from ..patching.effect import SMALLEST_EFFECT
from ..patching.interventions import Intervention
from ..patching.outcomes import Outcome
from ..patching.prepared import Prepared
from ..prompts.pairs import PromptPair
from ..runtime.columns import columns_of
from ..runtime.results import Result, largest_first
from .cells import PRINTED, CellEffects, How, Way, compared, measured, of_cells
from .located import LocatedHeads
from .stream_changes import Flow, heads_of, need_weights

WAYS = ("direct", "indirect")
"""The parts of a head's effect: straight to the logits, and through later parts of the model."""


@checked
def direct_effects(
    model: Model,
    pairs: Iterable[PromptPair] | Prepared,
    heads: LocatedHeads | Iterable[Head | str] | None = None,
    *,
    contrast: str = "content",
    direction: str = "denoising",
    edit: str | Intervention = "z",
    outcome: str | Outcome = "answer_logprob",
    control: Iterable[PromptPair] | None = None,
    checkpoint: str | Path | None = None,
    max_rows: int | None = None,
    smallest_effect: float = SMALLEST_EFFECT,
    progress: bool = True,
    seed: int = 0,
) -> "DirectEffects":
    r"""Split each head's effect into what it writes straight to the answer and what goes through later parts, exactly.

    The edit changes the head's output by $\Delta z$ at every token that can change (`patch_heads`, "question"). Added to the
    *last* residual stream $x_L$ only, where nothing but the final norm and the unembedding reads it, this is its direct effect:

    $$ Y_\text{direct} = Y\big(x_L + \Delta z\, W_O\big) - Y(x_L), \qquad
       Y_\text{indirect} = Y_\text{patched} - Y_\text{receiving} - Y_\text{direct} $$

    each with the sign of `DIRECTIONS`, so that both are parts of the insertion's effect. The indirect part holds all that later
    heads and MLPs make of it. A head of the last layer still acts through that layer's MLP, unless the two are parallel.

    Parameters
    ----------
    heads : zero-based heads, or what `locate_heads` gave (its named heads). Default all.
    contrast, direction, edit, outcome, checkpoint, max_rows, smallest_effect : as in `patch_heads`.
    control : the same problems with another insertion of as many tokens at the same place, from `make_pairs`. Clean is then the
        run with the control, and the span's own rows change too: what heads write there for later ones to read is seen.

    Returns `DirectEffects` with values `[problem, head]` in the outcome's unit. Raises `ModelError` before anything runs for
    models whose weights or layers cannot be read (quantised, run elsewhere).

    Source: methods §8.1; path patching of head to logits in Wang et al. (2211.00593).
    """
    how = How(checkpoint, max_rows, smallest_effect, progress, seed)
    chosen = heads_of(model, heads, "split")
    need_weights(model, [head.layer for head in chosen], "direct_effects")
    sweep, prepared = compared(model, pairs, contrast, direction, edit, outcome, control)
    ways = [Way(head, way) for head in chosen for way in WAYS]
    ordered, end = sorted(chosen), 2 * model.info.n_layers

    def changes(flow: Flow) -> Iterator[tuple[int, int, Tensor]]:
        """The whole effect of each head stands in the place of its indirect one."""
        for head in ordered:
            yield 2 * chosen.index(head) + 1, stage(flow.layers, head.layer, "attention"), flow.head_writes(head)
        for head in ordered:
            yield 2 * chosen.index(head), end, flow.head_writes(head)

    label = "direct effects"
    found = measured(DirectEffects, prepared, sweep, ways, changes, how=how, label=label, heads=heads)
    values = found.values.copy()
    values[:, 1::2] -= values[:, ::2]
    return replace(found, values=values)


@dataclass(frozen=True, eq=False, repr=False)
class DirectEffects(CellEffects, Result):
    """How much of each head's effect goes straight to the logits: `values` `[problem, cell]`, two cells (`Way`) per head.

    `effect` `[problem, head]` is the part of the insertion's effect (`total`, corrupted - clean) that the head carries,
    `direct` and `indirect` what it consists of; both ways of every head are tested (`CellEffects`).
    """

    picture = "direct_bars"
    columns = columns_of("""
        way | way | | direct: straight to the logits; indirect: through later parts of the model
    """)
    what = ("part", "parts")

    heads = of_cells("of")
    """The heads, in the order in which they were asked for."""

    @property
    def direct(self) -> np.ndarray:
        """Straight to the logits, `[problem, head]`."""
        return self.values[:, ::2]

    @property
    def indirect(self) -> np.ndarray:
        """Through later parts of the model, `[problem, head]`."""
        return self.values[:, 1::2]

    @property
    def effect(self) -> np.ndarray:
        """Both together, `[problem, head]`."""
        return self.direct + self.indirect

    def _what_words(self) -> str:
        return f"Direct and indirect effects of {count_of(len(self.heads), 'head')}"

    def printed(self) -> pd.DataFrame:
        """The heads' shares, the largest first."""
        size = np.repeat(self.effect.mean(0), len(WAYS))
        return largest_first(self.table().assign(size=size), "size")[list(PRINTED)].head(2 * 8)
