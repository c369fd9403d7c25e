"""Which heads carry an effect, held against controls; how they act, on whom, and from which tokens."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    "cells circuit head_sets head_writes judge locate located paths site_patches transfer".split(),
)
