"""Reading problems: MATH-500's keys, one clear line for every fault of a file, variants."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mless_interp.prompts.problems import Problem, groups_of, load_problems, overlap, whole_groups

Write = Callable[..., Path]


def record(number: int = 1, **changes: object) -> dict[str, object]:
    return {"problem": f"What is {number}?", "answer": str(number), "unique_id": f"id-{number}", **changes}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """`write(record | line, ...)`: a problem file with these lines."""

    def file_of(*lines: object, name: str = "p.jsonl", encoding: str = "utf-8") -> Path:
        texts = [line if isinstance(line, str) else json.dumps(line, ensure_ascii=False) for line in lines]
        path = tmp_path / name
        path.write_bytes("\n".join(texts).encode(encoding))
        return path

    return file_of


def test_every_key_of_a_record_reaches_its_problem(write: Write) -> None:
    keys = {"solution": "S", "subject": "A", "system": "Y", "distractor": "4", "answer_prefix": "So: "}
    path = write(record(**keys, level=5, group=7, other="kept"))
    made = Problem("id-1", "What is 1?", "1", **keys, level="5", group="7", extra={"other": "kept"})
    assert load_problems(path) == (made,) and repr(load_problems(path)) == "<1 x Problem: id-1>"
    with pytest.warns(UserWarning, match=r"p.jsonl: taken for keys of your own: 'sytem' \(did you mean system\?\)$"):
        load_problems(write(record(sytem="Y", level="5", levels="A")))


def test_blank_lines_line_ends_of_windows_and_byte_order_marks_are_read(write: Write) -> None:
    path = write("\r", json.dumps(record(1)) + "\r", "   ", json.dumps(record(2)) + "\r", encoding="utf-8-sig")
    assert [problem.id for problem in load_problems(path)] == ["id-1", "id-2"]
    twice = ("", record(1), record(2), record(1, problem="another"))
    for lines, encoding, message in (
        (("", record(1), "  ", "{"), "utf-8", "line 4: expected a whole JSON object on each line"),
        (twice, "utf-8", "line 4: id 'id-1' was already used"),
        (("", " "), "utf-8", " holds no problems"),
        (('{"problem": "What is caf\u00e9?"}',), "latin-1", r"line 1: .utf-8. codec .* in position 24"),
    ):
        with pytest.raises(ValueError, match=f"p.jsonl.*{message}"):
            load_problems(write(*lines, encoding=encoding))


def test_a_missing_file_is_refused_with_the_other_choices(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text("")
    for path, message in (
        (tmp_path / "mien.jsonl", r"mien.jsonl. \(did you mean mine.jsonl\?\); give a .jsonl file"),
        (tmp_path, "no problem file at .*problems.jsonl"),
    ):
        with pytest.raises(FileNotFoundError, match=message):
            load_problems(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "expected a whole JSON object on each line .* got '{' .str.: .* at column 2"),
        ("[1]", "expected a JSON object, got list"),
        (record(answer=None), "missing answer; a problem needs the keys problem, answer, unique_id"),
        ({"question": "a"}, "missing problem, answer, unique_id; a problem needs"),
        (record(problem=" \n"), "problem 'id-1': its question is empty"),
        (record(answer=[1, 2]), "answer must be a text, got a list"),
        ('{"problem": "q", "answer": NaN, "unique_id": "a"}', r"answer must be a text, got nan \(float\)"),
    ],
)
def test_a_faulty_line_is_refused_with_its_number(write: Write, line: object, message: str) -> None:
    with pytest.raises(ValueError, match=f"^p.jsonl, line 2: {message}"):
        load_problems(write(record(9), line))


def test_math500_comes_from_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def load_dataset(name: str, *, split: str) -> list[dict[str, object]]:
        asked.append((name, split))
        return [record(1), record(2)]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    assert [problem.id for problem in load_problems("math500", limit=1)] == ["id-1"]
    assert asked == [("HuggingFaceH4/MATH-500", "test")]


def test_a_limit_reads_no_further_than_it_has_to(write: Write) -> None:
    assert len(load_problems(write(*(record(i) for i in range(3)), "\xff", encoding="latin-1"), limit=3)) == 3


def test_the_data_sets_hold_no_variants(math500_path: Path) -> None:
    assert overlap(load_problems(math500_path)) == "" == overlap(load_problems("demo"))


def problem(name: str, question: str = "What is 1 ?", **more: Any) -> Problem:
    return Problem(name, question, **{"answer": "1", **more})


STORY = (
    "Every week a {} baker in the old town sells {} loaves and {} cakes to the people"
    " of the nine villages on every single market day of the year . How many?"
)


def variant(name: str, *parts: object, **more: Any) -> Problem:
    return problem(name, STORY.format(*parts), **more)


def test_variants_without_a_group_are_told_with_the_pair_and_the_remedy() -> None:
    others = [problem(f"o{i}", " ".join(f"w{i}{j}" for j in range(30))) for i in range(3)]
    alike = [others[0], variant("a", "tall", 3, 5), others[1], variant("b", "small", 8, 2), others[2]]
    told = overlap(alike)
    assert told.startswith("the questions of problems 'a' and 'b' share 17 of 29 runs of 5 words") and "`group`" in told
    assert overlap(others) == "" == overlap([alike[1], *others])
    assert overlap([alike[3]], used=[alike[1]]) == told and overlap(alike[1:4:2], used=others) == ""
    assert overlap([replace(one, group=one.id) for one in alike]) == "", "the groups say what is a variant"
    words = [f"w{at}" for at in range(24)]
    for n_shared, n_words, said in ((14, 23, "'a' and 'b' share 10 of 19 runs of 5"), (14, 24, ""), (13, 17, "")):
        other = [*words[:n_shared], *("x" + word for word in words[n_shared:n_words])]
        both = problem("a", " ".join(words[:n_words])), problem("b", " ".join([*other, "and", "more"]))
        assert said in (told := overlap(both)) and bool(told) == bool(said)


def test_parts_of_a_list_share_no_group() -> None:
    listed = [variant(f"{group}{i}", i, 1, 1, group=group) for i in range(4) for group in "xyz"]
    names = [each.id for each in whole_groups(listed, 6, 3)]
    assert names == ["x0", "x1", "x2", "x3", "y0", "y1", "z0", "z1", "z2"], "the rest of y is left out"
    plain = [replace(each, group=None) for each in listed]
    assert whole_groups(plain, 6, 3) == tuple(plain)
    assert groups_of(plain) == () and groups_of([plain[0], *listed[:4]]) == ("x0", "x", "y", "z", "x")
