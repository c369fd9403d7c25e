"""What every head does with an insertion, from its attention: profiles and metrics, streamed."""

from .catalogue import DEFAULT, METRICS, Metric
from .heads import score_heads
from .layout import Thresholds
from .results import HeadScores

__all__ = ["DEFAULT", "METRICS", "HeadScores", "Metric", "Thresholds", "score_heads"]
