"""The page of studies: every shipped study, on both models, with what its source claims and what is not asked."""

import run_studies
from conftest import ROOT

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
