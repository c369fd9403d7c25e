"""The conditions of methods §2 and the contrasts between them: a new one is one entry in `CONDITIONS` or `CONTRASTS`, and one
that hides the span in a new way says so in `Condition.reads_span`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.arguments import cells_of

if TYPE_CHECKING:  # torch takes seconds, and help texts need the tables alone
    from torch import Tensor

    from .prompt import Prompt
else:
    Tensor = Prompt = object

HELD_POSITIONS = ("first", "spread")
"""Where the span itself stands when the question keeps its positions: all at the insertion point's, or just before it."""


class Hidden(NamedTuple):
    """Boolean `[token]` each: none of the `rows` sees any of the `keys`."""

    rows: Tensor
    keys: Tensor

    @property
    def mask(self) -> Tensor:
        """Boolean `[dest, src]`: True where a row may not see a key."""
        return self.rows[:, None] & self.keys[None, :]


@dataclass(frozen=True)
class Condition:
    """One way to run a prompt pair. `title` is its name in pictures, `says` a line of explanation.

    `prompt`: which of the pair's prompts gives the tokens; "clean" is one of the inserted prompt's length. `positions`: whose
    position ids the tokens of both prompts have. `hides(inserted prompt)`: from which rows which keys are hidden, beyond
    causality (None: everything may be seen). `twin`: the condition that gives the tokens of both prompts the same activations
    (methods §3, I6).
    """

    name: str
    code: str
    prompt: str
    positions: str
    title: str
    says: str
    hides: Callable[[Prompt], Hidden] | None = None
    twin: str | None = None

    @property
    def has_span(self) -> bool:
        """Whether the run has the length of the inserted prompt."""
        return self.prompt != "base"

    @property
    def reads_span(self) -> bool:
        """The tokens of both prompts see the span."""
        return self.has_span and self.hides is not span_from_others


def span_from_others(prompt: Prompt) -> Hidden:
    """Return the span's keys, hidden from every row outside it."""
    span = prompt.mask("inserted")
    return Hidden(~span, span)


def question_from_span(prompt: Prompt) -> Hidden:
    """Return the question's keys, and those behind it (which have read it) that are not inserted, hidden from the span."""
    span, behind = prompt.mask("inserted"), prompt.mask("question").cumsum(0) > 0
    return Hidden(span & behind, ~span & behind)


def span_from_span(prompt: Prompt) -> Hidden:
    """Return the span's keys, hidden from its own rows; `ValueError` where the first token would see nothing."""
    span = prompt.mask("inserted")
    if bool(span[0]):
        raise ValueError("the span holds the first token, which would see nothing at all: let it begin later")
    return Hidden(span, span)


HIDES = {"masked": span_from_others, "blind": question_from_span, "apart": span_from_span}
TWINS = {"gap": "masked", "masked": "gap"}
CONDITIONS = {
    name: Condition(name, f"C{number}", prompt, positions, title, says, HIDES.get(name), TWINS.get(name))
    for number, (name, prompt, positions, title, says) in enumerate(
        cells_of("""
base| base| base| without insertion| the prompt without insertion
inserted| inserted| inserted| with insertion| the prompt with the insertion
gap| base| inserted| without, positions as with it| without the insertion, but with the question's position ids as with it
masked| inserted| inserted| with, but hidden| with the insertion, but no token outside the span can see the span
held| inserted| base| with, positions as without it| with the insertion, but with the question's position ids as without it
blind| inserted| inserted| with, but it cannot see the question| the span cannot see the question or what follows
apart| inserted| inserted| with, but its tokens cannot see one another| the span's tokens cannot see one another or themselves
clean| clean| inserted| with other tokens| another prompt of equal length, from `pairs_from_ids(clean=...)`
    """)
    )
}


