"""Which heads of a planted model have which role, and how much of the span's effect each carries."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..heads import Head, check_heads

DECOY_KINDS = ("silent", "unread", "avoids")
SMALLEST_SHARE = 0.1
"""Least part of the span's effect that a planted reader or mediator must carry; layouts with less are refused."""

_MOST_LAYERS = 1000
_MOST_MEDIATED = 0.8  # of what the readers before a mediator contribute, this much at most passes through mediators


def kinds_of(
    readers: Sequence[Head], mediators: Sequence[Head], decoys: Mapping[str, Sequence[Head]], copier: Head
) -> dict[Head, str]:
    """The kind of every head that has a role, in the order of the heads."""
    kinds = dict.fromkeys(readers, "reader") | dict.fromkeys(mediators, "mediator") | {copier: "copier"}
    return dict(sorted((kinds | {head: kind for kind in DECOY_KINDS for head in decoys[kind]}).items()))


@dataclass(frozen=True)
class Roles:
    """Which head does what in a model of `n_layers` layers: checked, complete, no head in two roles."""

    readers: tuple[Head, ...]
    mediators: tuple[Head, ...]
    decoys: dict[str, tuple[Head, ...]]
    copier: Head
    n_layers: int

    @property
    def kinds(self) -> dict[Head, str]:
        """The kind of every head that has a role."""
        return kinds_of(self.readers, self.mediators, self.decoys, self.copier)

    @classmethod
    def fill(
        cls,
        readers: Iterable[Head] | None,
        mediators: Iterable[Head] | None,
        decoys: Mapping[str, Iterable[Head]] | None,
        copier: Head | None,
        *,
        n_layers: int | None,
        n_heads: int,
        null: bool,
    ) -> "Roles":
        """The given roles, checked, with defaults for what is missing."""
        unknown = set(decoys or {}) - set(DECOY_KINDS)
        if unknown:
            raise ValueError(f"unknown decoy kind {min(unknown)!r}; the kinds are {', '.join(DECOY_KINDS)}")
        given: dict[str, list[Head]] = {"readers": list(readers or ()), "mediators": list(mediators or ())}
        given |= {f"{kind} decoys": list((decoys or {}).get(kind, ())) for kind in DECOY_KINDS}
        given["copier"] = [] if copier is None else [copier]
        for heads in given.values():  # types first: the number of layers is read from the heads
            check_heads(heads, n_layers=n_layers or _MOST_LAYERS, n_heads=n_heads)
        if n_layers is None:
            n_layers = max([2, *(head.layer + 1 for heads in given.values() for head in heads)])
        if n_layers < 1:
            raise ValueError(f"n_layers must be 1 or more, got {n_layers}")
        role_of: dict[Head, str] = {}
        for role, heads in given.items():
            for head in heads:
                if head in role_of:
                    raise ValueError(f"{head} is given two roles, {role_of[head]} and {role} (zero-based)")
                role_of[head] = role
        if null and (given["readers"] or given["mediators"]):
            raise ValueError("null=True is a model without readers and mediators: leave both out, or null=False")
        if not null and readers is not None and not given["readers"]:
            raise ValueError("no readers are given: name at least one, or ask for null=True, a model without any")

        def choose(role: str, layers: Iterable[int], wanted: Iterable[int] = ()) -> list[Head]:
            order = [
                Head(layer, head) for layer in layers for head in (*wanted, *range(n_heads)) if 0 <= head < n_heads
            ]
            head = next((head for head in order if head not in role_of), None)
            if head is None:
                raise ValueError(f"no head is free for the default {role}: give more heads or layers, or name one")
            role_of[head] = role
            return [head]

        if readers is None and not null:
            given["readers"] = [
                head for h in (n_heads // 2 - 1, 3 * n_heads // 4) for head in choose("readers", [0], [h])
            ]
        if mediators is None and given["readers"]:
            later = range(min(head.layer for head in given["readers"]) + 1, n_layers)
            given["mediators"] = choose("mediators", later, [n_heads // 7]) if later else []
        for mediator in given["mediators"]:
            if not any(reader.layer < mediator.layer for reader in given["readers"]):
                raise ValueError(
                    f"mediator {mediator} has nothing to carry: it must lie in a later layer than at least one reader, "
                    f"and the readers are {', '.join(map(str, given['readers']))} (zero-based)"
                )
        if decoys is None:
            for kind, layer in zip(DECOY_KINDS, (0, 0, n_layers - 1), strict=True):
                if null and kind == "unread":
                    continue
                given[f"{kind} decoys"] = choose(kind, [layer, *range(n_layers)])
        if copier is None:
            given["copier"] = choose("copier", reversed(range(n_layers)))
        return cls(
            tuple(given["readers"]),
            tuple(given["mediators"]),
            {kind: tuple(given[f"{kind} decoys"]) for kind in DECOY_KINDS},
            given["copier"][0],
            n_layers,
        )


def fair_shares(readers: Sequence[Head], mediators: Sequence[Head], seed: int) -> dict[Head, float]:
    """Each reader's part of the span's effect (they add up to 1) and the part that passes through each mediator.

    As equal as the layers allow: what the mediators up to some layer carry is at most `_MOST_MEDIATED` of what the
    readers before that layer contribute, so where few readers come first, they get more.
    """
    if not readers:
        return {}
    layers = {mediator.layer for mediator in mediators}
    extra = max(
        [0.0]
        + [
            sum(m.layer <= layer for m in mediators) / _MOST_MEDIATED - sum(r.layer < layer for r in readers)
            for layer in layers
        ]
    )
    least = 1 / (len(readers) + extra)
    through = min(least, 0.6 / len(mediators)) if mediators else least
    if min(least, through) < SMALLEST_SHARE:
        raise ValueError(
            f"{len(readers)} readers and {len(mediators)} mediators in these layers would carry only "
            f"{min(least, through):.3f} of the span's effect each, below {SMALLEST_SHARE}: give fewer heads, or more "
            "readers in layers before the mediators"
        )
    extra *= through
    rng = random.Random(f"planted shares {seed}")
    first = [reader for reader in readers if reader.layer == min(head.layer for head in readers)]
    rest = (1 - extra) / len(readers)
    reader_shares = {
        reader: (rest + (extra / len(first) if reader in first else 0)) * rng.uniform(0.95, 1.05) for reader in readers
    }
    total = sum(reader_shares.values())
    return {reader: share / total for reader, share in reader_shares.items()} | {
        mediator: through * rng.uniform(0.95, 1.05) for mediator in mediators
    }


def output_gains(shares: Mapping[Head, float], readers: Sequence[Head], mediators: Sequence[Head]) -> dict[Head, float]:
    """Output gains that give the shares: a reader acts on its own and through every later mediator.

    share(reader) = gain(reader) * (1 + sum of later mediators' gains);
    share(mediator) = gain(mediator) * sum of earlier readers' gains. Solved by iteration, a contraction.
    """
    gains = dict(shares)
    for _ in range(2000):
        gains |= {m: shares[m] / sum(gains[r] for r in readers if r.layer < m.layer) for m in mediators}
        gains |= {r: shares[r] / (1 + sum(gains[m] for m in mediators if m.layer > r.layer)) for r in readers}
    return gains
