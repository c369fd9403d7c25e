"""The exact identities of methods §3, runnable on any model and prompt pair.

They are arithmetic, not findings: a model behind a backend that tells the truth obeys them up to rounding, whatever its
weights. `certificate.py` runs them on a user's model; the tests run them on every backend and architecture.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ..models.base import Model
from . import formulas
from .case import Case, Finding, Layer, apart, worst


def _rotated(case: Case) -> str | None:
    if case.model.has_rotated_sites:
        return None
    return "this backend shows no queries and keys as they enter the scores of this architecture"


def _no_prefix(case: Case) -> str | None:
    return None if case.pair.span[0] else "nothing stands before the span"


def _identical(case: Case) -> str | None:
    if case.model.learned_positions:
        return "its positions are learned vectors, so the same token has other keys and values at another place"
    if len(set(case.pair.span_ids)) > 1:
        return "the inserted tokens are not all the same"
    return _rotated(case)


def _adds(case: Case) -> str | None:
    if case.model.norms_attention:
        return f"{case.model.info.architecture} norms attention's output before it is added, so heads do not add up"
    return None


def _unwindowed(case: Case) -> str | None:
    window = case.model.info.windows[0]
    if not case.pair.insertion.repeats:
        return "the insertion is not a repeated unit"
    if window is not None and window < len(case.pair.base):
        return f"layer 0's sliding window of {window} tokens cuts the span off from some rows"
    return _identical(case)


def _reads_nothing(case: Case) -> str | None:
    return "the span stands after the question, or part of it" if case.pair.span_sees_question else None


def _reads_question(case: Case) -> str | None:
    return None if case.pair.span_sees_question else "nothing of the question stands before the span"


@dataclass(frozen=True)
class Identity:
    """One identity: what it `says`, its formula, the reason why it may not `apply`, and how many times the tolerance of
    a first-layer identity it is allowed (rounding adds up over layers, and logarithms of small masses magnify it)."""

    name: str
    says: str
    formula: Callable[[Case], Finding]
    applies: Callable[[Case], str | None] = lambda case: None
    factor: float = 1.0


IDENTITIES: tuple[Identity, ...] = (
    Identity(
        "I0", "the pattern shown is softmax(q k), and times the values it is z (every layer)", formulas.own_pattern
    ),
    Identity("I1", "z' = λ z_ref + Σ, position-matched", formulas.affine),
    Identity("I2", "against the plain run: plus λ (z_gap - z_base)", formulas.third_term),
    Identity("I3", "identical tokens: Σ = (1 - λ) v, one vector per head", formulas.one_vector, _identical),
    Identity("I4", "renormalised shared pattern = reference pattern", formulas.renormalised),
    Identity("I5", "tokens before the span never change (every layer)", formulas.prefix, _no_prefix),
    Identity("I6", "gap = masked on shared tokens (every layer, logits)", formulas.gap_is_masked, factor=10.0),
    Identity("I7", "layer 0: knockout = z patch from masked, from gap", formulas.knockout_is_patch, _rotated),
    Identity("I8", "span attention zeroed: z = λ z_ref", formulas.zeroed, _rotated),
    Identity("I9", "residual change = sum over heads, shares sum to 1", formulas.heads_add_up, _adds),
    Identity("I10", "each head adds its scale part + its bias part", formulas.scale_and_bias, _adds),
    Identity("I11", "entropy = between + λ outside + (1 - λ) inside (every layer)", formulas.entropy_splits),
    Identity("I12", "logit(1 - λ) = log N + constant, slope 1", formulas.slope_one, _unwindowed, factor=10.0),
    Identity(
        "I13", "span before the question: blind = inserted (every layer)", formulas.before_it_is_blind, _reads_nothing
    ),
    Identity(
        "I14",
        "content = presence + computed (layer 0: outside the span, in it)",
        formulas.presence_and_computed,
        _reads_question,
    ),
)
"""I0 to I14: I1 to I13 of methods §3, before them that the backend's own pattern is the one that acts, and behind them that
what a span computes begins in its own rows."""


def tolerance_of(model: Model) -> float:
    """Largest relative error allowed to a first-layer identity: methods §6.

    1e-10 in float64 where attention is float64 too; 1e-5 in float64 behind Hugging Face's eager softmax, which is
    float32; 1e-4 in float32; 2e-2 in half precision.
    """
    if model.info.dtype == "float64":
        return 1e-5 if model.float32_softmax else 1e-10
    return 1e-4 if model.info.dtype == "float32" else 2e-2


def named(name: str) -> Identity:
    """The identity of that name."""
    found = {identity.name: identity for identity in IDENTITIES}
    if name not in found:
        raise ValueError(f"unknown identity {name!r}; there are {', '.join(found)}")
    return found[name]


__all__ = ["IDENTITIES", "Case", "Finding", "Identity", "Layer", "apart", "named", "tolerance_of", "worst"]
