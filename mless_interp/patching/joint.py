"""Sets of heads knocked out together: against random sets of the same layers, and against the sum of single knockouts."""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..heads import Head, check_heads
from ..models.base import Model
from ..models.info import ModelInfo
from ..prompts.pairs import PromptPair
from ..running.checkpoint import Checkpoint
from ..running.progress import progress_bar
from ..statistics import Interval, derive_generator
from .interventions import Knockout, run_edits
from .outcomes import OUTCOMES, Outcome, named
from .scores import interval_of
from .sweep import checked_pairs, default_rows, hash_ids, patch_heads, span_of


def joint_knockout(
    model: Model,
    pairs: Iterable[PromptPair],
    heads: Iterable[Head],
    *,
    outcome: str | Outcome = "answer_logprob",
    n_random_sets: int = 100,
    singles: np.ndarray | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    seed: int = 0,
) -> "JointKnockout":
    r"""Take the sight of the span from a set of heads at once, and from random sets of equal size in the same layers.

    $$ \Delta_p(S) = Y_p - Y_p^{\,S \text{ cannot see the span}}, \qquad
       p = \frac{1 + \#\{R : |\bar\Delta(R)| \ge |\bar\Delta(S)|\}}{1 + \#R} $$

    Each random set holds as many heads of each layer as the given one, none of them given. Where only `n_random_sets` or
    fewer such sets exist, all of them are taken and p is exact; where a layer has fewer other heads than given ones,
    there is none and p is NaN. 1 / (1 + number of sets) is the smallest p that can come out.

    Parameters
    ----------
    singles : effects of the single knockouts `[problem, head]` in the order of `heads`, in the sign of the insertion's
        own effect, where a sweep has given them already; swept here otherwise.
    checkpoint : a file that receives each finished problem; started again with the same settings the run goes on there.

    Source: the necessity test of Shi et al. (2410.13032), methods §8 | differs in: attention to the span is knocked out,
    not the head; whole sets keep their layers; the effect itself comes with an interval over problems.
    """
    read_outcome = named(outcome, OUTCOMES, "outcome", Outcome)
    if read_outcome.needs_clean:
        raise ValueError(f"a joint knockout needs a signed outcome such as 'answer_logprob', got {read_outcome.name!r}")
    if n_random_sets < 0:
        raise ValueError(f"n_random_sets must be 0 or more, got {n_random_sets}")
    info = model.info
    chosen = check_heads(heads, n_layers=info.n_layers, n_heads=info.n_heads)
    if not chosen:
        raise ValueError("the set of heads is empty: name at least one head to knock out")
    bare = checked_pairs(pairs)
    if singles is not None and singles.shape != (len(bare), len(chosen)):
        raise ValueError(
            f"singles must be [problem, head] = [{len(bare)}, {len(chosen)}], got {list(singles.shape)}; leave it out to "
            "have the single knockouts swept"
        )
    answered = [pair.answered(read_outcome.appended) for pair in bare]
    read_outcome.check(answered)
    n_possible = count_sets(chosen, info)
    sets = random_sets(chosen, info, n_random_sets, seed=seed)
    gates = torch.stack([gate_row((), info), *(gate_row(members, info) for members in (chosen, *sets))])
    settings = {
        "outcome": read_outcome.name,
        "heads": [str(head) for head in chosen],
        "n_random_sets": n_random_sets,
        "seed": seed,
        "model": info.name,
        "backend": info.backend,
        "dtype": info.dtype,
    }
    saved = Checkpoint(checkpoint, {**settings, "prompts": [[p.id, hash_ids(p.inserted.ids)] for p in answered]})
    values = np.full((len(bare), len(gates)), np.nan)
    with progress_bar(len(bare), "knocking out sets of heads", enabled=progress) as bar:
        for index, pair in enumerate(answered):
            done = saved.get(pair.id)
            if done is None:
                done = gated_outcomes(model, pair, read_outcome, gates).tolist()
                saved.put(pair.id, done)
            values[index] = done
            bar.update(1)
    if singles is None:
        run = patch_heads(
            model, bare, edit="knockout", outcome=read_outcome, heads=chosen, progress=progress, seed=seed
        )
        singles = -run.effect[:, [head.layer for head in chosen], [head.head for head in chosen]]
    removed = values[:, :1] - values[:, 1:]
    return JointKnockout(
        problem_ids=tuple(pair.id for pair in bare),
        heads=chosen,
        effect=removed[:, 0],
        singles=singles,
        random=removed[:, 1:],
        sets=sets,
        n_possible=n_possible,
        unit=read_outcome.unit,
        settings={**settings, "insertion": bare[0].insertion.label},
        seed=seed,
    )


