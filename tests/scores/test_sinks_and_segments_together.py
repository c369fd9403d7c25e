"""What merging once lost: every metric that was asked for comes, and shares of a segment's rows sum to 1 over problems."""

import numpy as np

import mless_interp as mi
from mless_interp.scores import METRICS


def test_every_metric_that_is_asked_for_comes() -> None:
    model = mi.load_model("demo")
    pairs = mi.make_pairs(model, mi.load_problems("demo", limit=2), mi.Insertion.meaningless(" /", 5))
    found = mi.score_heads(model, pairs, metrics="sinks", conditions=("inserted",), progress=False)
    assert {"span_residual_norm", "span_first_sink_cosine", "span_value_norm"} <= set(METRICS)
    assert np.isfinite(found.of("span_residual_norm")).all() and np.isfinite(found.of("span_first_sink_cosine")).all()


def test_what_a_segment_reads_sums_to_one_also_where_some_prompts_lack_a_segment() -> None:
    model, problems = mi.load_model("demo"), mi.load_problems("demo", limit=14)
    mixed = [*mi.with_examples(problems[:2], problems[10:14], n=2), *problems[3:5]]
    pairs = mi.make_pairs(model, mixed, mi.Insertion.meaningless(" /", 5))
    table = mi.attention_between_segments(model, pairs, progress=False).over_heads().set_index("reads")
    assert np.allclose(table.loc["question"].astype(float).sum(), 1, atol=1e-5)
