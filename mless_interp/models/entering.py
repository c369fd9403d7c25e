"""Queries and keys as they enter the scores, where a library shows only those before it rotates them."""

from collections.abc import Callable

from torch import Tensor

from .inputs import Tap, Taps
from .sites import parsed, site

ENTERING = {"attn.hook_rot_q": "attn.hook_q", "attn.hook_rot_k": "attn.hook_k"}
"""Sites of what enters the scores, and of what it is made of."""
Turn = Callable[[int, int, Tensor, bool], Tensor]
"""(layer, 0 for queries and 1 for keys, what is to be turned `[batch, token, head, d_head]`, back) -> turned."""


def turned_taps(taps: Taps, turn: Turn) -> Taps:
    """The same run with its taps at the sites of what enters the scores moved to where it is made: turned there and back."""
    made = dict(taps)
    for name in taps:
        layer, what = parsed(name) or (0, "")
        if what in ENTERING:
            before = site(layer, ENTERING[what])
            made[before] = _turned(made.get(before), made.pop(name), turn, layer, list(ENTERING).index(what))
    return made


def _turned(first: Tap | None, then: Tap, turn: Turn, layer: int, which: int) -> Tap:
    def apply(value: Tensor) -> Tensor:
        value = value if first is None else first(value)
        new = then(turn(layer, which, value, False))
        return value if then.edit is None else turn(layer, which, new, True)

    if then.edit is not None or (first is not None and first.edit is not None):
        return Tap(edit=apply)

    def keep(value: Tensor) -> None:
        apply(value)

    return Tap(keep=keep)
