"""What every head does with an insertion, from its attention: profiles and metrics, streamed."""

from .cache import score_cache
from .catalogue import DEFAULT, METRICS, Metric
from .layout import Thresholds
from .profiles import AttentionProfile, Curve, attention_profile
from .score import score_heads
from .scored import HeadScores

__all__ = [
    "DEFAULT",
    "METRICS",
    "AttentionProfile",
    "Curve",
    "HeadScores",
    "Metric",
    "Thresholds",
    "attention_profile",
    "score_cache",
    "score_heads",
]
