"""Prompts: token ids with a segment name per token, built from a template."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .problems import Problem

SEGMENTS = ("bos", "template", "system", "inserted", "question", "answer")

PAPER_SYSTEM = "Please reason step by step and put your final answer within \\boxed{}."
PAPER_SYSTEM_AS_SENT = "Please reason step by step and put your final answer within \\boxed{{}}."
"""What the paper's released code really sends: a plain literal, so its doubled braces reach the model."""
CHAT_SYSTEM = (
    "You are an expert mathematician. Solve the following problem carefully. Put your final answer within a \\boxed{}"
)
"""The system prompt of the paper's Fig. 1 and Appendix J."""
ANSWER_PREFIX = "The final answer is \\boxed{"


@dataclass(frozen=True)
class Prompt:
    """Token ids and one segment name per token: bos, template, system, inserted, question, answer.

    `bos_added`: the first id is the tokenizer's BOS, put there by us. `joined_differs`: the parts are encoded one by
    one, and encoding the joined string in one piece would give other ids (recorded, not mended; None = not checked).
    """

    ids: tuple[int, ...]
    segments: tuple[str, ...]
    template: str = "raw"
    bos_added: bool = False
    joined_differs: bool | None = None

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.segments):
            raise ValueError(f"{len(self.ids)} token ids but {len(self.segments)} segment names")
        _check_segments(self.segments)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def tokens(self) -> Tensor:
        """The ids as `[1, token]`."""
        return torch.tensor([self.ids])

    def mask(self, *names: str) -> Tensor:
        """Boolean `[token]`: True where the token's segment is one of `names`."""
        _check_segments(names)
        return torch.tensor([segment in names for segment in self.segments])

    def indices(self, *names: str) -> tuple[int, ...]:
        """The positions of these segments' tokens."""
        _check_segments(names)
        return tuple(i for i, segment in enumerate(self.segments) if segment in names)

    def extended(self, ids: tuple[int, ...], segment: str) -> "Prompt":
        """This prompt with tokens appended."""
        return replace(self, ids=self.ids + ids, segments=self.segments + (segment,) * len(ids))


def _check_segments(names: Iterable[str]) -> None:
    unknown = set(names) - set(SEGMENTS)
    if unknown:
        raise ValueError(f"unknown segments {sorted(unknown)}; known: {', '.join(SEGMENTS)}")


@dataclass(frozen=True)
class Template:
    """How a problem becomes a prompt.

    `raw`: system and question, one after the other with nothing between (the paper's string). `as_text` marks the
    paper's compatibility mode: insertion into the string, encoded in one piece. `chat`: the tokenizer's own template.
    `text`: a problem's own parts and nothing else. `bos` puts the tokenizer's beginning-of-sequence token in front even where
    the tokenizer would not (GPT-2's does not, and its models were trained with one).
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
    """The template of that name, or the given one."""
    if isinstance(template, Template):
        return template
    if template not in TEMPLATES:
        raise ValueError(f"unknown template {template!r}; choose one of {', '.join(TEMPLATES)}")
    return TEMPLATES[template]


def encode(tokenizer: Any, text: str) -> tuple[int, ...]:
    """The ids of a text, with no special tokens added."""
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def prepends_bos(tokenizer: Any) -> bool:
    """Whether this tokenizer puts a BOS before ordinary text of its own accord."""
    bos = tokenizer.bos_token_id
    return bos is not None and list(tokenizer.encode("a"))[:1] == [bos]


def build_prompt(tokenizer: Any, problem: Problem, template: str | Template = "raw") -> Prompt:
    """The prompt of a problem without insertion, each part encoded on its own (so that insertion never re-merges).

    Raises `ValueError` where the tokenizer has no chat template, its template rejects a system prompt or changes a
    message's text, or the question encodes to no tokens.
    """
    made = template_named(template)
    system = made.system if problem.system is None else problem.system
    parts = [(system, "system"), (problem.question, "question")]
    if made.chat:
        parts = _chat_parts(tokenizer, problem, system)
    ids: list[int] = []
    segments: list[str] = []
    bos_added = not made.chat and (prepends_bos(tokenizer) or (made.bos and tokenizer.bos_token_id is not None))
    if bos_added:
        ids, segments = [tokenizer.bos_token_id], ["bos"]
    for text, segment in parts:
        encoded = encode(tokenizer, text)
        names = [segment] * len(encoded)
        if made.chat and segment == "template" and not ids and encoded[:1] == (tokenizer.bos_token_id,):
            names[0] = "bos"
        ids += encoded
        segments += names
    prompt = Prompt(tuple(ids), tuple(segments), made.name, bos_added)
    if not prompt.indices("question"):
        raise ValueError(f"problem {problem.id!r}: its question encodes to no tokens with this tokenizer")
    together = encode(tokenizer, "".join(text for text, _ in parts))
    return replace(prompt, joined_differs=together != prompt.ids[bos_added:])


def _chat_parts(tokenizer: Any, problem: Problem, system: str) -> list[tuple[str, str]]:
    """The rendered chat prompt cut around the system prompt and the question."""
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError('this tokenizer has no chat template; use template="raw"')
    marks = ("\u2039mless-system\u203a", "\u2039mless-question\u203a")

    def rendered(system: str, question: str) -> str:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        try:
            return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except Exception as error:
            raise ValueError(
                f'this tokenizer\'s chat template takes no system prompt ({error}); use template="raw"'
            ) from error

    text = rendered(*marks)
    if any(text.count(mark) != 1 for mark in marks) or text.index(marks[0]) > text.index(marks[1]):
        raise ValueError(
            'this tokenizer\'s chat template does not show system and question once each; use template="raw"'
        )
    head, rest = text.split(marks[0])
    middle, tail = rest.split(marks[1])
    whole = rendered(system, problem.question)
    for says, asks in ((system, problem.question), (system.strip(), problem.question.strip())):  # some templates trim
        parts = [(head, "template"), (says, "system"), (middle, "template"), (asks, "question"), (tail, "template")]
        if "".join(part for part, _ in parts) == whole:
            return [part for part in parts if part[0]]
    raise ValueError(
        f"problem {problem.id!r}: this tokenizer's chat template changes the text of the system prompt or the "
        'question, so their tokens cannot be told apart; use template="raw"'
    )


def word_boundaries(tokenizer: Any, text: str) -> tuple[tuple[int, ...], list[tuple[int, int]]]:
    """(ids, character range of each id) of a text encoded in one piece; needs a fast tokenizer."""
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError('template="paper" needs a fast tokenizer (one with character offsets); use template="raw"')
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    return tuple(encoded["input_ids"]), [tuple(pair) for pair in encoded["offset_mapping"]]
