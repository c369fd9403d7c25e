"""The paper as data, and its claims on profiles whose truth is known."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from mless_interp import paper
from mless_interp.core.heads import Head
from mless_interp.ground_truth.stand_ins import stand_in, stand_in_problems
from mless_interp.paper import claims
from mless_interp.paper.figures import figure_named, title_of
from mless_interp.prompts.insertions import Insertion
from mless_interp.prompts.pairs import make_pairs
from mless_interp.scores import AttentionProfile, attention_profile
from mless_interp.statistics import mean_interval

LAYERS = (Head(0, 1), Head(1, 1), Head(2, 1))
N_BEFORE, N_SPAN, N_QUESTION = 8, 10, 30


def profile(
    kept: float = 0.5, in_span: float = 0.3, seed: int = 0, noise: float = 0.02, later: float = 0.0, same: bool = True
) -> AttentionProfile:
    """Six problems. Shared tokens keep `kept` of their attention (in layers 1 and 2 `later`), span tokens get `in_span`
    of uniform attention's, and spikes stand at the same tokens if `same`."""
    draw, stay = np.random.default_rng(seed), np.random.default_rng(99)
    start, n, factor = N_BEFORE, N_BEFORE + N_QUESTION, np.array([kept, later or kept, later or kept])[:, None]
    received: dict[str, tuple[np.ndarray, ...]] = {"base": (), "inserted": (), "gap": ()}
    for _ in range(6):
        spikes = stay.lognormal(size=(3, n)) / n
        other = spikes if same else draw.lognormal(size=(3, n)) / n
        after = factor * other * (1 + noise * draw.normal(size=other.shape))
        inside = in_span / (n + N_SPAN) * (1 + noise * draw.normal(size=(3, N_SPAN)))
        received["base"] += (spikes,)
        received["gap"] += (spikes * (1 + 0.01 * draw.normal(size=spikes.shape)),)
        received["inserted"] += (np.concatenate([after[:, :start], inside, after[:, start:]], 1),)
    alignment = np.array([t if t < start else t + N_SPAN for t in range(n)])
    return AttentionProfile(
        problem_ids=tuple("abcdef"),
        conditions=tuple(received),
        heads=LAYERS,
        received=received,
        uniform={name: tuple(0 * each + 1 / each.shape[1] for each in found) for name, found in received.items()},
        alignment=(alignment,) * 6,
        spans=((start, start + N_SPAN),) * 6,
        base_texts=(("x",) * n,) * 6,
        inserted_texts=(("x",) * (n + N_SPAN),) * 6,
        settings={"model": "made up", "insertion": "Mless"},
    )


def checks(made: AttentionProfile, *wanted: str, heads: Any = LAYERS[:1], **against: Any) -> paper.ClaimChecks:
    """These claims on its heads (all claims, on the first layer's), held against what is given."""
    against = {"draws": (), "meaningful": None, "repeats": (), "seed": 0} | against
    return claims._Checking(made, heads, **against).checked(paper.CLAIMS[key] for key in wanted or paper.CLAIMS)


def verdicts(made: AttentionProfile, **against: Any) -> dict[str, str]:
    return {check.claim.key: check.verdict for check in checks(made, **against).checks}


def repeats(*levels: float) -> list[AttentionProfile]:
    """Other repeated tokens that get these shares of uniform attention's."""
    return [profile(in_span=level, noise=0.0) for level in levels]


def test_a_model_that_does_what_the_figures_say_agrees() -> None:
    found = verdicts(
        profile(later=0.9),
        draws=[profile(in_span=0.9, noise=0.5, seed=seed, same=False) for seed in (1, 2)],
        meaningful=profile(seed=3),
        repeats=repeats(*np.linspace(0.4, 0.9, 20)),
    )
    assert found == dict.fromkeys(paper.CLAIMS, "agrees")


def test_a_model_that_does_the_opposite_disagrees() -> None:
    found = verdicts(
        profile(kept=1.2, in_span=2.5, noise=0.4),
        draws=[profile(in_span=0.5, noise=0.01, seed=4)],
        repeats=repeats(*np.linspace(0.4, 0.9, 20)),
    )
    elsewhere = {"timing", "first_layer_differs", "meaningful_alike"}
    assert {found[key] for key in found.keys() - elsewhere} == {"disagrees"}
    assert verdicts(profile(kept=0.6, later=0.6))["first_layer_differs"] == "disagrees"
    assert verdicts(profile(same=False))["timing"] != "agrees"
    unclear = profile(kept=0.6, later=0.6, noise=0.5)
    assert verdicts(unclear)["first_layer_differs"] == "cannot tell"


