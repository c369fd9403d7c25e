"""One self-contained HTML page of what was asked, what was found, and how to repeat it; it opens without any network.

The page carries a content security policy that forbids every request. Texts are escaped by the
template, and what would turn the direction of writing shows as its code.
"""

import base64
import hashlib
import io
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ..models.base import Model
from ..prompts.pairs import PromptPair
from ..runtime.columns import TextTable
from ..runtime.registry import savable
from ..runtime.results import Result, Shown, ShownMap
from ..runtime.text_safety import visible
from .page_parts import HeadMap


@runtime_checkable
class Drawable(Protocol):
    """A matplotlib figure, as far as a page needs it."""

    def savefig(self, target: Any, /, **options: Any) -> Any: ...


@runtime_checkable
class Embeddable(Protocol):
    """A view that gives its part of a page."""

    def fragment(self) -> str: ...


@dataclass(frozen=True)
class Heading:
    """The name of a section; the page's table of contents lists them."""

    kind: ClassVar[str] = "heading"
    text: str


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    kind: ClassVar[str] = "text"
    text: str


@dataclass(frozen=True)
class Answer:
    """What a section found, in one sentence, in bold."""

    kind: ClassVar[str] = "answer"
    text: str


@dataclass(frozen=True)
class Still:
    """A still picture as PNG, base64, and its width in pixels."""

    kind: ClassVar[str] = "picture"
    caption: str
    alt: str
    png: str
    width: int


@dataclass(frozen=True)
class Interactive:
    """A CircuitsVis view: HTML of our own making."""

    kind: ClassVar[str] = "interactive"
    caption: str
    html: str


@savable
@dataclass(frozen=True)
class ShownPrompt:
    """A prompt's text before, in and after its inserted span."""

    kind: ClassVar[str] = "prompt"
    caption: str
    before: str
    inserted: str
    after: str

    @classmethod
    def of(cls, model: Model, pair: PromptPair, caption: str = "") -> "ShownPrompt":
        """A pair's prompt with its insertion, as the model reads it."""
        start, stop = pair.span
        ids = list(pair.inserted.ids)
        text = (lambda part: " ".join(pair.text_of(model, i) for i in part)) if pair.given else model.text_of
        before, inserted, after = (text(part) if part else "" for part in (ids[:start], ids[start:stop], ids[stop:]))
        blocks = f" in {len(pair.spans)} blocks, with what stands between," if len(pair.spans) > 1 else ""
        caption = (
            caption
            or f"Problem {pair.id} as asked, {pair.n_inserted} inserted tokens{blocks} marked ({pair.insertion.label})."
        )
        return cls(caption, before, inserted, after)


@dataclass(frozen=True)
class Provenance:
    """Where the page comes from, in groups of (name, text), and the command that repeats it."""

    kind: ClassVar[str] = "provenance"
    command: str
    groups: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]


@dataclass(frozen=True)
class Folded:
    """Parts behind one line, which a click opens; on paper they are open."""

    kind: ClassVar[str] = "folded"
    summary: str
    parts: tuple["Part", ...]


Part = Heading | Text | Answer | TextTable | HeadMap | Still | Interactive | ShownPrompt | Provenance | Folded

OPEN_TABLES, OPEN_SENTENCES, FIRST_SENTENCES = 2, 6, 2
"""A result with more tables shows the first and folds the others; one with more sentences shows so many first ones."""


