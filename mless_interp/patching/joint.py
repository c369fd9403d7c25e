"""Sets of heads knocked out together: against random sets of the same layers, and against the sum of single knockouts."""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from ..core.arguments import check_count, checked, count_of, listed
from ..core.heads import Head
from ..models.base import Model
from ..models.info import ModelInfo
from ..models.memory import rows_per_pass
from ..prompts.conditions import CONTRASTS, Contrast, one_of
from ..prompts.pairs import PromptPair
from ..runtime.loop import RunOptions
from ..runtime.results import Result, interval_columns, tidy, with_limits
from ..statistics import CONFIDENCE, Interval, derive_generator, median_interval, sign_test
from .interventions import Knockout, PatchZ, run_edits
from .outcomes import Outcome
from .prepared import Gated, Prepared, Runs, Settings, prepare, single
from .sweep import Sweep, sweep_heads

CHOSEN_HERE = "chosen on these problems, so no p-value"
"""Printed instead of a p-value where the same problems chose the heads by their effects."""


@checked
def joint_knockout(
    model: Model,
    pairs: Iterable[PromptPair] | Prepared,
    heads: Iterable[Head | str],
    *,
    contrast: str = "content",
    outcome: str | Outcome = "answer_logprob",
    n_random_sets: int = 100,
    singles: np.ndarray | None = None,
    chosen_elsewhere: bool = False,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    seed: int = 0,
) -> "JointKnockout":
    r"""Take the sight of the span from a set of heads at once, and from random sets of equal size in the same layers.

    $$ \Delta_p(S) = Y_p - Y_p^{\,S \text{ cannot see the span}}, \qquad
       p = \frac{1 + \#\{R : |\tilde\Delta(R)| \ge |\tilde\Delta(S)|\}}{1 + \#R} $$

    with the median over problems. Each random set holds as many heads of each layer as the given one, some perhaps of the given
    ones: only if any set could have been any other is its rank a p-value. Where no more than `n_random_sets` exist, all are
    taken and p is exact.

    contrast : "content", or "computed": what is taken is then the span's sight of the question.
    singles : effects of the single knockouts `[problem, head]` in the order of `heads`; swept here otherwise.
    chosen_elsewhere : True says that the heads were chosen without these problems; only then is there a p.
    checkpoint, progress : as in `patch_heads`.
    Source: the necessity test of Shi et al. (2410.13032), methods §8 | differs in: attention to the span is knocked out, not
    the head; whole sets keep their layers.
    """
    options, between = RunOptions(checkpoint, progress, seed), cutting(contrast)
    prepared = prepare(model, pairs, outcome, signed_for="a joint knockout").under(between)
    check_count(n_random_sets, name="n_random_sets", at_least=0)
    info = model.info
    chosen = info.chosen(heads, what="knock out")
    if singles is not None and singles.shape != (shape := (len(prepared.ids), len(chosen))):
        raise ValueError(f"singles must be [problem, head], {shape}, got {singles.shape}")
    sets = random_sets(chosen, info, n_random_sets, seed=seed)
    gates = torch.stack([gate_row(members, info) for members in ((), chosen, *sets)])
    settings: Settings = {
        "heads": list(map(str, chosen)),
        "contrast": contrast,
        "n_random_sets": n_random_sets,
        "seed": seed,
    }
    label = "knocking out sets of heads"
    values = gated_outcomes(prepared, gates, label=label, settings=settings, contrast=between, options=options)
    if singles is None:
        one_by_one = {"singles": Sweep.named(contrast, edit="knockout" if between.cuts else "z")}
        swept = sweep_heads(prepared, one_by_one, chosen, options=options.beside("singles", chosen))
        singles = swept["singles"].per_head
    removed = values[:, :1] - values[:, 1:]
    return JointKnockout(
        heads=chosen,
        effect=removed[:, 0],
        singles=singles,
        random=removed[:, 1:],
        sets=sets,
        seed=seed,
        chosen_elsewhere=chosen_elsewhere,
        **prepared.fields(settings),
    )


