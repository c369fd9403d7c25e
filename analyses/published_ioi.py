"""Does this model have the circuit for indirect objects that was published of GPT-2 small?

Prompts are drawn as Wang et al. (2211.00593) describe, from ten of the fifteen templates of their Figure 14, and compared with
the same sentence with three other names. Heads are named by the logit difference of the indirect object and the subject and
confirmed on fresh prompts; the published edges are traced.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import mless_interp as mi
from mless_interp.app.command_line import REQUIRED, Loading, Saving, argument, option
from mless_interp.app.run_folder import Computed, Kept, Presented, program

CLASSES = {
    "name mover": "9.9 10.0 9.6",
    "backup name mover": "9.0 9.7 10.1 10.2 10.6 10.10 11.2 11.9",
    "negative name mover": "10.7 11.10",
    "S-inhibition": "7.3 7.9 8.6 8.10",
    "induction": "5.5 5.8 5.9 6.9",
    "duplicate token": "0.1 0.10 3.0",
    "previous token": "2.2 4.11",
}
"""The published circuit of GPT-2 small, LAYER.HEAD (zero-based)."""
EDGES = (
    ("S-inhibition", "name mover", "q"),
    ("duplicate token", "S-inhibition", "v"),
    ("induction", "S-inhibition", "v"),
    ("previous token", "induction", "k"),
)
"""Who acts on whom, by what, as published."""
NAMES = (
    "Michael Christopher Jessica Matthew Ashley Jennifer Joshua Amanda Daniel David James Robert John Joseph Andrew "
    "Ryan Brandon Jason Justin Sarah William Jonathan Stephanie Brian Nicole Nicholas Anthony Heather Eric "
    "Elizabeth Adam Megan Melissa Kevin Steven Thomas Timothy Christina Kyle Rachel Laura Lauren Amber Richard "
    "Kimberly Jeffrey Amy Crystal Michelle Tiffany Jeremy Mark Emily Aaron Charles Rebecca Jacob Stephen Patrick "
    "Sean Erin Kelly Samantha Sara Paul Scott Mary Tom Anna Peter"
).split()
PLACES = "store garden restaurant school hospital office house station".split()
OBJECTS = "ring kiss bone basketball computer necklace drink snack".split()
TEMPLATES = (
    "Then, {A} and {B} went to the {place}. {S} gave a {thing} to",
    "Then, {A} and {B} had a lot of fun at the {place}. {S} gave a {thing} to",
    "Then, {A} and {B} were working at the {place}. {S} decided to give a {thing} to",
    "Then, {A} and {B} were thinking about going to the {place}. {S} wanted to give a {thing} to",
    "Then, {A} and {B} had a long argument, and afterwards {S} said to",
    "After {A} and {B} went to the {place}, {S} gave a {thing} to",
    "When {A} and {B} got a {thing} at the {place}, {S} decided to give it to",
    "While {A} and {B} were commuting to the {place}, {S} gave a {thing} to",
    "After the lunch, {A} and {B} went to the {place}. {S} gave a {thing} to",
    "Afterwards, {A} and {B} went to the {place}. {S} gave a {thing} to",
)


@dataclass(frozen=True, kw_only=True)
class Options(Loading, Saving):
    """What can be asked."""

    model: str = argument(REQUIRED, "A saved directory of GPT-2 small, or a hub id.", metavar="MODEL_DIR")
    limit: int = option(64, "How many prompts name heads; as many others confirm them.", min=2)
    out: Path = Path("results/published_ioi")


def prompts(tokenizer: Any, n: int, seed: int) -> dict[str, Any]:
    """Prompts, their clean twins with other names, and the answers, as `pairs_from_ids` takes them."""
    encoded = lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]  # noqa: E731
    single = [name for name in NAMES if len(encoded(f" {name}")) == 1]
    if len(single) < 5:
        raise ValueError(
            f"only {len(single)} of {len(NAMES)} names are single tokens of this tokenizer, and a prompt needs 5 such names"
        )
    random, seen = np.random.default_rng(seed), set()
    made: dict[str, list[Any]] = {"ids": [], "clean": [], "answers": [], "distractors": []}
    first = [tokenizer.bos_token_id] if tokenizer.bos_token_id is not None else []
    for _ in range(100 * n):
        one, other, *three = map(str, random.choice(single, 5, replace=False))
        words = {"place": str(random.choice(PLACES)), "thing": str(random.choice(OBJECTS))}
        template, in_turn = str(random.choice(TEMPLATES)), [one, other][:: 1 if random.random() < 0.5 else -1]
        ids, clean = (
            first + encoded(template.format(A=a, B=b, S=s, **words))
            for a, b, s in ((*in_turn, one), (*three[:2], three[2]))
        )
        if len(ids) == len(clean) and tuple(ids) not in seen:  # a name at a sentence's start may be another token
            seen.add(tuple(ids))
            row = {"ids": ids, "clean": clean, "answers": encoded(f" {other}"), "distractors": encoded(f" {one}")}
            for key, value in row.items():
                made[key].append(value)
        if len(seen) == n:
            return made
    raise ValueError(f"only {len(seen)} of {n} different prompts could be drawn from this tokenizer's names")


def published(name: str, n_layers: int, n_heads: int) -> list[str]:
    """The heads of a class that a model of this size has."""
    heads = [tuple(map(int, each.split("."))) for each in CLASSES[name].split()]
    return [f"L{layer}H{head}" for layer, head in heads if layer < n_layers and head < n_heads]


def compute(options: Options) -> Computed:
    """Compare a model's circuit for indirect objects with the published one of GPT-2 small.

    Writes comparison.csv (a row per published head: its class, what the toolkit calls it, its share), heads.csv, edges.csv,
    head_map.png, edges.png, the results in results/ (mi.load) and run.json; with --report also report.html.
    """
    options.say(f"loading {options.model} ...")
    model = mi.load_model(options.model, **options.loading()).on(options.computing())
    model.need_tokenizer("drawing prompts")
    pairs = mi.pairs_from_ids(**prompts(model.tokenizer, 2 * options.limit, options.seed))
    named_on, fresh = pairs[: options.limit], pairs[options.limit :]
    common: dict[str, Any] = {"contrast": "replaced", "outcome": "logit_diff", "progress": not options.no_progress}
    common |= {"seed": options.seed}
    found = mi.locate_heads(
        model, named_on, confirm=fresh, controls=False, checkpoint=options.partial / "located", **common
    )
    size = model.info.n_layers, model.info.n_heads
    edges = [
        mi.Edge(sender, receiver, part)
        for senders, receivers, part in EDGES
        for sender in published(senders, *size)
        for receiver in published(receivers, *size)
        if int(sender[1:].partition("H")[0]) < int(receiver[1:].partition("H")[0])
    ]
    results: dict[str, Any] = {"LocatedHeads": found}
    if edges:
        file = options.partial / "edges.jsonl"
        results["PathEffects"] = mi.trace_paths(model, fresh, edges=edges, checkpoint=file, **common)
    said = verdict(comparison(found, size), found)
    return Computed(results, model, list(pairs), facts={"size": list(size)}, notes=[said])


def comparison(found: Any, size: Sequence[int]) -> pd.DataFrame:
    """One row per published head: its class, its verdict here, in how many problems, its share, whether fresh prompts confirm
    it, and whether it agrees: confirmed, in the published sense. Nothing can where no total effect is established."""
    rows, judged = found.table().set_index("label").to_dict("index"), established(found)
    made = []
    for name in CLASSES:
        for head in published(name, *size):
            row = rows.get(head, {"kind": "not tested", "sense": ""})
            confirmed = found.confirmed_or_unknown(head)
            agrees = bool(confirmed) and row["sense"] == ("against" if name.startswith("negative") else "with")
            counts = {each: row.get(each) for each in ("removed_k", "added_k", "n", "removed_share", "added_share")}
            made.append(
                {
                    "head": head,
                    "published": name,
                    "here": row["kind"],
                    "sense": row["sense"],
                    **counts,
                    "confirmed": confirmed,
                    "agrees": agrees if judged else None,
                }
            )
    return pd.DataFrame(made)


def established(found: Any) -> bool:
    """Whether the names have a total effect here, and on fresh prompts where heads were named."""
    return bool(found.established and (found.confirmation is None or found.confirmation.established))


def verdict(table: pd.DataFrame, found: Any) -> str:
    """How many published heads are confirmed, in their sense, and how many others."""
    if not established(found):
        return "Whether this model has the published circuit cannot be judged: no total effect of the names is established."
    others = [str(head) for head in found.confirmed if str(head) not in set(table["head"])]
    right = int(table["agrees"].sum()) if len(table) else 0
    return (
        f"{right} of {len(table)} published heads of this size are confirmed in the published sense; others confirmed: "
        f"{', '.join(others) or 'none'}."
    )


def present(kept: Kept) -> Presented:
    """Tables, the head map, the edges, and the page."""
    found, edges = kept.results["LocatedHeads"], kept.results.get("PathEffects")
    table = comparison(found, kept.run["size"])
    files: dict[str, Any] = {
        "comparison.csv": table,
        "heads.csv": found.table(),
        "head_map.png": mi.views.head_map(found),
    }
    if edges is not None:
        files |= {"edges.csv": edges.table(), "edges.png": mi.views.path_graph(edges)}

    def page() -> mi.Report:
        question = "Does this model have the circuit for indirect objects that was published of GPT-2 small?"
        made = mi.Report("Indirect objects", question=question, answer=verdict(table, found))
        made = made.table(table, "Published heads, and what they are called here.", of=mi.LocatedHeads).result(found)
        return made if edges is None else made.result(edges)

    return Presented(files, page)


app = program("published_ioi", compute, present)

if __name__ == "__main__":
    app()
