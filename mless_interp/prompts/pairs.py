"""Pairs of prompts, without and with an insertion, the proved map between their tokens, and their input in each condition."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..core.arguments import Arguments, checked, n_alike, one_of
from ..models.base import Model
from ..models.info import Inputs, ModelInfo
from ..runtime.checkpoint import key_of, plain
from ..runtime.loop import over_problems
from ..runtime.text_safety import one_line
from ..runtime.workers import Compute, Tick, Unit
from .conditions import CONDITIONS, HELD_POSITIONS, Condition, question_from_span
from .insertions import KINDS, Insertion
from .problems import Problem, Several
from .prompt import (
    TEMPLATES,
    Prompt,
    Template,
    Tokenizer,
    build_prompt,
    check_known,
    encode_part,
    encode_within,
    in_one_piece,
    spells_special,
    template_named,
    tokenizer_of,
    warnings_of,
)


@dataclass(frozen=True)
class Given:
    """What takes an insertion's place in pairs that were made of token ids: its name in tables."""

    label: str
    kind: str = "given"
    repeats: bool = False
    before: None = None
    after: None = None
    at: None = None


REPLACED = Given("replaced tokens")  # what pairs of token ids are of where their clean prompts are used


@dataclass(frozen=True, eq=False)
class PromptPair:
    """Two or three prompts of one problem and the map between them, proved at construction; `make_pairs` makes them.

    `inserted` is the prompt under study, `base` the same without its span, `clean` (where there is one) other tokens in as
    many places; without a span `base` is `inserted`. `boundary_merge`: tokens merged at a border of a text-level insertion.
    `n_answer`: how many last tokens are the teacher-forced answer (0: bare prompts, or none had to be fed). `tokenizer`: whose
    ids these are. `names`: what views call token ids, if given.
    """

    problem: Problem
    base: Prompt
    inserted: Prompt
    insertion: Any  # an `Insertion`, or `Given`
    boundary_merge: bool = False
    answer_prefix_ids: tuple[int, ...] = ()
    answer_ids: tuple[int, ...] = ()
    distractor_ids: tuple[int, ...] = ()
    solution_ids: tuple[int, ...] = ()
    n_answer: int = 0
    template: Template = TEMPLATES["raw"]
    tokenizer: Tokenizer | None = None
    clean: Prompt | None = None
    names: tuple[tuple[int, str], ...] = ()

    def __post_init__(self) -> None:
        rest, base = without_span(self.inserted), list(zip(self.base.ids, self.base.segments, strict=True))
        if not self.boundary_merge and (rest != base or not rest):
            raise ValueError(
                f"pair {self.id!r}: the prompt without its inserted tokens must equal the clean prompt, in tokens and "
                f"segments; they first differ at clean position {n_alike(rest, base)}. Insert token ids with `Insertion`"
            )

    @property
    def id(self) -> str:
        """The problem's id."""
        return self.problem.id

    def __repr__(self) -> str:
        answer = f", {self.n_answer} of the answer" * bool(self.n_answer)
        size = f"{len(self.base)} + {self.n_inserted} tokens at {self.span[0]}{answer}"
        return one_line(f"PromptPair({self.id!r}, {self.insertion.label}: {size})")

    @cached_property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """The blocks of the insertion, (first position, one past the last) each, in the inserted prompt."""
        return self.inserted.blocks("inserted")

    @property
    def span(self) -> tuple[int, int]:
        """(first inserted position, one past the last); an empty one at the first change where nothing is inserted."""
        return (self.spans[0][0], self.spans[-1][1]) if self.spans else (self.first_change,) * 2

    @cached_property
    def alignment(self) -> tuple[int, ...]:
        """The position in the inserted prompt of each base token; -1 for one that merged with a text-level insertion."""
        if not self.boundary_merge:
            return tuple(at for at, segment in enumerate(self.inserted.segments) if segment != "inserted")
        (start, stop), base, ids = self.span, self.base.ids, self.inserted.ids
        before = n_alike(base, ids[:start])
        after = n_alike(base[before:][::-1], ids[stop:][::-1])
        return (*range(before), *[-1] * (len(base) - before - after), *range(len(ids) - after, len(ids)))

    @property
    def span_ids(self) -> tuple[int, ...]:
        """The inserted tokens' ids, block after block."""
        return tuple(self.inserted.ids[at] for start, stop in self.spans for at in range(start, stop))

    @property
    def given(self) -> bool:
        """Whether the pair was made of token ids, so that there is no text to draw others from."""
        return isinstance(self.insertion, Given)

    @property
    def _clean(self) -> Prompt:
        if self.clean is None:
            remedy = "make it with pairs_from_ids(..., clean=...), or use a contrast of its span"
            raise ValueError(f"pair {self.id!r} has no clean prompt of equal length: {remedy}")
        return self.clean

    @cached_property
    def first_change(self) -> int:
        """The first position at which the clean prompt has another token, or the span's first where that comes before."""
        both = enumerate(zip(self.inserted.ids, self._clean.ids, strict=True))
        return min([next(at for at, (x, y) in both if x != y), *(start for start, _ in self.spans)])

    def text_of(self, model: Model, token: int) -> str:
        """Return what views call a token: by the caller's `names`, else as the model's tokenizer has it."""
        return dict(self.names).get(token) or model.text_of([token])

    @property
    def n_inserted(self) -> int:
        return len(self.span_ids)

    @cached_property
    def shared(self) -> Tensor:
        """Positions in the inserted prompt of the tokens that both prompts have, `[base token]`."""
        return torch.tensor([position for position in self.alignment if position >= 0])

    @cached_property
    def span_mask(self) -> Tensor:
        """Boolean `[token]` over the inserted prompt: True inside the span."""
        return self.inserted.mask("inserted")

    @property
    def span_sees_question(self) -> bool:
        """Whether the span's rows can see any of the question."""
        return bool(question_from_span(self.inserted).keys[: self.span[1]].any())

    @property
    def sink_moved(self) -> bool:
        """The span holds the first token, so the attention sink is the first token outside it."""
        return self.span[0] == 0

    @property
    def n_after(self) -> int:
        """How many tokens follow the insertion, its last block."""
        return len(self.inserted) - self.span[1]

    def need_span(self, what: str) -> None:
        """Raise `ValueError` unless there is a span, which `what` is not defined without."""
        if not self.spans and not self.boundary_merge:
            remedy = "use contrast='replaced', or give pairs_from_ids a span"
            raise ValueError(f"pair {self.id!r} has no span, so {what} is not defined: {remedy}")

    def one_block(self, what: str) -> tuple[int, int]:
        """Return the span; `ValueError` where the insertion lies in several blocks, which `what` is not defined for."""
        if len(self.spans) > 1:
            blocks = f"an insertion in {len(self.spans)} blocks: insert in one place"
            raise ValueError(f"pair {self.id!r}: {what} is not defined for {blocks}")
        return self.span

    def record(self) -> dict[str, object]:
        """Return everything that identifies this pair's prompts, ready for JSON."""
        found: dict[str, object] = {"problem": self.id, "insertion": self.insertion.label}
        found |= {"template": self.base.template, "bos_added": self.base.bos_added}
        found |= {name: getattr(self, name) for name in ("span", "sink_moved", "answer_prefix_ids", "answer_ids")}
        found |= {"base_ids": self.base.ids, "inserted_ids": self.inserted.ids}
        found |= {"spans": self.spans} if len(self.spans) > 1 else {}
        found |= {"clean_ids": self.clean.ids} if self.clean else {}
        return dict(plain(found))

    def condition(self, name: str, *, held_positions: str = "first") -> Inputs:
        """Return the input of one of the conditions of methods §2 (`CONDITIONS` says what each is).

        `held_positions`: of the span's own tokens in a condition whose question keeps its positions, all the insertion
        point's ("first") or fractionally before it ("spread").
        """
        chosen = one_of(name, CONDITIONS, "condition")
        if self.boundary_merge and name not in ("base", "inserted"):
            why = f"tokens merged at the border of its insertion, so condition {name!r} is not defined"
            raise ValueError(f'pair {self.id!r}: {why}; make it with template="raw"')
        if chosen.prompt == "clean":
            return Inputs(self._clean.tokens)
        if name != "inserted":
            self.need_span(f"condition {name!r}")
        if not chosen.has_span:
            shifted = None if chosen.positions == "base" else torch.tensor([self.alignment])
            return Inputs(self.base.tokens, position_ids=shifted)
        positions = None if chosen.positions == "inserted" else self.held_positions(held_positions)
        return Inputs(self.inserted.tokens, positions, self._mask(chosen))

    def side_by_side(self, names: Sequence[str], *, held_positions: str = "first") -> Inputs:
        """Return conditions as rows of one batch, all of the inserted prompt's length, each with its own mask and positions.

        One without the span is run with the span hidden from all other rows, which gives the tokens of both prompts the
        activations that they have in the shorter prompt at the same positions (methods §2).
        """
        chosen = [one_of(name, CONDITIONS, "condition") for name in names]
        held = self.held_positions(held_positions)
        plain = torch.arange(len(self.inserted))[None].to(held)
        everything = torch.ones(1, 1, len(self.inserted), len(self.inserted), dtype=torch.bool)
        masks = [self._mask(each if each.has_span else CONDITIONS["masked"]) for each in chosen]
        tokens = [self.condition("clean" if each.prompt == "clean" else "inserted").tokens for each in chosen]
        return Inputs(
            torch.cat(tokens),
            position_ids=torch.cat([held if each.positions == "base" else plain for each in chosen]),
            attention_mask=torch.cat([everything if mask is None else mask for mask in masks]),
        )

    def held_positions(self, where: str = "first") -> Tensor:
        """Return position ids `[1, token]` of the inserted prompt at which the tokens of both prompts stay where they were."""
        one_of(where, HELD_POSITIONS, "held_positions")
        positions = (~self.span_mask).cumsum(0).double() - (~self.span_mask).double()  # base tokens before each token
        if where == "first":
            return positions.long()[None]
        for start, stop in self.spans:
            positions[start:stop] += torch.arange(1, stop - start + 1, dtype=torch.float64) / (stop - start + 1) - 1
        return positions.to(torch.float32)[None]

    def _mask(self, condition: Condition) -> Tensor | None:
        return None if condition.hides is None else ~condition.hides(self.inserted).mask[None, None]

    def fingerprint(self) -> list[object]:
        """Return what tells this pair's prompts, answer and distractor from any others, short and the same in every process."""
        ids = [self.base.ids, self.inserted.ids, self.answer_ids, self.distractor_ids]
        ids += [self.clean.ids] if self.clean else []
        blocks = map(list, self.spans) if len(self.spans) > 1 else ()
        return [self.id, *self.span, self.n_answer, key_of(ids), *blocks]

    def answered(self, which: Literal["answer", "solution"] = "answer", *, unfed: int = 0) -> "PromptPair":
        """Return this pair with the template's answer prefix and the teacher-forced answer (or solution) appended to both,
        without its last `unfed` tokens; `ValueError` if it encodes to no tokens."""
        if self.boundary_merge or self.n_answer:
            why = 'has merged borders: use template="raw"' if self.boundary_merge else "already ends with its answer"
            raise ValueError(f"pair {self.id!r} {why}")
        ids = self.answer_ids if which == "answer" else self.solution_ids
        if not ids:
            raise ValueError(f"problem {self.id!r}: its {which} encodes to no tokens; leave it out or give it one")
        prefix, ids = self.answer_prefix_ids if which == "answer" else (), ids[: len(ids) - unfed]
        more = ("template",) * len(prefix) + ("answer",) * len(ids)

        def grown(prompt: Prompt) -> Prompt:
            return replace(prompt, ids=prompt.ids + prefix + ids, segments=prompt.segments + more)

        clean = self.clean and grown(self.clean)
        return replace(self, base=grown(self.base), inserted=grown(self.inserted), clean=clean, n_answer=len(ids))


