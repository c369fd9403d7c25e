"""Continuing a run from edited layers: only what can have changed is computed."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

import torch
from einops import rearrange
from torch import Tensor

from .attention_math import finished_scores, softmax
from .info import AttentionRule, Recording
from .traced_ops import is_half


@runtime_checkable
class Layers(Protocol):
    r"""One decoder, layer by layer, as its library computes it: x is the residual stream before a layer, y after its attention
    (the MLP of a parallel layer reads x), x' after the layer; n are norms, or the identity.

    $$ q = R_p\, n_q(W_Q\, n_1(x)), \qquad k = R_p\, n_k(W_K\, n_1(x)), \qquad v = W_V\, n_1(x) $$

    $$ A = \mathrm{softmax}\big(c \tanh(s\, q k^\top / c)\big), \qquad z = A v, \qquad
       y = x + n_2\Big(\sum_h z_h W_O^h + b_O\Big) $$

    $$ x' = y + n_4\big(\mathrm{MLP}(n_3(y))\big), \qquad \mathrm{logits} = c \tanh\big(W_U\, n(x) / c\big) $$
    """

    n_layers: int

    def project(self, layer: int, resid: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated q `[rows, token, H, d]`, rotated k and v `[rows, token, KV, d]`; positions `[rows or 1, token]`."""

    def rule(self, layer: int) -> AttentionRule:
        """Return scale s and soft-cap c of the layer's scores, and learned sinks."""

    def parallel(self, layer: int) -> bool:
        """Return whether the layer's MLP reads x, not y: then attention acts on no MLP but those of later layers."""

    def attention_out(self, layer: int, z: Tensor) -> Tensor:
        """Return what attention adds to the stream, of the head outputs `[rows, token, H, d]`."""

    def mlp_out(self, layer: int, resid: Tensor) -> Tensor:
        """Return what the MLP adds to the stream, of the stream that it reads."""

    def unembed(self, resid: Tensor) -> Tensor:
        """Return logits `[..., vocab]` of the last layer's residual stream (maybe a finer one)."""


def finished(layers: Layers, layer: int, resid: Tensor, z: Tensor) -> Tensor:
    """Return the stream after a layer, from that before it (maybe finer, and stays so) and its head outputs."""
    mid = resid + layers.attention_out(layer, z)
    return mid + layers.mlp_out(layer, (resid if layers.parallel(layer) else mid).to(z.dtype))


def stage(layers: Layers, layer: int, part: str) -> int:
    """Say at which stage what a part of a layer adds is in the stream: "input" (before it), "attention", "mlp", "output".
    Stages count half layers: 2 l is the stream before layer l, 2 l + 1 that between its attention and its MLP."""
    return 2 * layer + {"input": 0, "attention": 2 if layers.parallel(layer) else 1, "mlp": 2, "output": 2}[part]


FUSED_FROM = 4
"""Queries per row from which fused attention over a row's own copy of the prefix beats shared prefix products."""


