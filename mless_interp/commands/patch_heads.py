"""`mless-interp locate`: which attention heads carry the effect of inserted tokens; heads patched, named, confirmed."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from ..command_line import (
    EditOption,
    HeadsOption,
    Inserting,
    LayersOption,
    OutcomeOption,
    OutOption,
    ProblemOption,
    chosen_heads,
    contrasts,
    fewer_than,
    read_heads,
)
from ..given import count_of
from .kept import Computed, Kept, Presented, program, shown_attention

PROBLEMS = {"locate": 64, "sweep": 32}
"""How many, by mode, where nothing else is asked for."""
N_RANDOM_SETS = 5
"""Random sets that answers are compared with, at most: each costs an answer per problem."""
N_SHOWN = 4
"""Heads whose attention is shown, at most: the named ones or, where none is, the largest."""


@dataclass(frozen=True, kw_only=True)
class Options(Inserting):
    """What can be asked."""

    mode: Annotated[
        str, Option(help="locate: both directions, controls, corrected p-values, heads named. sweep: one sweep.")
    ] = "locate"
    confirm: Annotated[
        int,
        Option(
            min=0,
            help="locate: test the named heads again on so many fresh problems, those after the first. 0: do not.",
        ),
    ] = 0
    answers: Annotated[
        int,
        Option(
            min=0,
            help="locate: answer so many other problems, those after all of these: without insertion, with it, and with the "
            f"named heads that read, or each of {N_RANDOM_SETS} random sets like them, cut off from it: so many times "
            f"{3 + N_RANDOM_SETS} answers at most. 0: do not.",
        ),
    ] = 0
    limit: Annotated[
        int | None, Option(min=1, help="How many problems, from the first. [default: 64 to locate, 32 to sweep]")
    ] = None  # type: ignore[assignment]
    layers: LayersOption = None
    heads: HeadsOption = None
    contrast: Annotated[
        str | None, Option(help=f"{contrasts()}. To locate: content, computed, shift or total. [default: content]")
    ] = None
    direction: Annotated[
        str | None, Option(help="sweep: denoising (clean into corrupted) or noising. [default: denoising]")
    ] = None
    edit: EditOption = None
    outcome: OutcomeOption = "answer_logprob"
    problem: ProblemOption = None
    out: OutOption = Path("results/patch_heads")

    @property
    def sweep(self) -> dict[str, Any]:
        """What was asked of a single sweep."""
        asked = {"contrast": self.contrast, "direction": self.direction, "edit": self.edit}
        return {name: value for name, value in asked.items() if value is not None}

    def checked(self) -> tuple["Options", int]:
        """These options with all problems counted, and how many of them name heads; `ValueError` before anything begins."""
        from ..locating.locate import LOCATED
        from ..patching.outcomes import outcome_named
        from ..patching.sweep import Sweep
        from ..prompts.conditions import one_of

        if self.mode not in PROBLEMS:
            raise ValueError(f"unknown mode {self.mode!r}; choose locate or sweep")
        given = ", ".join(f"--{name}" for name in self.sweep if name != "contrast")
        if self.mode == "locate" and given:
            raise ValueError(f"{given} only goes with --mode sweep; locating runs both directions of both edits")
        if self.mode == "locate" and self.contrast is not None:
            one_of(self.contrast, dict.fromkeys(LOCATED), "contrast to locate heads by")
        if self.answers and self.contrast not in (None, "content"):
            raise ValueError(
                f"--answers cuts heads off from the span, so it goes with --contrast content, not {self.contrast}"
            )
        for name, count in (("confirm", self.confirm), ("answers", self.answers)):
            if count == 1 or (self.mode == "sweep" and count):
                raise ValueError(
                    f"--{name} takes 2 or more problems, or 0, and only goes with --mode locate, got {count}"
                )
        limit: int = PROBLEMS[self.mode] if self.limit is None else self.limit
        outcome_named(self.outcome, signed_for="locating heads" if self.mode == "locate" else "")
        Sweep.named(**self.sweep)
        read_heads(self.heads, self.layers)
        if self.mode == "locate" and limit == 1:
            raise ValueError("--limit 1: heads are named by 2 or more problems: give more")
        wanted = limit + self.confirm + self.answers
        asked = replace(self, limit=wanted)
        if wanted == limit:
            return asked, limit
        questions = asked.questions()
        if len(questions) < wanted:
            also = "".join(
                f" and --{name} {count}"
                for name, count in (("confirm", self.confirm), ("answers", self.answers))
                if count
            )
            raise ValueError(
                f"--limit {limit}{also} need {wanted} problems, there are {len(questions)}: give smaller numbers, or "
                "more problems"
            )
        keyless = [each.id for each in questions[limit + self.confirm :] if not each.answer.strip()]
        if keyless:
            raise ValueError(
                f"--answers {self.answers}: {len(keyless)} of these problems have no answer to grade against (first: "
                f"{keyless[0]!r}); leave them out, or give them one"
            )
        return asked, limit

    def shortage(self) -> str:
        asked, limit = self.checked()
        return "" if asked.confirm or asked.answers else fewer_than(limit, len(asked.questions()))


def compute(options: Options) -> Computed:
    """Patch attention heads, one at a time and exactly, and rank them by the share of the insertion's effect they carry.

    Writes heads.csv and heads.parquet (a row per head), patches.parquet (a row per problem and head), head_map.png,
    attention.html (offline; the top heads with and without the insertion), the results themselves in results/ (mi.load)
    and run.json; with --answers also answers.csv and completions.jsonl, with --report also report.html. A run that is
    stopped goes on from where it was when it is started again with the same settings.
    """
    from ..heads import Head
    from ..locating.locate import locate_heads
    from ..patching.sweep import patch_heads
    from ..running.results import as_text
    from ..views.report import ShownPrompt
    from .answers import of_cut_off

    asked, limit = options.checked()
    problem = asked.shown_problem(options.problem)
    model, every = asked.begin()
    pairs, fresh = every[:limit], every[limit : limit + options.confirm]
    heads = chosen_heads(options.heads, options.layers, n_layers=model.info.n_layers, n_heads=model.info.n_heads)
    common: dict[str, Any] = {"heads": heads, "outcome": options.outcome, "seed": options.seed}
    common["progress"] = options.progress
    found: Any
    if options.mode == "locate":
        common["contrast"] = options.contrast or "content"
        found = locate_heads(model, pairs, confirm=fresh or None, checkpoint=options.partial, **common)
        patches = found.patches
        by_size = [Head.parse(label) for label in found.summary()["label"] if Head.parse(label) in found.found]
        named = sorted(by_size, key=lambda head: head not in found.confirmed)
    else:
        found = patches = patch_heads(
            model, pairs, checkpoint=options.partial / "sweep.jsonl", **options.sweep, **common
        )
        named = []
    largest = [Head.parse(label) for label in patches.top(N_SHOWN)["label"]]
    best = named[:N_SHOWN] or largest
    results, told = {type(found).__name__: found}, repr(found)
    if options.answers:
        results["AccuracyResults"] = answered = _answered(model, every[limit + options.confirm :], found, options)
        told += f"\n\n{of_cut_off(answered)}\n{as_text(_short(answered))}"
    shown: dict[str, Any] = {"prompt": ShownPrompt.of(model, pairs[0])}
    if options.attention == "eager":
        options.say("reading the attention of the heads to show ...")
        shown["attention"] = shown_attention(model, every if problem is not None else pairs, best, problem)
    return Computed(
        results=results,
        told=told,
        model=model,
        shown=shown,
        facts={
            "mode": options.mode,
            "settings": found.settings,
            "conclusion": found.describe(),
            "n_problems": len(pairs),
            "n_fresh": len(fresh),
            "n_answers": options.answers,
            "prompts": [pair.record() for pair in (*pairs, *fresh)],
        },
    )


NONE, INSERTED, CUT_OFF, RANDOM = "none", "insertion", "named set cut off", "random set {} cut off"
"""What other problems are answered under."""


def _answered(model: Any, pairs: Any, found: Any, options: Options) -> Any:
    """Other problems answered without insertion, with it, and with heads cut off from it: the named ones that read, and
    `N_RANDOM_SETS` of the random sets of their layers, the first drawn of those that have fewest of them."""
    from ..accuracy import Treatment, evaluate_accuracy

    insertion = pairs[0].insertion
    treatments = [Treatment(name=NONE), Treatment(insertion, name=INSERTED)]
    joint = found.joint if found.confirmation is None else found.confirmation.joint
    if joint is not None:
        treatments.append(Treatment(insertion, knockout=joint.heads, name=CUT_OFF))
        random = sorted(joint.sets, key=lambda members: len(set(members) & set(joint.heads)))[:N_RANDOM_SETS]
        treatments += [
            Treatment(insertion, knockout=members, name=RANDOM.format(number))
            for number, members in enumerate(random, 1)
        ]
    options.say(
        f"answering {count_of(len(pairs), 'other problem')} under {count_of(len(treatments), 'treatment')}: "
        f"{count_of(len(pairs) * len(treatments), 'answer')}"
    )
    return evaluate_accuracy(
        model,
        [pair.problem for pair in pairs],
        treatments,
        template=options.template,
        checkpoint=options.partial / "answers.jsonl",
        progress=options.progress,
        seed=options.seed,
    )


def _short(answered: Any) -> Any:
    """A row per treatment: what is cut off, right answers, and how they differ from those with the insertion alone."""
    treatments = answered.settings["treatments"]
    table = answered.summary()[["treatment", "accuracy", "low", "high", "n"]]
    table["heads"] = [", ".join(treatments[name]["knockout"]) or None for name in table["treatment"]]
    against = answered.compare_all(INSERTED).summary().set_index("second")
    columns = {"difference": "difference", "low": "difference_ci_low", "high": "difference_ci_high", "p_holm": "p_holm"}
    return table.join(against[list(columns)].rename(columns=columns), on="treatment")


def _first(found: Any) -> list[str]:
    """What stands open of all that located heads say: the total effect, what the heads that read do as a set (on fresh
    problems where there are some), and what none of it can say."""
    from ..locating.sentences import readers_words, total_words

    joint = found.joint if found.confirmation is None else found.confirmation.joint
    as_a_set = [] if joint is None else readers_words(joint)
    return [*total_words(found.judged, found.unit), *as_a_set, found.sentences()[-1]]


def present(kept: Kept) -> Presented:
    """The tables, the head map, the attention of the best heads, and the page."""
    from .. import views
    from ..views.circuitsvis import attention_view
    from ..views.report import Report
    from .answers import in_order, model_name, of_cut_off, of_located, of_sweep

    located = kept.run["mode"] == "locate"
    found, answered = kept.results["LocatedHeads" if located else "PatchScores"], kept.results.get("AccuracyResults")
    patches = found.patches if located else found
    attention = attention_view(kept.shown["attention"]) if "attention" in kept.shown else None
    outcome, template = kept.options["outcome"], kept.options["template"]

    def page() -> Report:
        question = (
            f"Which of {count_of(len(patches.heads), 'head')} of {model_name(kept.run['model']['name'])} carry the effect of "
            f"{found.settings['insertion']} on {outcome}, patched one at a time on "
            f"{count_of(kept.run['n_problems'], 'problem')} "
            f"(template {template}, mode {kept.run['mode']})?"
        )
        answer = of_located(found) if located else of_sweep(found)
        made = Report("Heads that carry the insertion's effect", question=question, answer=answer)
        heads = "the named ones and the largest others" if located and found.found else "the largest"
        pictures = {f"Median effects with 95 % intervals over problems: {heads}.": views.forest(found)}
        shown = found.shown()
        if not located:
            (table,) = shown.tables
            caption = table.caption.replace("the largest share first", "the surest first")
            shown = replace(shown, tables=(replace(table, frame=in_order(table.frame), caption=caption),))
        made = made.result(found, pictures=pictures, shown=shown, first=_first(found) if located else ())
        if located and found.read is not None:
            reads = views.read_effects(found.read)
            caption = "What each edit of a head's attention to the inserted tokens removes, with 95 % intervals."
            made = made.folded("What the reads of the named heads are", Report("", question="").figure(reads, caption))
        if answered is not None:
            made = made.heading("Do the answers come back?").sentence(of_cut_off(answered))
            made = made.table(_short(answered), f"Right answers; differences and p are against {INSERTED!r}.")
        if attention is not None:
            named = len(found.found) if located else 0
            which = f"{N_SHOWN} largest of {named} named" if named > N_SHOWN else "named" if named else "largest"
            made = made.heading(f"Attention of the {which} heads").view(attention)
        return made.heading("What the model reads").shown_prompt(kept.shown["prompt"])

    files = {
        "heads.csv": found.summary(),
        "heads.parquet": found.summary(),
        "patches.parquet": patches.to_frame(),
        "head_map.png": views.head_map(found),
    }
    if answered is not None:
        files |= {"answers.csv": _short(answered), "completions.jsonl": answered.to_frame()}
    return Presented(files if attention is None else files | {"attention.html": attention}, page)


app = program("patch_heads", compute, present)
