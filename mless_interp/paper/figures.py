"""Which model, layer and heads each of the five figures shows, and where the paper's own numbers disagree."""

from dataclasses import dataclass
from typing import Any, Literal

from ..heads import Head
from ..models.base import Model
from ..models.load import load_model
from ..prompts.problems import Problem

Kind = Literal["with_and_without", "against_random_sentence", "layers", "bars_and_head"]


@dataclass(frozen=True)
class PaperModel:
    """A model of the figures; `title` is how the figures write it. `source` says where its geometry comes from."""

    key: str
    title: str
    hub_id: str
    architecture: Literal["qwen2", "llama", "gemma3"]
    n_layers: int
    n_heads: int
    n_key_value_heads: int
    first_token_left_out: bool
    source: str


MODELS: dict[str, PaperModel] = {
    made.key: made
    for made in (
        PaperModel(
            "qwen2.5-math-7b",
            "Qwen2.5-Math-7B",
            "Qwen/Qwen2.5-Math-7B",
            "qwen2",
            28,
            28,
            4,
            False,
            "config.json on the hub",
        ),
        PaperModel(
            "llama-3.1-8b-instruct",
            "Llama3.1-8B-Instruct",
            "meta-llama/Llama-3.1-8B-Instruct",
            "llama",
            32,
            32,
            8,
            True,
            "from memory; the loaded model's own geometry is checked against the heads asked for",
        ),
        PaperModel(
            "gemma-3-4b-it",
            "Gemma3-4b-it",
            "google/gemma-3-4b-it",
            "gemma3",
            34,
            8,
            4,
            True,
            "from memory; the loaded model's own geometry is checked against the heads asked for",
        ),
    )
}
"""Appendix I leaves out the first token for Llama and Gemma."""


@dataclass(frozen=True)
class Panel:
    """One column of a figure: a model (a key of `MODELS`) and a head, zero-based; `title` is the paper's, one-based."""

    model: str
    head: Head

    @property
    def title(self) -> str:
        return f"{MODELS[self.model].title} {self.head.paper_label}"


@dataclass(frozen=True)
class Figure:
    """One of the five figures: what it shows and where; `doubt` is what its description leaves open."""

    key: str
    number: str
    kind: Kind
    panels: tuple[Panel, ...]
    caption: str
    doubt: str

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(panel.model for panel in self.panels))

    def heads(self, model: str) -> tuple[Head, ...]:
        """The heads shown of one model."""
        return tuple(panel.head for panel in self.panels if panel.model == model)


def _panels(model: str, *heads: tuple[int, int]) -> tuple[Panel, ...]:
    return tuple(Panel(model, Head.from_paper(layer=layer, head=head)) for layer, head in heads)


_QWEN, _LLAMA, _GEMMA = MODELS
_WITH_AND_WITHOUT = (
    "Average attention weight with and without meaningless tokens; below, the whole sequence with the span shaded."
)

FIGURES: dict[str, Figure] = {
    made.key: made
    for made in (
        Figure(
            "000",
            "Figure 13",
            "with_and_without",
            _panels(_QWEN, (1, 1), (1, 2), (1, 8)),
            _WITH_AND_WITHOUT,
            'A caption sees "a slight increase" inside the span; the paper says near zero.',
        ),
        Figure(
            "001",
            "Figure 11",
            "against_random_sentence",
            (*_panels(_QWEN, (1, 1)), *_panels(_LLAMA, (1, 27)), *_panels(_GEMMA, (1, 8))),
            "Attention weights with meaningless tokens and with a random sentence in their place, three models.",
            "Sentence and length are not given.",
        ),
        Figure(
            "002",
            "Figure 9",
            "layers",
            _panels(_QWEN, (1, 22), (2, 22), (3, 22)),
            "Head 22 of the first three layers with and without meaningless tokens.",
            "Captions of the same image differ about its peaks and agree word for word about layers 2 and 3.",
        ),
        Figure(
            "003",
            "Figure 18",
            "with_and_without",
            _panels(_LLAMA, (1, 20), (1, 25), (1, 26)),
            _WITH_AND_WITHOUT,
            "A caption swaps the two colours: it says that attention rises, its own lower row that it falls.",
        ),
        Figure(
            "004",
            "Figure 10",
            "bars_and_head",
            _panels(_QWEN, (1, 14)),
            "MATH-500 accuracy and the average attention of head 14: none, meaningless and meaningful tokens.",
            "Layer and model of the head are not named; Figure 14 shows layer 1 head 14 of Qwen2.5-Math-7B.",
        ),
    )
}