@checked
def insert_tokens(prompt: Prompt, at: int | Sequence[int], span_ids: Sequence[int]) -> Prompt:
    """Return the prompt with `span_ids` inserted at token index `at`; at several indices, in equal blocks (the first ones one
    longer where that does not divide)."""
    places = (at,) if isinstance(at, int) else tuple(at)
    n, n_places = len(prompt), len(places)
    if list(places) != sorted(set(places)) or not 0 <= places[0] <= places[-1] <= n:
        raise ValueError(f"cannot insert at token {at}: the prompt has {n} tokens; give rising places, none twice")
    if len(span_ids) < n_places:
        raise ValueError(f"{len(span_ids)} tokens cannot be inserted in {n_places} places: give at least one for each")
    ids, segments = list(prompt.ids), list(prompt.segments)
    for place, block in zip(places[::-1], np.array_split(span_ids, n_places)[::-1], strict=True):
        ids[place:place] = block.tolist()
        segments[place:place] = ["inserted"] * len(block)
    return replace(prompt, ids=tuple(ids), segments=tuple(segments))


def without_span(prompt: Prompt) -> list[tuple[int, str]]:
    """Return the tokens of a prompt that were not inserted, with their segments."""
    return [both for both in zip(prompt.ids, prompt.segments, strict=True) if both[1] != "inserted"]


