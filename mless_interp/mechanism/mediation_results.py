"""What `mediate` gives: every arm's readings per problem, effects with intervals, words."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from ..core.arguments import count_of
from ..models.sites import extension_of
from ..runtime.columns import columns_of
from ..runtime.results import Result, Shown, ShownTable, interval_columns, limits_of, place_of, tidy
from ..statistics import CONFIDENCE, defined_mean, holm, median_interval, sign_test

EDITED = ("reference", "scale", "bias", "both", "patched")
"""The edited run with z, lambda z, z + Sigma, lambda z + Sigma, z'."""
ARMS = ("without", "with", *EDITED)
"""Both unedited runs, and the edited ones."""
READINGS = {
    "near_zero_arm": ("share", "share of MLP activations near zero (ARM's form)"),
    "near_zero_quantile": ("share", "share of MLP activations near zero (quantile form)"),
    "mean": ("activation", "mean MLP activation"),
    "mean_absolute": ("activation", "mean absolute MLP activation"),
    "variance": ("activation squared", "variance over tokens, median over neurons"),
}
"""reading -> (unit, what it is)."""
EFFECTS: dict[str, dict[str, int]] = {
    "scale": {"scale": 1, "reference": -1},
    "bias": {"bias": 1, "reference": -1},
    "both": {"both": 1, "reference": -1},
    "interaction": {"both": 1, "scale": -1, "bias": -1, "reference": 1},
    "rest": {"patched": 1, "both": -1},
    "total": {"with": 1, "without": -1},
}
"""Effect -> the arms that it adds and takes away."""


