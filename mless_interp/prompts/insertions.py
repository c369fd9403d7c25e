"""Insertions: what is put in, and where.

They work on token ids: joining strings re-merges tokens at the seams and inside runs ("////").
"""

import hashlib
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from typing import Any, Literal

from ..given import check_count, checked
from .conditions import one_of
from .problems import Problem
from .prompt import MAX_UNKNOWN, Prompt, encode, spells_special

Segment = Literal["bos", "template", "system", "question"]
PLACES: tuple[Segment, ...] = ("question", "system", "template", "bos")
"""The segments of a prompt before or after which something can be inserted."""


@checked
@dataclass(frozen=True)
class Insertion:
    """What to insert and where, counted in tokens; make one with the class methods.

    A unit, word or text may name a special token of the tokenizer (`<|reserved_special_token_0|>`): it is inserted as such,
    unlike the text of problems. `InsertedSpan.source` says so.

    The place is `before=` or `after=` a segment of the prompt ("question", "system", "template", "bos": its first or last
    token), or `at=` a token index of the prompt without insertion. The paper's positions: `before="question"` (2, the default),
    `before="system"` (1), `after="question"` (3). Several places, as in `before="question", after="question"` or
    `at=(4, 9)`, share the tokens in equal blocks, from the first place to the last.
    """

    kind: str
    unit: str
    n_tokens: int | None
    before: Segment | tuple[Segment, ...] | None = "question"
    after: Segment | tuple[Segment, ...] | None = None
    at: int | tuple[int, ...] | None = None
    seed: int = 0
    draw: int = 0
    pool: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        one_of(self.kind, KINDS, "insertion")
        if self.n_tokens is not None or self.kind != "text":
            check_count(self.n_tokens, name="n_tokens")
        if not (self._before or self._after or self._at):
            raise ValueError(
                'give a place: before= or after= "question", "system", "template" or "bos", or at=<token index>'
            )
        if not {*self._before, *self._after} <= set(PLACES):
            raise ValueError(
                f"unknown place before={self.before!r} after={self.after!r}; before and after take "
                f"{', '.join(map(repr, PLACES))}, at= takes token indices"
            )
        if any(index < 0 for index in self._at):
            raise ValueError(f"at must be a token index, 0 or more, got {self.at}")

    @property
    def _before(self) -> tuple[Segment, ...]:
        return _several(self.before)

    @property
    def _after(self) -> tuple[Segment, ...]:
        return _several(self.after)

    @property
    def _at(self) -> tuple[int, ...]:
        return _several(self.at)

    @classmethod
    @checked
    def meaningless(cls, unit: str = " /", n_tokens: int = 55, **place: Any) -> "Insertion":
        """A run of one meaningless unit (Mless): 55 slashes in the paper. A unit of k tokens must divide `n_tokens`."""
        return cls("meaningless", unit, n_tokens, **_place(place))

    @classmethod
    @checked
    def meaningful(cls, word: str = "he", n_tokens: int = 55, **place: Any) -> "Insertion":
        """A repeated word with a meaning that does not bear on the question (Mful): 55 times "he" in the paper."""
        if not word.strip():
            raise ValueError("the word to insert is empty")
        return cls("meaningful", " " + word.strip(), n_tokens, **_place(place))

    @classmethod
    @checked
    def random_sentence(cls, n_tokens: int = 55, seed: int = 0, *, draw: int = 0, **place: Any) -> "Insertion":
        """A bag of unrelated words, exactly `n_tokens` tokens without digits, drawn by seed, problem id and draw number.

        Common English words that the tokenizer can encode, in random order: no grammar holds them together. Where it knows
        none of them, its own ordinary tokens (recorded in `InsertedSpan.source`). Sentences that were written by somebody
        are `other_questions`.
        """
        return cls("random_sentence", "", n_tokens, seed=seed, draw=draw, **_place(place))

    @classmethod
    @checked
    def other_questions(
        cls, problems: Iterable[Problem], n_tokens: int = 55, seed: int = 0, *, draw: int = 0, **place: Any
    ) -> "Insertion":
        """Real sentences of the problems' own kind: questions of other problems, cut to exactly `n_tokens` tokens.

        Which ones, and in which order, is drawn by seed, problem id and draw number; a problem's own question is never
        among them. They have meaning, and numbers: a control for "any text", not for "no meaning".
        """
        pool = tuple((problem.id, problem.question.strip()) for problem in problems)
        if len({question for _, question in pool}) < 2:
            raise ValueError("other_questions draws from other problems: give at least 2 with different questions")
        return cls("other_questions", "", n_tokens, seed=seed, draw=draw, pool=pool, **_place(place))

    @classmethod
    @checked
    def repeated_bos(cls, n_tokens: int = 55, **place: Any) -> "Insertion":
        """A run of the tokenizer's beginning-of-sequence token (a control: extra attention sinks)."""
        return cls("repeated_bos", "", n_tokens, **_place(place))

    @classmethod
    @checked
    def text(cls, text: str, n_tokens: int | None = None, **place: Any) -> "Insertion":
        """Any text once, as it is; `n_tokens`, if given, must be its length in tokens."""
        if not text:
            raise ValueError("the text to insert is empty")
        return cls("text", text, n_tokens, **_place(place))

    @classmethod
    @checked
    def named(
        cls,
        kind: str,
        *,
        unit: str | None = None,
        n_tokens: int = 55,
        seed: int = 0,
        problems: Iterable[Problem] = (),
        **place: Any,
    ) -> "Insertion":
        """The insertion of a kind's name, as command lines give it; `unit` is the unit, word or text.

        `problems`: those that `other_questions` draws from.
        """
        one_of(kind, KINDS, "insertion")
        if kind in ("meaningless", "meaningful"):
            given = place if unit is None else {"unit" if kind == "meaningless" else "word": unit, **place}
            return (cls.meaningless if kind == "meaningless" else cls.meaningful)(n_tokens=n_tokens, **given)
        if kind == "random_sentence":
            return cls.random_sentence(n_tokens, seed=seed, **place)
        if kind == "other_questions":
            return cls.other_questions(problems, n_tokens, seed=seed, **place)
        if kind == "repeated_bos":
            return cls.repeated_bos(n_tokens, **place)
        return cls.text(unit or "", **place)

    @property
    def label(self) -> str:
        """A short name for tables and legends: `Mless ' /' x55`."""
        shown = f" {self.unit!r}" if self.unit else ""
        size = f" x{self.n_tokens}" if self.n_tokens is not None else ""
        where = "" if self.where == "before question" else f", {self.where}"
        return f"{KINDS[self.kind].short}{shown}{size}{where}"

    @property
    def where(self) -> str:
        """The place in words: `before question`, `at 4 and at 9`."""
        named = [f"before {segment}" for segment in self._before] + [f"after {segment}" for segment in self._after]
        return " and ".join([*named, *(f"at {index}" for index in self._at)])

    @property
    def length(self) -> int:
        """The number of tokens of an insertion that is counted in tokens (all but a text)."""
        assert self.n_tokens is not None
        return self.n_tokens

    @property
    def repeats(self) -> bool:
        """Whether it is one unit of text again and again."""
        return KINDS[self.kind].ids is _repeated

    def span(self, tokenizer: Any, problem_id: str, *, question: str = "") -> "InsertedSpan":
        """The token ids that this insertion puts into this problem's prompt; its `question` is never drawn from the others.

        Raises `ValueError` if a unit has the unknown token, encodes to nothing or does not divide `n_tokens`.
        """
        others = tuple((other, text) for other, text in self.pool if text != question.strip())
        return KINDS[self.kind].ids(replace(self, pool=others), tokenizer, problem_id)

    def places(self, prompt: Prompt) -> tuple[int, ...]:
        """The token indices at which its blocks go into `prompt`, rising; `ValueError` where it has no such place."""
        found = list(self._at)
        if found and max(found) > len(prompt):
            raise ValueError(f"at={max(found)} is beyond the prompt's {len(prompt)} tokens")
        for segment in (*self._before, *self._after):
            if not prompt.indices(segment):
                raise ValueError(f'the prompt has no {segment} tokens; use before="question" or at=<token index>')
        found += [prompt.indices(segment)[0] for segment in self._before]
        found += [prompt.indices(segment)[-1] + 1 for segment in self._after]
        if len(set(found)) < len(found):
            raise ValueError(f"two of the places ({self.where}) are the same token of this prompt: give each once")
        return tuple(sorted(found))


