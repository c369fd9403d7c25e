"""The paper (arXiv 2510.01032) as data: its figures, models, heads, published numbers, and its claims as checks.

"Meaningless Tokens, Meaningful Gains: How Activation Shifts Enhance LLM Reasoning", Shi et al. 2025, version 1.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "claims": [*("CLAIMS", "Claim", "ClaimCheck", "ClaimChecks", "reproduce_figure")],
        "rank_enrichment": ["Enrichment", "enrichment"],
        "figures": ["FIGURES", "MODELS", "Figure", "PaperModel", "published"],
    },
)
