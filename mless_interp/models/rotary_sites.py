"""Queries and keys as they enter the scores, where a library shows only those before it rotates them; scores and patterns,
where those that it shows act on nothing."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from .activation_buffer import Held
from .arithmetic import masked_scores, mix_values, softmax
from .info import AttentionRule
from .inputs import Tap, Taps
from .sites import EAGER_SITES, attention_sites, parsed, site

ENTERING = {"attn.hook_rot_q": "attn.hook_q", "attn.hook_rot_k": "attn.hook_k"}
"""Sites of what enters the scores, and of what it is made of."""
Turn = Callable[[int, int, Tensor, bool], Tensor]
"""(layer, 0 for queries and 1 for keys, what is to be turned `[batch, token, head, d_head]`, back) -> turned."""


def turned_taps(taps: Taps, turn: Turn) -> Taps:
    """The same run with its taps at the sites of what enters the scores moved to where it is made: turned there and back."""
    made = dict(taps)
    for name in taps:
        layer, what = _parsed(name)
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


def mixed_taps(taps: Taps, visible: Callable[[], Sequence[Tensor]], rule: Callable[[int], AttentionRule]) -> Taps:
    """The same run where a library's own scores and patterns act on nothing: made here of what enters them, and mixed anew.

    `visible` gives what `Model.visible` does, and is asked only where there is such a site.
    """
    layers = sorted({at for at, what in map(_parsed, taps) if what in EAGER_SITES})
    if not layers:
        return taps
    made, masks = dict(taps), visible()
    for layer in layers:
        scores, pattern = (made.pop(site(layer, f"attn.hook_{what}"), Tap()) for what in ("attn_scores", "pattern"))
        held, names = Held(), attention_sites(layer, "rot_q", "rot_k", "v")
        for name, hold in held.captures(*names).items():
            made[name] = _then_kept(made.get(name, Tap()), hold)
        z = site(layer, "attn.hook_z")
        made[z] = _mixed(scores, pattern, made.get(z, Tap()), partial(held.take, *names), masks[layer], rule(layer))
    return made


def _parsed(name: str) -> tuple[int, str]:
    return parsed(name) or (0, "")


def _then_kept(tap: Tap, hold: Any) -> Tap:
    def keep(value: Tensor) -> None:
        if tap.keep is not None:
            tap.keep(value)
        hold(value)

    return Tap(tap.edit, keep)


def _mixed(scores: Tap, pattern: Tap, z: Tap, parts: Callable[[], Any], visible: Tensor, rule: AttentionRule) -> Tap:
    def edit(value: Tensor) -> Tensor:
        q, k, v = parts()
        mixed = mix_values(pattern(softmax(scores(masked_scores(q, k, visible.to(q.device), rule)), rule.column)), v)
        return value if scores.edit is None and pattern.edit is None else mixed.to(value)

    def then(value: Tensor) -> Tensor:
        return edit(value) if z.edit is None else z.edit(edit(value))

    return Tap(then, z.keep)
