"""What `mediate` gives: every arm's readings per problem, effects with intervals, words."""

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..running.results import Result
from ..statistics import CONFIDENCE, max_t_sign_flip, mean_interval

EDITED = ("reference", "scale", "bias", "both", "patched")
"""The edited run with z, lambda z, z + Sigma, lambda z + Sigma, z'."""
ARMS = ("without", "with", *EDITED)
"""Both unedited runs, and the edited ones."""
READINGS = {
    "near_zero_arm": "share of gate activations near zero (ARM's form)",
    "near_zero_quantile": "share of gate activations near zero (quantile form)",
    "mean": "mean gate activation",
    "mean_absolute": "mean absolute gate activation",
    "variance": "variance over tokens, median over neurons",
}
EFFECTS = ("scale", "bias", "both", "interaction", "rest", "total")


@dataclass(frozen=True, eq=False)
class Mediation(Result):
    """Readings per problem, reading and arm: `values` `[problem, reading, arm]`.

    `readings` are numbers of the layer's gate activations and the "outcome"; `arms` are named in `ARMS`. `effect` gives,
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

    def of(self, reading: str, arm: str) -> np.ndarray:
        """One reading of one arm, `[problem]`."""
        for given, known, what in ((reading, self.readings, "reading"), (arm, self.arms, "arm")):
            if given not in known:
                raise ValueError(f"no {what} {given!r} here; there are {', '.join(known)}")
        return self.values[:, self.readings.index(reading), self.arms.index(arm)]

    def effect(self, reading: str, effect: str) -> np.ndarray:
        """One effect on one reading, `[problem]`.

        "scale", "bias", "both": that arm minus "reference"; "interaction": both - scale - bias; "rest": patched - both;
        "total": the run with the span minus the one without.
        """
        if effect not in EFFECTS:
            raise ValueError(f"unknown effect {effect!r}; choose one of {', '.join(EFFECTS)}")
        arm = lambda name: self.of(reading, name)  # noqa: E731
        if effect == "total":
            return arm("with") - arm("without")
        if effect == "rest":
            return arm("patched") - arm("both")
        if effect == "interaction":
            return arm("both") - arm("scale") - arm("bias") + arm("reference")
        return arm(effect) - arm("reference")

    def summary(self) -> Any:
        """One row per reading and effect: mean over problems with its interval, d_z, p corrected over all rows, n.

        `before` is the reading's mean without the span. p is NaN where nothing varies or there is a single problem.
        """
        import pandas as pd

        keys = [(reading, effect) for reading in self.readings for effect in EFFECTS]
        cells = np.stack([self.effect(*key) for key in keys], 1)
        noise = 1e-5 * np.abs(np.nanmean(np.stack([self.of(key[0], "without") for key in keys], 1), 0))
        # an exact 0, up to rounding, is no effect to test, nor is one that is the same in every problem
        real = (np.abs(cells).max(0) > noise) & (np.ptp(cells, 0) > 0)
        made = mean_interval(cells, confidence=self.confidence, seed=self.seed)
        corrected = np.full(len(keys), np.nan)
        if len(cells) > 1 and real.any():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # how small a p-value can get is known from n
                corrected = max_t_sign_flip(cells, tested=real, seed=self.seed).p_corrected
        return pd.DataFrame(
            {
                "reading": [reading for reading, _ in keys],
                "effect": [effect for _, effect in keys],
                "before": [float(self.of(reading, "without").mean()) for reading, _ in keys],
                "mean": made.estimate,
                "ci_low": made.low,
                "ci_high": made.high,
                "p_corrected": corrected,
                "n": made.n,
                "unit": [self._unit(reading) for reading, _ in keys],
            }
        )

    def to_frame(self) -> Any:
        """One tidy row per problem, reading and arm."""
        import pandas as pd

        grid = np.indices(self.values.shape).reshape(3, -1)
        return pd.DataFrame(
            {
                "problem": np.array(self.problem_ids)[grid[0]],
                "reading": np.array(self.readings)[grid[1]],
                "arm": np.array(self.arms)[grid[2]],
                "value": self.values.ravel(),
            }
        )

    def describe(self) -> str:
        """What scale and bias do to near-zero activations and to the outcome, and whether they add up."""
        s = self.settings
        heads = "all heads" if s.get("all_heads") else ", ".join(s.get("heads", []))
        words = (
            f"Mediation through {heads} of layer {s.get('layer')} (zero-based), {s.get('insertion')}, contrast "
            f"{s.get('contrast')!r}, {s.get('direction')}, {len(self.problem_ids)} problems."
        )
        table = self.summary().set_index(["reading", "effect"])
        for reading, name in (("near_zero_arm", "Near-zero share"), ("outcome", f"Outcome {s.get('outcome')}")):
            row = table.loc[reading]
            shown = [f"{effect} {_with_interval(row.loc[effect])}" for effect in ("scale", "bias", "both")]
            words += f" {name} ({row['before'].iloc[0]:.4f} without the span): {'; '.join(shown)}"
            apart = row.loc["interaction"]
            if apart["ci_low"] * apart["ci_high"] > 0:
                words += f"; they do not add up (interaction {_with_interval(apart)})."
            else:
                words += f"; no interaction is shown ({_with_interval(apart)})."
        if s.get("layer"):
            words += " In this layer z' is not lambda z + Sigma: what upstream layers changed is the 'rest', not scale or bias."
        if len(self.problem_ids) < 2:
            words += " A single problem has no interval."
        return words

    def __repr__(self) -> str:
        import pandas as pd

        rows = []
        for reading, table in self.summary().groupby("reading", sort=False):
            cells = {row["effect"]: _with_interval(row) for row in table.to_dict("records")}
            rows.append({"reading": reading, "before": f"{table['before'].iloc[0]:.4f}"} | cells)
        shown = pd.DataFrame(rows).drop(columns=[] if self.settings.get("layer") else ["rest"])
        return f"{self.describe()}\n{shown.to_string(index=False)}"

    def _unit(self, reading: str) -> str:
        if reading == "outcome":
            return self.unit
        if reading.startswith("near_zero"):
            return "share"
        return "activation squared" if reading == "variance" else "activation"


def _with_interval(row: Any) -> str:
    """The mean with its interval; alone where there is none (a single problem)."""
    mean, low, high = (float(row[name]) for name in ("mean", "ci_low", "ci_high"))
    return f"{mean:+.4f}" if np.isnan([low, high]).any() else f"{mean:+.4f} [{low:+.4f}, {high:+.4f}]"
