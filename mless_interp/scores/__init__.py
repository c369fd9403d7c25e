"""What every head does with an insertion: profiles and metrics of whole runs, streamed."""

from .catalogue import DEFAULT, METRICS, SINKS, Metric
from .profiles import AttentionProfile, attention_between_segments, attention_profile
from .score import HeadScores, score_cache, score_heads

__all__ = [
    "DEFAULT",
    "METRICS",
    "SINKS",
    "AttentionProfile",
    "HeadScores",
    "Metric",
    "attention_between_segments",
    "attention_profile",
    "score_cache",
    "score_heads",
]