def _several(place: Any) -> tuple[Any, ...]:
    """None, one or several places as a tuple."""
    if place is None:
        return ()
    return tuple(place) if isinstance(place, Sequence) and not isinstance(place, str) else (place,)


def _place(place: dict[str, Any]) -> dict[str, Any]:
    unknown = set(place) - {"before", "after", "at"}
    if unknown:
        raise TypeError(f"unknown arguments {sorted(unknown)}; the place is given by before=, after= or at=")
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in place.items()}
    return {"before": None, **given} if given else given


@dataclass(frozen=True)
class InsertedSpan:
    """The token ids of an inserted span and where they came from (unit, text, words, tokens, bos token)."""

    ids: tuple[int, ...]
    source: str


@lru_cache(maxsize=1)
def _common_words() -> tuple[str, ...]:
    return tuple((files("mless_interp") / "data" / "common_words.txt").read_text(encoding="utf-8").split())


@lru_cache(maxsize=8)
def _encodable_words(tokenizer: Any) -> dict[int, tuple[tuple[int, ...], ...]]:
    """Token count -> the encodings of all common words of that many tokens that this tokenizer knows."""
    by_size: dict[int, list[tuple[int, ...]]] = {}
    for word in _common_words():
        ids = encode(tokenizer, " " + word)
        if ids and tokenizer.unk_token_id not in ids and tokenizer.decode(list(ids)).strip() == word:
            by_size.setdefault(len(ids), []).append(ids)
    return {size: tuple(found) for size, found in by_size.items()}