def cutting(contrast: str) -> Contrast:
    """The contrast of that name, in which heads can be cut off or given what they wrote clean."""
    found = one_of(contrast, CONTRASTS, "contrast")
    if not found.cuts and found.changes_from != "tokens":
        known = ", ".join(repr(name) for name, made in CONTRASTS.items() if made.cuts or made.changes_from == "tokens")
        raise ValueError(f"sets of heads are knocked out of what may be seen: use one of {known}, got {contrast!r}")
    return found


def random_sets(heads: Sequence[Head], info: ModelInfo, n_sets: int, *, seed: int) -> tuple[tuple[Head, ...], ...]:
    """Other sets with as many heads in each layer (some hold some of these heads): all, or `n_sets` at random, each once."""
    counts = sorted(Counter(head.layer for head in heads).items())
    given, others = set(heads), {layer: [head for head in info.heads if head.layer == layer] for layer, _ in counts}
    if math.prod(math.comb(info.n_heads, count) for _, count in counts) - 1 <= n_sets:
        every = itertools.product(*(itertools.combinations(others[layer], count) for layer, count in counts))
        return tuple(found for parts in every if set(found := tuple(itertools.chain(*parts))) != given)
    generator = derive_generator(seed, "random head sets", *heads)
    drawn: dict[tuple[Head, ...], None] = {}
    while len(drawn) < n_sets:
        places = {layer: generator.choice(len(others[layer]), count, replace=False) for layer, count in counts}
        found = tuple(others[layer][at] for layer, _ in counts for at in sorted(places[layer]))
        if set(found) != given:
            drawn[found] = None
    return tuple(drawn)


def gate_row(heads: Iterable[Head], info: ModelInfo, *, closed: bool = True) -> torch.Tensor:
    """Gates `[layer, head]`: these heads closed and all others open, or (`closed=False`) these open and all others closed."""
    gates = torch.full((info.n_layers, info.n_heads), float(closed), dtype=torch.float32)
    for head in heads:
        gates[head.layer, head.head] = 1 - float(closed)
    return gates


def gated_outcomes(
    prepared: Prepared,
    gates: torch.Tensor,
    *,
    label: str,
    settings: Settings,
    contrast: Contrast = CONTRASTS["content"],
    options: RunOptions = RunOptions(),
) -> np.ndarray:
    """The outcome `[problem, row]` under each row of gates `[row, layer, head]`, 0 (cannot see the span) or 1.

    `contrast`: in whose corrupted run, and what a closed gate cuts off there; where nothing can be cut off ("replaced"), it
    gives the head its output in the clean run. Models that cannot be continued layer by layer run one forward pass per row.
    """
    way = _by_replay if contrast.cuts and prepared.model.stepper is not None else _by_forward
    compute = single(lambda at: way(prepared.runs((at,)), gates, contrast))
    found = prepared.each(compute, label=label, settings=settings, alone=True, options=options)
    return np.array(found, dtype=float)


def _by_replay(runs: Runs, gates: torch.Tensor, contrast: Contrast) -> np.ndarray:
    gated = Gated(runs, contrast)
    most = rows_per_pass(runs.model.info, batch=1, **gated.sizes, devices=runs.model.devices)
    # of all rows, so that a part's bits are the whole's
    layers = (gates != 1).any(-1).any(0).nonzero().flatten().tolist()
    with torch.no_grad():
        parts = gates.to(gated.recording.z[0]).split(most)
        logits = [gated.tail(gates=part, span=gated.span, rows=gated.rows, gated_layers=layers) for part in parts]
    return np.concatenate([runs.outcomes(each)[0] for each in logits])


def _by_forward(runs: Runs, gates: torch.Tensor, contrast: Contrast) -> np.ndarray:
    run, (rows, span) = contrast.corrupted, runs.cut(contrast)
    inputs, start = runs.inputs(run), runs.start(contrast, run)
    edit, donor = (Knockout(), None) if contrast.cuts else (PatchZ(), runs.recording(contrast.clean, start))
    edited = partial(run_edits, runs.model, inputs, edit, span=span, rows=rows, start=start, donor=donor)
    found = []
    for row in gates:
        shut = [Head(*place) for place in (row == 0).nonzero().tolist()]
        edits = edited(shut) if shut else {}
        found.append(runs.outcomes(runs.model.run(inputs, edits=edits, logits_at=runs.read(run)).logits)[0])
    return np.concatenate(found)


