"""The hook names of the seam: TransformerLens' on every backend."""

import re

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
    """The full hook name of a site: `site(0, "attn.hook_z")` is `blocks.0.attn.hook_z`."""
    return f"blocks.{layer}.{name}"


def attention_sites(layer: int, *parts: str) -> tuple[str, ...]:
    """Full hook names inside a layer's attention: `attention_sites(0, "z", "v")` are `blocks.0.attn.hook_z` and `..hook_v`."""
    return tuple(site(layer, f"attn.hook_{part}") for part in parts)


def parsed(name: str) -> tuple[int, str] | None:
    """Layer and site of a full hook name; None for a name that no layer has."""
    match = _NAME.match(name)
    return (int(match.group(1)), match.group(2)) if match and match.group(2) in SITES else None
