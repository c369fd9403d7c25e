"""Whether the span that a head reads is an attention sink, where attention rests whatever is asked."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..heads import Head
from ..patching.prepared import Prepared
from ..running.results import of_heads
from ..scores import HeadScores, score_heads

MASSIVE = 10.0
"""A span token whose residual stream is this many times as long as other tokens' is a sink (the project's own number)."""
LONGEST = ("span_residual_norm", "span_first_residual_norm")


def sinks_read(prepared: Prepared, heads: Sequence[Head], *, checkpoint: Path | None, progress: bool) -> HeadScores:
    """What tells whether the span is a sink to these heads, on prompts with the insertion and the answer."""
    options = {"checkpoint": checkpoint, "progress": progress}
    return score_heads(
        prepared.model,
        prepared.pairs,
        metrics="sinks",
        conditions=("inserted",),
        heads=heads,
        **options,  # type: ignore[arg-type]
    )


def is_sink(scores: HeadScores) -> np.ndarray:
    """Whether the span is a sink to a head, `[problem, head]`: to its attention, or in the residual stream that it reads.

    Some span token gets more than the sink threshold (0.3) of the attention of all rows that see it, on average; or the span's
    tokens, or the first of them, are at least `MASSIVE` times as long as other tokens. Source: Gu et al. 2024 (2410.10781),
    Sun et al. 2024 (2402.17762), secondary sinks (2512.22213), repeated tokens (2503.08908).
    """
    attended = of_heads(scores.of("span_sink_rate"), scores.heads) > 0
    long = [of_heads(scores.of(name), scores.heads) >= MASSIVE for name in LONGEST]
    return attended | np.any(long, axis=0)


def sink_words(scores: HeadScores | None) -> list[str]:
    """Which heads read a span that is a sink in most problems; nothing where none does."""
    if scores is None:
        return []
    counts, n = is_sink(scores).sum(0), len(scores.problem_ids)
    flagged = [
        f"{head} (in {count} of {n} problems)"
        for head, count in zip(scores.heads, counts, strict=True)
        if 2 * count > n
    ]
    if not flagged:
        return []
    return [
        f"Reading a span that is an attention sink: {', '.join(flagged)}. Attention rests on a sink whatever stands there, so "
        "that these heads read the span does not show that they use what it says."
    ]
