"""`ActivationShift`: what an insertion did to one layer's MLP activations, per problem, contrast and token class."""

from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd

from ..core.arguments import count_of
from ..models.sites import extension_of
from ..patching.prepared import Settings
from ..runtime.columns import columns_of
from ..runtime.results import Result, Shown, ShownTable, interval_columns, place_of, tidy
from ..statistics import CONFIDENCE, Interval, benjamini_hochberg, defined_mean, holm, mcnemar, mean_interval

VALUES: dict[str, str] = {
    **dict.fromkeys(("near_zero_arm", "near_zero_quantile", "relative_sparsity"), "share"),
    "mean": "activation",
    "variance": "activation²",
    **dict.fromkeys(("deviation", "l1", "mean_absolute", "l2", "root_mean_square"), "activation"),
    **dict.fromkeys(("gini", "histogram_gini"), "number"),
    **dict.fromkeys(("q01", "q05", "q95", "q99", "minimum"), "activation"),
    "kurtosis": "number",
}
"""Metric -> unit; each has a value before and after."""
DISTANCES: dict[str, str] = {"wasserstein": "activation", "kolmogorov_smirnov": "number"}
"""Metric -> unit; each compares the two runs and has no value of its own before or after."""
UNITS = VALUES | DISTANCES
CLAIMS: dict[str, tuple[str, int]] = {
    "variance rises": ("variance", 1),
    "near-zero share falls": ("near_zero_arm", -1),
    "mean rises": ("mean", 1),
}
"""The paper's three claims: metric and direction."""
SAME = 1e-6
"""Differences smaller than this part of the values are rounding and count as ties."""


