"""Models as others trained them: tiny ones, ones that give classes, without tokenizer, prompts that fill the context."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import needs_hooked_transformer, word_tokenizer
from models_under_test import hooked

import mless_interp as mi
from mless_interp.models.base import Model
from mless_interp.models.info import ModelError
from mless_interp.models.sites import gate_edits
from mless_interp.prompts.insertions import Insertion
from mless_interp.prompts.pairs import PromptPair, make_pairs

LEAST = {"n_layers": 1, "n_heads": 1, "d_head": 8, "n_ctx": 16, "d_vocab": 12}
QUIET = {"progress": False}


def toy(**shape: Any) -> Model:
    return hooked(**{"n_ctx": 16, "d_vocab": 12, "normalization_type": "LN", **shape})


def toy_pair(before: int, inserted: int, after: int, answer: tuple[int, ...] = (1,)) -> PromptPair:
    ids = [*(1 + at % 5 for at in range(before)), *[7] * inserted, *(2 + at % 7 for at in range(after))]
    return mi.pairs_from_ids([ids], [answer], span=(before, before + inserted), distractors=[0])[0]


MLP = {"attn_only": False, "d_mlp": 8}
ROTARY = {"positional_embedding_type": "rotary", "rotary_dim": 4}
LOCAL = {"use_local_attn": True, "window_size": 2, "attn_types": ["local", "global"]}
PLAIN: tuple[dict[str, Any], ...] = (
    LEAST, {**LEAST, "n_ctx": 3}, {**LEAST, "d_vocab_out": 2}, {"d_vocab_out": 20, "n_key_value_heads": 1}, LOCAL,
    {"positional_embedding_type": "shortformer"}, {"attn_scores_soft_cap": 5.0, "output_logits_soft_cap": 3.0},
    {**MLP, "act_fn": "solu_ln"}, {**MLP, "num_experts": 2, "experts_per_token": 1},
)  # fmt: skip
SHAPES = [
    *((shape, None) for shape in PLAIN),
    (MLP, False),
    ({**MLP, **ROTARY, "gated_mlp": True, "act_fn": "silu"}, True),
]
"""Builds of HookedTransformer, and whether their MLP has a gate, if it is a known one."""


@needs_hooked_transformer
@pytest.mark.parametrize(("shape", "gated"), SHAPES)
def test_the_smallest_models_pass_the_self_check(shape: dict[str, Any], gated: bool | None) -> None:
    model, tokens = hooked(**shape), torch.arange(3)[None]
    assert model.checks.by_layers and model.checks.shows_rotated and model.checks.output_error < 1e-5
    assert np.isfinite(model.resolution) and model.info.n_classes == shape.get("d_vocab_out")
    assert (2 in model.info.windows) == ("window_size" in shape) and (model.info.d_mlp is None) == (
        "num_experts" in shape
    )
    logits = model.run(tokens).logits
    assert torch.equal(logits, model.underlying(tokens).detach()), "bit for bit"
    if gated is None:
        with pytest.raises(ModelError, match="has no activation"):
            model.gated_mlp(0)
    else:
        same = model.run(tokens, edits=gate_edits(0, model.gated_mlp(0), lambda active: active.clone())).logits
        assert model.gated_mlp(0).gated == gated and torch.equal(same, logits)
    with pytest.raises(ModelError, match="with 'alibi' positions has no position ids"):
        hooked(**shape | {"positional_embedding_type": "alibi"})


@needs_hooked_transformer
def test_an_answer_of_a_model_that_gives_classes_is_a_class() -> None:
    model, pairs = toy(d_vocab=144, d_vocab_out=2, n_ctx=18), [toy_pair(3, 4, 9), toy_pair(2, 4, 10)]
    found = mi.patch_heads(model, pairs, **QUIET)
    for at, pair in enumerate(pairs):
        logits = model.underlying(pair.inserted.tokens)[0, -1].detach()
        assert found.receiving[at] == pytest.approx(float(logits.log_softmax(-1)[1]), abs=1e-5)
    difference = mi.patch_heads(model, pairs, outcome="logit_diff", **QUIET)
    assert difference.receiving[-1] == pytest.approx(float(logits[1] - logits[0]), abs=1e-5)
    for outcome in ("kl", "kl_last", "answer_prob"):
        assert np.isfinite(mi.patch_heads(model, pairs, outcome=outcome, **QUIET).patched).all()
    written = mi.what_it_writes(model, pairs, top=1, **QUIET)
    assert {token for head in written.tokens for kind in head[:2] for token in kind} == {"0", "1"}
    with pytest.raises(ModelError, match="gives 2 classes, not tokens, so it completes no text"):
        mi.evaluate_accuracy(mi.wrap_model(model.underlying, tokenizer=word_tokenizer()), [pairs[0].problem], **QUIET)
    for answer in ((2,), (1, 0)):
        with pytest.raises(ValueError, match=r"its answer is \[.*gives one of 2 classes: give a single id from 0 to 1"):
            mi.patch_heads(model, [replace(pairs[0], answer_ids=answer)], **QUIET)


@needs_hooked_transformer
@pytest.mark.parametrize("outcome", ["answer_logprob", "logit_diff", "kl_last"])
def test_a_prompt_that_fills_the_context_is_one_in_a_longer_context(outcome: str) -> None:
    """Nothing is read behind the last token of the answer, so it need not be fed."""
    long, short = (toy(n_ctx=n) for n in (18, 16))
    weights = {name: value for name, value in long.underlying.state_dict().items() if "mask" not in name}
    weights["pos_embed.W_pos"] = weights["pos_embed.W_pos"][:16]
    short.underlying.load_state_dict(weights, strict=False)
    for pair in (toy_pair(3, 4, 9), toy_pair(3, 4, 8, answer=(1, 5))):
        tight, roomy = (mi.patch_heads(model, [pair], outcome=outcome, **QUIET) for model in (short, long))
        np.testing.assert_allclose(tight.patched, roomy.patched, atol=1e-5)
    with pytest.raises(ValueError, match="needs 17 positions"):
        mi.patch_heads(short, [toy_pair(3, 4, 8, answer=(1, 5, 6))], **QUIET)


@needs_hooked_transformer
def test_without_a_tokenizer_everything_runs_that_needs_none() -> None:
    model, pairs = toy(), [toy_pair(3, 4, 7), toy_pair(4, 4, 7)]
    profile = mi.attention_profile(model, pairs, **QUIET)
    assert profile.inserted_texts[0] == tuple(str(token) for token in pairs[0].inserted.ids)
    written = mi.what_it_writes(model, pairs, ["L0H1"], top=2, **QUIET)
    assert set(written.tokens[0][0]) <= {str(token) for token in range(12)}
    with pytest.warns(UserWarning, match="2 problems are too few"):
        mi.locate_heads(model, pairs, controls=False, **QUIET)
    with pytest.raises(TypeError, match=r"without a tokenizer: give it one, wrap_model\(\.\.\., tokenizer=\.\.\.\)"):
        make_pairs(model, [pairs[0].problem], Insertion.meaningless(" /", 4))
