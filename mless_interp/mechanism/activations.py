"""How an insertion shifts the activations of an MLP: one layer, shared tokens, per problem, contrast and token class."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ..core.arguments import Arguments, check_count, check_share, checked, several_of
from ..metrics import activations as metrics
from ..metrics.patterns import widened
from ..metrics.received import kurtosis
from ..models.base import Model
from ..models.sites import extension_of, site
from ..patching.prepared import Measured, fit_pairs, single
from ..prompts.conditions import CONDITIONS, CONTRASTS
from ..prompts.pairs import PromptPair, digest_of, followed, over_pairs, own_pairs
from ..prompts.problems import groups_of
from ..prompts.token_classes import CLASSES, token_classes, token_texts
from ..runtime.base_result import Shown, ShownTable, interval_columns, place_of, tidy
from ..runtime.columns import columns_of
from ..runtime.loop import RunOptions
from ..statistics import benjamini_hochberg, defined_mean, holm, mcnemar, mean_interval

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
CLAIMS: dict[str, tuple[str, str]] = {
    "variance rises": ("variance", "up"),
    "near-zero share falls": ("near_zero_arm", "down"),
    "mean rises": ("mean", "up"),
}
"""The paper's three claims: metric and direction."""
Activations = Float[Tensor, "token d_mlp"]
SAME = 1e-6  # differences smaller than this part of the values are rounding and count as ties
PARALLEL = "where attention and MLP read the same input (GPT-J, GPT-NeoX, Falcon, Phi-2),"


def near_zero(activations: Activations, *, c: float, q: float) -> tuple[float, float]:
    """Compute below which size activations of a run count as near zero: in ARM's form, and in the quantile form."""
    flat = activations.flatten()
    return float(metrics.arm_threshold(flat, c=c)), float(metrics.quantile(flat.abs(), q=q))


