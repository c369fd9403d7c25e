"""Problems from plain text: the parts are the text, cut between words, with the ids of the text in one piece."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import qwen2_tokenizer, word_tokenizer

import mless_interp as mi
from mless_interp.prompts.insertions import Insertion
from mless_interp.prompts.pairs import make_pairs
from mless_interp.prompts.prompt import build_prompt, encode
from mless_interp.prompts.texts import problems_of

TEXT = "What is the sum of two numbers ? Find the total of all apples and pears in each garden . Let the river share the stone"


@pytest.mark.parametrize("make", [qwen2_tokenizer, word_tokenizer])
def test_parts_join_to_the_text_and_to_its_ids(make: object) -> None:
    tokenizer = make()  # type: ignore[operator]
    (made,) = mi.problems_from_texts(tokenizer, [TEXT], n_context=12, n_before=4, n_answer=2)
    parts = (made.system, made.question, made.answer)
    assert " ".join("".join(f" {part}" for part in parts).split()) == " ".join(
        TEXT.split()[: len(" ".join(parts).split())]
    )
    whole = " ".join(TEXT.split()[: len(" ".join(parts).split())])
    prompt = build_prompt(tokenizer, made, "text")
    bos = (tokenizer.bos_token_id,) if tokenizer.bos_token_id is not None else ()
    assert (*prompt.ids, *encode(tokenizer, made.answer)) == (*bos, *encode(tokenizer, whole))
    assert prompt.segments.count("system") >= 4 and len(prompt.ids) - len(bos) >= 12
    (pair,) = make_pairs(tokenizer, [made], Insertion.meaningless(" /", 5), template="text")
    assert pair.span[0] == len(bos) + len(encode(tokenizer, made.system)), "the insertion stands between the parts"


def test_short_texts_are_counted_and_nothing_but_short_ones_refused() -> None:
    tokenizer = qwen2_tokenizer()
    with pytest.warns(UserWarning, match="1 of 2 texts are too short and left out"):
        (made,) = mi.problems_from_texts(tokenizer, ["What is", TEXT], n_context=8, n_before=2)
    assert made.id == "text-1"
    with pytest.raises(ValueError, match="none of the 1 texts has 65 tokens that can be cut between words"):
        mi.problems_from_texts(tokenizer, ["What is"])


def test_a_file_s_texts_are_parted_by_blank_lines_and_keep_their_names(tmp_path: Path) -> None:
    tokenizer = qwen2_tokenizer()
    wrapped = TEXT.replace(" Let", "\nLet")
    file = tmp_path / "texts.txt"
    file.write_text(f"\n{wrapped}\n  \n\n{TEXT}\n\t\n{TEXT} and more\n", encoding="utf-8-sig")
    sizes = {"n_context": 8, "n_before": 2}
    found = mi.problems_from_file(tokenizer, file, **sizes)
    assert found == mi.problems_from_texts(tokenizer, [wrapped, TEXT, f"{TEXT} and more"], **sizes)
    assert [made.id for made in found] == ["text-0", "text-1", "text-2"]
    assert mi.problems_from_file(tokenizer, file, limit=2, **sizes) == found[:2]
    long = mi.problems_from_file(tokenizer, file, limit=1, n_context=24, n_before=4)[0]
    assert "\n" in f"{long.system}{long.question}", "a text may have several lines"


def test_short_and_missing_texts_of_a_file_are_refused_with_the_line(tmp_path: Path) -> None:
    tokenizer, file, sizes = word_tokenizer(), tmp_path / "texts.txt", {"n_context": 8, "n_before": 2}
    short = f"{TEXT}\n\n\nWhat is\n\n{TEXT}\n".encode()
    for content, message in (
        (short, r"texts.txt, the text that begins in line 4, is 2 tokens long, too short .* 2, 8 and 9"),
        (b" \n\n\t\n", "texts.txt holds no texts"),
        (b"What \xff", "texts.txt: not UTF-8 text .* at byte 5"),
    ):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            mi.problems_from_file(tokenizer, file, **sizes)
    file.write_bytes(short)
    assert len(mi.problems_from_file(tokenizer, file, limit=1, **sizes)) == 1
    with pytest.raises(FileNotFoundError, match="no file of texts at"):
        mi.problems_from_file(tokenizer, tmp_path / "none.txt")
    with pytest.raises(ValueError, match="n_before must lie in 1 to n_context - 1"):
        mi.problems_from_file(tokenizer, file, n_context=8, n_before=8)


STORY = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she saw a big red "
    "ball in the tree and wanted to get it. Her mom said she should be careful and not climb too high. Lily was sad, but "
    "then her friend Tom came and helped her. They were happy and played together with the ball all day long."
)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "unit"), [("stories260K", "/"), ("tinystories3M-gpt2", "/")])
def test_a_trained_model_goes_on_with_plain_texts(name: str, unit: str, shared_dir: Path, tmp_path: Path) -> None:
    folder = shared_dir / "models" / name
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent")
    file = tmp_path / "stories.txt"
    file.write_text(f"{STORY}\n\n{STORY.replace('Lily', 'Anna').replace('park', 'garden')}\n")
    sizes = {"n_context": 40, "n_before": 10, "n_answer": 2}
    found = problems_of(str(folder), str(file), limit=8, **sizes)
    assert [made.id for made in found] == ["text-0", "text-1"] and found[0].system is not None
    model = mi.load_model(folder, backend="bridge")
    found = tuple(replace(made, group=made.id) for made in found)  # variants of one story
    pairs = make_pairs(model, found, Insertion.meaningless(unit, 20), template="text")
    likely = mi.patch_heads(model, pairs, heads=["L0H0"], progress=False)
    assert np.isfinite(likely.donor).all()