def followed(pairs: Iterable[PromptPair]) -> tuple[PromptPair, ...]:
    """Return the pairs as they are; where nothing follows the insertion in any of them, all of them with their answers."""
    # what is read of a span is read by what comes after it: behind the last token of the bare prompt that is the answer
    found = tuple(pairs)
    whole = all(pair.n_after or pair.boundary_merge for pair in found)
    return tuple(pair if whole or pair.n_answer or pair.boundary_merge else pair.answered() for pair in found)


def digest_of(pairs: Iterable[PromptPair]) -> str:
    """Return one short name of all these prompts, answers and distractors, in their order: part of every result of them."""
    return key_of([pair.fingerprint() for pair in pairs])


def own_pairs(model: Model, pairs: Iterable[PromptPair]) -> tuple[PromptPair, ...]:
    """Return the pairs; `ValueError` where they were made for another tokenizer, in which their ids are other tokens than here,
    or hold ids that this model has not."""
    found = tuple(pairs)
    for pair in found:
        if pair.given:
            check_fits(model.info, pair)
        theirs, ours = pair.tokenizer, model.tokenizer
        if theirs is ours or theirs is None or ours is None:
            continue
        answers = {*pair.answer_prefix_ids, *pair.answer_ids, *pair.distractor_ids, *pair.solution_ids}
        for one in sorted({*pair.base.ids, *pair.inserted.ids} | answers):
            meant = theirs.convert_ids_to_tokens(one)
            here = ours.convert_ids_to_tokens(one) if one < len(ours) else None
            if meant != here:
                raise ValueError(
                    f"pair {pair.id!r} was made for another tokenizer: its token {one} is {meant!r} there and {here!r} in that "
                    f"of {model.info.name}; make the pairs with this model: make_pairs(model, problems, insertion)"
                )
    return found


