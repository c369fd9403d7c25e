"""Which model, layer and heads each of the five figures shows, and the accuracies that the paper prints."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ..core.heads import Head
from ..data import paper_entries, paper_table
from ..runtime.text_safety import short_name

if TYPE_CHECKING:  # pandas takes a second
    import pandas as pd


@dataclass(frozen=True)
class PaperModel:
    """Describe a model of the figures; `title` is how they write it."""

    key: str
    title: str
    hub_id: str
    architecture: Literal["qwen2", "llama", "gemma3"]
    n_layers: int
    n_heads: int
    n_key_value_heads: int


_DATA = paper_entries("figures")

MODELS: dict[str, PaperModel] = {entry["key"]: PaperModel(**entry) for entry in _DATA["models"]}
TITLES: dict[str, str] = _DATA["titles"] | {key: made.title for key, made in MODELS.items()}


@dataclass(frozen=True)
class Figure:
    """Describe one of the five figures: `panels` are models (keys of `MODELS`) and heads, zero-based; `doubt` is what the paper
    leaves open, if anything."""

    key: str
    number: str
    kind: str
    panels: tuple[tuple[str, Head], ...]
    caption: str
    doubt: str

    @property
    def models(self) -> tuple[str, ...]:
        """Return the models shown."""
        return tuple(dict.fromkeys(model for model, _ in self.panels))

    def heads(self, model: str) -> tuple[Head, ...]:
        """Return the heads shown of one model."""
        return tuple(head for shown, head in self.panels if shown == model)


FIGURES: dict[str, Figure] = {
    entry["key"]: Figure(
        **entry | {"panels": tuple((model, Head.from_paper(layer=at, head=h)) for model, at, h in entry["panels"])}
    )
    for entry in _DATA["figures"]
}


def figure_named(name: str) -> Figure:
    """Return a figure by its key ("000") or by the paper's number ("13", "Figure 13"); `ValueError` lists them."""
    words = name.strip().lower().removeprefix("figure").removeprefix("fig").lstrip(". ")
    for figure in FIGURES.values():
        if words in (figure.key, figure.number.removeprefix("Figure ")):
            return figure
    known = ", ".join(f"{figure.number.removeprefix('Figure ')} ({key})" for key, figure in FIGURES.items())
    raise ValueError(f"unknown figure {name!r}; choose one of the paper's {known}")


def title_of(model: str) -> str:
    """Return a model as people write it: the paper's by their titles, one from a folder by the folder's name.

    >>> title_of("qwen2.5-math-7b"), title_of("results/model"), title_of("Qwen/Qwen2.5-7B")
    ('Qwen2.5-Math-7B', 'results/model', 'Qwen/Qwen2.5-7B')
    """
    return str(TITLES.get(key_of(model), short_name(model)))


def key_of(model: str) -> str:
    """Return the key of a model of the paper, from its key, title or hub id in any case; other names stay as they are."""
    names = {made.hub_id.lower(): key for key, made in MODELS.items()}
    names |= {name.lower(): key for key, title in TITLES.items() for name in (key, title)}
    return names.get(model.lower(), model)


def published() -> "pd.DataFrame":
    """Return every accuracy that the paper prints, in `percent`, with the table (`source`) that prints it (Table 1: means of
    five runs), without intervals. `treatment` is none, mless (slashes), mful ("he"), arm or question_mark."""
    import pandas as pd

    table = pd.DataFrame(paper_table("published"))
    return table.assign(percent=table["percent"].astype(float), approximate=table["approximate"] == "yes")
