"""Stands for vLLM, which needs a GPU and an environment of its own: a module of that name with what its 0.33 has of `LLM`."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

MODULE = '''
"""Answers prompts with the ids of answers.json, one after the other, and writes down what it is given."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

__version__ = "0.33.0"
HERE = Path(__file__).parent


def noted(**facts):
    with (HERE / "given.jsonl").open("a") as file:
        file.write(json.dumps(facts) + "\\n")


class SamplingParams:
    def __init__(self, *, temperature, top_p, max_tokens, stop_token_ids, detokenize, seed):
        self.given = dict(locals())
        del self.given["self"]


class LLM:
    def __init__(self, model, *, dtype, max_model_len, skip_tokenizer_init, tensor_parallel_size, **rest):
        noted(llm={"model": model, "dtype": dtype, "max_model_len": max_model_len, "tensor_parallel_size": tensor_parallel_size,
                   "skip_tokenizer_init": skip_tokenizer_init, **rest})
        print("noise on standard output")
        self.answers = json.loads((HERE / "answers.json").read_text())
        if self.answers == "cannot":
            raise ValueError("no GPU here")
        self.waiting, self.llm_engine, self.count = [], self, 0

    def enqueue(self, prompts, sampling_params, use_tqdm):
        assert len(prompts) == len(sampling_params) and not use_tqdm
        ids = []
        for prompt, parameters in zip(prompts, sampling_params, strict=True):
            noted(prompt=prompt["prompt_token_ids"], parameters=parameters.given)
            self.waiting.append((str(self.count), self.answers[self.count % len(self.answers)]))
            ids.append(f"{self.count}-0a1b2c3d")
            self.count += 1
        return ids

    def has_unfinished_requests(self):
        return bool(self.waiting)

    def step(self):
        at, answer = self.waiting.pop()  # the last one first
        if answer == "die":
            import os, sys
            sys.stderr.write("out of memory\\n")
            sys.stderr.flush()
            os._exit(9)
        reason = "stop" if answer else "abort"
        output = SimpleNamespace(token_ids=tuple(answer), finish_reason=reason)
        return [SimpleNamespace(request_id=at, finished=True, outputs=[output])]
'''


class FakeVllm:
    """The stand-in in a folder, which every process that is started finds; `given` is what it was given."""

    def __init__(self, folder: Path, answers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self._given = folder / "given.jsonl"
        self._given.touch()
        (folder / "vllm.py").write_text(MODULE)
        (folder / "vllm-0.33.0.dist-info").mkdir(exist_ok=True)
        (folder / "vllm-0.33.0.dist-info" / "METADATA").write_text("Name: vllm\nVersion: 0.33.0\n")
        (folder / "answers.json").write_text(json.dumps(answers))
        monkeypatch.setenv("PYTHONPATH", str(folder))
        monkeypatch.setenv("MLESS_VLLM_PYTHON", sys.executable)

    def given(self, what: str) -> Sequence[Any]:
        """What it was given of one kind: "llm", "prompt" or "parameters"."""
        lines = map(json.loads, self._given.read_text().splitlines())
        return [line[what] for line in lines if what in line]