def count_sets(heads: Sequence[Head], info: ModelInfo) -> int:
    """How many other sets have the same number of heads in each layer; 0 where a layer has too few other heads."""
    counts = Counter(head.layer for head in heads)
    return math.prod(math.comb(info.n_heads - count, count) for count in counts.values())


def random_sets(heads: Sequence[Head], info: ModelInfo, n_sets: int, *, seed: int) -> tuple[tuple[Head, ...], ...]:
    """Different sets of other heads with the same number in each layer: all of them, or `n_sets` at random."""
    n_possible = count_sets(heads, info)
    if not n_possible or not n_sets:
        return ()
    counts = sorted(Counter(head.layer for head in heads).items())
    others = {
        layer: [head for head in info.heads if head.layer == layer and head not in set(heads)] for layer, _ in counts
    }
    if n_possible <= n_sets:
        every = itertools.product(*(itertools.combinations(others[layer], count) for layer, count in counts))
        return tuple(tuple(itertools.chain(*parts)) for parts in every)
    generator = derive_generator(seed, "random head sets", *heads)
    drawn: dict[tuple[Head, ...], None] = {}
    while len(drawn) < n_sets:
        places = {layer: generator.choice(len(others[layer]), count, replace=False) for layer, count in counts}
        drawn[tuple(others[layer][at] for layer, _ in counts for at in sorted(places[layer]))] = None
    return tuple(drawn)


def gate_row(heads: Iterable[Head], info: ModelInfo, *, closed: bool = True) -> torch.Tensor:
    """Gates `[layer, head]`: these heads closed and all others open, or (`closed=False`) these open and all others closed."""
    gates = torch.full((info.n_layers, info.n_heads), float(closed))
    for head in heads:
        gates[head.layer, head.head] = 1 - float(closed)
    return gates


def gated_outcomes(model: Model, pair: PromptPair, outcome: Outcome, gates: torch.Tensor) -> np.ndarray:
    """The outcome `[row]` of one problem (its answer appended) under each row of gates `[row, layer, head]`, 0 or 1.

    One pass over the changed positions where the model can be continued layer by layer, else one whole forward pass per
    row: the same numbers.
    """
    length = len(pair.inserted)
    start = length - pair.n_after
    read = [length - back for back in outcome.reads(pair)]
    found = []
    if model.stepper is None:
        inputs = pair.condition("inserted")
        for row in gates:
            shut = [Head(int(layer), int(head)) for layer, head in (row == 0).nonzero().tolist()]
            edits = {}
            if shut:
                edits = run_edits(model, inputs, Knockout(), shut, span=pair.span_mask[None], start=start)
            logits = model.run(inputs.tokens, edits=edits, logits_at=read).logits
            assert logits is not None
            found.append(outcome.value(logits, pair, None))
        return torch.cat(found).double().cpu().numpy()
    recording = model.record(pair.condition("inserted"), start=start)
    z = recording.z[0]
    span = span_of([pair], recording.inputs).to(z.device)
    at = torch.tensor(read, device=z.device) - start
    rows = default_rows(model, 1, length - start, length, len(read))
    with torch.no_grad():
        for part in gates.to(z).split(rows):
            found.append(outcome.value(model.stepper.tail(recording, at, gates=part, span=span), pair, None))
    return torch.cat(found).double().cpu().numpy()


