"""Accuracy: answers generated under several treatments, graded three ways, compared on the same problems."""

from .answered import AccuracyResults
from .comparisons import Comparison, Comparisons
from .evaluate import evaluate_accuracy
from .linked import LinkedAccuracy
from .treatments import Treatment

__all__ = ["AccuracyResults", "Comparison", "Comparisons", "LinkedAccuracy", "Treatment", "evaluate_accuracy"]
