"""`mless-interp circuit`: from an insertion to the circuit that carries its effect, on one model, on one page."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Option

from ..core.arguments import count_of
from ..prompts.conditions import one_of
from .command_line import (
    ByOption,
    HeadsOption,
    ModelArgument,
    OutcomeOption,
    OutOption,
    Pairing,
    chosen_heads,
    chosen_names,
)
from .run_folder import Computed, Kept, Presented, program

NAMED_HERE = "The circuit uses the same problems that selected the heads, so it describes how they act, not whether."
N_CONFIRM = 64
"""Fresh problems where nothing else is asked for."""
PARTS = ("direct", "edges", "sites", "positions", "writes", "sets", "transfer")
"""Of a circuit, in the order of the story."""


@dataclass(frozen=True, kw_only=True)
class Options(Pairing):
    """What can be asked."""

    model: ModelArgument = "demo"
    heads: HeadsOption = None
    limit: Annotated[
        int,
        Option(min=1, help="Number of problems that name the heads, from the first one; with --heads all there are."),
    ] = 64
    confirm: Annotated[
        int | None,
        Option(
            min=0,
            help="Number of fresh problems that test the named heads again and measure the circuit. 0: all on "
            f"the same problems. [default: {N_CONFIRM}; with --heads 0]",
        ),
    ] = None
    by: ByOption = None
    most_heads: Annotated[
        int, Option(min=1, help="Maximum number of heads in the circuit (largest effects first).")
    ] = 8
    contrast: Annotated[
        Literal["content", "computed", "inside", "replaced"],
        Option(
            help="content (masked -> inserted); computed (blind -> inserted: what the span has read of the question); inside "
            "(apart -> inserted: what the span's tokens have read of one another); replaced (clean -> inserted, with --pairs). "
            "The last three without tokens and transfer.",
        ),
    ] = "content"
    mlps: Annotated[
        Literal["auto", "all", "none"],
        Option(
            help="Include MLPs as nodes: all, none, or auto (all if there are enough problems to correct for that many edges).",
        ),
    ] = "auto"
    n_rows: Annotated[
        int, Option(min=1, help="Tokens from each end of the question at which sites and heads are patched.")
    ] = 8
    without: Annotated[str, Option(help=f"Leave out, with commas: {', '.join(PARTS)}.")] = ""
    outcome: OutcomeOption = "answer_logprob"
    out: OutOption = Path("results/circuit")

    def parts(self) -> list[tuple[Any, ...]]:
        """The problems that name the heads and those on which the circuit is measured."""
        given = chosen_heads(self.heads)
        without = chosen_names(self.without)
        for name in without:
            one_of(name, dict.fromkeys(PARTS), "part to leave out")
        if given and set(without) == set(PARTS):
            raise ValueError("--without leaves out every part, and with --heads nothing else is measured: keep one")
        if given and self.by is not None:
            raise ValueError("--by goes with heads that are located, not with --heads")
        confirm = (0 if given else N_CONFIRM) if self.confirm is None else self.confirm
        if confirm == 1 or (given and confirm):
            raise ValueError(f"--confirm takes 2 or more problems, or 0, and only goes without --heads, got {confirm}")
        if not given and self.limit == 1:
            raise ValueError("--limit 1: heads are named by 2 or more problems: give more, or --heads")
        return self.in_parts(limit=self.limit, confirm=confirm)


def compute(options: Options) -> Computed:
    """Name the heads that carry an insertion's effect, and trace their circuit: on what they act, where, by which inputs.

    The first problems name heads and fresh ones test them again (or give heads: --heads L0H13,L1H2). The fresh problems then
    measure, for all named heads: direct and indirect effects, edges between heads by q, k and v (needed, and sufficient),
    sites by layer and token, the tokens through which heads act, what they write, the fewest heads that suffice and are
    needed, and the share of the effect that returns without the tokens. The command ends early, with the reason, if no head
    is named or confirmed. Parts that a model's weights do not allow (quantised, remote) are left out with their reason.

    Writes a table (.csv) and a picture (.png) of each part, edges.parquet (a row per problem and edge), the results themselves
    in results/ (mi.load) and run.json; with --report also report.html.
    A stopped run resumes when you start it again with the same settings.
    """
    parts = options.parts()
    from ..circuits.circuit import trace_circuit
    from ..circuits.locate import locate_heads

    given = chosen_heads(options.heads)
    model, (pairs, others) = options.begin(*parts)
    common = {"outcome": options.outcome, "contrast": options.contrast, **options.common}
    fresh = others or None
    found: Any = given
    if given is None:
        found = locate_heads(
            model, pairs, confirm=fresh, by=options.by, checkpoint=options.partial / "located", **common
        )
    circuit = trace_circuit(
        model,
        pairs,
        found,
        fresh=fresh,
        parts=[name for name in PARTS if name not in chosen_names(options.without)],
        mlps=options.mlps,
        n_rows=options.n_rows,
        most_heads=options.most_heads,
        checkpoint=options.partial,
        **common,
    )
    return Computed(
        {"Circuit": circuit},
        model,
        [*others, *pairs],
        facts={"settings": circuit.settings, "n_problems": len(pairs), "n_fresh": len(others)},
        notes=[NAMED_HERE] * bool(circuit.heads and circuit.located is not None and not fresh),
    )


def present(kept: Kept) -> Presented:
    """A table and a picture of each part, and the page that tells them in order."""
    from .. import views
    from ..circuits.circuit import PARTS
    from ..views.report import Report
    from .circuit_sections import family_words, pictures_of, shown_section

    circuit = kept.results["Circuit"]
    located, shown = circuit.located, [name for name in PARTS if getattr(circuit, name) is not None]
    files: dict[str, Any] = {}
    if located is not None:
        files |= {"heads.csv": located.table(), "head_map.png": views.head_map(located)}
    for name in shown:
        files[f"{name}.csv"] = getattr(circuit, name).table()
        pictures = pictures_of(circuit, name).values()
        drawn = {f"{name}{'_' * bool(at)}{at or ''}.png": each for at, each in enumerate(pictures)}
        files |= {file: each for file, each in drawn.items() if each is not None}
    if circuit.edges is not None:
        files["edges.parquet"] = circuit.edges.to_frame()

    def page() -> Report:
        n, fresh, name = kept.run["n_problems"], kept.run["n_fresh"], kept.model_name
        some = f"heads named on {n} problems" if fresh else count_of(n, "problem")
        others = f", all else measured on {fresh} others" if fresh and circuit.heads else ""
        question = (
            f"Which heads of {name} carry the effect of {circuit.settings['insertion']}, on whom do they "
            f"act, where, and by what ({some}{others})?"
        )
        made = Report("From heads to a circuit", question=question, answer=circuit.headline())
        if located is not None:
            effects = {"Median effects with 95 % intervals over problems.": views.forest(located)}
            made = made.heading("Which heads").answered(located.headline())
            made = made.result(located, heading=None, pictures=effects)
            if not circuit.heads:
                made = made.sentence("No head, no circuit: nothing further was measured.")
        for name in PARTS:
            why = circuit.left_out.get(name, "not asked for")
            if name in shown:
                made = shown_section(made, name, circuit)
            elif why != "not asked for":
                made = made.heading(PARTS[name]).answered(f"Not measured: {why}.")
            if name == "edges" and (without := circuit.left_out.get("MLPs")):
                made = made.sentence(f"Edges are traced without MLPs: {without}.")
        return made.sentence(family_words(circuit))

    return Presented(files, page)


app = program("circuit", compute, present)
