"""Texts that a model writes itself, cut into problems."""

import json
from pathlib import Path
from typing import Any

import pytest
import text_problems
from typer.testing import CliRunner

import mless_interp as mi


def test_a_models_own_samples_become_problems(
    tiny_model_dir: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = mi.load_model(tiny_model_dir("llama"), backend="bridge")
    made.tokenizer.bos_token = "apples"
    monkeypatch.setattr(mi, "load_model", lambda *_, **__: made)
    sizes = ["--n-before", "4", "--n-context", "9", "--n-answer", "2"]
    command = ["--model", "tiny", "--sample", "3", *sizes, "--out", str(tmp_path / "texts.jsonl")]
    found = CliRunner().invoke(text_problems.app, command, catch_exceptions=False)
    problems = [json.loads(line) for line in (tmp_path / "texts.jsonl").read_text().splitlines()]
    assert found.output.startswith(f"{len(problems)} problems in") and len(problems) > 0
    assert all(each["system"] and each["problem"] and each["answer"] for each in problems)
