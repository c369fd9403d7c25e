"""Answers that a model gives: generated under several treatments, graded, compared on the same problems."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "evaluate": ["evaluate_accuracy"],
        "graders": ["GRADERS", "Grade", "grade", "grade_paper", "grade_strict", "has_closed_box", "last_box"],
        "results": ["AccuracyResults", "Comparison", "Comparisons"],
        "treatments": ["Treatment"],
    },
)
