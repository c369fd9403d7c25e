"""Attention shown with CircuitsVis, offline and small. The only file that imports circuitsvis.

CircuitsVis alone asks the internet when shown, embeds its script once per view and does not escape token texts inside
it. Here its script is embedded once per page, numbers are rounded, long spans are pooled, and texts cannot end a script.
"""

import hashlib
import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..heads import Head, check_heads
from ..insertions import PromptPair
from ..models.base import Model, site

_CALL = re.compile(r'CircuitsVis\.render\(\s*"[^"]*",\s*CircuitsVis\.(\w+),\s*(\{.*\})\s*\)\s*</script>\s*$', re.DOTALL)
_STYLE = (
    "body{font-family:system-ui,sans-serif;margin:1rem auto;max-width:75rem;padding:0 1rem;color:#222}"
    "h1{font-size:1.3rem}h2{font-size:1.05rem;margin-top:2rem}p{max-width:48rem}.view{overflow-x:auto}"
)


@dataclass(frozen=True)
class Panel:
    """One CircuitsVis element: its name, its properties as JSON, a title and a sentence."""

    element: str
    properties: str
    title: str
    note: str = ""


@dataclass(frozen=True)
class View:
    """CircuitsVis panels under one script: shows in a notebook without the network, saves as one HTML page."""

    title: str
    panels: tuple[Panel, ...]

    def page(self) -> str:
        """A whole HTML page that makes no request."""
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{html.escape(self.title)}</title><style>{_STYLE}</style></head><body>"
            f"<h1>{html.escape(self.title)}</h1>{self._repr_html_()}</body></html>"
        )

    def save(self, path: str | Path) -> Path:
        """Write the page and return its path."""
        Path(path).write_text(self.page(), encoding="utf-8")
        return Path(path)

    def _repr_html_(self) -> str:
        parts = [f"<script>{_script()}</script>"]
        for number, panel in enumerate(self.panels):
            name = f"mless-view-{_digest(panel)}-{number}"
            parts.append(
                f"<h2>{html.escape(panel.title)}</h2><p>{html.escape(panel.note)}</p>"
                f'<div class="view" id="{name}"></div>'
                f'<script>CircuitsVis.render("{name}", CircuitsVis.{panel.element}, {panel.properties})</script>'
            )
        return "".join(parts)


def _digest(panel: Panel) -> str:
    return hashlib.sha256(f"{panel.title}{panel.properties}".encode()).hexdigest()[:12]


def _script() -> str:
    import circuitsvis

    source = Path(circuitsvis.__file__).parent / "dist" / "cdn" / "iife.js"
    text = source.read_text(encoding="utf-8").replace("</script>", "")
    return re.sub(r"//# sourceMappingURL=.*", "", text)


def panel_of(rendered: Any, title: str, note: str = "") -> Panel:
    """The element and properties of something CircuitsVis rendered, made safe to stand inside a script."""
    found = _CALL.search(rendered.local_src)
    if not found:
        raise ValueError("this version of CircuitsVis renders its views in another form than 1.43 does")
    properties = found.group(2).replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return Panel(found.group(1), properties, title, note)


