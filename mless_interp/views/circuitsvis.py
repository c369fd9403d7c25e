"""Attention and token views drawn by CircuitsVis, offline and small. The only file that imports circuitsvis.

CircuitsVis alone asks the internet when shown, embeds its script in every view, writes every number as text (102 MB for
28 heads and 512 tokens), draws every cell of every head at once, and puts token texts into the page as HTML. Here its
script travels once per page and compressed, numbers travel as compressed steps and become CircuitsVis' nested arrays in the
page, one head is drawn at a time, and texts stay texts. `circuitsvis.html` holds the page's side of this.

Several views on one page: `shared_script()` once, anywhere, and each view's `fragment()` where it belongs:

    page = "".join([head, shared_script(), *(view.fragment() for view in views), tail])

In a notebook a view shows itself; `view.save("page.html")` writes a page of its own. None of them makes a request; they
run under the content security policy `POLICY`.
"""

import base64
import hashlib
import html
import json
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from ..core.arguments import count_of
from ..core.heads import Head, as_heads
from ..models.base import Model
from ..prompts.conditions import CONDITIONS
from ..prompts.pairs import PromptPair
from ..runtime.text_safety import visible
from ..scores import AttentionProfile
from .notebook import show_after_cell
from .packing import packed, scale_of
from .pooling import MARK, PairAttention, Patterns, both_names, problem_index, read_attention, readable, seams

COLOURS = ("#B2182B", "#2166AC", "#F4E9A0")
"""More, less, inserted: the ends of the still pictures' colours, told apart by colour-blind people."""
MAX_BYTES = 2_900_000
"""A whole saved page stays below this, the compressed script (0.5 MB) included."""
DRAWN_ONE_BY_ONE = 160
"""Tokens that one chart draws one by one (as in `circuitsvis.html`); longer prompts are drawn in blocks, with a window."""
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
_STYLE = "body{margin:1rem auto;max-width:100rem;padding:0 1rem;background:#fff}"


@dataclass(frozen=True)
class View:
    """CircuitsVis elements with their numbers: shows in a notebook without the network, saves as one small HTML page.

    `data` is what the page's script reads, `body` the fragment's fixed part, `precision` a sentence on how exact the numbers
    are, `seen` how it was shown or saved.
    """

    title: str
    body: str
    data: dict[str, Any]
    precision: str = ""
    seen: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        show_after_cell(self)

    def fragment(self) -> str:
        """This view's part of a page that holds `shared_script()` once."""
        self.seen.add("written")
        text = json.dumps(self.data, separators=(",", ":"), allow_nan=False)
        safe = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
        name = "view-" + hashlib.sha256((self.body + safe).encode()).hexdigest()[:12]
        return (
            f'<section class="mless-view" data-mless-view="{name}">{self.body}'
            f'<script type="application/json" class="mless-data">{safe}</script></section>'
            f'<script>(window.mlessViews=window.mlessViews||[]).push("{name}")</script>'
        )

    def page(self) -> str:
        """A whole HTML page that makes no request."""
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
            '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
            f"<title>{html.escape(self.title)}</title><style>{_STYLE}</style></head><body>"
            f"{shared_script()}{self.fragment()}</body></html>"
        )

    def save(self, path: str | Path) -> Path:
        """Write the page and return its path."""
        Path(path).write_text(self.page(), encoding="utf-8")
        return Path(path)

    def _repr_html_(self) -> str:
        return shared_script() + self.fragment()

    def __repr__(self) -> str:
        return f"View({self.title!r}); a notebook shows it, .save('page.html') writes it"


_OWN_LABELS = (
    ('`${d.replace(/\\s/g,"")} (${h})`', "`${d}`"),
    (
        "[`(${h.destIdx}, ${h.srcIdx})`,`Src: ${h.srcToken}`,`Dest: ${h.destToken} `,`Val: ${h.v}`]",
        "[`attended: ${h.srcToken}`,`attending: ${h.destToken}`,`attention: ${h.v}`]",
    ),
    (
        "width:d=>d.chart.chartArea.width/u.length",
        "width:d=>(d.chart.canvas.mlessChart=d.chart).chartArea.width/u.length",
    ),
    ('"Source Token"', '"attended token (position)"'),
    ('"Destination Token"', '"attending token (position)"'),
)
"""CircuitsVis numbers what it draws; here labels and tooltips name true positions, and the page knows where the chart is."""


