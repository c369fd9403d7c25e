"""Prompts: token ids with a segment name per token, built from a template."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..core.arguments import checked, one_of, shown
from ..runtime.text_safety import visible
from .problems import Problem, overlap

if TYPE_CHECKING:  # importing transformers takes seconds
    from transformers import PreTrainedTokenizerBase as Tokenizer
else:
    Tokenizer = object

SEGMENTS = ("bos", "template", "system", "examples", "inserted", "question", "answer")

PAPER_SYSTEM = "Please reason step by step and put your final answer within \\boxed{}."
PAPER_SYSTEM_AS_SENT = "Please reason step by step and put your final answer within \\boxed{{}}."
"""What the paper's released code really sends: a plain literal, so its doubled braces reach the model."""
CHAT_SYSTEM = (
    "You are an expert mathematician. Solve the following problem carefully. Put your final answer within a \\boxed{}"
)
"""The system prompt of the paper's Fig. 1 and Appendix J."""
ANSWER_PREFIX = "The final answer is \\boxed{"
MAX_UNKNOWN = 0.05  # the largest share of a question's tokens that may be the tokenizer's unknown token


@dataclass(frozen=True)
class Prompt:
    """Token ids and one segment name per token: bos, template, system, examples, inserted, question, answer.
    `bos_added`: the first id is the tokenizer's BOS, put there by us."""

    ids: tuple[int, ...]
    segments: tuple[str, ...]
    template: str = "raw"
    bos_added: bool = False

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def tokens(self) -> Tensor:
        """The ids as `[1, token]`."""
        return torch.tensor([self.ids])

    def mask(self, *names: str) -> Tensor:
        """Return boolean `[token]`: True where the token's segment is one of `names`."""
        for name in names:
            one_of(name, SEGMENTS, "segment")
        return torch.tensor([segment in names for segment in self.segments])

    def indices(self, *names: str) -> tuple[int, ...]:
        """Return the positions of these segments' tokens."""
        return tuple(self.mask(*names).nonzero().flatten().tolist())

    def blocks(self, *names: str) -> tuple[tuple[int, int], ...]:
        """Return the runs of these segments' tokens, (first position, one past the last) each."""
        ends = [0, *self.mask(*names).int().tolist(), 0]
        edges = [at for at in range(len(ends) - 1) if ends[at] != ends[at + 1]]
        return tuple(zip(edges[::2], edges[1::2], strict=True))


@checked
@dataclass(frozen=True)
class Template:
    """How a problem becomes a prompt: system and question, one after the other with nothing between, or with `chat` the
    tokenizer's own template.

    `as_text` marks the paper's compatibility mode: insertion into the string, encoded in one piece. `bos` puts the tokenizer's
    beginning-of-sequence token in front even where the tokenizer would not (GPT-2's models were trained with one).
    """

    name: str
    system: str
    answer_prefix: str = "\n" + ANSWER_PREFIX
    chat: bool = False
    as_text: bool = False
    bos: bool = False


TEMPLATES = {
    "raw": Template("raw", PAPER_SYSTEM),
    "raw_as_sent": Template("raw_as_sent", PAPER_SYSTEM_AS_SENT),
    "paper": Template("paper", PAPER_SYSTEM_AS_SENT, as_text=True),
    "text": Template("text", "", answer_prefix="", bos=True),
    "chat": Template("chat", CHAT_SYSTEM, answer_prefix=ANSWER_PREFIX, chat=True),
}


def template_named(template: str | Template) -> Template:
    """Return the template of that name, or the given one."""
    return template if isinstance(template, Template) else one_of(template, TEMPLATES, "template")


def tokenizer_of(model: Any) -> Tokenizer:
    """Return the tokenizer of a `Model`, or the one given; `TypeError` where there is none."""
    tokenizer: Tokenizer = getattr(model, "tokenizer", model)
    if hasattr(tokenizer, "encode") and not isinstance(tokenizer, str):
        return tokenizer
    lacks = " without a tokenizer: give it one, wrap_model(..., tokenizer=...)" * hasattr(model, "tokenizer")
    raise TypeError(f"model must be a Model or a tokenizer, got {shown(model)}{lacks}")


def encode(tokenizer: Tokenizer, text: str, *, markers: bool = False) -> tuple[int, ...]:
    """Return the ids of a text, with no special tokens added. Text is text, also where it spells a special token
    (`<|im_end|>`): `ValueError` where this tokenizer cannot tell them apart. `markers`: what spells one is meant as one."""
    ids = tuple(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=not markers))
    return ids if markers else _all_text(tokenizer, ids)