@dataclass(frozen=True, eq=False, repr=False)
class ActivationShift(Measured):
    """Metrics of one layer's MLP activations `[problem, contrast, token_group, metric]` in the runs before and after.

    `token_groups` are all tokens and each token class; NaN where a problem has no token of a class (variance: fewer than two).
    Distances have a `difference` only. `thresholds` `[problem, form]`: near zero in ARM's and in the quantile form. `counts`
    `[contrast, token_group, run, bin]`: histograms over all problems with `edges`.
    """

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

    picture = "activation_histograms"
    columns = columns_of("""
        contrast | contrast | | the two runs that are compared
        claimed | claimed | later | which way the claim says that it goes
        before | before | level | mean over problems without the span
        after | after | level | mean over problems with the span
        n_up | rise in | | problems in which it rises
        n_down | fall in | | problems in which it falls
        n_tied | same in | | problems in which it changes by no more than rounding
        p_fdr | p, false discovery rate | p | Benjamini and Hochberg, over classes and metrics
        token_class | tokens | | class of tokens
        tokens_per_problem | tokens per problem | | mean number of tokens of the class
        primary | primary | later | whether it is the contrast that the claim is about
        change | change | | after - before, mean over problems
    """)

    def of(self, metric: str, *, contrast: str | None = None, token_class: str = "all") -> np.ndarray:
        """Return differences (after - before; distances as they are) of one metric, `[problem]`."""
        at = place_of(self.contrasts[0] if contrast is None else contrast, self.contrasts, "contrast")
        group = place_of(token_class, self.token_groups, "token class")
        return self.difference[:, at, group, place_of(metric, self.metrics, "metric")]

    def table(self) -> pd.DataFrame:
        """Return the paper's three claims, one row per contrast (the first is primary) and claim, each tested over problems.

        `change` is the mean of after - before with its interval, `p` the exact two-sided sign test, ties left out,
        `p_corrected` Holm's over the claims of the contrast. A claim is "supported" or "contradicted" only if test and interval
        agree; "undecided" is no evidence that nothing changes.
        """
        metric, claimed = zip(*CLAIMS.values(), strict=True)
        at = [self.metrics.index(each) for each in metric]
        signs = {name: found[:, 0, at] for name, found in self._signs.items()}  # of all tokens
        values, shape = self.by_group(self.difference[:, :, 0, at]), signs["p"].shape
        cells = {"metric": np.broadcast_to(metric, shape), "claimed": np.broadcast_to(claimed, shape)}
        cells |= interval_columns("change", mean_interval(values, confidence=self.confidence, seed=self.seed)) | signs
        cells["p_corrected"] = np.stack([holm(p) for p in signs["p"]])
        table = tidy({"contrast": self.contrasts, "claim": [*CLAIMS]}, **cells)
        table.insert(1, "primary", table["contrast"] == self.contrasts[0])
        return table.assign(verdict=[_verdict(row, self.level) for row in table.to_dict("records")])

    def by_class(self) -> pd.DataFrame:
        """Return one row per contrast, token class and metric: means before, after and of the change, how many problems have
        such tokens, and the sign test (none of distances). `p_fdr`: Benjamini-Hochberg over the rows of a contrast, a map to
        explore, not a test of a claim."""
        axes = {"contrast": self.contrasts, "token_class": self.token_groups, "metric": self.metrics}
        shape = self.difference.shape[1:]
        cells: dict[str, np.ndarray] = {"unit": np.broadcast_to([UNITS[each] for each in self.metrics], shape)}
        for name, values in (("before", self.before), ("after", self.after), ("change", self.difference)):
            each = self.by_group(values)
            cells |= interval_columns(name, mean_interval(each, confidence=self.confidence, seed=self.seed))
            if name != "change":  # a plain mean also where one problem leaves no interval
                cells[name] = defined_mean(each)
        signs, distance = self._signs, np.broadcast_to([metric in DISTANCES for metric in self.metrics], shape)
        cells |= {"n": signs["n"], "n_undefined": self.n_groups - signs["n"]}
        cells["tokens_per_problem"] = np.broadcast_to(self.n_tokens.mean(0)[:, None], shape)
        cells |= {name: np.where(distance, 0, signs[name]) for name in ("n_up", "n_down")} | {"n_tied": signs["n_tied"]}
        p = np.where(distance, np.nan, signs["p"])
        return tidy(axes, **cells, p=p, p_fdr=np.stack([benjamini_hochberg(each.ravel()) for each in p]))

    def histograms(self) -> pd.DataFrame:
        """Return one row per contrast, token class and bin: how many activations of all problems fell into it (the outer ones
        hold all beyond) before and after, the same per unit of activation (`_density`), and the `density_change`."""
        counts = np.moveaxis(self.counts, 2, 0)  # [run, contrast, group, bin]
        total = counts.sum(-1, keepdims=True)
        density = counts / np.where(total == 0, np.nan, total) / np.diff(self.edges)
        axes = {"contrast": self.contrasts, "token_class": self.token_groups, "bin_low": self.edges[:-1]}
        cells = {"bin_high": np.broadcast_to(self.edges[1:], counts.shape[1:])}
        cells |= dict(zip(("before", "after"), counts.astype(np.int64), strict=True))
        cells |= dict(zip(("before_density", "after_density"), density, strict=True))
        return tidy(axes, **cells, density_change=density[1] - density[0])

    def to_frame(self) -> pd.DataFrame:
        """Return one tidy row per problem, contrast, token class and metric: before, after, change, tokens, unit."""
        axes = {"problem": self.problem_ids, "layer": [self.layer], "contrast": self.contrasts}
        axes |= {"token_class": self.token_groups, "metric": self.metrics}
        cells = {"before": self.before, "after": self.after, "change": self.difference}
        shape, unit = self.difference.shape, [UNITS[metric] for metric in self.metrics]
        n_tokens = np.broadcast_to(self.n_tokens[:, None, :, None], shape)
        return tidy(axes, **cells, n_tokens=n_tokens, unit=np.broadcast_to(unit, shape))

    def headline(self) -> str:
        rows = self.table().query("primary")
        told = (f"{row.claim}: {row.verdict} ({row.n_up} up, {row.n_down} down)" for row in rows.itertuples())
        what = f"MLP activations of layer {self.layer} under {self.settings.get('insertion')}"
        return f"{what}, {self.counted}: {', '.join(told)}."

    def details(self) -> list[str]:
        found = extension_of(self.settings)
        moved = self.table().groupby("contrast", sort=False)[["n_up", "n_down"]].sum()
        still = moved.index[~moved.any(axis=1)]
        if self.layer == 0 and len(still):
            found.append(
                f"Nothing moved beyond rounding ({', '.join(still)}): {PARALLEL} nothing inserted reaches layer 0's."
            )
        return found

    def printed(self) -> pd.DataFrame:
        columns = ["claim", "verdict", "change", "change_ci_low", "change_ci_high"]
        return self.table().query("primary")[[*columns, "n_up", "n_down", "n_tied", "p_corrected"]]

    def shown(self) -> Shown:
        by_class = self.by_class()
        ends = [name for name in by_class if name.startswith(("before_ci", "after_ci"))]
        table, first = self.table(), "claim verdict change p_corrected metric".split()
        claims = ShownTable(table, "The paper's claims about MLP activations, over problems.", [*first, *table])
        return Shown((claims, ShownTable(by_class.drop(columns=ends), "Every metric, by class of token.")))

    @cached_property
    def _signs(self) -> dict[str, np.ndarray]:
        # `[contrast, token_group, metric]` each; p is NaN without problems
        scales = ["root_mean_square" if VALUES.get(metric) == "activation" else metric for metric in self.metrics]
        scale = np.nan_to_num(np.maximum(np.abs(self.before), np.abs(self.after)))
        least = SAME * self.by_group(scale[..., list(map(self.metrics.index, scales))])
        d = self.by_group(self.difference)
        n, up, down = np.isfinite(d).sum(0), (d > least).sum(0), (d < -least).sum(0)
        # the sign test is McNemar's test of the problems that changed
        p = np.where(n > 0, np.vectorize(mcnemar, otypes=[float])(up, down), np.nan)
        return {"n": n, "n_up": up, "n_down": down, "n_tied": n - up - down, "p": p}


