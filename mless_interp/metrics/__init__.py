"""Pure formulas: tensors in, numbers out, one published definition each."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, "activations attention collapse outputs patterns received".split()
)
