"""Completions by vLLM, which has an environment of its own (its pins exclude this toolkit's): spoken to as a process."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NoReturn

from ..core.arguments import Arguments, check_count, checked
from ..models.base import Model
from ..models.info import ModelError
from ..models.load import source_of
from ..statistics import derive_generator
from .decoding import CompletionEngine, Decoding, Finished, Row

Options = Mapping[str, Any]
PYTHON = "MLESS_VLLM_PYTHON"
SCRIPT = Path(__file__).with_name("vllm_process.py")
WHOLE = {"enable_prefix_caching": False, "enable_chunked_prefill": False}
"""Every prompt is computed whole: rows kept from another prompt, or made in other chunks, have other last bits."""
AT_ONCE, ROUNDED_TO = 8192, 256
"""Tokens that vLLM computes in one pass, unless one prompt has more; to whose multiple a context is rounded up, so that few
batches need a larger one."""


@checked
@dataclass(frozen=True)
class Vllm:
    """Where vLLM is and how it runs: `evaluate_accuracy(..., engine=Vllm(python="/envs/vllm/bin/python"))`.

    `python` is the interpreter of an environment that has vLLM; default: what `MLESS_VLLM_PYTHON` names, else this one.
    `tensor_parallel_size` GPUs hold the model together. `options` are further ones of `vllm.LLM`.
    """

    python: str | None = None
    tensor_parallel_size: int = 1
    options: Options = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_count(self.tensor_parallel_size, name="tensor_parallel_size")
        own = {*WHOLE, "model", "dtype", "max_model_len", "skip_tokenizer_init", "tensor_parallel_size"}
        if twice := own.intersection(self.options):
            raise ValueError(f"the engine sets {', '.join(sorted(twice))} itself: leave it out of options")


class VllmEngine(CompletionEngine):
    """vLLM: fast, insertions only, as it shows no heads and no activations.

    A completion runs to its end and is then cut after its first whole box. The process begins with the first batch; it loads
    the weights a second time and takes most of a GPU: load the model itself with device="cpu".
    """

    name = "vllm"
    rows_at_once = 1024  # it batches by itself
    redraws = False

    def __init__(self, model: Model, how: Vllm | None = None) -> None:
        how = how or Vllm()
        if model.info.loaded_from is None:
            raise ModelError(
                "engine='vllm' loads the weights itself, from a directory or a hub id, which a wrapped model does not "
                "tell, nor one in memory: save it and load it by its directory, or take another engine"
            )
        self.python = how.python or os.environ.get(PYTHON) or sys.executable
        found = _version_of_vllm(self.python)
        if found is None:
            raise ModelError(
                f"engine='vllm': {self.python} has no vllm. It needs an environment of its own (Linux with a GPU): python -m "
                f"venv vllm-env; vllm-env/bin/pip install vllm; then Vllm(python='vllm-env/bin/python'), or set {PYTHON}. "
                "engine='hugging_face' runs without it"
            )
        self.options = {
            **how.options,
            **WHOLE,
            "model": source_of(model.info.loaded_from),
            "dtype": model.info.dtype,
            "tensor_parallel_size": how.tensor_parallel_size,
            "skip_tokenizer_init": True,  # prompts are ids, and texts are made by the model's own tokenizer here
        }
        self.longest = model.info.context_length
        self.settings = {"vllm": found, **{name: value for name, value in self.options.items() if name != "model"}}
        self._process: _Process | None = None

    def sent(self) -> NoReturn:
        raise ModelError(
            "engine='vllm' uses several GPUs by itself (tensor_parallel_size): not in workers of this toolkit"
        )

    def run(self, rows: list[Row], decoding: Decoding, finished: Finished) -> None:
        waiting = {row.request.key: row for row in rows}
        sampling = {
            "temperature": decoding.temperature,
            "top_p": decoding.top_p,
            "max_tokens": decoding.max_new_tokens,
            "stop_token_ids": sorted(decoding.stop_ids),
            "detokenize": False,
        }
        asked = []
        for key, row in waiting.items():
            # a seed for each row, so that its draws do not depend on the rows beside it; greedy needs none
            seed = int(derive_generator(decoding.seed, "vllm", key).integers(2**31)) if decoding.temperature else None
            asked.append({"key": key, "ids": list(row.request.prompt), "sampling": sampling | {"seed": seed}})
        need = max(len(row.request.prompt) for row in rows) + decoding.max_new_tokens
        for answer in self._begun(need).answers(asked):
            row = waiting.pop(answer["key"])
            for token in map(int, answer["token_ids"]):
                if row.stop is None:
                    row.accept(token)
            if row.stop is None:
                raise ModelError(f"vLLM ended {row.request.key!r} after {len(row.tokens)} tokens ({answer['why']!r})")
            finished([row])

    def _begun(self, need: int) -> "_Process":
        if self._process is None or self._process.context < need:
            if self._process is not None:
                self._process.end()
            context = min(self.longest, -(-need // ROUNDED_TO) * ROUNDED_TO)  # rounded up
            whole = {"max_model_len": context, "max_num_batched_tokens": max(context, AT_ONCE)}
            self._process = _Process(self.python, whole | self.options)
        return self._process


class _Process:
    def __init__(self, python: str, options: Options) -> None:
        self.context = options["max_model_len"]
        self._said = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115, as long as the process
        pipes: Arguments = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._said, "text": True}
        # in a session of its own, with the processes that vLLM begins, to be ended together
        self._process = subprocess.Popen([python, str(SCRIPT)], start_new_session=True, **pipes)
        self.end = weakref.finalize(self, _ended, self._process, self._said)  # also when Python ends
        self._write(options)
        self._read()

    def answers(self, batch: Sequence[Options]) -> Iterator[Options]:
        """Yield the answers to a batch, each as it ends; whoever leaves early ends the process."""
        try:
            self._write(batch)
            while "ended" not in (line := self._read()):
                yield line
        except BaseException:
            self.end()
            raise

    def _write(self, line: object) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(line) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._failed() from error

    def _read(self) -> Options:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        try:
            found = json.loads(line)
        except ValueError as error:
            raise self._failed() from error
        if "error" in found:
            self.end()
            raise ModelError(f"vLLM failed: {found['error']}")
        return found

    def _failed(self) -> ModelError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)  # it has closed its output
        code = self._process.poll()
        self._said.seek(0)
        last = [line for line in self._said.read().splitlines() if line.strip()][-3:]
        self.end()
        return ModelError(f"vLLM's process ended ({code}): {' | '.join(last) or 'it said nothing'}")


def _ended(process: "subprocess.Popen[str]", said: IO[str]) -> None:
    """Let it end by itself where its input has; then end whatever is left of it."""
    with contextlib.suppress(OSError, ValueError, subprocess.TimeoutExpired):
        process.communicate(timeout=5)
    with contextlib.suppress(OSError), said, process:
        os.killpg(process.pid, signal.SIGKILL)


def _version_of_vllm(python: str) -> str | None:
    probe = "import importlib.metadata as m; print(m.version('vllm'))"
    try:
        done = subprocess.run([python, "-c", probe], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
