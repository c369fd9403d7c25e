"""Circuits' results: what `kept_results.txt` does not hold."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
from small_results import confirmed, directed, located, placed, read_apart, spots, traced, transferred

import mless_interp as mi


@pytest.mark.parametrize("made", [directed, traced, placed, spots, transferred])
def test_every_cell_has_its_own_rows(made: Any) -> None:
    found = made()
    table, frame, (shown,) = found.table(), found.to_frame(), found.shown().tables
    n, cells = found.per_cell.shape
    np.testing.assert_array_equal(frame["effect"].to_numpy().reshape(n, cells), found.per_cell)
    assert frame["problem"].tolist() == np.repeat(found.problem_ids, cells).tolist()
    parts = [each.name for each in fields(found.cells[0])] if is_dataclass(found.cells[0]) else []
    for name in ("label", *parts):
        assert frame[name].tolist() == table[name].tolist() * n
    assert list(map(str, found.found)) == table["label"][table["p_corrected"] < found.level].tolist()
    assert shown.frame.iloc[:, 0].is_unique and shown.frame["median"].abs().is_monotonic_decreasing


def test_fresh_problems_confirm_heads_and_say_whether_they_are_specific() -> None:
    again = replace(confirmed(), reads=read_apart(n=10))
    found = replace(located(), confirmation=again)
    assert found.confirmed == {mi.Head(0, 1): "reader", mi.Head(1, 0): "mediator"} == found.sure
    assert [found.confirmed_or_unknown(head) for head in ("L0H1", "L0H0", "L1H1")] == [True, False, None]
    assert again.specific == (mi.Head(0, 1), mi.Head(1, 0)) and found.read is again.reads
    assert found.table()["random_effect"].isna().all() and found.control_table().equals(again.control_table())
    for larger, specific in (([0, 1, 0], (mi.Head(0, 1),)), ([1, 1, 0], ())):
        beside = again.controls | {"random_size_removed": again.controls["random_size_removed"] + np.array(larger)}
        assert replace(again, controls=beside).specific == specific
