"""Growing circuits: how much of the insertion's effect the first k heads of a ranking restore."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from ..core.arguments import check_count, checked, count_of
from ..core.heads import Head
from ..metrics.outputs import circuit_distance, circuit_performance
from ..models.base import Model
from ..patching.effect import Effect
from ..patching.knockouts import CHOSEN_HERE, cutting, gate_row, gated_outcomes
from ..patching.outcomes import Outcome
from ..patching.prepared import Prepared, Settings, prepare
from ..prompts.pairs import PromptPair
from ..runtime.columns import columns_of
from ..runtime.loop import RunOptions
from ..runtime.results import Result, tidy
from ..statistics import CONFIDENCE, derive_generator

FRACTIONS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""MIB's sizes of circuits, as shares of all heads."""
ABLATION = {
    "content": "attention to the span masked, renormalised",
    "computed": "the span's attention to the question masked, renormalised",
    "inside": "the span's attention to itself masked, renormalised",
    "replaced": "head outputs of the clean run",
}


@checked
def circuit_curve(
    model: Model,
    pairs: Iterable[PromptPair] | Prepared,
    ranking: Sequence[Head | str],
    *,
    contrast: str = "content",
    outcome: str | Outcome = "answer_logprob",
    fractions: Sequence[float] = FRACTIONS,
    n_random: int = 20,
    chosen_elsewhere: bool = False,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    seed: int = 0,
) -> "CircuitCurve":
    r"""Start where no head sees the span, let the first k heads of a ranking see it, and read the outcome.

    $$ f(k) = \frac{\bar Y_k - \bar Y_{\text{masked}}}{\bar Y_{\text{inserted}} - \bar Y_{\text{masked}}}, \qquad
       \mathrm{CPR} = \int f, \quad \mathrm{CMD} = \int |1 - f| $$

    For the ranking, for the same ranking backwards, and for `n_random` random orders with the ranking's layer profile.

    Parameters
    ----------
    contrast : "content"; "computed", the heads then let the span's rows see the question, from blind to inserted; "replaced",
        they write what they do in the run under study, all others what they do in the clean one.
    ranking : best head first; heads that it leaves out follow in order of layer and head.
    fractions : sizes as shares of all heads, each in (0, 1]; the empty and the whole set are always there.
    chosen_elsewhere : the ranking was made without these problems; only then is it tested against the random orders.
    checkpoint : as in `patch_heads`.

    Source: MIB, Mueller et al. 2025 (2504.13151), with attention to the span as what a circuit has or lacks.
    """
    between, info = cutting(contrast), model.info
    prepared = prepare(model, pairs, outcome, signed_for="a circuit curve").under(between)
    check_count(n_random, name="n_random", at_least=0)
    given = info.chosen(ranking, what="rank")
    order = (*given, *(head for head in info.heads if head not in set(given)))
    sizes = circuit_sizes(len(order), fractions)
    orders = {"ranking": order, "reversed": order[::-1]}
    orders |= {f"random {draw}": same_layers(order, seed=seed, draw=draw) for draw in range(n_random)}
    sets = [(), order, *(heads[:k] for heads in orders.values() for k in sizes[1:-1])]
    settings: Settings = {"ablation": ABLATION[contrast], "contrast": contrast, "n_ranked": len(given)}
    settings |= {"ranking": [str(head) for head in order], "n_random": n_random, "seed": seed}
    values = gated_outcomes(
        prepared,
        torch.stack([gate_row(heads, info, closed=False) for heads in sets]),
        label="growing circuits",
        settings={**settings, "sizes": sizes.tolist()},
        contrast=between,
        options=RunOptions(checkpoint, progress),
    )
    masked, inserted = (np.repeat(end[:, None, None], len(orders), 1) for end in (values[:, 0], values[:, 1]))
    inner = values[:, 2:].reshape(len(values), len(orders), -1)
    return CircuitCurve(
        ranking=order,
        sizes=sizes,
        orders=tuple(orders),
        values=np.concatenate([masked, inner, inserted], -1),
        seed=seed,
        chosen_elsewhere=chosen_elsewhere,
        **prepared.fields(settings),
    )


def circuit_sizes(n_heads: int, fractions: Sequence[float]) -> np.ndarray:
    """Numbers of heads for shares of all heads, each once, with none and all."""
    wrong = [fraction for fraction in fractions if not 0 < fraction <= 1]
    if wrong or not len(fractions):
        raise ValueError(f"fractions must be shares of all heads in (0, 1], got {wrong or 'none'}")
    whole = (int(fraction * n_heads + 1e-9) for fraction in fractions)  # 0.3 * 10 is 3, whatever binary fractions say
    return np.array(sorted({0, n_heads, *whole}))


def same_layers(order: Sequence[Head], *, seed: int, draw: int) -> tuple[Head, ...]:
    """A random order whose every place holds a head of the same layer as in `order`."""
    generator = derive_generator(seed, "circuit order", draw)
    waiting: dict[int, list[Head]] = {}
    for head in order:
        waiting.setdefault(head.layer, []).append(head)
    shuffled = {layer: [heads[i] for i in generator.permutation(len(heads))] for layer, heads in waiting.items()}
    return tuple(shuffled[head.layer].pop() for head in order)


