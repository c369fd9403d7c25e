"""Outcomes: what is appended to a prompt, where its logits are read, and the number that they give."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..metrics.logits import answer_logprob, answer_probability, kl_divergence, logit_difference, mean_logprob
from ..models.info import ModelInfo
from ..prompts.conditions import one_of
from ..prompts.pairs import PromptPair


@dataclass(frozen=True)
class Outcome:
    """A number read from a run: what to append to the prompt, where to read, and the formula.

    `reads(pair)` gives how far before the end of the prompt the logits are read (1 = the last position).
    """

    name: str
    appended: Literal["answer", "solution"]
    unit: str
    reads: Callable[[PromptPair], list[int]]
    value: Callable[[Tensor, PromptPair, Tensor | None], Tensor]
    needs_clean: bool = False
    needs_distractor: bool = False

    def asked(self, pair: PromptPair, info: ModelInfo) -> PromptPair:
        """Return the pair with what is appended; what nothing is read behind is left out where it does not fit the context.

        A class is no token, so none is appended. `ValueError` for an answer or a distractor that the model cannot give.
        """
        if info.n_classes is None:
            grown = pair.answered(self.appended, unfed=int(pair.given))
            over = len(grown.inserted) - info.context_length
            return grown if over <= 0 else pair.answered(self.appended, unfed=min(over, min(self.reads(grown)) - 1))
        given = {"answer": pair.answer_ids, "solution": pair.solution_ids, "distractor": pair.distractor_ids}
        for what, ids in ((what, given[what]) for what in (self.appended, "distractor")):
            if len(ids) > 1 or max(ids, default=0) >= info.n_classes:
                raise ValueError(
                    f"problem {pair.id!r}: its {what} is {list(ids)}, but {info.name} gives one of {info.n_classes} classes: "
                    f"give a single id from 0 to {info.n_classes - 1}"
                )
        return pair.answered(self.appended, unfed=1)

    def check(self, pairs: Sequence[PromptPair]) -> None:
        """`ValueError` if a problem lacks what this outcome reads."""
        lacking = [pair.id for pair in pairs if self.needs_distractor and not pair.distractor_ids]
        if lacking:
            raise ValueError(
                f"problem {lacking[0]!r} has no distractor, which outcome {self.name!r} needs ({len(lacking)} have none): "
                "give the problems one, or use 'answer_logprob'"
            )
        same = [pair.id for pair in pairs if self.needs_distractor and _first_difference(pair) is None]
        if same:
            raise ValueError(
                f"problem {same[0]!r}: its answer and its distractor are the same tokens, or one begins with the other, so "
                f"outcome {self.name!r} has no token that tells them apart ({len(same)} such problems): give another "
                "distractor, or use 'answer_logprob'"
            )


def _answer_reads(pair: PromptPair) -> list[int]:
    return [pair.n_answer + 1 - k for k in range(len(pair.answer_ids))]


def _solution_reads(pair: PromptPair) -> list[int]:
    return [pair.n_answer + 1 - k for k in range(len(pair.solution_ids))]


def _first_difference(pair: PromptPair) -> int | None:
    """The first token at which the answer and the distractor differ; None where there is none."""
    both = zip(pair.answer_ids, pair.distractor_ids, strict=False)
    return next((at for at, (right, wrong) in enumerate(both) if right != wrong), None)


def _difference_read(pair: PromptPair) -> list[int]:
    """Where the first token is predicted at which the answer and the distractor differ."""
    at = _first_difference(pair)
    assert at is not None  # checked before anything runs
    return [pair.n_answer + 1 - at]


def _first_answer_read(pair: PromptPair) -> list[int]:
    return [pair.n_answer + 1]


def _question_reads(pair: PromptPair) -> list[int]:
    return list(range(pair.n_after, 0, -1))


def _answer_value(logits: Tensor, pair: PromptPair, clean: Tensor | None) -> Tensor:
    return answer_logprob(logits, torch.tensor(pair.answer_ids))


def _probability_value(logits: Tensor, pair: PromptPair, clean: Tensor | None) -> Tensor:
    return answer_probability(logits, torch.tensor(pair.answer_ids))


def _solution_value(logits: Tensor, pair: PromptPair, clean: Tensor | None) -> Tensor:
    return mean_logprob(logits, torch.tensor(pair.solution_ids))


def _difference_value(logits: Tensor, pair: PromptPair, clean: Tensor | None) -> Tensor:
    at = _first_difference(pair)
    assert at is not None
    return logit_difference(logits, pair.answer_ids[at], pair.distractor_ids[at])


def _kl_value(logits: Tensor, pair: PromptPair, clean: Tensor | None) -> Tensor:
    assert clean is not None
    return kl_divergence(logits, clean.expand_as(logits))


OUTCOMES = {
    made.name: made
    for made in (
        Outcome("answer_logprob", "answer", "nats", _answer_reads, _answer_value),
        Outcome("answer_prob", "answer", "probability", _answer_reads, _probability_value),
        Outcome("solution_logprob", "solution", "nats per token", _solution_reads, _solution_value),
        Outcome("logit_diff", "answer", "logits", _difference_read, _difference_value, needs_distractor=True),
        Outcome("kl", "answer", "nats per position", _question_reads, _kl_value, needs_clean=True),
        Outcome("kl_last", "answer", "nats", _first_answer_read, _kl_value, needs_clean=True),
    )
}


def outcome_named(given: "str | Outcome", *, signed_for: str = "") -> Outcome:
    """The outcome of that name, or the given one; `signed_for` names what needs one with a sign."""
    found = one_of(given, OUTCOMES, "outcome") if isinstance(given, str) else given
    if not isinstance(found, Outcome):
        raise TypeError(f"outcome must be a name or an Outcome, got {given!r}")
    if signed_for and found.needs_clean:
        allowed = ", ".join(name for name, known in OUTCOMES.items() if not known.needs_clean)
        raise ValueError(
            f"{signed_for} needs a signed outcome ({allowed}), and {found.name!r} is never negative, whatever is done"
        )
    return found
