"""What one insertion does beside another of as many tokens: its own rows change too, so what is written there is seen."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ..patching.interventions import Intervention, edit_named
from ..patching.prepared import Prepared, prepare
from ..patching.sweep import Sweep
from ..prompts.conditions import CONTRASTS, DIRECTIONS, one_of
from ..prompts.pairs import PromptPair


def sweep_of(contrast: str, direction: str, edit: str | Intervention, control: Any) -> Sweep:
    """The sweep of these names; with a `control` its tokens are the clean ones. `ValueError` for what does not go together."""
    if control is None:
        return Sweep.named(contrast, direction, edit)
    one_of(direction, DIRECTIONS, "direction")
    intervention = edit_named(edit, direction)
    if contrast != "content" or intervention.name != "z":
        raise ValueError(
            f"control=... is a contrast of its own and patches z: leave contrast and edit out, got contrast={contrast!r} and "
            f"edit={intervention.name!r}"
        )
    return Sweep(CONTRASTS["replaced"], direction, intervention)


def prepared_with(model: Any, pairs: Any, outcome: Any, control: Iterable[PromptPair] | None) -> Prepared:
    """`prepare`, with the control's tokens as clean ones; `ValueError` unless they are the same problems, the span apart."""
    prepared = prepare(model, pairs, outcome)
    if control is None:
        return prepared
    beside = prepare(model, control, outcome)
    given = all(pair.given for pair in (*prepared.bare, *beside.bare))  # their ids are made of their tokens
    if len(beside.ids) != len(prepared.ids) or (beside.ids != prepared.ids and not given):
        raise ValueError(
            f"control must hold the same problems in the same order, got {len(beside.ids)} for {len(prepared.ids)}: make both "
            "of one list, make_pairs(model, problems, ...)"
        )
    for pair, other in zip(prepared.pairs, beside.pairs, strict=True):
        if (pair.spans, pair.base.ids, pair.answer_ids) != (other.spans, other.base.ids, other.answer_ids):
            raise ValueError(
                f"problem {pair.id!r}: a control inserts as many tokens at the same places of the same prompt, got spans "
                f"{other.spans} for {pair.spans}: give Insertion the same n_tokens, place and template"
            )
        if pair.inserted.ids == other.inserted.ids:
            raise ValueError(f"problem {pair.id!r}: the control inserts the very same tokens, so nothing can differ")
    both = zip(prepared.bare, beside.bare, strict=True)
    pairs = [replace(pair, clean=other.inserted) for pair, other in both]
    return replace(prepare(model, pairs, prepared.outcome), beside=beside.insertion)