@dataclass(frozen=True, eq=False, repr=False)
class CircuitCurve(Result):
    """Outcomes of growing circuits, `values` `[problem, order, size]`, for the ranking, its reverse and random orders.

    `sizes` are numbers of heads that see the span, from 0 (masked) to all (inserted).
    """

    problem_ids: tuple[str, ...]
    ranking: tuple[Head, ...]
    sizes: np.ndarray
    orders: tuple[str, ...]
    values: np.ndarray
    unit: str
    settings: Settings = field(default_factory=dict)
    seed: int = 0
    confidence: float = CONFIDENCE
    resolution: float = 0.0
    chosen_elsewhere: bool = False

    picture = "circuit_curve"
    columns = columns_of("""
        fraction | share of the heads | share | heads that see the span / all ranked heads
        faithfulness | effect restored | share | share of the whole effect that these heads restore
        reversed | reversed ranking | share | the same for the ranking from its end
        random_mean | random orders | share | the same for heads in random order, mean
        random_low | random orders, from | | the least that a random order restores
        random_high | random orders, to | | the most that a random order restores
    """)
    axes = (("values", "problem order size"),)

    @property
    def fractions(self) -> np.ndarray:
        """Sizes as shares of all heads."""
        return self.sizes / len(self.ranking)

    @property
    def total(self) -> np.ndarray:
        """Effect of letting every head see the span (inserted - masked), `[problem]`."""
        return self.values[:, 0, -1] - self.values[:, 0, 0]

    @cached_property
    def whole(self) -> Effect:
        """The effect to restore."""
        return Effect(self.total, self.confidence, rounding=self.resolution, groups=self.groups)

    @property
    def faithfulness(self) -> np.ndarray:
        """Restored share of the effect, ratio of means, `[order, size]`; NaN where there is no mean to have a share of."""
        gained = (self.values - self.values[:, :, :1]).mean(0)
        return gained / (self.whole.mean if self.whole.established else np.nan)

    @property
    def cpr(self) -> np.ndarray:
        """Area under the faithfulness curve, `[order]`: higher is better."""
        return circuit_performance(torch.tensor(self.fractions), torch.tensor(self.faithfulness)).numpy()

    @property
    def cmd(self) -> np.ndarray:
        """Area between the faithfulness curve and 1, `[order]`: lower is better."""
        return circuit_distance(torch.tensor(self.fractions), torch.tensor(self.faithfulness)).numpy()

    @property
    def p_random(self) -> float:
        """Share of random orders (and of the ranking itself) whose CMD is as low as the ranking's; NaN without any, and where
        the ranking was made on these problems."""
        random = self.cmd[2:]
        if not self.chosen_elsewhere or not len(random) or np.isnan(self.cmd[0]):
            return float("nan")
        return float((1 + (random <= self.cmd[0] + 1e-12).sum()) / (1 + len(random)))

    def table(self) -> pd.DataFrame:
        """Return one row per size: the ranking's faithfulness, the reverse, the random orders' mean and range."""
        ranked, backwards, *random = self.faithfulness
        spread = np.array(random) if random else np.full((1, len(self.sizes)), np.nan)
        columns = {"n_heads": self.sizes, "fraction": self.fractions, "faithfulness": ranked, "reversed": backwards}
        columns |= {"random_mean": spread.mean(0), "random_low": spread.min(0), "random_high": spread.max(0)}
        return pd.DataFrame(columns)

    def to_frame(self) -> pd.DataFrame:
        """Return one tidy row per problem, order and size."""
        return tidy({"problem": self.problem_ids, "order": self.orders, "n_heads": self.sizes}, outcome=self.values)

    def headline(self) -> str:
        """Return how many of the first heads restore half of the effect, and the area under the curve."""
        whole = self.whole.headline(self.settings.get("insertion"), self.settings.get("outcome"), self.unit)
        if np.isnan(self.faithfulness).all():
            return f"{whole}, and its mean is not told from 0, so there is no curve to draw."
        at = int(np.argmax(self.faithfulness[0] >= 0.5))
        first, last = self.sizes[at - 1] + 1, self.sizes[at]
        size = last if first >= last else f"{first} to {last}"
        of = f"{size} of {count_of(len(self.ranking), 'head')}"
        areas = f"area under the curve {self.cpr[0]:.2f}, worst first {self.cpr[1]:.2f}"
        return f"{whole}; half of it returns with the first {of} ({areas})."

    def details(self) -> list[str]:
        """Return what was taken from the other heads, and the areas beside random orders."""
        words, cpr, cmd = [f"Ablation: {self.settings.get('ablation')}."], self.cpr, self.cmd
        if len(self.orders) > 2 and not np.isnan(cmd[0]):
            p = CHOSEN_HERE if np.isnan(self.p_random) else f"p = {self.p_random:.3f} for the CMD"
            words.append(
                f"CPR {cpr[0]:.3f}, CMD {cmd[0]:.3f}; {len(self.orders) - 2} random orders with the same layers: CPR "
                f"{cpr[2:].mean():.3f}, CMD {cmd[2:].mean():.3f} on average; {p}."
            )
        return words
