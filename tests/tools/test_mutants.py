"""The counts of mutation testing: what is drawn, how a change is told, and how the page is written."""

from pathlib import Path

import mutants
import pytest
from conftest import ROOT
from mutants import Mutant, Room

PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")


def test_mutants_are_named_as_people_write_them() -> None:
    assert Mutant("mless_interp.metrics.recovery.x__ranks__mutmut_12", "a", "b").function == "metrics.recovery._ranks"
    assert Mutant("mless_interp.a.b.xǁGateǁ__call____mutmut_3", "a", "b").function == "a.b.Gate.__call__"


@pytest.mark.parametrize(
    ("was", "now", "little"),
    [
        ("f(a, b)", "f(None, b)", True),
        ("f(a, None)", "f(None)", False),
        ('ValueError("too many words")', 'ValueError("XXtoo many wordsXX")', True),
        ("f('use a longer one')", "f('Use a longer one')", True),
        ('name="span"', 'name="XXspanXX"', False),
        ("a < b", "a <= b", False),
        ('f("all of it", a < b)', 'f("all of it", a <= b)', False),
    ],
)
def test_what_says_little_is_not_drawn(was: str, now: str, little: bool) -> None:
    assert Mutant("mless_interp.a.x_f__mutmut_1", was, now).says_little is little


def test_a_room_s_rows_are_written_anew_and_the_others_kept() -> None:
    page = mutants.with_rows(PAGE, "statistics", "| statistics | 1 |")
    page = mutants.with_rows(page, "metrics", "| metrics | 2 |")
    page = mutants.with_rows(page, "elsewhere/there.py", "| elsewhere/there.py | 3 |")
    page = mutants.with_rows(page, "statistics", "| statistics | 4 |")
    table = page.split("<!-- mutants counts -->\n")[1].split("<!-- end -->")[0].splitlines()
    rooms = [line.split(" | ")[0].removeprefix("| ") for line in table[2:]]
    assert "| statistics | 4 |" in table and "| statistics | 1 |" not in table
    assert rooms.index("metrics") < rooms.index("statistics") and rooms[-1] == "elsewhere/there.py"
    with pytest.raises(SystemExit, match="has no table"):
        mutants.with_rows("# Nothing\n", "metrics", "")


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


def test_rooms_are_of_files_and_tests_that_exist() -> None:
    for room in mutants.ROOMS.values():
        for path, _, name in (each.partition("::") for each in (*room.changed, *room.tests)):
            assert all(f"def {name}" in file.read_text(encoding="utf-8") for file in ROOT.glob(path) if name)
            assert list(ROOT.glob(path)), path
    assert dict(mutants.chosen([], [])) == mutants.ROOMS
    path = "mless_interp/runtime/store.py"
    assert list(mutants.chosen([path], ["tests/runtime"])) == [(path, Room((path,), ("tests/runtime",)))]
    assert dict(mutants.chosen(["mless_interp/runtime/"], ["t"]))["mless_interp/runtime/"].changed == (
        "mless_interp/runtime/*.py",
    )
    for wrong, tests in (([path], []), (["nowhere"], ["tests"])):
        with pytest.raises(SystemExit, match="is no room .*metrics, statistics"):
            list(mutants.chosen(wrong, tests))


def test_every_mutant_that_may_live_has_a_reason() -> None:
    assert all(len(made.why.split()) > 2 for made in mutants.reasons().values())
