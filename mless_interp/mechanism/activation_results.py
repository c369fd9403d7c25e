"""`ActivationShift`: what an insertion did to one layer's MLP activations, per problem, contrast and token class."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from ..core.arguments import count_of
from ..models.sites import extension_of
from ..runtime.columns import columns_of
from ..runtime.results import Result, Shown, ShownTable, place_of, tidy
from ..statistics import CONFIDENCE, Interval, benjamini_hochberg, defined_mean, holm, mcnemar, mean_interval
from .activation_summaries import DISTANCES, VALUES

CLAIMS: dict[str, tuple[str, int]] = {
    "variance rises": ("variance", 1),
    "near-zero share falls": ("near_zero_arm", -1),
    "mean rises": ("mean", 1),
}
"""The paper's three claims: metric and direction."""
SAME = 1e-6
"""Differences smaller than this part of the values are rounding and count as ties."""
UNITS = VALUES | DISTANCES
"""Metric -> unit."""


@dataclass(frozen=True, eq=False, repr=False)
class ActivationShift(Result):
    """Metrics of one layer's MLP activations `[problem, contrast, token_group, metric]` in the runs before and after.

    `token_groups` are all tokens and each token class; NaN where a problem has no token of a class (variance: fewer than two).
    Distances have a `difference` only. `thresholds` `[problem, 2]`: near zero in ARM's and in the quantile form.
    `counts` `[contrast, token_group, before/after, bin]` are histograms over all problems with `edges`.
    """

    problem_ids: tuple[str, ...]
    layer: int
    contrasts: tuple[str, ...]
    token_groups: tuple[str, ...]
    metrics: tuple[str, ...]
    before: np.ndarray
    after: np.ndarray
    difference: np.ndarray
    n_tokens: np.ndarray
    thresholds: np.ndarray
    edges: np.ndarray
    counts: np.ndarray
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    confidence: float = CONFIDENCE

    picture = "activation_histograms"
    columns = columns_of("""
        before | before | | mean over problems without the span
        after | after | | mean over problems with the span
        n_up | rise in | | problems in which it rises
        n_down | fall in | | problems in which it falls
        n_tied | same in | | problems in which it changes by no more than rounding
        p_fdr | p, false discovery rate | p | Benjamini and Hochberg, over classes and metrics
        token_class | tokens | | class of tokens
        tokens_per_problem | tokens per problem | | mean number of tokens of the class
        primary | primary | | whether it is the contrast that the claim is about
        change | change | | after - before, mean over problems
    """)
    axes = (
        ("before", "problem contrast token_group metric"),
        ("after", "problem contrast token_group metric"),
        ("difference", "problem contrast token_group metric"),
        ("thresholds", "problem form"),
        ("counts", "contrast token_group run bin"),
    )

    def of(self, metric: str, *, contrast: str | None = None, token_class: str = "all") -> np.ndarray:
        """Differences (after - before; distances as they are) of one metric, `[problem]`."""
        return self.difference[:, self._contrast(contrast), self._group(token_class), self._metric(metric)]

    def claims(self) -> pd.DataFrame:
        """The paper's three claims, each tested by itself over problems: one row per contrast and claim, all tokens.

        `change` is the mean of after - before with its bootstrap interval. `p` is the exact two-sided sign test of problems
        that rose (`n_up`) against those that fell (`n_down`), ties left out; `p_corrected` is Holm's over the three claims
        of the contrast. The first contrast is the primary one. A claim is "supported" or "contradicted" only if the sign
        test and the interval agree; "undecided" is no evidence that nothing changes.
        """
        rows = []
        for at, contrast in enumerate(self.contrasts):
            signs = [self._signs(metric, contrast, "all") for metric, _ in CLAIMS.values()]
            p = np.array([found.p for found in signs])
            for (claim, (metric, claimed)), found, p_corrected in zip(CLAIMS.items(), signs, holm(p), strict=True):
                values = self.by_group(self.of(metric, contrast=contrast))
                made = mean_interval(values, confidence=self.confidence, seed=self.seed)
                rows.append(
                    {
                        "contrast": contrast,
                        "primary": at == 0,
                        "claim": claim,
                        "metric": metric,
                        "claimed": "up" if claimed > 0 else "down",
                        "change": float(made.estimate),
                        "change_ci_low": float(made.low),
                        "change_ci_high": float(made.high),
                        **vars(found),
                        "p_corrected": float(p_corrected),
                        "verdict": _verdict(found, float(p_corrected), made, claimed, 1 - self.confidence),
                    }
                )
        return pd.DataFrame(rows)

    def table(self) -> pd.DataFrame:
        """The three claims (`claims`)."""
        return self.claims()

    def by_class(self) -> pd.DataFrame:
        """One row per contrast, token class and metric: means over problems before and after and of the change,
        with intervals, how many problems have such tokens (`n`) and not (`n_undefined`), and the sign test.

        `p_fdr` is corrected over all rows of a contrast (Benjamini-Hochberg): a map to explore, not a test of a claim.
        Distances have no sign, so no test (`n_up` is 0).
        """
        runs = {"change": self.difference, "before": self.before, "after": self.after}
        each = {name: self.by_group(values) for name, values in runs.items()}
        limits = {
            name: mean_interval(values, confidence=self.confidence, seed=self.seed) for name, values in each.items()
        }
        rows = []
        for i, contrast in enumerate(self.contrasts):
            for j, group in enumerate(self.token_groups):
                for k, metric in enumerate(self.metrics):
                    found, distance, at = self._signs(metric, contrast, group), metric in DISTANCES, (i, j, k)
                    row: dict[str, Any] = {
                        "contrast": contrast,
                        "token_class": group,
                        "metric": metric,
                        "unit": UNITS[metric],
                    }
                    for name in ("before", "after", "change"):
                        made = limits[name]
                        mean = made.estimate[at] if name == "change" else float(defined_mean(each[name][:, i, j, k]))
                        row |= {name: mean, f"{name}_ci_low": made.low[at], f"{name}_ci_high": made.high[at]}
                    row |= {"n": found.n, "n_undefined": self.n_groups - found.n}
                    row |= {"tokens_per_problem": float(self.n_tokens[:, j].mean())}
                    row |= {"n_up": 0, "n_down": 0} if distance else {"n_up": found.n_up, "n_down": found.n_down}
                    rows.append(row | {"n_tied": found.n_tied, "p": np.nan if distance else found.p})
        table = pd.DataFrame(rows)
        table["p_fdr"] = np.nan
        for contrast in self.contrasts:
            here = table["contrast"] == contrast
            table.loc[here, "p_fdr"] = benjamini_hochberg(table.loc[here, "p"].to_numpy())
        return table

    def histograms(self) -> pd.DataFrame:
        """One row per contrast, token class and bin: its edges, how many activations of all problems fell into it before
        and after, the same as a share per unit of activation (`_density`), and how that changes (`density_change`).

        The outer bins hold everything beyond them. Elements are no replicates: a picture, not a test.
        """
        widths = np.diff(self.edges)
        parts = []
        for i, contrast in enumerate(self.contrasts):
            for j, group in enumerate(self.token_groups):
                density = [n / (n.sum() or np.nan) / widths for n in self.counts[i, j]]
                table = {
                    "contrast": contrast,
                    "token_class": group,
                    "bin_low": self.edges[:-1],
                    "bin_high": self.edges[1:],
                    "before": self.counts[i, j, 0].astype(np.int64),
                    "after": self.counts[i, j, 1].astype(np.int64),
                    "before_density": density[0],
                    "after_density": density[1],
                    "density_change": density[1] - density[0],
                }
                parts.append(pd.DataFrame(table))
        return pd.concat(parts, ignore_index=True)

    def to_frame(self) -> pd.DataFrame:
        """One tidy row per problem, contrast, token class and metric: before, after, change, tokens, unit."""
        axes = {
            "problem": self.problem_ids,
            "contrast": self.contrasts,
            "token_class": self.token_groups,
            "metric": self.metrics,
        }
        shape = self.difference.shape
        table = tidy(
            axes,
            before=self.before,
            after=self.after,
            change=self.difference,
            n_tokens=np.broadcast_to(self.n_tokens[:, None, :, None], shape),
            unit=np.broadcast_to([UNITS[metric] for metric in self.metrics], shape),
        )
        table.insert(1, "layer", self.layer)
        return table

    def headline(self) -> str:
        """Return which of the paper's three claims the primary contrast supports."""
        rows = self.claims().query("primary")
        told = (f"{row.claim}: {row.verdict} ({row.n_up} up, {row.n_down} down)" for row in rows.itertuples())
        n = count_of(len(self.problem_ids), "problem")
        return f"MLP activations of layer {self.layer} under {self.settings.get('insertion')}, {n}: {', '.join(told)}."

    def details(self) -> list[str]:
        """Return what was measured, and what the three claims do not say."""
        s = self.settings
        found = [
            f"Activations of the MLP of layer {self.layer} (zero-based), {s.get('positions')} tokens "
            f"({self.n_tokens[:, 0].mean():.0f} a problem), contrasts {', '.join(self.contrasts)}; near zero: |a| < 1.4826 MAD "
            f"x {s.get('c')}."
        ]
        found += extension_of(s)
        moved = self.claims().groupby("contrast", sort=False)[["n_up", "n_down"]].sum().any(axis=1)
        if self.layer == 0 and not moved.all():
            found.append(
                f"Nothing moved beyond rounding ({', '.join(moved.index[~moved])}): where attention and MLP read the same "
                "input (GPT-J, GPT-NeoX, Falcon, Phi-2), nothing inserted reaches the MLP of layer 0; ask for a later layer."
            )
        absent = (self.n_tokens == 0).sum(0)
        missing = [f"{name} in {n}" for name, n in zip(self.token_groups, absent, strict=True) if n]
        if missing:
            found.append(f"No token of a class (NaN): {', '.join(missing)} problems.")
        return found

    def printed(self) -> pd.DataFrame:
        """The three claims, without what repeats."""
        columns = ["claim", "verdict", "change", "change_ci_low", "change_ci_high"]
        return self.claims().query("primary")[[*columns, "n_up", "n_down", "n_tied", "p_corrected"]]

    def shown(self) -> Shown:
        """The three claims, and every metric by class of token."""
        by_class = self.by_class()
        ends = {f"{run}_ci_{end}" for run in ("before", "after") for end in ("low", "high")}
        return Shown(
            (
                ShownTable(self.claims(), "The paper's claims about MLP activations, over problems."),
                ShownTable(by_class.drop(columns=list(ends)), "Every metric, by class of token."),
            )
        )

    def _signs(self, metric: str, contrast: str, group: str) -> "_Signs":
        i, j, k = self._contrast(contrast), self._group(group), self._metric(metric)
        own = self._metric("root_mean_square") if VALUES.get(metric) == "activation" else k
        scale = np.maximum(np.abs(self.before[:, i, j, own]), np.abs(self.after[:, i, j, own]))
        return _Signs.of(self.by_group(self.difference[:, i, j, k]), self.by_group(np.nan_to_num(scale)))

    def _contrast(self, name: str | None) -> int:
        return place_of(self.contrasts[0] if name is None else name, self.contrasts, "contrast")

    def _group(self, name: str) -> int:
        return place_of(name, self.token_groups, "token class")

    def _metric(self, name: str) -> int:
        return place_of(name, self.metrics, "metric")


