"""Words, tokenizer and problems of the planted models: everything about them that is text.

Every problem names two or three numbers and asks for the largest; the answer is that number, one token. The words are
plain English, so that sentences can be drawn from the same vocabulary; which words a model knows, and under which ids,
depends on its seed.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast

PAD, EOS, UNK = "<pad>", "<eos>", "<unk>"
NUMBERS = tuple(str(value) for value in range(2, 14))
ANSWER_PREFIX = ("Answer", ":", "\\boxed{")
"""Tokens of the answer prefix `Answer : \\boxed{`; the answer's number follows, then `}`."""

_PUNCTUATION = (".", ",", "?", "!", ";", "/", "\\", "{", "}", "-", "(", ")")
_SYSTEM_SENTENCES = (
    "Please reason step by step , put your final result within \\boxed{ } .",
    "Solve this task carefully . Give one short reply .",
    "Work slowly , check everything . Reply within \\boxed{ } .",
    "You are an expert mathematician . Put your final result within \\boxed{ } .",
)
_ASK = ("Which number is larger ?", "Tell me , which number is the greatest ?", "What number was the largest of them ?")
_VERBS = ("has", "found", "bought", "counted", "keeps", "saw")
_PREPOSITIONS, _AGES = ("to", "near", "past"), ("old", "new")
_LINKS = ("and", "the", *_PREPOSITIONS, *_AGES)
_GLUE = ("of", "in", "on", "at", "was", "very", "he", "she", "it")

_NAMES = "Tom Ann Ben Eva Max Ida Leo Mia Sam Zoe Kai Una Jan Ada Rob Liv Noa Pia Ray Sue Ted Val Wim Yves".split()
_THINGS = """
    apples pears plums stones books coins shells birds boats cups lamps maps pens rings ropes seeds shoes songs spoons
    stamps tickets toys trees wheels
""".split()
_PLACES = """
    bridge river market garden station harbour forest library kitchen village mountain castle bakery island museum tower
    field school theatre valley
""".split()
_MOTIONS = "walked ran drove sailed cycled returned moved travelled".split()
_WORDS = """
    morning evening summer winter rain snow wind cloud blue green red yellow quiet bright cold warm small tall round soft
    horse dog cat fish bread milk sugar paper window door table chair music dance story letter friend sister brother
    neighbour teacher painter under over behind before after often never always again together
""".split()
_ASKED = {word for sentence in _ASK for word in sentence.split()}
# "answer" and "by" complete the sentence of the paper's code, so that it has no unknown token here.
SYSTEM = {*" ".join(_SYSTEM_SENTENCES).split(), "answer", "by"} - {*_PUNCTUATION, *ANSWER_PREFIX}
"""Tokens that belong to system sentences only."""
NEUTRAL = {*_PUNCTUATION, *ANSWER_PREFIX, PAD, EOS}  # tokens of no part of a prompt


@dataclass(frozen=True)
class Vocabulary:
    """The words that one planted model knows; `tokens[i]` is the token with id i."""

    tokens: tuple[str, ...]
    names: tuple[str, ...]
    things: tuple[str, ...]
    places: tuple[str, ...]

    def in_prompts(self, token: str) -> bool:
        """Return whether system sentences, questions or answers can contain the token."""
        told = {*self.names, *self.things, *self.places, *_VERBS, *_MOTIONS, *_LINKS, *_ASKED, *NUMBERS}
        return token in told | SYSTEM | {*ANSWER_PREFIX, PAD, EOS, UNK, "}", "?", ".", ","}


def draw_vocabulary(seed: int) -> Vocabulary:
    """Return the words of the model with this seed, in the order of their ids: some 170 of a pool of about 200."""
    rng = random.Random(f"planted vocabulary {seed}")
    names, things, places = (tuple(rng.sample(words, n)) for words, n in ((_NAMES, 16), (_THINGS, 16), (_PLACES, 14)))
    known = {*names, *things, *places, *_MOTIONS, *_VERBS, *_LINKS, *_GLUE, *_ASKED, *rng.sample(_WORDS, 48), *NUMBERS}
    rest = sorted(known | SYSTEM | {*_PUNCTUATION, *ANSWER_PREFIX})
    rng.shuffle(rest)
    return Vocabulary((PAD, EOS, UNK, *rest), names, things, places)


def build_tokenizer(tokens: Sequence[str], *, model_max_length: int) -> PreTrainedTokenizerFast:
    """Return a word-level tokenizer: words, numbers, `\\boxed{` and single signs are tokens, white space only separates."""
    tokenizer = Tokenizer(WordLevel({token: index for index, token in enumerate(tokens)}, unk_token=UNK))
    tokenizer.pre_tokenizer = Split(Regex(r"\\boxed\{|\w+|[^\w\s]"), behavior="removed", invert=True)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        model_max_length=model_max_length,
    )


def draw_records(
    vocabulary: Vocabulary, n: int, *, seed: int, name: str, n_clauses: tuple[int, int] = (0, 3), swap: bool = False
) -> list[dict[str, str | int]]:
    """Draw `n` problems as a problem file has them (`Problem.from_dict`); problem i depends on `seed` and i only."""

    def draw(i: int) -> dict[str, str | int]:
        rng = random.Random(f"planted problem {seed} {i}")
        values = rng.sample([int(number) for number in NUMBERS], rng.choice((2, 2, 3)))
        people = rng.sample(vocabulary.names, len(values) + 1)
        facts = [
            f"{person} {rng.choice(_VERBS)} {value} {rng.choice(vocabulary.things)}"
            for person, value in zip(people[:-1], values, strict=True)
        ]
        clauses = [" and ".join(facts) + " ."]
        for _ in range(rng.randint(*n_clauses)):
            preposition = rng.choice(_PREPOSITIONS)
            goal = f"the {rng.choice(_AGES)} {rng.choice(vocabulary.places)}"
            clauses.append(f"{people[-1]} {rng.choice(_MOTIONS)} {preposition} {goal} .")
        rng.shuffle(clauses)
        largest, second = sorted(values, reverse=True)[:2]
        question = " ".join([*clauses, rng.choice(_ASK)])
        answer, distractor = (second, largest) if swap and rng.random() < 0.5 else (largest, second)
        return {
            "problem": question,
            "solution": f"Answer : \\boxed{{ {answer} }}",
            "answer": str(answer),
            "subject": "Largest number",
            "level": min(5, len(values) + len(clauses) - 2),
            "unique_id": f"{name}/{seed}/{i}",
            "system": f"{rng.choice(_SYSTEM_SENTENCES)} ",  # the parts of a prompt are joined as they are
            "distractor": str(distractor),
            "answer_prefix": " Answer : \\boxed{",
        }

    return [draw(i) for i in range(n)]
