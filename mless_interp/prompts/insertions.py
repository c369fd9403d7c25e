"""Insertions: what is put in, and where.

They work on token ids: joining strings re-merges tokens at the seams and inside runs ("////").
"""

import hashlib
import random
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any, Literal

from .problems import Problem
from .prompt import Prompt, encode

Kind = Literal["meaningless", "meaningful", "random_sentence", "other_questions", "repeated_bos", "text"]
Before = Literal["question", "system"]


@dataclass(frozen=True)
class Insertion:
    """What to insert and where, counted in tokens; make one with the class methods.

    The place is one of `before="question"` (default: the paper's position 2), `before="system"` (position 1),
    `after="question"` (position 3) or `at=` a token index of the prompt without insertion.
    """

    kind: Kind
    unit: str
    n_tokens: int | None
    before: Before | None = "question"
    after: Literal["question"] | None = None
    at: int | None = None
    seed: int = 0
    draw: int = 0
    pool: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        counted = self.n_tokens is not None or self.kind != "text"
        if counted and (isinstance(self.n_tokens, bool) or not isinstance(self.n_tokens, int)):
            raise TypeError(f"n_tokens must be a whole number, got {self.n_tokens!r}")
        if self.n_tokens is not None and self.n_tokens <= 0:
            raise ValueError(f"n_tokens must be 1 or more, got {self.n_tokens}")
        if (self.before is not None) + (self.after is not None) + (self.at is not None) != 1:
            raise ValueError('give one place: before="question" or "system", after="question", or at=<token index>')
        if self.before not in (None, "question", "system") or self.after not in (None, "question"):
            raise ValueError(
                f'unknown place before={self.before!r} after={self.after!r}; use before="question", before="system", '
                'after="question" or at=<token index>'
            )
        if self.at is not None and self.at < 0:
            raise ValueError(f"at must be a token index, 0 or more, got {self.at}")

    @classmethod
    def meaningless(cls, unit: str = " /", n_tokens: int = 55, **place: Any) -> "Insertion":
        """A run of one meaningless unit (Mless): 55 slashes in the paper. A unit of k tokens must divide `n_tokens`."""
        return cls("meaningless", unit, n_tokens, **_place(place))

    @classmethod
    def meaningful(cls, word: str = "he", n_tokens: int = 55, **place: Any) -> "Insertion":
        """A repeated word with a meaning that does not bear on the question (Mful): 55 times "he" in the paper."""
        if not word.strip():
            raise ValueError("the word to insert is empty")
        return cls("meaningful", " " + word.strip(), n_tokens, **_place(place))

    @classmethod
    def random_sentence(cls, n_tokens: int = 55, seed: int = 0, *, draw: int = 0, **place: Any) -> "Insertion":
        """A bag of unrelated words, exactly `n_tokens` tokens without digits, drawn by seed, problem id and draw number.

        Common English words that the tokenizer can encode, in random order: no grammar holds them together. Where it knows
        none of them, its own ordinary tokens (recorded in `InsertedSpan.source`). Sentences that were written by somebody
        are `other_questions`.
        """
        return cls("random_sentence", "", n_tokens, seed=seed, draw=draw, **_place(place))

    @classmethod
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
    def repeated_bos(cls, n_tokens: int = 55, **place: Any) -> "Insertion":
        """A run of the tokenizer's beginning-of-sequence token (a control: extra attention sinks)."""
        return cls("repeated_bos", "", n_tokens, **_place(place))

    @classmethod
    def text(cls, text: str, n_tokens: int | None = None, **place: Any) -> "Insertion":
        """Any text once, as it is; `n_tokens`, if given, must be its length in tokens."""
        if not text:
            raise ValueError("the text to insert is empty")
        return cls("text", text, n_tokens, **_place(place))

    @classmethod
    def named(
        cls, kind: str, *, unit: str | None = None, n_tokens: int = 55, seed: int = 0, **place: Any
    ) -> "Insertion":
        """The insertion of a kind's name, as command lines give it; `unit` is the unit, word or text."""
        if kind in ("meaningless", "meaningful"):
            given = place if unit is None else {"unit" if kind == "meaningless" else "word": unit, **place}
            return (cls.meaningless if kind == "meaningless" else cls.meaningful)(n_tokens=n_tokens, **given)
        if kind == "random_sentence":
            return cls.random_sentence(n_tokens, seed=seed, **place)
        if kind == "repeated_bos":
            return cls.repeated_bos(n_tokens, **place)
        if kind == "text":
            return cls.text(unit or "", **place)
        raise ValueError(
            f"unknown insertion {kind!r}; choose one of meaningless, meaningful, random_sentence, repeated_bos, text"
        )

    @property
    def label(self) -> str:
        """A short name for tables and legends: `Mless ' /' x55`."""
        name = {
            "meaningless": "Mless",
            "meaningful": "Mful",
            "random_sentence": "random words",
            "other_questions": "other questions",
        }.get(self.kind)
        shown = f" {self.unit!r}" if self.unit else ""
        size = f" x{self.n_tokens}" if self.n_tokens is not None else ""
        return f"{name or self.kind}{shown}{size}"

    def span(self, tokenizer: Any, problem_id: str) -> "InsertedSpan":
        """The token ids that this insertion puts into this problem's prompt.

        Raises `ValueError` if a unit has the unknown token, encodes to nothing or does not divide `n_tokens`.
        """
        if self.kind == "repeated_bos":
            if tokenizer.bos_token_id is None:
                raise ValueError(
                    "this tokenizer has no beginning-of-sequence token, so repeated_bos cannot be inserted"
                )
            assert self.n_tokens is not None
            return InsertedSpan((tokenizer.bos_token_id,) * self.n_tokens, "bos token")
        if self.kind == "random_sentence":
            assert self.n_tokens is not None
            return _random_sentence(tokenizer, self.n_tokens, f"{self.seed}|{problem_id}|{self.draw}")
        if self.kind == "other_questions":
            assert self.n_tokens is not None
            own = {text for other, text in self.pool if other == problem_id}
            others = [text for other, text in self.pool if other != problem_id and text not in own]
            return _cut_questions(tokenizer, others, self.n_tokens, f"{self.seed}|{problem_id}|{self.draw}")
        ids = encode(tokenizer, self.unit)
        if not ids:
            raise ValueError(f"the insertion {self.unit!r} encodes to no tokens with this tokenizer")
        if tokenizer.unk_token_id is not None and tokenizer.unk_token_id in ids:
            raise ValueError(
                f"the insertion {self.unit!r} becomes the unknown token {tokenizer.unk_token!r} with this tokenizer; "
                "choose a unit that its vocabulary holds"
            )
        if self.kind == "text":
            if self.n_tokens is not None and self.n_tokens != len(ids):
                raise ValueError(f"the text {self.unit!r} is {len(ids)} tokens, not n_tokens={self.n_tokens}")
            return InsertedSpan(ids, "text")
        assert self.n_tokens is not None
        if self.n_tokens % len(ids):
            raise ValueError(
                f"the unit {self.unit!r} is {len(ids)} tokens with this tokenizer, which does not divide "
                f"n_tokens={self.n_tokens}; use {self.n_tokens - self.n_tokens % len(ids) or len(ids)}"
            )
        return InsertedSpan(ids * (self.n_tokens // len(ids)), "unit")

    def place(self, prompt: Prompt) -> int:
        """The token index at which the span goes into `prompt`."""
        if self.at is not None:
            if self.at > len(prompt):
                raise ValueError(f"at={self.at} is beyond the prompt's {len(prompt)} tokens")
            return self.at
        segment = self.before or self.after
        assert segment is not None
        where = prompt.indices(segment)
        if not where:
            raise ValueError(f'the prompt has no {segment} tokens; use before="question" or at=<token index>')
        return where[0] if self.before else where[-1] + 1


def _place(place: dict[str, Any]) -> dict[str, Any]:
    unknown = set(place) - {"before", "after", "at"}
    if unknown:
        raise TypeError(f"unknown arguments {sorted(unknown)}; the place is given by before=, after= or at=")
    return {"before": None, **place} if place else place


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


def _keyed(key: str) -> random.Random:
    return random.Random(int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big"))


def _cut_questions(tokenizer: Any, texts: list[str], n_tokens: int, key: str) -> InsertedSpan:
    draw = _keyed(key)
    ids: list[int] = []
    for text in draw.sample(texts, len(texts)):
        ids += encode(tokenizer, " " + text)
        if len(ids) >= n_tokens:
            return InsertedSpan(tuple(ids[:n_tokens]), "questions of other problems")
    raise ValueError(f"all other questions together are {len(ids)} tokens, fewer than n_tokens={n_tokens}: give more")


def _random_sentence(tokenizer: Any, n_tokens: int, key: str) -> InsertedSpan:
    draw = _keyed(key)
    words = _encodable_words(tokenizer)
    source = "words"
    if 1 not in words or len(words[1]) < 8:
        words, source = {1: _ordinary_tokens(tokenizer)}, "tokens"
    if not words[1]:
        raise ValueError("this tokenizer has no tokens to draw a random sentence from")
    ids: list[int] = []
    while len(ids) < n_tokens:
        fitting = [word for size, found in words.items() if size <= n_tokens - len(ids) for word in found]
        ids += draw.choice(fitting)
    return InsertedSpan(tuple(ids), source)