@dataclass(frozen=True)
class Contrast:
    """Two conditions: `clean` without the insertion's influence, `corrupted` with it. `says` what differs.

    `changes_from`: the first row that can differ is the first one after the span ("after"), the span's own ("span"), or the
    first one whose token differs, or the span's ("tokens"). `cuts`: what knocking a head out does to its attention, in words
    ("" where the contrast is none of what may be seen).
    """

    name: str
    clean: str
    corrupted: str
    changes_from: str
    says: str
    cuts: str = ""

    @property
    def conditions(self) -> tuple[Condition, Condition]:
        """(clean, corrupted)."""
        return CONDITIONS[self.clean], CONDITIONS[self.corrupted]

    @property
    def equal_length(self) -> bool:
        """Both runs hold the same tokens; otherwise they are compared through the alignment."""
        return self.conditions[0].has_span == self.conditions[1].has_span

    @property
    def same_positions(self) -> bool:
        """The tokens of both prompts stand at the same positions in both runs."""
        return self.conditions[0].positions == self.conditions[1].positions

    @property
    def reads_span(self) -> bool:
        """What differs is that the span can be read."""
        return [condition.reads_span for condition in self.conditions] == [False, True]

    @property
    def reads_inserted(self) -> bool:
        """One of the two runs holds inserted tokens that are read, so that other tokens make another effect."""
        return any(condition.reads_span for condition in self.conditions)

    def cut(self, prompt: Prompt) -> Hidden:
        """Return what the clean run may not see and the corrupted one may: hiding it from one head knocks that out;
        `ValueError` where more differs."""
        hides = self.conditions[0].hides
        if not self.cuts or hides is None:
            known = ", ".join(repr(made.name) for made in CONTRASTS.values() if made.cuts)
            raise ValueError(
                f"the runs of contrast {self.name!r} differ in more than in what may be seen, so no head can be cut off "
                f"from it: use one of {known}"
            )
        return hides(prompt)

    def start(self, pair: Any, condition: Condition) -> int:
        """Return the first row that can differ, in the run of one of the two conditions."""
        if self.changes_from == "tokens":
            return int(pair.first_change)
        pair.need_span(f"contrast {self.name!r}")
        first, stop = pair.spans[0]
        return first if self.changes_from == "span" or not condition.has_span else stop


CUTS = {
    "content": "attention to the span masked, renormalised",
    "computed": "the span's attention to the question masked, renormalised",
    "inside": "the span's attention to itself masked, renormalised",
}
CONTRASTS = {
    name: Contrast(name, clean, corrupted, changes_from, says, CUTS.get(name, ""))
    for name, clean, corrupted, changes_from, says in cells_of("""
content  | masked | inserted | after  | the span can be read; positions and length are the same
shift    | base   | gap      | after  | the question is N positions later; nothing is inserted
total    | base   | inserted | after  | both: the span can be read, and the question is N positions later
held     | base   | held     | after  | the span can be read; the question keeps its positions
presence | masked | blind    | after  | the span can be read, but has not read the question
computed | blind  | inserted | span   | the span has read the question; all tokens can read the span in both
inside   | apart  | inserted | span   | the span's rows can read the span; all other tokens can in both
replaced | clean  | inserted | tokens | some tokens differ; length and positions are the same
    """)
}
OF_CIRCUITS = tuple(name for name, each in CONTRASTS.items() if each.cuts or each.changes_from == "tokens")
"""Contrasts in which a head can be cut off from what differs, or given what it wrote clean."""
LOCATED = ("content", "computed", "inside", "shift", "total", "replaced")  # contrasts that heads are located by

DIRECTIONS = {"denoising": -1, "noising": 1}
"""How heads are patched -> the sign that turns the change of patching (patched - receiving) into a head's part of the
insertion's effect (corrupted - clean); denoising puts a clean activation into the corrupted run. No other place knows it."""


def as_words(table: Mapping[str, Condition | Contrast]) -> str:
    """Return a table of conditions or contrasts as one sentence, for help texts."""
    form = {Contrast: "{0.name} ({0.clean} -> {0.corrupted})", Condition: "{0.name} ({0.code}): {0.says}"}
    return "; ".join(form[type(each)].format(each) for each in table.values())
