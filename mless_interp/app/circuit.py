"""`mless-interp circuit`: from an insertion to the circuit that carries its effect, on one model, on one page."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ..core.arguments import one_of
from ..prompts.conditions import CONTRASTS, OF_CIRCUITS, as_words
from ..prompts.problems import Problem
from .command_line import LIMITS, MODEL_HELP, Pairing, argument, chosen_names, is_model, option
from .run_folder import Computed, Kept, Presented, Report, program

N_CONFIRM = 64  # fresh problems where nothing else is asked for
PARTS = ("direct", "edges", "sites", "positions", "writes", "sets", "transfer")
"""Of a circuit, in the order of the story."""


@dataclass(frozen=True, kw_only=True)
class Options(Pairing):
    model: str = argument("demo", MODEL_HELP, callback=is_model, metavar="MODEL")
    heads: str | None = option(None, "Trace these heads instead of naming some: L0H13,L1H2.")
    limit: int = option(
        LIMITS["circuit"], "Problems that name the heads; with --heads, problems that measure them.", min=1
    )
    confirm: int | None = option(None, f"Fresh problems to measure on. [default: {N_CONFIRM}; 0 with --heads]", min=0)
    by: str | None = None
    most_heads: int = option(8, "Maximum number of heads in the circuit (largest effects first).", min=1)
    contrast: str = option(
        "content",
        f"{as_words({name: CONTRASTS[name] for name in OF_CIRCUITS})}. All but content leave out positions and transfer.",
        of="contrasts_of_circuits",
    )
    mlps: Literal["all", "none"] = option("all", "MLPs as nodes of the edges.")
    n_rows: int = option(8, "Tokens from each end of the question at which sites and heads are patched.", min=1)
    without: str = option("", f"Leave out, with commas: {', '.join(PARTS)}.")
    outcome: str = "answer_logprob"
    out: Path = Path("results/circuit")

    def parts(self) -> list[tuple[Problem, ...]]:
        """Return the problems that name the heads and those on which the circuit is measured."""
        given, without = self.heads_of(), chosen_names(self.without)
        for name in without:
            one_of(name, PARTS, "part to leave out")
        if given and set(without) == set(PARTS):
            raise ValueError("--without leaves out every part, and with --heads nothing else is measured: keep one")
        if given:
            self.only_defaults("by most_heads", "--heads are traced as they are given")
        confirm = (0 if given else N_CONFIRM) if self.confirm is None else self.confirm
        if confirm == 1 or (given and confirm):
            raise ValueError(f"--confirm must be 0 {'with --heads' if given else 'or at least 2'}, got {confirm}")
        if not given and self.limit == 1:
            raise ValueError("--limit 1: heads are named by 2 or more problems: give more, or --heads")
        return self.in_parts(limit=self.limit, confirm=confirm)


def compute(options: Options) -> Computed:
    """Name the heads that carry an insertion's effect, and trace their circuit: on what parts, where, by which inputs they act.

    The first problems name heads (or give them: --heads L0H13,L1H2). Fresh ones test them again and measure direct effects,
    edges between heads by q, k and v (needed, and sufficient), sites by layer and token, the tokens through which heads act,
    what they write, the fewest heads that suffice and are needed, and the share of the effect that returns without the
    tokens. Without a named head the command ends early; parts that the weights do not allow are left out with their reason.

    Writes tables (.csv) and pictures (.png) of heads and each part, edges.parquet (a row per problem and edge).
    """
    parts = options.parts()
    from ..circuits.circuit import trace_circuit
    from ..circuits.locate import locate_heads

    model, (pairs, others) = options.begin(*parts)
    common, fresh = options.chosen("outcome", "contrast") | options.common, others or None
    heads: Any = options.heads_of()
    if heads is None:
        kept = options.partial / "located"
        heads = locate_heads(model, pairs, confirm=fresh, by=options.by, checkpoint=kept, **common)
    wanted = [name for name in PARTS if name not in chosen_names(options.without)]
    how = options.chosen("mlps", "n_rows", "most_heads") | common
    circuit = trace_circuit(model, pairs, heads, fresh=fresh, parts=wanted, checkpoint=options.partial, **how)
    same = "The circuit uses the same problems that selected the heads, so it describes how they act, not whether."
    notes = [same] * bool(circuit.heads and circuit.located is not None and not fresh)
    facts = {"n_problems": len(pairs), "n_fresh": len(others)}
    return Computed({"Circuit": circuit}, model, [*others, *pairs], facts=facts, notes=notes)


def present(kept: Kept) -> Presented:
    from .. import views

    circuit = kept.results["Circuit"]
    parts, graphs = circuit.parts().items(), ("edges", "sufficient")
    # of edges none where there are none, which the part's answer says
    pictures = {name: part.plot() for name, part in parts if name not in graphs or part.found}
    files: dict[str, object] = {f"{name}.png": picture for name, picture in pictures.items()}
    files |= {f"{name}.csv": part.table() for name, part in parts}
    if (located := circuit.located) is not None:
        files |= {"heads.csv": located.table(), "head_map.png": views.head_map(located)}
        if located.confirmation is not None:
            files |= {"confirmed.csv": located.confirmation.table(), "controls.csv": located.control_table()}
    if circuit.edges is not None:
        files["edges.parquet"] = circuit.edges.to_frame()
    return Presented(files, lambda: page_of(kept, pictures))


def page_of(kept: Kept, pictures: dict[str, Any]) -> Report:
    """Tell the circuit part by part: the answer in a sentence, all else folded but the map of heads and the graph."""
    from .. import views
    from ..circuits.circuit import HEADINGS

    circuit = kept.results["Circuit"]
    question = "Which heads carry the insertion's effect, on which parts do they act, where, and through which inputs?"
    page, located = kept.page("From heads to a circuit", question, circuit), circuit.located
    if located is not None:
        page = page.heading("Which heads").answered(located.headline()).result(located, heading=None)
        effects = page.blank().figure(views.forest(located), "Median effects with 95 % intervals over problems.")
        page = page.folded("Median effects of heads", effects)
        if not circuit.heads:
            page = page.sentence("No head is named, so no circuit was measured.")
    for name, heading in HEADINGS.items():
        if (part := getattr(circuit, name)) is not None:
            drawn = {heading: pictures[name]} if name in pictures else {}
            page = page.heading(heading).answered(part.headline())
            if name == "edges" and drawn:
                page, drawn = page.figure(pictures[name], heading), {}
            rest = replace(page.blank(), answer=part.headline()).result(part, heading=None, pictures=drawn)
            words = "Picture, table and words" if drawn else "Table and words"
            page = page.sentence(*part.caveats()).folded(words, rest)
        elif (why := circuit.left_out.get(name, "not asked for")) != "not asked for":
            page = page.heading(heading).answered(f"Not measured: {why}.")
    across = "Corrected p-values hold within each part (edges: both directions together), not across parts."
    return page.sentence(across)


app = program("circuit", compute, present)
