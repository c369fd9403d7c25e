"""Write docs/published-circuits.md: published circuits, and what this toolkit finds in the same models.

    python tools/published_circuits.py FOLDER [--page PAGE.md] [--keep PAIRS]

FOLDER holds, at any depth, folders of trained models (config.json with a HookedTransformer's fields, model.safetensors, and a
README.md whose lines with "Published" are quoted) and compiled programs (NAME.json beside NAME.npz, as Tracr's
weights). Prompts of models in `TASKS` are drawn as their authors did. Of any other trained model they come from its pairs.jsonl
(as `--pairs` of the commands takes it) or else are drawn at random, and the answer is what the model itself says.
`--keep` writes the pairs as files, for the commands.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from scipy.stats import mannwhitneyu

import mless_interp as mi
from mless_interp.circuits.located import in_words, strata_in_words

PAGE = Path(__file__).resolve().parents[1] / "docs" / "published-circuits.md"
EVERY_INPUT = (*mi.circuits.paths.INPUTS, *mi.circuits.paths.PAIRS_OF_INPUTS, "qkv")
QUIET: dict[str, Any] = {"progress": False}
N = 64
"""Problems that name heads, and as many others that confirm them."""
MOST_HEADS = 16
"""Of a model with more heads, edges among the named ones alone are traced, as many at most."""


@dataclass(frozen=True)
class Asked:
    """One question to a model: its pairs, the contrast, and what was published: heads that are named (with the strata that each
    serves, where it is a specialist's), and an edge with the fewest inputs that do it. `why`: what explains a difference."""

    title: str
    draw: Callable[[Any, np.random.Generator, int], Sequence[Any]]
    contrast: str
    outcome: str = "answer_logprob"
    by: str | None = None
    heads: Mapping[str, str] | None = None
    edge: str = ""
    n: int = N
    why: str = ""


# ------------------------------------------------------------------------------------------------------ trained models


def palindromes(only_one: bool) -> Callable[..., Any]:
    """Ten numbers and their mirror; in the clean prompt one of the second half is another, or each with probability 1/2."""

    def draw(model: Any, random: np.random.Generator, n: int) -> Any:
        half = random.integers(0, 31, (n, 10))
        ids = np.concatenate([np.full((n, 1), 31), half, half[:, ::-1], np.full((n, 1), 32)], 1)
        clean, other = ids.copy(), random.random((n, 10)) < 0.5
        if only_one:
            other = np.arange(10) == random.integers(0, 10, (n, 1))
        other[~other.any(1), 0] = True
        clean[:, 11:21] = np.where(other, (clean[:, 11:21] + random.integers(1, 31, (n, 10))) % 31, clean[:, 11:21])
        return mi.pairs_from_ids(ids, [1] * n, span=(1, 11), clean=clean, distractors=[0] * n)

    return draw


def first_unique(twice: bool) -> Callable[..., Any]:
    """14 letters; the answer is the first that occurs once, as often each of the ten. Where `twice`, the clean prompt has that
    letter in place of another as well, so that its answer is another; else the first 12 letters are the span."""

    def answer(letters: np.ndarray) -> int:
        return next((int(letter) for letter in letters if (letters == letter).sum() == 1), 10)

    def draw(model: Any, random: np.random.Generator, n: int) -> Any:
        found: dict[int, list[Any]] = {letter: [] for letter in range(10)}
        while min(map(len, found.values())) < -(-n // 10):
            letters = random.integers(0, 10, 14)
            clean, unique = letters.copy(), answer(letters)
            clean[random.integers(0, 13)] = unique
            if unique < 10 and unique != answer(clean) < 10 and len(found[unique]) < -(-n // 10):
                found[unique].append(([10, *letters], unique, [10, *clean], answer(clean)))
        mixed = [row for some in zip(*found.values(), strict=True) for row in some][:n]
        ids, answers, cleans, others = map(list, zip(*mixed, strict=True))
        given = {"clean": cleans, "distractors": others} if twice else {"span": (1, 13)}
        return mi.pairs_from_ids(ids, answers, tags={"letter": ["abcdefghij"[each] for each in answers]}, **given)

    return draw


def induction(model: Any, random: np.random.Generator, n: int) -> Any:
    """Random tokens in which a sequence of 16 comes back; cut off inside its second copy, whose next token is the answer."""
    ids, answers, spans = [], [], []
    for _ in range(n):
        row, again = np.append(0, random.integers(1, 128, 84)), random.integers(1, 128, 16)
        first, read = int(random.integers(1, 20)), int(random.integers(4, 15))
        second = int(random.integers(first + 20, 60))
        row[first : first + 16] = row[second : second + 16] = again
        ids.append(row[: second + read + 1])
        answers.append(int(again[read + 1]))
        spans.append((first, first + 16))
    return mi.pairs_from_ids(ids, answers, span=spans)


def own_answers(model: Any, random: np.random.Generator, n: int) -> Any:
    """Random tokens, one of which is another in the clean prompt; the answers are the model's own, where they differ."""
    length = min(model.info.context_length, 24)
    drawn: dict[tuple[int, ...], Any] = {}
    for _ in range(200):
        ids = random.integers(0, model.info.d_vocab, (256, length))
        clean, at = ids.copy(), random.integers(0, length - 1, 256)
        clean[np.arange(256), at] = random.integers(0, model.info.d_vocab, 256)
        says, said = (model.run(torch.tensor(rows)).logits[:, -1].argmax(-1).tolist() for rows in (ids, clean))
        here = [row for row in range(256) if says[row] != said[row]]
        drawn |= {tuple(ids[row].tolist()): (ids[row], says[row], clean[row], said[row]) for row in here}
        if len(drawn) >= n:
            break
    else:
        raise ValueError(f"one other token changes its answer in only {len(drawn)} of 51,200 random prompts")
    rows, answers, cleans, others = zip(*list(drawn.values())[:n], strict=True)
    return mi.pairs_from_ids(rows, answers, clean=cleans, distractors=others)


SPECIALISTS = {"L1H0": "a c", "L1H1": "d e f j", "L1H2": "b g h i"}
TASKS = {
    "palindromes": (
        Asked("the first half can be read or not", palindromes(False), "content", heads={"L0H0": "", "L1H0": ""}),
        Asked(
            "palindrome or not, drawn as in training",
            palindromes(False),
            "replaced",
            heads={"L0H0": "", "L1H0": ""},
            edge="L0H0 -> L1H0 kv",
            why="If several numbers differ, L1H0 attends to some of them even without its keys, so its values carry a part by "
            "themselves; the whole effect takes both. With one number changed, neither keys nor values have an effect by "
            "themselves.",
        ),
        Asked(
            "one number changed",
            palindromes(True),
            "replaced",
            "logit_diff",
            heads={"L0H0": "", "L1H0": ""},
            edge="L0H0 -> L1H0 kv",
            n=4 * N,
            why="The model overlooks a single changed number in about two of ten palindromes; hardly a head acts there.",
        ),
    ),
    "first_unique_character": (
        Asked(
            "the answer's letter occurs once, or again",
            first_unique(twice=True),
            "replaced",
            "logit_diff",
            by="letter",
            heads={"L0H1": "", "L0H2": ""} | SPECIALISTS,
            n=240,
            why="Layer 1 divides the letters as published. Of the duplicate-token heads, L0H1 acts for most letters, L0H2 for "
            "a few.",
        ),
        Asked(
            "the first 12 letters can be read or not",
            first_unique(twice=False),
            "content",
            by="letter",
            n=240,
            why="Hiding twelve letters changes more than the answer's own letter, so heads of other letters act too, and some "
            "published letters are not shown.",
        ),
    ),
    "induction": (
        Asked("the first copy can be read or not", induction, "content", heads={"L1H2": ""}),
        Asked(
            "the first copy's tokens see one another or not",
            induction,
            "inside",
            heads={"L0H0": "", "L1H2": ""},
            edge="L0H0 -> L1H2 k",
        ),
    ),
}


def asked_of(folder: Path) -> tuple[Asked, ...]:
    """What to ask a trained model: its task, its own file of pairs, or its own answers to random tokens."""
    if folder.name in TASKS:
        return TASKS[folder.name]
    if (folder / "pairs.jsonl").is_file():
        pairs = mi.prompts.own_ids.pairs_from_file(folder / "pairs.jsonl")
        which = "replaced" if pairs[0].clean is not None else "content"
        return (Asked("the folder's own pairs", lambda *_: pairs, which, n=len(pairs) // 2),)
    return (Asked("one of its tokens is another", own_answers, "replaced", "logit_diff", n=2 * N),)


def trained(folder: Path, keep: Path | None) -> str:
    """The section of a trained model."""
    readme = folder / "README.md"
    lines = readme.read_text(encoding="utf-8").splitlines() if readme.is_file() else []
    quoted = [line.strip() for line in lines if "Published" in line]
    model = mi.load_model(folder)
    made = [f"## {folder.name.replace('_', ' ').capitalize()}", "\n".join(quoted) or "- Nothing published is at hand."]
    for asked in asked_of(folder):
        pairs = tuple(asked.draw(model, np.random.default_rng(0), 2 * asked.n))
        keep_pairs(keep, f"{folder.name}-{asked.contrast}-{len(made)}", pairs)
        made.append(answered(model, asked, pairs[: asked.n], pairs[asked.n :]))
    return "\n\n".join(made)


def keep_pairs(keep: Path | None, name: str, pairs: Sequence[Any]) -> None:
    """Write pairs as a file that the commands read."""
    if keep is None:
        return
    keep.mkdir(parents=True, exist_ok=True)
    with (keep / f"{name}.jsonl").open("w", encoding="utf-8") as file:
        for pair in pairs:
            row = {"ids": pair.inserted.ids, "answer": pair.answer_ids, "tags": dict(pair.problem.tags), "id": pair.id}
            row |= {"distractor": pair.distractor_ids} if pair.distractor_ids else {}
            row |= {"clean": pair.clean.ids} if pair.clean else {}
            file.write(json.dumps(row | ({"span": pair.span} if pair.spans else {})) + "\n")


def answered(model: Any, asked: Asked, pairs: Any, fresh: Any) -> str:
    """What the toolkit says to one question, and whether it is what was published."""
    options: dict[str, Any] = {"contrast": asked.contrast, "outcome": asked.outcome, **QUIET}
    found = mi.locate_heads(model, pairs, confirm=fresh, by=asked.by, **options)
    sure = {str(head) for head in found.confirmed or found.found}
    heads = [mi.Head.parse(label) for label in found.table()["label"] if label in sure]  # by size
    served = {str(head): strata_words(found, head) for head in sorted(found.found)}
    lines = [f"### {model.info.name.rpartition('/')[2]}: {asked.title}"]
    lines.append(
        f"Contrast `{asked.contrast}`, {asked.outcome}; {len(pairs)} problems name heads, {len(fresh)} others confirm them."
    )
    rows = []
    if asked.heads is not None:
        right = all(
            mi.Head.parse(name) in found.confirmed and strata in ("", served[name])
            for name, strata in asked.heads.items()
        )
        others = names({name: strata for name, strata in served.items() if name not in asked.heads})
        verdict = "differ" if not right else "agree" if others == "-" else f"agree; also {others}"
        rows.append(f"- Heads published: {names(asked.heads)}; found: {names(served)}: **{verdict}**.")
    else:
        rows.append(f"- Heads found: {names(served)}.")
    among = model.info.heads if len(model.info.heads) <= MOST_HEADS else tuple(heads[:MOST_HEADS])
    mlps = () if model.config.attn_only else "all"
    if len(among) < 2 and not mlps:
        return "\n\n".join([*lines, *rows])
    edges, enough = (
        mi.trace_paths(model, fresh[: 2 * N], among, mlps=mlps, inputs=EVERY_INPUT, direction=direction, **options)
        for direction in ("denoising", "noising")
    )
    if asked.edge:
        edge = mi.Edge.parse(asked.edge)
        least = fewest_inputs(edges, edge)
        agree = "agree" if least == edge.part else "differ"
        found_edge = f"{edge.sender} -> {edge.receiver} {least or 'not shown'}"
        rows.append(f"- Edge published: {edge}; found: {found_edge}: **{agree}**.")
    lines += ["\n".join(rows), asked.why]
    shown = found.table().head(len(found.found) or 1).assign(kind=lambda table: in_words(table, "kind"))
    records = shown.to_dict("records")
    again = [r["label"] for r in records if r["confirmed"] is not True]
    lines.append(
        table(
            "| head | verdict | undone, reproduced in | share undone |",
            [
                (r["label"], r["kind"], f"{r['removed_k']}, {r['added_k']} of {r['n']}", percent(r, "removed_share"))
                for r in records
            ],
        )
    )
    lines += [f"Not confirmed: {', '.join(again)}."] if again else []
    fewest = [str(edge) for edge in edges.found if fewest_inputs(edges, edge) in ("", edge.part)]
    strongest = edges.table()[lambda table: table["label"].isin(fewest)].sort_values("median", ascending=False).head(8)
    needed = "; ".join(
        f"{r['label']} {r['k']} of {r['n']}, {percent(r, 'share')}" for r in strongest.to_dict("records")
    )
    if needed:
        lines.append(f"Needed edges: {needed}.")
    else:
        power = next(words for words in edges.details() if "of all problems" in words).rpartition("; ")[2]
        lines.append(f"No edge is shown to do more than the smallest effect; {power}")
    said = [*edges.together_words(), *(f"Sufficient edges: {words}" for words in enough.together_words())]
    lines.append("\n".join(f"- {words}" for words in said))
    if heads:
        try:
            curve = mi.circuit_curve(model, fresh[: 2 * N], heads, chosen_elsewhere=True, **options)
            (cpr, worst), (cmd, other), alone = curve.cpr[:2], curve.cmd[:2], 100 * curve.alone
            told = f"CPR {cpr:.3f}, CMD {cmd:.3f} (reversed order {worst:.3f}, {other:.3f})"
            if curve.n_tail:
                told = f"Alone they restore {alone[0]:.1f} % (random heads {alone[2:].mean():.1f} %)"
            lines.append(f"{told}; ablation: {curve.settings['ablation']}.")
        except ValueError as error:
            lines.append(f"No curve: {error}")
    return "\n\n".join(line for line in lines if line)


def strata_words(found: Any, head: Any) -> str:
    """The strata that a specialist was named in, and those that confirm it where they are others; of other heads "against"
    for one that acts against the effect, else ""."""
    if (head, -1) in [(one, sense) for one, kind, sense in found.judged.found.each() if kind != "specialist"]:
        return "against"
    if head not in found.specialists:
        return ""
    within = (found.judged.in_strata, found.confirmation.confirmed_within if found.confirmation else ())
    named, again = (strata_in_words(each, head).replace(",", "") for each in within)
    return named + (f"; confirmed {again or 'none'}" if named != again else "")


def fewest_inputs(edges: Any, edge: mi.Edge) -> str:
    """The fewest inputs by which an edge passes, "" for none."""
    passed = [each.part for each in edges.found if (each.sender, each.receiver) == (edge.sender, edge.receiver)]
    return min(passed, key=len, default="")


# --------------------------------------------------------------------------------------------------- compiled programs


@dataclass(frozen=True)
class Program:
    """A compiled program as a HookedTransformer, with the nodes and edges that compute, read off its weights."""

    model: Any
    start: int
    letters: tuple[int, ...]
    length: int
    nodes: frozenset[Any]
    edges: frozenset[str]


def compiled(path: Path, folder: Path) -> Program:
    """Read a compiled program. A node computes if it writes what later nodes, or the output, read; variables that are written
    and never read are the output: classes, or one number, whose rise is a class. `folder` receives the model."""
    about = json.loads(path.read_text(encoding="utf-8"))
    with np.load(path.with_suffix(".npz")) as arrays:
        weights = dict(arrays)
    if about.get("layer_norm"):
        raise mi.ModelError(f"{path.name} is compiled with layer norms, which its weights do not hold")
    if not about.get("causal", True):
        raise mi.ModelError(f"{path.name} is not causal: what later tokens send back cannot be replayed row by row")
    n_layers, n_heads, size = about["num_layers"], about["num_heads"], about["key_size"]
    of = lambda layer, name: np.asarray(weights[f"transformer/layer_{layer}/{name}"], dtype=np.float32)  # noqa: E731
    width = len(about["residual_labels"])
    writes: dict[Any, np.ndarray] = {}
    reads: dict[tuple[Any, str], np.ndarray] = {}
    state: dict[str, np.ndarray] = {}
    for layer in range(n_layers):
        for name, letter in (("query", "Q"), ("key", "K"), ("value", "V")):
            matrix = of(layer, f"attn/{name}/w").reshape(width, n_heads, size).transpose(1, 0, 2)
            state[f"blocks.{layer}.attn.W_{letter}"] = matrix
            state[f"blocks.{layer}.attn.b_{letter}"] = of(layer, f"attn/{name}/b").reshape(n_heads, size)
            reads |= {(mi.Head(layer, head), letter.lower()): matrix[head].any(1) for head in range(n_heads)}
        out = of(layer, "attn/linear/w").reshape(n_heads, size, width)
        state |= {f"blocks.{layer}.attn.W_O": out, f"blocks.{layer}.attn.b_O": of(layer, "attn/linear/b")}
        writes |= {mi.Head(layer, head): out[head].any(0) for head in range(n_heads)}
        for number, letter in ((1, "in"), (2, "out")):
            matrix = of(layer, f"mlp/linear_{number}/w")
            state |= {
                f"blocks.{layer}.mlp.W_{letter}": matrix,
                f"blocks.{layer}.mlp.b_{letter}": of(layer, f"mlp/linear_{number}/b"),
            }
        reads[mi.circuits.paths.Mlp(layer), ""] = np.asarray(state[f"blocks.{layer}.mlp.W_in"].any(1))
        writes[mi.circuits.paths.Mlp(layer)] = np.asarray(matrix.any(0))
    series = np.array([label.rpartition(":")[0] or label for label in about["residual_labels"]])
    output: Any = np.any([*writes.values()], 0) & ~np.isin(series, series[np.any([*reads.values()], 0)])
    reads[mi.circuits.paths.LOGITS, ""] = output
    edges, nodes = computing(writes, reads)
    unembed = np.zeros((width, max(int(output.sum()), 2)), dtype=np.float32)
    unembed[np.flatnonzero(output), np.arange(output.sum())] = 10
    state |= {"embed.W_E": weights["token_embed/embeddings"], "pos_embed.W_pos": weights["pos_embed/embeddings"]}
    state |= {"unembed.W_U": unembed, "unembed.b_U": np.zeros(unembed.shape[1], dtype=np.float32)}
    config = {
        "n_layers": n_layers,
        "n_heads": n_heads,
        "d_model": width,
        "d_head": size,
        "d_mlp": about["mlp_hidden_size"],
        "act_fn": about["activation"],
        "n_ctx": len(state["pos_embed.W_pos"]),
        "d_vocab": len(state["embed.W_E"]),
        "d_vocab_out": unembed.shape[1],
        "normalization_type": None,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(
        {name: np.ascontiguousarray(each, np.float32) for name, each in state.items()}, folder / "model.safetensors"
    )
    tokens = about["input_encoding"]
    letters = tuple(token for name, token in tokens.items() if name not in ("BOS", "compiler_pad"))
    return Program(mi.load_model(folder), tokens["BOS"], letters, config["n_ctx"], nodes, edges)


def computing(writes: Mapping[Any, np.ndarray], reads: Mapping[tuple[Any, str], np.ndarray]) -> tuple[Any, Any]:
    """The edges along which a written label is read, as far as they lead to the logits, and the nodes that send along them."""
    order = {node: 2 * node.layer + isinstance(node, mi.circuits.paths.Mlp) for node in writes} | {
        mi.circuits.paths.LOGITS: float("inf")
    }
    links = [
        (sender, receiver, part)
        for sender, wrote in writes.items()
        for (receiver, part), read in reads.items()
        if order[sender] < order[receiver] and (wrote & read).any()
    ]
    useful: set[Any] = {mi.circuits.paths.LOGITS}
    while True:
        more = {sender for sender, receiver, _ in links if receiver in useful} - useful
        if not more:
            break
        useful |= more
    edges = frozenset(str(mi.Edge(*link)) for link in links if link[0] in useful and link[1] in useful)
    return edges, frozenset(useful - {mi.circuits.paths.LOGITS})


def program_pairs(made: Program, random: np.random.Generator, n: int, spans: bool) -> Any:
    """Random inputs that a clean prompt, or hiding a token, changes the answer of; answers are the model's own."""

    def says(rows: np.ndarray) -> np.ndarray:
        return made.model.run(torch.tensor(rows)).logits[:, -1].detach().numpy()

    found: dict[tuple[int, ...], Any] = {}
    for _ in range(50):
        rows, clean = (random.choice(made.letters, (256, made.length)) for _ in range(2))
        rows[:, 0] = clean[:, 0] = made.start
        more = says(rows) - says(clean)
        up, down = more.argmax(1), (-more).argmax(1)
        for row in np.flatnonzero(np.abs(more).max(1) > 1e-3):
            given = {"span": (1, 2)} if spans else {"clean": [clean[row]], "distractors": [down[row]]}
            (pair,) = mi.pairs_from_ids([rows[row]], [up[row]], **given)
            if spans:  # only where hiding the token changes anything
                seen, hidden = (made.model.run(pair.condition(name)).logits[0, -1] for name in ("inserted", "masked"))
                if (change := seen - hidden).abs().max() < 1e-3:
                    continue
                (pair,) = mi.pairs_from_ids(
                    [rows[row]], [int(change.argmax())], distractors=[int(change.argmin())], **given
                )
            found[pair.inserted.ids] = pair
            if len(found) == n:
                return tuple(found.values())
    return tuple(found.values())


def program_section(path: Path, folder: Path, keep: Path | None) -> str:
    """The section of a compiled program: heads and edges that compute, and those that the toolkit finds."""
    try:
        made = compiled(path, folder)
    except mi.ModelError as error:
        return f"## {path.stem}\n\nNot measured: {error}."
    model, random = made.model, np.random.default_rng(0)
    scores: dict[str, float] = {}
    found: set[str] = set()
    head_scores, named = dict.fromkeys(map(str, model.info.heads), 0.0), set()
    for spans in (False, True):
        pairs = program_pairs(made, random, N, spans)
        keep_pairs(keep, f"{path.stem}-{'content' if spans else 'replaced'}", pairs)
        contrast = "content" if spans else "replaced"
        options: dict[str, Any] = {"outcome": "logit_diff", "contrast": contrast, **QUIET}
        located = mi.locate_heads(model, pairs, controls=False, confidence=0.975, **options)
        named |= set(map(str, located.found))
        for row in located.table().to_dict("records"):
            head_scores[row["label"]] = max(
                head_scores[row["label"]], *np.abs(np.nan_to_num([row["removed_share"], row["added_share"]]))
            )
        for direction in ("denoising", "noising"):
            edges = mi.trace_paths(
                model,
                pairs,
                model.info.heads,
                mlps="all",
                inputs=mi.circuits.paths.INPUTS,
                direction=direction,
                **options,
            )
            found |= set(map(str, edges.found))
            for row in edges.table().to_dict("records"):
                scores[row["label"]] = max(scores.get(row["label"], 0.0), abs(np.nan_to_num(row["share"])))
    truth = {str(node) for node in made.nodes if isinstance(node, mi.Head)}
    rows = [
        ("heads", names(truth), names(named), *rates(truth, named, head_scores)),
        ("edges", names(made.edges), names(found), *rates(made.edges, found, scores)),
    ]
    head = "| | by construction | toolkit | precision | recall | AUROC |"
    return f"## {path.stem} (compiled)\n\n{table(head, rows)}"


def rates(truth: Any, found: Any, scores: Mapping[str, float]) -> tuple[str, str, str]:
    """Precision and recall of what is found, and the AUROC of the scores."""
    right = len(truth & found)
    here, others = ([score for name, score in scores.items() if (name in truth) == side] for side in (True, False))
    pairs = len(here) * len(others)
    auroc = f"{mannwhitneyu(here, others).statistic / pairs:.3f}" if pairs else "-"
    return f"{right} of {len(found)}", f"{right} of {len(truth)}", auroc


# ------------------------------------------------------------------------------------------------------------ the page


def names(some: Any) -> str:
    """Names with what each serves, or a dash."""
    served = some if isinstance(some, Mapping) else dict.fromkeys(sorted(some), "")
    return ", ".join(f"{name} ({strata})" if strata else name for name, strata in served.items()) or "-"


def percent(row: Mapping[str, Any], column: str) -> str:
    low, high = (100 * row[f"{column}_ci_{end}"] for end in ("low", "high"))
    return f"{100 * row[column]:z.0f} % [{low:z.0f}, {high:z.0f}]"


def table(head: str, rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table."""
    line = "|" + " --- |" * (head.count("|") - 1)
    return "\n".join([head, line, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


INTRO = """# Published circuits

Circuits that others published for their models, and this toolkit's findings.
`python tools/published_circuits.py FOLDER` writes this page from a folder of these models. One run: mless_interp {version},
TransformerLens {library}, float32, seed 0. Counts are problems where a head or an edge does more than the smallest effect;
shares of the total effect have 95 % limits. "Alone": [circuit curves](methods.md#7-outcomes-and-attribution) on fresh
problems. These confirm all named heads but where told.
"""


def main() -> None:
    """Measure every model of the folder and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    models = sorted(path.parent for path in options.folder.rglob("model.safetensors"))
    programs = sorted(path for path in options.folder.rglob("*.json") if path.with_suffix(".npz").is_file())
    if not models and not programs:
        parser.error(f"{options.folder} holds no model.safetensors and no compiled program (NAME.json beside NAME.npz)")
    parts = [INTRO.format(version=version("mless_interp"), library=version("transformer_lens")).rstrip()]
    for folder in models:
        try:
            parts.append(trained(folder, options.keep))
        except ValueError as error:  # of `load_model` too: what cannot be held or asked
            parts.append(f"## {folder.name}\n\nNot measured: {error}.")
        print(f"\n{parts[-1]}", flush=True)
    for path in programs:
        with TemporaryDirectory() as temporary:
            parts.append(program_section(path, (options.keep or Path(temporary)) / path.stem, options.keep))
        print(f"\n{parts[-1]}", flush=True)
    options.page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(f"wrote {options.page}")


if __name__ == "__main__":
    main()