def _fused(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scale: float) -> Tensor:
    """Return head outputs `[rows, dest, H, d]` by PyTorch's fused attention; a kv group's heads are stacked as queries."""
    rows, n_dest, n_heads, _ = q.shape
    n_kv = k.shape[2]
    shown = rearrange(visible.expand(-1, n_heads, -1, -1), "b (kv group) dest src -> b kv (group dest) src", kv=n_kv)
    if len(shown) > 1:
        shown = shown.repeat_interleave(rows // len(shown), 0)
    z = torch.nn.functional.scaled_dot_product_attention(
        rearrange(q, "row dest (kv group) d -> row kv (group dest) d", kv=n_kv),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=shown,
        scale=scale,
    )
    return rearrange(z, "row kv (group dest) d -> row dest (kv group) d", dest=n_dest)


def _with_prefix(prefix: Tensor, own: Tensor) -> Tensor:
    """Put each prompt's prefix before its rows' own keys or values: `[batch x row, src, KV, d]`."""
    return torch.cat([prefix.repeat_interleave(len(own) // len(prefix), 0), own], 1)


def _joined(running: Tensor, fresh: Tensor) -> Tensor:
    """Put more rows `[batch, more, ...]` behind those of each prompt, `[batch x row, ...]`."""
    if not len(running):
        return fresh.flatten(0, 1)
    return torch.cat([running.unflatten(0, (len(fresh), -1)), fresh], 1).flatten(0, 1)


def _stream(resid: Tensor) -> Tensor:
    """Carry the residual stream on in float32 where the model is in half precision."""
    return resid.float() if is_half(resid) else resid


class Stepper:
    """The recipe, for any decoder that is known layer by layer: for the positions from `start` on, each row (one alternative
    edit of a prompt) joins the batch at the layer that it edits, and the rows of a prompt share its prefix keys and values. In
    half precision the residual stream is carried on in float32 and rounded where a layer reads it."""

    def __init__(self, layers: Layers, turn: Callable[[], AbstractContextManager[None]]) -> None:
        self.layers, self._turn = layers, turn

    def replay(self, receiving: Recording, joins: Sequence[int], edits: Tensor, read: Tensor) -> Tensor:
        """Return logits `[batch x row, read, vocab]` at `read` (counted from `start`), one row for each edit.

        `edits`: head outputs `[batch x row, changed, head, d_head]`, or changes `[batch x row, changed, d_model]` added to the
        stream. `joins`: at which layer, or stage of the stream (`stage`), each row joins; never falling.
        """
        with self._turn():
            return self._replay(receiving, list(joins), edits, read)

    def _replay(self, receiving: Recording, joins: list[int], edits: Tensor, read: Tensor) -> Tensor:
        batch, n_layers, of_heads = receiving.inputs.batch, self.layers.n_layers, edits.dim() == 4
        last = int(read.max()) + 1  # later positions are read by nobody
        positions = receiving.inputs.positions[:, receiving.start :][:, :last]
        edits = edits.view(batch, len(joins), *edits.shape[1:])[:, :, :last]
        active = 0

        def joining(at: int, own: Tensor, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
            """Take, of the rows that join here, the run's own stream and what is edited, at the positions that go on."""
            nonlocal active
            count = joins.count(at)
            own, more = own[:, None, :last], edits[:, active : active + count].to(own.device)
            active += count
            own, more = (own, more) if rows is None else (own[:, :, rows], more[:, :, rows])
            return own.expand(-1, count, -1, -1), more

        def changed(resid: Tensor, at: int, rows: Tensor | None = None) -> Tensor:
            """Add the rows that join at this stage."""
            if of_heads or at not in joins:
                return resid
            own, more = joining(at, self.stream(receiving, at), rows)
            return _joined(resid, own + more)

        resid = _stream(receiving.resid_pre[-1][:0, :last])  # none yet
        for at in range(joins[0] if of_heads else joins[0] // 2, n_layers):
            resid = changed(resid.to(receiving.resid_pre[at].device), 2 * at)  # layers may lie on several devices
            rows = read.to(resid.device) if at == n_layers - 1 else None  # there, other queries are of no use
            mid, z = resid if rows is None else resid[:, rows], resid[:0]
            if active:
                read_as = resid.to(receiving.z[at].dtype)
                q, k, v = self.layers.project(at, read_as, positions.repeat_interleave(active if batch > 1 else 1, 0))
                z = self._attend(receiving, at, q if rows is None else q[:, rows], k, v, dest=rows)
            if of_heads and at in joins:
                own, fresh = joining(at, _stream(receiving.resid_pre[at]), rows)
                mid, z = _joined(mid, own), _joined(z, fresh)
            before = mid
            if active:
                mid = mid + self.layers.attention_out(at, z)
            mid = changed(mid, 2 * at + 1, rows)
            if active:
                x = before if self.layers.parallel(at) else mid
                mid = mid + self.layers.mlp_out(at, x.to(receiving.z[at].dtype))
            resid = mid
        return self.layers.unembed(changed(resid, 2 * n_layers, read.to(resid.device)))

    def stream(self, receiving: Recording, at: int) -> Tensor:
        """Return the run's own residual stream at a stage (see `stage`), `[batch, changed, d_model]`, as it is carried on."""
        layer = min(at // 2, self.layers.n_layers - 1)
        resid, z = _stream(receiving.resid_pre[layer]), receiving.z[layer]
        if at == 2 * layer:
            return resid
        if at == 2 * layer + 1:
            return resid + self.layers.attention_out(layer, z)
        return finished(self.layers, layer, resid, z)

    def tail(
        self,
        receiving: Recording,
        read: Tensor,
        *,
        gates: Tensor | None = None,
        span: Tensor | None = None,
        rows: Tensor | None = None,
        offsets: list[Tensor] | None = None,
        gated_layers: Sequence[int] = (),
    ) -> Tensor:
        r"""Return every layer of the changed positions, in one differentiable pass: logits `[batch x row, read, vocab]`.

        `gates` g `[row, layer, head]` multiply the attention that these positions pay to the keys of the span S, `span`
        `[batch, src]`, before the row is renormalised: 1 leaves a head alone, 0 is its knockout, all 0 is the run that
        cannot see the span. `rows` `[batch, token]`: the only rows whose attention is gated (None: all).

        $$ A'_j = \frac{A_j\, (g\,[j \in S] + [j \notin S])}{\sum_i A_i\, (g\,[i \in S] + [i \notin S])} $$

        `offsets[layer]` `[batch, changed, head, d_head]` is added to z (for gradients at z). `gated_layers`: where gates are
        0 or 1, the layers that have a 0 (none named: gates of any value, in all layers).
        """
        batch, n_rows = receiving.inputs.batch, 1 if gates is None else gates.shape[0]
        gated = None if span is None else span[:, None, :]
        if gated is not None and rows is not None:
            gated = gated & rows[:, receiving.start :, None]
        positions = receiving.inputs.positions[:, receiving.start :]
        first = min(gated_layers, default=0)  # the layers below are the run's own
        resid = _stream(receiving.resid_pre[first]).repeat_interleave(2 if gated_layers else n_rows, 0)
        with self._turn():
            for layer in range(first, self.layers.n_layers):
                place = receiving.resid_pre[layer].device
                resid = resid.to(place)  # once: so its gradients add up in one order, however layers are split
                each = positions.repeat_interleave(len(resid) // batch, 0)
                q, k, v = self.layers.project(layer, resid.to(receiving.z[layer].dtype), each)
                gate = None
                if gates is not None and gated is not None and (not gated_layers or layer in gated_layers):
                    gate = gates[:, layer].to(place), gated.to(place)
                if gate is not None and gated_layers and layer == first:
                    # rows do not differ yet: a head's output is one of two, with its gate open or closed
                    open_one = torch.ones_like(gate[0][:1])
                    z = self._attend(receiving, layer, q, k, v, gate=(torch.cat([open_one, 1 - open_one]), gate[1]))
                    opened, closed = rearrange(z, "(b two) dest h d -> two b 1 dest h d", two=2)
                    z = torch.where(rearrange(gate[0], "row h -> row 1 h 1") == 1, opened, closed).flatten(0, 1)
                    resid = resid[::2].repeat_interleave(n_rows, 0)
                else:
                    z = self._attend(receiving, layer, q, k, v, gate=gate)
                resid = finished(self.layers, layer, resid, z if offsets is None else z + offsets[layer])
            return self.layers.unembed(resid[:, read.to(resid.device)])

    def _attend(
        self,
        receiving: Recording,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        dest: Tensor | None = None,
        gate: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Return head outputs `[batch x row, dest, H, d]`; the prefix's keys and values are shared by all rows of a prompt."""
        start, rows, n_dest = receiving.start, q.shape[0] // receiving.inputs.batch, q.shape[1]
        n_own, n_kv = k.shape[1:3]
        k_prefix, v_prefix = receiving.k[layer][:, :start], receiving.v[layer][:, :start]
        visible = receiving.masks[layer][..., : start + n_own]
        visible = visible[:, :, dest] if dest is not None else visible[:, :, :n_dest]
        rule = self.layers.rule(layer)
        if gate is None and rule.softcap is None and rule.sinks is None and n_dest >= FUSED_FROM:
            return _fused(q, _with_prefix(k_prefix, k), _with_prefix(v_prefix, v), visible, rule.scale)
        # all rows of a prompt meet its shared prefix in one product, each row its own later keys in another
        shared = rearrange(q, "(b row) dest (kv group) d -> b kv (row group dest) d", kv=n_kv, row=rows)
        with_prefix = shared @ rearrange(k_prefix, "b src kv d -> b kv d src")
        own = rearrange(shared, "b kv (row group dest) d -> b kv row (group dest) d", row=rows, dest=n_dest)
        with_own = own @ rearrange(k, "(b row) src kv d -> b kv row d src", row=rows)
        scores = torch.cat(
            [
                rearrange(with_prefix, "b kv (row group dest) src -> b kv row group dest src", row=rows, dest=n_dest),
                rearrange(with_own, "b kv row (group dest) src -> b kv row group dest src", dest=n_dest),
            ],
            -1,
        )
        if visible.shape[1] == 1:
            visible = rearrange(visible, "b 1 dest src -> b 1 1 1 dest src")
        else:
            visible = rearrange(visible, "b (kv group) dest src -> b kv 1 group dest src", kv=n_kv)
        sinks = None if rule.sinks is None else rearrange(rule.sinks, "(kv group) -> 1 kv 1 group 1 1", kv=n_kv)
        pattern = softmax(finished_scores(scores, visible, rule), sinks)
        if gate is not None:
            open_to, gated = gate  # [row, H], [batch, 1 or dest, src]
            factor = rearrange(open_to, "row (kv group) -> 1 kv row group 1 1", kv=n_kv)
            inside = rearrange(gated[:, :, : start + n_own], "b dest src -> b 1 1 1 dest src").to(pattern)
            sunk = 0 if sinks is None else (1 - pattern.sum(-1, keepdim=True)).clamp(min=0)
            pattern = pattern * (1 + inside * (factor - 1))
            pattern = pattern / (pattern.sum(-1, keepdim=True) + sunk)
        to_prefix = rearrange(pattern[..., :start], "b kv row group dest src -> b kv (row group dest) src")
        to_own = rearrange(pattern[..., start:], "b kv row group dest src -> b kv row (group dest) src")
        from_prefix = to_prefix @ rearrange(v_prefix, "b src kv d -> b kv src d")
        from_own = to_own @ rearrange(v, "(b row) src kv d -> b kv row src d", row=rows)
        return rearrange(
            rearrange(from_prefix, "b kv (row group dest) d -> b kv row group dest d", row=rows, dest=n_dest)
            + rearrange(from_own, "b kv row (group dest) d -> b kv row group dest d", dest=n_dest),
            "b kv row group dest d -> (b row) dest (kv group) d",
        )
