"""Whether the span that a head reads is an attention sink, where attention rests whatever is asked."""

from collections.abc import Sequence
from pathlib import Path

from ..given import count_of
from ..heads import Head
from ..patching.prepared import Prepared
from ..scores import HeadScores, score_heads
from ..scores.scored import is_sink


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


def sink_words(scores: HeadScores | None) -> list[str]:
    """Which heads read a span that is a sink in most problems; nothing where none does."""
    if scores is None:
        return []
    counts, n = is_sink(scores).sum(0), len(scores.problem_ids)
    flagged = [
        f"{head} (in {count} of {count_of(n, 'problem')})"
        for head, count in zip(scores.heads, counts, strict=True)
        if 2 * count > n
    ]
    if not flagged:
        return []
    return [
        f"Reading a span that is an attention sink: {', '.join(flagged)}. Attention rests on a sink whatever stands there, so "
        "that these heads read the span does not show that they use what it says."
    ]