def _verdict(row: Mapping[Any, Any], alpha: float) -> str:
    moved = row["n_up"] + row["n_down"]
    if row["n"] < 2:
        return "undefined (fewer than 2 problems)"
    if not moved:
        return "undecided (no problem changed)"
    if row["p_corrected"] >= alpha:
        return "undecided" + " (too few change)" * (mcnemar(moved, 0) * len(CLAIMS) >= alpha)
    most = "up" if row["n_up"] > row["n_down"] else "down"
    if not (row["change_ci_low"] > 0 if most == "up" else row["change_ci_high"] < 0):
        return "undecided (most problems move one way, the mean's interval does not follow)"
    return "supported" if most == row["claimed"] else "contradicted"


@checked
def activation_shift(
    model: Model,
    pairs: Iterable[PromptPair],
    *,
    layer: int = 0,
    contrasts: Sequence[str] = ("content", "shift"),
    c: float = 0.13,
    q: float = 0.1,
    bins: int = 100,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    seed: int = 0,
) -> ActivationShift:
    r"""Measure what an insertion does to the activations $a = \operatorname{act}(\operatorname{gate}(x))$ of one layer's MLP.

    Only tokens that both prompts have are read, one number per problem, metric, contrast and token class (without a tokenizer
    there are no classes). Tokens before the insertion cannot change: they dilute every difference by their share.

    layer : zero-based; the paper speaks of the first.
    contrasts : "content" (masked -> inserted), "shift" (base -> gap: the positions alone), "total" (base -> inserted),
        "held" (base -> held).
    c : width of near zero in ARM's form, 1.4826 MAD c of the *base* run's |a|, over all its tokens, used for every run and
        class; results depend on it (the paper's values: 0.05 to 0.45). `relative_sparsity` takes it from the contrast's
        own run before.
    q : near zero in the quantile form: below the q quantile of the base run's |a|.
    bins : of the histograms, equal, from the 0.1 to the 99.9 per cent quantile of the first problem's base run.
    checkpoint, progress : as in `patch_heads`.

    An MLP without a gate has $a = \operatorname{act}(\operatorname{up}(x))$: our extension of the paper's form.
    Raises `ModelError` for experts, which share no activation, and for MLPs of a build that is not known.
    Source: methods §5; arXiv 2510.01032, Figs. 4 and 7.
    """
    gate = model.gated_mlp(layer)
    names = several_of(contrasts, CONTRASTS, "contrast")
    check_widths(c=c, q=q)
    check_count(bins, name="bins", at_least=2)
    found = own_pairs(model, fit_pairs(followed(pairs)))
    classes = [_classes(model, pair) for pair in found]
    pre, near = site(layer, "mlp.hook_pre"), partial(near_zero, c=c, q=q)

    def read(pair: PromptPair, condition: str) -> Activations:
        places = pair.shared if CONDITIONS[condition].has_span else torch.arange(len(pair.base))
        keep = {pre: lambda x: widened(gate.activation(x[0, places.to(x.device)]))}
        seen: Tensor = model.run(pair.condition(condition), capture=keep, logits_at="none").captured[pre]
        if not bool(torch.isfinite(seen).all()):
            raise ValueError(f"problem {pair.id!r}, condition {condition!r}: infinite or NaN activations")
        return seen

    settings = {"layer": layer, "gated": gate.gated, "contrasts": list(names), "c": c, "q": q, "bins": bins}
    settings |= {**model.identity, "insertion": found[0].insertion.label, "template": found[0].base.template}
    settings["prompts"] = digest_of(found)
    flat = read(found[0], "base").flatten().cpu()
    low, high = (float(metrics.quantile(flat, q=share)) for share in (0.001, 0.999))
    if not high > low:  # all activations are equal
        low, high = low - 1, low + 1
    edges = torch.linspace(low, high, bins + 1, dtype=torch.float64)
    done = over_pairs(
        model,
        found,
        single(lambda at: _shifts(partial(read, found[at]), np.array(classes[at]), names, near, edges)),
        label=f"activations of layer {layer}",
        settings={**settings, "edges": edges.tolist()},  # of the first problem
        prompts=[[pair.fingerprint(), of_tokens] for pair, of_tokens in zip(found, classes, strict=True)],
        options=RunOptions(checkpoint, progress),
    )
    arrays: Arguments = {key: np.array([value[key] for value in done], dtype=np.float64) for key in done[0]}
    arrays |= {"n_tokens": arrays["n_tokens"].astype(int), "counts": arrays["counts"].sum(0)}
    return ActivationShift(
        problem_ids=tuple(pair.id for pair in found),
        groups=groups_of(pair.problem for pair in found),
        layer=layer,
        contrasts=names,
        token_groups=("all", *CLASSES),
        metrics=tuple(UNITS),
        edges=edges.numpy(),
        settings=settings,
        seed=seed,
        **arrays,
    )