@dataclass(frozen=True)
class _Signs:
    """How many problems rose, fell and stayed, and the exact two-sided sign test of that (NaN without problems)."""

    n: int
    n_up: int
    n_down: int
    n_tied: int
    p: float

    @classmethod
    def of(cls, differences: np.ndarray, scale: np.ndarray) -> "_Signs":
        defined = np.isfinite(differences)
        d, least = differences[defined], SAME * scale[defined]
        up, down = int((d > least).sum()), int((d < -least).sum())
        # the sign test is McNemar's test of the problems that changed
        p = mcnemar(up, down) if len(d) else float("nan")
        return cls(len(d), up, down, len(d) - up - down, p)


def _verdict(found: _Signs, p_corrected: float, made: Interval, claimed: int, alpha: float) -> str:
    moved = found.n_up + found.n_down
    if found.n < 2:
        return "undefined (fewer than 2 problems)"
    if not moved:
        return "undecided (no problem changed)"
    if mcnemar(moved, 0) * len(CLAIMS) >= alpha:
        return f"undecided ({count_of(moved, 'problem')} that {'changes is' if moved == 1 else 'change are'} too few to tell)"
    if p_corrected >= alpha:
        return "undecided"
    most = 1 if found.n_up > found.n_down else -1
    if not (float(made.low) > 0 if most > 0 else float(made.high) < 0):
        return "undecided (most problems move one way, the mean's interval does not follow)"
    return "supported" if most == claimed else "contradicted"
