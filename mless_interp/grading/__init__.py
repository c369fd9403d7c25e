"""Whether an answer is right: boxes, LaTeX, equality. Knows nothing of models."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    ["boxes", "graders"],
    {
        "boxes": ["has_closed_box", "last_box"],
        "graders": ["GRADERS", "Grade", "grade", "grade_paper", "grade_strict"],
    },
)
