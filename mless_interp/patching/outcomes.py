"""Outcomes: what is appended to a prompt, where its logits are read, and the number that they give."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal

import torch
from torch import Tensor

from ..core.arguments import one_of
from ..metrics.outputs import answer_logprob, answer_probability, kl_divergence, logit_difference, mean_logprob
from ..models.info import ModelInfo
from ..prompts.pairs import PromptPair


@contextmanager
def left_as_they_are(what: str, tensors: Iterable[object]) -> Iterator[None]:
    """Raise `ValueError` where a user's code changes these tensors in place: they are of runs that others read, too."""
    watched = [each for each in tensors if isinstance(each, Tensor) and not each.is_inference()]
    before = [each._version for each in watched]
    yield
    if before != [each._version for each in watched]:
        what += " changes in place what it is given"
        raise ValueError(f"{what}, which others read, too: let it change a copy (.clone())")


@dataclass(frozen=True)
class Outcome:
    """A number read from a run: what to append to the prompt, where to read, and the formula. `reads(pair)`: how far before the
    end of the prompt the logits are read (1 = the last position)."""

    name: str
    appended: Literal["answer", "solution"]
    unit: str
    reads: Callable[[PromptPair], list[int]]
    value: Callable[[Tensor, PromptPair, Tensor | None], Tensor]
    needs_clean: bool = False
    needs_distractor: bool = False

    def read(self, logits: Tensor, pair: PromptPair, clean: Tensor | None = None) -> Tensor:
        """Return the `value` of each run; `ValueError` where a user's formula gives another shape."""
        with left_as_they_are(f"outcome {self.name!r}", (logits, clean)):
            found, of = self.value(logits, pair, clean), list(logits.shape)
        got = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
        if got != of[:1]:
            given = f"{self.name!r} must give a number per run of logits [run, read, vocab] {of}"
            raise ValueError(f"outcome {given}: expected {of[:1]}, got {got}")
        return found

    def asked(self, pair: PromptPair, info: ModelInfo) -> PromptPair:
        """Append what is read; what nothing is read behind is left out where it does not fit the context.
        A class is no token, so none is appended. `ValueError` for an answer or a distractor that the model cannot give."""
        if info.n_classes is None:
            grown = pair.answered(self.appended, unfed=int(pair.given))
            over = len(grown.inserted) - info.context_length
            if not 1 <= min(reads := self.reads(grown), default=0) <= len(grown.inserted) - grown.span[0]:
                what = "positions from the insertion on, counted from the end (1: the last),"
                raise ValueError(f"the outcome {self.name!r} must read {what} of problem {pair.id!r}, got {reads}")
            if over >= min(reads):
                needs = f"problem {pair.id!r} needs {len(grown.inserted) + 1 - min(reads)} positions with its {self.appended}"
                has = f"{info.name} has a context of {info.context_length}"
                raise ValueError(f"{needs}, but {has}: leave that problem out")
            return grown if over <= 0 else pair.answered(self.appended, unfed=over + int(pair.given))
        given = {"answer": pair.answer_ids, "solution": pair.solution_ids, "distractor": pair.distractor_ids}
        for what, ids in ((what, given[what]) for what in (self.appended, "distractor")):
            if len(ids) > 1 or max(ids, default=0) >= info.n_classes:
                classes = f"{info.name} gives one of {info.n_classes} classes: give a single id from 0 to {info.n_classes - 1}"
                raise ValueError(f"problem {pair.id!r}: its {what} is {list(ids)}, but {classes}")
        return pair.answered(self.appended, unfed=1)

    def check(self, pairs: Sequence[PromptPair]) -> None:
        """Raise `ValueError` if a problem lacks what this outcome reads."""
        wrong = [pair for pair in pairs if self.needs_distractor and _apart(pair) < 0]
        if wrong:
            none, same = "no distractor", "a distractor with which its answer begins, or that begins with it"
            has = f"problem {wrong[0].id!r} has {same if wrong[0].distractor_ids else none}"
            why = f"so outcome {self.name!r} has no token to compare ({len(wrong)} such problems)"
            raise ValueError(f"{has}, {why}: give another distractor, or use 'answer_logprob'")


def _apart(pair: PromptPair) -> int:
    """Find the first token at which the answer and the distractor differ; -1: none."""
    both = zip(pair.answer_ids, pair.distractor_ids, strict=False)
    return next((at for at, (right, wrong) in enumerate(both) if right != wrong), -1)


def _of_tokens(
    name: str,
    unit: str,
    formula: Callable[[Tensor, Tensor], Tensor],
    appended: Literal["answer", "solution"] = "answer",
) -> Outcome:
    ids: Callable[[PromptPair], tuple[int, ...]] = attrgetter(f"{appended}_ids")

    def reads(pair: PromptPair) -> list[int]:
        return [pair.n_answer + 1 - at for at in range(len(ids(pair)))]

    return Outcome(name, appended, unit, reads, lambda logits, pair, clean: formula(logits, torch.tensor(ids(pair))))


def _kl(logits: Tensor, pair: PromptPair, clean: Tensor | None) -> Tensor:
    assert clean is not None
    return kl_divergence(logits, clean.expand_as(logits))


def _diff(logits: Tensor, pair: PromptPair, clean: Tensor | None) -> Tensor:
    at = _apart(pair)
    return logit_difference(logits, pair.answer_ids[at], pair.distractor_ids[at])


OUTCOMES = {
    made.name: made
    for made in (
        _of_tokens("answer_logprob", "nats", answer_logprob),
        _of_tokens("answer_prob", "probability", answer_probability),
        _of_tokens("solution_logprob", "nats per token", mean_logprob, "solution"),
        Outcome("logit_diff", "answer", "logits", lambda p: [p.n_answer + 1 - _apart(p)], _diff, needs_distractor=True),
        Outcome("kl", "answer", "nats per position", lambda p: [*range(p.n_after, 0, -1)], _kl, needs_clean=True),
        Outcome("kl_last", "answer", "nats", lambda p: [p.n_answer + 1], _kl, needs_clean=True),
    )
}


def outcome_named(given: "str | Outcome", *, signed_for: str = "") -> Outcome:
    """Look up the outcome of that name, or take the given one; `signed_for` names what needs one with a sign."""
    found = one_of(given, OUTCOMES, "outcome") if isinstance(given, str) else given
    if signed_for and found.needs_clean:
        allowed = ", ".join(name for name, known in OUTCOMES.items() if not known.needs_clean)
        raise ValueError(f"{signed_for} needs a signed outcome ({allowed}), and {found.name!r} is never negative")
    return found
