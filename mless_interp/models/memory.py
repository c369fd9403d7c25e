"""Telling that memory ran out: whoever batches then halves the batch and goes on."""

import torch


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on whichever device."""
    text = str(error).lower()
    known = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return known or "out of memory" in text or "can't allocate" in text