@lru_cache(maxsize=1)
def shared_script() -> str:
    """Style, CircuitsVis' own script (compressed, as published) and what draws views with it: once per page."""
    import circuitsvis

    source = (Path(circuitsvis.__file__).parent / "dist" / "cdn" / "iife.js").read_text(encoding="utf-8")
    source = re.sub(r"//# sourceMappingURL=.*", "", source)
    for published, here in _OWN_LABELS:
        source = source.replace(published, here)
    script = base64.b64encode(zlib.compress(source.encode(), 9)).decode()
    drawing = (files(__package__) / "circuitsvis.html").read_text(encoding="utf-8")
    return f'<script type="text/plain" class="mless-circuitsvis">{script}</script>{drawing}'


def attention(
    model: Model,
    pair: PromptPair | Sequence[PromptPair],
    heads: Iterable[Head | str],
    *,
    problem: str | int | None = None,
    conditions: Sequence[str] | None = None,
    difference: bool = True,
    max_span: int | None = 1,
    scale: float | None = None,
    max_bytes: int = MAX_BYTES,
) -> View:
    """Attention of chosen heads without and with the insertion, and their difference, side by side on one colour scale.

    A button per head; all panels show the chosen one. Inserted tokens are marked (texts, a yellow band beyond the diagonal, a
    frame round their columns); a longer span than `max_span` is drawn as that many blocks (None: never). A block's column is
    the sum of its tokens' attention, its row the mean of theirs, so every row sums to 1. Labels and tooltips hold each token's
    position in its own prompt. The difference is last minus first condition, on the tokens that both have.

    Parameters
    ----------
    pair : one pair, or several: the mean over their problems, on what their prompts share (a segment of several lengths by
        its first and last tokens, and one block between them).
    problem : of several pairs only this one, by the problem's id or its place (zero-based).
    conditions : of base, inserted, gap, masked, held, clean; a panel each. Default: inserted beside base, or clean where there
        is no span.
    scale : attention with the darkest colour, the same in all panels. None: the 99th percentile of all cells shown, so that
        a sink does not pale everything else. Larger values keep their number.
    max_bytes : the saved page, script included, stays below this. Numbers are rounded to 256 steps, three quarters of them
        below `scale`: an error of at most 1/382 of the colour scale (twice that in the difference). Where that does not
        fit, to 128, 64 or 32 steps (1/46), then neighbouring tokens are pooled; the page and `View.precision` say so.
    """
    if max_span is not None and max_span < 1:
        raise ValueError(f"max_span must be 1 or more, or None, got {max_span}")
    return attention_view(
        read_attention(model, pair, heads, problem=problem, conditions=conditions),
        difference=difference,
        max_span=max_span,
        scale=scale,
        max_bytes=max_bytes,
    )


def attention_view(
    read: PairAttention,
    *,
    difference: bool = True,
    max_span: int | None = 1,
    scale: float | None = None,
    max_bytes: int = MAX_BYTES,
) -> View:
    """The view that `attention` gives, of what was read before (`pooling.read_attention`), without the model."""
    panels = [panel.with_short_span(max_span) for panel in read.panels]
    chosen = read.heads
    scale = scale_of(panels, scale)
    room = max_bytes - len(shared_script()) - 20_000
    made = packed(panels, seams(panels, read.n_base), read.n_base, scale=scale, room=room)
    if made is None:
        raise ValueError(
            f"{len(chosen)} heads on {max(len(panel.texts) for panel in panels)} tokens do not fit into "
            f"max_bytes={max_bytes}: choose fewer heads or raise max_bytes"
        )
    shown = list(made.panels)
    data: dict[str, Any] = {
        "kind": "attention",
        "heads": [both_names(head) for head in chosen],
        "panels": [
            {
                "tokens": p.texts,
                "base": p.base.tolist(),
                "marked": p.inserted.astype(int).tolist(),
                "places": p.places.tolist(),
                "sizes": p.sizes.tolist(),
            }
            for p in shown
        ],
        "n_base": made.n_base,
        "seams": made.seams,
        "difference": _compared(shown) if difference and len(shown) > 1 else None,
        "scale": float(f"{scale:.4g}"),
        "colours": COLOURS,
        "mark": MARK,
        "table": made.table,
        "values": made.values,
    }
    title = visible(f"Attention, {read.of}: {read.insertion}")
    body = _attention_body(title, read, chosen, shown, panels, data, made.precision, made.n_base)
    return View(title, body, data, made.precision)