def encode_within(tokenizer: Tokenizer, text: str, *, markers: bool = False) -> tuple[int, ...]:
    """Return the ids that a text has in the middle of another one: without the `▁` that SentencePiece puts before it."""
    alone = encode(tokenizer, text, markers=markers)
    if not _begins_with_space(tokenizer):
        return alone
    for lead in ("\n", ".", "a", "1", "/"):  # one of them has the same ids whatever follows it
        before, whole = (encode(tokenizer, part, markers=markers) for part in (lead, lead + text))
        if before and whole[: len(before)] == before:
            return whole[len(before) :]
    raise ValueError(f"{text[:60]!r} merges with whatever stands before it: this tokenizer gives it no ids of its own")


@lru_cache(maxsize=8)
def _begins_with_space(tokenizer: Tokenizer) -> bool:
    first = tokenizer.convert_ids_to_tokens(list(encode(tokenizer, "a")))[:1]
    return bool(first) and first[0][:1] in ("▁", "Ġ")


def _all_text(tokenizer: Tokenizer, ids: tuple[int, ...]) -> tuple[int, ...]:
    """Return the ids; `ValueError` where one of them is a special token all the same."""
    if found := special_ids(tokenizer, len(tokenizer)).intersection(ids) - {tokenizer.unk_token_id}:
        raise ValueError(
            f"the text spells the special token {tokenizer.convert_ids_to_tokens(min(found))!r}, which this tokenizer cannot "
            "tell from the token itself: write it in another way, or leave this problem out"
        )
    return ids


@lru_cache(maxsize=8)
def special_ids(tokenizer: Tokenizer, n_tokens: int) -> frozenset[int]:
    """Read them once for each size of a tokenizer, which may be given more."""
    return frozenset(at for at, token in tokenizer.added_tokens_decoder.items() if token.special)


def encode_part(
    tokenizer: Tokenizer, problem: Problem, part: str, text: str | None = None, *, within: bool = False
) -> tuple[int, ...]:
    """Return the ids of a part of a problem (`text` where a template changed it); errors name the problem and the part.
    `within`: it goes on with the text before it, so that no tokenizer puts a space there."""
    try:
        return (encode_within if within else encode)(tokenizer, getattr(problem, part) if text is None else text)
    except ValueError as error:
        raise ValueError(f"problem {problem.id!r}, its {part}: {error}") from error


def spells_special(tokenizer: Tokenizer, text: str) -> bool:
    """Return whether a text would become special tokens of this tokenizer if it were not encoded as text."""
    markers, special = encode(tokenizer, text, markers=True), special_ids(tokenizer, len(tokenizer))
    if special.isdisjoint(markers):
        return False
    text_ids = tuple(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))
    return markers != text_ids or not (special - {tokenizer.unk_token_id}).isdisjoint(markers)


def warnings_of(tokenizer: Tokenizer, problems: Sequence[Problem]) -> list[str]:
    """Return what is said of problems that spell special tokens of this tokenizer, and of ones that look like variants."""
    parts = ("system", "examples", "question", "answer_prefix", "answer", "distractor", "solution")
    spelt: dict[str, list[str]] = {}
    for problem in problems:
        own = [part for part in parts if (text := getattr(problem, part)) and spells_special(tokenizer, text)]
        spelt |= {problem.id: own} if own else {}
    told = [overlap(problems)]
    if spelt:
        name, own = next(iter(spelt.items()))
        first = f"(first: {name!r}, its {' and '.join(own)})"
        told.append(
            f"{len(spelt)} of {len(problems)} problems spell special tokens of this tokenizer {first}: they are encoded as "
            "the text that they are"
        )
    return [visible(each) for each in told if each]


def check_known(tokenizer: Tokenizer, problems: Sequence[Problem]) -> None:
    """Raise `ValueError` where more than `MAX_UNKNOWN` of a question's tokens (with the problem's own system prompt and
    examples) are the tokenizer's unknown token, or any of an answer's or a distractor's."""
    unknown = tokenizer.unk_token_id
    if unknown is None:
        return
    for problem in problems:
        texts = [part for part in ("system", "examples", "question") if getattr(problem, part)]
        ids = [at for part in texts for at in encode_part(tokenizer, problem, part)]
        if (share := ids.count(unknown) / max(len(ids), 1)) > MAX_UNKNOWN:
            words = dict.fromkeys(" ".join(getattr(problem, part) for part in texts).split())
            examples = [repr(word) for word in words if unknown in encode(tokenizer, word)]
            raise ValueError(
                f"problem {problem.id!r} holds words that this tokenizer does not know: {100 * share:.3g} % of its tokens are "
                f"{tokenizer.unk_token!r} (for example {', '.join(examples[:5])}). Use the model's own problems (--problems "
                "demo for the demo model, the problems.jsonl beside a planted one), or another model"
            )
        for part in ("answer", "distractor"):
            if (text := getattr(problem, part)) and unknown in encode_part(tokenizer, problem, part):
                raise ValueError(
                    f"problem {problem.id!r}: its {part} {text!r} becomes the unknown token {tokenizer.unk_token!r}: give "
                    "another one, or leave the problem out"
                )


