"""What one insertion does beside another of as many tokens: its own rows change too, so what is written there is seen."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from ..models.inputs import Recording
from ..patching.interventions import Intervention, edit_named
from ..patching.prepared import Prepared, Runs, prepare
from ..patching.sweep import Sweep
from ..prompts.conditions import CONTRASTS, DIRECTIONS, one_of
from ..prompts.pairs import PromptPair, digest_of
from ..running.work import Unit

CONTROL = replace(CONTRASTS["computed"], name="control", says="the span holds other tokens", cuts="")
"""Clean is the run with the control insertion; `Beside` gives it where the condition of this name is asked for."""


def sweep_of(contrast: str, direction: str, edit: str | Intervention, control: Any) -> Sweep:
    """The sweep of these names; with a `control` that of its own contrast. `ValueError` for what does not go together."""
    if control is None:
        return Sweep.named(contrast, direction, edit)
    one_of(direction, DIRECTIONS, "direction")
    intervention = edit_named(edit, direction)
    if contrast != "content" or intervention.name != "z":
        raise ValueError(
            f"control=... is a contrast of its own and patches z: leave contrast and edit out, got contrast={contrast!r} and "
            f"edit={intervention.name!r}"
        )
    return Sweep(CONTROL, direction, intervention)


def prepared_with(model: Any, pairs: Any, outcome: Any, control: Iterable[PromptPair] | None) -> Prepared:
    """`prepare`, with the control's pairs beside; `ValueError` unless they are the same problems, tokens of the span apart."""
    prepared = prepare(model, pairs, outcome)
    if control is None:
        return prepared
    beside = prepare(model, control, outcome)
    if beside.ids != prepared.ids:
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
    return Controlled(**vars(prepared), control=beside)


@dataclass(frozen=True, eq=False)
class Controlled(Prepared):
    """Problems with another insertion of as many tokens each."""

    control: Prepared

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | {"control": self.control.insertion, "control_prompts": digest_of(self.control.pairs)}

    def runs(self, unit: Unit) -> Runs:
        return Beside(super().runs(unit), self.control.runs(unit))


class Beside(Runs):
    """Runs of which the clean one holds the control insertion."""

    def __init__(self, runs: Runs, control: Runs) -> None:
        super().__init__(runs.model, runs.outcome, runs.pairs)
        self._control = control

    def recording(self, condition: str, start: int) -> Recording:
        if condition == CONTROL.clean:
            return self._control.recording(CONTROL.corrupted, start)
        return super().recording(condition, start)
