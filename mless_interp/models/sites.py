"""Hook names, TransformerLens' on every backend; and what no library shows at a site of its own, made inside a pass."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from .attention_math import masked_scores, mix_values, softmax
from .info import AttentionRule, Edit, GatedMlp, ModelError, Reducer, Tap, Taps

SITES: dict[str, str] = {
    "hook_resid_pre": "[batch, token, d_model] residual stream before the layer",
    "attn.hook_q": "[batch, token, head, d_head] queries before norm and rotation",
    "attn.hook_k": "[batch, token, kv_head, d_head] keys before norm and rotation",
    "attn.hook_v": "[batch, token, kv_head, d_head] values",
    "attn.hook_rot_q": "[batch, token, head, d_head] queries as they enter the scores",
    "attn.hook_rot_k": "[batch, token, kv_head, d_head] keys as they enter the scores",
    "attn.hook_attn_scores": "[batch, head, dest, src] masked scores before the softmax (eager attention only)",
    "attn.hook_pattern": "[batch, head, dest, src] attention probabilities (eager attention only)",
    "attn.hook_z": "[batch, token, head, d_head] head outputs before W_O",
    "hook_attn_out": "[batch, token, d_model] what attention adds to the residual stream",
    "hook_resid_mid": "[batch, token, d_model] residual stream between attention and MLP",
    "mlp.hook_pre": "[batch, token, d_mlp] pre-activation, the gate's where there is one",
    "mlp.hook_pre_linear": "[batch, token, d_mlp] the gated MLP's linear branch",
    "mlp.hook_post": "[batch, token, d_mlp] what enters the MLP's output projection",
    "hook_mlp_out": "[batch, token, d_model] what the MLP adds to the residual stream",
    "hook_resid_post": "[batch, token, d_model] residual stream after the layer",
}
"""Sites of one layer in the order in which a forward pass reaches them."""
EAGER_SITES = frozenset({"attn.hook_attn_scores", "attn.hook_pattern"})
_NAME = re.compile(r"^blocks\.(\d+)\.(.+)$")


def site(layer: int, name: str) -> str:
    """Return the full hook name of a site: `site(0, "attn.hook_z")` is `blocks.0.attn.hook_z`."""
    return f"blocks.{layer}.{name}"


def attention_sites(layer: int, *parts: str) -> tuple[str, ...]:
    """Return full hook names inside a layer's attention: `attention_sites(0, "z")` is `("blocks.0.attn.hook_z",)`."""
    return tuple(site(layer, f"attn.hook_{part}") for part in parts)


def parsed(name: str) -> tuple[int, str] | None:
    """Return layer and site of a full hook name; None for a name that no layer has."""
    match = _NAME.match(name)
    return (int(match.group(1)), match.group(2)) if match and match.group(2) in SITES else None


class Held:
    """Activations by hook name, from when a forward pass reaches them until a later site of it takes them."""

    def __init__(self) -> None:
        self._values: dict[str, Tensor] = {}

    def captures(self, *names: str) -> dict[str, Reducer]:
        """Return reducers that hold these sites; the run itself keeps nothing."""
        return {name: partial(self._values.__setitem__, name) for name in names}

    def edits(self, *names: str) -> dict[str, Edit]:
        """Return edits that hold these sites and change nothing."""
        return {name: partial(self._passed_on, name) for name in names}

    def _passed_on(self, name: str, value: Tensor) -> Tensor:
        self._values[name] = value
        return value

    def take(self, *names: str) -> tuple[Tensor, ...]:
        """Return these activations, held no longer."""
        return tuple(self._values.pop(name) for name in names)


ENTERING = {"attn.hook_rot_q": "attn.hook_q", "attn.hook_rot_k": "attn.hook_k"}
"""Sites of what enters the scores, and of what it is made of."""
Turn = Callable[..., Tensor]
"""(layer, 0 for queries and 1 for keys, what is to be turned `[batch, token, head, d_head]`, back=) -> turned."""


