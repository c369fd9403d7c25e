"""`mless-interp locate`: which attention heads carry the effect of inserted tokens; heads patched, named, confirmed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from typer import Option

from ..core.arguments import count_of
from ..prompts.conditions import one_of
from .command_line import (
    ByOption,
    Edit,
    HeadsOption,
    LayersOption,
    Outcome,
    OutOption,
    Pairing,
    SignedOutcome,
    chosen_heads,
    contrasts,
)
from .run_folder import Computed, Kept, Presented, program, shown_attention

PROBLEMS = {"locate": 64, "sweep": 32}
"""How many, by mode, where nothing else is asked for."""
LOCATED = ("content", "computed", "inside", "shift", "total", "replaced")
N_RANDOM_SETS = 5
"""Random sets that answers are compared with, at most: each costs an answer per problem."""
N_SHOWN = 4
"""Heads whose attention is shown, at most: the named ones or, where none is, the largest."""


@dataclass(frozen=True, kw_only=True)
class Options(Pairing):
    """What can be asked."""

    mode: Annotated[
        Literal["locate", "sweep"],
        Option(help="locate: both directions, controls, corrected p-values, heads named. sweep: one sweep."),
    ] = "locate"
    confirm: Annotated[
        int, Option(min=0, help="locate: test the named heads again on this many fresh problems. 0: do not.")
    ] = 0
    answers: Annotated[
        int,
        Option(
            min=0,
            help="locate: answer this many other problems without insertion, with it, and with the named heads that read, or "
            f"each of {N_RANDOM_SETS} random sets like them, cut off from it. 0: do not.",
        ),
    ] = 0
    limit: Annotated[
        int | None, Option(min=1, help="Number of problems, from the first one. [default: 64 to locate, 32 to sweep]")
    ] = None  # type: ignore[assignment]
    by: ByOption = None
    layers: LayersOption = None
    heads: HeadsOption = None
    contrast: Annotated[
        Literal["content", "shift", "total", "held", "presence", "computed", "inside", "replaced"],
        Option(help=f"{contrasts()}. To locate: {', '.join(LOCATED)}."),
    ] = "content"
    direction: Annotated[
        Literal["denoising", "noising"] | None,
        Option(help="sweep: denoising (clean into corrupted) or noising."),
    ] = None
    edit: Annotated[Edit | None, Option(help="sweep: what is patched. [default: z]")] = None
    outcome: Annotated[
        Outcome, Option(help="Outcome to measure. kl and kl_last, which are never negative, only for sweeps.")
    ] = "answer_logprob"
    out: OutOption = Path("results/locate")

    def parts(self) -> list[tuple[Any, ...]]:
        """The problems that name heads, confirm them and are answered; `ValueError` for what makes no sense together."""
        locating = self.mode == "locate"
        if locating:
            one_of(self.contrast, dict.fromkeys(LOCATED), "contrast to locate heads by")
            one_of(self.outcome, dict.fromkeys(get_args(SignedOutcome)), "outcome to locate heads by")
        if locating and (self.direction or self.edit):
            raise ValueError("--direction and --edit go with --mode sweep; locating runs both directions of both edits")
        if self.answers and self.contrast != "content":
            raise ValueError(f"--answers cuts heads off from the span: --contrast content, not {self.contrast}")
        if self.answers and self.pairs is not None:
            raise ValueError("--answers grades texts that the model writes, and --pairs holds token ids: leave one out")
        if self.by is not None and not locating:
            raise ValueError("--by names heads within strata of the problems: --mode locate")
        limit = PROBLEMS[self.mode] if self.limit is None else self.limit
        for name, count in (("confirm", self.confirm), ("answers", self.answers), ("limit", limit)):
            if (count == 1 and locating) or (name != "limit" and count and not locating):
                raise ValueError(
                    f"--{name} takes 2 or more problems (or 0 of those that --mode locate alone has), got {count}"
                )
        chosen_heads(self.heads, self.layers)
        found = self.in_parts(limit=limit, confirm=self.confirm, answers=self.answers)
        keyless = [each.id for each in found[2] if not each.answer.strip()]
        if keyless:
            raise ValueError(
                f"--answers: {len(keyless)} problems have no answer to grade against (first: {keyless[0]!r})"
            )
        return found


def compute(options: Options) -> Computed:
    """Patch attention heads, one at a time and exactly, and rank them by the share of the insertion's effect they carry.

    Writes heads.csv (a row per head), patches.parquet (a row per problem and head), head_map.png, attention.html (offline;
    the top heads with and without the insertion), the results themselves in results/ (mi.load) and run.json; with --answers
    also answers.csv and completions.jsonl, with --report also report.html.
    A stopped run resumes when you start it again with the same settings.
    """
    parts = options.parts()
    from ..answers import evaluate_accuracy
    from ..answers.treatments import cut_off
    from ..circuits.locate import locate_heads
    from ..core.heads import Head
    from ..patching.sweep import patch_heads
    from ..runtime.progress import stage, stages
    from .endings import of_cut_off

    model, (pairs, fresh, others) = options.begin(*parts)
    heads = chosen_heads(options.heads, options.layers, (model.info.n_layers, model.info.n_heads))
    common: dict[str, Any] = {
        "heads": heads,
        "outcome": options.outcome,
        "contrast": options.contrast,
        **options.common,
    }
    found: Any
    with stages(2 + bool(others)):
        if options.mode == "locate":
            found = locate_heads(
                model, pairs, confirm=fresh or None, by=options.by, checkpoint=options.partial, **common
            )
            patches = found.patches
            by_size = [Head.parse(label) for label in found.table()["label"] if Head.parse(label) in found.found]
            named = sorted(by_size, key=lambda head: head not in found.confirmed)
        else:
            swept: dict[str, Any] = {"direction": options.direction or "denoising", "edit": options.edit or "z"}
            found = patches = patch_heads(model, pairs, checkpoint=options.partial / "sweep.jsonl", **swept, **common)
            named = []
        best = named[:N_SHOWN] or [Head.parse(label) for label in patches.top(N_SHOWN)["label"]]
        results = {type(found).__name__: found}
        if others:
            cut = cut_off(pairs[0].insertion, found, n_random_sets=N_RANDOM_SETS)
            how = {"template": options.template, "checkpoint": options.partial / "answers.jsonl", **options.common}
            with stage("answering"):
                results["AccuracyResults"] = evaluate_accuracy(model, parts[2], cut, **how)
    shown = {}
    if options.attention == "eager":
        options.say("reading the attention of the heads to show ...")
        shown["attention"] = shown_attention(model, pairs, best)

    facts = {"mode": options.mode, "settings": found.settings, "n_problems": len(pairs)}
    facts |= {"n_fresh": len(fresh), "n_answers": options.answers}
    notes = [of_cut_off(results["AccuracyResults"])] if others else []
    return Computed(results, model, [*pairs, *fresh], shown, facts, notes)


def _short(answered: Any) -> Any:
    """A row per treatment: what is cut off, right answers, and how they differ from those with the insertion alone."""
    from ..answers.comparisons import CHANGE, RIGHT
    from ..answers.treatments import INSERTED

    treatments = answered.settings["treatments"]
    table = answered.table()[list(RIGHT)]
    table["heads"] = [", ".join(treatments[name]["knockout"]) or None for name in table["treatment"]]
    against = answered.compare_all(INSERTED).table().set_index("second")
    return table.join(against[list(CHANGE)], on="treatment")


def present(kept: Kept) -> Presented:
    """The tables, the head map, the attention of the best heads, and the page."""
    from .. import views
    from ..views.circuitsvis import attention_view
    from ..views.report import Report

    located = kept.run["mode"] == "locate"
    found, answered = kept.results["LocatedHeads" if located else "PatchScores"], kept.results.get("AccuracyResults")
    patches = found.patches if located else found
    attention = attention_view(kept.shown["attention"]) if "attention" in kept.shown else None

    def page() -> Report:
        of = "token ids" if kept.options.get("pairs") else f"template {kept.options['template']}"
        question = (
            f"Which of {count_of(len(patches.heads), 'head')} of {kept.model_name} carry the effect of "
            f"{found.settings['insertion']} on {kept.options['outcome']}, patched one at a time on "
            f"{count_of(kept.run['n_problems'], 'problem')} ({of})?"
        )
        made = Report("Heads that carry the insertion's effect", question=question, answer=found.headline())
        heads = "the named ones and the largest others" if located and found.found else "the largest"
        pictures = {f"Median effects with 95 % intervals over problems: {heads}.": views.forest(found)}
        made = made.result(found, pictures=pictures)
        if located and found.read is not None:
            reads = views.read_effects(found.read)
            caption = "What each edit of a head's attention to the inserted tokens removes, with 95 % intervals."
            made = made.folded("What the reads of the named heads are", Report("", question="").figure(reads, caption))
        if answered is not None:
            made = made.heading("Do the answers come back?")
            made = made.table(_short(answered), "Right answers; differences and p are against the insertion alone.")
        if attention is not None:
            named = len(found.found) if located else 0
            which = f"{N_SHOWN} largest of {named} named" if named > N_SHOWN else "named" if named else "largest"
            made = made.heading(f"Attention of the {which} heads").view(attention)
        return made

    files = {"heads.csv": found.table(), "patches.parquet": patches.to_frame(), "head_map.png": views.head_map(found)}
    if answered is not None:
        files |= {"answers.csv": _short(answered), "completions.jsonl": answered.to_frame()}
    return Presented(files if attention is None else files | {"attention.html": attention}, page)


app = program("patch_heads", compute, present)