@lru_cache(maxsize=8)
def _ordinary_tokens(tokenizer: Any) -> tuple[tuple[int, ...], ...]:
    special = set(tokenizer.all_special_ids)
    texts = ((i, tokenizer.decode([i])) for i in range(len(tokenizer)) if i not in special)
    return tuple((i,) for i, text in texts if text.strip() and not any(c.isdigit() for c in text))


def _keyed(insertion: Insertion, problem_id: str) -> random.Random:
    key = f"{insertion.seed}|{problem_id}|{insertion.draw}"
    return random.Random(int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big"))


def _other_questions(insertion: Insertion, tokenizer: Any, problem_id: str) -> InsertedSpan:
    draw, n_tokens = _keyed(insertion, problem_id), insertion.length
    own = {text for other, text in insertion.pool if other == problem_id}
    texts = [text for other, text in insertion.pool if other != problem_id and text not in own]
    ids: tuple[int, ...] = ()
    for text in draw.sample(texts, len(texts)):
        try:
            ids += encode(tokenizer, " " + text)
        except ValueError as error:
            raise ValueError(f"a question to insert: {error}") from error
        if len(ids) >= n_tokens:
            unknown = ids[:n_tokens].count(tokenizer.unk_token_id) / n_tokens
            if unknown > MAX_UNKNOWN:
                raise ValueError(
                    f"{100 * unknown:.0f} % of the inserted questions' tokens are {tokenizer.unk_token!r}, which this "
                    "tokenizer puts for words that it does not know: draw from problems of the model's own kind"
                )
            return InsertedSpan(ids[:n_tokens], "questions of other problems")
    raise ValueError(f"all other questions together are {len(ids)} tokens, fewer than n_tokens={n_tokens}: give more")


def _random_sentence(insertion: Insertion, tokenizer: Any, problem_id: str) -> InsertedSpan:
    n_tokens, draw = insertion.length, _keyed(insertion, problem_id)
    words = _encodable_words(tokenizer)
    source = "words"
    if 1 not in words or len(words[1]) < 8:
        words, source = {1: _ordinary_tokens(tokenizer)}, "tokens"
    if not words[1]:
        raise ValueError("this tokenizer has no tokens to draw random words from")
    ids: list[int] = []
    while len(ids) < n_tokens:
        fitting = [word for size, found in words.items() if size <= n_tokens - len(ids) for word in found]
        ids += draw.choice(fitting)
    return InsertedSpan(tuple(ids), source)


def _encoded(insertion: Insertion, tokenizer: Any) -> tuple[int, ...]:
    ids = encode(tokenizer, insertion.unit, markers=True)
    if not ids:
        raise ValueError(f"the insertion {insertion.unit!r} encodes to no tokens with this tokenizer")
    if tokenizer.unk_token_id is not None and tokenizer.unk_token_id in ids:
        raise ValueError(
            f"the insertion {insertion.unit!r} becomes the unknown token {tokenizer.unk_token!r} with this tokenizer; "
            "choose a unit that its vocabulary holds"
        )
    return ids


def _source(kind: str, insertion: Insertion, tokenizer: Any) -> str:
    return f"{kind}, with special tokens" if spells_special(tokenizer, insertion.unit) else kind


def _repeated(insertion: Insertion, tokenizer: Any, problem_id: str) -> InsertedSpan:
    ids, n_tokens = _encoded(insertion, tokenizer), insertion.length
    if n_tokens % len(ids):
        raise ValueError(
            f"the unit {insertion.unit!r} is {len(ids)} tokens with this tokenizer, which does not divide "
            f"n_tokens={n_tokens}; use {n_tokens - n_tokens % len(ids) or len(ids)}"
        )
    return InsertedSpan(ids * (n_tokens // len(ids)), _source("unit", insertion, tokenizer))


def _once(insertion: Insertion, tokenizer: Any, problem_id: str) -> InsertedSpan:
    ids = _encoded(insertion, tokenizer)
    if insertion.n_tokens is not None and insertion.n_tokens != len(ids):
        raise ValueError(f"the text {insertion.unit!r} is {len(ids)} tokens, not n_tokens={insertion.n_tokens}")
    return InsertedSpan(ids, _source("text", insertion, tokenizer))


def _bos(insertion: Insertion, tokenizer: Any, problem_id: str) -> InsertedSpan:
    if tokenizer.bos_token_id is None:
        raise ValueError("this tokenizer has no beginning-of-sequence token, so repeated_bos cannot be inserted")
    return InsertedSpan((tokenizer.bos_token_id,) * insertion.length, "bos token")


@dataclass(frozen=True)
class Kind:
    """One kind of insertion: its `short` name in tables, and the `ids` that it puts into a problem's prompt."""

    short: str
    ids: Callable[[Insertion, Any, str], InsertedSpan]


KINDS: dict[str, Kind] = {
    "meaningless": Kind("Mless", _repeated),
    "meaningful": Kind("Mful", _repeated),
    "random_sentence": Kind("random words", _random_sentence),
    "other_questions": Kind("other questions", _other_questions),
    "repeated_bos": Kind("repeated_bos", _bos),
    "text": Kind("text", _once),
}
"""Every kind of insertion by name; each has a constructor of that name in `Insertion`."""
