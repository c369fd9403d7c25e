"""Accuracy: answers generated under several conditions, graded three ways, compared on the same problems."""

from ..grading.boxes import has_closed_box, last_box
from ..grading.graders import GRADERS, Grade, grade, grade_lenient, grade_paper, grade_strict
from .comparisons import Comparison, Comparisons
from .evaluate import evaluate_accuracy
from .linked import LinkedAccuracy
from .results import AccuracyResults
from .treatments import Condition

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
