"""The paper's mechanism, measurable: attention split into scale and bias, MLP activations, ARM."""

from .activation_results import ActivationShift
from .arm import ARM, ArmPlan
from .decompose import decompose_attention
from .decomposition import AttentionDecomposition
from .gate_activations import activation_shift
from .mediation import mediate
from .mediation_results import Mediation
from .span_reading import read_span
from .span_readings import SpanReadings

__all__ = [
    "ARM",
    "ActivationShift",
    "ArmPlan",
    "AttentionDecomposition",
    "Mediation",
    "SpanReadings",
    "activation_shift",
    "decompose_attention",
    "mediate",
    "read_span",
]
