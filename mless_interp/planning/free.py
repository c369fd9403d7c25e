"""Memory that is free on this machine."""

import os
import re
from pathlib import Path


def available_memory() -> int:
    """Bytes of memory that a process can still have here."""
    found = _kilobytes(Path("/proc/meminfo"), "MemAvailable")
    if found is not None:
        return found
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _kilobytes(file: Path, name: str) -> int | None:
    if not file.is_file():
        return None
    line = re.search(rf"^{name}:\s+(\d+) kB", file.read_text(), re.MULTILINE)
    return None if line is None else 1024 * int(line[1])
