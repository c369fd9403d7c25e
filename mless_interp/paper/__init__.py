"""The paper (arXiv 2510.01032) as data: its figures, models, heads, published numbers, and its claims as checks.

"Meaningless Tokens, Meaningful Gains: How Activation Shifts Enhance LLM Reasoning", Shi et al. 2025, version 1.
"""

from ..mechanism.arm_published import PUBLISHED_ARM, PublishedArm, arm_settings, published_arm
from .checked_claims import ClaimCheck, ClaimChecks, check_claims
from .claims import CLAIMS, Claim
from .enriched import Enrichment, enrichment
from .figures import (
    FIGURES,
    MODELS,
    SHOWN_HEADS,
    Contradiction,
    Figure,
    Panel,
    PaperModel,
    load_panel_model,
    stand_in_problems,
)
from .published import CONTRADICTIONS, PUBLISHED, Published, published

__all__ = [
    "CLAIMS",
    "CONTRADICTIONS",
    "FIGURES",
    "MODELS",
    "PUBLISHED",
    "PUBLISHED_ARM",
    "SHOWN_HEADS",
    "Claim",
    "ClaimCheck",
    "ClaimChecks",
    "Contradiction",
    "Enrichment",
    "Figure",
    "Panel",
    "PaperModel",
    "Published",
    "PublishedArm",
    "arm_settings",
    "check_claims",
    "enrichment",
    "load_panel_model",
    "published",
    "published_arm",
    "stand_in_problems",
]