SHOWN_HEADS: dict[str, tuple[Head, ...]] = {
    _QWEN: tuple(Head.from_paper(layer=1, head=h) for h in (1, 2, 8, 12, 13, 14, 17, 22, 26, 28)),
    _LLAMA: tuple(Head.from_paper(layer=1, head=h) for h in (2, 5, 7, 13, 16, 17, 20, 25, 26, 27, 28, 29, 31)),
    _GEMMA: tuple(Head.from_paper(layer=1, head=h) for h in (1, 3, 4, 8)),
}
"""Every first-layer head that any figure shows; the paper gives no rule by which they were chosen."""


@dataclass(frozen=True)
class Contradiction:
    """Two or more places of the paper (or of the descriptions of its figures) that say different things."""

    about: str
    readings: tuple[tuple[str, str], ...]


CONTRADICTIONS: tuple[Contradiction, ...] = (
    Contradiction(
        "MATH-500 accuracy of Llama-3.1-8B-Instruct without insertion",
        (("Table 1", "41.8"), ("Tables 2 and 3a", "43.0"), ("Table 5", "35.4"), ("Figure 10, read off", "about 44")),
    ),
    Contradiction(
        "MATH-500 accuracy of Qwen2.5-Math-1.5B without insertion",
        (("Table 1", "63.9"), ("Table 2", "63.8"), ("Table 5", "63.6")),
    ),
    Contradiction("MATH-500 accuracy of Qwen2.5-Math-1.5B with ARM", (("Table 2", "67.0"), ("Table 8", "67.8"))),
    Contradiction("AIME24 of Qwen2.5-Math-7B with meaningless tokens", (("Table 1", "23.3"), ("Table 3a", "24.4"))),
    Contradiction(
        "the inserted token",
        (("text and code", "slash"), ("Table 5's header and the examples of Appendix J", "backslash")),
    ),
    Contradiction(
        "what lambda is in Eq. 2", (("text", "the drop percentage"), ("Eq. 2", "the share of attention that is kept"))
    ),
    Contradiction(
        "Figure 18: which curve is higher",
        (("text", "without the tokens"), ("its caption", "with the tokens (colours swapped)")),
    ),
    Contradiction(
        "attention inside the span",
        (("text", "near zero"), ("scale of the figures", "0.005 to 0.01 a token, about what uniform attention gives")),
    ),
)


def load_panel_model(key: str, *, tiny: bool = False, directory: str | None = None, **options: Any) -> Model:
    """A model of the figures: from `directory` or the hub, with `load_model`'s options, or its small random stand-in
    (`tiny`, which takes `backend` and `attn_implementation` only).

    Raises `ValueError` for an unknown key.
    """
    if key not in MODELS:
        raise ValueError(f"no model {key!r} in the figures; there are {', '.join(MODELS)}")
    model = MODELS[key]
    if not tiny:
        return load_model(directory or model.hub_id, **options)
    from ..ground_truth.stand_ins import stand_in

    return stand_in(
        model.architecture,
        name=model.title,
        n_heads=model.n_heads,
        n_key_value_heads=model.n_key_value_heads,
        **options,
    )


def stand_in_problems(n: int, *, seed: int = 0) -> tuple[Problem, ...]:
    """Problems that the tiny stand-ins can read."""
    from ..ground_truth.stand_ins import stand_in_problems as draw

    return draw(n, seed=seed)
