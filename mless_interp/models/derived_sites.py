"""What no library shows at a site of its own, made of activations that wait for it inside one forward pass: queries and keys
as they enter the scores, patterns that act, the activations of an MLP."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

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
Turn = Callable[..., Tensor]
"""(layer, 0 for queries and 1 for keys, what is to be turned `[batch, token, head, d_head]`, back=) -> turned."""


def turned_taps(taps: Taps, turn: Turn, *, shown: str = "before") -> Taps:
    """The same run with its taps where queries and keys are shown, "before" they are turned or as they are "entering" the
    scores; those of the other sites are turned there and back."""
    made, back = dict(taps), shown == "entering"
    for name in taps:
        layer, what = parsed(name) or (0, "")
        for which, (entering, before) in enumerate(ENTERING.items()):
            if what == (before if back else entering):
                there, again = (partial(turn, layer, which, back=way) for way in (back, not back))
                tap = through(made.pop(name), there, again)
                place = site(layer, entering if back else before)
                both = (tap, made.get(place)) if back else (made.get(place), tap)
                made[place] = _one_by_one(*both)
    return made


def through(tap: Tap, there: Edit, back: Edit) -> Tap:
    """The same tap where its activation waits in another form, from which `there` leads and to which `back`."""

    return _both(lambda value: back(tap(there(value))), lambda value: tap(there(value)), tap)


def _one_by_one(*taps: Tap | None) -> Tap:
    """Several taps of one activation, in this order."""
    given = [tap for tap in taps if tap is not None]

    def apply(value: Tensor) -> Tensor:
        for tap in given:
            value = tap(value)
        return value

    return _both(apply, apply, *given)


def _both(edit: Edit, look: Edit, *of: Tap) -> Tap:
    """A tap that does the one where any of these edits, else only looks."""

    def keep(value: Tensor) -> None:
        look(value)

    return Tap(keep=keep) if all(tap.edit is None for tap in of) else Tap(edit)


def mixed_taps(taps: Taps, visible: Callable[[], Sequence[Tensor]], rule: Callable[[int], AttentionRule]) -> Taps:
    """The same run where a library's own scores and patterns act on nothing: made here of what enters them, and mixed anew.

    `visible` gives what `Model.visible` does, and is asked only where there is such a site.
    """
    layers = sorted({found[0] for found in map(parsed, taps) if found is not None and found[1] in EAGER_SITES})
    if not layers:
        return taps
    made, masks = dict(taps), visible()
    for layer in layers:
        scores, pattern = (made.pop(site(layer, f"attn.hook_{what}"), Tap()) for what in ("attn_scores", "pattern"))
        held, names = Held(), attention_sites(layer, "rot_q", "rot_k", "v")
        for name, hold in held.captures(*names).items():
            made[name] = _then_kept(made.get(name, Tap()), hold)  # type: ignore[arg-type]
        z = site(layer, "attn.hook_z")
        made[z] = _mixed(scores, pattern, made.get(z, Tap()), partial(held.take, *names), masks[layer], rule(layer))
    return made


def _then_kept(tap: Tap, hold: Callable[[Tensor], None]) -> Tap:
    def keep(value: Tensor) -> None:
        if tap.keep is not None:
            tap.keep(value)
        hold(value)

    return Tap(tap.edit, keep)


def _mixed(
    scores: Tap, pattern: Tap, z: Tap, parts: Callable[[], tuple[Tensor, ...]], visible: Tensor, rule: AttentionRule
) -> Tap:
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


def extension_of(settings: Mapping[str, object]) -> list[str]:
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
