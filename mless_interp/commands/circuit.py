"""`mless-interp circuit`: from an insertion to the circuit that carries its effect, on one model, told on one page."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from ..command_line import (
    HeadsOption,
    Inserting,
    OutcomeOption,
    OutOption,
    chosen_names,
    fewer_than,
    read_heads,
)
from ..given import count_of
from .kept import Computed, Kept, Presented, program

CONTRASTS = ("content", "computed")
NAMED_HERE = (
    "All that follows is measured on the problems that named the heads: whether they act was asked there, how they act is "
    "asked here."
)
N_CONFIRM = 64
"""Fresh problems where nothing else is asked for."""
NODES = ("auto", "all", "none")
PARTS = ("direct", "edges", "sites", "positions", "writes", "sets", "transfer")
"""Of a circuit, in the order of the story; `circuit_sections.py` says how each is measured and told."""


@dataclass(frozen=True, kw_only=True)
class Options(Inserting):
    """What can be asked."""

    model: Annotated[
        str, Argument(metavar="MODEL", help="'demo' (bundled), a saved model's directory, or a hub id.")
    ] = "demo"
    heads: HeadsOption = None
    limit: Annotated[
        int, Option(min=1, help="How many problems name the heads, from the first; with --heads all there are.")
    ] = 64
    confirm: Annotated[
        int | None,
        Option(
            min=0,
            help="So many fresh problems, those after the first: named heads are tested again there, and the circuit is "
            f"measured there. 0: all on the same problems. [default: {N_CONFIRM}; with --heads 0]",
        ),
    ] = None
    most_heads: Annotated[int, Option(min=1, help="The circuit of so many named heads at most, the largest first.")] = 8
    contrast: Annotated[
        str,
        Option(
            help="content (masked -> inserted), or computed (blind -> inserted: what the span has read of the question; then "
            "without positions and tokens)."
        ),
    ] = "content"
    mlps: Annotated[
        str,
        Option(
            help="MLPs as parts of edges: all, none, or auto: all, where the problems are enough for so many edges."
        ),
    ] = "auto"
    n_rows: Annotated[
        int, Option(min=1, help="Tokens from each end of the question at which sites and heads are patched.")
    ] = 8
    without: Annotated[str, Option(help=f"Leave out, with commas: {', '.join(PARTS)}.")] = ""
    outcome: OutcomeOption = "answer_logprob"
    out: OutOption = Path("results/circuit")

    def checked(self) -> tuple["Options", int]:
        """These options with all problems counted, and how many of them name heads; `ValueError` before anything begins."""
        from ..patching.outcomes import outcome_named
        from ..prompts.conditions import one_of

        one_of(self.contrast, dict.fromkeys(CONTRASTS), "contrast of a circuit")
        one_of(self.mlps, dict.fromkeys(NODES), "mlps")
        outcome_named(self.outcome, signed_for="circuits")
        given, _ = read_heads(self.heads, None)
        without = chosen_names(self.without)
        for name in without:
            one_of(name, dict.fromkeys(PARTS), "part to leave out")
        if given and set(without) == set(PARTS):
            raise ValueError("--without leaves out every part, and with --heads nothing else is measured: keep one")
        confirm = (0 if given else N_CONFIRM) if self.confirm is None else self.confirm
        if confirm == 1 or (given and confirm):
            raise ValueError(f"--confirm takes 2 or more problems, or 0, and only goes without --heads, got {confirm}")
        if not given and self.limit == 1:
            raise ValueError("--limit 1: heads are named by 2 or more problems: give more, or --heads")
        asked = replace(self, limit=self.limit + confirm, confirm=confirm)
        there = len(asked.questions())
        if confirm and there < asked.limit:
            raise ValueError(
                f"--limit {self.limit} and --confirm {confirm} need {asked.limit} problems, there are {there}: give smaller "
                "numbers, or more problems"
            )
        return asked, self.limit

    def shortage(self) -> str:
        asked, limit = self.checked()
        return "" if asked.confirm else fewer_than(limit, len(asked.questions()))


def compute(options: Options) -> Computed:
    """Name the heads that carry an insertion's effect, and take their circuit apart: which way they act, on whom, where, and
    by what.

    Heads are named on the first problems and tested again on fresh ones (or given, --heads L0H13,L1H2); all that follows is
    measured on the fresh ones, of all named heads, since whoever is chosen there cannot be tested there: what is direct and
    indirect, edges between heads by q, k and v (needed, and sufficient), sites by layer and token, the tokens through which
    heads act, what they write, the fewest heads that suffice and are needed, and how much of the effect comes back without the
    tokens. Where no head is named, or none confirmed, it ends there and says so. What a model's weights do not allow
    (quantised, run elsewhere) is left out with its reason.

    Writes a table (.csv) and a picture (.png) of each part, edges.parquet (a row per problem and edge), the results themselves
    in results/ (mi.load) and run.json; with --report also report.html, which tells it in this order. A run that is stopped goes
    on from where it was when it is started again with the same settings.
    """
    from ..locating.locate import locate_heads
    from ..models.info import ModelError
    from ..views.report import ShownPrompt
    from .circuit_sections import SECTIONS, answer_of

    asked, limit = options.checked()
    given, _ = read_heads(options.heads, None)
    model, every = asked.begin()
    pairs, fresh = every[:limit], every[limit:]
    common: dict[str, Any] = {"outcome": options.outcome, "progress": options.progress, "seed": options.seed}
    results: dict[str, Any] = {}
    if given:
        heads = model.info.chosen(given, what="take the circuit apart of")
    else:
        found = locate_heads(
            model,
            pairs,
            confirm=fresh or None,
            contrast=options.contrast,
            checkpoint=options.partial / "located",
            **common,
        )
        results["LocatedHeads"] = found
        sure = found.confirmed if fresh else found.found
        by_size = [head for label in found.summary()["label"] for head in found.found if str(head) == label]
        heads = tuple(by_size[: options.most_heads]) if sure else ()  # the fresh problems test them, and choose none
    measured = fresh or pairs
    left_out: dict[str, str] = {}
    asking = _Asking(model, pairs, measured, tuple(heads), options, common)
    for name, section in SECTIONS.items() if heads else ():
        why = "not asked for" if name in chosen_names(options.without) else section.why_not(asking)
        if why:
            left_out[name] = why
            continue
        try:
            results |= section.measure(asking)
        except ModelError as error:
            left_out[name] = str(error)
    if not results:
        whole = "; ".join(f"{name}: {why}" for name, why in left_out.items() if why != "not asked for")
        raise ValueError(f"no part of the circuit of {', '.join(map(str, heads))} can be measured: {whole}")
    traced = SECTIONS["edges"].key in results
    without_mlps = f"Edges are traced without MLPs: {why}." if traced and (why := asking.without_mlps) else ""
    conclusion = answer_of(results, heads, bool(given))
    told = [conclusion, *map(repr, results.values())]
    if heads and not given and not fresh:
        told.insert(2, NAMED_HERE)
    return Computed(
        results=results,
        told="\n\n".join(
            [*told, *(f"Left out, {name}: {why}" for name, why in left_out.items() if why != "not asked for")]
        ),
        model=model,
        shown={"prompt": ShownPrompt.of(model, measured[0])},
        facts={
            "heads": [str(head) for head in heads],
            "heads_given": bool(given),
            "left_out": left_out,
            "insertion": measured[0].insertion.label,
            "conclusion": conclusion,
            "without_mlps": without_mlps,
            "n_problems": len(pairs),
            "n_fresh": len(fresh),
            "prompts": [pair.record() for pair in every],
        },
        notes=[without_mlps] * bool(without_mlps),
    )


@dataclass(frozen=True, eq=False)
class _Asking:
    """What every part of a circuit is asked with."""

    model: Any
    named_on: Any
    pairs: Any
    heads: tuple[Any, ...]
    options: Options
    common: Mapping[str, Any]

    @property
    def mlps(self) -> tuple[int, ...]:
        """Layers whose MLPs are parts of edges: in "auto" all, where so many problems can show one of so many edges."""
        if self.options.mlps == "none" or self.without_mlps:
            return ()
        return tuple(range(self.model.info.n_layers))

    @property
    def without_mlps(self) -> str:
        """Why "auto" leaves MLPs out of the edges; "" where it does not."""
        from ..statistics import fewest_problems

        nodes, n = len(self.heads) + self.model.info.n_layers, len(self.pairs)
        edges = nodes * (nodes + 1) // 2 + 3 * nodes * len(self.heads)
        needed = fewest_problems(edges)
        if self.options.mlps != "auto" or needed <= n:
            return ""
        return (
            f"with them up to {edges} edges would be tested, which takes at least {needed} problems, and there "
            f"{'is' if n == 1 else 'are'} {n} (--mlps all traces them nevertheless)"
        )

    @property
    def fresh(self) -> Any:
        """Problems to confirm on; None where all are measured on those that named the heads."""
        return None if self.pairs is self.named_on else self.pairs

    def checkpoint(self, name: str) -> Path:
        return self.options.partial / name


def present(kept: Kept) -> Presented:
    """A table and a picture of each part, and the page that tells them in order."""
    from .. import views
    from ..views.report import Report
    from .answers import model_name, of_located
    from .circuit_sections import SECTIONS, shown_section

    located, heads = kept.results.get("LocatedHeads"), kept.run["heads"]
    shown = {name: section for name, section in SECTIONS.items() if section.key in kept.results}
    pictures = {name: section.pictures(kept.results) for name, section in shown.items()}
    files: dict[str, Any] = {}
    if located is not None:
        files |= {"heads.csv": located.summary(), "head_map.png": views.head_map(located)}
    for name, section in shown.items():
        files[f"{name}.csv"] = kept.results[section.key].summary()
        files |= {f"{name}{'_' * bool(at)}{at or ''}.png": each for at, each in enumerate(pictures[name].values())}
    if "edges" in shown:
        files["edges.parquet"] = kept.results[SECTIONS["edges"].key].to_frame()

    def page() -> Report:
        n, fresh, name = kept.run["n_problems"], kept.run["n_fresh"], model_name(kept.run["model"]["name"])
        some = f"heads named on {n} problems" if fresh else count_of(n, "problem")
        others = f", all else measured on {fresh} others" if fresh and heads else ""
        question = (
            f"Which heads of {name} carry the effect of {kept.run['insertion']}, on whom do they "
            f"act, where, and by what ({some}{others})?"
        )
        made = Report("From heads to a circuit", question=question, answer=kept.run["conclusion"])
        if located is not None:
            effects = {"Median effects with 95 % intervals over problems.": views.forest(located)}
            made = made.heading("Which heads").answered(of_located(located))
            made = made.result(located, heading=None, pictures=effects, first=())
            if not heads:
                made = made.sentence("No head, no circuit: nothing further was measured.")
            elif not kept.run["n_fresh"]:
                made = made.sentence(NAMED_HERE)
        for name, section in SECTIONS.items() if heads else ():
            why = kept.run["left_out"].get(name)
            if name in shown:
                made = shown_section(made, section, kept.results, pictures[name])
                if name == "edges" and (without := kept.run.get("without_mlps")):
                    made = made.sentence(without)
            elif why and why != "not asked for":
                made = made.heading(section.heading).answered(f"Not measured: {why}.")
        return made.heading("What the model reads").shown_prompt(kept.shown["prompt"])

    return Presented(files, page)


app = program("circuit", compute, present)
