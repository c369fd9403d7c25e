"""The faults that are tried: their table keeps what other runs counted; a run killed before it does anything counts too."""

import signal
from pathlib import Path

import faults
import pytest
from faults import FAULTS, Run, Tally, write_table

KILLED, CTRL_C = list(FAULTS)[:2]


def test_a_run_of_one_analysis_leaves_the_counts_of_the_others(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- faults -->\nNot yet run.\n<!-- end -->\nafter\n")
    dose = [Tally(KILLED, "dose", 5, 4, 0), Tally(CTRL_C, "dose", 2, 2, 0)]
    write_table(page, dose)
    write_table(page, [Tally(KILLED, "locate", 3, 2, 1)])
    write_table(page, [Tally(KILLED, "dose", 50, 50, 0), dose[1]])
    before, *rows, after = page.read_text().splitlines()
    assert (before, rows[0], rows[-1], after) == ("before", "<!-- faults -->", "<!-- end -->", "after")
    assert rows[3:-1] == [
        f"| {KILLED} | locate | 3 | 2 | 1 | 0 |",
        f"| {KILLED} | dose | 50 | 50 | 0 | 0 |",
        f"| {CTRL_C} | dose | 2 | 2 | 0 | 0 |",
        "| all | | 55 | 54 | 1 | 0 |",
    ]
    with pytest.raises(SystemExit, match="has no table"):
        write_table(Path(faults.__file__), dose)


def test_what_is_wrong_is_neither_equal_nor_refused() -> None:
    assert Tally(KILLED, "dose", 5, 3, 1).wrong == 1


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_run_killed_at_once_has_an_end(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    run = Run("dose", folder, tmp_path / "model")
    ended = run.wait(run.start(), after=0)
    assert (ended.code, ended.last_words) == (-signal.SIGKILL, "") and not run.said.exists()