@dataclass(frozen=True, eq=False)
class JointKnockout:
    """A set of heads knocked out together: `effect` `[problem]`, what that removes, in the sign of the insertion's effect.

    `singles` `[problem, head]` is what each removes alone, `random` `[problem, set]` what each of `sets` (random sets of
    the same size and layers, none of the given heads) removes together; `n_possible` such sets exist in all.
    """

    problem_ids: tuple[str, ...]
    heads: tuple[Head, ...]
    effect: np.ndarray
    singles: np.ndarray
    random: np.ndarray
    sets: tuple[tuple[Head, ...], ...]
    n_possible: int
    unit: str
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    @property
    def interval(self) -> Interval:
        """Mean joint effect with its interval over problems."""
        return interval_of(self.effect, 0.95, self.seed)

    @property
    def interaction(self) -> np.ndarray:
        """Joint knockout minus the sum of the single ones, `[problem]`; more than 0: they back each other up."""
        return self.effect - self.singles.sum(1)

    @property
    def interaction_interval(self) -> Interval:
        """Mean interaction with its interval over problems."""
        return interval_of(self.interaction, 0.95, self.seed)

    @property
    def exact(self) -> bool:
        """Whether every possible random set was taken."""
        return 0 < self.n_possible == len(self.sets)

    @property
    def p(self) -> float:
        """Rank of the set's |mean effect| among the random ones', itself included; NaN where there are none."""
        if not self.sets:
            return float("nan")
        own, others = abs(self.effect.mean()), np.abs(self.random.mean(0))
        return float((1 + (others >= own * (1 - 1e-9)).sum()) / (1 + len(others)))

    @property
    def margin_interval(self) -> Interval:
        """The set's effect minus the random sets' mean, in the sign of the set's, paired over problems."""
        sign = np.sign(self.effect.mean())
        return interval_of(sign * (self.effect - self.random.mean(1)), 0.95, self.seed)

    def summary(self) -> Any:
        """One row per set, the given one first: mean effect with its interval over problems."""
        import pandas as pd

        values = np.column_stack([self.effect, self.random])
        made = interval_of(values, 0.95, self.seed)
        return pd.DataFrame(
            {
                "set": ["given"] + [f"random {i}" for i in range(len(self.sets))],
                "heads": [" ".join(map(str, members)) for members in (self.heads, *self.sets)],
                "effect": made.estimate,
                "effect_ci_low": made.low,
                "effect_ci_high": made.high,
            }
        )

    def to_frame(self) -> Any:
        """One row per problem: joint effect, sum of the single ones, and the random sets' mean and range."""
        import pandas as pd

        random = self.random if self.sets else np.full((len(self.effect), 1), np.nan)
        return pd.DataFrame(
            {
                "problem": list(self.problem_ids),
                "joint": self.effect,
                "sum_of_singles": self.singles.sum(1),
                "interaction": self.interaction,
                "random_mean": random.mean(1),
                "random_low": random.min(1),
                "random_high": random.max(1),
            }
        )

    def describe(self) -> str:
        """What the set removes together, whether any heads of these layers would, and whether its heads add up."""
        words = [
            f"Knocking out {', '.join(map(str, self.heads))} together removes {_shown(self.interval)} {self.unit}.",
            self._random_words(),
        ]
        if len(self.heads) > 1:
            made = self.interaction_interval
            words.append(
                f"One by one they remove {self.singles.sum(1).mean():+.4f} in sum; interaction (joint minus sum) "
                f"{_shown(made)}{self._interaction_word(made)}."
            )
        return " ".join(word for word in words if word)

    def _random_words(self) -> str:
        if not self.sets:
            if self.settings.get("n_random_sets") == 0:
                return ""
            return (
                "No random set of the same size exists: some layer has fewer other heads than named ones, so whether any "
                "heads would do is not known."
            )
        means = self.random.mean(0)
        low, middle, high = np.quantile(means, (0.025, 0.5, 0.975))
        which = f"all {len(self.sets)} other" if self.exact else f"{len(self.sets)} random"
        words = (
            f"{which} sets of the same layers and size remove {middle:+.4f} (median; 95 % of them {low:+.4f} to "
            f"{high:+.4f}), p = {self.p:.3g}"
        )
        smallest = 1 / (1 + len(self.sets))
        if self.exact and smallest >= 0.05:
            words += f" (too few other heads: no p below {smallest:.2g} can come out)"
        return words[0].upper() + words[1:] + "."

    def _interaction_word(self, made: Interval) -> str:
        if not float(made.low) * float(made.high) > 0:
            return ": they add up, as far as can be told" if np.isfinite(made.low) else ""
        helps = np.sign(float(made.estimate)) == np.sign(self.effect.mean())
        return ": they back each other up" if helps else ": they overlap"

    def __repr__(self) -> str:
        return self.describe()


def _shown(made: Interval) -> str:
    return f"{float(made.estimate):+.4f} [{float(made.low):+.4f}, {float(made.high):+.4f}]"
