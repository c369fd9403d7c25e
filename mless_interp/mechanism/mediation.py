"""`mediate`: what the scale and the bias that attention takes on each do to the MLP's activations and to the answer."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ..core.arguments import Arguments, checked, listed
from ..core.heads import Head
from ..metrics.activations import mean_absolute, median_variance, near_zero_fraction
from ..metrics.patterns import widened
from ..models.base import Model
from ..models.sites import Held, attention_sites, extension_of, site
from ..patching.effect import SMALLEST_EFFECT
from ..patching.outcomes import Outcome
from ..patching.prepared import Measured, Prepared, Settings, prepare, single
from ..prompts.pairs import PromptPair
from ..runtime.base_result import counted, interval_columns, limits_of, place_of, tidy
from ..runtime.columns import columns_of
from ..runtime.loop import RunOptions
from ..statistics import defined_mean, fewest_problems, holm, median_interval, sign_test
from .activations import PARALLEL, VALUES, check_widths, near_zero
from .decompose import Read

EDITED: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "reference": lambda z, lam, sigma: z,
    "scale": lambda z, lam, sigma: lam * z,
    "bias": lambda z, lam, sigma: z + sigma,
    "both": lambda z, lam, sigma: lam * z + sigma,
}
"""The arms that are edited, as head outputs from z without the span, lambda and Sigma."""
ARMS = ("without", "with", *EDITED)  # both unedited runs, and the edited ones
READINGS = ("near_zero_arm", "near_zero_quantile", "mean", "mean_absolute", "variance")
"""What is read of the MLP's activations, as in `activation_shift`."""
EFFECTS: dict[str, dict[str, int]] = {
    "scale": {"scale": 1, "reference": -1},
    "bias": {"bias": 1, "reference": -1},
    "both": {"both": 1, "reference": -1},
    "interaction": {"both": 1, "scale": -1, "bias": -1, "reference": 1},
    "total": {"with": 1, "without": -1},
}
"""Effect -> the arms that it adds and takes away."""


