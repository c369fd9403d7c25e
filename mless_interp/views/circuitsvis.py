"""Attention views drawn by CircuitsVis, offline, and the patterns that they draw. The only file that imports it.

Its script, as published, stands once on a page, compressed; `circuitsvis.html` is the page's side.
"""

import base64
import hashlib
import html
import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from ..core.arguments import check_count, count_of
from ..core.heads import Head
from ..models.base import Model
from ..models.sites import site
from ..prompts.conditions import CONDITIONS
from ..prompts.pairs import PromptPair
from ..runtime.folders import savable
from ..runtime.text_safety import shortened, visible
from . import show_after_cell
from .report import Report

COLOURS = ("#B2182B", "#2166AC", "#F4E9A0")
"""More, less, inserted: the ends of the still pictures' colours, told apart by colour-blind people."""
MOST_CELLS = 800_000
"""Cells of all charts of a view, above which only the first heads are drawn (at least one), so that a page stays small."""
MARK = "▌"  # stands before the text of an inserted token


@savable
@dataclass(frozen=True, eq=False)
class Patterns:
    """Attention of chosen heads in one condition: `values` `[head, dest, src]`, one text per token.

    `base[token]` is the token's index in the prompt without insertion, -1 for inserted tokens (and tokens without a
    match); `inserted[token]` whether it belongs to the span.
    """

    condition: str
    values: np.ndarray
    texts: tuple[str, ...]
    base: np.ndarray
    inserted: np.ndarray

    def with_short_span(self, max_span: int | None) -> "Patterns":
        """Return it with the inserted tokens drawn as about `max_span` blocks (None: as they are).

        A block's column is the sum of its tokens' attention, its row the mean of theirs. So a row still sums to 1, and a span
        that gets 93 % has a cell of 0.93, however long it is.
        """
        inside = np.flatnonzero(self.inserted)
        if max_span is None or len(inside) <= max_span:
            return self
        begins = ~self.inserted | ~np.append(False, self.inserted[:-1])
        begins[[part[0] for part in np.array_split(inside, max_span)]] = True
        first = np.flatnonzero(begins)
        member = np.cumsum(begins) - 1 == np.arange(len(first))[:, None]
        texts = []
        for start, stop in pairwise([*first, len(begins)]):
            ends = "…".join(dict.fromkeys((self.texts[start], self.texts[stop - 1])))
            texts.append(ends if stop - start == 1 else f"{ends} ×{stop - start}")
        values = (member / member.sum(1, keepdims=True)) @ np.tril(self.values) @ member.T
        return Patterns(self.condition, values, tuple(texts), self.base[first], self.inserted[first])


def difference_of(first: Patterns, last: Patterns) -> tuple[tuple[str, ...], np.ndarray, str]:
    """Return texts, values `[head, dest, src]`, "all" or "shared": the last panel minus the first, on tokens that both have."""
    if np.array_equal(first.base, last.base):
        return first.texts, last.values - first.values, "all"
    both = sorted(set(first.base[first.base >= 0]) & set(last.base[last.base >= 0]))
    before, after = ([int(np.flatnonzero(panel.base == token)[0]) for token in both] for panel in (first, last))
    values = last.values[:, after][:, :, after] - first.values[:, before][:, :, before]
    return tuple(first.texts[at] for at in before), values, "shared"


@savable
@dataclass(frozen=True, eq=False)
class PairAttention:
    """Attention of chosen heads on a problem, a panel per condition: what a view needs to be drawn without the model."""

    problem_id: str
    insertion: str
    n_inserted: int
    heads: tuple[Head, ...]
    panels: tuple[Patterns, ...]


def read_attention(
    model: Model, pair: PromptPair, heads: Iterable[Head | str], conditions: Sequence[str] | None = None
) -> PairAttention:
    """Return the attention of chosen heads in these conditions of a pair."""
    chosen = model.info.chosen(heads, what="show")
    if conditions is None:
        conditions = ("base" if pair.n_inserted else "clean", "inserted")
    panels = tuple(read_patterns(model, pair, name, chosen) for name in conditions)
    return PairAttention(pair.id, pair.insertion.label, pair.n_inserted, chosen, panels)


