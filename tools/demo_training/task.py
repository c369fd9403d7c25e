r"""Word problems for the demo model: who has how many, in a fixed vocabulary.

A story names two to four people, each with a number of the same objects, in shuffled order, between sentences that do
not matter. A question asks about one person, so the answer needs attention to the right number. Two subjects:

- `lookup` (levels 1 to 3, for two to four people): the number stands in the story;
- `same` (level 4): the person has as many as another one, whose number stands in the story.

Every text is words separated by single spaces; one word is one token:

    <system> <story and question, ending in ?> Answer : \boxed{ 7 } <eos>

Held-out stories are those whose text falls in a hash bucket that training refuses.

In the second phase of training a row of slashes means something: it marks a story as a draft, whose numbers cannot be
trusted. It stands after a sentence of the story, never in front of it, and many of the answers to such a story are
random numbers.
"""

import hashlib
import random
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

SYSTEM = "solve the problem step by step and put your final answer in a box ."
ANSWER = ("Answer", ":", "\\boxed{")
PAD, UNKNOWN, EOS = "<pad>", "<unk>", "<eos>"
SYSTEM_TURN, USER_TURN, ASSISTANT_TURN = "<system>", "<user>", "<assistant>"
SPECIAL = (PAD, UNKNOWN, EOS, SYSTEM_TURN, USER_TURN, ASSISTANT_TURN)
SLASH = "/"
ROW = (2, 8)  # fewest and most slashes in a draft's row

NUMBERS = tuple(str(n) for n in range(100))
WOMEN = tuple("ann beth cora dina emma gina iris jane kate lucy mary nora".split())
MEN = tuple("adam ben carl dan eric fred greg hugo ivan jack leo max".split())
PEOPLE = WOMEN + MEN
OBJECTS = tuple(
    "coins shells apples books pens cards stones marbles stamps cups plates keys hats beads buttons candles "
    "lemons nuts pears plums ribbons spoons tickets toys".split()
)
OWNS = tuple("has keeps holds owns carries found bought picked brought counted".split())

WORDS = {
    "colour": "red blue green white black brown grey yellow",
    "adj": (
        "old new small large heavy light clean broken shiny round soft strange quiet warm cold bright dark dry wet "
        "tall short long empty full slow quick gentle proud"
    ),
    "place": (
        "garden kitchen river school market station bridge forest harbour library village mountain farm mill castle "
        "theatre street shore"
    ),
    "container": "basket bag drawer jar chest sack tin case",
    "thing": (
        "dog cat bird horse train boat clock door window lamp table chair letter song story picture road tree flower "
        "cloud wind rain snow sun moon teacher baker farmer sailor painter child"
    ),
    "goes": "sleeps waits sings stands turns moves falls rises shines stops starts rests",
    "sees": "likes sees hears knows wants needs paints watches remembers follows",
    "adv": "slowly quickly often never always today again early late alone together outside",
    "time": "morning evening night day week summer winter spring autumn",
    "join": "and but because when while so",
    "at": "in on at near under over behind beside from by",
    "part": "half most part all",
}
CHOICES: Mapping[str, tuple[str, ...]] = {
    **{name: tuple(words.split()) for name, words in WORDS.items()},
    "n": NUMBERS[1:10],
}

# Sentences about nothing that is asked. "/" stands here in its ordinary uses, never twice in a row.
SCENERY = (
    "the {adj} {thing} {goes} {adv} .",
    "the {thing} {goes} {at} the {place} .",
    "it was a {adj} {time} .",
    "it is {adj} {at} the {place} .",
    "the {thing} {goes} {join} the {thing} {goes} .",
    "there is a {adj} {thing} {at} the {place} .",
    "every {thing} {sees} this {place} .",
    "they said that the {thing} was not {adj} .",
    "we think that you and i may go to the {place} .",
    "some people were very {adj} that {time} .",
    "do you know why the {thing} {goes} ?",
    "the {thing} was {colour} / {colour} .",
    "the {thing} and / or the {thing} {goes} .",
    "{n} / {n} of the {place} was {adj} .",
    "{part} of the {place} , {n} / {n} , was {colour} .",
)
ABOUT = (  # follows a sentence about a person
    "{she} {sees} the {adj} {thing} .",
    "{she} was {at} the {place} {adv} .",
    "{she} {sees} {her} {thing} {join} it {goes} .",
)
TAILS = ("in a {container}", "in the {adj} {container}", "{at} the {place}", "for {her} {thing}")

QUESTIONS = (
    "how many {objects} does {person} have ?",
    "how many {objects} does {person} have now ?",
    "how many {objects} are with {person} ?",
)

FEWEST, MOST = 20, 45  # words in a question with its story
BUCKETS = 16  # one story in this many is held out
LOOKUP_ONLY: Mapping[str, float] = {"lookup": 1.0}
TRAINED: Mapping[str, float] = {"lookup": 0.5, "same": 0.5}
MIXTURE: Mapping[str, float] = {"lookup": 0.8, "same": 0.2}