@dataclass(frozen=True, eq=False, repr=False)
class Mediation(Measured):
    """Readings `values` `[problem, reading, arm]`: of the layer's MLP activations, and the "outcome"; arms as in `ARMS`."""

    readings: tuple[str, ...]
    values: np.ndarray
    unit: str

    columns = columns_of("""
        reading | reading | | what is read: the outcome, or a metric of the gate activations
        effect | part | | scale, bias, both, interaction (both - scale - bias), or total
        before | without the span | level | mean over problems
        mean | mean change | | mean over problems
        n_up | rise in | | problems in which it rises
        n_down | fall in | | problems in which it falls
    """)
    caption = (
        "Change of each reading when attention's outputs get only their scale, only their bias, or both; interaction is both "
        "minus their sum, total the change by the insertion itself."
    )

    def of(self, reading: str, arm: str) -> np.ndarray:
        return self.values[:, place_of(reading, self.readings, "reading"), place_of(arm, ARMS, "arm")]

    def effect(self, reading: str, effect: str) -> np.ndarray:
        """Return one effect of `EFFECTS` on one reading, `[problem]`."""
        place_of(effect, EFFECTS, "effect")
        return np.sum([sign * self.of(reading, arm) for arm, sign in EFFECTS[effect].items()], 0)

    def table(self) -> pd.DataFrame:
        """Return one row per reading and effect.

        The median over problems with its interval, the mean (a description), `n_up` and `n_down` of `n` problems that rose and
        fell, and `p_corrected`: the exact sign test of that, Holm over the effects on a reading. `before` is the reading's mean
        without the span. Changes within rounding count as none; p is NaN where there is no other, and of a single problem.
        """
        keys = [(reading, effect) for reading in self.readings for effect in EFFECTS]
        cells = self.by_group(np.stack([self.effect(*key) for key in keys], 1))
        noise = 1e-5 * np.abs(defined_mean(np.stack([self.of(reading, "without") for reading, _ in keys], 1)))
        made = median_interval(cells, confidence=self.confidence)
        moved = np.where(np.abs(cells) > noise, cells, np.where(np.isnan(cells), np.nan, 0.0))
        tested = (moved != 0).any(0) & (len(cells) > 1)
        p = np.where(tested, sign_test(moved), np.nan).reshape(len(self.readings), len(EFFECTS))
        table = pd.DataFrame(keys, columns=["reading", "effect"])
        before = [float(defined_mean(self.by_group(self.of(reading, "without")))) for reading in table["reading"]]
        told = interval_columns("median", made) | {"n_up": (moved > 0).sum(0), "n_down": (moved < 0).sum(0)}
        told |= {"p_corrected": np.concatenate([*map(holm, p)]), "before": before, "mean": defined_mean(cells)}
        unit = [VALUES.get(reading, self.unit) for reading in table["reading"]]
        return table.assign(**told, n=made.n, unit=unit)

    def to_frame(self) -> pd.DataFrame:
        """Return one tidy row per problem, reading and arm."""
        return tidy({"problem": self.problem_ids, "reading": self.readings, "arm": ARMS}, value=self.values)

    def headline(self) -> str:
        s = self.settings
        here = self.table().query("reading == @self.readings[-1]").set_index("effect")
        told = {name: _with_interval(here.loc[name]) for name in ("scale", "bias", "both")}
        where = f"layer {s.get('layer')}" if s.get("all_heads", True) else listed(s["heads"])
        sure = [name for name in told if here.loc[name, "p_corrected"] < self.level]
        shown = f"shown in most problems: {', '.join(sure) or 'none of these'}"
        if not (n := int(here["n"].max())):
            return f"{s.get('outcome')} is undefined in every problem."
        if n < (needed := fewest_problems(2 * len(EFFECTS), alpha=self.level)):
            shown = f"too few to show any of these in most problems ({needed} needed)"
        return (
            f"Through {where} {s.get('insertion')} changes {s.get('outcome')} by {told['both']} {self.unit}; "
            f"only its scale: {told['scale']}; only its bias: {told['bias']} (medians over "
            f"{counted(n, self.groups)}); {shown}."
        )

    def details(self) -> list[str]:
        found, table = extension_of(self.settings), self.table()
        apart, both = (table[table["effect"] == name].set_index("reading") for name in ("interaction", "both"))
        large = apart["median"].abs() > SMALLEST_EFFECT * both["median"].abs()
        for _, row in apart[large & (holm(apart["p_corrected"].to_numpy()) < self.level)].reset_index().iterrows():
            found.append(f"Scale and bias of {row['reading']} do not add up (interaction {_with_interval(row)}).")
        edits = table.query("reading != 'outcome' and effect in ['scale', 'bias', 'both']")
        if len(edits) and not edits[["n_up", "n_down"]].any(axis=None):
            found.append(f"No edit of attention moves this layer's activations beyond rounding: {PARALLEL} none can.")
        return found

    def printed(self) -> pd.DataFrame:
        columns = ["effect", "median", "median_ci_low", "median_ci_high", "n_up", "n_down", "n", "p_corrected"]
        return self.table().query("reading == @self.readings[-1]")[columns]


def _with_interval(row: pd.Series) -> str:
    return f"{row['median']:+.4f}{limits_of(row['median_ci_low'], row['median_ci_high'])}"


