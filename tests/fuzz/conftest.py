"""Counts of random cases go into the page that `MLESS_FUZZ_PAGE` names, when all of them have passed."""

import os
from pathlib import Path

import pytest
from fuzzing import PASSED

START, END = "<!-- fuzz -->\n", "<!-- end -->"


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    page = os.environ.get("MLESS_FUZZ_PAGE")
    if page and not exitstatus:
        path = Path(page)
        before, _, rest = path.read_text(encoding="utf-8").partition(START)
        _, closed, after = rest.partition(END)
        if not closed:
            raise pytest.UsageError(f"{page} has no table between {START.strip()!r} and {END!r}")
        rows = [f"| {kind} | {n:,} |" for kind, n in sorted(PASSED.items())]
        table = "\n".join(["| random cases | passed |", "| --- | ---: |", *rows, f"| all | {PASSED.total():,} |"])
        path.write_text(f"{before}{START}{table}\n{END}{after}", encoding="utf-8")