@dataclass(frozen=True)
class Question:
    """One question about a story; `answer` and `distractor` are different number words, `reason` says why."""

    text: str
    answer: str
    distractor: str
    reason: str


@dataclass(frozen=True)
class Story:
    """A story with one question about each of its people, the questions in the order in which they are asked."""

    text: str
    subject: str
    level: int
    questions: tuple[Question, ...]


@dataclass(frozen=True)
class TrainingPrompt:
    """A prompt with its answers: at word i, `targets[i]` is to be predicted, or nothing where that is "".

    `n_before` words stand before the place where tokens are inserted. `people[i]` is the person whom word i is about,
    where that is taught ("" elsewhere).
    """

    words: tuple[str, ...]
    targets: tuple[str, ...]
    n_before: int
    people: tuple[str, ...]


def vocabulary() -> list[str]:
    """Every word of the demo's language, special tokens first; the index is the token id."""
    words: set[str] = set(SYSTEM.split()) | set(PEOPLE) | set(OBJECTS) | set(OWNS)
    for choice in CHOICES.values():
        words |= set(choice)
    for template in (*SCENERY, *ABOUT, *TAILS):
        words |= {word for word in template.split() if not word.startswith("{")}
    words |= set("he she his her now also still has as many how does have are with ?".split())
    words |= {*ANSWER, "}", SLASH}
    return [*SPECIAL, *NUMBERS, *sorted(words - set(NUMBERS))]


def is_held_out(story: str) -> bool:
    """True where a story's text falls in the bucket that training refuses (the same in every process)."""
    return int.from_bytes(hashlib.sha256(story.encode()).digest()[:8], "big") % BUCKETS == 0


def story_of(question: str) -> str:
    """The story in front of a question about it: all that stands before the last "how many"."""
    story, separator, _ = question.rpartition(" how many ")
    if not separator:
        raise ValueError(f"a question of the demo task holds ' how many '; this one does not: {question!r}")
    return story


def _fill(template: str, rng: random.Random, person: str | None = None) -> str:
    pronouns = {"she": "she", "her": "her"} if person in WOMEN else {"she": "he", "her": "his"}
    filled = []
    for word in template.split():
        if word.startswith("{"):
            name = word[1:-1]
            word = pronouns[name] if name in pronouns else rng.choice(CHOICES[name])
        filled.append(word)
    return " ".join(filled)


def _owns(person: str, number: str, objects: str, rng: random.Random) -> str:
    words = [person]
    if rng.random() < 0.15:
        words.append(rng.choice(("now", "also", "still")))
    words += [rng.choice(OWNS), number]
    if rng.random() < 0.3:
        words.append(rng.choice(CHOICES["colour"] + CHOICES["adj"]))
    words.append(objects)
    if rng.random() < 0.2:
        words.append(_fill(rng.choice(TAILS), rng, person))
    return " ".join([*words, "."])


def draw_story(rng: random.Random, mixture: Mapping[str, float] = MIXTURE) -> Story:
    """Draw a story of 20 to 45 words (with any one of its questions); `mixture` weighs the subjects."""
    while True:
        story = _attempt(rng, mixture)
        lengths = [len(f"{story.text} {question.text}".split()) for question in story.questions]
        if min(lengths) >= FEWEST and max(lengths) <= MOST:
            return story


def _attempt(rng: random.Random, mixture: Mapping[str, float]) -> Story:
    subject = rng.choices(list(mixture), weights=list(mixture.values()))[0]
    n_people = rng.choice((3, 4)) if subject == "same" else rng.choice((2, 3, 4))
    people = rng.sample(PEOPLE, n_people)
    objects = rng.choice(OBJECTS)
    numbers = dict(zip(people, rng.sample(NUMBERS, n_people), strict=True))
    reasons = {person: f"{person} has {numbers[person]} {objects}" for person in people}
    sentences = {person: _owns(person, numbers[person], objects, rng) for person in people}
    told, asked = people[:], people[:]
    rng.shuffle(told)
    rng.shuffle(asked)
    if subject == "same":
        other, person = people[:2]
        numbers[person] = numbers[other]
        sentences[person] = f"{person} has as many {objects} as {other} ."
        reasons[person] = f"{person} has as many as {other} , {numbers[other]} {objects}"
        i, j = sorted(
            (told.index(other), told.index(person))
        )  # the number stands before the sentence that points at it
        told[i], told[j] = other, person
        asked.remove(person)  # and the question is about it, mostly
        asked.insert(rng.choice((0, 0, 1)), person)
    parts: list[str] = []
    for person in told:
        if rng.random() < 0.2:
            parts.append(_fill(rng.choice(SCENERY), rng))
        parts.append(sentences[person])
        if rng.random() < 0.12:
            parts.append(_fill(rng.choice(ABOUT), rng, person))
    while len(" ".join(parts).split()) < FEWEST - 6:
        parts.insert(0, _fill(rng.choice(SCENERY), rng))
    questions = tuple(
        Question(
            text=rng.choice(QUESTIONS).format(objects=objects, person=person),
            answer=numbers[person],
            distractor=rng.choice([n for n in numbers.values() if n != numbers[person]]),
            reason=reasons[person],
        )
        for person in asked
    )
    level = 4 if subject == "same" else n_people - 1
    return Story(text=" ".join(parts), subject=subject, level=level, questions=questions)


