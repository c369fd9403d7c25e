"""The conditions of methods §2 and the contrasts between them: one table each, which everything reads.

A new condition is one entry in `CONDITIONS`; a new comparison of two of them is one entry in `CONTRASTS`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Positions = Literal["inserted", "base"]
HELD_POSITIONS = ("first", "spread")
"""Where the span itself stands when the question keeps its positions: all at the insertion point's, or just before it."""


@dataclass(frozen=True)
class Condition:
    """One way to run a prompt pair. `title` is its name in pictures, `says` a line of explanation.

    `has_span`: the tokens are those of the inserted prompt. `positions`: whose position ids the tokens of both prompts
    have. `hides(inserted prompt)`: boolean `[dest, src]`, what may not be seen beyond causality (None: everything may).
    `twin`: the condition that gives the tokens of both prompts the same activations (methods §3, I6).
    """

    name: str
    code: str
    has_span: bool
    positions: Positions
    title: str
    says: str
    hides: Callable[[Any], Any] | None = None
    twin: str | None = None


def span_from_others(prompt: Any) -> Any:
    """The span's keys, hidden from every row outside it, in a `Prompt` with an insertion."""
    span = prompt.mask("inserted")
    return span[None, :] & ~span[:, None]


CONDITIONS: dict[str, Condition] = {
    made.name: made
    for made in (
        Condition("base", "C0", False, "base", "without insertion", "the prompt without insertion"),
        Condition("inserted", "C1", True, "inserted", "with insertion", "the prompt with it"),
        Condition(
            "gap",
            "C2",
            False,
            "inserted",
            "without, positions as with it",
            "without it, but the question keeps the position ids that it has with it",
            twin="masked",
        ),
        Condition(
            "masked",
            "C3",
            True,
            "inserted",
            "with, but nobody sees it",
            "with it, but nobody outside the span may see the span",
            hides=span_from_others,
            twin="gap",
        ),
        Condition(
            "held",
            "C4",
            True,
            "base",
            "with, positions as without it",
            "with it, but the question keeps the position ids that it has without it",
        ),
    )
}


@dataclass(frozen=True)
class Contrast:
    """Two conditions: `clean` without the insertion's influence, `corrupted` with it. `says` what differs.

    `changes_from`: the first row that can differ is the first one after the span ("after"), or the span's own ("span").
    """

    name: str
    clean: str
    corrupted: str
    says: str
    changes_from: Literal["after", "span"] = "after"

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
        corrupted = CONDITIONS[self.corrupted]
        return corrupted.has_span and corrupted.hides is None

    def n_changed(self, pair: Any) -> int:
        """How many of a pair's last rows can differ."""
        return pair.n_after + (pair.n_inserted if self.changes_from == "span" else 0)


CONTRASTS: dict[str, Contrast] = {
    made.name: made
    for made in (
        Contrast("content", "masked", "inserted", "the span can be read; positions and length are the same"),
        Contrast("shift", "base", "gap", "the question stands further back; nothing is inserted"),
        Contrast("total", "base", "inserted", "both: the span can be read and the question stands further back"),
        Contrast("held", "base", "held", "the span can be read; the question keeps its positions"),
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
        raise ValueError(f"unknown {what} {name!r}; choose one of {', '.join(known)}")
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
