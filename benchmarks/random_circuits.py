"""Planted models drawn at random, of every kind of circuit, and what must be found: for benchmarks and tests."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mless_interp as mi

CIRCUITS = tuple(
    "plain, switched, any, all, any mediators, all mediators, against, rows, rare, relayed, mixed".split(", ")
)
"""What `random_planted` can draw."""


@dataclass(frozen=True)
class Expected:
    """The verdict that a planted head must get, and its sense: +1 with the insertion's effect, -1 against it, or 0."""

    verdict: str
    sense: int = 1


_EXPECTED = {
    **dict.fromkeys(("reader", "relay", "recaller"), Expected("reader")),
    "against": Expected("reader", -1),
    "mediator": Expected("mediator"),
    "conditional": Expected("conditional reader"),  # its sight alone brings nothing without the switch
    "switch": Expected("necessary reader"),  # alone it brings nothing
    "reader any": Expected("redundant reader"),
    "mediator any": Expected("redundant mediator"),
    "reader all": Expected("necessary reader"),
    "mediator all": Expected("necessary mediator"),
}
"""All others are negligible: they write where nobody reads, nothing that changes with the span, in a few problems only, or in
the rows of the span, which are the same in both runs."""


def expected_of(planted: mi.ground_truth.PlantedModel) -> dict[mi.Head, Expected]:
    """The verdict that every head must get in enough problems; without readers "undecided" (exact with `noise=0`, and for
    `problems(swap=True)` under `logit_diff`). Where spans think (`recalls`), that of a span after the question."""
    config, roles = planted.hf_model.config, planted.roles

    def of(head: mi.Head) -> Expected:
        if planted.settings["null"]:
            return Expected("undecided", 0)
        kind = "rare" if head in roles.rare else roles.kinds.get(head, "idle")
        single = roles.combine == "sum" or (kind != "mediator" and (kind != "reader" or roles.mediators))
        return _EXPECTED.get(kind if single else f"{kind} {roles.combine}", Expected("negligible", 0))

    heads = [mi.Head(at, h) for at in range(config.num_hidden_layers) for h in range(config.num_attention_heads)]
    return {head: of(head) for head in heads}


def random_planted(seed: int, *, circuit: str = "plain", null: bool = False) -> mi.ground_truth.PlantedModel:
    """A planted model with geometry and heads drawn at random, for benchmarks.

    2-6 layers, 8-28 query heads, grouped or full attention, 0-2 decoys of each kind, either sign, and by `circuit`:

    - "plain": 1-4 readers and 0-3 mediators; with `null` none of them, and no `unread` decoys;
    - "switched": one or two conditional readers of one switch, and perhaps a reader beside them;
    - "any", "all": two or three readers of which each is enough, or all are needed;
    - "any mediators", "all mediators": the same of mediators of one reader;
    - "against": two or three readers and one that pushes the other way;
    - "rows": readers from the answer's row alone, from the numbers' rows, and from all rows, and a mediator;
    - "rare": a reader and a mediator, and two readers whose large effects need a number: one that few problems name, or
      one of nine, which nearly all name;
    - "relayed": a writer in the span's rows and the head that reads there, perhaps beside a reader;
    - "mixed": a switch with its reader, a reader, one against, and a mediator.
    """
    if circuit not in CIRCUITS:
        raise ValueError(f"unknown circuit {circuit!r}; choose one of {', '.join(CIRCUITS)}")
    if null and circuit != "plain":
        raise ValueError(f"null=True is a model without any circuit, got circuit={circuit!r}: leave one of them out")
    rng = random.Random(f"planted geometry {seed}")
    n_layers, n_heads = rng.randint(2, 6), rng.choice((8, 12, 14, 16, 20, 24, 28))
    groups = [kv for kv in range(1, n_heads) if n_heads % kv == 0]
    n_key_value_heads = n_heads if rng.random() < 0.25 else rng.choice(groups)
    everywhere = [mi.Head(layer, head) for layer in range(n_layers) for head in range(n_heads)]
    free = rng.sample(everywhere, len(everywhere))

    def take(n: int, layers: range) -> list[mi.Head]:
        heads = [head for head in free if head.layer in layers][:n]
        free[:] = [head for head in free if head not in heads]
        return heads

    def after(heads: Sequence[mi.Head]) -> range:
        return range(max(head.layer for head in heads) + 1, n_layers)

    every, early = range(n_layers), range(n_layers - 1)
    readers: list[mi.Head] = []
    mediators: list[mi.Head] = []
    more: dict[str, Any] = {}
    match circuit:
        case "plain":
            n_readers, n_mediators = rng.randint(1, 4), rng.randint(0, 3)
            if not null:
                readers = take(1, early) if n_mediators else []
                readers += take(n_readers - len(readers), every)
                mediators = take(n_mediators, range(min(head.layer for head in readers) + 1, n_layers))
        case "switched":
            switch = take(1, early)
            more["conditional"] = dict.fromkeys(take(rng.randint(1, 2), after(switch)), switch[0])
            readers = take(rng.randint(0, 1), every)
        case "any" | "all":
            readers = take(rng.randint(2, 3), every)
            more["combine"] = circuit
        case "any mediators" | "all mediators":
            readers = take(1, early)
            mediators = take(rng.randint(2, 3), after(readers))
            more = {"combine": circuit.split()[0], "reads_from": {readers[0]: mi.ground_truth.tokenizer.NUMBERS}}
        case "against":
            readers = take(rng.randint(2, 3), every)
            more["against"] = take(1, every)
        case "rows":
            readers = take(3, early)
            mediators = take(1, after(readers))
            more["reads_from"] = {
                readers[0]: [mi.ground_truth.roles.ANSWER_ROW],
                readers[1]: mi.ground_truth.tokenizer.NUMBERS,
            }
        case "rare":
            readers = take(3, early)
            mediators = take(1, after(readers))
            numbers = rng.sample(mi.ground_truth.tokenizer.NUMBERS, 10)
            more["reads_from"] = {readers[0]: numbers[:1], readers[1]: numbers[1:]}
        case "relayed":
            writer = take(1, early)
            more["relayed"] = {take(1, after(writer))[0]: writer[0]}
            readers = take(rng.randint(0, 1), every)
        case "mixed":
            switch = take(1, early)
            more = {"conditional": {take(1, after(switch))[0]: switch[0]}, "against": take(1, every)}
            readers = take(1, early)
            mediators = take(1, after(readers))
    decoys = {
        kind: take(rng.randint(0, 2), every)
        for kind in mi.ground_truth.roles.DECOY_KINDS
        if not (null and kind == "unread")
    }
    return mi.planted_model(
        sorted(readers),
        sorted(mediators),
        decoys=decoys,
        copier=take(1, every)[0],
        n_layers=n_layers,
        n_heads=n_heads,
        n_key_value_heads=n_key_value_heads,
        seed=seed,
        sign=rng.choice((1, -1)),
        null=null,
        **more,
    )


def planted_examples(n: int, *, seed: int = 0) -> Iterator[mi.ground_truth.PlantedModel]:
    """`n` random planted models, one after the other of each of `CIRCUITS`; model i depends on `seed` + i only."""
    return (random_planted(each, circuit=CIRCUITS[each % len(CIRCUITS)]) for each in range(seed, seed + n))