@dataclass(frozen=True, eq=False, repr=False)
class JointKnockout(Result):
    """A set of heads knocked out together: `effect` `[problem]`, what that removes of the insertion's effect.

    `singles` `[problem, head]` is what each removes alone, `random` `[problem, set]` what each of `sets` removes together.
    Heads that were not `chosen_elsewhere` have no `p`: the choice alone makes them beat random ones.
    """

    problem_ids: tuple[str, ...]
    heads: tuple[Head, ...]
    effect: np.ndarray
    singles: np.ndarray
    random: np.ndarray
    sets: tuple[tuple[Head, ...], ...]
    unit: str
    settings: Settings = field(default_factory=dict)
    seed: int = 0
    chosen_elsewhere: bool = False
    confidence: float = CONFIDENCE
    resolution: float = 0.0

    axes = (("effect", "problem"), ("singles", "problem head"), ("random", "problem set"))

    @property
    def interval(self) -> Interval:
        """Median joint effect with its interval over problems."""
        return median_interval(self.by_group(self.effect), confidence=self.confidence)

    @property
    def interaction(self) -> np.ndarray:
        """Joint knockout minus the sum of the single ones, `[problem]`; of the effect's own sign: they back each other up."""
        return self.effect - self.singles.sum(1)

    @property
    def p(self) -> float:
        """Rank of the set's |median effect| among the random ones', itself included; NaN without any, or where chosen here."""
        return (1 + self.n_as_large) / (1 + len(self.sets)) if self.sets and self.chosen_elsewhere else float("nan")

    @property
    def n_as_large(self) -> int:
        """Random sets whose |median effect| is as large as the set's."""
        own, others = (np.abs(np.median(self.by_group(each), axis=0)) for each in (self.effect, self.random))
        return int((others >= own * (1 - 1e-9)).sum())

    def table(self) -> pd.DataFrame:
        """One row per set, the given one first: median effect with its interval over problems, and the mean."""
        values = np.column_stack([self.effect, self.random])
        made = interval_columns("median", median_interval(self.by_group(values), confidence=self.confidence))
        names = ["given"] + [f"random {i}" for i in range(len(self.sets))]
        heads = [" ".join(map(str, members)) for members in (self.heads, *self.sets)]
        return pd.DataFrame({"set": names, "heads": heads, **made, "effect": values.mean(0)})

    def to_frame(self) -> pd.DataFrame:
        """One tidy row per set (`given`, `random 0`, ...; `singles`: the sum over its heads, one at a time) and problem."""
        sets = {"given": self.effect, "singles": self.singles.sum(1)}
        sets |= {f"random {at}": values for at, values in enumerate(self.random.T)}
        rows = tidy({"measure": list(sets), "problem": self.problem_ids}, value=np.stack(list(sets.values())))
        return rows[["problem", "measure", "value"]]

    def headline(self) -> str:
        together = " together" if len(self.heads) > 1 else ""
        return (
            f"Knocking out {listed(self.heads)}{together} removes {with_limits(self.interval, self.unit)} of the effect "
            f"(median over {count_of(len(self.problem_ids), 'problem')})."
        )

    def details(self) -> list[str]:
        found = []
        if self.sets:
            middle = float(np.median(np.median(self.by_group(self.random), axis=0)))
            p = f"p = {self.p:.3g}" if self.chosen_elsewhere else CHOSEN_HERE
            found.append(
                f"{len(self.sets)} other sets of the same layers and size remove {middle:+.4f} (median), "
                f"{self.n_as_large or 'none'} of them as much; {p}."
            )
        elif self.settings.get("n_random_sets"):
            found.append(
                "There is no other set of the same size in the same layers: whether any would do is not known."
            )
        if len(self.heads) > 1:
            apart = self.by_group(self.interaction)
            made, words = median_interval(apart, confidence=self.confidence), "they add up, as far as can be told"
            if float(sign_test(apart)) < 1 - self.confidence:
                helps = np.sign(np.median(apart)) == np.sign(np.median(self.by_group(self.effect)))
                words = "they back each other up" if helps else "they overlap"
            words = f": {words}" if np.isfinite(made.low) else ""
            found.append(f"Interaction (joint minus the sum of single knockouts) {with_limits(made)}{words}.")
        return found

    def printed(self) -> pd.DataFrame:
        return self.table().head(1)
