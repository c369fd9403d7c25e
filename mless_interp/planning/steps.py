"""What each analysis is made of: steps that are run for real on a few layers, and the operations by which they grow."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..heads import Head
from ..locating.measure import measure
from ..mechanism import activation_shift, decompose_attention, mediate
from ..models.base import Model
from ..patching.joint import joint_knockout
from ..patching.outcomes import Outcome
from ..patching.prepared import prepare
from ..patching.reads import read_effects
from ..patching.sweep import Sweep, sweep_heads
from ..prompts.conditions import DIRECTIONS
from ..prompts.pairs import PromptPair
from ..scores import attention_profile, score_heads
from .operations import Arithmetic, Number

Pairs = Sequence[PromptPair]
N_SETS, N_SETS_TIMED = 100, 32
OTHER_INSERTIONS = 11 + 1 + 1.25
"""Of what named heads are measured again, in four sweeps each: 5 draws of random words, 5 of other questions, a repeated word;
the gap alone (two sweeps, as many runs); five draws of attention taken elsewhere (five sweeps)."""


@dataclass(frozen=True)
class Step:
    """A part of an analysis of problems that share a unit.

    `run` does it for real; `operations` of it with these pairs and so many layers, `logits` the positions at which it reads
    them; it is done `times` times. `sampled`: the operations of what `run` does, where that is a part of it. `beside`: only
    done where heads are named.
    """

    name: str
    run: Callable[[Model, Pairs], Any]
    operations: Callable[[Arithmetic, Pairs], float]
    logits: Callable[[Arithmetic, Pairs], float]
    times: Number = 1.0
    sampled: Callable[[Arithmetic, Pairs], float] | None = None
    beside: bool = False


def sweeping(outcome: Outcome, n_sweeps: int) -> Step:
    """Exact sweeps of all heads: one, or the four of locating."""
    edits = (("z", "denoising"),) if n_sweeps == 1 else [(e, d) for e in ("knockout", "z") for d in DIRECTIONS]
    sweeps = {f"{edit}-{direction}": Sweep.named(edit=edit, direction=direction) for edit, direction in edits}

    def run(model: Model, pairs: Pairs) -> Any:
        return sweep_heads(prepare(model, pairs, outcome), sweeps, model.info.heads, progress=False)

    def rows(at: Arithmetic) -> Number:
        return at.shape.info.n_heads + 1  # and one that is not edited

    entering = n_sweeps // 2
    return Step(
        "exact sweep of all heads" if n_sweeps == 1 else "four exact sweeps of all heads",
        run,
        lambda at, pairs: swept(at, pairs, outcome, per_layer=rows(at), n_sweeps=n_sweeps, entering=entering),
        lambda at, pairs: len(pairs) * n_read(pairs, outcome) * (2 + n_rows(at, rows(at), n_sweeps, entering)),
    )


def n_read(pairs: Pairs, outcome: Outcome) -> int:
    """Positions at which the outcome of one of these is read."""
    return len(outcome.reads(_answered(pairs, outcome)))


def geometry(pairs: Pairs, outcome: Outcome) -> tuple[int, int]:
    """Tokens of the inserted prompt with its answer, and how many of them come after the insertion's first block."""
    first = _answered(pairs, outcome)
    return len(first.inserted), len(first.inserted) - first.spans[0][1]


def _answered(pairs: Pairs, outcome: Outcome) -> PromptPair:
    return pairs[0].answered(outcome.appended)


def swept(
    at: Arithmetic, pairs: Pairs, outcome: Outcome, *, per_layer: Number, n_sweeps: int, entering: int = 0
) -> float:
    """Two recorded runs, and sweeps of so many rows in each layer; `entering` of them have no edits of their own in layer 0."""
    length, changed = geometry(pairs, outcome)
    sizes = {"changed": changed, "read": n_read(pairs, outcome), "length": length}
    each = (n_sweeps - entering) * at.sweep(per_layer, **sizes) + entering * at.sweep(per_layer, first=1, **sizes)
    return at.whole(2 * len(pairs), length) + len(pairs) * each


