"""`compare_runs`: results of one kind beside each other: of several models, insertions or lengths."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..answers import AccuracyResults
from ..circuits.judge import KINDS, NAMED
from ..circuits.located import LocatedHeads, in_words
from ..core.arguments import checked, listed
from ..core.heads import Head
from ..patching.sweep import PatchScores
from ..runtime.base_result import Result, interval_columns, limits_of
from ..runtime.columns import columns_of

SAME = ("outcome", "contrast", "direction", "edit")  # settings in which runs must agree, or numbers cannot be compared
TOLD = ("model", "dtype", "positions", *"template max_new_tokens temperature top_p n_samples stop_after_box".split())
"""Settings in which they may differ, which is said."""
COMPARED = (LocatedHeads, PatchScores, AccuracyResults)
AGAIN = {True: ", confirmed", False: ", not confirmed", None: ""}


@dataclass(frozen=True, eq=False, repr=False)
class RunsCompared(Result):
    """Hold results of one kind by the names of their runs; no test is made between runs."""

    results: dict[str, Any]

    columns = (
        columns_of("""
        of_this_sign | problems of its sign | of n | problems whose effect has the sign of the median
        named | heads named | of of_heads | heads that passed on these problems
        run | run | | the folder of the run
        of_heads | of heads | | heads that were tested
        insertion | insertion | | its name
        confirmed | confirmed | verdict | heads that pass again on fresh problems
    """)
        + AccuracyResults.columns
    )

    @property
    def of_answers(self) -> bool:
        return isinstance(next(iter(self.results.values())), AccuracyResults)

    def table(self) -> pd.DataFrame:
        """Return, of heads, one row per run: the median total effect with limits, in how many of `n` problems it has this sign,
        how many heads are named, and which are confirmed. Of answers one row per run and treatment."""
        if self.of_answers:
            of_runs = pd.concat({run: found.printed() for run, found in self.results.items()}, names=["run"])
            return of_runs.drop(columns=["gained", "lost"], errors="ignore").reset_index("run").reset_index(drop=True)
        rows = []
        for run, found in self.results.items():
            located = isinstance(found, LocatedHeads)
            effect = found.judged.effect if located else found.whole
            row = {"run": run, "insertion": found.settings.get("insertion")}
            row |= {name: float(end) for name, end in interval_columns("total", effect.median).items()}
            row |= {"of_this_sign": effect.of_this_sign, "n": effect.n}
            row |= {"named": int(_verdicts(found)["named"].sum()), "of_heads": len(found.heads)}
            if located and found.confirmation is not None:
                row["confirmed"] = ", ".join(map(str, found.confirmed))
            rows.append(row)
        return pd.DataFrame(rows).dropna(axis=1, how="all")

    def heads(self) -> pd.DataFrame:
        """Return one row per head that any run names: its verdict and count of problems in each, and how many name it."""
        if self.of_answers:
            return pd.DataFrame()
        told = {run: _verdicts(found) for run, found in self.results.items()}
        times = pd.concat([each["named"] for each in told.values()]).groupby(level=0).sum()
        verdicts = pd.DataFrame({run: each["verdict"] for run, each in told.items()}).fillna("not tested")
        order = sorted(times.index[times > 0], key=lambda label: (-times[label], Head.parse(label)))
        return verdicts.assign(**{"named in": times}).loc[order].rename_axis("head").reset_index()

    def to_frame(self) -> pd.DataFrame:
        return pd.concat([found.to_frame().assign(run=run) for run, found in self.results.items()], ignore_index=True)

    def headline(self) -> str:
        table, heads, n = self.table(), self.heads(), len(self.results)
        rows = table.drop_duplicates("run").to_dict("records")
        if self.of_answers:
            right = (f"{row['run']} {100 * row['accuracy']:.1f} % under {row['treatment']!r}" for row in rows)
            return f"Right answers: {'; '.join(right)}."
        every = heads.loc[heads["named in"] == n, "head"].tolist()
        answer = f"{', '.join(every)} {'is' if len(every) == 1 else 'are'} named" if every else "No head is named"
        answer += f" in {'both runs' if n == 2 else f'all {n} runs'} ({len(heads)} in any)"
        totals = (  # of few problems there are no limits
            f"{row['run']} {row['total']:+.4f}{limits_of(row.get('total_ci_low', np.nan), row.get('total_ci_high', np.nan))}"
            for row in rows
        )
        unit = next(iter(self.results.values())).unit
        return f"{answer}; median total effect in {unit}: {'; '.join(totals)}."

    def rest(self) -> str:
        of_runs = {name: [str(found.settings.get(name)) for found in self.results.values()] for name in TOLD}
        made = [found.settings.get("treatments", {}) for found in self.results.values()]
        for name in sorted(set.intersection(*map(set, made))):
            inserted = [each[name]["insertion"] or {} for each in made]
            for key in dict.fromkeys(key for each in inserted for key in each):
                values = [repr(each.get(key)) for each in inserted]
                if len(set(values)) > 1:  # told once, of several treatments with that insertion
                    of_runs.setdefault(key, values)
        told = [f"{name} ({', '.join(each)})" for name, each in of_runs.items() if len(set(each)) > 1]
        return f"The runs differ in {listed(told)}." * bool(told)

    def caveats(self) -> list[str]:
        ids = [set(found.problem_ids) for found in self.results.values()]
        common, every = set.intersection(*ids), set.union(*ids)
        some = [f"The runs share {len(common)} of {len(every)} problems (by id)."] if common != every else []
        if not some and len({str(found.settings.get("problems")) for found in self.results.values()}) > 1:
            some = ["The runs' problems differ, though their ids are the same."]
        return [*some, *(f"{run}: {each}" for run, found in self.results.items() for each in found.caveats()[:1])]

    def details(self) -> list[str]:
        return ["Each run is judged by its own problems; no test is made between runs."]


@checked
def compare_runs(runs: Mapping[str, object]) -> RunsCompared:
    """Compare results of one kind: `compare_runs({"a": mi.load("results/a"), "b": mi.load("results/b")})`.

    Each run is `LocatedHeads`, `PatchScores` or `AccuracyResults`, or what `mi.load` gives of a folder that has one.
    `ValueError` for fewer than two, for different kinds, and where outcome, contrast, direction or edit differ.
    """
    results: dict[str, Any] = {}
    for name, run in runs.items():
        every = list(run.values()) if isinstance(run, Mapping) else [run]
        found = [each for kind in COMPARED for each in every if isinstance(each, kind)]
        if not found:
            kinds = ", ".join(type(each).__name__ for each in every)
            raise ValueError(f"{name}: expected a run of locate, sweep or accuracy, got {kinds}")
        results[name] = found[0]
    if len(results) < 2 or {"head", "named in"} & set(results):
        raise ValueError(
            'give two or more runs; none can be called "head" or "named in", which are columns of their table'
        )
    alike = [{"analysis": type(found).__name__, **found.settings} for found in results.values()]
    for what in ("analysis", *SAME):
        if len({settings.get(what) for settings in alike}) > 1:
            told = ", ".join(f"{name} has {settings.get(what)}" for name, settings in zip(results, alike, strict=True))
            raise ValueError(f"these runs cannot be compared, they differ in {what}: {told}")
    return RunsCompared(results)


def _verdicts(found: LocatedHeads | PatchScores) -> pd.DataFrame:
    table = found.table().set_index("label")
    if isinstance(found, LocatedHeads):
        words, named = in_words(table, "kind"), table["kind"].isin(NAMED)
        again = map(found.confirmed_or_unknown, table.index)
        added = table["kind"].map(lambda kind: KINDS[kind].side == "added")
        counts, sure = table["removed_k"].mask(added, table["added_k"]), [AGAIN[each] for each in again]
    else:
        named = table["p_corrected"] < found.level
        words = named.map({True: "more than the smallest effect", False: "undecided"})
        counts, sure = table["k"], [""] * len(table)
    of = ["" if np.isnan(k) else f", {k:.0f} of {n:.0f}" for k, n in zip(counts, table["n"], strict=True)]
    return pd.DataFrame({"verdict": words + of + sure, "named": named})
