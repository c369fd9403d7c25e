"""`compare_runs`: results of one kind beside each other: of several models, insertions or lengths."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..answers import AccuracyResults
from ..circuits.judge import KINDS, NAMED
from ..circuits.located import LocatedHeads
from ..core.arguments import checked
from ..core.heads import Head
from ..patching.sweep import PatchScores
from ..runtime.columns import columns_of
from ..runtime.results import Result, Shown, ShownTable, interval_columns, limits_of

SAME = ("outcome", "contrast", "direction", "edit")
"""Settings in which runs must agree, or their numbers cannot be compared."""


@dataclass(frozen=True, eq=False, repr=False)
class RunsCompared(Result):
    """Hold results by the names of their runs, all of one kind. Each run is judged by its own problems; no test is made between
    runs."""

    results: dict[str, Any]

    columns = columns_of("""
        of_this_sign | problems of its sign | of n | problems whose effect has the sign of the median
        named | heads named | of of_heads | heads that passed on these problems
        run | run | | the folder of the run
        of_heads | of heads | | heads that were tested
    """)

    def table(self) -> pd.DataFrame:
        """Return, of heads, one row per run: the median total effect with limits, in how many of `n` problems it has this sign,
        how many heads are named, and which are confirmed. Of answers one row per run and treatment, differences from the first
        one."""
        rows, tables = [], []
        for run, found in self.results.items():
            if isinstance(found, AccuracyResults):
                answers = found.printed().drop(columns=["gained", "lost"], errors="ignore")
                tables.append(answers)
                answers.insert(0, "run", run)
                continue
            located = isinstance(found, LocatedHeads)
            total = found.total if located else found.total_effect
            middle = (found.judged.effect if located else found.whole).median
            sign = 1 if float(middle.estimate) >= 0 else -1
            row = {"run": run, "insertion": found.settings.get("insertion")}
            row |= {name: float(end) for name, end in interval_columns("total", middle).items()}
            row |= {"of_this_sign": int((sign * total > 0).sum()), "n": len(total)}
            row |= {"named": sum(named for _, named in _verdicts(found).values()), "of_heads": len(found.heads)}
            if located and found.confirmation is not None:
                row["confirmed"] = ", ".join(map(str, found.confirmed))
            rows.append(row)
        if tables:
            return pd.concat(tables, ignore_index=True)
        return pd.DataFrame(rows).dropna(axis=1, how="all")

    def heads(self) -> pd.DataFrame:
        """Return one row per head that any run names: its verdict and count of problems in each, and how many name it."""
        found = {run: _verdicts(each) for run, each in self.results.items() if not isinstance(each, AccuracyResults)}
        if not found:
            return pd.DataFrame()
        named = {label for told in found.values() for label, (_, sure) in told.items() if sure}
        union = [str(head) for head in sorted(map(Head.parse, named))]
        columns = {run: [told.get(label, ("not tested",))[0] for label in union] for run, told in found.items()}
        times = [sum(told.get(label, ("", False))[1] for told in found.values()) for label in union]
        table = pd.DataFrame({"head": union, **columns, "named in": times})
        return table.sort_values("named in", ascending=False, kind="stable", ignore_index=True)

    def to_frame(self) -> pd.DataFrame:
        return pd.concat([found.to_frame().assign(run=run) for run, found in self.results.items()], ignore_index=True)

    def headline(self) -> str:
        """Return what the runs have in common."""
        rows, heads, n = self.table().to_dict("records"), self.heads(), len(self.results)
        if "treatment" in rows[0]:
            first = {row["run"]: row for row in reversed(rows)}
            right = [f"{run} {100 * row['accuracy']:.1f} % under {row['treatment']!r}" for run, row in first.items()]
            moves = [
                f"{row['run']}, {row['treatment']!r} {100 * row['difference']:+.1f} points"
                for row in rows
                if row.get("p_corrected", 1) < 1 - self.results[row["run"]].confidence
            ]
            moved = (
                f"established within a run: {'; '.join(moves)}"
                if moves
                else "no treatment is shown to differ within a run"
            )
            return f"Right answers: {'; '.join(right[::-1])}; {moved}."
        every = heads.loc[heads["named in"] == n, "head"].tolist()
        answer = f"{', '.join(every)} {'is' if len(every) == 1 else 'are'} named" if every else "No head is named"
        answer += f" in {'both runs' if n == 2 else f'all {n} runs'} ({len(heads)} in any)"
        totals = (
            f"{row['run']} {row['total']:+.4f}{limits_of(row.get('total_ci_low', np.nan), row.get('total_ci_high', np.nan))}"
            for row in rows  # of few problems there are no limits
        )
        unit = next(iter(self.results.values())).unit
        return f"{answer}; median total effect in {unit}: {'; '.join(totals)}."

    def details(self) -> list[str]:
        ids = [set(found.problem_ids) for found in self.results.values()]
        common, every = set.intersection(*ids), set.union(*ids)
        some = [f"The runs share {len(common)} of {len(every)} problems (by id)."] if common != every else []
        return [*some, "Each run is judged by its own problems; no test is made between runs."]

    def shown(self) -> Shown:
        heads, tables = self.heads(), [ShownTable(self.table(), "Each run, with 95 % intervals over its own problems.")]
        if not heads.empty:
            own = {name: "" if name in ("head", "named in") else name for name in heads.columns}
            tables.append(ShownTable(heads, "Heads that any run names, with how many problems show it.", own))
        return Shown(tuple(tables))


@checked
def compare_runs(runs: Mapping[str, object]) -> RunsCompared:
    """Compare results of one kind: `compare_runs({"a": mi.load("results/a"), "b": mi.load("results/b")})`.

    Each run is `LocatedHeads`, `PatchScores` or `AccuracyResults`, or what `mi.load` gives of a folder that has one.
    `ValueError` for fewer than two, for different kinds, and where outcome, contrast, direction or edit differ.
    """
    results: dict[str, Any] = {}
    for name, run in runs.items():
        every = list(run.values()) if isinstance(run, Mapping) else [run]
        kinds = (LocatedHeads, PatchScores, AccuracyResults)
        found = [each for kind in kinds for each in every if isinstance(each, kind)]
        if not found:
            raise ValueError(f"{name}: only runs of locate and of accuracy can be compared")
        results[name] = found[0]
    if len(results) < 2:
        raise ValueError("give two or more runs")
    for what in ("analysis", *SAME):
        values = {
            name: type(found).__name__ if what == "analysis" else found.settings.get(what)
            for name, found in results.items()
        }
        if len(set(values.values())) > 1:
            told = ", ".join(f"{name} has {value}" for name, value in values.items())
            raise ValueError(f"these runs cannot be compared, they differ in {what}: {told}")
    return RunsCompared(results)


def _verdicts(found: LocatedHeads | PatchScores) -> dict[str, tuple[str, bool]]:
    """Return, by label, the verdict with its count of problems, and whether the head is named."""
    told = {}
    for row in found.table().to_dict("records"):
        if isinstance(found, LocatedHeads):
            named, words = row["kind"] in NAMED, row["kind"]
            count = row["added_k" if named and KINDS[words].side == "added" else "removed_k"]
            again = found.confirmed_or_unknown(row["label"])
            sure = "" if again is None else ", confirmed" if again else ", not confirmed"
        else:
            named, sure, count = bool(row["p_corrected"] < found.level), "", row["k"]
            words = "more than the smallest effect" if named else "undecided"
        told[row["label"]] = (words + ("" if np.isnan(count) else f", {int(count)} of {int(row['n'])}") + sure, named)
    return told
