"""Heads edited one at a time, exactly: outcomes, interventions, sweeps, and estimates from gradients."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    ["attribution", "dose", "interventions", "knockouts", "outcomes", "prepared", "sweep", "transplant"],
    {
        "interventions": ["INTERVENTIONS", "Gate", "Intervention", "MatchedMassKnockout"],
        "outcomes": ["OUTCOMES", "Outcome"],
        "sweep": ["POSITIONS", "PatchScores", "patch_heads"],
    },
)
