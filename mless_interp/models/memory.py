"""When memory runs out: whoever batches halves the batch and goes on."""

import torch


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on whichever device."""
    text = str(error).lower()
    known = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return known or "out of memory" in text or "can't allocate" in text


def halved(size: int, error: BaseException) -> int:
    """Half of a batch for which memory ran out; raises `error` again if it says something else or one is left already."""
    if size <= 1 or not out_of_memory(error):
        raise error
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return size // 2
