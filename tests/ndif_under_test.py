"""NDIF in this process, without the leniency of nnsight's own rehearsal.

A request is bytes; it is read where this package cannot be imported and nothing of it was imported before, run on a model of
the server's own, and what was saved comes back as bytes. So nothing that a trace changes beside what it saves is seen again.
"""

import io
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cloudpickle.cloudpickle as by_value
import nnsight.ndif
import pytest
import torch
from nnsight.intervention.backends.local import LocalSimulationBackend
from nnsight.intervention.backends.remote import RemoteBackend
from nnsight.intervention.serialization import CustomCloudUnpickler
from nnsight.modeling import huggingface
from nnsight.schema.request import RequestModel
from nnsight.tracing.tracer import mark
from nnsight.tracing.util import push

OURS, SENT = "mless_interp", "mless_interp.models.traced_ops"
NOT_THERE = (OURS, "jaxtyping", "beartype", "checked_types", "einops", "transformer_lens", "pandas", "conftest")


class _Blocked:
    """An importer that has nothing of what a server lacks."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] in NOT_THERE:
            raise ModuleNotFoundError(f"No module named {name!r} on the server", name=name)


@contextmanager
def elsewhere() -> Iterator[None]:
    """As in a process that never had this package."""
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in NOT_THERE}
    blocked = _Blocked()
    sys.meta_path.insert(0, blocked)  # type: ignore[arg-type]
    try:
        yield
    finally:
        sys.meta_path.remove(blocked)  # type: ignore[arg-type]
        sys.modules.update(hidden)


class Server:
    """A server with one model (a loaded one behind the seam), and what it was sent."""

    def __init__(self, model: Any) -> None:
        self.model = model.underlying
        self.requests: list[bytes] = []
        self.modules: set[str] = set()
        """From which something was taken by reference."""

    def _noting(self) -> type:
        modules = self.modules

        class Noting(CustomCloudUnpickler):
            def find_class(self, module: str, name: str) -> Any:
                modules.add(module)
                return super().find_class(module, name)

        return Noting

    def answer(self, request: bytes) -> bytes:
        """What was saved, as bytes."""
        self.requests.append(request)
        persistent = self.model._remoteable_persistent_objects()
        with elsewhere():
            restored = RequestModel.deserialize(request, persistent, compress=False, unpickler=self._noting())
            before = set(restored.info.frame.f_locals)
            restored.execute(restored.info.code)
        saved = {name: value for name, value in restored.info.frame.f_locals.items() if name not in before}
        file = io.BytesIO()
        torch.save(saved, file)
        return file.getvalue()

    @property
    def largest(self) -> int:
        """Bytes of the largest request, compressed as nnsight compresses it."""
        return max(len(zlib.compress(request)) for request in self.requests)


def _read(answer: bytes) -> dict[str, Any]:
    return torch.load(io.BytesIO(answer), weights_only=False)


def strictly(monkeypatch: pytest.MonkeyPatch, server: Server) -> Server:
    """`remote="local"` and `remote=True` are answered by this server; an installed package is none that nnsight sends."""
    monkeypatch.setattr(nnsight.ndif, "_PULLED_ENV", True)
    monkeypatch.setattr(by_value, "_PICKLE_BY_VALUE_MODULES", {SENT} & by_value._PICKLE_BY_VALUE_MODULES)

    def local(self: Any, tracer: Any) -> None:
        found = _read(server.answer(RequestModel.serialize(tracer, compress=False)))
        for value in found.values():
            mark(value)
        push(tracer.info.frame, found)

    def request(self: Any, request: RequestModel, tracer: Any) -> dict[str, Any]:
        return _read(server.answer(RequestModel.serialize(tracer, compress=False)))

    monkeypatch.setattr(LocalSimulationBackend, "__call__", local)
    monkeypatch.setattr(RemoteBackend, "request", request)
    monkeypatch.setattr(nnsight.CONFIG.APP, "REMOTE_LOGGING", False)
    return server


def hosting(monkeypatch: pytest.MonkeyPatch, *names: str, key: str | None = "a key") -> None:
    """NDIF runs the models of these names, and there is an API key."""
    monkeypatch.setattr(nnsight.CONFIG.API, "APIKEY", key)
    every = {name: {"repo_id": name, "application_state": "RUNNING"} for name in names}
    every |= {"a/model": {"application_state": "RUNNING"}, "b/model": {"repo_id": "b/model"}}
    monkeypatch.setattr(nnsight.ndif, "status", lambda raw=False: {"deployments": every if raw else {}})
    for name in names:
        monkeypatch.setitem(huggingface._ID_CACHE, name, name)
