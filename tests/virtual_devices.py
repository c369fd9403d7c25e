"""Devices that are not there: CPU numbers under tensors that lie on `virtual:1`, `virtual:2`, ..., which do not mix.

A tensor on a virtual device says so (`tensor.device`), and an operation on tensors of two devices raises as CUDA's does. What
is not imitated: kernels, streams, memory, speed.

The device type is PyTorch's own place for another backend (PrivateUse1). To PyTorch's C++, which knows of one index there, all
of these tensors lie on `virtual:0`: what it makes beside one of them takes the place of the tensor that it meets first. In what
has gradients they are in memory to it, as it would want streams and a thread of each device; a backward pass therefore runs in
one thread and raises when two devices mix, but not when something of the memory joins one.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import backend_registration
from torch.utils._pytree import tree_flatten, tree_map

MEMORY = torch.device("cpu")
aten = torch.ops.aten


class _Nothing(backend_registration._DummyBackendModule):
    """No program finds such a device by itself."""

    def is_available(self) -> bool:
        return False

    def device_count(self) -> int:
        return 0


# kept here: PyTorch's threads call them until the end of the process
_HOOK, _GUARD = backend_registration._DummyPrivateUse1Hook(), backend_registration._DummyDeviceGuard()
backend_registration._setup_privateuseone_for_python_backend("virtual", _Nothing(), _HOOK, _GUARD)
INSIDE = torch.device("virtual:0")


class VirtualTensor(Tensor):
    """A tensor whose numbers lie in memory (`numbers`) and which says that it lies on a virtual device (`place`)."""

    numbers: Tensor
    place: torch.device

    @staticmethod
    def __new__(cls, numbers: Tensor, place: torch.device | None = None, requires_grad: bool = False) -> Any:
        if place is None:  # accelerate makes a parameter of what it brings, or puts away, by its class
            return nn.Parameter(numbers, requires_grad=requires_grad)
        with_gradients = torch.is_grad_enabled() or _going_back()
        made = Tensor._make_wrapper_subclass(
            cls,
            numbers.size(),
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            device=MEMORY if with_gradients else INSIDE,
        )
        made.numbers, made.place = numbers, place
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.place

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return False

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __deepcopy__(self, memo: Any) -> Tensor:
        return self.numbers.clone().to(self.place)

    def data_ptr(self) -> int:
        return self.numbers.data_ptr()

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"{self.numbers!r} on {self.place}"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        with torch._C.DisableTorchFunctionSubclass():
            if func in (Tensor.to, Tensor.type_as, Tensor.cpu):  # below nothing is known of places
                return _moved(*args, **({"device": "cpu"} if func is Tensor.cpu else kwargs))
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, dict(kwargs or {}))


def _going_back() -> bool:
    """Whether this is a backward pass."""
    return torch._C._current_graph_task_id() != -1


def _moved(x: Tensor, *to: Any, other: Tensor | None = None, copy: bool = False, **kwargs: Any) -> Tensor:
    """`x.to(...)`."""
    if other is None and to and isinstance(to[0], Tensor):
        other = to[0]
    non_blocking = bool(kwargs.get("non_blocking"))
    if other is not None:
        device, dtype = other.device, other.dtype
    else:
        device, dtype, non_blocking, _ = torch._C._nn._parse_to(*to, **kwargs)
    device, dtype = device or x.device, dtype or x.dtype
    if (device, dtype) == (x.device, x.dtype) and not copy:
        return x
    if torch.is_grad_enabled() and x.requires_grad:
        return _Move.apply(x, device, dtype)
    return aten._to_copy(x, device=device, dtype=dtype, non_blocking=non_blocking)


class _Move(torch.autograd.Function):
    """A move whose gradient goes back to where it came from, as PyTorch would send it to where it believes that this is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:  # type: ignore[override]
        ctx.back = {"device": x.device, "dtype": x.dtype}
        with torch.enable_grad():  # what is made here is in memory to PyTorch, like the rest of the graph
            return aten._to_copy(x.detach(), device=device, dtype=dtype)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:  # type: ignore[override]
        return aten._to_copy(slope, **ctx.back), None, None


def _is_virtual(tensor: Any) -> bool:
    return isinstance(tensor, VirtualTensor)


def _numbers(tree: Any) -> Any:
    return tree_map(lambda x: x.numbers if _is_virtual(x) else x, tree)


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    flat = tree_flatten((args, kwargs))[0]
    if func in (aten._to_copy.default, aten.copy_.default):
        return _copied(func, args, kwargs)
    place = _common_place(func, args, flat)
    if isinstance(kwargs.get("device"), torch.device):  # a factory: zeros_like, new_zeros ...
        given = kwargs["device"]
        kwargs["device"] = torch.device("cpu")
        if given.type != "virtual":
            place = None
        elif given.index:
            place = given
    found = func(*_numbers(args), **_numbers(kwargs))
    if place is None:
        return found
    same = {id(x.numbers): x for x in flat if _is_virtual(x)}  # written in place

    def wrapped(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        return same[id(x)] if id(x) in same else VirtualTensor(x, place)

    return tree_map(wrapped, found)


_INDEXING = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default)


def _common_place(func: Any, args: Any, flat: list[Any]) -> torch.device | None:
    """The one device of an operation's tensors; `RuntimeError` for two. Single numbers of the memory may join."""
    virtual = [x for x in flat if _is_virtual(x)]
    places = {x.place for x in virtual} - {INSIDE}
    if func in _INDEXING:
        indices = {id(x) for x in args[1] if isinstance(x, Tensor)}
        if not _going_back() and not _is_virtual(args[0]) and any(_is_virtual(x) for x in args[1]):
            raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
    else:
        indices = set()
    strangers = [x for x in flat if isinstance(x, Tensor) and not _is_virtual(x) and x.dim() and id(x) not in indices]
    if _going_back():
        strangers = []
    named = sorted(map(str, places)) + ["cpu"] * bool(strangers)
    if len(named) > 1 or (strangers and virtual):
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{' and '.join(named)}! (when checking arguments of {func})"
        )
    place = next(iter(places), INSIDE if virtual else None)
    for x in virtual:
        x.place = x.place if place is None or x.place != INSIDE else place
    return place


def _copied(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """From anywhere to anywhere."""
    if func is aten.copy_.default:
        target, source, *_ = args
        (target.numbers if _is_virtual(target) else target).copy_(source.numbers if _is_virtual(source) else source)
        return target
    (source,) = args
    wanted = kwargs.get("device")
    place = source.device if wanted is None else torch.device(wanted)
    kwargs["device"] = MEMORY if place.type == "virtual" else place  # "meta" among them
    made = func(_numbers(source), **kwargs)
    return VirtualTensor(made, place) if place.type == "virtual" else made


def _factory(make: Any) -> Callable[..., Tensor]:
    def made(*args: Any, device: Any = None, pin_memory: Any = None, **kwargs: Any) -> Tensor:
        return VirtualTensor(make(*args, device="cpu", **kwargs), INSIDE if device.index is None else device)

    return made


_LIBRARY = torch.library.Library("aten", "IMPL")
for _name in """
    empty.memory_format empty_strided arange arange.start arange.start_step eye eye.m full linspace scalar_tensor zeros ones
""".split():
    _packet, _, _overload = _name.partition(".")
    _LIBRARY.impl(_name, _factory(getattr(getattr(aten, _packet), _overload or "default")), "PrivateUse1")
_LIBRARY.impl("_to_copy", lambda x, **kwargs: _copied(aten._to_copy.default, (x,), kwargs), "PrivateUse1")