class _Signs(NamedTuple):
    """How many problems rose, fell and stayed, and the exact two-sided sign test of that (NaN without problems)."""

    n: int
    n_up: int
    n_down: int
    n_tied: int
    p: float


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
    settings: Settings = field(default_factory=dict)
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
        return self.difference[:, *self._place(metric, contrast, token_class)]

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
            p = holm(np.array([found.p for found in signs]))
            for (claim, (metric, claimed)), found, p_corrected in zip(CLAIMS.items(), signs, p, strict=True):
                values = self.by_group(self.of(metric, contrast=contrast))
                made = mean_interval(values, confidence=self.confidence, seed=self.seed)
                rows.append(
                    {
                        "contrast": contrast,
                        "primary": at == 0,
                        "claim": claim,
                        "metric": metric,
                        "claimed": "up" if claimed > 0 else "down",
                        **{name: float(each) for name, each in interval_columns("change", made).items()},
                        **found._asdict(),
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
        axes = {"contrast": self.contrasts, "token_class": self.token_groups, "metric": self.metrics}
        cells: dict[str, np.ndarray] = {"unit": np.broadcast_to([UNITS[each] for each in self.metrics], self._shape)}
        for name, values in (("before", self.before), ("after", self.after), ("change", self.difference)):
            each = self.by_group(values)
            cells |= interval_columns(name, mean_interval(each, confidence=self.confidence, seed=self.seed))
            if name != "change":  # a plain mean also where one problem leaves no interval
                cells[name] = defined_mean(each)
        signs = [self._signs(metric, contrast, group) for contrast, group, metric in product(*axes.values())]
        n, n_up, n_down, n_tied, p = (np.reshape(each, self._shape) for each in zip(*signs, strict=True))
        distance = np.broadcast_to([metric in DISTANCES for metric in self.metrics], self._shape)
        p = np.where(distance, np.nan, p)
        cells |= {"n": n, "n_undefined": self.n_groups - n}
        tokens = self.n_tokens.mean(0)[:, None]
        cells |= {"tokens_per_problem": np.broadcast_to(tokens, self._shape)}
        cells |= {"n_up": np.where(distance, 0, n_up), "n_down": np.where(distance, 0, n_down), "n_tied": n_tied}
        return tidy(axes, **cells, p=p, p_fdr=np.stack([benjamini_hochberg(each.ravel()) for each in p]))

    @property
    def _shape(self) -> tuple[int, ...]:
        """How many contrasts, token groups and metrics."""
        return self.difference.shape[1:]

    def histograms(self) -> pd.DataFrame:
        """One row per contrast, token class and bin: its edges, how many activations of all problems fell into it before
        and after, the same as a share per unit of activation (`_density`), and how that changes (`density_change`).

        The outer bins hold everything beyond them. Elements are no replicates: a picture, not a test.
        """
        counts = np.moveaxis(self.counts, 2, 0)  # [run, contrast, group, bin]
        total = counts.sum(-1, keepdims=True)
        density = counts / np.where(total == 0, np.nan, total) / np.diff(self.edges)
        axes = {"contrast": self.contrasts, "token_class": self.token_groups, "bin_low": self.edges[:-1]}
        table = tidy(
            axes,
            bin_high=np.broadcast_to(self.edges[1:], counts.shape[1:]),
            before=counts[0].astype(np.int64),
            after=counts[1].astype(np.int64),
            before_density=density[0],
            after_density=density[1],
            density_change=density[1] - density[0],
        )
        return table

    def to_frame(self) -> pd.DataFrame:
        """One tidy row per problem, contrast, token class and metric: before, after, change, tokens, unit."""
        axes = {
            "problem": self.problem_ids,
            "layer": [self.layer],
            "contrast": self.contrasts,
            "token_class": self.token_groups,
            "metric": self.metrics,
        }
        shape = self.difference.shape
        return tidy(
            axes,
            before=self.before,
            after=self.after,
            change=self.difference,
            n_tokens=np.broadcast_to(self.n_tokens[:, None, :, None], shape),
            unit=np.broadcast_to([UNITS[metric] for metric in self.metrics], shape),
        )

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
            f"x {s.get('c')}.",
            *extension_of(s),
        ]
        moved = self.claims().groupby("contrast", sort=False)[["n_up", "n_down"]].sum().any(axis=1)
        if self.layer == 0 and not moved.all():
            found.append(
                f"Nothing moved beyond rounding ({', '.join(moved.index[~moved])}): where attention and MLP read the same "
                "input (GPT-J, GPT-NeoX, Falcon, Phi-2), nothing inserted reaches the MLP of layer 0; ask for a later layer."
            )
        absent = zip(self.token_groups, (self.n_tokens == 0).sum(0), strict=True)
        missing = ", ".join(f"{name} in {n}" for name, n in absent if n)
        return [*found, *([f"No token of a class (NaN): {missing} problems."] if missing else [])]

    def printed(self) -> pd.DataFrame:
        """The three claims, without what repeats."""
        columns = ["claim", "verdict", "change", "change_ci_low", "change_ci_high"]
        return self.claims().query("primary")[[*columns, "n_up", "n_down", "n_tied", "p_corrected"]]

    def shown(self) -> Shown:
        """The three claims, and every metric by class of token."""
        by_class = self.by_class()
        ends = [name for name in by_class if name.startswith(("before_ci", "after_ci"))]
        return Shown(
            (
                ShownTable(self.claims(), "The paper's claims about MLP activations, over problems."),
                ShownTable(by_class.drop(columns=ends), "Every metric, by class of token."),
            )
        )

    def _place(self, metric: str, contrast: str | None, group: str) -> tuple[int, int, int]:
        """Where a cell stands: contrast, token group, metric."""
        return (
            place_of(self.contrasts[0] if contrast is None else contrast, self.contrasts, "contrast"),
            place_of(group, self.token_groups, "token class"),
            place_of(metric, self.metrics, "metric"),
        )

    def _signs(self, metric: str, contrast: str, group: str) -> _Signs:
        of_scale = "root_mean_square" if VALUES.get(metric) == "activation" else metric
        place = self._place(of_scale, contrast, group)
        scale = np.maximum(np.abs(self.before[:, *place]), np.abs(self.after[:, *place]))
        differences = self.by_group(self.of(metric, contrast=contrast, token_class=group))
        defined = np.isfinite(differences)
        d, least = differences[defined], SAME * self.by_group(np.nan_to_num(scale))[defined]
        up, down = int((d > least).sum()), int((d < -least).sum())
        # the sign test is McNemar's test of the problems that changed
        return _Signs(len(d), up, down, len(d) - up - down, mcnemar(up, down) if len(d) else np.nan)


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
