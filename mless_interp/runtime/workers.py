"""Units of work, planned from the whole list of problems, and the engines that compute them: here, in forked processes, as a
shard, by Ray."""

import contextlib
import ctypes
import io
import multiprocessing
import os
import pickle
import re
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.arguments import check_count, checked

Unit = tuple[int, ...]
"""Problems, by their place in the list, that are computed in one go; planned from the whole list, never from what waits."""
Tick = Callable[[Any], None]  # says that so many steps more are done, or what has just been
Compute = Callable[[Unit, Tick], Sequence[object]]
"""What a unit gives: one value per problem, of arrays, numbers, lists and dicts of them."""
Done = Iterator[tuple[Unit, Sequence[Any]]]
Tried = tuple[Any, Exception | None]
"""What another process gives for a unit: its values, or the error that came instead."""


Engine = Callable[[Compute, Sequence[Unit], Tick], Done]
"""Computes the units that wait, and hands each one over as it ends, in any order.
An engine in other processes sends `compute` there (it can be pickled) and need not tick."""


def here(compute: Compute, units: Sequence[Unit], tick: Tick) -> Done:
    """Compute in this process, one unit after the other."""
    return ((unit, compute(unit, tick)) for unit in units)


# ------------------------------------------------------------------------------------------------------------ processes


@dataclass(frozen=True)
class Processes:
    """Long analyses on `count` copies of this process (Linux, models on the CPU), each with one thread.
    For a small model, whose passes gain nothing from more threads: its numbers are those of one process, bit for bit."""

    count: int

    def __post_init__(self) -> None:
        check_count(self.count, name="count")
        if sys.platform != "linux":
            raise ValueError("Processes need Linux; elsewhere compute here, or on RayWorkers")

    def __call__(self, compute: Compute, units: Sequence[Unit], tick: Tick) -> Done:
        # a fork has the model and the computation without a copy of either being sent
        copies, how = max(1, min(self.count, len(units))), multiprocessing.get_context("fork")
        pool = ProcessPoolExecutor(copies, how, initializer=_begin_copy, initargs=(compute,))
        try:
            asked = {pool.submit(_in_copy, unit): unit for unit in units}
            for ended in as_completed(asked):
                values, error = ended.result()
                if error is not None:
                    raise error
                yield asked.pop(ended), values
        except BrokenProcessPool as error:
            raise MemoryError(
                "a process was killed while it computed: memory ran out, or something kills it"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


PR_SET_PDEATHSIG = 1
_COPY: list[Compute] = []  # what a copy of this process computes; empty in the process itself


def _begin_copy(compute: Compute) -> None:
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that was copied answers Ctrl-C for all
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a copy ends with that process, however that ended
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)  # OpenMP's threads did not come along
    _COPY.append(compute)


def _in_copy(unit: Unit) -> Tried:
    return _tried(_COPY[0], unit)


# --------------------------------------------------------------------------------------------------------------- shards


class ShardDone(Exception):
    """A shard's part of an analysis is computed and kept, and others' parts are missing: no error, but no result either."""


@dataclass(frozen=True)
class Shard:
    """Every `count`-th unit of every long analysis, from the zero-based `index`: one of several runs that share a folder.

    Each run does and keeps its own part (`run.jsonl` becomes `run.0-of-4.jsonl`), then ends with `ShardDone`. The same
    analysis without a shard takes what all of them kept, computes what is missing, and has the same bits as one that was
    never split. Before a next step (locating has several) a shard `wait`s for the others' parts as many seconds as nothing
    new comes, or is started again. `engine` computes the shard's units.

    >>> Shard(1, 4), Shard.parse("1/4") == Shard(1, 4), Shard(1, 4).units([(0, 1), (2,), (3,), (4,), (5,), (6,)])
    (Shard 1/4, True, [(2,), (6,)])
    """

    index: int
    count: int
    engine: Engine = here
    wait: int | float = 0

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            known = f"0/{self.count} to {self.count - 1}/{self.count}" if self.count > 0 else "0/1"
            raise ValueError(f"invalid shard {self.index}/{self.count}: shards are numbered {known}")

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Return the shard of a text such as "1/4" (zero-based)."""
        found = re.fullmatch(r"\s*(\d+)\s*/\s*(\d+)\s*", text)
        if found is None:
            raise ValueError(f"cannot read {text!r} as a shard: write 0/4 to 3/4, say (zero-based)")
        return cls(int(found[1]), int(found[2]))

    def units(self, planned: Sequence[Unit]) -> list[Unit]:
        """Return those of all planned units that are this shard's."""
        return list(planned[self.index :: self.count])

    def done(self, label: str, kept: str, path: Path | None) -> ShardDone:
        """Say that this part is computed, while others' are missing; `kept`: how much there is beside `path`."""
        rest = "when the other shards have ended too, the same analysis without a shard goes on from all of them"
        return ShardDone(f"{label}: {self!r} is done, {kept} are kept beside {path}; {rest}")

    def file(self, path: Path) -> Path:
        """Return the file in which this shard keeps its part of a checkpoint."""
        return path.with_name(f"{path.stem}.{self.index}-of-{self.count}{path.suffix}")

    def __call__(self, compute: Compute, units: Sequence[Unit], tick: Tick) -> Done:
        return self.engine(compute, units, tick)

    def __repr__(self) -> str:
        return f"Shard {self.index}/{self.count}"