def n_rows(at: Arithmetic, per_layer: Number, n_sweeps: int, entering: int = 0) -> Number:
    """Rows of such sweeps that end in logits."""
    return n_sweeps * per_layer * at.n_layers - entering * (per_layer - 1)


def controls(outcome: Outcome, n_named: int) -> tuple[Step, ...]:
    """What is done with named heads, supposing that so many are named: they are spread over the layers here."""

    def some(model: Model) -> list[Head]:
        heads = model.info.heads
        return list(heads[:: max(1, len(heads) // n_named)][:n_named])

    def again(model: Model, pairs: Pairs) -> Any:
        options: dict[str, Any] = {"checkpoint": None, "progress": False, "seed": 0}
        return measure(prepare(model, pairs, outcome), some(model), **options)

    def rows(at: Arithmetic) -> Number:
        return (n_named + min(at.n_layers, n_named) + 1) / at.n_layers

    def sets(model: Model, pairs: Pairs) -> Any:
        return joint_knockout(
            model, pairs, some(model), outcome=outcome, n_random_sets=N_SETS_TIMED, progress=False, singles=None
        )

    def in_sets(count: Number) -> Callable[[Arithmetic, Pairs], float]:
        def operations(at: Arithmetic, pairs: Pairs) -> float:
            length, changed = geometry(pairs, outcome)
            return at.whole((2 + (count + 2) * changed / length) * len(pairs), length)

        return operations

    def apart(model: Model, pairs: Pairs) -> Any:
        return read_effects(model, pairs, some(model), outcome=outcome, progress=False)

    return (
        Step(
            "controls: the named heads under other insertions",
            again,
            lambda at, pairs: swept(at, pairs, outcome, per_layer=rows(at), n_sweeps=4, entering=2),
            lambda at, pairs: len(pairs) * n_read(pairs, outcome) * (2 + n_rows(at, rows(at), 4, entering=2)),
            times=OTHER_INSERTIONS,
            beside=True,
        ),
        Step(
            f"controls: {N_SETS} random sets",
            sets,
            in_sets(N_SETS),
            lambda at, pairs: len(pairs) * n_read(pairs, outcome) * (N_SETS + 4),
            sampled=in_sets(N_SETS_TIMED),
            beside=True,
        ),
        Step(
            "controls: what the reads are",
            apart,
            lambda at, pairs: swept(at, pairs, outcome, per_layer=rows(at), n_sweeps=5),
            lambda at, pairs: len(pairs) * n_read(pairs, outcome) * (2 + n_rows(at, rows(at), 5)),
            beside=True,
        ),
    )


def describing() -> tuple[Step, ...]:
    """Scores and profiles of every head, with and without the insertion."""

    def runs(at: Arithmetic, pairs: Pairs) -> float:
        return sum(at.whole(1, len(pair.base)) + at.whole(1, len(pair.inserted)) for pair in pairs)

    return (
        Step("scores of all heads", lambda model, pairs: score_heads(model, pairs, progress=False), runs, _none),
        Step(
            "attention that tokens receive",
            lambda model, pairs: attention_profile(model, pairs, heads=model.info.heads[:3], progress=False),
            runs,
            _none,
        ),
    )


def explaining(outcome: Outcome) -> tuple[Step, ...]:
    """Scale and bias, with five draws of random words as a control; activations; mediation in the first layer."""

    def runs(n: Number) -> Callable[[Arithmetic, Pairs], float]:
        return lambda at, pairs: sum(at.whole(n, len(pair.inserted)) for pair in pairs)

    return (
        Step(
            "attention as scale and bias, and of five controls",
            lambda model, pairs: decompose_attention(model, pairs, progress=False),
            runs(4),
            _none,
            times=3,
        ),
        Step(
            "activations of an MLP",
            lambda model, pairs: activation_shift(model, pairs, progress=False),
            runs(4),
            _none,
        ),
        Step(
            "mediation",
            lambda model, pairs: mediate(model, pairs, outcome=outcome, progress=False),
            runs(6),
            _none,
        ),
    )


def _none(at: Arithmetic, pairs: Pairs) -> float:
    return 0.0
