"""The seam, its backends, loading and checking, and replay."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    (
        "architectures attention_math base checks hugging_face info load load_options memory nnsight replay sites traced_ops "
        "transformer_lens weights"
    ).split(),
)
