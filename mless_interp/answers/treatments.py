"""What a problem is answered under: an insertion, ARM, heads knocked out, alone or together."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..core.arguments import as_annotated, checked, listed
from ..core.heads import Head, as_heads
from ..mechanism.arm import ARM
from ..patching.knockouts import JointKnockout
from ..prompts.insertions import Insertion


@checked
@dataclass(frozen=True)
class Treatment:
    """One way to answer: with an insertion, with ARM, with heads that cannot see the insertion, or any of these together.

    `knockout`: heads (zero-based) that cannot see the inserted span from any later position, their attention
    renormalised, at the prompt and at every generated token; it needs an insertion. `name` stands in every table
    (default: `label`).
    """

    insertion: Insertion | None = None
    arm: ARM | None = None
    knockout: Sequence[Head | str] = ()
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "knockout", as_heads(self.knockout))
        object.__setattr__(self, "name", self.name or self.label)
        if self.knockout and self.insertion is None:
            why = "a knockout hides the inserted tokens from heads, so it needs an insertion"
            raise ValueError(f"treatment {self.name!r}: {why}")

    @property
    def label(self) -> str:
        """A short name made of what is done: `Mless ' /' x55 without L0H13`; `none` where nothing is."""
        parts = [part.label for part in (self.insertion, self.arm) if part is not None]
        if self.knockout:
            parts[:1] = [" ".join([*parts[:1], f"without {listed(self.knockout, 4)}"])]
        return " + ".join(parts) or "none"

    def record(self) -> dict[str, object]:
        """Return everything that identifies the treatment, ready for JSON."""
        parts = {"insertion": self.insertion, "arm": self.arm}
        found: dict[str, object] = {name: part and dataclasses.asdict(part) for name, part in parts.items()}
        return found | {"knockout": [str(head) for head in self.knockout]}


def as_treatment(thing: object) -> Treatment:
    """Return a `Treatment` from what users write: None (nothing is done), an insertion, ARM, or a treatment itself."""
    given = as_annotated(thing, Insertion | ARM | Treatment | None, "a treatment")
    if isinstance(given, Treatment):
        return given
    return Treatment(arm=given) if isinstance(given, ARM) else Treatment(given)


def as_treatments(things: object) -> tuple[Treatment, ...]:
    """Return treatments with different names, at least one; `things` is one of what `as_treatment` takes, or several."""
    found = tuple(map(as_treatment, things if isinstance(things, Iterable) else [things]))
    if not found:
        raise ValueError("there are no treatments; [None] answers the plain problems")
    (name, n), *_ = Counter(treatment.name for treatment in found).most_common()
    if n > 1:
        raise ValueError(f"the treatment {name!r} is named twice; tell them apart with Treatment(..., name=...)")
    return found


NONE, INSERTED, CUT_OFF, RANDOM = "none", "insertion", "named set cut off", "random set {} cut off"


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
