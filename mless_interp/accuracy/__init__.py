"""Accuracy: answers generated under several conditions, graded three ways, compared on the same problems."""

from .boxes import has_closed_box, last_box
from .comparisons import Comparison, Comparisons
from .conditions import Condition
from .evaluate import evaluate_accuracy
from .graders import GRADERS, Grade, grade, grade_lenient, grade_paper, grade_strict
from .linked import LinkedAccuracy
from .results import AccuracyResults

__all__ = [
    "GRADERS",
    "AccuracyResults",
    "Comparison",
    "Comparisons",
    "Condition",
    "Grade",
    "LinkedAccuracy",
    "evaluate_accuracy",
    "grade",
    "grade_lenient",
    "grade_paper",
    "grade_strict",
    "has_closed_box",
    "last_box",
]