def read_patterns(model: Model, pair: PromptPair, condition: str, heads: Sequence[Head]) -> Patterns:
    """Return the patterns of chosen heads in one condition of a pair, with texts and the map to the base prompt's tokens."""
    wanted = {layer: [head.head for head in heads if head.layer == layer] for layer in {head.layer for head in heads}}
    capture = {  # only these heads leave their layer
        site(layer, "attn.hook_pattern"): (lambda pattern, here=here: pattern[0, here].float().cpu())
        for layer, here in wanted.items()
    }
    inputs = pair.condition(condition)
    found = model.run(inputs, capture=capture, logits_at="none").captured
    rows = [found[site(head.layer, "attn.hook_pattern")][wanted[head.layer].index(head.head)] for head in heads]
    values, ids = torch.stack(rows).double().numpy(), inputs.tokens[0].tolist()
    texts = tuple(readable(pair.text_of(model, i)) for i in ids)
    if len(ids) == len(pair.base):
        return Patterns(condition, values, texts, np.arange(len(ids)), np.zeros(len(ids), dtype=bool))
    base, alignment = np.full(len(ids), -1), np.array(pair.alignment)
    matched = np.flatnonzero(alignment >= 0)
    base[alignment[matched]] = matched
    return Patterns(condition, values, texts, base, pair.span_mask.numpy())


def readable(text: str) -> str:
    """Return a token's text with line breaks and tabs made visible, and whatever else would act and not show."""
    return visible(text.replace("\r", "␍").replace("\n", "↵").replace("\t", "⇥"))


# ---------------------------------------------------------------------------------------------------- drawn in a page


@dataclass(frozen=True)
class View:
    """CircuitsVis elements with their numbers: shows in a notebook without the network, saves as one small HTML page.
    `data` is what the page's script reads, `body` the fragment's fixed part, `seen` how it was shown or saved."""

    title: str
    body: str
    data: dict[str, object]
    seen: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        show_after_cell(self)

    @property
    def script(self) -> str:
        """What a page of fragments holds once."""
        return shared_script()

    def fragment(self) -> str:
        """Return this view's part of a page that holds its `script` once."""
        self.seen.add("written")
        text = json.dumps(self.data, separators=(",", ":"), allow_nan=False)
        safe = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
        name = "view-" + hashlib.sha256((self.body + safe).encode()).hexdigest()[:12]
        return (
            f'<section class="mless-view" data-mless-view="{name}">{self.body}'
            f'<script type="application/json" class="mless-data">{safe}</script></section>'
            f'<script>(window.mlessViews=window.mlessViews||[]).push("{name}")</script>'
        )

    def save(self, path: str | Path) -> Path:
        """Write a page that makes no request, and return its path."""
        return Report(self.title, "").view(self).save(path)

    def _repr_html_(self) -> str:
        return self.script + self.fragment()

    def __repr__(self) -> str:
        return f"View({self.title!r}); a notebook shows it, .save('page.html') writes it"


@lru_cache(maxsize=1)
def shared_script() -> str:
    """Return style, CircuitsVis' own script (compressed, as published) and what draws views with it: once per page."""
    import circuitsvis

    source = (Path(circuitsvis.__file__).parent / "dist" / "cdn" / "iife.js").read_bytes()
    drawing = (files(__package__) / "circuitsvis.html").read_text(encoding="utf-8")
    return f'<script type="text/plain" class="mless-circuitsvis">{_packed(source)}</script>{drawing}'


def _packed(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content, 9)).decode()


def attention(
    model: Model,
    pair: PromptPair,
    heads: Iterable[Head | str],
    *,
    conditions: Sequence[str] | None = None,
    max_span: int | None = 1,
) -> View:
    """Show attention of chosen heads without and with the insertion, and their difference, side by side on one colour scale.

    Inserted tokens are marked (texts, a yellow band beyond the diagonal). A block of inserted tokens has the sum of their
    attention as its column and the mean of theirs as its row, so every row sums to 1. Of many heads of long prompts the first
    are drawn. The difference is last minus first condition, on the tokens that both have. The darkest colour is the 99th
    percentile of all cells shown, so that a sink does not pale everything else.

    Parameters
    ----------
    conditions : of base, inserted, gap, masked, held, clean; a panel each. Default: inserted beside base, or clean where there
        is no span.
    max_span : into how many blocks a longer span is drawn (None: token by token).
    """
    if max_span is not None:
        check_count(max_span, name="max_span")
    return attention_view(read_attention(model, pair, heads, conditions), max_span=max_span)


