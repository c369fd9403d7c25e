"""Texts of problems, models and insertions stay text: graded, printed, written, drawn and shown in pages."""

import html.parser
from dataclasses import replace

from fuzzing import fuzz
from hypothesis import strategies as st
from small_results import scored

import mless_interp as mi
from mless_interp.answers.graders import grade

ESCAPES = ("\x1b[31m", "\x1b]0;title\x07", "\r", "\x08" * 20, "\x9b2J", "\u202e", "\x00")
MARKUP = ("<script>alert(1)</script>", "</script>", "<img src=x onerror=alert(1)>", "&lt;", '" onload="', "{{ 7*7 }}")
MATH = ("$", "$\\frac{", "\\sqrt{", "}" * 5, "^_^", "\\(", "%s", "{0}", "$$", "\\undefined", "9^{9^{9^9}}", "1e999999")

anything = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
texts = st.lists(st.one_of(anything, st.sampled_from(ESCAPES + MARKUP + MATH)), min_size=1, max_size=6).map("".join)


@fuzz(few=40, share=4, answer=texts, gold=texts, boxed=st.booleans())
def test_any_answer_is_graded(answer: str, gold: str, boxed: bool) -> None:
    found = grade(f"\\boxed{{{answer}}}" if boxed else answer, gold)
    assert isinstance(found.strict, bool)


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


@fuzz(few=8, share=1, name=texts, question=texts)
def test_no_text_becomes_markup(name: str, question: str) -> None:
    def page(name: str, question: str) -> str:
        result = replace(scored(), settings={"model": name, "insertion": name})
        made = mi.Report(name or " ", question=question or " ").result(result)
        return made.provenance({"model": {"name": name}, "command": [question]}).page()

    assert tags(page(name, question)) == tags(page("name", "question"))