def test_a_repeated_token_is_ranked_among_other_repeated_tokens_not_held_against_uniform_attention() -> None:
    """Every repeated token gets less than uniform attention gives: the third lowest of 21 shows nothing."""
    made = profile(in_span=0.3, noise=0.0)
    check = checks(made, repeats=repeats(0.1, 0.3, *[0.5] * 18))["low_in_span"]
    assert check.verdict == "cannot tell" and check.reason == "rank 3 of 21 repeated tokens, the lowest first"
    assert check.null == pytest.approx((0.4 + 18 * 0.5) / 20)
    check = checks(made, repeats=repeats(*[0.5] * 19))["low_in_span"]
    assert check.verdict == "cannot tell" and check.reason == "19 other repeated tokens, 20 needed"
    nothing = {**made.received, "inserted": tuple(0 * each + np.nan for each in made.received["inserted"])}
    check = checks(replace(made, received=nothing), "low_in_span", repeats=repeats(0.5))["low_in_span"]
    assert check.verdict == "cannot tell" and check.reason == "undefined"


def test_a_claim_that_untrained_twins_share_holds_without_training() -> None:

    def of(**made: Any) -> paper.ClaimChecks:
        return checks(profile(**made), "attenuation", "low_in_span", "timing", repeats=repeats(*[0.5] * 20))

    twins = (of(in_span=0.7), of(kept=0.7, same=False, in_span=0.9), of(same=False))
    found = replace(of(), twins=twins)
    table = found.table().set_index("key")
    assert table["verdict"].tolist() == ["agrees"] * 3
    assert table["untrained_verdict"].tolist() == ["3 of 3 agree: holds without training", *["1 of 3 agree"] * 2]
    assert table.loc["low_in_span", "untrained"] == pytest.approx((0.7 + 0.9 + 0.3) / 3, abs=0.01)
    kept = replace(found, twins=twins[1:]).without_training
    assert [check.claim.key for check in kept] == ["attenuation"], "one of two twins is not most"


def test_every_number_of_a_check_is_that_of_a_loop() -> None:
    """A mean over two heads, then over groups."""
    heads, groups = LAYERS[:2], ("a", "a", "b", "c", "d", "e")
    made = replace(profile(noise=0.3, later=0.9), groups=groups)
    draws = [profile(noise=0.4, seed=seed, in_span=0.9, same=False) for seed in (1, 2)]
    useful, others = (
        profile(noise=0.5, seed=3),
        [profile(in_span=level, noise=0.1) for level in np.linspace(0.2, 1, 20)],
    )
    received = made.received
    within, without = np.arange(N_BEFORE, N_BEFORE + N_SPAN), slice(N_BEFORE + N_SPAN, None)

    def shared(of: AttentionProfile, p: int) -> np.ndarray:
        return np.delete(of.received["inserted"][p], within, axis=1)

    def kept(found: np.ndarray, p: int, *rows: int) -> float:
        return np.mean([found[row].sum() / made.received["base"][p][row].sum() for row in rows])

    def level(of: AttentionProfile, p: int, where: Any = within) -> float:
        return np.mean(of.received["inserted"][p][:2, where]) * (N_BEFORE + N_SPAN + N_QUESTION)

    def uneven(of: AttentionProfile, p: int) -> float:
        return np.mean([row.std() / row.mean() for row in of.received["inserted"][p][:2, within]])

    def alike(of: AttentionProfile, p: int) -> float:
        return np.mean([stats.spearmanr(shared(of, p)[row], shared(made, p)[row]).statistic for row in (0, 1)])

    loops = {
        "attenuation": lambda p: (kept(shared(made, p), p, 0, 1), 1.0),
        "attenuation_beyond_position": lambda p: (kept(shared(made, p), p, 0, 1), kept(received["gap"][p], p, 0, 1)),
        "attenuation_beyond_dilution": lambda p: (kept(shared(made, p), p, 0, 1), 38 / 48),
        "low_in_span": lambda p: (level(made, p), np.mean([level(other, p) for other in others])),
        "low_in_span_beyond_random": lambda p: (level(made, p), np.mean([level(draw, p) for draw in draws])),
        "recovery": lambda p: (level(made, p, without) - level(made, p), 0.0),
        "more_uniform": lambda p: (uneven(made, p), np.mean([uneven(draw, p) for draw in draws])),
        "first_layer_differs": lambda p: (kept(shared(made, p), p, 0), kept(shared(made, p), p, 1, 2)),
        "meaningful_alike": lambda p: (alike(useful, p), np.mean([alike(draw, p) for draw in draws])),
    }
    found = checks(made, *loops, heads=heads, draws=draws, meaningful=useful, repeats=others)
    for key, numbers in loops.items():
        both = np.array([numbers(p) for p in range(6)])
        both = np.concatenate([both[:2].mean(0, keepdims=True), both[2:]])
        own, null, above = (mean_interval(each) for each in (*both.T, both[:, 0] - both[:, 1]))
        expected = [own.estimate, own.low, own.high, 5, null.estimate, above.estimate, above.low, above.high]
        np.testing.assert_allclose(list(vars(found[key]).values())[1:9], np.array(expected, float), err_msg=key)
    assert found["low_in_span"].reason.startswith("rank 4 of 21")


