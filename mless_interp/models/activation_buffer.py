"""Activations that wait, inside one forward pass, for a later site that is computed from them."""

from functools import partial

from torch import Tensor

from .info import ModelError
from .inputs import Edit, Reducer


class Held:
    """Activations by hook name, from when a forward pass reaches them until a later site of it takes them."""

    def __init__(self) -> None:
        self._values: dict[str, Tensor] = {}

    def captures(self, *names: str) -> dict[str, Reducer]:
        """Reducers that hold these sites; the run itself keeps nothing."""
        return {name: partial(self._values.__setitem__, name) for name in names}

    def edits(self, *names: str) -> dict[str, Edit]:
        """Edits that hold these sites and change nothing."""
        return {name: partial(self._passed_on, name) for name in names}

    def _passed_on(self, name: str, value: Tensor) -> Tensor:
        self._values[name] = value
        return value

    def take(self, *names: str) -> tuple[Tensor, ...]:
        """These activations, held no longer."""
        missing = [name for name in names if name not in self._values]
        if missing:
            raise ModelError(f"{', '.join(missing)} did not come before the site that is computed from it")
        return tuple(self._values.pop(name) for name in names)
