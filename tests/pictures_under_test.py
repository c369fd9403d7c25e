"""Every picture that the toolkit draws, and what is drawn in it as text: places, colours, marks, words."""

import base64
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import small_results as small
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_hex
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.spines import Spine
from matplotlib.text import Annotation

import mless_interp as mi
from mless_interp.views.circuitsvis import PairAttention, Patterns, View, attention_view, shared_script
from mless_interp.views.report import ShownPrompt

views = mi.views
NAN = np.nan
BARS = pd.DataFrame({"model": list("bbaa"), "treatment": ["none", "mless"] * 2, "percent": [64.0, 66, 73, 76]})
BARS = BARS.assign(low=[NAN, NAN, 70, 70], high=[NAN, NAN, 80, 85], n=[NAN, NAN, 50, 50])
KNOCKED_OUT = {name: NAN * x if "mediated" in name else x for name, x in small.measures(1.0, 12).items()}
SEEN, GAP = mi.Head(0, 13), {"gap": small.profiled().received["base"]}


def two_profiles() -> tuple[Any, Any]:
    return small.profiled(), replace(small.profiled(0.04), settings={"model": "other", "insertion": "Mful"})


def by_value() -> Any:
    """L0H1 -> L1H0 by v, and not by q, k and v together."""
    return replace(found := small.traced(), values=found.values * (np.arange(7) != 2))


def two_contrasts() -> Any:
    found = small.studied()
    effects = {name: {"content": one["content"], "shift": one["content"]} for name, one in found.effects.items()}
    return replace(found, contrasts=("content", "shift"), effects=effects)


def seven_heads() -> Any:
    """The later a head, the more it receives, but without the tokens at their positions: there the less."""
    found, more = small.profiled(), 1 + np.arange(7)[:, None]
    received = {name: tuple(row * more for row in rows) for name, rows in found.received.items()}
    uniform = {name: tuple(row + 0 * more for row in rows) for name, rows in found.uniform.items()}
    of = {"received": received | {"gap": tuple(row[::-1] for row in received["base"])}}
    of["uniform"] = uniform | {"gap": uniform["base"]}
    return replace(found, conditions=("base", "inserted", "gap"), heads=tuple(mi.Head(0, at) for at in range(7)), **of)


def by_mlps() -> Any:
    """Both heads act through the MLPs of their layers."""
    edges = tuple(
        map(mi.Edge.parse, ("L0H1 -> MLP0", "MLP0 -> L1H0", "L1H0 -> MLP1", "MLP1 -> logits", "MLP0 -> MLP1"))
    )
    return replace(small.traced(), cells=edges, values=small.traced().values[:, 2:7])


def skewed() -> Any:
    """An effect of -1 in most problems and +90 in one has a positive mean; what is claimed of edges is not of means."""
    total = np.array([-1.0] * 15 + [90.0])
    edges = tuple(map(mi.Edge.parse, ("L0H1 -> MLP1", "L0H0 -> MLP1", "MLP1 -> logits")))
    values = np.array([0.4, -0.2, 0.9]) * np.where(total < 0, total, 90)[:, None]
    return replace(small.traced(16), cells=edges, total=total, values=values)


def large() -> Any:
    """28 heads in each of 28 layers, each with an effect of its own."""
    heads = tuple(mi.Head(layer, head) for layer in range(28) for head in range(28))
    values = np.linspace(-0.5, 1, 784).reshape(28, 28) + small.spread(4)[:, None, None]
    return replace(small.patched(), heads=heads, patched=values)


def wide() -> Any:
    """25 edges from 5 heads into 5 heads, whose places lie side by side."""
    edges = tuple(mi.Edge.parse(f"L0H{a} -> L1H{b}") for a in range(5) for b in range(5))
    values = np.linspace(-0.3, 0.6, 25) + 0.01 * small.spread(16)[:, None]
    return replace(small.traced(16), cells=edges, values=values)