@dataclass(frozen=True, eq=False, repr=False)
class Mediation(Result):
    """Readings per problem, reading and arm: `values` `[problem, reading, arm]`.

    `readings` are numbers of the layer's MLP activations and the "outcome"; `arms` are named in `ARMS`. `effect` gives,
    per problem, what scale and bias alone and together do.
    """

    problem_ids: tuple[str, ...]
    readings: tuple[str, ...]
    arms: tuple[str, ...]
    values: np.ndarray
    unit: str
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    confidence: float = CONFIDENCE

    picture = "mediation"
    columns = columns_of("""
        reading | reading | | what is read: the outcome, or a metric of the gate activations
        part | part | | scale, bias, both, interaction (both - scale - bias), rest, or total
        mean | mean change | | mean over problems
    """)
    axes = (("values", "problem reading arm"),)

    def of(self, reading: str, arm: str) -> np.ndarray:
        """One reading of one arm, `[problem]`."""
        return self.values[:, place_of(reading, self.readings, "reading"), place_of(arm, self.arms, "arm")]

    def effect(self, reading: str, effect: str) -> np.ndarray:
        """One effect of `EFFECTS` on one reading, `[problem]`; "scale", "bias", "both": that arm minus "reference"."""
        place_of(effect, EFFECTS, "effect")
        return np.sum([sign * self.of(reading, arm) for arm, sign in EFFECTS[effect].items()], 0)

    def table(self) -> pd.DataFrame:
        """One row per reading and effect.

        The median over problems with its interval, the mean (a description), `n_up` and `n_down` of `n` problems that rose and
        fell, and `p_corrected`: the exact sign test of that, Holm over the effects on a reading. `before` is the reading's mean
        without the span. Changes within rounding count as none; p is NaN where there is no other, and of a single problem.
        """
        keys = [(reading, effect) for reading in self.readings for effect in EFFECTS]
        cells = self.by_group(np.stack([self.effect(*key) for key in keys], 1))
        noise = 1e-5 * np.abs(np.nanmean(np.stack([self.of(key[0], "without") for key in keys], 1), 0))
        made = median_interval(cells, confidence=self.confidence)
        moved = np.where(np.abs(cells) > noise, cells, np.where(np.isnan(cells), np.nan, 0.0))
        tested = (moved != 0).any(0) & (len(cells) > 1)
        p = np.where(tested, sign_test(moved), np.nan).reshape(len(self.readings), len(EFFECTS))
        p = np.concatenate([holm(family) for family in p])
        return pd.DataFrame(
            {
                "reading": [reading for reading, _ in keys],
                "effect": [effect for _, effect in keys],
                "before": [float(self.by_group(self.of(reading, "without")).mean()) for reading, _ in keys],
                **interval_columns("median", made),
                "mean": defined_mean(cells),
                "n_up": (moved > 0).sum(0),
                "n_down": (moved < 0).sum(0),
                "p_corrected": p,
                "n": made.n,
                "unit": [self.unit if reading == "outcome" else READINGS[reading][0] for reading, _ in keys],
            }
        )

    def to_frame(self) -> pd.DataFrame:
        """One tidy row per problem, reading and arm."""
        axes = {"problem": self.problem_ids, "reading": self.readings, "arm": self.arms}
        return tidy(axes, value=self.values)

    def headline(self) -> str:
        """Return what the scale and the bias of attention's output do to the outcome, or to the first reading."""
        s, rows = self.settings, self.table().set_index(["reading", "effect"])
        reading = "outcome" if "outcome" in self.readings else self.readings[0]
        what = s.get("outcome") if reading == "outcome" else reading.replace("_", " ")
        here = {name: rows.loc[(reading, name)] for name in ("scale", "bias", "both")}
        told = [f"its {name} alone by {_with_interval(row)}" for name, row in list(here.items())[:2]]
        sure = [name for name, row in here.items() if row["p_corrected"] < 1 - self.confidence]
        return (
            f"Through layer {s.get('layer')} {s.get('insertion')} changes {what} by {_with_interval(here['both'])} "
            f"{here['both']['unit']}, {', '.join(told)} (medians over {count_of(len(self.problem_ids), 'problem')}); shown in "
            f"most problems: {', '.join(sure) or 'none of these'}."
        )

    def details(self) -> list[str]:
        """Return what was edited, whether scale and bias add up, and what these edits cannot show."""
        s = self.settings
        heads = "all heads" if s.get("all_heads") else ", ".join(s.get("heads", []))
        found = [
            f"Mediation through {heads} of layer {s.get('layer')} (zero-based), {s.get('insertion')}, contrast "
            f"{s.get('contrast')!r}, {s.get('direction')}, {count_of(len(self.problem_ids), 'problem')}."
        ]
        found += extension_of(s)
        table = self.table()
        for row in table.query("effect == 'interaction'").to_dict("records"):
            if row["p_corrected"] < 1 - self.confidence:
                found.append(f"Scale and bias of {row['reading']} do not add up (interaction {_with_interval(row)}).")
        edits = table.query("reading != 'outcome' and effect in ['scale', 'bias', 'both']")
        if len(edits) and not edits[["n_up", "n_down"]].any(axis=None):
            found.append(
                "No edit of attention moves this layer's activations beyond rounding: where attention and MLP read the same "
                "input (GPT-J, GPT-NeoX, Falcon, Phi-2), none can."
            )
        return found

    def printed(self) -> pd.DataFrame:
        """Return every effect on the outcome, or on the first reading."""
        first = "outcome" if "outcome" in self.readings else self.readings[0]
        columns = ["effect", "median", "median_ci_low", "median_ci_high", "n_up", "n_down", "n", "p_corrected"]
        table = self.table()
        kept = (table["reading"] == first) & ((table["effect"] != "rest") | bool(self.settings.get("layer")))
        return table.loc[kept, columns].rename(columns={"effect": "part"})

    def shown(self) -> Shown:
        """Every effect on every reading."""
        table = self.table()
        caption = (
            "Change of each reading when attention's outputs get only their scale, only their bias, or both; interaction "
            "is both minus their sum, total the change by the insertion itself."
        )
        named = dict.fromkeys(table.columns, "") | {"effect": "part", "median": "change", "before": "without the span"}
        return Shown((ShownTable(table, caption, named),))


def _with_interval(row: Any) -> str:
    """The median with its interval; alone where there is none (few problems)."""
    return f"{row['median']:+.4f}{limits_of(row['median_ci_low'], row['median_ci_high'])}"
