"""The counts of mutation testing: what is drawn, how a change is told, and how the page is written."""

from pathlib import Path

import mutants
import pytest
from mutants import Mutant


def test_what_says_little_is_not_drawn() -> None:
    for was, now, little in (
        ("f(a, b)", "f(None, b)", True),
        ("f(a, None)", "f(None)", False),
        ('ValueError("too many words")', 'ValueError("XXtoo many wordsXX")', True),
        ('name="span"', 'name="XXspanXX"', False),
        ('f("all of it", a < b)', 'f("all of it", a <= b)', False),
    ):
        assert Mutant("mless_interp.a.x_f__mutmut_1", was, now).says_little is little


def test_what_lives_counts_against_the_tests_unless_it_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutants, "REASONS", tmp_path / "reasons.toml")
    entry = '[[mutant]]\nfunction = "a.{}"\nwas = "1 | 2"\nnow = "3"\nwhy = "because"\nsame = {}\n'
    (tmp_path / "reasons.toml").write_text(entry.format("f", "true") + entry.format("g", "false"))
    living = [Mutant(f"mless_interp.a.x_{name}__mutmut_1", "1 | 2", "3") for name in "fgh"]
    counts, lines, unexplained = mutants.rows("metrics", 500, 12, living)
    assert counts == "| metrics | 500 | 12 | 9 | 1 | 2 | 81.8% |" and unexplained == living[2:]
    assert lines[0] == "| metrics | `a.f` | `` 1 \\| 2 `` | `` 3 `` | because |"
    assert [line.split(" | ")[-1] for line in lines] == ["because |", "because |", "**none yet** |"]