def check_widths(*, c: float, q: float) -> None:
    """Check both widths of near zero; `ValueError` for one that cannot be used."""
    if not 0 < c < float("inf"):
        raise ValueError(f"c is the width of near zero in robust standard deviations and must be positive, got {c!r}")
    check_share(q, name="q")


def _shifts(
    read: Callable[[str], Activations],
    kinds: np.ndarray,
    contrasts: Sequence[str],
    near: Callable[[Activations], tuple[float, float]],
    edges: Tensor,
) -> dict[str, np.ndarray]:
    """Measure before, after, difference `[contrast, group, metric]`, histograms, tokens and thresholds of one problem."""
    masks = [torch.ones(len(kinds), dtype=torch.bool), *(torch.from_numpy(kinds == name) for name in CLASSES)]
    runs = {"base": read("base")}
    thresholds = near(runs["base"])
    shape = len(contrasts), len(masks)
    before, after, difference = (np.full((*shape, len(UNITS)), np.nan) for _ in range(3))
    counts = np.zeros((*shape, 2, len(edges) - 1))
    for at, contrast in enumerate(contrasts):
        ends = CONTRASTS[contrast].clean, CONTRASTS[contrast].corrupted
        runs |= {end: read(end) for end in ends if end not in runs}
        widths = *thresholds, near(runs[ends[0]])[0]  # the last: that of the run before
        for group, mask in enumerate(masks):
            if not mask.any():
                continue  # without a token of the class all stays NaN
            a, b = (runs[end][mask.to(runs[end].device)] for end in ends)
            first, second = (_values(part, widths, edges) for part in (a, b))
            before[at, group, : len(VALUES)], after[at, group, : len(VALUES)] = first, second
            distances = [float(getattr(metrics, name)(a.flatten(), b.flatten())) for name in DISTANCES]
            difference[at, group] = [*(second - first), *distances]
            for run, part in enumerate((a, b)):
                found = metrics.histogram(part.flatten().double(), edges=edges.to(part.device))
                counts[at, group, run] = found.cpu().numpy()
    made = {"before": before, "after": after, "difference": difference, "counts": counts}
    return made | {"n_tokens": np.array([int(mask.sum()) for mask in masks]), "thresholds": np.array(thresholds)}


def _values(activations: Activations, widths: Sequence[float], edges: Tensor) -> np.ndarray:
    flat, centre = activations.flatten(), metrics.quantile(activations.T, q=0.5)
    shares = [metrics.near_zero_fraction(flat, threshold=width) for width in widths]
    found = {
        **dict(zip(("near_zero_arm", "near_zero_quantile", "relative_sparsity"), shares, strict=True)),
        "mean": flat.mean(),
        "variance": metrics.median_variance(activations),
        "deviation": (activations - centre).abs().mean() if len(activations) > 1 else torch.nan,
        "l1": metrics.l1_norm(flat),
        "mean_absolute": metrics.mean_absolute(flat),
        "l2": metrics.l2_norm(flat),
        "root_mean_square": metrics.root_mean_square(flat),
        "gini": metrics.gini(flat),
        "histogram_gini": metrics.gini(metrics.histogram(flat, edges=edges.to(flat.device))),
        **{name: metrics.quantile(flat, q=int(name[1:]) / 100) for name in ("q01", "q05", "q95", "q99")},
        "minimum": flat.amin(),
        "kurtosis": kurtosis(flat),
    }
    return np.array([float(found[name]) for name in VALUES])


def _classes(model: Model, pair: PromptPair) -> tuple[str, ...]:
    """Class every token of the base prompt; "" where nothing knows its text."""
    if model.tokenizer is None:
        return ("",) * len(pair.base)
    decode = partial(model.tokenizer.decode, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return token_classes(token_texts(pair.base.ids, decode))
