"""Blocks of rows, put together, are the whole pattern; with a learned sink its key stands behind the tokens."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from mless_interp.metrics.patterns import uniform_pattern, with_sink_key
from mless_interp.models.attention_math import pattern_of
from mless_interp.models.info import AttentionRule
from mless_interp.scores import streaming
from mless_interp.scores.streaming import Block, pattern_blocks, recomputed_blocks, uniform_blocks

N_HEADS, N_TOKENS, D_HEAD = 2, 11, 4
VISIBLE = torch.ones(1, N_TOKENS, N_TOKENS, dtype=torch.bool).tril()


@pytest.fixture(autouse=True)
def three_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "BLOCK_ELEMENTS", 3 * N_HEADS * N_TOKENS)


def rule_with(sinks: bool) -> AttentionRule:
    return AttentionRule(scale=D_HEAD**0.5, sinks=torch.tensor([0.5, -1.0]) if sinks else None)


def queries_and_keys() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, N_TOKENS, N_HEADS, D_HEAD, generator=generator) for _ in range(2))
    return q, k


def together(blocks: Iterator[Block], name: str, n_extra: int) -> Tensor:
    """The pattern, or what is visible, of all rows over all tokens and the sink's key."""
    found = []
    for block in blocks:
        part: Any = getattr(block, name)
        rows, sink = part[..., : block.n_src], part[..., block.n_src :]
        assert sink.shape[-1] == block.n_extra == n_extra
        found.append(torch.cat([torch.nn.functional.pad(rows, (0, N_TOKENS - block.n_src)), sink], -1))
    return torch.cat(found, 1)


@pytest.mark.parametrize("sinks", [False, True])
def test_every_kind_of_block_is_a_part_of_the_whole(sinks: bool) -> None:
    q, k = queries_and_keys()
    rule = rule_with(sinks)
    n_extra = int(sinks)
    own = pattern_of(q, k, VISIBLE[None], rule)[0]
    seen = torch.nn.functional.pad(VISIBLE, (0, n_extra), value=True)
    whole = with_sink_key(own, visible=VISIBLE)[0] if sinks else own
    expected = {
        "own": (whole, pattern_blocks(own, VISIBLE, n_extra=n_extra)),
        "recomputed": (whole, recomputed_blocks(q, k, VISIBLE, rule)),
        "uniform": (uniform_pattern(seen), uniform_blocks(VISIBLE, torch.float32, n_extra=n_extra)),
    }
    for name, (pattern, made) in expected.items():
        blocks = list(made)
        assert len(blocks) > 1, name
        torch.testing.assert_close(together(iter(blocks), "pattern", n_extra), pattern, msg=name)
        assert torch.equal(together(iter(blocks), "visible", n_extra)[:1], seen), name
        assert torch.equal(torch.cat([block.positions for block in blocks]), torch.arange(N_TOKENS)), name
        rows = 6 if name == "uniform" else 3  # of one head, and of two
        assert [block.first for block in blocks] == list(range(0, N_TOKENS, rows)), name
        assert [block.n_src for block in blocks] == [*range(rows, N_TOKENS, rows), N_TOKENS], f"{name}: no unseen key"