def test_timing_is_held_against_every_rotation_of_prefix_and_question() -> None:
    made = profile(noise=0.3)
    check = checks(made, "timing")["timing"]
    measured, null = [], []
    for base, other in zip(made.aligned("base"), made.aligned("inserted"), strict=True):
        parts = other[0, :N_BEFORE], other[0, N_BEFORE:]
        rolled = [np.concatenate([np.roll(parts[0], i), np.roll(parts[1], j)]) for i in range(8) for j in range(30)]
        measured.append(stats.spearmanr(base[0], other[0]).statistic)
        null += [stats.spearmanr(base[0], each).statistic for each in rolled]
    assert check.measured == pytest.approx(np.mean(measured)) and check.null == pytest.approx(np.mean(null), abs=0.03)
    assert check.null == pytest.approx(0.0631356457672247), "a seed gives the rotations that it gave"
    assert check == checks(made, "timing")["timing"] and check.null != checks(made, "timing", seed=1)["timing"].null
    ends = [claims._Checking(made, LAYERS, (), None, (), seed).mean(np.arange(20.0) ** 2)[1:3] for seed in (0, 1)]
    expected = [mean_interval(np.arange(20.0) ** 2, seed=seed) for seed in (0, 1)]
    assert ends == [(each.low, each.high) for each in expected] and ends[0] != ends[1]
    gapless = checks(replace(made, conditions=("base", "inserted")))["attenuation_beyond_position"]
    assert gapless.reason == paper.CLAIMS["attenuation_beyond_position"].missing
    missing = checks(made)["more_uniform"]
    assert (missing.verdict, missing.reason) == ("cannot tell", "no profile with random words")
    later = checks(made, "first_layer_differs", heads=[Head(1, 1)])
    assert "lacks these heads in layers 0, 1 and 2 (zero-based)" in later["first_layer_differs"].reason


def test_a_claim_and_its_null_are_of_the_same_problems() -> None:
    made, random = profile(noise=0.3), profile(in_span=0.9, noise=0.5, seed=1)
    received = [found.copy() for found in random.received["inserted"]]
    received[0][:, N_BEFORE : N_BEFORE + N_SPAN] = np.nan  # nothing is defined inside this problem's span
    holed = replace(random, received={**random.received, "inserted": tuple(received)})
    check = checks(made, draws=[holed])["low_in_span_beyond_random"]
    own, null = (found.level("inserted", "inserted", relative=True)[1:, 0].mean() for found in (made, random))
    assert check.n == 5 and check.measured == pytest.approx(own) and check.null == pytest.approx(null)


def test_models_and_figures_are_found_by_the_names_that_people_write() -> None:
    names = ("qwen/qwen2.5-math-7b", "GEMMA-3-4B-IT", "Llama3.1-8B-Instruct", "/a/Model", "results/Model")
    titles = ["Qwen2.5-Math-7B", "Gemma3-4b-it", "Llama3.1-8B-Instruct", "Model", "results/Model"]
    assert [title_of(name) for name in names] == titles
    assert figure_named(" Figure 13 ") == figure_named("13") == figure_named("fig. 13") == paper.FIGURES["000"]
    with pytest.raises(ValueError, match=r"unknown figure '99'; choose one of the paper's 13 \(000\), "):
        figure_named("99")


def test_figures_show_the_heads_of_the_methods_zero_based() -> None:
    assert paper.FIGURES["000"].heads("qwen2.5-math-7b") == (Head(0, 0), Head(0, 1), Head(0, 7))
    assert paper.FIGURES["002"].heads("qwen2.5-math-7b") == (Head(0, 21), Head(1, 21), Head(2, 21))
    for figure in paper.FIGURES.values():
        for model, head in figure.panels:
            assert head.layer < paper.MODELS[model].n_layers and head.head < paper.MODELS[model].n_heads
    assert {claim for c in paper.CLAIMS.values() for claim in c.figures} == set(paper.FIGURES)


def test_published_numbers_keep_their_source() -> None:
    table = paper.published().query(
        "benchmark == 'MATH-500' and model == 'llama-3.1-8b-instruct' and treatment == 'none'"
    )
    printed = dict(zip(table["source"], table["percent"], strict=True))
    assert paper.published()["approximate"].sum() == 9
    assert printed["Table 1"] == 41.8 and printed["Table 5"] == 35.4 and printed["Table 3a"] == 43.0


@pytest.mark.parametrize("key", list(paper.MODELS))
def test_a_stand_in_has_the_heads_of_its_model_and_reads_its_problems(key: str) -> None:
    real = paper.MODELS[key]
    heads: dict[str, Any] = {"n_heads": real.n_heads, "n_key_value_heads": real.n_key_value_heads}
    model = stand_in(real.architecture, name=real.title, **heads)
    assert (model.info.n_heads, model.info.n_key_value_heads) == (real.n_heads, real.n_key_value_heads)
    assert "random weights" in model.info.name
    questions = stand_in_problems(2)
    pairs = make_pairs(model, questions, Insertion.meaningless())
    assert model.tokenizer.unk_token_id not in pairs[0].inserted.ids
    made = attention_profile(model, pairs, heads=[Head(0, real.n_heads - 1)], progress=False)
    assert bool(np.isnan(made.received["base"][0][0, 0])) == (real.architecture != "qwen2")