def many() -> Any:
    """What 13 heads do, the first of them the most, the last of them much in one problem."""
    cells = tuple(small.Way(mi.Head(0, at // 2), ("direct", "indirect")[at % 2]) for at in range(26))
    once = 9.0 * (np.arange(12)[:, None] == 0) * (np.arange(26) > 23)
    return replace(small.directed(), cells=cells, values=np.linspace(0.9, 0.1, 26) + small.spread(12)[:, None] + once)


def alike() -> Any:
    """Before the first layer one pair differs, and all others are read alike."""
    found, one = small.readable(), np.arange(24)[:, None, None, None] < 2
    return replace(found, margin=np.where(found.margin == 0, 0.5 * one, found.margin))


def needed() -> Any:
    """L0H1 acts against the effect by its read, which does not suffice."""
    found = small.located(-1.0)
    return replace(found, values=found.values | {"edge_noise": 0 * found.values["edge_noise"]})


MANY = pd.DataFrame({"treatment": [*"abcdefg"], "percent": np.linspace(5, 60, 7), "model": "m", "n": 9, "low": NAN})
PICTURES: dict[str, Callable[[], Any]] = {
    name: lambda make=make: make().plot()  # type: ignore[misc]
    for name, make in small.RESULTS.items()
} | {
    "head_map, named": lambda: views.head_map(small.located()),
    "head_map, lowered": lambda: views.head_map(small.located(-1.0)),
    "head_map, needed": lambda: views.head_map(needed()),
    "span_map, read alike": lambda: views.span_map(alike()),
    "direct_bars, many": lambda: views.direct_bars(many()),
    "direct_bars, no effect": lambda: views.direct_bars(replace(small.directed(), total=small.spread(12))),
    "activation_histograms, total": lambda: views.activation_histograms(small.activations(), contrast="total"),
    "summary_plot, a column": lambda: views.summary_plot(small.answered(n=20).compare_all(), value="lost"),
    "head_map, lam": lambda: views.head_map(small.decomposed(n=9), value="lam_minus_uniform", top=0),
    "head_map, 4 problems": lambda: views.head_map(small.patched(4), value="median"),
    "head_map, doses": lambda: views.head_map(small.doses()),
    "head_map, a metric": lambda: views.head_map(small.scored(), value="span_mass", top=1),
    "head_map, large": lambda: views.head_map(large()),
    "forest, large": lambda: views.forest(large()),
    "path_graph, wide": lambda: views.path_graph(wide()),
    "bars_of_models, many": lambda: views.bars_of_models(MANY.assign(high=NAN), "printed"),
    "forest, a column": lambda: views.forest(small.patched(12), value="median", top=4),
    "forest, named": lambda: views.forest(small.located(), top=1),
    "activation_histograms, an empty bin": lambda: views.activation_histograms(small.activations(100)),
    "study_effects, two contrasts": lambda: views.study_effects(two_contrasts()),
    "forest, no smallest effect": lambda: views.forest(replace(small.located(), smallest_effect=0.0, resolution=0.0)),
    "summary_plot, several units": lambda: views.summary_plot(small.mediated(), value="mean"),
    "path_graph, both MLPs": lambda: views.path_graph(by_mlps()),
    "profiles, three conditions": lambda: views.profiles(seven_heads()),
    "forest, no effect": lambda: views.forest(
        replace(small.located(), total=0 * small.located().total, controls={}, values=KNOCKED_OUT)
    ),
    "forest, heads against the effect": lambda: views.forest(small.OTHERS["LocatedHeads, two against"]()),
    "forest, chosen heads": lambda: views.forest(small.located(), heads=["L1H0", "L0H0"]),
    "summary_plot": lambda: views.summary_plot(small.answered(n=20).compare_all(), top=1),
    "summary_plot, some of each head": lambda: views.summary_plot(small.read_apart(n=12), top=3),
    "summary_plot, some of each kind": lambda: views.summary_plot(small.written(), value="amount", top=7),
    "accuracy_bars, a long name": lambda: views.accuracy_bars(small.asked_twice()),
    "summary_plot, of heads": lambda: views.summary_plot(small.located(), value="removed_median", top=3),
    "summary_plot, no effect": lambda: views.summary_plot(small.read_apart(n=3)),
    "profiles, aligned": lambda: views.profiles(two_profiles(), [SEEN], conditions=("inserted",), whole=False),
    "compare_profiles": lambda: views.compare_profiles(
        [("A", SEEN, dict(zip("xy", two_profiles(), strict=True))), ("B", SEEN, {"x": small.profiled()})]
    ),
    "circuit_curve, undefined": lambda: views.circuit_curve(replace(small.curve(total=0.0), settings=small.SETTINGS)),
    "circuit_curve, partial": lambda: small.OTHERS["CircuitCurve, chosen elsewhere"]().plot(),
    "accuracy_bars": lambda: views.accuracy_bars(replace(small.answered(), settings={"benchmark": "b"})),
    "bars_of_models": lambda: views.bars_of_models(BARS, "printed"),
    "path_graph, too few problems": lambda: views.path_graph(small.traced(8)),
    "path_graph, nothing found": lambda: views.path_graph(replace(small.traced(16), values=np.zeros((16, 7)))),
    "path_graph, skewed": lambda: views.path_graph(skewed()),
    "path_graph, by value alone": lambda: views.path_graph(by_value()),
    "path_graph, at the level": lambda: views.path_graph(replace(small.traced(16), confidence=1 - 8.75 / 2**15)),
    "site_map, at the level": lambda: views.site_map(replace(small.placed(), confidence=1 - 11.25 / 2**14)),
    "direct_bars, at the level": lambda: views.direct_bars(replace(small.directed(), confidence=1 - 3.75 / 2**10)),
    "profiles, gap": lambda: views.profiles(replace(small.profiled(), conditions=("gap",), received=GAP, uniform=GAP)),
    "site_map, a column": lambda: views.site_map(small.placed(), value="effect"),
    "direct_bars, the largest": lambda: views.direct_bars(small.directed(), top=2),
    "head_map, without a unit": lambda: views.head_map(small.patched(12), value="rank", top=0),
}


def attention_of(n_inserted: int = 3) -> PairAttention:
    """Two heads' attention on three tokens, and on as many inserted after the first."""
    panels = []
    for condition, n in (("base", 3), ("inserted", 3 + n_inserted)):
        values = np.tril(1.0 + np.arange(2 * n * n).reshape(2, n, n)) / 1000
        inside = (np.arange(n) > 0) & (np.arange(n) <= n - 3)
        base = np.where(inside, -1, np.cumsum(~inside) - 1)
        texts = ("a", *["</s>"] * (n - 2), "a long & wide token of a text")
        panels.append(Patterns(condition, values, texts, base, inside))
    return PairAttention("p<1>", "Mless ' /' x3", n_inserted, (mi.Head(0, 1), mi.Head(1, 0)), tuple(panels))


def viewed(*panels: int, **options: Any) -> str:
    """A view of attention (of these panels): its title, its fixed part, and what it sends."""
    read = attention_of()
    view = attention_view(replace(read, panels=tuple(read.panels[at] for at in panels or (0, 1))), **options)
    charts = zlib.decompress(base64.b64decode(str(view.data["charts"]))).decode()
    return "\n".join([view.title, view.body, str({**view.data, "charts": charts})])


def page_of(result: Any, **options: Any) -> str:
    """A page of a result, without its style and script."""
    view = [View("<t>", "<b>b</b>", {"x": "</script> & <b>"})] if options.pop("viewed", False) else []
    said = [each.rstrip(".") for each in result.explain().splitlines()] if options.pop("known", False) else []
    page = mi.Report("T\x07", question="Q?", answer=f"{said[1]}; more." if said else "A -> B.")
    page = (page.answered(f"{said[2]}.") if said else page).result(result, **options)
    for each in view:
        page = page.view(each).prompt(ShownPrompt("c", "before", "/ /", "after"))
        page = page.table(BARS[["n", "model"]], "Bars; c.", of=mi.ClaimChecks)
    run = {"repeat": "", "command": ["a b", 1], "long": list(range(13)), "in": {"x_y": [1.5, True, None]}, "of": "<é"}
    whole = page.answered("So.").provenance(run).page()
    return re.sub(r"<(style|script)\b.*?</\1>|sha256-[\w+/=]+", "", whole, flags=re.DOTALL)


PAGES: dict[str, Callable[[], str]] = {
    "page, no effect": lambda: page_of(small.patched(donor=np.array([1.0, -1.0, 1.0, -1.0]))),
    "page, lowered sweep": lambda: page_of(small.patched(12)),
    "page, known": lambda: page_of(small.placed(), known=True),
    "page, lowered": lambda: page_of(small.located(-1.0), heading=None),
    "page, many tables": lambda: page_of(replace(small.located(), confirmation=small.confirmed())),
    "page, a metric": lambda: page_of(small.scored(), viewed=True),
    "view, of anything": lambda: (
        View("<t>", "<b>b</b>", {"x": "</script> & <b>"})._repr_html_().replace(shared_script(), "...")
    ),
    "view": viewed,
    "view, one condition": lambda: viewed(0),
    "view, equal lengths": lambda: viewed(1, 1),
    "view, token by token": lambda: viewed(max_span=None),
}

KEPT = Path(__file__).with_name("kept_pictures.txt")
"""All that is drawn, as it was when this file was written: `python tests/pictures_under_test.py` writes it anew, and its diff
is what users will see differently."""
ASKED = """text position xydata segments data xy width height array clim cmap
    color facecolor edgecolor markerfacecolor markeredgecolor linestyle linewidth marker markersize hatch alpha zorder fill
    fontsize ha va rotation boxstyle arrowstyle mutation_scale""".split()
USUAL = """alpha None; hatch None; linewidth 1; ha left; va baseline; rotation 0; fill True; array None; clim (None None);
    marker None; color #000000; linestyle -; linestyle solid; facecolor (); fill False""".replace("\n   ", "").split(
    "; "
)
"""What is not said."""


def plain(value: Any) -> str:
    """A value in few letters, numbers with four digits."""
    if isinstance(value, str | bool) or value is None:
        return str(value)
    if isinstance(value, np.ndarray):
        value = np.ma.filled(value, NAN).tolist()
    if isinstance(value, float | int | np.number):
        return f"{value + 0.0:.4g}"
    if isinstance(value, tuple | list):
        return f"({' '.join(map(plain, value))})"
    return getattr(value, "name", type(value).__name__) + (f" {value.pad:g}" if hasattr(value, "pad") else "")


def coloured(value: Any) -> str:
    """Colours as hex."""
    if value is None or np.ndim(value) == 2:
        return plain([coloured(each) for each in ([] if value is None else value)])
    return to_hex(value, keep_alpha=True).removesuffix("ff")


def told(artist: Artist) -> str:
    """One artist in a line: its kind and what it says of itself."""
    said = []
    for name in ASKED:
        get = getattr(artist, f"get_{name}", None)
        if get is None or (hasattr(artist, "get_xydata") and name in ("data", "xy")):
            continue
        if name.startswith("marker") and artist.get_marker() == "None":  # type: ignore[attr-defined]
            continue
        said.append(f"{name} {coloured(get()) if name.endswith('color') else plain(get())}")
    if isinstance(artist, Annotation) and artist.arrow_patch is not None:
        ends = plain((artist.arrow_patch.shrinkA, artist.arrow_patch.shrinkB))
        said.append(f"from {plain(artist.xyann)} to {plain(artist.xy)}, shrunk {ends}: {told(artist.arrow_patch)}")
    if isinstance(artist, Line2D) and artist.is_dashed():
        said.append(f"dashes {plain(artist._unscaled_dash_pattern[1])}")
    if isinstance(artist, AxesImage):
        said.append(f"middle {artist.norm(0):.4g}")
    if (box := getattr(artist, "get_bbox_patch", lambda: None)()) is not None:
        said.append(told(box))
    if hasattr(artist, "get_paths") and not hasattr(artist, "get_segments"):
        said.append("paths " + plain([path.vertices for path in artist.get_paths()]))
    return f"{type(artist).__name__}: {'; '.join(each for each in said if each not in USUAL)}"


def parts(axes: Axes) -> Iterator[str]:
    """What axes are and hold."""
    yield f"axes: {axes.get_title()!r} {axes.title.get_fontsize():g}, {plain((*axes.get_xlim(), *axes.get_ylim()))}"
    for axis in (axes.xaxis, axes.yaxis):
        words, ticks = axis.label, axis.get_major_ticks()
        labels = [each.get_text() for each in axis.get_ticklabels(which="both")]
        first = ticks[0].label1 if ticks else axis.label
        scale = f"{axis.get_scale()}{getattr(axis.get_transform(), 'linthresh', '')}"
        yield (
            f"axis: {words.get_text()!r} {plain(words.get_fontsize())} {scale}, at {plain(axis.get_ticklocs())}, "
            f"{labels}, {told(first)}"
        )
    colour = to_hex(axes.get_facecolor())
    parts_of = axes.get_subplotspec()
    heights = None if parts_of is None else parts_of.get_gridspec().get_height_ratios()
    shrink = getattr(axes, "_colorbar_info", {}).get("shrink")
    yield f"face {colour}, axis {axes.axison}, ratio {axes.get_aspect()}, heights {plain(heights)}, shrink {shrink}"
    said = (axes.patch, axes.title, axes._left_title, axes._right_title)  # type: ignore[attr-defined]
    for artist in axes.get_children():
        if not isinstance(artist, Axis | Spine | QuadMesh) and artist not in said:
            yield told(artist)
    if (legend := axes.get_legend()) is not None:
        yield from keys(legend)


def keys(legend: Any) -> Iterator[str]:
    """The rows of a legend."""
    yield f"legend: {legend._ncols} columns, frame {legend.get_frame_on()}, at {legend._loc}"
    for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
        yield f"key {text.get_text()!r} {plain(text.get_fontsize())}: {told(handle)}"


def drawn(name: str) -> str:
    """Everything in a picture, or on a page."""
    if name in PAGES:
        return f"=== {name}\n{PAGES[name]()}\n"
    picture = PICTURES[name]()
    above = picture._suptitle  # type: ignore[attr-defined]
    lines = [f"size {plain(picture.get_size_inches())}, {type(picture.get_layout_engine()).__name__}, "]
    lines[0] += "" if above is None else told(above)
    for axes in picture.axes:
        lines += parts(axes)
    for legend in picture.legends:
        lines += keys(legend)
    several = [(line, len(list(same))) for line, same in groupby(lines)]
    return f"=== {name}\n" + "\n".join(f"{n} x {line}" if n > 1 else line for line, n in several) + "\n"


if __name__ == "__main__":
    KEPT.write_text("".join(map(drawn, PICTURES | PAGES)), encoding="utf-8")
