"""The bundled demo model: its problems, its tokenizer, its weights and the code that trained them."""

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import measure
import pytest
import task
import torch
import train
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from mless_interp.models.load import DEMO_DIRECTORY as DIRECTORY
from mless_interp.statistics import median_interval

SIZES = {"steps": 16, "batch": 4, "warmup": 2, "draft_steps": 8, "draft_batch": 4}
SIZES |= {"hidden": 16, "intermediate": 16, "layers": 1, "heads": 2, "key_value_heads": 1}
TINY = train.Settings(seed=3, **SIZES)
"""One pool of drills, one of stories, one with drafts."""
Loaded = tuple[PreTrainedModel, PreTrainedTokenizerFast]


@pytest.fixture(scope="module")
def demo() -> Loaded:
    return measure.load(DIRECTORY)


@pytest.fixture(scope="module")
def problems() -> list[dict[str, Any]]:
    return measure.read_problems(DIRECTORY)


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    return json.loads((DIRECTORY / "training.json").read_text(encoding="utf-8"))


def test_bundled_problems_are_those_of_the_generator(problems: list[dict[str, Any]]) -> None:
    assert problems == list(task.draw_problems(train.N_PROBLEMS))
    stories = [task.story_of(problem["problem"]) for problem in problems]
    assert all(task.is_held_out(story) for story in stories) and len(set(stories)) == len(stories) == 564


def test_its_tokenizer_holds_every_word_and_it_answers_right_where_the_chat_template_asks(
    demo: Loaded, problems: list[dict[str, Any]]
) -> None:
    model, tokenizer = demo
    for problem in problems:
        text = f"{problem['system']}{problem['problem']} {problem['solution']} {task.EOS}"
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.unk_token_id not in ids and len(ids) == len(text.split()) and tokenizer.decode(ids) == text
    right = 0
    for problem in problems[:20]:
        turns = [{"role": "system", "content": task.SYSTEM}, {"role": "user", "content": problem["problem"]}]
        ids = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_tensors="pt")["input_ids"]
        out = model.generate(ids, attention_mask=torch.ones_like(ids))
        answer = f"Answer : \\boxed{{ {problem['answer']} }} <eos>"
        right += tokenizer.decode(out[0, ids.shape[1] :]) == answer
    assert right >= 18


def test_stored_figures_are_of_the_stored_weights_which_meet_every_criterion(figures: dict[str, Any]) -> None:
    stored = (DIRECTORY / "model.safetensors").read_bytes()
    assert figures["sha256"] == hashlib.sha256(stored).hexdigest() and figures["threads"] == 1
    assert figures["settings"] == asdict(train.Settings())
    assert measure.criteria(figures) == figures["criteria"] and list(figures["criteria"]) == list(measure.CRITERIA)
    assert all(found["met"] for found in figures["criteria"].values())


def test_slashes_change_the_log_prob(demo: Loaded, problems: list[dict[str, Any]], figures: dict[str, Any]) -> None:
    chosen = problems[: measure.N_EFFECTS]
    spans = measure.fillers(len(chosen))["slashes"]
    inserted, masked, gap = (
        measure.answers(*demo, chosen, spans=spans, condition=condition).number_log_prob
        for condition in ("inserted", "masked", "gap")
    )
    torch.testing.assert_close(masked, gap, atol=1e-3, rtol=1e-3)
    content = (inserted - masked).double().numpy()
    found, stored = median_interval(content), figures["effects"]["slashes"]["content"]
    assert found.high < 0 or found.low > 0
    assert float(found.estimate) == pytest.approx(stored["median"], rel=0.02)


def test_same_seed_gives_the_same_weights_and_a_resumed_run_those_of_an_uninterrupted_one(tmp_path: Path) -> None:
    def weights(name: str, settings: train.Settings = TINY, **how: int) -> dict[str, torch.Tensor]:
        return train.train(tmp_path / name, settings, **how)[0].state_dict()

    whole = weights("whole")
    assert not same(whole, weights("other", replace(TINY, seed=4)))
    for stop_at in (11, 16, 19):  # in the first phase, between the phases, in the second
        assert not same(whole, weights(f"part-{stop_at}", stop_at=stop_at))
        assert same(whole, weights(f"part-{stop_at}")), stop_at


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)
