"""Circuits by hand: the same edges by whole forward passes with hooks, two for each, as its definition has it."""

from collections.abc import Callable
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mless_interp.circuits.paths import Edge, Mlp
from mless_interp.circuits.site_patches import SitePatches
from mless_interp.core.heads import Head
from mless_interp.models.base import Model
from mless_interp.models.sites import attention_sites, site
from mless_interp.patching.outcomes import OUTCOMES
from mless_interp.prompts.pairs import PromptPair


def by_site(found: SitePatches) -> np.ndarray:
    """Cells as `[problem, site, layer, position]`."""
    return found.values.reshape(len(found.values), len(found.sites), len(found.layers), -1)


class ByHand:
    """One problem, two runs of one length, the donor's activations in the receiving one, by `Model.run` and nothing else;
    rows `kept` `[token]` keep what they hold. With a `control`, the donor is the run of that pair."""

    def __init__(
        self,
        model: Model,
        bare: PromptPair,
        *,
        donor: str = "masked",
        receiving: str = "inserted",
        start: int | None = None,
        kept: Tensor | None = None,
        control: PromptPair | None = None,
    ) -> None:
        self.model, self.outcome = model, OUTCOMES["answer_logprob"]
        self.pair = self.outcome.asked(bare, model.info)
        self.inputs, self.there = self.pair.condition(receiving), self.pair.condition(donor)
        length = len(self.pair.inserted)
        self.start = length - self.pair.n_after if start is None else start
        if control is not None:  # the span's own rows change
            self.there, self.start = control.answered().condition("inserted"), self.pair.spans[0][0]
        kept = torch.zeros(length, dtype=torch.bool) if kept is None else kept
        self.kept = torch.nn.functional.pad(kept, (0, length - len(kept)))[self.start :]
        self.read = [length - back for back in self.outcome.reads(self.pair)]
        self._unedited = cache(self._run)  # most activations are asked for several times

    @cached_property
    def total(self) -> float:
        return self.value() - self._unedited("", True)

    def _outcome(self, logits: Tensor | None) -> Tensor:
        assert logits is not None
        return self.outcome.value(logits, self.pair, None)[0]

    def _put(self, edits: dict[str, Tensor]) -> dict[str, Callable[[Tensor], Tensor]]:
        """These activations (dots and all in their names) take these values from the span's end on."""

        def put(new: Tensor, old: Tensor) -> Tensor:
            return torch.cat([old[:, : self.start], new.to(old)], 1)

        return {name: partial(put, new) for name, new in edits.items()}

    def _run(self, name: str, donor: bool = False, **edits: Tensor) -> Any:
        """The outcome (no name), or an activation, with these edits."""
        inputs, put = self.there if donor else self.inputs, self._put(edits)
        if not name:
            return float(self._outcome(self.model.run(inputs, edits=put, logits_at=self.read).logits))
        return self.model.run(inputs, edits=put, capture={name: None}, logits_at="none").captured[name]

    def value(self, **edits: Tensor) -> float:
        """The outcome, with these edits."""
        return self._run("", **edits) if edits else self._unedited("")

    def seen(self, name: str, *, donor: bool = False, **edits: Tensor) -> Tensor:
        """An activation at all positions, with these edits of others."""
        return self._run(name, **edits) if edits else self._unedited(name, donor)

    def tail(self, name: str, *, donor: bool = False, **edits: Tensor) -> Tensor:
        return self.seen(name, donor=donor, **edits)[:, self.start :]

    def head_writes(self, head: Head) -> Tensor:
        """What the stream gets more from the donor's output of one head."""
        z_site, out = site(head.layer, "attn.hook_z"), site(head.layer, "hook_attn_out")
        z = self.tail(z_site).clone()
        z[:, ~self.kept, head.head] = self.tail(z_site, donor=True)[:, ~self.kept, head.head]
        return self.tail(out, **{z_site: z}) - self.tail(out)

    def mlp_writes(self, layer: int) -> Tensor:
        change = self.tail(site(layer, "hook_mlp_out"), donor=True) - self.tail(site(layer, "hook_mlp_out"))
        return torch.where(self.kept[:, None], 0, change)

    def edge(self, edge: Edge, *, parallel: bool) -> float:
        """What goes along an edge: the receiving run's outcome less that with the donor's."""
        sender, head = edge.sender, edge.receiver
        change = self.mlp_writes(sender.layer) if isinstance(sender, Mlp) else self.head_writes(sender)
        if head == "logits":
            last = site(self.model.info.n_layers - 1, "hook_resid_post")
            return self.value() - self.value(**{last: self.tail(last) + change})
        if isinstance(head, Mlp):
            layer = head.layer
            reads, out = site(layer, "hook_resid_pre" if parallel else "hook_attn_out"), site(layer, "hook_mlp_out")
            return self.value() - self.value(**{out: self.tail(out, **{reads: self.tail(reads) + change})})
        z_site, z = site(head.layer, "attn.hook_z"), self.tail(site(head.layer, "attn.hook_z")).clone()
        z[:, :, head.head] = z[:, :, head.head] + self._answer(head, change, edge.part)
        return self.value() - self.value(**{z_site: z})

    def _answer(self, head: Head, change: Tensor, part: str) -> Tensor:
        before = site(head.layer, "hook_resid_pre")
        edit = {before: self.tail(before) + change}
        names = dict(zip("qkv", attention_sites(head.layer, "rot_q", "rot_k", "v"), strict=True))
        old = {letter: self.seen(name)[0] for letter, name in names.items()}
        new = {letter: self.seen(name, **edit)[0] for letter, name in names.items()}
        group = head.head // (self.model.info.n_heads // self.model.info.n_key_value_heads)
        rule, visible = self.model.attention_rule(head.layer), self.model.visible(self.inputs)[head.layer][0, 0]

        def z(used: dict[str, Tensor]) -> Tensor:
            scores = used["q"][:, head.head] @ used["k"][:, group].T * rule.scale
            if rule.softcap is not None:
                scores = torch.tanh(scores / rule.softcap) * rule.softcap
            scores = scores.masked_fill(~visible, -torch.inf)
            if rule.sinks is not None:
                scores = torch.cat([scores, rule.sinks[head.head].expand(len(scores), 1)], -1)
            return torch.softmax(scores, -1)[:, : len(visible)] @ used["v"][:, group]

        mixed = {letter: (new if letter in part else old)[letter] for letter in "qkv"}
        return (z(mixed) - z(old))[None, self.start :]
