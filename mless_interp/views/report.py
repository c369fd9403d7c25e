"""One self-contained HTML page of what was asked, what was found, and how to repeat it; it opens without any network.

Its content security policy forbids every request. The template escapes texts; what would turn the direction of writing shows
as its code.
"""

import base64
import hashlib
import io
import json
import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ..core.arguments import Arguments, count_of
from ..models.base import Model
from ..prompts.pairs import PromptPair
from ..runtime.base_result import Result, ShownMap, turned
from ..runtime.columns import Column, TextTable, column_of
from ..runtime.folders import savable
from ..runtime.text_safety import visible

BLUE_TO_RED = "053061 2166ac 4393c3 92c5de d1e5f0 f7f7f7 fddbc7 f4a582 d6604d b2182b 67001f".split()
"""ColorBrewer's RdBu, reversed, as in the still pictures: told apart by colour-blind readers, 0 in the middle."""
SMALLEST_SHARE = 0.2  # a map's colours end here or beyond, where it shows shares


def colour(share: float) -> str:
    """Return the colour of a number in -1..1 (beyond is clipped): blue below 0, red above, grey where undefined."""
    if math.isnan(share):
        return "#bbbbbb"
    stops = np.array([[int(stop[i : i + 2], 16) for i in (0, 2, 4)] for stop in BLUE_TO_RED])
    place = np.linspace(-1, 1, len(stops))
    return "#" + "".join(f"{round(float(np.interp(share, place, channel))):02x}" for channel in stops.T)


@savable
@dataclass(frozen=True)
class ShownPrompt:
    """Hold a prompt's text before, in and after its inserted span."""

    kind: ClassVar[str] = "prompt"
    caption: str
    before: str
    inserted: str
    after: str

    @classmethod
    def of(cls, model: Model, pair: PromptPair) -> "ShownPrompt":
        """Return a pair's prompt with its insertion, as the model reads it."""
        start, stop = pair.span
        ids = list(pair.inserted.ids)
        text = (lambda part: " ".join(pair.text_of(model, i) for i in part)) if pair.given else model.text_of
        before, inserted, after = (text(part) if part else "" for part in (ids[:start], ids[start:stop], ids[stop:]))
        blocks = f" in {len(pair.spans)} blocks, with what stands between," if len(pair.spans) > 1 else ""
        words = f"Problem {pair.id} as asked, {pair.n_inserted} inserted tokens{blocks} marked"
        return cls(f"{words} ({pair.insertion.label}).", before, inserted, after)


@dataclass(frozen=True)
class Block:
    """Hold any other part of a page: its `kind`, as the template names it, and what that shows."""

    kind: str
    text: str = ""
    source: str = ""
    width: int = 0
    parts: tuple["Part", ...] = ()
    shown: Mapping[str, Any] = field(default_factory=dict)


Part = Block | TextTable | ShownPrompt


def map_of(drawn: ShownMap, *, known: Mapping[str, Column], interval: str, below: str) -> Block:
    """Return a layer × head map: a square per head with place, colour, whether it is outlined, and all its numbers in words.
    `known`: what its columns mean; `interval`: its confidence; `below`: what is said below 0."""
    frame = drawn.frame
    table = TextTable.of(frame, "", columns=drawn.columns, known=known, interval=interval)
    numbers = frame[drawn.value].to_numpy(dtype=float, na_value=np.nan)
    column = column_of(drawn.value, known)
    # shares of a few percent stay pale: a map of nothing must not look like a finding
    least = SMALLEST_SHARE if column.role == "share" else 0.0
    sizes = np.append(np.abs(numbers[np.isfinite(numbers)]), least)
    limit, most = float(sizes.max()) or 1.0, max(least, float(np.quantile(sizes, 0.98)))
    clipped = drawn.marked is None and limit > 2 * most > 0  # a few heads, not named, must not pale all others
    limit = most if clipped else limit
    marked = [False] * len(frame) if drawn.marked is None else list(drawn.marked)
    places = zip(frame["layer"].astype(int), frame["head"].astype(int), numbers.tolist(), marked, strict=True)
    squares = [
        {"layer": layer, "head": head, "marked": mark, "colour": colour(x / limit), "words": table.sentence(row)}
        for row, (layer, head, x, mark) in enumerate(places)
    ]
    words = {"column": column, "limit": f"{limit:.3g}", "below": below, "means": drawn.means if any(marked) else ""}
    told = {"signed": bool((numbers < 0).any()), "undefined": bool(np.isnan(numbers).any()), "clipped": clipped}
    return Block("head_map", shown={"squares": squares, **words, **told})


OPEN_PICTURES = 2  # pictures of results that stand open on a page; the others are folded
OPEN_SENTENCES, FIRST_SENTENCES = 6, 2  # a result with more sentences shows so many first ones and folds the others


