"""`mless-interp compare`: finished runs of one analysis side by side: other models, insertions, lengths."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from ..command_line import of_numbers, plain_warnings, repeat_command
from ..given import count_of
from ..running.visible import one_line

DEFAULTS = {"contrast": "content", "direction": "denoising", "edit": "z"}
"""Of a sweep: what an option that was not given stands for."""
COLUMNS = ("head", "named in", "option")
"""Of tables that have a column for each run besides."""
TOTAL = ("median_total", "median_total_ci_low", "median_total_ci_high")


@dataclass(frozen=True, eq=False)
class Compared:
    """What runs say beside each other: the `answer` in one sentence, `tables` by caption, a `picture`, and the options in
    which the runs `differ`, a row each (empty: in none)."""

    answer: str
    tables: dict[str, Any]
    picture: Any
    differ: Any = None


def compare(
    folders: Annotated[list[Path], Argument(metavar="DIR DIR ...", help="The --out of two or more finished runs.")],
    out: Annotated[
        Path | None, Option(help="Folder for compare.csv, heads.csv and the picture; without it only text.")
    ] = None,
    report: Annotated[bool, Option("--report", help="With --out: also write report.html.")] = False,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace an existing folder.")] = False,
) -> None:
    """Compare finished runs of one analysis: of several models, insertions or lengths.

    Runs of locate (or sweeps): the total effect, and every head that one of them names with its verdict and how many problems
    show it. Runs of accuracy: the share of right answers under each treatment. Nothing is computed again and no model is
    loaded; each run is judged by its own problems, and no test is made between runs.
    """
    from ..running.results import as_text
    from ..running.store import new_folder
    from ..running.tables import Table
    from .kept import read

    if len(folders) < 2:
        raise ValueError("compare takes two or more folders of finished runs")
    there = [Path(os.path.realpath(folder)) for folder in folders]
    if len(set(there)) < len(folders):
        raise ValueError("compare: a folder is named twice")
    if out is not None and any(Path(os.path.realpath(out)).is_relative_to(folder) for folder in there):
        raise ValueError(f"--out {str(out)!r} is one of the compared runs, or inside one: choose another folder")
    if report and out is None:
        raise ValueError("--report needs --out, the folder where the page goes")
    with plain_warnings():
        runs = [read(folder) for folder in folders]
        found = compared(dict(zip(_names(folders), runs, strict=True)))
        typer.echo(one_line(found.answer))
        for what, table in [*found.tables.items(), *[(DIFFER, found.differ)] * (not found.differ.empty)]:
            typer.echo(f"\n{what}\n{as_text(table)}")
        if out is None:
            return
        with new_folder(out, overwrite=overwrite) as made:
            for name, table in zip(("compare.csv", "heads.csv"), found.tables.values(), strict=False):
                Table(table).to_csv(made / name, index=False)
            found.picture.save(made / "compare.png")
            if report:
                _page(found, folders).save(made / "report.html")
        written = [*("compare.csv", "heads.csv")[: len(found.tables)], "compare.png", *["report.html"] * report]
        typer.echo(one_line(f"Results: {out}/{', '.join(written)}"))


def compared(runs: dict[str, Any]) -> Compared:
    """Runs (name -> what `kept.read` gives) beside each other; `ValueError` where they cannot be compared."""
    found = _compared(runs)
    return replace(found, answer=f"{found.answer}{_of_problems(runs)}", differ=_differing(runs))


DIFFER = "Options in which the runs differ (-: not given)."


def _differing(runs: dict[str, Any]) -> Any:
    """The options on which numbers depend and that are not the same in all runs: a row each, a column per run."""
    import pandas as pd

    given = {name: of_numbers(kept.options) for name, kept in runs.items()}
    told = {
        name: {option: str(value) for option, value in own.items() if value is not None} for name, own in given.items()
    }
    options = [option for option in dict.fromkeys(each for own in given.values() for each in own) if option != "report"]
    differing = [option for option in options if len({own.get(option) for own in told.values()}) > 1]
    columns = {name: [own.get(option) for option in differing] for name, own in told.items()}
    return pd.DataFrame({"option": [f"--{option.replace('_', '-')}" for option in differing], **columns}, dtype=object)


def _of_problems(runs: dict[str, Any]) -> str:
    """How many problems the runs have in common, where they are not all the same."""
    found = [set(next(iter(kept.results.values())).problem_ids) for kept in runs.values()]
    every = set.intersection(*found)
    if all(own == every for own in found):
        return ""
    return (
        f" The runs are not of the same problems: {len(every)} of {len(set.union(*found))} (by id) are in all of them."
    )


def _compared(runs: dict[str, Any]) -> Compared:
    kinds = {name: _kind(kept) for name, kept in runs.items()}
    if len(set(kinds.values())) > 1:
        told = ", ".join(f"{name} is of {kind}" for name, kind in kinds.items())
        raise ValueError(f"these runs cannot be compared: {told}; give runs of one analysis")
    (kind,) = set(kinds.values())
    if kind == "accuracy":
        return _of_answers(runs)
    if kind in ("locate", "sweep"):
        return _of_heads(runs, located=kind == "locate")
    raise ValueError(
        f"runs of {kind} have nothing that compare lays side by side; it takes runs of locate and of accuracy"
    )


def _kind(kept: Any) -> str:
    """What a run is of, as `mless-interp` calls it."""
    from . import COMMANDS

    name = next((command for command, file in COMMANDS.items() if file == kept.run["analysis"]), kept.run["analysis"])
    return "sweep" if kept.run.get("mode") == "sweep" else name


def _names(folders: Sequence[Path]) -> list[str]:
    """What runs are called: the last part of their folders' names that tells all of them, and tables' own columns, apart."""
    parts = [Path(os.path.realpath(folder)).parts for folder in folders]
    for length in range(1, 1 + max(map(len, parts))):
        names = [Path(*part[-length:]).as_posix() for part in parts]
        if len({*names, *COLUMNS}) == len(names) + len(COLUMNS):
            break
    return names


def _same(runs: dict[str, Any], what: str) -> None:
    """`ValueError` where a setting differs that makes numbers incomparable."""
    values = {name: kept.options.get(what) or DEFAULTS.get(what) for name, kept in runs.items()}
    if len(set(values.values())) > 1:
        told = ", ".join(f"{name} has {value}" for name, value in values.items())
        raise ValueError(f"these runs cannot be compared, they differ in --{what.replace('_', '-')}: {told}")


def _facts(name: str, kept: Any, found: Any) -> dict[str, Any]:
    from .answers import model_name

    return {
        "run": name,
        "model": model_name(kept.run["model"]["name"]),
        "insertion": found.settings.get("insertion"),
    }


def _of_heads(runs: dict[str, Any], *, located: bool) -> Compared:
    """The total effects, and every head that any run names."""
    import pandas as pd

    for what in ("outcome", "contrast", *(() if located else ("direction", "edit"))):
        _same(runs, what)
    results = {name: kept.results["LocatedHeads" if located else "PatchScores"] for name, kept in runs.items()}
    rows, named = [], {}
    verdicts = {name: _verdicts(found, located) for name, found in results.items()}
    for name, found in results.items():
        total = found.total if located else found.total_effect
        middle = found.total_interval if located else found.median_total
        sign = 1 if float(middle.estimate) >= 0 else -1
        named[name] = {label for label, told in verdicts[name].items() if told[1]}
        rows.append(
            _facts(name, runs[name], found)
            | {
                "median_total": float(middle.estimate),
                "median_total_ci_low": float(middle.low),
                "median_total_ci_high": float(middle.high),
                "of_this_sign": int((sign * total > 0).sum()),
                "n": len(total),
                "named": len(named[name]),
                "of_heads": len(found.heads),
                "confirmed": ", ".join(map(str, found.confirmed))
                if located and found.confirmation is not None
                else None,
            }
        )
    table = pd.DataFrame(rows).dropna(axis=1, how="all")
    union = sorted(set().union(*named.values()), key=_place)
    columns: dict[str, Any] = {"head": union}
    for name, told in verdicts.items():
        columns[name] = [told[label][0] if label in told else "not tested" for label in union]
    columns["named in"] = [sum(label in labels for labels in named.values()) for label in union]
    heads = pd.DataFrame(columns)
    heads = heads.sort_values("named in", ascending=False, kind="stable")
    unit = next(iter(results.values())).unit
    tables = {f"Total effect by run ({unit}).": table}
    every = sorted(set.intersection(*named.values()), key=_place)
    if union:
        tables[
            "Heads that any run names, with how many problems show it. Heads of two models share only their place."
        ] = heads
        answer = f"{', '.join(every)} {'is' if len(every) == 1 else 'are'} named" if every else "No head is named"
        answer += f" in {'both runs' if len(runs) == 2 else f'all {len(runs)} runs'} ({len(union)} in any)"
    else:
        answer = f"None of {count_of(len(runs), 'run')} names a head"
    totals = "; ".join(f"{row['run']} {_limits(row)}" for row in rows)
    return Compared(
        f"{answer}; median total effect in {unit}: {totals}.",
        tables,
        _forest(table, TOTAL, f"median total effect ({unit})"),
    )


def _limits(row: dict[str, Any]) -> str:
    middle, low, high = (row[each] for each in TOTAL)
    return f"{middle:+.4f}" + ("" if low != low else f" [{low:+.4f}, {high:+.4f}]")


def _verdicts(found: Any, located: bool) -> dict[str, tuple[str, bool]]:
    """label -> the verdict with its count of problems, and whether the head is named."""
    told = {}
    table = found.summary()
    for row in table.to_dict("records"):
        if located:
            from ..locating.judge import KINDS, NAMED

            named = row["kind"] in NAMED
            side = "added" if named and KINDS[row["kind"]].side == "added" else "removed"
            sure = {True: ", confirmed", False: ", not confirmed"}.get(found.confirmed_or_unknown(row["label"]), "")
            words = f"{row['kind']}, {int(row[f'{side}_count'])} of {int(row['n'])}{sure}"
        else:
            named = bool(row["p_prevalence"] < found.alpha)
            words = f"{'more than the smallest effect' if named else 'undecided'}, {int(row['k'])} of {int(row['n'])}"
        told[row["label"]] = (words, named)
    return told


def _place(label: str) -> tuple[int, int]:
    from ..heads import Head

    head = Head.parse(label)
    return head.layer, head.head


def _of_answers(runs: dict[str, Any]) -> Compared:
    """The share of right answers under each treatment of every run."""
    import pandas as pd

    results = {name: kept.results["AccuracyResults"] for name, kept in runs.items()}
    parts = []
    for name, found in results.items():
        table = found.summary()[["treatment", "accuracy", "low", "high", "n"]]
        if len(found.treatments) > 1:
            other = found.compare_all().summary()
            gaps = other.set_index("second")[["difference", "low", "high", "p_holm"]]
            gaps.columns = ["difference", "difference_ci_low", "difference_ci_high", "p_holm"]
            table = table.join(gaps, on="treatment")
        facts = _facts(name, runs[name], found)
        del facts["insertion"]
        parts.append(table.assign(**facts))
    table = pd.concat(parts, ignore_index=True)
    lead = ["run", "treatment", "accuracy", "low", "high", "n"]
    table = table[[*lead, *(name for name in table if name not in lead)]]
    first = table.groupby("run", sort=False).first()
    told = "; ".join(
        f"{name} {100 * row['accuracy']:.1f} % under {row['treatment']!r}" for name, row in first.iterrows()
    )
    changed = table[table["p_holm"] < 0.05] if "p_holm" in table else table.head(0)
    moves = "; ".join(
        f"{row['run']}, {row['treatment']!r} {100 * row['difference']:+.1f} points [{100 * row['difference_ci_low']:+.1f}, "
        f"{100 * row['difference_ci_high']:+.1f}]"
        for row in changed.to_dict("records")
    )
    answer = f"Right answers: {told}; " + (
        f"established differences within a run: {moves}." if moves else "no treatment is shown to differ within a run."
    )
    drawn = table.assign(run=table["run"] + ", " + table["treatment"])
    tables = {"Right answers by run and treatment; differences are against the run's first treatment.": table}
    return Compared(answer, tables, _forest(drawn, ("accuracy", "low", "high"), "share of right answers"))


def _forest(table: Any, estimate: tuple[str, str, str], label: str) -> Any:
    """Estimates (columns: the value and its two limits) with their 95 % intervals, a row per run."""
    from ..views.plots import draw_forest, panel

    rows = [f"{row['run']} (n = {row['n']})" for row in table.to_dict("records")]
    picture, axes = panel(7.2, 1.2 + 0.33 * len(rows))
    limits = (table[each] for each in estimate)
    draw_forest(axes, rows, [(label, *limits, {"fmt": "o", "color": "#0b5cad"})])
    axes.set_xlabel(f"{label}, 95 % intervals over the problems of each run", fontsize=8)
    return picture


def _page(found: Compared, folders: Sequence[Path]) -> Any:
    from ..running.store import provenance
    from ..views.report import Report

    question = f"What do the runs in {', '.join(map(str, folders))} say beside each other?"
    page = Report("Runs compared", question=question, answer=found.answer).heading("Side by side")
    page = page.figure(found.picture, "Each run with its 95 % interval over its own problems.")
    tables = [*found.tables.items(), *[(DIFFER, found.differ)] * (not found.differ.empty)]
    for caption, table in tables:
        own = {name: "" if name in COLUMNS else name for name in table.columns}  # a run's name as it is
        page = page.table(table, caption, columns=own)
    page = page.sentence("Each run is judged by its own problems; no test is made between runs.")
    return page.provenance(
        provenance(None, repeat=repeat_command(), analysis="compare", folders=[str(f) for f in folders])
    )
