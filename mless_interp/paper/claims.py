"""What the figures claim about attention, and what each claim is measured by and compared with."""

from dataclasses import dataclass

from ..data import paper_entries
from ..running.registry import savable


@savable
@dataclass(frozen=True)
class Claim:
    """A claim of the figures, what is measured for it, what it is compared with, and which way the claim says it goes.

    `direction`: +1 measured above null, -1 below, 0 different from it.
    """

    key: str
    text: str
    figures: tuple[str, ...]
    measure: str
    null: str
    direction: int


CLAIMS: dict[str, Claim] = {entry["key"]: Claim(**entry) for entry in paper_entries("claims")["claims"]}
