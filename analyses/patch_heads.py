"""Which attention heads carry the effect of inserted meaningless tokens?

Patches every head of a model, one at a time and exactly, on prompts with and without the insertion; names the heads that
carry the effect in most problems, and with `--confirm` tests them on fresh ones (`--mode locate`), or makes one sweep
(`--mode sweep`). Writes a table of heads with intervals, a map, a page of attention patterns and everything needed to
repeat the run.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from typer import Option

import mless_interp as mi

PROBLEMS = {"locate": 64, "sweep": 32}
"""How many, by mode, where nothing else is asked for."""


@dataclass(frozen=True, kw_only=True)
class Options(mi.command_line.Inserting):
    """What can be asked of this script."""

    mode: Annotated[
        str, Option(help="locate: both directions, controls, corrected p-values, heads named. sweep: one sweep.")
    ] = "locate"
    confirm: Annotated[
        int,
        Option(help="locate: test the named heads again on so many fresh problems, those after the first. 0: do not."),
    ] = 0
    limit: Annotated[
        int | None, Option(help="How many problems, from the first. [default: 64 to locate, 32 to sweep]")
    ] = None
    layers: mi.command_line.LayersOption = None
    heads: mi.command_line.HeadsOption = None
    contrast: Annotated[str | None, Option(help=f"sweep: {mi.command_line.contrasts()}. [default: content]")] = None
    direction: Annotated[
        str | None, Option(help="sweep: denoising (clean into corrupted) or noising. [default: denoising]")
    ] = None
    edit: mi.command_line.EditOption = None
    outcome: mi.command_line.OutcomeOption = "answer_logprob"
    out: mi.command_line.OutOption = Path("results/patch_heads")


def main(options: Options) -> None:
    """Patch attention heads, one at a time and exactly, and rank them by the share of the insertion's effect they carry.

    Writes heads.csv and heads.parquet (a row per head), patches.parquet (a row per problem and head), head_map.png,
    attention.html (offline; the top heads with and without the insertion) and run.json; with --report also report.html. A
    run that is stopped goes on from where it was when it is started again with the same settings.
    """
    mode, outcome = options.mode, options.outcome
    only_sweep = {"contrast": options.contrast, "direction": options.direction, "edit": options.edit}
    sweep = {name: value for name, value in only_sweep.items() if value is not None}
    if mode not in PROBLEMS:
        raise ValueError(f"unknown mode {mode!r}; choose locate or sweep")
    if mode == "locate" and sweep:
        given = ", ".join(f"--{name}" for name in sweep)
        raise ValueError(f"{given} only goes with --mode sweep; locating runs both directions of both edits")
    if options.confirm < 0 or options.confirm == 1 or (mode == "sweep" and options.confirm):
        raise ValueError(
            f"--confirm takes 2 or more problems, or 0, and only goes with --mode locate, got {options.confirm}"
        )
    limit = PROBLEMS[mode] if options.limit is None else options.limit
    if limit < 1:
        raise ValueError(f"limit must be 1 or more, got {limit}")
    asked = replace(options, limit=limit + options.confirm)
    if options.confirm and (available := len(asked.questions())) < asked.limit:
        raise ValueError(
            f"--limit {limit} and --confirm {options.confirm} need {asked.limit} problems, there are "
            f"{available}: give a smaller number of either, or more problems"
        )
    model, pairs = asked.begin()
    pairs, fresh = pairs[:limit], pairs[limit:]
    heads = mi.chosen_heads(options.heads, options.layers, n_layers=model.info.n_layers, n_heads=model.info.n_heads)
    common = {"heads": heads, "outcome": outcome, "progress": options.progress, "seed": options.seed}
    if mode == "locate":
        found = mi.locate_heads(model, pairs, confirm=fresh or None, checkpoint=options.partial, **common)
        patches = found.patches
    else:
        found = patches = mi.patch_heads(model, pairs, checkpoint=options.partial / "sweep.jsonl", **sweep, **common)
    named = [*found.confirmed, *found.found] if mode == "locate" else []
    largest = [mi.Head.parse(label) for label in patches.top(4)["label"]]
    best = list(dict.fromkeys([*named, *largest]))[:4]
    attention = mi.views.attention(model, pairs[0], best)

    def page() -> mi.Report:
        question = (
            f"Which of {len(patches.heads)} heads of {model.info.name} carry the effect of {pairs[0].insertion.label} on "
            f"{outcome}, patched one at a time on {len(pairs)} problems (template {options.template}, mode {mode})?"
        )
        made = mi.Report("Heads that carry the insertion's effect", question=question).result(found)
        made = made.figure(mi.views.forest(found), "Effects with 95 % intervals over problems, the largest heads.")
        if mode == "locate" and found.read is not None:
            made = made.figure(mi.views.read_effects(found.read), "What the reads of the named heads are.")
        made = made.heading("Attention of the named and the largest heads").view(attention)
        return made.heading("What the model reads").prompt(model, pairs[0])

    print(found)
    options.save(
        {
            "heads.csv": found.summary(),
            "heads.parquet": found.summary(),
            "patches.parquet": patches.to_frame(),
            "head_map.png": mi.views.head_map(found),
            "attention.html": attention,
        },
        model=model,
        page=page,
        mode=mode,
        settings=found.settings,
        conclusion=found.describe(),
        n_problems=len(pairs),
        n_fresh=len(fresh),
        prompts=[pair.record() for pair in (*pairs, *fresh)],
    )


app = mi.command_line.analysis(main)

if __name__ == "__main__":
    app()