@dataclass(frozen=True, eq=False)
class Report:
    """Build a page; every method returns a new report with more parts. `answer`, what was found, stands first, in bold.

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
        return self._with(Block("heading", text))

    def sentence(self, *texts: str) -> "Report":
        """Add paragraphs of plain text."""
        return self._with(*(Block("text", text) for text in texts))

    def answered(self, text: str) -> "Report":
        """Add what a section found, in one sentence, in bold."""
        return self._with(Block("answer", text))

    def table(self, frame: pd.DataFrame, caption: str, *, of: type[Result] = Result) -> "Report":
        """Add a data frame as a table that sorts; its columns mean what they do in tables `of` that kind of result."""
        return self._with(TextTable.of(frame, caption, known=of.declared()))

    def figure(self, picture: Any, caption: str) -> "Report":
        """Add a matplotlib figure as PNG."""
        buffer = io.BytesIO()
        picture.savefig(buffer, format="png", dpi=150, bbox_inches="tight")
        png = buffer.getvalue()
        width = int.from_bytes(png[16:20], "big")  # where a PNG says so
        return self._with(Block("picture", caption, base64.b64encode(png).decode(), width))

    def view(self, view: Any) -> "Report":
        """Add a view such as `mi.views.attention` gives; the page holds CircuitsVis' script once."""
        return self._with(Block("interactive", source=view.fragment(), shown={"script": view.script}))

    def prompt(self, prompt: ShownPrompt) -> "Report":
        """Add a problem's prompt as a model reads it (`ShownPrompt.of(model, pair)`), its inserted tokens marked."""
        return self._with(prompt)

    def blank(self) -> "Report":
        """Return a page without parts, to be filled and folded into this one."""
        return Report("", "")

    def folded(self, summary: str, parts: "Report") -> "Report":
        """Add the parts of another report (no headings) behind one line, which a click opens (and a print)."""
        return self._with(Block("folded", summary, parts=parts.parts)) if parts.parts else self

    def result(
        self,
        result: Result,
        *,
        heading: str | None = "What was found",
        pictures: Mapping[str, Any] | None = None,
    ) -> "Report":
        """Add a result: its head map where it has a row per head, `pictures` of it (caption -> figure), its tables, its words.

        The first pictures and the first table of a page stand open, the others are folded; of many sentences the first stand
        open. In maps and pictures effects are above 0 where they go with the whole effect.
        """
        shown = result.shown()
        page = self if heading is None else self.heading(heading)
        words: Arguments = {"known": result.declared(), "interval": result.interval_words}
        if (drawn := shown.head_map) is not None:
            below = result.quantity(drawn.value).below
            drawn = replace(drawn, frame=turned(result, drawn.frame))
            page = page._with(map_of(drawn, below=below, **words))
        for caption, picture in (pictures or {}).items():
            many = sum(part.kind in ("head_map", "picture") for part in page.parts) >= OPEN_PICTURES
            drawing = self.blank().figure(picture, caption)
            page = page.folded(_short(caption), drawing) if many else page._with(*drawing.parts)
        for each in shown.tables:
            table = TextTable.of(each.frame, each.caption, columns=each.columns, **words)
            is_first = not any(isinstance(part, TextTable) for part in page.parts)
            page = page._with(table) if is_first else page.folded(_short(table.caption), self.blank()._with(table))
        found = [self.answer, *(part.text for part in self.parts if isinstance(part, Block) and part.kind == "answer")]
        known = {part.rstrip(".") for each in found for part in (each, each.partition(";")[0])}
        said = [text for text in result.explain().splitlines() if text.rstrip(".") not in known]
        n = FIRST_SENTENCES if len(said) > OPEN_SENTENCES else len(said)
        details = f"Details ({count_of(len(said) - n, 'sentence')})"
        return page.sentence(*said[:n]).folded(details, self.blank().sentence(*said[n:]))

    def provenance(self, run: Mapping[str, Any]) -> "Report":
        """Add how to repeat the run and where it comes from: what `provenance` gives, as saved in run.json."""
        command = run.get("repeat") or shlex.join(["python", *map(str, run.get("command", []))])
        facts = {key: value for key, value in run.items() if not isinstance(value, list)}  # the prompts are a long one
        source = json.dumps(facts, indent=1, ensure_ascii=False)
        return self.heading("How to repeat it")._with(Block("provenance", str(command), source))

    def page(self) -> str:
        """Return the whole page as HTML."""
        blocks = [part for part in self.parts if isinstance(part, Block)]
        within = [part for block in blocks for part in block.parts if isinstance(part, Block)]
        library = next((block.shown["script"] for block in (*blocks, *within) if block.kind == "interactive"), "")
        environment = Environment(
            loader=FileSystemLoader(Path(__file__).parent),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=lambda value: visible(value) if type(value) is str else value,
        )
        environment.filters |= {"policy": _policy, "arrows": _arrows}
        return environment.get_template("report.html.jinja").render(report=self, library=library)

    def save(self, path: str | Path) -> Path:
        """Write the page and return its path."""
        Path(path).write_text(self.page(), encoding="utf-8")
        return Path(path)

    def _with(self, *parts: Part) -> "Report":
        return replace(self, parts=self.parts + parts)


def _short(caption: str) -> str:
    return re.split(r"[.;:] ", caption.rstrip("."))[0]


def _arrows(text: str) -> Markup:
    """Escape a text, whose arrows -> do not break over lines."""
    return Markup(escape(visible(text)).replace("-&gt;", '<span class="arrow">-&gt;</span>'))


def _policy(script: str, views: bool) -> str:
    """Return the browser's policy: fetch nothing, and run only `script`, or with views (which unpack theirs) inline ones."""
    digest = base64.b64encode(hashlib.sha256(str(script).encode()).digest()).decode()
    allowed = "'unsafe-inline'" if views else f"'sha256-{digest}'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
        "form-action 'none'"
    )
