"""What the figures claim about attention, and what each claim is measured by and compared with."""

from dataclasses import dataclass

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


CLAIMS: dict[str, Claim] = {
    claim.key: claim
    for claim in (
        Claim(
            "attenuation",
            "Shared tokens receive less attention with the insertion",
            ("000", "002", "003", "004"),
            "received attention that shared tokens keep (ratio of sums)",
            "1: no change",
            -1,
        ),
        Claim(
            "attenuation_beyond_position",
            "Shared tokens receive less attention than the shift of positions alone leaves them",
            ("000", "002", "003", "004"),
            "received attention that shared tokens keep",
            "the same, gap condition (position-matched)",
            -1,
        ),
        Claim(
            "attenuation_beyond_dilution",
            "Shared tokens receive less attention than dilution alone (uniform attention) leaves them",
            ("000", "002", "003", "004"),
            "received attention that shared tokens keep",
            "the same, uniform attention",
            -1,
        ),
        Claim(
            "low_in_span",
            "Inserted tokens receive little attention each",
            ("000", "003", "004"),
            "received attention of span tokens over uniform attention's",
            "1: uniform attention",
            -1,
        ),
        Claim(
            "low_in_span_beyond_random",
            "Inserted tokens receive less attention each than the words of a random sentence",
            ("001",),
            "received attention of span tokens over uniform attention's",
            "the same, random sentence of the same length",
            -1,
        ),
        Claim(
            "timing",
            "Attention spikes at the same tokens with and without the insertion",
            ("000", "002", "003", "004"),
            "rank correlation of both profiles on shared tokens",
            "the same, one profile rotated within prefix and question",
            1,
        ),
        Claim(
            "recovery",
            "Attention recovers after the span",
            ("000", "003"),
            "relative received attention of the question minus that of the span",
            "0: uniform attention",
            1,
        ),
        Claim(
            "more_uniform",
            "Attention inside the span is more even than inside a random sentence",
            ("001",),
            "coefficient of variation of received attention in the span",
            "the same, random sentence of the same length",
            -1,
        ),
        Claim(
            "first_layer_differs",
            "The first layer differs from the second and third",
            ("002",),
            "received attention that shared tokens keep in layer 1 (paper's counting)",
            "the same, mean of layers 2 and 3",
            0,
        ),
        Claim(
            "meaningful_alike",
            "Repeated meaningful tokens act like meaningless ones",
            ("004",),
            "rank correlation of both insertions' profiles on shared tokens",
            "meaningless against random sentence",
            1,
        ),
    )
}
