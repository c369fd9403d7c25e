"""The conditions of methods §2 and the contrasts between them: one table each, which everything reads.

A new condition is one entry in `CONDITIONS`; a new comparison of two of them is one entry in `CONTRASTS`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from ..core.arguments import nearest

Positions = Literal["inserted", "base"]
HELD_POSITIONS = ("first", "spread")
"""Where the span itself stands when the question keeps its positions: all at the insertion point's, or just before it."""


class Hidden(NamedTuple):
    """Boolean `[token]` each: none of the `rows` sees any of the `keys`."""

    rows: Any
    keys: Any

    @property
    def mask(self) -> Any:
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
    prompt: Literal["base", "inserted", "clean"]
    positions: Positions
    title: str
    says: str
    hides: Callable[[Any], Hidden] | None = None
    twin: str | None = None

    @property
    def has_span(self) -> bool:
        """Whether the run has the length of the inserted prompt."""
        return self.prompt != "base"

    @property
    def reads_span(self) -> bool:
        """The tokens of both prompts see the span."""
        return self.has_span and self.hides is not span_from_others


def span_from_others(prompt: Any) -> Hidden:
    """The span's keys, hidden from every row outside it, in a `Prompt` with an insertion."""
    span = prompt.mask("inserted")
    return Hidden(~span, span)


def question_from_span(prompt: Any) -> Hidden:
    """The question's keys, hidden from the span's rows, in a `Prompt` with an insertion.

    The question and everything after it that is not inserted: what stands behind a question has read it, as the end of a
    chat template's turn has.
    """
    span, behind = prompt.mask("inserted"), prompt.mask("question").cumsum(0) > 0
    return Hidden(span & behind, ~span & behind)


def span_from_span(prompt: Any) -> Hidden:
    """The span's keys, hidden from its own rows, in a `Prompt` with something before the span that they can see instead."""
    span = prompt.mask("inserted")
    if bool(span[0]):
        raise ValueError("the span holds the first token, which would see nothing at all: let it begin later")
    return Hidden(span, span)


CONDITIONS: dict[str, Condition] = {
    made.name: made
    for made in (
        Condition("base", "C0", "base", "base", "without insertion", "the prompt without insertion"),
        Condition("inserted", "C1", "inserted", "inserted", "with insertion", "the prompt with it"),
        Condition(
            "gap",
            "C2",
            "base",
            "inserted",
            "without, positions as with it",
            "without it, but the question keeps the position ids that it has with it",
            twin="masked",
        ),
        Condition(
            "masked",
            "C3",
            "inserted",
            "inserted",
            "with, but nobody sees it",
            "with it, but no token outside the span can see the span",
            hides=span_from_others,
            twin="gap",
        ),
        Condition(
            "held",
            "C4",
            "inserted",
            "base",
            "with, positions as without it",
            "with it, but the question keeps the position ids that it has without it",
        ),
        Condition(
            "blind",
            "C5",
            "inserted",
            "inserted",
            "with, but it cannot see the question",
            "with it, but the span may not see the question (or what has read it)",
            hides=question_from_span,
        ),
        Condition(
            "apart",
            "C6",
            "inserted",
            "inserted",
            "with, but its tokens cannot see one another",
            "with it, but the span's rows may not see the span",
            hides=span_from_span,
        ),
        Condition(
            "clean",
            "C7",
            "clean",
            "inserted",
            "with other tokens",
            "the clean prompt of a pair of equal length, as `pairs_from_ids(clean=...)` makes them",
        ),
    )
}