def prepends_bos(tokenizer: Tokenizer) -> bool:
    """Return whether this tokenizer puts a BOS before ordinary text of its own accord."""
    bos = tokenizer.bos_token_id
    return bos is not None and list(tokenizer.encode("a"))[:1] == [bos]


@checked
def build_prompt(tokenizer: Tokenizer, problem: Problem, template: str | Template = "raw") -> Prompt:
    """Return the prompt of a problem without insertion, each part encoded on its own (so that insertion never re-merges),
    unless its template is one string (`as_text`).

    Special tokens are those of the template alone: what a problem spells is text. `ValueError` where there is no chat template,
    it rejects a system prompt or changes a message's text, or the question encodes to no tokens.
    """
    made, tokenizer = template_named(template), tokenizer_of(tokenizer)
    if made.as_text:
        return in_one_piece(tokenizer, problem, made)
    system = made.system if problem.system is None else problem.system
    parts = [(system, "system"), (problem.examples or "", "examples"), (problem.question, "question")]
    if made.chat:
        parts = _chat_parts(tokenizer, problem, system)
    bos = tokenizer.bos_token_id
    bos_added = not made.chat and (prepends_bos(tokenizer) or (made.bos and bos is not None))
    ids: list[int] = [bos] if bos_added else []
    segments = ["bos"] * bos_added
    for text, segment in parts:
        if segment == "template" or (segment == "system" and problem.system is None):
            encoded = encode(tokenizer, text, markers=True)
        else:
            encoded = encode_part(tokenizer, problem, segment, text)
        ids += encoded
        segments += [segment] * len(encoded)
    if made.chat and segments[0] == "template" and ids[0] == bos:
        segments[0] = "bos"
    if "question" not in segments:
        raise ValueError(f"problem {problem.id!r}: its question encodes to no tokens with this tokenizer")
    return Prompt(tuple(ids), tuple(segments), made.name, bos_added)


def _chat_parts(tokenizer: Tokenizer, problem: Problem, system: str) -> list[tuple[str, str]]:
    """Return the rendered chat prompt cut around the system prompt and the question."""
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError('this tokenizer has no chat template; use template="raw"')

    def rendered(system: str, question: str) -> str:
        messages = [{"role": "system", "content": system}] * bool(system) + [{"role": "user", "content": question}]
        try:
            return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        except Exception as error:
            raise ValueError(f'the chat template takes no system prompt ({error}); use "raw" or system=""') from error

    marks = ("\u2039mless-system\u203a", "\u2039mless-question\u203a")
    head, _, rest = rendered(*marks).partition(marks[0]) if system else ("", "", rendered("", marks[1]))
    middle, _, tail = rest.partition(marks[1])
    shots, question = problem.examples or "", problem.question
    whole = rendered(system, shots + question)
    trimmed = (system.strip(), shots.lstrip(), question.rstrip() if shots.strip() else question.strip())
    for says, shows, asks in ((system, shots, question), trimmed):  # some templates trim
        parts = [(head, "template"), (says, "system"), (middle, "template"), (shows, "examples"), (asks, "question")]
        parts.append((tail, "template"))
        if "".join(part for part, _ in parts) == whole:
            return [part for part in parts if part[0]]
    raise ValueError(
        f"problem {problem.id!r}: the chat template does not show system prompt and question once each, as they are, so "
        'their tokens cannot be told apart; use template="raw"'
    )


def in_one_piece(tokenizer: Tokenizer, problem: Problem, template: Template, filler: str = "") -> Prompt:
    """Encode system prompt, filler and question as one string; needs a fast tokenizer."""
    markers = problem.system is None and spells_special(tokenizer, template.system)
    if problem.examples or markers:
        what = "its system prompt spells special tokens" if markers else f"problem {problem.id!r} has examples"
        raise ValueError(
            f'template {template.name!r} is one string of system prompt and question, but {what}; use "raw"'
        )
    system = template.system if problem.system is None else problem.system
    text, first, last = system + filler + problem.question, len(system), len(system + filler)
    found = tokenizer(text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True)
    ids, bos = _all_text(tokenizer, tuple(found["input_ids"])), (tokenizer.bos_token_id,) * prepends_bos(tokenizer)
    segments = ["bos"] * len(bos)
    for a, b in found["offset_mapping"]:  # the characters of each token
        segments.append("inserted" if filler and a < last and b > first else "system" if a < first else "question")
    return Prompt(bos + ids, tuple(segments), template.name, bool(bos))
