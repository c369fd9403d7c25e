"""The page of studies: every shipped study, on both models, with what its source claims and what is not asked."""

import run_studies
from conftest import ROOT
from small_results import studied

import mless_interp as mi
from mless_interp.app import INCLUDED

PAGE = (ROOT / "docs" / "studies.md").read_text(encoding="utf-8")


def test_every_shipped_study_is_on_the_page_with_both_models() -> None:
    assert set(run_studies.NOT_ASKED) == set(INCLUDED)
    sections = dict(zip([None, None, *run_studies.NOT_ASKED], PAGE.split("\n## "), strict=True))
    for name, not_asked in run_studies.NOT_ASKED.items():
        text, study = sections[name], mi.read_study(name)
        assert text.startswith(f"{study.title}\n") and study.claims in text and not_asked in text
        assert "**On the demo model**, " in text and "**On stories260K**, " in text
        assert f"{study.limit} problems" in text


def test_a_cell_says_its_interval_its_problems_and_what_is_undefined() -> None:
    found = studied()
    assert "| 0 in all 8 |" in run_studies.section("a model", found).splitlines()[5]
    row = found.table().iloc[0].to_dict() | {"content_n": 6, "content_k": 6, "content_n_undefined": 2}
    assert run_studies.effect(row, "content").endswith(", 6/6 (undefined in 2)")
    assert run_studies.effect(row | {"content_n": 0}, "content") == "undefined in 2"
