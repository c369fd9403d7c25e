"""What every long run shares: how far it is, what has finished, and results saved whole or not at all."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    ["checkpoint", "folders", "locks", "loop", "progress", "registry", "results", "store", "tables", "text_safety"],
)