@dataclass(frozen=True)
class Contrast:
    """Two conditions: `clean` without the insertion's influence, `corrupted` with it. `says` what differs.

    `changes_from`: the first row that can differ is the first one after the span ("after"), the span's own ("span"), or the
    first one whose token differs, or the span's ("tokens").
    `cuts`: what a head that is knocked out can no longer do, in words ("" where the contrast is none of what may be seen).
    """

    name: str
    clean: str
    corrupted: str
    says: str
    changes_from: Literal["after", "span", "tokens"] = "after"
    cuts: str = ""

    @property
    def conditions(self) -> tuple[Condition, Condition]:
        """(clean, corrupted)."""
        return CONDITIONS[self.clean], CONDITIONS[self.corrupted]

    @property
    def equal_length(self) -> bool:
        """Both runs hold the same tokens; otherwise they are compared through the alignment."""
        clean, corrupted = self.conditions
        return clean.has_span == corrupted.has_span

    @property
    def same_positions(self) -> bool:
        """The tokens of both prompts stand at the same positions in both runs."""
        clean, corrupted = self.conditions
        return clean.positions == corrupted.positions

    @property
    def reads_span(self) -> bool:
        """What differs is that the span can be read."""
        clean, corrupted = self.conditions
        return corrupted.reads_span and not clean.reads_span

    @property
    def reads_inserted(self) -> bool:
        """One of the two runs holds inserted tokens that are read, so that other tokens make another effect."""
        return any(condition.reads_span for condition in self.conditions)

    def cut(self, prompt: Any) -> Hidden:
        """What the clean run may not see and the corrupted one may; `ValueError` where that is not all that differs.

        A head is knocked out by hiding these keys from these rows for this head alone.
        """
        hides = self.conditions[0].hides
        if not self.cuts or hides is None:
            known = ", ".join(f"{made.name!r}" for made in CONTRASTS.values() if made.cuts)
            raise ValueError(
                f"the runs of contrast {self.name!r} differ in more than in what may be seen, so no head can be cut off "
                f"from it: use one of {known}"
            )
        return hides(prompt)

    def start(self, pair: Any, condition: Condition) -> int:
        """The first row that can differ, in the run of one of the two conditions."""
        if self.changes_from == "tokens":
            return int(pair.first_change)
        pair.need_span(f"contrast {self.name!r}")
        first, stop = pair.spans[0]
        return first if self.changes_from == "span" or not condition.has_span else stop


CONTRASTS: dict[str, Contrast] = {
    made.name: made
    for made in (
        Contrast(
            "content",
            "masked",
            "inserted",
            "the span can be read; positions and length are the same",
            cuts="see the span from the rows after it",
        ),
        Contrast("shift", "base", "gap", "the question moves back by N positions; nothing is inserted"),
        Contrast("total", "base", "inserted", "both: the span can be read and the question moves back"),
        Contrast("held", "base", "held", "the span can be read; the question keeps its positions"),
        Contrast(
            "presence",
            "masked",
            "blind",
            "the span can be read, but has not read the question",
        ),
        Contrast(
            "computed",
            "blind",
            "inserted",
            "the span has read the question; all tokens can read the span in both",
            changes_from="span",
            cuts="see the question from the span's rows",
        ),
        Contrast(
            "inside",
            "apart",
            "inserted",
            "the span's rows can read the span; all other tokens can in both",
            changes_from="span",
            cuts="see the span from its own rows",
        ),
        Contrast(
            "replaced",
            "clean",
            "inserted",
            "some tokens are others; length and positions are the same",
            changes_from="tokens",
        ),
    )
}

DIRECTIONS = {"denoising": -1, "noising": 1}
"""How heads are patched -> what turns the change that patching makes (patched - receiving) into the part that a head carries
of the insertion's effect (corrupted - clean). Denoising puts a clean activation into the corrupted run and takes that part
out, noising puts a corrupted one into the clean run and brings it in. No other place knows a sign."""


def one_of(name: Any, known: Any, what: str) -> Any:
    """The entry of that name; `ValueError` lists the names.

    >>> one_of("shift", CONTRASTS, "contrast").clean
    'base'
    """
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"unknown {what} {name!r}; choose one of {', '.join(known)}{nearest(name, known)}")
    return known[name]


def several_of(names: Any, known: Any, what: str) -> tuple[str, ...]:
    """One or more different names of `known`, as a tuple; `ValueError` lists what there is.

    >>> several_of(["shift"], CONTRASTS, "contrast")
    ('shift',)
    """
    if isinstance(names, str) or not names or len(set(names)) != len(names):
        raise ValueError(f"{what}s must be one or more different names of {', '.join(known)}, got {names!r}")
    for name in names:
        one_of(name, known, what)
    return tuple(names)


def as_words(table: dict[str, Any]) -> str:
    """A table of conditions or contrasts as one sentence, for help texts.

    >>> as_words(CONTRASTS).partition(";")[0]
    'content (masked -> inserted)'
    """
    if all(isinstance(entry, Contrast) for entry in table.values()):
        return "; ".join(f"{entry.name} ({entry.clean} -> {entry.corrupted})" for entry in table.values())
    return "; ".join(f"{entry.name} ({entry.code}): {entry.says}" for entry in table.values())