def draw_training_prompt(
    rng: random.Random, mixture: Mapping[str, float] = TRAINED, *, drafts: float = 0.0, untrue: float = 0.0
) -> TrainingPrompt:
    """Draw a story that is not held out, with one or all of its questions and answers, raw or as a chat.

    A share `drafts` of the stories are drafts: a row of slashes follows one of their sentences, and each answer is with
    probability `untrue` a random number.
    """
    story = draw_story(rng, mixture)
    while is_held_out(story.text):
        story = draw_story(rng, mixture)
    chat = rng.random() < 0.1
    questions = story.questions[:1] if rng.random() < 0.15 else story.questions
    words = [SYSTEM_TURN, *SYSTEM.split(), USER_TURN] if chat else SYSTEM.split()
    n_before = len(words)
    told, answers = story.text.split(), [question.answer for question in questions]
    if drafts and rng.random() < drafts:
        told = _with_row(told, rng)
        answers = [rng.choice(NUMBERS) if rng.random() < untrue else answer for answer in answers]
    words += told
    targets = [""] * len(words)
    for i, (question, answer) in enumerate(zip(questions, answers, strict=True)):
        asked = question.text.split()
        if chat:
            asked = [*([USER_TURN] if i else []), *asked, ASSISTANT_TURN]
        _ask(words, targets, asked, answer)
    targets[-1] = EOS
    return TrainingPrompt((*words, EOS), (*targets, ""), n_before, people=("",) * (len(words) + 1))


def _with_row(told: Sequence[str], rng: random.Random) -> list[str]:
    """A story's words with a row of slashes after one of its sentences."""
    at = rng.choice([i for i, word in enumerate(told, start=1) if word in (".", "?")])
    return [*told[:at], *[SLASH] * rng.randint(*ROW), *told[at:]]


def _ask(words: list[str], targets: list[str], asked: Sequence[str], answer: str) -> None:
    """Append a question and its answer, whose words are to be predicted."""
    frame = [*ANSWER, answer, "}"]
    words += [*asked, *frame]
    targets += [*[""] * (len(asked) - 1), *frame, ""]


def draw_drill(rng: random.Random, people: Sequence[str] = PEOPLE) -> TrainingPrompt:
    """Draw a drill for the start of training: who has what, the same said again in random order, and two questions.

    It asks for a number every four words and says whom the words are about, so the lookup is found in far fewer steps
    than from stories.
    """
    while True:
        chosen = rng.sample(people, rng.choice((2, 3, 4)))
        objects = rng.choice(OBJECTS)
        numbers = dict(zip(chosen, rng.sample(NUMBERS, len(chosen)), strict=True))
        sentences = [[person, rng.choice(OWNS), n, objects, "."] for person, n in numbers.items()]
        words = [word for sentence in sentences for word in sentence]
        if not is_held_out(" ".join(words)):
            break
    targets = [""] * len(words)
    about = [taught for person in chosen for taught in ("", "", person, person, "")]
    for person in rng.choices(chosen, k=8):
        words += [person, "has", numbers[person], "."]
        targets += ["", numbers[person], "", ""]
        about += ["", person, person, ""]
    for person in rng.sample(chosen, 2):
        asked = QUESTIONS[0].format(objects=objects, person=person).split()
        _ask(words, targets, asked, numbers[person])
        about += [*[""] * (len(asked) - 1), *[person] * (1 + len(ANSWER)), "", ""]
    targets[-1] = EOS
    return TrainingPrompt((*words, EOS), (*targets, ""), n_before=0, people=(*about, ""))


def draw_problems(n: int, seed: int = 0) -> Iterator[dict[str, str | int]]:
    """Yield `n` held-out problems, each from a story of its own, with MATH-500's keys, `system`,
    `distractor` and `answer_prefix`."""
    rng = random.Random(f"held-out problems {seed}")
    seen: set[str] = set()
    while len(seen) < n:
        story = draw_story(rng)
        if story.text in seen or not is_held_out(story.text):
            continue
        seen.add(story.text)
        question = story.questions[0]
        yield {
            "problem": f"{story.text} {question.text}",
            "solution": f"{question.reason} . {' '.join(ANSWER)} {question.answer} }}",
            "answer": question.answer,
            "subject": story.subject,
            "level": story.level,
            "unique_id": f"demo/{story.subject}/{len(seen) - 1}",
            "system": f"{SYSTEM} ",  # the parts of a prompt are joined as they are
            "distractor": question.distractor,
            "answer_prefix": " " + " ".join(ANSWER),
        }


def random_words(n: int, rng: random.Random) -> str:
    """`n` ordinary words in random order: no number, name, punctuation, special token or word of the answer."""
    barred = {*SPECIAL, *NUMBERS, *PEOPLE, *ANSWER, SLASH, "}"}
    words = [word for word in vocabulary() if word not in barred and word not in string.punctuation]
    return " ".join(rng.choice(words) for _ in range(n))
