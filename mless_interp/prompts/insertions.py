"""Insertions: what is put in, and where, as token ids (joined strings re-merge tokens at the seams and inside runs)."""

import hashlib
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from itertools import product
from typing import Any, Literal, TypedDict, Unpack

from ..core.arguments import Arguments, check_count, checked, one_of
from .problems import Problem
from .prompt import MAX_UNKNOWN, Prompt, Tokenizer, encode_part, encode_within

Segment = Literal["bos", "template", "system", "question", "answer"]
COMMON_WORDS = files("mless_interp") / "data" / "common_words.txt"
PLACES: tuple[Segment, ...] = ("question", "system", "template", "bos")
"""The segments of a prompt before or after which something can be inserted; `before="answer"` is the prompt's end."""


class Place(TypedDict, total=False):
    """Where an insertion stands: see `Insertion`."""

    before: Segment | tuple[Segment, ...] | None
    after: Segment | tuple[Segment, ...] | None
    at: int | tuple[int, ...] | None


AT = tuple(Place.__annotations__)


@checked
@dataclass(frozen=True)
class Insertion:
    """An insertion: what to insert and where, counted in tokens. Make one with the class methods.

    The place is `before=` or `after=` a segment of the prompt ("question", "system", "template", "bos": its first or last
    token), or `at=` a token index of the prompt without insertion; `before="answer"` is the prompt's end. The paper's
    positions: `before="question"` (2, the default), `before="system"` (1), `after="question"` (3). Several places, as in
    `before="question", after="question"` or `at=(4, 9)`, share the tokens in equal blocks, from the first place to the last.

    A unit, word or text may name a special token of the tokenizer, unlike the text of problems, which is text.
    """

    kind: str
    unit: str
    n_tokens: int | None
    before: Segment | tuple[Segment, ...] | None = None
    after: Segment | tuple[Segment, ...] | None = None
    at: int | tuple[int, ...] | None = None
    seed: int = 0
    draw: int = 0
    pool: tuple[tuple[str, str], ...] = ()
    times: int = 1
    token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        kind = one_of(self.kind, KINDS, "insertion")
        if self.n_tokens is not None or kind.counted:
            check_count(self.n_tokens, name="n_tokens")
        check_count(self.times, name="times")
        if kind.unit in ("unit", "word", "key", "text", "token_ids") and not (self.unit or self.token_ids):
            raise ValueError(f"{self.kind} needs the {kind.unit} to insert, which is empty")
        if self.kind == "whitespace" and not self.unit.isspace():
            raise ValueError(
                f"white space is blanks and line ends (in a shell: $'\\n'), got {self.unit!r}; other units: meaningless"
            )
        if min(self.token_ids, default=0) < 0:
            raise ValueError(f"token ids are whole numbers from 0, got {min(self.token_ids)}")
        if not self._spots:
            object.__setattr__(self, "before", "question")
        known = {*product(("before", "after"), PLACES), ("before", "answer")}
        if any(place < 0 if side == "at" else (side, place) not in known for side, place in self._spots):
            what = f"before= and after= take {', '.join(PLACES)}, before= also answer, at= indices of tokens"
            raise ValueError(f"unknown place {self.where}: {what}")

    @property
    def _spots(self) -> list[tuple[str, Any]]:
        given = {side: getattr(self, side) for side in AT}
        several = {side: each if isinstance(each, tuple) else (each,) for side, each in given.items()}
        return [(side, each) for side, places in several.items() for each in places if each is not None]

    @classmethod
    @checked
    def meaningless(cls, unit: str = " /", n_tokens: int = 55, **place: Unpack[Place]) -> "Insertion":
        """Return a run of one meaningless unit (Mless): 55 slashes in the paper. A unit of k tokens must divide `n_tokens`."""
        return cls("meaningless", unit, n_tokens, **place)

    @classmethod
    @checked
    def meaningful(cls, word: str = "he", n_tokens: int = 55, **place: Unpack[Place]) -> "Insertion":
        """Return a repeated word with a meaning that does not bear on the question (Mful): 55 times "he" in the paper."""
        return cls("meaningful", word.strip() and " " + word.strip(), n_tokens, **place)

    @classmethod
    @checked
    def random_sentence(
        cls, n_tokens: int = 55, seed: int = 0, *, draw: int = 0, **place: Unpack[Place]
    ) -> "Insertion":
        """Return a bag of common English words, exactly `n_tokens` tokens without digits, drawn by seed, problem id and draw
        number; where the tokenizer knows none of them, its own ordinary tokens. Sentences by somebody are `other_questions`."""
        return cls("random_sentence", "", n_tokens, seed=seed, draw=draw, **place)

    @classmethod
    @checked
    def other_questions(
        cls, problems: Iterable[Problem], n_tokens: int = 55, seed: int = 0, *, draw: int = 0, **place: Unpack[Place]
    ) -> "Insertion":
        """Return questions of other problems, drawn by seed, problem id and draw number and cut to exactly `n_tokens` tokens: a
        control for "any text", not for "no meaning"."""
        pool = tuple((problem.id, problem.question.strip()) for problem in problems)
        if len({question for _, question in pool}) < 2:
            raise ValueError("other_questions draws from other problems: give at least 2 with different questions")
        return cls("other_questions", "", n_tokens, seed=seed, draw=draw, pool=pool, **place)

    @classmethod
    @checked
    def repeated_bos(cls, n_tokens: int = 55, **place: Unpack[Place]) -> "Insertion":
        """Return a run of the tokenizer's beginning-of-sequence token (a control: extra attention sinks)."""
        return cls("repeated_bos", "", n_tokens, **place)

    @classmethod
    @checked
    def text(cls, text: str, **place: Unpack[Place]) -> "Insertion":
        """Return any text once, as it is."""
        return cls("text", text, None, **place)

    @classmethod
    @checked
    def whitespace(cls, n_tokens: int = 55, *, unit: str = " ", **place: Unpack[Place]) -> "Insertion":
        """Return a run of white space: one unit of it (" ", "\\n") as often as it takes, never merged into longer tokens."""
        return cls("whitespace", unit, n_tokens, **place)

    @classmethod
    @checked
    def counting(cls, n_tokens: int = 55, **place: Unpack[Place]) -> "Insertion":
        """Return numbers counted up from one (" 1 2 3 ..."), cut after exactly `n_tokens` tokens (the last may lack digits), as
        in replications of Pfau et al. 2024 (arXiv 2404.15758)."""
        return cls("counting", "", n_tokens, **place)

    @classmethod
    @checked
    def pause(cls, n_tokens: int = 10, *, token: str | None = None, **place: Unpack[Place]) -> "Insertion":
        """Return a run of one token that no text of the model's training holds: a pause or reserved token of its vocabulary.

        `token`: its name; None takes one named pause, else the first reserved or unused one (`<unused0>`): an untrained row of
        the model, unlike the trained pause tokens of Goyal et al. 2023 (arXiv 2310.02226).
        """
        return cls("pause", token or "", n_tokens, **place)

    @classmethod
    @checked
    def ids(cls, token_ids: Iterable[int], n_tokens: int | None = None, **place: Unpack[Place]) -> "Insertion":
        """Return token ids as they are (glitch tokens, special tokens): once, or as often as it takes to be `n_tokens`."""
        return cls("ids", "", n_tokens, token_ids=tuple(token_ids), **place)

    @classmethod
    @checked
    def repeat_question(cls, times: int = 1, **place: Unpack[Place]) -> "Insertion":
        """Return the problem's own question, `times` times more, each after a space, as plain text."""
        return cls("repeat_question", "", None, times=times, **place)

    @classmethod
    @checked
    def from_key(cls, key: str, **place: Unpack[Place]) -> "Insertion":
        """Return what stands under a key of the problem itself, after a space, as plain text: a field of `Problem` (`solution`,
        `distractor`, ...) or any other text of its line in the file (`Problem.extra`)."""
        return cls("from_key", key.strip(), None, **place)

    @classmethod
    @checked
    def named(
        cls,
        kind: str,
        *,
        unit: str | None = None,
        n_tokens: int | None = None,
        seed: int = 0,
        problems: Iterable[Problem] = (),
        **place: Unpack[Place],
    ) -> "Insertion":
        """Return the insertion of a kind's name, as command lines give it.

        `unit` is the unit, word or text; the key of `from_key`; how many times `repeat_question` repeats; the ids of `ids`,
        "128002,128003"; the token of `pause`. `n_tokens` defaults to 55 where a kind is counted in tokens.
        `problems`: those that `other_questions` draws from. `ValueError` for what the kind has no use for.
        """
        asked = one_of(kind, KINDS, "insertion")
        if unit is not None and not asked.unit:
            raise ValueError(f"insertion {kind!r} takes no unit, got {unit!r}; leave it out")
        if n_tokens is not None and asked.own_length:
            raise ValueError(f"insertion {kind!r} is as long as its text; leave its number of tokens out")
        given: Arguments = dict(place)
        given |= {} if asked.own_length else {"n_tokens": 55 if asked.counted and n_tokens is None else n_tokens}
        given |= {"seed": seed} if asked.drawn else {}
        given |= {"problems": problems} if kind == "other_questions" else {}
        given |= {asked.unit: asked.read(unit or "")} if unit is not None or kind in ("from_key", "ids", "text") else {}
        made: Insertion = getattr(cls, kind)(**given)
        return made

    @property
    def label(self) -> str:
        """A short name for tables and legends: `Mless ' /' x55`."""
        shown = f" {_ids_label(self.token_ids)}" if self.token_ids else f" {self.unit!r}" if self.unit else ""
        size = f" x{self.n_tokens}" if self.n_tokens is not None else ""
        again = f", {self.times} times" if self.times > 1 else ""
        where = "" if self.where == "before question" else f", {self.where}"
        return f"{KINDS[self.kind].short}{shown}{size}{again}{where}"

    @property
    def where(self) -> str:
        """The place in words: `before question`, `at 4 and at 9`."""
        return " and ".join(f"{side} {place}" for side, place in self._spots)

    @property
    def length(self) -> int:
        """The number of tokens of an insertion that is counted in tokens."""
        assert self.n_tokens is not None
        return self.n_tokens

    @property
    def repeats(self) -> bool:
        """Whether it is one unit of text again and again."""
        return KINDS[self.kind].ids is _repeated and self.n_tokens is not None

    def span(self, tokenizer: Tokenizer, problem: Problem | str) -> tuple[int, ...]:
        """Return the token ids that this insertion puts into this problem's prompt; its id is enough for most kinds.
        `ValueError` if a text has the unknown token, encodes to nothing or does not divide `n_tokens`."""
        return KINDS[self.kind].ids(self, tokenizer, problem)

    def other_repeats(self, tokenizer: Tokenizer, n: int = 20, *, seed: int = 0) -> tuple["Insertion", ...]:
        """Draw `n` other units of as many tokens from the vocabulary, each repeated in this unit's place: its null."""
        if not self.repeats:
            raise ValueError(f"{self.label} repeats no unit, so other repeated tokens are no null of it")
        unit = _encoded(tokenizer, self.unit)
        pool = [token for (token,) in _ordinary_tokens(tokenizer) if token not in unit]
        drawn = random.Random(seed).sample(pool, n * len(unit))
        units = (tuple(drawn[at : at + len(unit)]) for at in range(0, len(drawn), len(unit)))
        return tuple(Insertion.ids(ids, self.length).placed_as(self) for ids in units)

    def placed_as(self, other: Any) -> "Insertion":
        """Return this insertion, in the place of another one."""
        return replace(self, before=other.before, after=other.after, at=other.at)

    def places(self, prompt: Prompt) -> tuple[int, ...]:
        """Return the token indices at which its blocks go into `prompt`, rising; `ValueError` where it has no such place."""
        found = []
        for side, place in self._spots:
            if side == "at" and place > len(prompt):
                raise ValueError(f"at={place} is beyond the prompt's {len(prompt)} tokens")
            if side == "at" or place == "answer":
                found.append(place if side == "at" else len(prompt))
            elif there := prompt.indices(place):
                found.append(there[0] if side == "before" else there[-1] + 1)
            else:
                raise ValueError(f'the prompt has no {place} tokens; use before="question" or at=<token index>')
        return tuple(sorted(found))


