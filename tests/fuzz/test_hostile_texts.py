"""Texts of problems, models and insertions stay text: graded, printed, written, drawn and shown in pages."""

import html.parser
import io
import unicodedata
from dataclasses import replace

import pandas as pd
from fuzzing import fuzz
from hypothesis import strategies as st
from small_results import patched, scored

import mless_interp as mi
from mless_interp.answers.graders import grade

ESCAPES = ("\x1b[31m", "\x1b]0;title\x07", "\r", "\x08" * 20, "\x9b2J", "\u202e", "\x00")
MARKUP = (
    "<script>alert(1)</script>",
    "</script>",
    "<img src=x onerror=alert(1)>",
    "&lt;",
    '" onload="',
    "{{ 7*7 }}",
    "${7*7}",
)
MATH = ("$", "$\\frac{", "\\sqrt{", "}" * 5, "^_^", "\\(", "%s", "{0}", "$$", "\\undefined", "9^{9^{9^9}}", "1e999999")
FORMULAS = ("=1+1", "+1", "-1+1", "@SUM(A1)", "\t=1", "=cmd|' /C calc'!A0")

anything = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
texts = st.lists(st.one_of(anything, st.sampled_from(ESCAPES + MARKUP + MATH + FORMULAS)), min_size=1, max_size=6).map(
    "".join
)


@fuzz("hostile answers, graded", few=40, share=4, answer=texts, gold=texts, boxed=st.booleans())
def test_any_answer_is_graded(answer: str, gold: str, boxed: bool) -> None:
    found = grade(f"\\boxed{{{answer}}}" if boxed else answer, gold)
    assert isinstance(found.strict, bool)


@fuzz("hostile names, printed", few=30, share=2, name=texts, insertion=texts)
def test_no_control_character_reaches_a_terminal(name: str, insertion: str) -> None:
    settings = {"model": name, "insertion": insertion}
    for result in (scored(), patched(8)):
        shown = replace(result, settings=dict(result.settings) | settings)
        for text in (repr(shown), str(shown), shown.explain()):
            bad = [char for char in text if unicodedata.category(char) == "Cc" and char not in "\n\t"]
            assert not bad and "\u202e" not in text, bad


@fuzz(
    "hostile problem ids, written as tables", few=30, share=2, ids=st.lists(texts, min_size=3, max_size=3, unique=True)
)
def test_no_formula_reaches_a_csv(ids: list[str]) -> None:
    result = replace(scored(), problem_ids=tuple(ids))
    for frame in (result.to_frame(), result.table()):
        file = io.StringIO()
        frame.to_csv(file, index=False)
        read = pd.read_csv(io.StringIO(file.getvalue()), dtype=str, keep_default_na=False)
        for column in read:
            for cell in read[column]:
                number = (
                    cell.lstrip("+-").replace(".", "").replace("e", "").replace("-", "").replace("inf", "").isdigit()
                )
                assert cell in ("", "inf", "-inf") or number or cell[0] not in "=+-@\t\r", (column, cell)


class Tags(html.parser.HTMLParser):
    """Every tag with its attributes' names, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, tuple[str, ...]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, tuple(name for name, _ in attrs)))


def tags(page: str) -> list[tuple[str, tuple[str, ...]]]:
    parser = Tags()
    parser.feed(page)
    return parser.found


@fuzz("hostile names, on pages", few=12, share=1, name=texts, question=texts)
def test_no_text_becomes_markup(name: str, question: str) -> None:
    def page(name: str, question: str) -> str:
        result = replace(scored(), settings={"model": name, "insertion": name})
        made = mi.Report(name or " ", question=question or " ").result(result)
        return made.provenance({"model": {"name": name}, "command": [question]}).page()

    assert tags(page(name, question)) == tags(page("name", "question"))
