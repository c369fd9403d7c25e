"""What a problem is answered under: an insertion, ARM, heads knocked out, alone or together."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from ..core.arguments import checked, listed
from ..core.heads import Head, as_heads
from ..mechanism.arm import ARM
from ..patching.knockouts import JointKnockout
from ..prompts.insertions import Insertion
from ..prompts.problems import Problem
from ..prompts.prompt import Tokenizer, encode_within


@checked
@dataclass(frozen=True)
class Treatment:
    """One way to answer: with an insertion, with ARM, with heads that cannot see the insertion, or any of these together.

    `knockout`: heads (zero-based) that cannot see the inserted span from any later position, their attention
    renormalised, at the prompt and at every generated token; it needs an insertion. `name` stands in every table
    (default: `label`).

    `emitted`: an instruction behind the question asks the model to emit the insertion itself, and `AccuracyResults.emitted`
    counts what came. True writes the instruction (`EMIT`); a text is one, with {filler} for the insertion's text and {times}
    for how often its unit occurs. To force the same tokens on the model instead, insert them with `before="answer"`.
    """

    insertion: Insertion | None = None
    arm: ARM | None = None
    knockout: Sequence[Head | str] = ()
    name: str = ""
    emitted: bool | str = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "knockout", as_heads(self.knockout))
        why = ""
        if self.knockout and self.insertion is None:
            why = "a knockout hides the inserted tokens from heads, so it needs an insertion"
        elif self.emitted and (self.insertion is None or self.knockout or not self.insertion.is_text):
            why = (
                "a model is asked to emit an insertion that is text, and where it will stand is not known before, so heads "
                'cannot be kept from seeing it: to force the tokens on the model, insert them with before="answer"'
            )
        object.__setattr__(self, "name", self.name or self.label)
        if why:
            raise ValueError(f"treatment {self.name!r}: {why}")

    @property
    def label(self) -> str:
        """A short name made of what is done: `Mless ' /' x55 without L0H13`; `none` where nothing is."""
        parts = [part.label for part in (self.insertion, self.arm) if part is not None]
        if self.knockout:
            parts[:1] = [" ".join([*parts[:1], f"without {listed(self.knockout, 4)}"])]
        if self.emitted and self.insertion is not None:
            parts[0] = f"{replace(self.insertion, before='answer', after=None, at=None).label}, emitted"
        return " + ".join(parts) or "none"

    @property
    def inserts(self) -> bool:
        """Whether the prompt holds the insertion."""
        return self.insertion is not None and not self.emitted

    def record(self) -> dict[str, object]:
        """Everything that identifies the treatment, ready for JSON."""
        found: dict[str, object] = {"emitted": self.emitted} if self.emitted else {}
        found |= {name: (part := getattr(self, name)) and dataclasses.asdict(part) for name in ("insertion", "arm")}
        return found | {"knockout": [str(head) for head in self.knockout]}

    def to_emit(self, tokenizer: Tokenizer, problem: Problem) -> tuple[Problem, str]:
        """Return the problem with the instruction behind its question, and the text that the model is to emit."""
        assert self.insertion is not None
        ids, unit = self.insertion.span(tokenizer, problem), self.insertion.unit
        filler = str(tokenizer.decode(list(ids))).strip()
        times = len(ids) // len(encode_within(tokenizer, unit)) if self.insertion.repeats else 1
        if not filler:
            raise ValueError(f"treatment {self.name!r}: white space cannot be asked for in words; insert it instead")
        asked = EMIT[self.insertion.repeats] if self.emitted is True else str(self.emitted)
        for key, value in {"{unit}": unit, "{times}": str(times), "{filler}": filler}.items():
            asked = asked.replace(key, value)  # a text may hold other braces: \boxed{}
        return replace(problem, question=f"{problem.question}\n{asked}"), filler


EMIT = {
    True: 'Begin your answer by writing "{unit}" {times} times, and then go on.',
    False: "Begin your answer with this text, and then go on: {filler}",
}
"""How a model is asked to emit an insertion: whether it repeats a unit -> the instruction."""


def emitted_share(completion: str, filler: str) -> float:
    """How much of a filler a completion begins with, 0 to 1, whatever the kind of white space.

    >>> emitted_share("/ / / and then 7", "/ / / /"), emitted_share("////", "/ / / /")
    (0.75, 0.25)
    """
    came, asked = (" ".join(text.split()) for text in (completion, filler))
    same = takewhile(lambda both: both[0] == both[1], zip(came, asked, strict=False))
    return sum(one != " " for one, _ in same) / len("".join(asked.split()))


def as_treatment(thing: object) -> Treatment:
    """A `Treatment` from what users write: None (nothing is done), an insertion, ARM, or a treatment itself."""
    match thing:
        case None | Insertion():
            return Treatment(thing)
        case Treatment():
            return thing
        case ARM():
            return Treatment(arm=thing)
    raise TypeError(
        f"a treatment is None, an Insertion, an ARM or a Treatment, got {thing!r}; heads are knocked out with "
        "Treatment(insertion=..., knockout=[Head(...)])"
    )


def as_treatments(things: object) -> tuple[Treatment, ...]:
    """Treatments with different names, at least one; `things` is one of what `as_treatment` takes, or several."""
    found = tuple(map(as_treatment, things if isinstance(things, Iterable) else [things]))
    if not found:
        raise ValueError("there are no treatments; [None] answers the plain problems")
    name, n = Counter(treatment.name for treatment in found).most_common(1)[0]
    if n > 1:
        raise ValueError(f"the treatment {name!r} is named twice; tell them apart with Treatment(..., name=...)")
    return found


NONE, INSERTED, CUT_OFF, RANDOM = "none", "insertion", "named set cut off", "random set {} cut off"
"""Names of the treatments of `cut_off`."""


@checked
def cut_off(insertion: Insertion, joint: JointKnockout | None, *, n_random_sets: int = 5) -> tuple[Treatment, ...]:
    """Return treatments that ask whether answers come back: no insertion, the insertion, and (where any head was named) the
    insertion with heads that cannot see it: those of `joint`, and random sets of their layers (fewest of them first)."""
    made = [Treatment(name=NONE), Treatment(insertion, name=INSERTED)]
    if joint is not None:
        random = sorted(joint.sets, key=lambda members: len(set(members) & set(joint.heads)))[:n_random_sets]
        made.append(Treatment(insertion, knockout=joint.heads, name=CUT_OFF))
        made += [Treatment(insertion, knockout=members, name=RANDOM.format(at)) for at, members in enumerate(random, 1)]
    return tuple(made)