def _ids_label(ids: tuple[int, ...]) -> str:
    if len(ids) <= 4:
        return ",".join(map(str, ids))
    return f"{','.join(map(str, ids[:3]))},... #{hashlib.sha256(repr(ids).encode()).hexdigest()[:6]}"


def _whole_numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"cannot read {text!r}: give whole numbers such as 128002,128003") from None


def _times(text: str) -> int:
    if not text.strip().isdecimal():
        raise ValueError(f"expected how many times the question is repeated, such as 2, got {text!r}")
    return int(text)


@lru_cache(maxsize=8)
def _encodable_words(tokenizer: Tokenizer) -> dict[int, list[tuple[int, ...]]]:
    """Map each token count to the encodings of all common words of that many tokens that this tokenizer knows."""
    by_size: dict[int, list[tuple[int, ...]]] = {}
    for word in COMMON_WORDS.read_text(encoding="utf-8").split():
        ids = encode_within(tokenizer, " " + word)
        if ids and tokenizer.unk_token_id not in ids and str(tokenizer.decode(list(ids))).strip() == word:
            by_size.setdefault(len(ids), []).append(ids)
    return by_size


@lru_cache(maxsize=8)
def _ordinary_tokens(tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    special = set(tokenizer.all_special_ids)
    texts = ((i, str(tokenizer.decode([i]))) for i in range(len(tokenizer)) if i not in special)
    return [(i,) for i, text in texts if text.strip() and not any(c.isdigit() for c in text)]


def _drawn(insertion: Insertion, problem: Problem | str) -> random.Random:
    key = f"{insertion.seed}|{problem.id if isinstance(problem, Problem) else problem}|{insertion.draw}"
    return random.Random(int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big"))


def _random_sentence(insertion: Insertion, tokenizer: Tokenizer, problem: Problem | str) -> tuple[int, ...]:
    n_tokens, draw = insertion.length, _drawn(insertion, problem)
    words = _encodable_words(tokenizer)
    if len(words.get(1, ())) < 8:
        words = {1: _ordinary_tokens(tokenizer)}
    if len(words[1]) < 8:  # too few to be other words than those under study
        raise ValueError("this tokenizer has fewer than 8 tokens without a digit, too few to draw random words from")
    ids: list[int] = []
    while len(ids) < n_tokens:
        ids += draw.choice([word for size, found in words.items() if size <= n_tokens - len(ids) for word in found])
    return tuple(ids)


def _other_questions(insertion: Insertion, tokenizer: Tokenizer, problem: Problem | str) -> tuple[int, ...]:
    n_tokens = insertion.length
    name, own = (problem.id, problem.question.strip()) if isinstance(problem, Problem) else (problem, "")
    theirs = {own, *(text for other, text in insertion.pool if other == name)}
    texts = [text for _, text in insertion.pool if text not in theirs]
    ids: tuple[int, ...] = ()
    for text in _drawn(insertion, problem).sample(texts, len(texts)):
        ids += encode_within(tokenizer, " " + text)
        if len(ids) >= n_tokens:
            ids = ids[:n_tokens]
            _check_known(tokenizer, ids, "the inserted questions", "draw from problems of the model's own kind")
            return ids
    raise ValueError(f"all other questions are {len(ids)} tokens, fewer than n_tokens={n_tokens}: give more problems")


def _check_known(tokenizer: Tokenizer, ids: tuple[int, ...], whose: str, remedy: str) -> None:
    unknown, token = ids.count(tokenizer.unk_token_id) / max(len(ids), 1), tokenizer.unk_token
    if unknown > MAX_UNKNOWN:
        raise ValueError(f"{whose}: {100 * unknown:.0f} % of the tokens are {token!r}, unknown words: {remedy}")


def _encoded(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    ids = encode_within(tokenizer, text, markers=True)
    if not ids or (tokenizer.unk_token_id is not None and tokenizer.unk_token_id in ids):
        what = f"the unknown token {tokenizer.unk_token!r}" if ids else "no token"
        raise ValueError(f"the insertion {text!r} becomes {what}; choose a unit that this tokenizer's vocabulary holds")
    return ids


def _filled(ids: tuple[int, ...], insertion: Insertion, unit: str) -> tuple[int, ...]:
    n, places = insertion.n_tokens, len(insertion._spots) if len(ids) > 1 else 1
    if n is None:
        return ids
    if n % (least := places * len(ids)):  # every block ends with a whole unit
        fewer, at = f"{n - n % least} or " * (n > least), f", as many at each of {places} places" * (places > 1)
        raise ValueError(
            f"the unit {unit} is {len(ids)} tokens with this tokenizer, which does not divide n_tokens={n}; "
            f"use {fewer}{n * least} ({n * places} times the unit{at})"
        )
    return ids * (n // len(ids))


def _repeated(insertion: Insertion, tokenizer: Tokenizer, problem: Problem | str) -> tuple[int, ...]:
    return _filled(_encoded(tokenizer, insertion.unit), insertion, repr(insertion.unit))


def _bos(insertion: Insertion, tokenizer: Tokenizer, problem: Problem | str) -> tuple[int, ...]:
    if tokenizer.bos_token_id is None:
        raise ValueError("this tokenizer has no beginning-of-sequence token, so repeated_bos cannot be inserted")
    return (tokenizer.bos_token_id,) * insertion.length


def _counting(insertion: Insertion, tokenizer: Tokenizer, problem: Problem | str) -> tuple[int, ...]:
    numbers = "".join(f" {number}" for number in range(1, insertion.length + 1))  # a number is a token or more
    return _encoded(tokenizer, numbers)[: insertion.length]


RESERVED = re.compile(r"<\|?(reserved\w*?|unused|extra_)(\d+)\|?>|\[unused(\d+)\]")
"""Names of tokens that tokenizers keep free: Llama's, Gemma's, Qwen's first models', BERT's."""
PAUSE = ("<pause>", "<|pause|>", "[PAUSE]")


@lru_cache(maxsize=8)
def _pauses(tokenizer: Tokenizer, n_tokens: int) -> dict[str, int]:
    """Find the tokens to pause with, those named pause first, then the reserved ones; `n_tokens` as there may be given more."""
    vocabulary = tokenizer.get_vocab()
    reserved = sorted(filter(RESERVED.fullmatch, vocabulary), key=vocabulary.__getitem__)
    return {name: vocabulary[name] for name in (*PAUSE, *reserved) if name in vocabulary}


def _pause(insertion: Insertion, tokenizer: Tokenizer, problem: Problem | str) -> tuple[int, ...]:
    pauses = _pauses(tokenizer, len(tokenizer))
    name = insertion.unit or next(iter(pauses), None)
    if name is None:
        raise ValueError(
            "this tokenizer has no reserved token to pause with, and none is added: name a token of its own (token='...'), or "
            f"insert a row that the model has and its tokenizer leaves unused: Insertion.ids([{len(tokenizer)}], n_tokens)"
        )
    known = pauses | {token.content: at for at, token in tokenizer.added_tokens_decoder.items()}
    if name not in known:
        raise ValueError(
            f"{name!r} is no reserved token of this tokenizer to pause with: leave it out for a reserved one, or insert it as "
            "an ordinary one (Insertion.meaningless)"
        )
    return (known[name],) * insertion.length


def _given_ids(insertion: Insertion, tokenizer: Tokenizer, problem: Problem | str) -> tuple[int, ...]:
    return _filled(insertion.token_ids, insertion, "of ids")


def _own_text(insertion: Insertion, tokenizer: Tokenizer, problem: Problem | str) -> tuple[int, ...]:
    """Return what a problem says under a key (its question), after a space, as plain text."""
    key = insertion.unit or "question"
    assert isinstance(problem, Problem)
    text = problem.texts.get(key, "").strip()
    if not text:
        known = f"{key} to insert (it has {', '.join(problem.texts)})"
        raise ValueError(f"problem {problem.id!r} has no {known}; give it one or leave the problem out")
    ids = encode_part(tokenizer, problem, key, f" {text}", within=True)
    remedy = "leave it out, or give it words of the model's own"
    _check_known(tokenizer, ids, f"problem {problem.id!r}, its {key}", remedy)
    return ids * insertion.times


@dataclass(frozen=True)
class Kind:
    """One kind of insertion: its `short` name in tables, and the `ids` that it puts into a problem's prompt.

    `unit`: the argument that says what is repeated or looked up, if that can be chosen, and `read` makes it of a text.
    `counted`: its length is given in tokens, and the same in every problem. `own_length`: its text decides it. `drawn`: by a
    seed. `as_text`: its tokens are those of a text, which the paper's template can take.
    """

    short: str
    ids: Callable[[Insertion, Tokenizer, Problem | str], tuple[int, ...]]
    unit: str = ""
    read: Callable[[str], object] = str
    counted: bool = True
    own_length: bool = False
    drawn: bool = False
    as_text: bool = True


KINDS: dict[str, Kind] = {
    "meaningless": Kind("Mless", _repeated, "unit"),
    "meaningful": Kind("Mful", _repeated, "word"),
    "random_sentence": Kind("random words", _random_sentence, drawn=True),
    "other_questions": Kind("other questions", _other_questions, drawn=True),
    "repeat_question": Kind("question again", _own_text, "times", _times, counted=False, own_length=True),
    "from_key": Kind("its own", _own_text, "key", counted=False, own_length=True),
    "counting": Kind("counting", _counting),
    "whitespace": Kind("whitespace", _repeated, "unit"),
    "pause": Kind("pause", _pause, "token", as_text=False),
    "repeated_bos": Kind("repeated_bos", _bos, as_text=False),
    "ids": Kind("ids", _given_ids, "token_ids", _whole_numbers, counted=False, as_text=False),
    "text": Kind("text", _repeated, "text", counted=False, own_length=True),
}
"""Every kind of insertion by name; each has a constructor of that name in `Insertion`."""