def turned_taps(taps: Taps, turn: Turn, *, shown: str = "before") -> Taps:
    """Make the same run with its taps where queries and keys are shown, "before" they are turned or as they are "entering"
    the scores; those of the other sites are turned there and back."""
    made, back = dict(taps), shown == "entering"
    for layer, what in filter(None, map(parsed, taps)):
        for which, (entering, before) in enumerate(ENTERING.items()):
            if what == (before if back else entering):
                there, again = (partial(turn, layer, which, back=way) for way in (back, not back))
                tap = through(made.pop(site(layer, what)), there, again)
                place = site(layer, entering if back else before)
                other = made.get(place, Tap())
                made[place] = Tap.both(tap, other) if back else Tap.both(other, tap)
    return made


def through(tap: Tap, there: Edit, back: Edit) -> Tap:
    """Make the same tap where its activation waits in another form, from which `there` leads and to which `back`."""
    if tap.edit is None:
        return Tap(keep=lambda value: tap.show(there(value)))
    return Tap(lambda value: back(tap(there(value))))


def mixed_taps(taps: Taps, visible: Callable[[], Sequence[Tensor]], rule: Callable[[int], AttentionRule]) -> Taps:
    """Return the same run where a library's own patterns act on nothing: made of what enters them, and mixed anew."""
    layers = sorted({found[0] for found in map(parsed, taps) if found is not None and found[1] in EAGER_SITES})
    if not layers:
        return taps
    made, masks = dict(taps), visible()
    for layer in layers:
        scores, pattern = (made.pop(site(layer, f"attn.hook_{what}"), Tap()) for what in ("attn_scores", "pattern"))
        held, names = Held(), attention_sites(layer, "rot_q", "rot_k", "v")
        for name, hold in held.captures(*names).items():
            made[name] = Tap.both(made.get(name, Tap()), Tap(keep=hold))
        z, take = site(layer, "attn.hook_z"), partial(held.take, *names)
        made[z] = Tap.both(Tap(partial(_mixed, scores, pattern, take, masks[layer], rule(layer))), made.get(z, Tap()))
    return made


def _mixed(
    scores: Tap, pattern: Tap, take: Callable[[], tuple[Tensor, ...]], visible: Tensor, rule: AttentionRule, z: Tensor
) -> Tensor:
    q, k, v = take()
    mixed = mix_values(pattern(softmax(scores(masked_scores(q, k, visible.to(q.device), rule)), rule.column)), v)
    return z if scores.edit is None and pattern.edit is None else mixed.to(z)


UNGATED = (
    "This model's MLP has no gate, so its activations are act(up(x)) themselves: our extension of the paper's gated form, "
    "act(gate(x))."
)


def extension_of(settings: Mapping[str, object]) -> list[str]:
    """Label a result made with these settings; nothing for the paper's form, which older ones have."""
    return [] if settings.get("gated", True) else [UNGATED]


def gate_edits(layer: int, gate: GatedMlp, change: Callable[[Tensor], Tensor]) -> dict[str, Edit]:
    """Return edits that put `change(a)` in the place of a layer's activations a `[batch, token, d_mlp]`, where `a` changed.

    With a gate, a = act(gate(x)): no library has a hook on it, so the product is made again at `hook_post`. Without one
    a = act(up(x)) is `hook_post` itself.
    """
    factors = [site(layer, f"mlp.hook_{part}") for part in (("pre", "pre_linear") if gate.gated else ("pre",))]
    held, name = Held(), site(layer, "mlp.hook_post")

    def override(post: Tensor) -> Tensor:
        pre, *linear = held.take(*factors)
        activations = gate.activation(pre)

        def made(activations: Tensor) -> Tensor:
            product = activations * linear[0] if gate.gated else activations
            return product if gate.bias is None else product + gate.bias

        if not torch.allclose(made(activations), post, rtol=2e-2, atol=1e-3 * float(post.abs().max())):
            raise ModelError(f"{name} is not act(pre){' * pre_linear' * gate.gated} here: edit this MLP by hand")
        changed = change(activations)
        return torch.where(changed == activations, post, made(changed))

    return {**held.edits(*factors), name: override}
