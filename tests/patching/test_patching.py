"""What a sweep claims of heads, by hand; its noise, its batches, and requests that are refused."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from models_under_test import loaded, pairs_for, problems
from small_results import patched

from mless_interp.core.heads import Head
from mless_interp.patching.prepared import prepare
from mless_interp.patching.sweep import PatchScores, patch_heads
from mless_interp.prompts.insertions import Insertion
from mless_interp.prompts.pairs import make_pairs


def scores(patched: list[float], receiving: list[float], donor: list[float], direction: str) -> PatchScores:
    return PatchScores(
        problem_ids=tuple(f"p{i}" for i in range(len(patched))),
        patched=np.array(patched)[:, None, None],
        receiving=np.array(receiving),
        donor=np.array(donor),
        heads=(Head(0, 0),),
        unit="nats",
        direction=direction,
    )


def test_fractions_are_ratios_of_means_in_both_directions() -> None:
    columns = ["effect", "effect_fraction", "recovered"]
    # effects 1 and 3, totals 4 and 4: 4 / 8, not the mean of ratios of anything else
    denoising = scores([1, 3] * 4, [0] * 8, [4] * 8, "denoising").table()[columns]
    assert denoising.iloc[0].tolist() == [-2, 0.5, 0.5]
    # noising: receiving is the clean run; recovered = (patched - corrupted) / (clean - corrupted) = 1 - fraction
    noising = scores([3, 0] * 4, [4] * 8, [0] * 8, "noising").table()[columns]
    assert noising.iloc[0].tolist() == [-2.5, 0.625, 0.375]
    unequal = scores([1] * 8, [0] * 8, [1, 3] * 4, "denoising").table().iloc[0]
    assert unequal["effect_fraction"] == 0.5  # 8 / 16, while the mean of ratios would be 2/3


@pytest.mark.parametrize("total", [[1, -1] * 16, [0.1] * 28 + [-0.7] * 4], ids=["around 0", "against its median"])
def test_there_is_no_share_of_a_mean_that_is_not_told_from_0(total: list[float]) -> None:
    row = scores([0.1] * 32, [0.0] * 32, total, "denoising").table().iloc[0]
    assert np.isnan(row["effect_fraction"]) and np.isnan(row["recovered"]) and row["effect"] == pytest.approx(-0.1)


def test_without_an_effect_or_with_too_few_problems_no_head_is_tested() -> None:
    found = patched(12, donor=np.array([1.0, -1.0] * 6))
    assert found.table()["p_corrected"].isna().all() and found.table()["share"].isna().all()
    assert "so no head is tested" in found.headline() and len(found.details()) == 1
    assert patched(9).table()["p_corrected"].min() < 0.04
    found, strict = (replace(patched(12), confidence=share).whole.detectable(12) for share in (0.95, 0.999))
    assert 0.5 < found < 1 and np.isnan(strict), "with so few problems nothing could be found at that level"
    unknown = patched(6)  # the total effect is established, and its median has no upper limit at 99 %
    assert unknown.established and np.isnan(unknown.whole.delta) and unknown.table()["k"].isna().all()
    assert re.search(r"^6 problems are too few to show any of \d+ heads, at least \d+ are needed$", unknown.claim())
    nothing = replace(patched(12), patched=np.full((12, 2, 3), np.nan))
    assert nothing.claim().startswith("none of 0 heads is shown")


def test_the_smallest_effect_and_the_level_are_the_caller_s() -> None:
    made = patched(12)
    assert replace(made, smallest_effect=0.55).table()["k"].max() == 3, "0.4 to 0.6 of 1: three exceed 0.55"
    assert replace(made, smallest_effect=0.0).whole.delta == 0, "any effect is of interest"
    wide = patched(12, donor=np.repeat([1.0, 2.0], 6))  # of medians, 1 to 2: 10 % of 2
    assert wide.whole.delta == pytest.approx(0.1)


def test_what_rounding_alone_may_do_is_no_effect() -> None:
    """The head does 0.4 to 0.6 everywhere, of a total of 2: 20 to 30 %."""
    made = patched(12, donor=np.full(12, 2.0))
    assert made.whole.delta == pytest.approx(0.1) and made.table()["k"].max() == 12
    coarse = replace(made, resolution=0.55)
    assert coarse.established and coarse.whole.delta == 0.55
    assert coarse.table()["k"].max() == 3
    noise = np.zeros((12, 2))
    noise[:, 0] = 0.55
    assert replace(made, noise=noise).whole.delta == pytest.approx(0.55), "a sweep's own noise counts as well"
    blurred = replace(made, resolution=2.5)
    assert not blurred.established and blurred.table()["p_corrected"].isna().all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_sweep_measures_its_own_noise(dtype: str, backend: str, model: Any) -> None:
    asked = [Head(1, 2), Head(2, 0), Head(2, 7)]
    found = patch_heads(model, pairs_for(model), heads=asked, progress=False)
    assert found.noise.shape == (3, 3) and np.isfinite(found.noise).all(), "layer 0 too: the whole run's rounding"
    floor = found.noise_floor
    assert floor == np.abs(found.noise).max(1).mean()
    assert 0 < floor < 1e-5 if dtype == "float32" else 1e-4 < floor < 0.1
    table = found.table()
    assert (table["rank"].isna() == (table["effect"].abs() <= floor)).all() and (table["noise"] == floor).all()


def test_heads_within_the_noise_have_no_rank() -> None:
    heads = tuple(Head(layer, head) for layer in range(2) for head in range(2))
    effects = np.array([[[4.0, 0.5], [-0.9, 2.0]], [[2.0, 0.5], [-1.1, 2.0]]])
    noise = np.array([[0.5, -1.2], [-0.8, 0.1]])  # the largest of each problem: 1.2 and 0.8
    made = PatchScores(("a", "b"), effects, np.zeros(2), np.array([5.0, 6.0]), heads, "nats", noise=noise)
    assert made.noise_floor == pytest.approx(1.0)
    assert made.rank[[0, 3]].tolist() == [1.0, 2.0] and np.isnan(made.rank[[1, 2]]).all()
    before = replace(made, noise=None)
    assert np.isnan(before.noise_floor) and before.rank.tolist() == [1.0, 4.0, 3.0, 2.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"smallest_effect": 1.0}, "smallest_effect is a share of the upper limit of the median total effect, from 0"),
        ({"positions": "first"}, "unknown positions 'first'"),
        ({"contrast": "total", "positions": "all"}, "contrast 'total' joins two lengths"),
        ({"heads": [Head(0, 1), Head(0, 1)]}, "L0H1 is given twice"),
        ({"edit": "q", "contrast": "total"}, "joins two lengths, so q, k or v cannot be patched"),
        ({"edit": "knockout", "contrast": "shift"}, "edit 'knockout' changes which tokens a head sees.*got 'shift'"),
        ({"edit": "edge_noise"}, "'edge_noise' changes nothing .*: use direction='noising'"),
        ({"pairs": "twice"}, "the problem id .* is given twice"),
        ({"pairs": {"answer": ""}}, "its answer encodes to no tokens"),
        (
            {"pairs": {"answer": "", "answer_prefix": ""}},
            "1 of 1 pairs have no tokens after the insertion, nor an answer",
        ),
        ({"pairs": "prepared"}, "were prepared for outcome 'kl' on .*, not for 'answer_logprob'"),
    ],
)
def test_wrong_requests_are_named(options: dict[str, Any], message: str, model: Any) -> None:
    pairs = pairs_for(model, count=1)
    match given := options.get("pairs", pairs):
        case "twice":
            given = [*pairs, *pairs]
        case "prepared":
            given = prepare(model, pairs, "kl")
        case dict():
            place = {"after": "question"} if "answer_prefix" in given else {}
            given = make_pairs(model, [replace(problems()[0], **given)], Insertion.meaningless(" /", 4, **place))
    with pytest.raises(Exception, match=message):
        patch_heads(model, **{"progress": False, **options, "pairs": given})


def test_a_span_hidden_from_itself_has_to_fit_into_the_window(tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir("gemma3"), "bridge")
    ask = {"contrast": "inside", "heads": ["L0H0"], "progress": False}
    with pytest.raises(
        ValueError, match="the last of 16 inserted tokens of problem 'p0' would see nothing.*insert fewer"
    ):
        patch_heads(model, pairs_for(model, n_tokens=16, count=1), **ask)
    assert np.isfinite(patch_heads(model, pairs_for(model, n_tokens=15, count=1), **ask).patched[0, 0, 0])
