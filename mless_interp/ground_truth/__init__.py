"""Models whose circuits are known, random stand-ins, and what must hold exactly: identities, certificate, a user's hook."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    ["planted", "roles", "stand_ins", "tokenizer"],
    {
        "planted": ["PlantedModel", "planted_model"],
        "stand_ins": ["stand_in", "stand_in_problems"],
    },
)