@checked
def mediate(
    model: Model,
    pairs: Iterable[PromptPair] | Prepared,
    *,
    layer: int = 0,
    heads: Iterable[Head | str] | None = None,
    outcome: str | Outcome = "answer_logprob",
    c: float = 0.13,
    q: float = 0.1,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    seed: int = 0,
) -> Mediation:
    r"""Give a layer's heads only the scale, only the bias, or both parts of the change that an inserted span makes.

    $$ \text{scale}: z \leftarrow \lambda_i z_i, \qquad \text{bias}: z \leftarrow z_i + \Sigma_i, \qquad
       \text{both}: z \leftarrow \lambda_i z_i + \Sigma_i $$

    at every token after the insertion, all `heads` of `layer` (default: all of it) together, and read the same layer's MLP
    activations at the tokens that both prompts have, and the outcome. z and the edited run are those that cannot see the span
    ("masked"), so that only what is added here acts; lambda and Sigma are those of the run that sees it. Effects are against
    `reference` ($z \leftarrow z_i$) in the same run; interaction = both - scale - bias.

    outcome : one with a sign.
    c, q : near zero, as in `activation_shift`; there is no rule for these numbers.
    checkpoint, progress : as in `patch_heads`.

    Where attention and MLP read the same input, no edit of attention reaches its own layer's activations: those effects are 0.
    Raises `ModelError` for experts and where queries and keys cannot be had as they enter the scores.
    Source: methods §5 (mediation); arXiv 2510.01032, section 3, whose claims are made of scale and bias together.
    """
    check_widths(c=c, q=q)
    model.info.check_layer(layer)
    chosen = model.info.chosen(heads, None if heads is not None else [layer], what="mediate")
    if elsewhere := [head for head in chosen if head.layer != layer]:
        raise ValueError(f"{elsewhere[0]} is not in layer {layer} (zero-based): heads are edited together in one layer")
    gate = model.gated_mlp(layer)
    model.need_rotated("lambda and Sigma")
    prepared = prepare(model, pairs, outcome, signed_for="mediation")
    for pair in prepared.pairs:
        pair.one_block("mediation, which edits the rows after the span,")
    settings: Settings = {"layer": layer, "gated": gate.gated, "c": c, "q": q}
    settings |= {"heads": [str(head) for head in chosen], "all_heads": len(chosen) == model.info.n_heads}
    runs = ("masked", "inserted", "base", *["masked"] * len(EDITED))
    numbers = [head.head for head in chosen]
    attention, mlp = attention_sites(layer, "rot_q", "rot_k", "v"), site(layer, "mlp.hook_pre")

    def measured(pair: PromptPair, answered: PromptPair) -> np.ndarray:
        """Measure `[reading, arm]` of one problem, from one forward pass: two ends, the base run, an edited run per arm."""
        pair = pair if pair.n_after else answered  # activations are read where they can change
        inputs = answered.side_by_side(runs).to(model.info.device)
        visible, stop, held = model.visible(inputs)[layer], answered.span[1], Held()

        def edit(z: Tensor) -> Tensor:
            query, key, value = (whole[1:2] for whole in held.take(*attention))
            seen, rule = visible[1:2].to(z.device), model.attention_rule(layer)
            read = Read.of(query, key, value, seen, rule, span=answered.span_mask)
            old = widened(z[0, stop:].transpose(0, 1))
            lam, sigma = read.lam[..., None].to(old), read.sigma.to(old)
            edited = z.clone()
            for row, arm in enumerate(EDITED.values(), start=3):
                edited[row, stop:, numbers] = arm(old, lam, sigma).transpose(0, 1)[:, numbers].to(z.dtype)
            return edited

        def summarise(pre: Tensor) -> Tensor:
            every = [gate.activation(row[pair.shared.to(pre.device)]) for row in pre]
            near = near_zero(every[2], c=c, q=q)
            return torch.stack([torch.stack(_readings(each, near)) for each in every])

        run = model.run(
            inputs,
            capture={**held.captures(*attention), mlp: summarise},
            edits={site(layer, "attn.hook_z"): edit},
            logits_at=[len(answered.inserted) - back for back in prepared.outcome.reads(answered)],
        )
        assert run.logits is not None
        outcomes = prepared.outcome.read(run.logits, answered)
        rows = torch.cat([run.captured[mlp].double().cpu(), outcomes.double().cpu()[:, None]], 1)
        return rows[[0, 1, *range(3, len(rows))]].T.numpy()  # the base run only gives the thresholds

    compute = single(lambda at: measured(prepared.bare[at], prepared.pairs[at]))
    how: Arguments = {"settings": settings, "options": RunOptions(checkpoint, progress), "alone": True}
    values = np.array(prepared.each(compute, label=f"mediation in layer {layer}", **how), dtype=float)
    made: Arguments = {"readings": (*READINGS, "outcome"), "values": values, "seed": seed}
    return Mediation(**made, **prepared.fields(settings))


def _readings(activations: Tensor, near: tuple[float, float]) -> list[Tensor]:
    flat = widened(activations).flatten()
    shares = [near_zero_fraction(flat, threshold=threshold) for threshold in near]
    return [*shares, flat.mean(), mean_absolute(flat), median_variance(activations)]