def _compared(panels: list[Patterns]) -> dict[str, Any]:
    """Which panels the difference is taken of, and on which tokens."""
    first, last = panels[0], panels[-1]
    same = len(first.texts) == len(last.texts) and bool((first.base == last.base).all())
    short = 0 if not first.inserted.any() else len(panels) - 1
    shared = sorted(set(first.base[first.base >= 0].tolist()) & set(last.base[last.base >= 0].tolist()))
    return {"from": 0, "to": len(panels) - 1, "all": same, "short": short, "shared": shared}


def _attention_body(
    title: str,
    read: PairAttention,
    heads: tuple[Head, ...],
    shown: list[Patterns],
    panels: list[Patterns],
    data: dict[str, Any],
    precision: str,
    n_blocks: int,
) -> str:
    scale, compared = data["scale"], data["difference"]
    words = ["Rows attend, columns are attended to; point at a cell for its number."]
    spans = [int(panel.inserted.sum()) for panel in panels if panel.inserted.any()]
    if spans:
        blocks = "one block" if spans[0] == 1 else f"{spans[0]} blocks"
        pooled = f", drawn as {blocks}: the sum of the attention to its tokens" if spans[0] < read.n_inserted else ""
        words.append(
            f"{count_of(read.n_inserted, 'token')} {'is' if read.n_inserted == 1 else 'are'} inserted{pooled} ({MARK} before "
            "the text, framed columns, yellow band)."
        )
    if read.n_problems > 1:
        words.append(
            "Where lengths differ between problems, tokens are counted from both ends of their segment (question +1, −1); "
            "what lies between them is one block, its attention summed."
        )
    if n_blocks > DRAWN_ONE_BY_ONE:
        words.append(
            f"{n_blocks} tokens are drawn in blocks (sums) so that the browser can draw them; choose a window to see tokens "
            "one by one."
        )
    words.append(precision)
    titles = [
        f"{panel.title}" + (f", {count_of(int(panel.sizes.sum()), 'token')}" if read.n_problems == 1 else "")
        for panel in shown
    ]
    if compared:
        on = "all tokens" if compared["all"] else "shared tokens"
        titles.append(f"difference: {shown[-1].condition} − {shown[0].condition} on {on}")
        if not compared["all"]:
            words.append("Positions in the difference: without → with the insertion.")
    figures = "".join(
        f'<figure><figcaption>{html.escape(title)} · <span class="mless-head-name"></span></figcaption>'
        '<div class="mless-chart"></div></figure>'
        for title in titles
    )
    buttons = "".join(
        f'<button type="button" aria-pressed="false" title="{html.escape(both_names(head))}">'
        f'<span class="mless-thumb"></span>{html.escape(str(head))}</button>'
        for head in heads
    )
    legend = _legend("attention", scale, less=False, inserted=bool(spans))
    if compared:
        legend += _legend("difference", scale, less=True, inserted=False)
    return (
        f"<h3>{html.escape(title)}</h3>"
        f"<p>{html.escape(' '.join(words))}</p>"
        f'<div class="mless-heads" role="group" aria-label="heads (zero-based)">{buttons}</div>'
        f'<div class="mless-controls">{legend}{_windows(n_blocks)}'
        '<label><input type="checkbox" class="mless-wide"> one below the other, larger</label></div>'
        f'<div class="mless-panels">{figures}</div>'
        "<noscript>CircuitsVis draws these charts with JavaScript, which is switched off here.</noscript>"
    )


def _legend(what: str, scale: float, *, less: bool, inserted: bool) -> str:
    more, fewer, mark = COLOURS
    left = f"−{scale:.3g}" if less else "0"
    bar = f"{fewer},#fff,{more}" if less else f"#fff,{more}"
    swatch = (
        f'<span><span class="mless-mark" style="background:{mark}"></span>inserted tokens</span>' if inserted else ""
    )
    return (
        f'<span>{what}: {left}<span class="mless-bar" style="background:linear-gradient(to right,{bar})"></span>'
        f"{scale:.3g} and more</span>{swatch}"
    )


def _windows(n_tokens: int) -> str:
    """A choice of windows of single tokens, for prompts that are drawn in blocks."""
    if n_tokens <= DRAWN_ONE_BY_ONE:
        return ""
    width = 64
    windows = [(start, min(start + width, n_tokens)) for start in range(0, n_tokens, width)]
    options = "".join(f'<option value="{a}-{b}">tokens {a} to {b - 1} one by one</option>' for a, b in windows)
    return (
        f'<label>show <select class="mless-window"><option value="0-0">all in blocks</option>{options}</select></label>'
    )