def check_fits(info: ModelInfo, pair: PromptPair) -> None:
    """Raise `ValueError` unless a model has a pair's ids, and a context that holds it without the answer's last token."""
    prompts = pair.inserted.ids + (pair.clean.ids if pair.clean else ())
    answers = () if info.n_classes is not None else pair.answer_ids + pair.distractor_ids
    highest = max(prompts + pair.answer_prefix_ids + answers)
    if highest >= info.d_vocab:
        remedy = "" if pair.given or highest in pair.span_ids else ": put the model's own tokenizer beside it"
        raise ValueError(
            f"problem {pair.id!r} holds token id {highest}, but {info.name} has the ids 0 to {info.d_vocab - 1}{remedy}"
        )
    fed = 0 if pair.n_answer else len(pair.answer_prefix_ids) + max(0, len(pair.answer_ids) - 1)
    needed = len(pair.inserted) + fed
    if needed > info.context_length:
        raise ValueError(
            f"problem {pair.id!r} needs {needed} positions with {pair.n_inserted} inserted, but {info.name} has a context of "
            f"{info.context_length}: insert fewer tokens or leave it out"
        )


def check_length(insertion: Insertion, context: int | None, name: str) -> None:
    """Raise `ValueError` for more tokens than a model's context holds (None: unknown), before that many are made."""
    if context is not None and (insertion.n_tokens or 0) > context:
        told = f"{insertion.n_tokens} tokens to insert do not fit {name}, which has a context of {context}"
        raise ValueError(f"{told}: insert fewer tokens")


def over_pairs(model: Model, pairs: Sequence[PromptPair], compute: Compute, **options: Any) -> list[Any]:
    """Run `over_problems` of a model's pairs, computed by its engine; `prompts`: by default the pairs' own."""

    def in_turn(unit: Unit, tick: Tick) -> Sequence[object]:
        with model.turn(of_passes=False):  # as the model's identity says, also what is made of its passes
            return compute(unit, tick)

    given: Arguments = {"prompts": [pair.fingerprint() for pair in pairs], "engine": model.engine} | options
    return over_problems([pair.id for pair in pairs], in_turn, **given)


def draws_beside(own: Insertion | Given, control: Insertion, n_draws: int) -> list[Insertion]:
    """Return a control to hold against an insertion: of random words so many draws, without its own, if it is one of them."""
    if control.kind != "random_sentence":
        return [control]
    drawn = (own.seed, own.draw) if isinstance(own, Insertion) and own.kind == control.kind else None
    made = [replace(control, draw=control.draw + number) for number in range(n_draws + 1)]
    return [each for each in made if (each.seed, each.draw) != drawn][:n_draws]


