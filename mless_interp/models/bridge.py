"""A TransformerBridge behind the seam."""

import warnings
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from .arithmetic import values_of_heads
from .decoder import unwrapped
from .hooked import as_hook
from .hugging_face import HuggingFaceModel, float32_unembedding, layer_masks, own_windows_lifted
from .info import AttentionOutput
from .inputs import Inputs, Tap, Taps
from .rotary_sites import mixed_taps
from .sites import attention_sites


class BridgeModel(HuggingFaceModel):
    """A TransformerBridge: Hugging Face's own modules with TransformerLens' hook names, always eager attention."""

    def __init__(self, bridge: Any, *, name: str, tokenizer: Any = None) -> None:
        super().__init__(
            bridge,
            bridge.original_model,
            name=name,
            tokenizer=tokenizer if tokenizer is not None else bridge.tokenizer,
            backend="bridge",
            library="transformer-lens",
            attention="eager",
        )

    # Where the Hugging Face names are other than Llama's, the bridge knows them.

    def _attention(self, layer: int) -> nn.Module:
        known = self.parts[layer].attention if self.parts else None
        return unwrapped(self.underlying.blocks[layer].attn) if known is None else known

    def _attention_output(self, layer: int) -> AttentionOutput | None:
        if self.parts and self.parts[layer].output is not None:
            return super()._attention_output(layer)
        attn = getattr(self.underlying.blocks[layer], "attn", None)
        weights, bias = getattr(attn, "W_O", None), getattr(attn, "b_O", None)
        if not isinstance(weights, Tensor):
            return None
        return AttentionOutput(weights.detach(), bias.detach() if isinstance(bias, Tensor) else None)

    @cached_property
    def _points(self) -> dict[str, Any]:
        """Hook name -> hook point. The bridge builds this anew for every hook of a run, which takes longer than the run."""
        return self.underlying.hook_dict

    @cached_property
    def _shows_entering(self) -> bool:
        """Whether it has hooks on queries and keys as they enter the scores, and calls them."""
        seen: list[Tensor] = []
        taps = {name: Tap(keep=seen.append) for name in attention_sites(0, "rot_q", "rot_k")}
        with torch.no_grad():
            self._run(Inputs(torch.zeros(1, 2, dtype=torch.long, device=self.info.device)), None, taps, None)
        return len(seen) == 2

    @cached_property
    def _obeys_patterns(self) -> bool:
        """Whether an edit of a pattern reaches the heads' outputs (not where the bridge shows what Hugging Face returns)."""
        names = attention_sites(0, "pattern", "v", "z")
        seen: dict[str, Tensor] = {}
        keeps = [Tap(keep=partial(seen.__setitem__, name)) for name in names]
        own = Tap(lambda p: torch.eye(p.shape[-1]).to(p).expand_as(p), keeps[0].keep)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "A hook on .* returned a modified tensor", UserWarning
            )  # as is asked here
            tokens = torch.arange(2, device=self.info.device)[None]
            self._run(Inputs(tokens), None, dict(zip(names, (own, *keeps[1:]), strict=True)), None)
        if len(seen) < len(names):
            return True  # it has not what to judge by: the self-check will say so
        v, z = seen[names[1]][0], seen[names[2]][0]
        if v.dim() != 3 or v.shape[1] not in (self.info.n_key_value_heads, self.info.n_heads):
            return True
        off = (z - values_of_heads(v, self.info.n_heads).transpose(0, 1)).abs().max()
        return bool(off <= 0.05 * v.abs().max())

    def _forward(
        self, inputs: Inputs, masks: tuple[Tensor, ...] | None, taps: Taps, read: Tensor | None
    ) -> Tensor | None:
        if not self._obeys_patterns:
            taps = mixed_taps(taps, lambda: masks or self.visible(inputs), self.attention_rule)
        return self._run(inputs, masks, taps if self._shows_entering else self._turned(taps, inputs), read)

    def _run(self, inputs: Inputs, masks: tuple[Tensor, ...] | None, taps: Taps, read: Tensor | None) -> Tensor | None:
        bridge = self.underlying
        hooks = [(self._points[name], as_hook(tap)) for name, tap in taps.items() if name in self._points]
        options: dict[str, Any] = {"attention_mask": torch.ones_like(inputs.tokens), "use_cache": False}
        if inputs.position_ids is not None:
            options["position_ids"] = inputs.position_ids
        last = inputs.n_tokens - 1
        options["logits_to_keep"] = (
            [last] if read is None else read.tolist()
        )  # a tensor would lie on one of several devices
        level = bridge.context_level + 1  # as `run_with_hooks` does: the caller's own hooks are left alone
        try:
            bridge.context_level = level
            for point, hook in hooks:
                point.add_hook(hook, level=level)
            attentions, last = [block.attn for block in bridge.blocks], bridge.original_model.get_output_embeddings()
            own = own_windows_lifted([unwrapped(each) for each in attentions], masks)
            with own, layer_masks(attentions, masks), float32_unembedding(unwrapped(last)):
                logits = bridge(inputs.tokens, **options)
        finally:
            for point, _ in hooks:
                point.remove_hooks(level=level)
            bridge.context_level = level - 1
        return logits if read is not None else None
