"""What no library shows at a site of its own, made of activations that wait for it inside one forward pass: queries and keys
as they enter the scores, patterns that act, the activations of an MLP."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .arithmetic import masked_scores, mix_values, softmax
from .info import AttentionRule, GatedMlp, ModelError
from .inputs import Edit, Reducer, Tap, Taps
from .sites import EAGER_SITES, attention_sites, parsed, site


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


UNGATED = (
    "This model's MLP has no gate, so its activations are act(up(x)) themselves: our extension of the paper's gated form, "
    "act(gate(x))."
)
"""What a result says whose activations are those of an MLP without a gate."""


def extension_of(settings: Mapping[str, Any]) -> list[str]:
    """The sentence that labels a result made with these settings; none for the paper's form, which alone older ones have."""
    return [] if settings.get("gated", True) else [UNGATED]


def gate_edits(layer: int, gate: GatedMlp, change: Callable[[Tensor], Tensor]) -> dict[str, Edit]:
    """Edits that put `change(a)` in the place of a layer's activations a `[batch, token, d_mlp]`, and only where `a` changed.

    With a gate, a = act(gate(x)): no library has a hook on it, so the product is made again at `hook_post`. Without one
    a = act(up(x)) is `hook_post` itself.
    """
    held, factors = Held(), [site(layer, "mlp.hook_pre")]
    factors += [site(layer, "mlp.hook_pre_linear")] if gate.gated else []
    name = site(layer, "mlp.hook_post")

    def override(post: Tensor) -> Tensor:
        pre, *linear = held.take(*factors)
        activations = gate.activation(pre)

        def made(activations: Tensor) -> Tensor:
            product = activations * linear[0] if gate.gated else activations
            return product if gate.bias is None else product + gate.bias

        if not torch.allclose(made(activations), post, rtol=2e-2, atol=1e-3 * float(post.abs().max())):
            form = "act(pre) * pre_linear" if gate.gated else "act(pre)"
            raise ModelError(f"{name} is not {form} here: this MLP is built otherwise, edit it by hand")
        changed = change(activations)
        return torch.where(changed == activations, post, made(changed))

    return {**held.edits(*factors), name: override}
