"""What is done inside a trace, here or on a server without this package: nnsight sends this file along, so it imports torch
alone, and is told plain data and functions of its own."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Traced = Any  # what nnsight hands over inside a trace: its envoys, and what modules are given and give
Part = tuple[Any, ...]
"""A kind and its numbers: which part of what a module is given or gives an activation is (see `got`)."""
Step = tuple[Any, ...]  # one step of `walked`
PLAIN = (bool, int, float, str, bytes, Tensor, torch.dtype, type(None))


def can_be_sent(value: object) -> bool:
    """Ask whether a server can make sense of it: plain data, a function of this file or of torch, `partial` of one."""
    if isinstance(value, partial):
        value = [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, list | tuple):
        return all(map(can_be_sent, value))
    if isinstance(value, PLAIN) or any(value is known for known in (tail, look_at_self, replaced)):
        return True
    return callable(value) and getattr(torch, getattr(value, "__name__", ""), None) is value


def tail(value: Tensor, *, start: int) -> Tensor:
    """Copy an activation `[batch, token, ...]` at the tokens from `start` on."""
    return value[:, start:].clone()


def look_at_self(pattern: Tensor) -> Tensor:
    """Make the pattern of heads whose every token looks at itself alone."""
    return torch.eye(pattern.shape[-1]).to(pattern).expand_as(pattern)


def replaced(z: Tensor, *, start: int, rows: Sequence[int], heads: Sequence[int], new: Tensor) -> Tensor:
    """Replace head outputs `[batch, token, head, d]` of these (row, head) from token `start` on by `new` `[cell, token, d]`."""
    made = z.clone()
    made[torch.tensor(rows, device=z.device), start:, torch.tensor(heads, device=z.device)] = new.to(z)
    return made


WHOLE = ("whole",)
FIRST = ("first",)  # of a tuple; the whole of a tensor
REFUSED = ("refused",)  # the whole, which cannot be replaced


def got(part: Part, whole: Traced) -> Tensor:
    """Return the activation that is this part of what a module is given or gives.

    `("heads", d_head)`: the last axis by heads; `("columns", start, stop, d_head)`: some of it by heads; `("grouped",
    n_kv, per_group, d_head, start, stop)`: some of each group's heads; `("half", which)`; `("times", share)`: the first, as
    the layer multiplies it; `("argument", which)`: queries (0), keys (1) or values (2) of an attention call, tokens before
    heads.
    """
    kind, *said = part
    if kind in ("first", "times"):
        first = whole[0] if isinstance(whole, tuple) else whole
        return first * said[0] if said else first
    if kind == "argument":
        return whole[0][_argument(whole[0], said[0])].transpose(1, 2)
    return _view(part, whole).flatten(-3, -2) if kind == "grouped" else _view(part, whole)


def put(part: Part, whole: Traced, new: Tensor) -> Traced:
    """Return the same whole with another activation in the place of this part; see `got`."""
    kind, *said = part
    if kind in ("first", "times"):
        new = new / said[0] if said else new
        return (new, *whole[1:]) if isinstance(whole, tuple) else new
    if kind == "argument":
        args, kwargs = whole
        at = _argument(args, said[0])
        return (*args[:at], new.transpose(1, 2), *args[at + 1 :]), kwargs
    made = whole.clone()
    there = _view(part, made)
    there.copy_(new.reshape(there.shape))
    return made


def _view(part: Part, whole: Tensor) -> Tensor:
    kind, *said = part
    if kind == "heads":
        return whole.unflatten(-1, (-1, said[0]))
    if kind == "columns":
        return whole[..., said[0] : said[1]].unflatten(-1, (-1, said[2]))
    if kind == "grouped":
        return whole.unflatten(-1, tuple(said[:3]))[..., said[3] : said[4], :]
    if kind == "half":
        return whole.unflatten(-1, (2, -1))[..., said[0], :]
    return whole


def _argument(args: tuple[Traced, ...], which: int) -> int:
    return which + next(i for i, arg in enumerate(args) if isinstance(arg, Tensor) and arg.dim() == 4)


def found(model: Traced, path: str, labels: Sequence[str] = ()) -> Traced:
    """Find the envoy at a path in a traced model, or the operation at these labels in it, each inside the one before."""
    at = model
    for name in path.split(".") if path else ():
        at = getattr(at, name)
    for label in labels:
        at = getattr(at.source, label)
    return at


def walked(
    model: Traced,
    steps: Sequence[Step],
    *,
    instrumented: Sequence[str],
    masks: Sequence[Tensor],
    head: str,
    logits: bool,
    brought: bool,
) -> dict[str, Traced]:
    """Walk one forward pass of a traced model, site by site; return what each step keeps, by name, and "logits".

    A step is `(name, path, labels, side, part, edit, keep)`, in the order of the pass; the side "mask" gives the attention at
    `path` the visibility `masks[part]` in place of its own. `instrumented`: attention modules whose operations are asked
    for, which must be said before the pass reaches them. `brought`: into memory, to be sent back.
    """
    for path in instrumented:
        _ = found(model, path).source
    kept: dict[str, Traced] = {}
    for name, path, labels, side, part, edit, keep in steps:
        at = found(model, path, labels)
        if side == "mask":
            args, kwargs = at.inputs
            hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
            visible = masks[part].to(hidden.device)
            at.inputs = (args, {**kwargs, "attention_mask": additive_mask(visible, hidden.dtype)})
            continue
        whole = getattr(at, side)
        value = got(part, whole)
        if edit is not None:
            value = edit(value).to(value.dtype)
            setattr(at, side, put(part, whole, value))
        if keep is not None:
            kept[name] = keep(value)
            if brought:
                kept[name] = kept[name].detach().clone().cpu()
    if logits:
        at = found(model, head)
        made = unembedded(at._module, at.input)
        if made is not None:
            at.output = made
        made = model.output.logits
        kept["logits"] = made.detach().cpu() if brought else made
    return kept


def additive_mask(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 0 where visible, the dtype's lowest number elsewhere: what Hugging Face's eager and sdpa attention add."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill(~visible, torch.finfo(dtype).min)


BLOCK = 2**24  # weights that are held in float32 at a time (64 MB)


def float32_logits(normed: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    r"""Compute logits `[..., vocab]` in float32 of a normed stream `[..., d_model]`, W_U `[vocab, d_model]` in half precision.

    $$ \ell = W_U\, n(x) + b $$

    W_U is cast block by block, and with gradients once more on the way back, so that it is never whole in float32.
    """
    x = normed.to(weight.device, torch.float32)
    blocks = weight.split(max(1, BLOCK // weight.shape[1]))
    multiply = partial(checkpoint, _product, use_reentrant=False) if torch.is_grad_enabled() else _product
    logits = torch.cat([multiply(x, block) for block in blocks], -1)
    return logits if bias is None else logits + bias.float()


def _product(x: Tensor, block: Tensor) -> Tensor:
    return x @ block.float().T


def is_half(weight: Tensor) -> bool:
    """Ask whether these are floats of 16 bits."""
    return weight.is_floating_point() and weight.element_size() == 2


def unembedded(module: nn.Module, normed: Tensor) -> Tensor | None:
    """Give in float32 what a plain linear layer in half precision gives; None for any other, and for offloaded weights."""
    if type(module) is not nn.Linear or not is_half(module.weight) or module.weight.is_meta:
        return None
    return float32_logits(normed, module.weight, module.bias)
