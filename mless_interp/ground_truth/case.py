"""What an identity is computed from: one model and pair, each condition run once, and how far two sides are apart."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..metrics.attention import retained_mass
from ..metrics.outputs import span_output
from ..metrics.patterns import with_sink_key
from ..models.arithmetic import masked_scores, softmax, with_extra, with_sinks
from ..models.base import Model
from ..models.checks import Finding, apart, size, worst
from ..models.sites import site
from ..patching.interventions import Intervention, LayerState
from ..prompts.pairs import PromptPair


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer of a run of one prompt: `pattern` `[H, T, K]` rebuilt from rotated q and k (or the library's own where it
    does not show them), `v` per query head `[H, K, d]`, `z` `[H, T, d]`, `own`: the library's pattern where it has one.

    The keys are the tokens and, where heads have learned sinks, one more, whose value is 0; `visible` `[1|H, T, K]`."""

    pattern: Tensor
    v: Tensor
    z: Tensor
    own: Tensor | None
    visible: Tensor

    @property
    def keys(self) -> dict[str, Tensor]:
        """What a metric must know of the keys."""
        return {"visible": self.visible, "dest_positions": torch.arange(self.pattern.shape[1]).to(self.visible.device)}

    def mask(self, tokens: Tensor) -> Tensor:
        """A mask over tokens as one over the keys."""
        more = self.pattern.shape[2] - len(tokens)
        return torch.nn.functional.pad(tokens.to(self.pattern.device), (0, more), value=False)


@dataclass(frozen=True, eq=False)
class Case:
    """A model and one pair; each condition is run once and kept."""

    model: Model
    pair: PromptPair
    runs: dict[str, dict[str, Tensor]] = field(default_factory=dict, repr=False)

    @property
    def layers(self) -> range:
        return range(self.model.info.n_layers)

    def run(self, condition: str) -> dict[str, Tensor]:
        """Every captured site of one condition by hook name, and "logits" `[1, T, vocab]`."""
        if condition not in self.runs:
            info = self.model.info
            sites = ["attn.hook_v", "attn.hook_z", "hook_resid_post"]
            sites += ["attn.hook_rot_q", "attn.hook_rot_k"] if self.model.has_rotated_sites else []
            sites += ["attn.hook_pattern"] if info.attention == "eager" else []
            names = [site(layer, name) for layer in self.layers for name in sites]
            done = self.model.run(self.pair.condition(condition), capture=dict.fromkeys(names))
            assert done.logits is not None
            self.runs[condition] = {**done.captured, "logits": done.logits}
        return self.runs[condition]

    def layer(self, condition: str, layer: int = 0) -> Layer:
        """One layer of one condition."""
        run = self.run(condition)
        v, z = run[site(layer, "attn.hook_v")], run[site(layer, "attn.hook_z")]
        own = run.get(site(layer, "attn.hook_pattern"))
        group = self.model.info.n_heads // self.model.info.n_key_value_heads
        rule = self.model.attention_rule(layer)
        visible = self.model.visible(self.pair.condition(condition))[layer].to(z.device)
        seen = with_extra(visible[0], rule, value=True)
        if self.model.has_rotated_sites:
            q, k = run[site(layer, "attn.hook_rot_q")], run[site(layer, "attn.hook_rot_k")]
            pattern = softmax(with_sinks(masked_scores(q, k, visible.to(q.device), rule), rule.column))[0]
        else:
            assert own is not None
            pattern = with_sink_key(own[0], visible=visible[0])[0] if rule.n_extra else own[0]
        values = torch.nn.functional.pad(v[0].repeat_interleave(group, 1).transpose(0, 1), (0, 0, 0, rule.n_extra))
        return Layer(pattern, values, z[0].transpose(0, 1), None if own is None else own[0], seen.to(pattern.device))

    def parts(self, layer: Layer) -> tuple[Tensor, Tensor]:
        """lambda `[H, shared]` and Sigma `[H, shared, d]` of a run with the span."""
        span = layer.mask(self.pair.span_mask)
        lam = retained_mass(layer.pattern, span=span, **layer.keys)[:, self.pair.shared]
        return lam, span_output(layer.pattern, layer.v, span=span, **layer.keys)[:, self.pair.shared]

    def shared(self, values: Tensor) -> Tensor:
        """`[H, T, ...]` of a run with the span at the tokens that both prompts have."""
        return values[:, self.pair.shared]

    def states(self, layer: int, donor: str = "masked") -> LayerState:
        """The inserted run's layer as an intervention sees it, with the same layer of another condition as donor."""
        start = len(self.pair.inserted) - self.pair.n_after
        receiving = self.model.record(self.pair.condition("inserted"), start=start)
        inputs = self.pair.condition(donor)
        given = self.model.record(inputs, start=inputs.n_tokens - self.pair.n_after)
        span = self.pair.span_mask[None]
        nowhere = torch.zeros(1, inputs.n_tokens, dtype=torch.bool)
        source = LayerState.of(self.model, given, layer, span=span if donor == "masked" else nowhere)
        return LayerState.of(self.model, receiving, layer, span=span, donor=source)

    def edited(self, intervention: Intervention, layer: int = 0, donor: str = "masked") -> Tensor:
        """Head outputs `[b, Q, H, d]` of the inserted run, each head edited alone."""
        return intervention(self.states(layer, donor))

    def written_inserted(self) -> Tensor:
        """`written` for the inserted run's own z, kept."""
        kept = self.runs.setdefault("written", {})
        if "inserted" not in kept:
            kept["inserted"] = self.written(self.shared(self.layer("inserted").z))
        return kept["inserted"]

    def written(self, z: Tensor) -> Tensor:
        """What each head of layer 0 adds to the residual stream `[H, shared, d_model]` if its output in the masked run
        became `z` `[H, shared, d]`: one row per head, through the model's own output projection."""
        inputs = self.pair.condition("masked")
        name, n_heads, at = site(0, "hook_attn_out"), self.model.info.n_heads, self.pair.shared

        def edit(old: Tensor) -> Tensor:
            new = old.clone()
            for head in range(n_heads):
                new[head, at, head] = z[head].to(new)
            return new

        edited = self.model.run(
            inputs.tokens.expand(n_heads, -1),
            attention_mask=inputs.attention_mask,
            edits={site(0, "attn.hook_z"): edit},
            capture={name: lambda x: x[:, at]},
            logits_at="none",
        ).captured[name]
        own = self.model.run(
            inputs.tokens, attention_mask=inputs.attention_mask, capture={name: None}, logits_at="none"
        )
        return edited - own.captured[name][:, at]

    def resid_mid(self, condition: str) -> Tensor:
        """The residual stream with what layer 0's attention adds at the shared tokens, `[shared, d_model]`.

        A sum, as it is nowhere in a layer whose MLP reads beside its attention.
        """
        inputs, names = self.pair.condition(condition), (site(0, "hook_resid_pre"), site(0, "hook_attn_out"))
        captured = self.model.run(
            inputs.tokens, attention_mask=inputs.attention_mask, capture=dict.fromkeys(names), logits_at="none"
        ).captured
        before, added = (captured[name] for name in names)
        return (before.to(added.device) + added)[0, self.pair.shared]


__all__ = ["Case", "Finding", "Layer", "apart", "size", "worst"]