@dataclass(frozen=True, eq=False)
class Report:
    """Build a page; every method returns a new report with one more part, so that they can be chained.

    `answer` is what was found, in one sentence: it stands first, in bold.

    >>> page = Report("Heads", question="Which heads?").heading("Found").sentence("None <here>.")
    >>> "None &lt;here&gt;." in page.page(), len(Report("Heads", question="Which heads?").parts)
    (True, 0)
    """

    title: str
    question: str
    answer: str = ""
    parts: tuple[Part, ...] = ()

    def heading(self, text: str) -> "Report":
        """Begin a section."""
        return self._with(Heading(text))

    def sentence(self, *texts: str) -> "Report":
        """Paragraphs of plain text."""
        return self._with(*(Text(text) for text in texts))

    def answered(self, text: str) -> "Report":
        """What a section found, in one sentence, in bold."""
        return self._with(Answer(text))

    def table(
        self, frame: pd.DataFrame, caption: str, *, columns: Sequence[str] | Mapping[str, str] | None = None
    ) -> "Report":
        """A data frame as a table that sorts; `columns` chooses and orders its columns, a mapping also names them."""
        return self._with(TextTable.of(frame, caption, columns=columns))

    def head_map(self, frame: pd.DataFrame, caption: str, *, value: str, **options: Any) -> "Report":
        """A layer × head map of a column of a table with one row per head; options: see `HeadMap.of`."""
        return self._with(HeadMap.of(frame, caption, value=value, **options))

    def figure(self, picture: Any, caption: str, *, alt: str = "") -> "Report":
        """A matplotlib figure (or a file's path) as PNG; `alt` says in words what it shows (default: the caption)."""
        if isinstance(picture, str | Path):
            png = Path(picture).read_bytes()
        elif isinstance(picture, Drawable):
            buffer = io.BytesIO()
            picture.savefig(buffer, format="png", dpi=150, bbox_inches="tight")
            png = buffer.getvalue()
        else:
            raise TypeError(f"figure: a matplotlib figure or the path of a .png expected, got {type(picture).__name__}")
        if not png.startswith(b"\x89PNG"):
            raise ValueError(f"figure: {str(picture)!r} is no PNG picture")
        width = int.from_bytes(png[16:20], "big")  # where a PNG says so
        return self._with(Still(caption, alt or caption, base64.b64encode(png).decode(), width))

    def view(self, view: Any, caption: str = "") -> "Report":
        """A view such as `mi.views.attention` gives; however many there are, CircuitsVis' script stands on the page once."""
        if not isinstance(view, Embeddable):
            raise TypeError(f"view: a view such as mi.views.attention gives expected, got {type(view).__name__}")
        return self._with(Interactive(caption, view.fragment()))

    def prompt(self, model: Model, pair: PromptPair, caption: str = "") -> "Report":
        """A problem's prompt as the model reads it, its inserted tokens marked."""
        return self.shown_prompt(ShownPrompt.of(model, pair, caption))

    def shown_prompt(self, prompt: ShownPrompt) -> "Report":
        """A prompt that was made into text before, so that no model is needed now."""
        return self._with(prompt)

    def folded(self, summary: str, parts: "Report") -> "Report":
        """The parts of another report behind one line, which a click opens; without headings and interactive views."""
        wrong = [part.kind for part in parts.parts if isinstance(part, Heading | Interactive)]
        if wrong:
            raise ValueError(f"folded {summary!r}: a {wrong[0]} part cannot be folded; give it to the report itself")
        return self._with(Folded(summary, parts.parts)) if parts.parts else self

    def result(
        self,
        result: Any,
        *,
        heading: str | None = "What was found",
        pictures: Mapping[str, Any] | None = None,
        shown: Shown | None = None,
        first: Sequence[str] = (),
    ) -> "Report":
        """A result: its head map where it has one row per head, `pictures` of it (caption -> figure), its tables, its words.

        `shown` replaces what it says of its map and tables itself. Of many tables and many sentences the first stand open and
        the others are folded; `first`: the sentences that stand open.
        """
        if not isinstance(result, Result):
            raise TypeError(f"a result of this toolkit expected, got {type(result).__name__}")
        shown = result.shown() if shown is None else shown
        page = self if heading is None else self.heading(heading)
        words: dict[str, Any] = {"known": result.declared(), "interval": result.interval_words}
        if shown.head_map is not None:
            page = page._with(_map_of(shown.head_map, **words))
        for caption, picture in (pictures or {}).items():
            page = page.figure(picture, caption)
        tables = [TextTable.of(each.frame, each.caption, columns=each.columns, **words) for each in shown.tables]
        told = [
            text for text in result.explain().splitlines() if Answer(text) not in (Answer(self.answer), *self.parts)
        ]
        kept = list(first) or (told[:FIRST_SENTENCES] if len(told) > OPEN_SENTENCES else told)
        open_ = 1 if len(tables) > OPEN_TABLES else len(tables)
        page = page._with(*tables[:open_]).sentence(*(text for text in told if text in kept))
        page = page._with(*(Folded(_first_clause(table.caption), (table,)) for table in tables[open_:]))
        others = [Text(text) for text in told if text not in kept]
        return page._with(Folded(f"All else in words: {len(others)} sentences", tuple(others))) if others else page

    def provenance(self, run: Mapping[str, Any], *, heading: str | None = "How to repeat it") -> "Report":
        """How to repeat the run and where it comes from: what `mi.provenance` gives, as saved in run.json."""
        command = run.get("repeat") or shlex.join(["python", *map(str, run.get("command", []))])
        page = self if heading is None else self.heading(heading)
        return page._with(Provenance(str(command), _groups(run)))

    def page(self) -> str:
        """The whole page as HTML."""
        views = any(isinstance(part, Interactive) for part in self.parts)
        if views:
            from .circuitsvis import shared_script
        environment = Environment(
            loader=FileSystemLoader(Path(__file__).parent),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=lambda value: visible(value) if type(value) is str else value,
        )
        environment.filters["policy"] = _policy
        template = environment.get_template("report.html.jinja")
        return template.render(report=self, library=shared_script() if views else "")

    def save(self, path: str | Path) -> Path:
        """Write the page and return its path."""
        Path(path).write_text(self.page(), encoding="utf-8")
        return Path(path)

    def _repr_html_(self) -> str:
        """In a notebook: the page in a frame of its own, so that neither touches the other's style."""
        return f'<iframe srcdoc="{escape(self.page())}" style="width:100%;height:40rem;border:1px solid #bbb"></iframe>'

    def _with(self, *parts: Part) -> "Report":
        return replace(self, parts=self.parts + parts)


