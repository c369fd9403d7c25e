"""Several processes at once, here or on a cluster, by Ray: each holds the model; one that dies loses no work but its unit's."""

import contextlib
import io
import pickle
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from ..core.arguments import checked
from .engines import Compute, Tick, Unit

TRIES = 3
"""How often a unit is begun whose worker died."""


class RayWorkers:
    """Long analyses on several workers, each a process of [Ray](https://docs.ray.io) with a model of its own.

        with mi.RayWorkers(4, gpus=1) as workers:
            found = mi.locate_heads(model.on(workers), pairs)

    Parameters
    ----------
    count : how many workers.
    gpus, cpus : what each of them reserves (`gpus` may be a part of one).
    address : of a running cluster ("auto": the one that this machine belongs to); None starts Ray here and stops it again.

    The model must be one that `load_model` loaded; each worker loads it and checks that it has the same weights. A worker that
    dies is replaced; a unit that ends three workers ends the run, with all that had finished kept. Results are those of one
    process, bit for bit, on equal hardware. Needs the package `ray`.
    """

    @checked
    def __init__(self, count: int, *, gpus: int | float = 0, cpus: int | float = 1, address: str | None = None) -> None:
        for name, value, least in (("count", count, 1), ("gpus", gpus, 0), ("cpus", cpus, 0)):
            if not least <= value < float("inf"):
                raise ValueError(f"{name} must be {least} or more, got {value}")
        _ray()
        if address not in (None, "auto", "local"):  # before a model is loaded
            host, _, port = str(address).removeprefix("ray://").rpartition(":")
            try:
                socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWERS_WITHIN).close()
            except (OSError, OverflowError, ValueError) as error:
                raise ValueError(
                    f"no Ray cluster answers at {address!r} ({error}): start one (ray start --head) and give its HOST:PORT, or "
                    "leave the address out to start Ray here"
                ) from error
        self.count, self.gpus, self.cpus, self.address = count, gpus, cpus, address
        self._workers: list[Any] = []
        self._started = False

    def __repr__(self) -> str:
        return f"RayWorkers({self.count})"

    def __enter__(self) -> "RayWorkers":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # Ray may be gone before
            self.close()

    def close(self) -> None:
        """End the workers, and Ray if it was started here; the next analysis begins them anew."""
        ray = _ray()
        for worker in self._workers if ray.is_initialized() else ():
            ray.kill(worker)
        self._workers = []
        if self._started:
            self._started = False
            ray.shutdown()

    def __call__(self, compute: Compute, units: Sequence[Unit], tick: Tick) -> Iterator[tuple[Unit, Sequence[Any]]]:
        """Each unit with its values as it ends, in any order; of several errors, the first that came."""
        if not units:
            return
        ray = _ray()
        self._begin(min(self.count, len(units)))
        work = [ray.put(_pickled(compute))]  # in a list it is fetched when it is needed, once for each worker
        waiting, tries = deque(units), dict.fromkeys(units, 0)
        running: dict[Any, tuple[Unit, Any]] = {}
        idle = list(self._workers)
        try:
            while waiting or running:
                while waiting and idle:
                    unit, worker = waiting.popleft(), idle.pop()
                    tries[unit] += 1
                    running[worker.do.remote(work, unit)] = unit, worker
                (ended, *_), _ = ray.wait(list(running), num_returns=1)
                unit, worker = running.pop(ended)
                try:
                    values, error = ray.get(ended)
                except ray.exceptions.RayActorError as died:
                    if tries[unit] == TRIES:
                        raise MemoryError(
                            f"{TRIES} workers ended in the middle of the same unit (place {', '.join(map(str, unit))} in the "
                            "list of problems): memory ran out, or something kills them"
                        ) from died
                    waiting.appendleft(unit)
                    self._workers.remove(worker)
                    self._workers.append(worker := self._worker())
                else:
                    if error is not None:
                        raise error
                    yield unit, values
                idle.append(worker)
        except BaseException:
            if running:  # what they are at is wanted no more
                self.close()
            raise

    def _begin(self, wanted: int) -> None:
        ray = _ray()
        if not ray.is_initialized():
            self._workers = []
            ray.init(address=self.address, include_dashboard=False, log_to_driver=False, logging_level="error")
            self._started = True
        has = ray.cluster_resources()
        for name, each in (("CPU", self.cpus), ("GPU", self.gpus)):
            if self.count * each > has.get(name, 0):
                where = "the cluster" if self.address else "this machine"
                self.close()
                raise ValueError(
                    f"{self.count} workers with {each:g} {name} each ask for {self.count * each:g}, and {where} has "
                    f"{has.get(name, 0):g}: ask for less"
                )
        self._workers += [self._worker() for _ in range(wanted - len(self._workers))]

    def _worker(self) -> Any:
        import torch

        made = _ray().remote(num_cpus=self.cpus, num_gpus=self.gpus, max_restarts=0)(_Worker)
        return made.remote(torch.get_num_threads())  # they decide the last bits of a product


class _Worker:
    """What runs in each process: keeps the last computation it was sent, and with it the model."""

    def __init__(self, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self._sent: Any = None
        self._compute: Any = None

    def do(self, work: list[Any], unit: Unit) -> tuple[Sequence[Any] | None, BaseException | None]:
        """The unit's values, or the error that came instead."""
        try:
            if self._sent != work[0]:
                self._compute = pickle.loads(_ray().get(work[0]))
                self._sent = work[0]
            return self._compute(unit, lambda _: None), None
        except Exception as error:  # noqa: BLE001, raised again where it is read
            return None, _sendable(error)


def _pickled(compute: Compute) -> bytes:
    """The computation, and in it what has a `sent` (a model) as that says: a function and its arguments."""
    from ray import cloudpickle

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, thing: Any) -> Any:
            sent = getattr(type(thing), "sent", None)
            return super().reducer_override(thing) if sent is None else sent(thing)

    file = io.BytesIO()
    Pickler(file).dump(compute)
    return file.getvalue()


def _sendable(error: Exception) -> BaseException:
    """The error as the other process can read it: itself, or one with its words."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001, whatever its class does
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


ANSWERS_WITHIN = 2.0
"""Seconds in which a cluster must take a connection."""


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ModuleNotFoundError("several workers need the package ray: pip install 'mless_interp[ray]'") from error
    return ray