def tokens(
    profile: AttentionProfile,
    heads: Iterable[Head | str] | None = None,
    *,
    problem: str | int = 0,
    conditions: Sequence[str] | None = None,
    relative: bool = False,
    max_span: int | None = 12,
) -> View:
    """One problem's tokens coloured by the attention that each receives, per head and condition, on one colour scale.

    White is 0. `relative` shows log2 of received attention over what uniform attention would give instead (white: as much,
    red: more, blue: less; from an eighth to eight times). Inserted tokens are marked and a span longer than `max_span` pooled
    (means). Tokens whose value is undefined stand in ⟨ ⟩ without colour.

    Parameters
    ----------
    heads : default: all of the profile's. problem : its id, or its place among the profile's problems.
    conditions : default: all of the profile's.
    """
    chosen = profile.heads if heads is None else as_heads(heads)
    if not chosen:
        raise ValueError("no heads to show: name at least one")
    index = problem_index(profile.problem_ids, problem)
    names = tuple(conditions or profile.conditions)
    strips = {name: _strip(profile, name, index, max_span, relative) for name in names}
    places = [profile.of(head) for head in chosen]
    numbers = np.concatenate([values[places].ravel() for _, values in strips.values()])
    numbers = numbers[np.isfinite(numbers)]
    scale = 3.0 if relative else (float(numbers.max()) if numbers.size else 0.0) or 1.0
    elements, blocks = [], []
    for head, place in zip(chosen, places, strict=True):
        blocks.append(f"<p><b>{html.escape(both_names(head))}</b></p>")
        for name, (texts, values) in strips.items():
            row = values[place]
            elements.append(
                {
                    "tokens": [inert(t if np.isfinite(x) else f"⟨{t}⟩") for t, x in zip(texts, row, strict=True)],
                    "values": [float(f"{x:.4g}") if np.isfinite(x) else None for x in row],
                    "minValue": -scale,
                    "maxValue": scale,
                    "positiveColor": COLOURS[0],
                    "negativeColor": COLOURS[1],
                    "paddingBottom": 8,
                }
            )
            blocks.append(f'<p>{html.escape(name)}</p><div class="mless-tokens mless-element"></div>')
    unit = "log2 of attention received / uniform attention's" if relative else "mean attention received, a probability"
    short = "log2 ratio" if relative else "received"
    words = f"Colour: {unit}; one scale for all. {MARK} marks inserted tokens (pooled ones are means), ⟨ ⟩ undefined values."
    title = f"Tokens, problem {profile.problem_ids[index]}: {profile.settings.get('insertion', '')}"
    body = (
        f"<h3>{html.escape(title)}</h3><p>{html.escape(words)}</p>"
        f'<div class="mless-controls">{_legend(short, scale, less=relative, inserted=False)}</div>{"".join(blocks)}'
    )
    return View(title, body, {"kind": "elements", "element": "ColoredTokens", "elements": elements})


def _strip(
    profile: AttentionProfile, condition: str, index: int, max_span: int | None, relative: bool
) -> tuple[list[str], np.ndarray]:
    """(texts, values `[head, token]`) of one problem's prompt with its span pooled."""
    values = profile.whole(condition, relative=relative)[index]
    if relative:
        values = np.log2(np.clip(values, 1 / 8, 8))
    if not CONDITIONS[condition].has_span:
        return [readable(text) for text in profile.base_texts[index]], values
    start, stop = profile.spans[index]
    texts = [readable(text) for text in profile.inserted_texts[index]]
    shared = set(profile.alignment[index].tolist())
    if not shared.isdisjoint(range(start, stop)):  # several blocks: none is pooled over what stands between
        return [text if at in shared else f"{MARK}{text}" for at, text in enumerate(texts)], values
    n_pools = stop - start if max_span is None else min(max_span, stop - start)
    pools = np.array_split(np.arange(start, stop), n_pools)
    labels = [f"{MARK}{texts[p[0]]}" + (f"×{len(p)}" if len(p) > 1 else "") for p in pools]
    inside = np.stack([values[:, pool].mean(1) for pool in pools], 1)
    return texts[:start] + labels + texts[stop:], np.concatenate([values[:, :start], inside, values[:, stop:]], 1)


def inert(text: str) -> str:
    """A text that HTML and plain text show alike: no tag or entity can begin in it.

    CircuitsVis' ColoredTokens puts texts into the page as HTML, and the same text as text into its tooltip. An invisible word
    joiner after `<` and `&` leaves nothing for HTML to read.

    >>> inert("<b>&amp;").encode("ascii", "backslashreplace").decode()
    '<\\\\u2060b>&\\\\u2060amp;'
    """
    return re.sub(r"([<&])", "\\1\u2060", text)
