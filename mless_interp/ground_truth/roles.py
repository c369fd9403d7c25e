"""Which heads of a planted model have which role, and how much of the span's effect each carries."""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..core.arguments import one_of
from ..core.heads import Head, check_heads
from .tokenizer import ANSWER_PREFIX, NUMBERS

DECOY_KINDS = ("silent", "unread", "avoids")
SMALLEST_SHARE = 0.1
"""Least part of the span's effect that a planted reader or mediator must carry; layouts with less are refused."""
ANSWER_ROW = ANSWER_PREFIX[-1]  # the token in whose row the answer is predicted
_MOST_MEDIATED = 0.8  # of what the readers before a mediator contribute, this much at most passes through mediators
_AGAINST = 0.25  # of what all readers bring, this much each opposing reader takes back
_FREQUENT = 8  # numbers: 91 % of the problems name one of so many


@dataclass(frozen=True)
class Roles:
    """Which head does what in a model of `n_layers` layers, as `planted_model` names it: complete, no head in two roles."""

    readers: tuple[Head, ...]
    mediators: tuple[Head, ...]
    decoys: dict[str, tuple[Head, ...]]
    copier: Head
    n_layers: int
    conditional: dict[Head, Head]
    against: tuple[Head, ...]
    relayed: dict[Head, Head]
    recalls: dict[Head, Head]
    reads_from: dict[Head, frozenset[str]]
    combine: str

    @property
    def kinds(self) -> dict[Head, str]:
        """The kind of every head that has a role, in the order of the heads."""
        return dict(sorted((head, kind) for kind, heads in _by_kind(vars(self)).items() for head in heads))

    @property
    def switches(self) -> tuple[Head, ...]:
        return tuple(dict.fromkeys(self.conditional.values()))

    @property
    def rare(self) -> tuple[Head, ...]:
        """Readers that read the span in a few problems only."""
        return tuple(head for head in self.readers if not self.direct(head) and len(self.reads_from[head]) == 1)

    @property
    def usual(self) -> list[Head]:
        """All other heads that read the span from the rows of the question."""
        return [head for head in (*self.readers, *self.conditional) if head not in self.rare]

    @property
    def threshold(self) -> float | None:
        """How much must be written for the effect, where heads do not add up: each writes 0.8 to 1 in all problems."""
        if self.combine == "sum":
            return None
        return 0.4 if self.combine == "any" else len(self.mediators or self.readers) - 0.72

    def direct(self, reader: Head) -> bool:
        """Return whether it looks at the span from the row that predicts the answer."""
        return reader not in self.reads_from or ANSWER_ROW in self.reads_from[reader]

    def passes(self, head: Head) -> bool:
        """Return whether what it writes can be carried on by a later mediator, which reads the rows of numbers."""
        return head not in {*self.relayed, *self.recalls} and self.reads_from.get(head) != {ANSWER_ROW}

    def edges(self) -> dict[tuple[str, str], str]:
        """Return (sender, receiver) -> through what of the receiver ("q", "v", or "" for the last MLP and the logits)."""
        last, readers = f"MLP{self.n_layers - 1}", self.usual
        answering = (*readers, *self.against, *self.relayed, *self.recalls, *self.mediators)
        found = {(str(head), last): "" for head in answering if self.direct(head)}
        for mediator in self.mediators:
            fed = [head for head in readers if self.passes(head) and head.layer < mediator.layer]
            found |= {(str(reader), str(mediator)): "v" for reader in fed}
        found |= {(str(switch), str(reader)): "q" for reader, switch in self.conditional.items()}
        return found | {(last, "logits"): ""}

    @classmethod
    def fill(cls, *, n_layers: int | None, n_heads: int, null: bool, **asked: Any) -> "Roles":
        """Return the fields that were asked for (None: not asked), checked, with defaults for what is missing."""
        for kind in asked["decoys"] or {}:
            one_of(kind, DECOY_KINDS, "kind of decoys")
        one_of(asked["combine"], ("sum", "any", "all"), "combine")
        behind = {name: dict(asked[name] or {}) for name in ("conditional", "relayed", "recalls")}
        given = _by_kind(asked)
        taken = [head for heads in given.values() for head in heads]
        check_heads(taken, n_layers=n_layers or 1000, n_heads=n_heads)
        n_layers = n_layers or max([2, *(head.layer + 1 for head in taken)])
        brings = bool(given["reader"] or any(behind.values()))
        if (brings or given["mediator"] or given["against"]) if null else (asked["readers"] is not None and not brings):
            raise ValueError("name at least one reader, or ask for null=True, a model without readers and mediators")

        def choose(kind: str, layers: Iterable[int], wanted: int = 0) -> None:
            """Give a kind one more head, `wanted` where that is free; no head takes another's place."""
            for head in [Head(layer, at) for layer in layers for at in (wanted, *range(n_heads))]:
                if head not in taken:
                    taken.append(head)
                    given[kind].append(head)
                    return
            raise ValueError(f"no head is free for the default {kind}: give more heads or layers, or name one")

        if asked["readers"] is None and not null:
            for at in (max(n_heads // 2 - 1, 0), 3 * n_heads // 4):
                choose("reader", [0], at)
        later = range(min([head.layer for head in given["reader"]], default=n_layers) + 1, n_layers)
        if asked["mediators"] is None and later and asked["combine"] == "sum":
            choose("mediator", later, n_heads // 7)
        if asked["decoys"] is None:
            for kind, layer in zip(DECOY_KINDS, (0, 0, n_layers - 1), strict=True):
                if not (null and kind == "unread"):
                    choose(kind, [layer, *range(n_layers)])
        if not given["copier"]:
            choose("copier", reversed(range(n_layers)))
        return cls(
            readers=tuple(given["reader"]),
            mediators=tuple(given["mediator"]),
            decoys={kind: tuple(given[kind]) for kind in DECOY_KINDS},
            copier=given["copier"][0],
            n_layers=n_layers,
            against=tuple(given["against"]),
            reads_from={head: frozenset(tokens) for head, tokens in (asked["reads_from"] or {}).items()},
            combine=asked["combine"],
            **behind,
        )

    def __post_init__(self) -> None:
        for head, tokens in self.reads_from.items():
            carried = any(mediator.layer > head.layer for mediator in self.mediators)
            fit = self.direct(head) or (carried and (len(tokens) == 1 or len(tokens) >= _FREQUENT))
            if head not in self.readers or not fit or not tokens <= {*NUMBERS, ANSWER_ROW}:
                raise ValueError(
                    f"reads_from: {head} must be a reader, and look from rows of {ANSWER_ROW!r}; or, with a mediator in a "
                    f"later layer, of numbers from {NUMBERS[0]} to {NUMBERS[-1]}: of 1, which few problems name, or of "
                    f"{_FREQUENT} or more, of which nearly all name one. Got {', '.join(sorted(tokens)) or 'no token'}"
                )
        for reader, earlier in {**self.conditional, **self.relayed, **self.recalls}.items():
            if earlier.layer >= reader.layer:
                raise ValueError(f"{reader} needs {earlier}, which must lie in an earlier layer (zero-based)")
        feeding = [head for head in self.usual if self.passes(head)]
        for mediator in self.mediators:
            if not any(reader.layer < mediator.layer for reader in feeding):
                raise ValueError(
                    f"mediator {mediator} has nothing to carry: it must lie in a later layer than at least one reader "
                    f"that writes in the rows of numbers in most problems: {', '.join(map(str, feeding)) or 'there is none'}"
                )
        parallel = len(self.readers) > 1 and not self.mediators and all(map(self.direct, self.readers))
        chain = len(self.mediators) > 1 and len(self.readers) == 1 and not self.direct(self.readers[0])
        others_act = self.conditional or self.against or self.relayed or self.recalls or self.rare
        if self.combine != "sum" and (others_act or not (parallel or chain)):
            raise ValueError(
                f"combine={self.combine!r} needs two or more readers and no mediators, or two or more mediators and one "
                "reader whose reads_from are numbers, and no conditional, opposing, relayed, recalling or rare readers"
            )


def _by_kind(fields: Mapping[str, Any]) -> dict[str, list[Head]]:
    """Return the heads of every kind in the fields of `Roles`; one that is None has none."""
    conditional, relayed, recalls = (fields[name] or {} for name in ("conditional", "relayed", "recalls"))
    return {
        "reader": [*(fields["readers"] or ())],
        "mediator": [*(fields["mediators"] or ())],
        **{kind: [*(fields["decoys"] or {}).get(kind, ())] for kind in DECOY_KINDS},
        "copier": [fields["copier"]] * (fields["copier"] is not None),
        "conditional": [*conditional],
        "switch": [*dict.fromkeys(conditional.values())],
        "relay": [*relayed],
        "span writer": [*relayed.values()],
        "recaller": [*recalls],
        "thinker": [*recalls.values()],
        "against": [*fields["against"]],
    }


def shares_and_gains(roles: Roles, seed: int) -> tuple[dict[Head, float], dict[Head, float]]:
    """Return each head's nominal part of the span's effect, and the size of what it writes.

    Readers' parts add up to 1 before opposing readers take theirs back. A rare reader's part is that in a problem which
    names its number; where heads do not add up, every one brings everything, or takes it.
    """
    if roles.combine != "sum":
        return dict.fromkeys((*roles.readers, *roles.mediators), 1.0), dict.fromkeys(roles.kinds, 1.0)
    shares, gains = _of_the_usual(roles, seed)
    rng = random.Random(f"planted shares against {seed}")
    shares |= {head: -_AGAINST * rng.uniform(0.95, 1.05) for head in roles.against}
    gains |= {head: shares[head] for head in roles.against}
    for head in roles.rare:
        shares[head] = 1.0
        gains[head] = 2 / sum(gains[m] for m in roles.mediators if m.layer > head.layer)  # one of two numbers
    for switch in roles.switches:
        shares[switch] = sum(shares[head] for head, needs in roles.conditional.items() if needs == switch)
    return shares, gains


def _of_the_usual(roles: Roles, seed: int) -> tuple[dict[Head, float], dict[Head, float]]:
    """Return shares and gains of the readers that act in most problems (their shares add up to 1), and of mediators: as equal
    as the layers allow, since mediators carry at most `_MOST_MEDIATED` of what the readers before them contribute."""
    mediators = roles.mediators
    every = (*roles.readers, *roles.conditional, *roles.relayed, *roles.recalls)
    readers = [head for head in every if head not in roles.rare]
    if not readers:
        return {}, {}
    rng = random.Random(f"planted shares {seed}")
    fed = [reader for reader in readers if roles.passes(reader)]
    restricted = any(not roles.direct(head) for head in roles.reads_from)
    given = dict.fromkeys(mediators, 1 / len(mediators)) if restricted else {}
    extra = 0.0
    for layer in {mediator.layer for mediator in mediators if not given}:
        carried = sum(m.layer <= layer for m in mediators) / _MOST_MEDIATED
        extra = max(extra, carried - sum(r.layer < layer for r in fed))
    least = 1 / (len(readers) + extra)
    through = min(least, 0.6 / len(mediators)) if mediators else least
    _check_smallest(min(least, through), readers, mediators)
    extra *= through
    first = [reader for reader in fed if reader.layer == min(head.layer for head in fed)]
    rest = (1 - extra) / len(readers)
    drawn = {r: (rest + (extra / len(first) if r in first else 0)) * rng.uniform(0.95, 1.05) for r in readers}
    shares = {reader: share / sum(drawn.values()) for reader, share in drawn.items()}
    if not given:
        shares |= {mediator: through * rng.uniform(0.95, 1.05) for mediator in mediators}
    # share(reader) = gain(reader) * (direct + the rows of numbers it looks from * sum of later mediators' gains),
    # share(mediator) = gain(mediator) * sum of earlier readers' gains, unless given
    part = {head: len(roles.reads_from.get(head, frozenset(NUMBERS)) & {*NUMBERS}) / len(NUMBERS) for head in fed}
    gains = {**shares, **given}
    for _ in range(2000):
        if not given:
            gains |= {m: shares[m] / sum(gains[r] for r in fed if r.layer < m.layer) for m in mediators}
        later = {r: sum(gains[m] for m in mediators if m.layer > r.layer) for r in readers}
        gains |= {r: shares[r] / (roles.direct(r) + part.get(r, 0.0) * later[r]) for r in readers}
    if given:
        shares |= {m: given[m] * sum(gains[r] for r in fed if r.layer < m.layer) for m in mediators}
        _check_smallest(min(shares.values()), readers, mediators)
    return shares, gains


def _check_smallest(share: float, readers: list[Head], mediators: tuple[Head, ...]) -> None:
    if share < SMALLEST_SHARE:
        raise ValueError(
            f"{len(readers)} readers and {len(mediators)} mediators in these layers would carry only {share:.3f} of the span's "
            f"effect each, below {SMALLEST_SHARE}: give fewer heads, or more readers in layers before the mediators"
        )
