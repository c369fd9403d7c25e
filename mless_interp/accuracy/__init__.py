"""Accuracy: answers generated under several treatments, graded by two rules, compared on the same problems."""

from .answered import AccuracyResults
from .comparisons import Comparison, Comparisons
from .evaluate import evaluate_accuracy
from .treatments import Treatment

__all__ = ["AccuracyResults", "Comparison", "Comparisons", "Treatment", "evaluate_accuracy"]
