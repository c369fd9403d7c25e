"""What a head writes straight to the answer, and what goes through later parts of the model."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from ..given import checked, count_of
from ..heads import Head
from ..locating.located import LocatedHeads
from ..models.base import Model
from ..patching.interventions import Intervention
from ..patching.outcomes import Outcome
from ..patching.parts import SMALLEST_EFFECT, WHOLE
from ..patching.prepared import Prepared
from ..prompts.pairs import PromptPair
from ..running.results import Result, Shown, ShownTable, largest_first, tidy
from ..running.work import Tick, Unit
from ..statistics import CONFIDENCE
from .cells import PRINTED, Cells, effects_of, made_with
from .controls import prepared_with, sweep_of
from .stream_changes import Flow, check_options, heads_of, named_words, need_weights, writes

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

    each with the sign of `DIRECTIONS`, so that both are parts of the insertion's effect. Where attention's output is normed
    before it is added (Gemma 2, OLMo 2) $\Delta z W_O$ goes through that norm. The indirect part holds all that later heads
    and MLPs make of it, and what is not linear in both together.

    A head of the last layer still acts through that layer's MLP, unless the layer is parallel (GPT-NeoX) or has none: there
    its indirect part is 0.

    Parameters
    ----------
    heads : zero-based heads, or what `locate_heads` gave (its named heads). Default all.
    contrast, direction, edit, outcome, checkpoint, max_rows, smallest_effect : as in `patch_heads`.
    control : the same problems with another insertion of as many tokens at the same place, from `make_pairs`. Clean is then the
        run with the control, corrupted that with the insertion, and the span's own rows change too: what heads write there
        for later ones to read is seen. Leave contrast and edit out.

    Returns `DirectEffects` with values `[problem, head]` in the outcome's unit. Raises `ModelError` before anything runs for
    models whose weights cannot be read (quantised, run elsewhere) or whose layers are not known one by one.

    Source: methods §8.1; path patching of head to logits in Wang et al. (2211.00593).
    """
    check_options(smallest_effect, max_rows)
    chosen = heads_of(model, heads, "split")
    sweep = sweep_of(contrast, direction, edit, control)
    need_weights(model, [head.layer for head in chosen], "direct_effects")
    prepared = prepared_with(model, pairs, outcome, control)

    def of_unit(unit: Unit, tick: Tick) -> list[Any]:
        flow = Flow(prepared.runs(unit), sweep, max_rows)
        end, ordered = 2 * model.info.n_layers, sorted(chosen)

        def cells() -> Iterator[tuple[int, Tensor]]:
            yield from ((writes(flow.layers, head.layer, "attention"), flow.head_writes(head)) for head in ordered)
            yield from ((end, flow.head_writes(head)) for head in ordered)

        values = flow.outcomes(cells(), tick)
        whole, direct = np.split(values[:, np.tile(_places(ordered, chosen), 2) + _halves(len(chosen))], 2, 1)
        return [{"whole": whole[at], "direct": direct[at], "ends": flow.ends[at]} for at in range(len(unit))]

    found = prepared.each(
        of_unit,
        label="direct effects",
        settings={**sweep.settings, "direct effects of": list(map(str, chosen))},
        checkpoint=checkpoint,
        progress=progress,
        steps=2 * len(chosen),
    )
    (whole, total), (direct, _) = (effects_of(found, direction, name) for name in ("whole", "direct"))
    return DirectEffects(
        problem_ids=prepared.ids,
        heads=chosen,
        effect=whole,
        direct=direct,
        total=total,
        unit=prepared.outcome.unit,
        settings=made_with(prepared, sweep, heads),
        seed=seed,
        smallest_effect=smallest_effect,
    )


def _places(ordered: list[Head], chosen: tuple[Head, ...]) -> np.ndarray:
    return np.array([ordered.index(head) for head in chosen])


def _halves(n: int) -> np.ndarray:
    return np.repeat([0, n], n)


@dataclass(frozen=True, eq=False, repr=False)
class DirectEffects(Cells, Result):
    """How much of each head's effect goes straight to the logits: `effect` and `direct` `[problem, head]`.

    `effect` is the part of the insertion's effect (`total` `[problem]`, corrupted - clean) that the head carries, `direct`
    what of it is left where only the unembedding sees what the head writes; `indirect` is the rest. The prevalence test is of
    both ways of every head (Holm over all of them and both senses); means add up, medians need not.
    """

    problem_ids: tuple[str, ...]
    heads: tuple[Head, ...]
    effect: np.ndarray
    direct: np.ndarray
    total: np.ndarray
    unit: str
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    confidence: float = CONFIDENCE
    smallest_effect: float = SMALLEST_EFFECT

    what = ("part", "parts")
    axes = (("effect", "problem head"), ("direct", "problem head"), ("total", "problem"))

    @property
    def indirect(self) -> np.ndarray:
        """effect - direct, `[problem, head]`."""
        return self.effect - self.direct

    @property
    def per_cell(self) -> np.ndarray:
        """Both ways of every head, `[problem, head x way]`."""
        return np.stack([self.direct, self.indirect], -1).reshape(len(self.direct), -1)

    def summary(self) -> pd.DataFrame:
        """Two rows per head, its direct and its indirect way.

        `k` of `n` problems with more than the smallest effect in `sense`, `prevalence` with exact limits, `p_prevalence`
        (Holm over heads, ways and senses), `median` and its share of the median total, mean `effect`, each with limits, and
        `effect_fraction`, the mean as a share of the mean total: direct and indirect add up to the head's.
        """
        return pd.DataFrame(
            {
                "label": [f"{head} {way}" for head in self.heads for way in WAYS],
                "of": [str(head) for head in self.heads for _ in WAYS],
                "way": list(WAYS) * len(self.heads),
                **self.claim_columns(),
                **self.share_columns(),
            }
        )

    def to_frame(self) -> pd.DataFrame:
        """One tidy row per problem and head."""
        axes = {"problem": self.problem_ids, "label": [str(head) for head in self.heads]}
        return tidy(axes, effect=self.effect, direct=self.direct, indirect=self.indirect)

    def sentences(self) -> list[str]:
        """Of which heads, and which of their ways is shown in most problems."""
        s = self.settings
        return [
            f"Direct and indirect effects of {count_of(len(self.heads), 'head')} "
            f"({s.get('edit', 'z')} patch), contrast {s.get('contrast')}, {s.get('direction')}, outcome {s.get('outcome')}, "
            f"{count_of(len(self.problem_ids), 'problem')}.",
            *self._total_words(),
            *self._claim_words(),
            *named_words(s),
        ]

    def printed(self) -> pd.DataFrame:
        """The heads' shares, the largest first."""
        size = np.repeat(self.effect.mean(0), len(WAYS))
        return largest_first(self.summary().assign(size=size), "size")[list(PRINTED)].head(2 * 8)

    def shown(self) -> Shown:
        """Both ways of every head."""
        caption = (
            f"What goes straight to the logits ({WHOLE}), and what through later parts. Effects are in {self.unit}."
        )
        return Shown((ShownTable(self.summary().drop(columns=["of", "way"]), caption),))
