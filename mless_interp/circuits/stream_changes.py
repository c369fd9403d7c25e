"""What one part of a model changes in the residual stream, and what comes of it where only some of the model may see it."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.heads import Head
from ..models.arithmetic import mix_values, pattern_of
from ..models.base import Model
from ..models.info import AttentionOutput, ModelError
from ..models.inputs import Recording
from ..models.replay import Layers
from ..patching.prepared import Runs
from ..patching.sweep import Engine, Sweep
from .located import LocatedHeads

INPUTS = ("q", "k", "v")
"""What a head makes of the stream; "qkv" is all three."""


def need_weights(model: Model, layers: Iterable[int], what: str) -> None:
    """`ModelError` unless what single heads of these layers write can be told from their weights, before anything runs."""
    model.need_layers(what)
    if model.quantised:
        raise ModelError(
            f"{what} reads weights, and these are quantised ({model.quantised}): load it in bfloat16 or float32"
        )
    for layer in sorted(set(layers)):
        model.attention_output(layer)


def heads_of(model: Model, heads: "LocatedHeads | Iterable[Head | str] | None", what: str) -> tuple[Head, ...]:
    """The heads asked for (None: all), or those that locating named; `ValueError` where it named none."""
    if isinstance(heads, LocatedHeads):
        if not heads.found:
            raise ValueError(f"locating named no head, so there is none to {what}: give heads=[...]")
        heads = tuple(heads.found)
    return model.info.chosen(heads, what=what)


def has_mlps(model: Model) -> bool:
    """Whether layers have MLPs; attention-only models have none."""
    return not getattr(model.config, "attn_only", False)


def named_on(heads: Any, problem_ids: Sequence[str]) -> dict[str, Any]:
    """For settings: how many of these problems the heads were named on."""
    if not isinstance(heads, LocatedHeads):
        return {}
    return {"named_on_these": len(set(problem_ids) & set(heads.problem_ids))}


def named_words(settings: Any) -> list[str]:
    """Beside which control the insertion stood, and that the heads were named on the same problems, where that is so."""
    words = {
        "beside": "Effects are those beside another insertion of as many tokens: {}.",
        "named_on_these": "The heads were named on {} of these problems: whether they act was asked there, how is asked here.",
    }
    return [text.format(settings[name]) for name, text in words.items() if settings.get(name)]


class Flow(Engine):
    """The receiving run continued from changes of its stream, and what parts of the model make of such changes."""

    def __init__(self, runs: Runs, sweep: Sweep, max_rows: int | None = None) -> None:
        super().__init__(runs, sweep, max_rows)
        self.stepper = runs.model.need_layers("this")
        self.layers = self.stepper.layers
        self._outputs: dict[int, AttentionOutput] = {}

    def output(self, layer: int) -> AttentionOutput:
        """How a layer writes what its heads give."""
        if layer not in self._outputs:
            self._outputs[layer] = self.model.attention_output(layer)
        return self._outputs[layer]

    # Each of these is a change of the receiving run's stream, `[problem, changed, d_model]`.

    def head_writes(self, head: Head) -> Tensor:
        """What the sweep's edit of one head adds where the head writes."""
        z = self.receiving.z[head.layer]
        change = self._put(z[:, :, head.head], self.new_z(head.layer)[:, :, head.head])
        return self.output(head.layer).change(z, head.head, change)

    def part_writes(self, layer: int, part: str) -> Tensor:
        """What the donor has more than the receiving run: in a layer's input or output, or of what a part of it adds."""
        there, here = (self._part(run, layer, part) for run in (self.donor, self.receiving))
        return self._put(here, there[:, self.there.on(there)])

    def _put(self, old: Tensor, new: Tensor) -> Tensor:
        """What changes where `new` takes its place among the receiving run's rows; nothing in rows that the donor lacks."""
        change, at = torch.zeros_like(old), self.here.on(old)
        change[:, at] = new.to(old) - old[:, at]
        return change

    def _part(self, run: Recording, layer: int, part: str) -> Tensor:
        if part in ("input", "output"):
            return self.stepper.stream(run, 2 * layer + 2 * (part == "output"))
        if part == "attention":
            return self.layers.attention_out(layer, run.z[layer])
        return self._mlp(layer, self.stepper.stream(run, mlp_reads(self.layers, layer)))

    def _mlp(self, layer: int, resid: Tensor) -> Tensor:
        """What a layer's MLP adds, of a stream that may be finer than what it reads."""
        return self.layers.mlp_out(layer, resid.to(self.receiving.z[layer].dtype))

    def mlp_answers(self, layer: int, change: Tensor) -> Tensor:
        """What a layer's MLP adds more where `change` is added to its input alone."""
        base = self.kept("mlp input", layer, lambda: self.stepper.stream(self.receiving, mlp_reads(self.layers, layer)))
        old = self.kept("mlp", layer, lambda: self._mlp(layer, base))
        change = change.to(base)
        return torch.where(_rows_of(change), self._mlp(layer, base + change) - old, 0)

    def head_answers(self, head: Head, change: Tensor, inputs: str, *, sender: Any) -> Tensor:
        """What a head writes more where `change` is added to the stream that its own q, k or v is made of; all else frozen.

        `inputs`: of "qkv". `sender` names the change, of which the projections are kept.
        """
        layer, at = head.layer, head.head
        q, k, v = self.kept("projected", (layer, sender), lambda: self._projected(layer, change))
        run, rule = self.receiving, self.layers.rule(layer).of(at)
        group = at // (self.model.info.n_heads // self.model.info.n_key_value_heads)
        own, shared = slice(at, at + 1), slice(group, group + 1)
        old = run.q[layer][:, :, own], run.k[layer][:, :, shared], run.v[layer][:, :, shared]
        new = q[:, :, own], k[:, :, shared], v[:, :, shared]
        mixed = [fresh if name in inputs else was for name, fresh, was in zip(INPUTS, new, old, strict=True)]
        mask = run.masks[layer].to(q.device)
        mask = mask if mask.shape[1] == 1 else mask[:, own]

        def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return mix_values(pattern_of(q, k, mask, rule), v)

        before = self.kept("attended", head, lambda: attended(*old))
        return self.output(layer).change(run.z[layer], at, (attended(*mixed) - before)[:, :, 0])

    def _projected(self, layer: int, change: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q of the changed rows, k and v of all, where `change` is added to the layer's input."""
        run, start = self.receiving, self.receiving.start
        resid, positions = run.resid_pre[layer], run.inputs.positions[:, start:]
        project = lambda x: self.layers.project(layer, x, positions)  # noqa: E731
        old = self.kept("unchanged", layer, lambda: project(resid))
        new = project(resid + change.to(resid))
        touched = _rows_of(change)[..., None].to(resid.device)
        q, k, v = (torch.where(touched, after - before, 0) for after, before in zip(new, old, strict=True))
        behind = [
            torch.cat([x[:, :start], x[:, start:] + more], 1) for x, more in ((run.k[layer], k), (run.v[layer], v))
        ]
        return run.q[layer] + q, behind[0], behind[1]


def mlp_reads(layers: Layers, layer: int) -> int:
    """The stage of the stream that a layer's MLP reads: before its attention where the two are parallel, else after it."""
    return 2 * layer + (0 if layers.parallel(layer) else 1)


def _rows_of(change: Tensor) -> Tensor:
    """Rows in which anything changes, `[problem, changed, 1]`."""
    return change.ne(0).any(-1, keepdim=True)