def _first_clause(text: str) -> str:
    """A caption up to its first stop.

    >>> _first_clause("Named heads on fresh problems; counts of 0.5 and more. More.")
    'Named heads on fresh problems'
    """
    return re.split(r"[.;:] ", text.rstrip("."), maxsplit=1)[0]


def _map_of(shown: ShownMap, **words: Any) -> HeadMap:
    return HeadMap.of(
        shown.frame,
        "",
        value=shown.value,
        columns=shown.columns,
        marked=shown.marked,
        marked_means=shown.means,
        **words,
    )


def _policy(script: str, views: bool) -> str:
    """What the page's browser may do: fetch nothing, and without views run only `script` (with them, which unpack
    CircuitsVis' script in the page, inline scripts).
    """
    digest = base64.b64encode(hashlib.sha256(str(script).encode()).digest()).decode()
    allowed = "'unsafe-inline'" if views else f"'sha256-{digest}'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
        "form-action 'none'"
    )


LONGEST = 12
"""Lists longer than this are counted on the page, not shown; run.json has them whole."""


def _groups(run: Mapping[str, Any]) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    """A run's facts: what is plain first, then each mapping under its name."""
    plain = [(key, value) for key, value in run.items() if not isinstance(value, Mapping) and key not in _TOLD]
    groups = [("run", tuple((_words(key), _told(value)) for key, value in plain))]
    for key, value in run.items():
        if isinstance(value, Mapping) and value and key not in _TOLD:
            groups.append((_words(key), tuple(_flat(value))))
    return tuple(groups)


_TOLD = frozenset(
    "repeat command conclusion comparisons notes options first_questions questions insertions without_mlps".split()
)
"""Facts that stand elsewhere on the page."""


def _flat(facts: Mapping[str, Any], name: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for key, value in facts.items():
        here = f"{name}{_words(key)}"
        if isinstance(value, Mapping) and value:
            found += _flat(value, f"{here}: ")
        else:
            found.append((here, _told(value)))
    return found


def _words(key: Any) -> str:
    return str(key).replace("_", " ")


def _told(value: Any) -> str:
    if isinstance(value, list | tuple):
        if len(value) > LONGEST or any(isinstance(item, Mapping | list | tuple) for item in value):
            return f"{len(value)} entries, in run.json"
        return ", ".join(_told(item) for item in value)
    if isinstance(value, Mapping):
        return "none" if not value else f"{len(value)} entries, in run.json"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return "none" if value in (None, "") else str(value)
