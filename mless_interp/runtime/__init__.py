"""What every long run shares: engines, checkpoints, progress, results, and folders that are written whole or not at all."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, "base_result checkpoint code_digests columns folders loop store text_safety workers".split()
)