def pairs_like(model: object, pairs: Sequence[PromptPair], insertion: Insertion) -> tuple[PromptPair, ...]:
    """Make the same problems' pairs with another insertion there, as long as each one's own where their lengths differ."""
    placed = insertion.placed_as(pairs[0].insertion)
    several = placed.n_tokens is not None and len({pair.n_inserted for pair in pairs}) > 1

    def made(pair: PromptPair) -> PromptPair:
        one = replace(placed, n_tokens=pair.n_inserted) if several else placed
        return pairs_of_any(model, [pair.problem], one, template=pair.template)[0]

    return tuple(map(made, pairs))


@checked
def make_pairs(
    model: object, problems: Iterable[Problem], insertion: Insertion, *, template: str | Template = "raw"
) -> tuple[PromptPair, ...]:
    """Make one `PromptPair` per problem.

    `model` is a `Model` (its context length is checked) or a Hugging Face tokenizer. `template`: "raw" (the paper's
    string with its braces corrected), "raw_as_sent" (with the doubled braces its code sends), "chat" (the tokenizer's
    own chat template), "paper" (text-level insertion as in the paper's code; not for patching), or a `Template`.

    A problem's text is text: special tokens that it spells (`<|im_end|>`) are encoded as letters and signs, with a warning.
    Raises `ValueError` naming the problem for anything that cannot be built or does not fit the model's context, and for
    problems that the tokenizer does not know. Warns of questions that look like variants of one problem and have no `group`.
    """
    asked = tuple(problems)
    check_known(tokenizer_of(model), asked)
    pairs = pairs_of_any(model, asked, insertion, template=template)
    for told in warnings_of(tokenizer_of(model), asked):
        warnings.warn(told, stacklevel=3)
    return Several(pairs)


def pairs_of_any(
    model: object, problems: Iterable[Problem], insertion: Insertion, *, template: str | Template
) -> tuple[PromptPair, ...]:
    """Run `make_pairs` of whatever the tokenizer makes of the problems' words, for what holds for any tokens."""
    tokenizer, info, made = tokenizer_of(model), getattr(model, "info", None), template_named(template)
    if info is not None:
        check_length(insertion, info.context_length, info.name)
    pairs = tuple(_make_pair(tokenizer, problem, insertion, made) for problem in problems)
    if not pairs:
        raise ValueError("there are no problems to make pairs of")
    if info is not None:
        for pair in pairs:
            check_fits(info, pair)
    return pairs


def _make_pair(tokenizer: Tokenizer, problem: Problem, insertion: Insertion, template: Template) -> PromptPair:
    """Return the pair of a problem, and what may follow its prompts: answer and prefix, wrong answer, solution.
    Behind a prefix (`\\boxed{`) an answer goes on with its text; without one it is encoded on its own, as the question is."""
    base = build_prompt(tokenizer, problem, template)
    if template.as_text:
        inserted = _as_text(tokenizer, problem, insertion, template)
    else:
        span = insertion.span(tokenizer, problem)
        try:
            inserted = insert_tokens(base, insertion.places(base), span)
        except ValueError as error:
            raise ValueError(f"problem {problem.id!r}: {error}") from error
    own = problem.answer_prefix is not None
    within = bool(problem.answer_prefix if own else template.answer_prefix)

    def part(name: str, *, within: bool = False) -> tuple[int, ...]:
        return () if getattr(problem, name) is None else encode_part(tokenizer, problem, name, within=within)

    of_template = () if own else encode_within(tokenizer, template.answer_prefix, markers=True)
    return PromptPair(
        problem=problem,
        base=base,
        inserted=inserted,
        insertion=insertion,
        boundary_merge=template.as_text and [token for token, _ in without_span(inserted)] != list(base.ids),
        answer_prefix_ids=part("answer_prefix") or of_template,
        answer_ids=part("answer", within=within),
        distractor_ids=part("distractor", within=within),
        solution_ids=part("solution"),
        template=template,
        tokenizer=tokenizer,
    )


def _as_text(tokenizer: Tokenizer, problem: Problem, insertion: Insertion, template: Template) -> Prompt:
    """Return the prompt with an insertion in the paper's way: inserted into the string, which is encoded in one piece."""
    no_text = not KINDS[insertion.kind].as_text or spells_special(tokenizer, insertion.unit)
    if no_text or insertion.where != "before question":
        raise ValueError(
            'template="paper" inserts text between system and question, no special tokens; use template="raw" for anything else'
        )
    span = insertion.span(tokenizer, problem)
    times = len(span) // len(encode_within(tokenizer, insertion.unit)) if insertion.repeats else 0
    filler = (insertion.unit * times or str(tokenizer.decode(list(span)))).strip()
    if not filler:
        raise ValueError('template="paper" strips the inserted text and nothing is left; use template="raw"')
    return in_one_piece(tokenizer, problem, template, filler)
