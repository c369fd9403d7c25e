"""The published tokenizers on all of MATH-500, read and paired once per process and shared by the tests."""

from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from mless_interp.prompts.insertions import Insertion
from mless_interp.prompts.pairs import PromptPair, make_pairs
from mless_interp.prompts.problems import load_problems

REAL = ("qwen2_5", "llama3_1", "gemma3")
EACH_REAL = (*REAL[:2], pytest.param("gemma3", marks=pytest.mark.slow))  # reading its vocabulary takes seconds
SLASHES = Insertion.meaningless(" /", 55)


@lru_cache
def read_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


@lru_cache
def slash_pairs(folder: Path, problems: Path, template: str) -> tuple[PromptPair, ...]:
    """Every problem with and without 55 slashes before the question."""
    return make_pairs(read_tokenizer(folder), load_problems(problems), SLASHES, template=template)
