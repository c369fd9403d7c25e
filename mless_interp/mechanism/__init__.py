"""The paper's mechanism, measurable: attention split into scale and bias, MLP activations, what spans hold, ARM."""

from .activations import ActivationShift, activation_shift
from .arm import ARM
from .decompose import AttentionDecomposition, decompose_attention
from .mediation import Mediation, mediate
from .span_reading import SpanReadings, read_span

__all__ = [
    "ARM",
    "ActivationShift",
    "AttentionDecomposition",
    "Mediation",
    "SpanReadings",
    "activation_shift",
    "decompose_attention",
    "mediate",
    "read_span",
]