def attention_view(read: PairAttention, *, max_span: int | None = 1) -> View:
    """Return the view that `attention` gives, of what was read before (`read_attention`), without the model."""
    panels = [panel.with_short_span(max_span) for panel in read.panels]
    charts = [
        (f"{CONDITIONS[panel.condition].title} ({panel.condition}), {count_of(len(whole.texts), 'token')}", panel)
        for panel, whole in zip(panels, read.panels, strict=True)
    ]
    if len(panels) > 1:
        texts, values, on = difference_of(panels[0], panels[-1])
        nothing = np.zeros(len(texts), dtype=bool)
        title = f"difference: {panels[-1].condition} − {panels[0].condition} on {on} tokens"
        charts.append((title, Patterns("difference", values, texts, nothing, nothing)))
    below = [np.tril_indices(len(chart.texts)) for _, chart in charts]
    heads = read.heads[: max(1, MOST_CELLS // sum(len(rows) for rows, _ in below))]
    cells = np.concatenate([panel.values[:, *at].ravel() for panel, at in zip(panels, below, strict=False)])
    scale = float(np.quantile(cells, 0.99)) or float(cells.max()) or 1.0
    words = ["Rows attend, columns are attended to; the number after a token is its place in this picture."]
    if read.n_inserted:
        words.append(f"{count_of(read.n_inserted, 'token')} inserted ({MARK}, yellow band).")
    if any(panel is not whole for panel, whole in zip(panels, read.panels, strict=True)):
        words.append(
            "×N stands for N inserted tokens: the column adds up the attention to them, the row averages theirs."
        )
    if len(read.heads) > len(heads):
        words.append(f"To keep the page small, the first {len(heads)} of {len(read.heads)} heads are drawn.")
    title = visible(f"Attention, problem {read.problem_id}: {read.insertion}")
    legend = _legend("attention", scale, less=False, inserted=bool(read.n_inserted))
    legend += _legend("difference", scale, less=True, inserted=False) * (len(panels) > 1)
    figures = "".join(
        f'<figure><figcaption>{html.escape(each)} · <span class="mless-head-name"></span></figcaption>'
        '<div class="mless-chart"></div></figure>'
        for each, _ in charts
    )
    buttons = "".join(f'<button type="button" aria-pressed="false">{html.escape(str(head))}</button>' for head in heads)
    body = (
        f"<h3>{html.escape(title)}</h3><p>{html.escape(' '.join(words))}</p>"
        f'<div class="mless-heads" role="group" aria-label="heads (zero-based)">{buttons}</div>'
        f'<div class="mless-controls">{legend}'
        '<label><input type="checkbox" class="mless-wide"> one below the other, larger</label></div>'
        f'<div class="mless-panels">{figures}</div>'
        "<noscript>CircuitsVis draws these charts with JavaScript, which is switched off here.</noscript>"
    )
    numbers = []
    for (_, chart), at in zip(charts, below, strict=True):
        marked = zip(chart.texts, chart.inserted, strict=True)
        tokens = [shortened(MARK + text.strip() if mark else text, 18) for text, mark in marked]
        cells = np.rint(chart.values[: len(heads), *at] * 10_000).astype(int)
        numbers.append({"tokens": tokens, "marked": chart.inserted.astype(int).tolist(), "values": cells.tolist()})
    packed = _packed(json.dumps(numbers, separators=(",", ":")).encode())
    names = [str(head) for head in heads]
    return View(title, body, {"heads": names, "scale": float(f"{scale:.4g}"), "colours": COLOURS, "charts": packed})


def _legend(what: str, scale: float, *, less: bool, inserted: bool) -> str:
    more, fewer, mark = COLOURS
    left, bar = (f"−{scale:.3g}", f"{fewer},#fff,{more}") if less else ("0", f"#fff,{more}")
    swatch = f'<span><span class="mless-mark" style="background:{mark}"></span>inserted tokens</span>'
    return (
        f'<span>{what}: {left}<span class="mless-bar" style="background:linear-gradient(to right,{bar})"></span>'
        f"{scale:.3g} and more</span>{swatch * inserted}"
    )