def shard_of(engine: Engine) -> Shard | None:
    """Return the part of the work that an engine does; None for all of it."""
    return engine if isinstance(engine, Shard) else None


def parts_of(path: Path) -> list[Path]:
    """Return the files in which shards keep their parts of a checkpoint, whatever their count."""
    name = re.compile(rf"{re.escape(path.stem)}\.\d+-of-\d+{re.escape(path.suffix)}")
    return sorted(each for each in path.parent.glob("*") if name.fullmatch(each.name))


# ------------------------------------------------------------------------------------------------------------------ Ray

TRIES = 3  # how often a unit is begun whose worker died
ANSWERS_WITHIN = 2.0  # seconds in which a cluster must take a connection


class RayWorkers(contextlib.AbstractContextManager["RayWorkers"]):
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
        check_count(count, name="count")
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

    def __call__(self, compute: Compute, units: Sequence[Unit], tick: Tick) -> Done:
        """Return each unit with its values as it ends, in any order; of several errors, the first that came."""
        if not units:
            return
        ray = self._begin(min(self.count, len(units)))
        work = [ray.put(_pickled(compute))]  # in a list it is fetched when it is needed, once for each worker
        waiting, idle = deque(units), list(self._workers)
        running: dict[object, tuple[Unit, Any]] = {}
        try:
            while waiting or running:
                while waiting and idle:
                    unit, worker = waiting.popleft(), idle.pop()
                    running[worker.do.remote(work, unit)] = unit, worker
                (ended, *_), _ = ray.wait(list(running), num_returns=1)
                unit, worker = running.pop(ended)
                values, error = ray.get(ended)
                if error is not None:
                    raise error
                idle.append(worker)
                yield unit, values
        except BaseException as error:
            if running:  # what they are at is wanted no more
                self.close()
            if isinstance(error, ray.exceptions.RayActorError):
                raise MemoryError(
                    f"{TRIES} workers ended in the middle of the same unit (place {', '.join(map(str, unit))} in the list of "
                    "problems): memory ran out, or something kills them"
                ) from error
            raise

    def _begin(self, wanted: int) -> Any:
        ray = _ray()
        if not ray.is_initialized():
            self._workers = []
            ray.init(address=self.address, include_dashboard=False, log_to_driver=False, logging_level="error")
            self._started = True
        has = ray.cluster_resources()
        for name, each in (("CPU", self.cpus), ("GPU", self.gpus)):
            if self.count * each > has.get(name, 0):  # Ray would wait for it without end
                self.close()
                raise ValueError(
                    f"{self.count} workers with {each:g} {name} each ask for {self.count * each:g}, and there are "
                    f"{has.get(name, 0):g}: ask for less"
                )
        import torch

        # Ray replaces a worker that dies, and begins its unit anew
        retried = {"max_restarts": -1, "max_task_retries": TRIES - 1}
        made = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, **retried)(_Worker)
        threads = torch.get_num_threads()  # they decide the last bits of a product
        self._workers += [made.remote(threads) for _ in range(wanted - len(self._workers))]
        return ray


class _Worker:
    """What runs in each process: keeps the last computation it was sent, and with it the model."""

    def __init__(self, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self._sent: object = None
        self._compute: Compute | None = None

    def do(self, work: list[object], unit: Unit) -> Tried:
        try:
            if self._compute is None or self._sent != work[0]:
                self._compute, self._sent = pickle.loads(_ray().get(work[0])), work[0]
        except Exception as error:  # noqa: BLE001, raised again where it is read
            return None, _sendable(error)
        return _tried(self._compute, unit)


def _tried(compute: Compute, unit: Unit) -> Tried:
    try:
        return compute(unit, lambda _: None), None
    except Exception as error:  # noqa: BLE001, raised again where it is read
        return None, _sendable(error)


def _sendable(error: Exception) -> Exception:
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001, of whatever kind
        return RuntimeError(f"{type(error).__name__}: {error}")


def _pickled(compute: Compute) -> bytes:
    """Return the computation, and in it what has a `sent` (a model) as that says: a function and its arguments."""
    from ray import cloudpickle

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, thing: object) -> Any:
            sent = getattr(type(thing), "sent", None)
            return super().reducer_override(thing) if sent is None else sent(thing)

    file = io.BytesIO()
    Pickler(file).dump(compute)
    return file.getvalue()


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ModuleNotFoundError("several workers need the package ray: pip install 'mless_interp[ray]'") from error
    return ray