def attention(
    model: Model,
    pair: PromptPair,
    heads: Iterable[Head],
    *,
    conditions: Sequence[str] = ("base", "inserted"),
    difference: bool = True,
    max_span: int = 12,
    digits: int = 3,
) -> View:
    """Attention of chosen heads without and with the insertion, and their difference on the shared tokens.

    All panels share one colour scale. Inserted tokens are marked with a bar; a span longer than `max_span` is pooled
    into that many columns (attention received is summed, rows are averaged). The difference shows inserted minus base on
    shared tokens, the inserted run's rows as they are (they sum to lambda there).
    """
    from circuitsvis.attention import attention_heads

    chosen = check_heads(heads, n_layers=model.info.n_layers, n_heads=model.info.n_heads)
    if not chosen:
        raise ValueError("no heads to show")
    patterns = {name: head_patterns(model, pair, name, chosen) for name in conditions}
    scale = max(float(pattern.max()) for pattern in patterns.values())
    names = [str(head) for head in chosen]
    paper = "; ".join(f"{head} is {head.paper_label}" for head in chosen)
    panels = []
    for name, pattern in patterns.items():
        texts, shown = _pooled(model, pair, name, pattern, max_span)
        rendered = attention_heads(
            attention=_rounded(shown, digits),
            tokens=texts,
            attention_head_names=names,
            max_value=scale,
            min_value=-scale,
            mask_upper_tri=True,
        )
        note = (
            f"Rows attend, columns are attended to; colour scale up to {scale:.2f} in all panels. In the paper's one-based "
            f"counting {paper}."
        )
        panels.append(panel_of(rendered, f"{name}: {pattern.shape[-1]} tokens", note))
    if difference and {"base", "inserted"} <= set(patterns):
        shared = pair.shared
        change = patterns["inserted"][:, shared][:, :, shared] - patterns["base"]
        rendered = attention_heads(
            attention=_rounded(change, digits),
            tokens=_texts(model, pair.base.ids),
            attention_head_names=names,
            max_value=scale,
            min_value=-scale,
            mask_upper_tri=True,
        )
        panels.append(
            panel_of(rendered, "difference: inserted - base on shared tokens", "Red is less attention than without.")
        )
    return View(f"Attention, problem {pair.id}: {pair.insertion.label}", tuple(panels))


def head_patterns(model: Model, pair: PromptPair, condition: str, heads: Sequence[Head]) -> Tensor:
    """Patterns `[head, dest, src]` of chosen heads in one condition; only these leave their layer."""
    inputs = pair.condition(condition)
    wanted = {
        site(layer, "attn.hook_pattern"): (
            lambda pattern, layer=layer: pattern[0, _in_layer(heads, layer)].float().cpu()
        )
        for layer in {head.layer for head in heads}
    }
    captured = model.run(
        inputs.tokens,
        position_ids=inputs.position_ids,
        attention_mask=inputs.attention_mask,
        capture=wanted,
        logits_at="none",
    ).captured
    rows = []
    for head in heads:
        place = _in_layer(heads, head.layer).index(head.head)
        rows.append(captured[site(head.layer, "attn.hook_pattern")][place])
    return torch.stack(rows)


def _in_layer(heads: Sequence[Head], layer: int) -> list[int]:
    return [head.head for head in heads if head.layer == layer]


def _texts(model: Model, ids: Sequence[int]) -> list[str]:
    return [model.tokenizer.decode([i]) for i in ids]


def _pooled(model: Model, pair: PromptPair, condition: str, pattern: Tensor, max_span: int) -> tuple[list[str], Tensor]:
    """(texts, pattern) with the inserted span pooled into at most `max_span` columns."""
    if pattern.shape[-1] == len(pair.base):
        return _texts(model, pair.base.ids), pattern
    start, stop = pair.span
    texts = _texts(model, pair.inserted.ids)
    if stop - start <= max_span:
        return [f"|{text}" if start <= i < stop else text for i, text in enumerate(texts)], pattern
    inside = [list(part) for part in torch.arange(start, stop).tensor_split(max_span)]
    blocks = [[i] for i in range(start)] + [[int(i) for i in part] for part in inside]
    blocks += [[i] for i in range(stop, len(texts))]
    pool = torch.zeros(len(blocks), len(texts))
    for row, block in enumerate(blocks):
        pool[row, block] = 1.0
    shown = (pool / pool.sum(-1, keepdim=True)) @ pattern @ pool.T
    labels = [texts[block[0]] if len(block) == 1 else f"|{texts[block[0]]} ×{len(block)}" for block in blocks]
    return labels, shown


def _rounded(pattern: Tensor, digits: int) -> list[Any]:
    lower = torch.tril(pattern).double()
    return [[[round(x, digits) or 0 for x in row] for row in head] for head in lower.tolist()]
