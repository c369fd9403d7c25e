"""The command that does what was planned, as it is to be typed."""

import shlex
from collections.abc import Mapping
from typing import Any

from ..prompts.insertions import Insertion
from ..prompts.pairs import PromptPair
from .timing import Chosen

TREATED = {
    "none": None,
    "mless": "meaningless",
    "mful": "meaningful",
    "random_sentence": "random_sentence",
    "arm": None,
}
"""Treatments of `mless-interp accuracy` -> the kind of insertion that each is."""
BEFORE_QUESTION = "before-question"


def command_of(
    what: str,
    pair: PromptPair,
    *,
    model: str,
    chosen: Chosen,
    here: bool,
    problems: Mapping[str, Any],
    limit: int,
    outcome: str,
    n_treatments: int,
    max_new_tokens: int | None,
) -> str:
    """The words, quoted for a shell; empty where no command has that insertion or so many treatments.

    `here`: whether the chosen device is on this machine; elsewhere the command takes the first GPU by itself.
    """
    insertion = pair.insertion
    words: dict[str, Any] = {"model": model, **problems, "limit": limit, "backend": chosen.backend}
    words |= {"dtype": chosen.dtype, "device": chosen.device if here else None, "attention": chosen.attention}
    words["template"] = pair.template.name
    unit = unit_of(insertion)
    if what == "accuracy":
        kinds = [name for name, kind in TREATED.items() if kind == insertion.kind]
        if not kinds or n_treatments > len(TREATED):
            return ""
        names = list(dict.fromkeys(["none", *kinds, *TREATED]))[:n_treatments]
        named = {"mless": "unit", "mful": "word"}.get(kinds[0])
        words |= {"treatments": ",".join(names), "max_new_tokens": max_new_tokens}
        words |= {named: unit} if named else {}
    elif what == "profiles":
        words["insertion"] = insertion.kind if unit is None else f"{insertion.kind}={unit}"
    else:
        words |= {"insertion": insertion.kind, "unit": unit, "outcome": outcome}
    words["n_tokens"] = insertion.n_tokens or (pair.n_inserted if insertion.token_ids else None)
    words |= {"place": place_of(insertion), "seed": insertion.seed or None, "out": f"results/{what}"}
    begin = ["mless-interp", *(["locate", "--mode", "sweep"] if what == "sweep" else [what])]
    given = {name.replace("_", "-"): str(value) for name, value in words.items() if value is not None}
    options = ([f"--{name}={value}"] if value[:1] == "-" else [f"--{name}", value] for name, value in given.items())
    return shlex.join([*begin, *(word for option in options for word in option)])


def unit_of(insertion: Insertion) -> str | None:
    """What `--unit` says of an insertion; None where it says nothing.

    >>> unit_of(Insertion.ids([5, 6])), unit_of(Insertion.counting())
    ('5,6', None)
    """
    if insertion.token_ids:
        return ",".join(map(str, insertion.token_ids))
    if insertion.kind == "repeat_question":
        return str(insertion.times)
    return (insertion.unit.strip() if insertion.kind == "meaningful" else insertion.unit) or None


def place_of(insertion: Insertion) -> str | None:
    """What `--place` says; None for the paper's place.

    >>> place_of(Insertion.counting(after="question")), place_of(Insertion.counting(before="system", at=(4, 9)))
    ('after-question', 'before-system,at-4,at-9')
    """
    parts = []
    for word in ("before", "after", "at"):
        given = getattr(insertion, word)
        parts += [f"{word}-{one}" for one in (given if isinstance(given, tuple) else () if given is None else (given,))]
    said = ",".join(parts)
    return None if said == BEFORE_QUESTION else said
