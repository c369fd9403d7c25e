"""Pictures and pages of results; each is made when asked for, so that importing this loads no plotting library."""

from importlib import import_module
from typing import Any

_PUBLIC = {
    "head_map": "plots",
    "profile": "plots",
    "profiles": "plots",
    "compare_profiles": "plots",
    "bars_and_profiles": "plots",
    "circuit_curve": "plots",
    "dose_response": "plots",
    "attention": "circuits",
}
__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(f".{_PUBLIC[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
