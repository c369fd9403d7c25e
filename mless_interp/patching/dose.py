"""Dose-response: how attention to the inserted tokens, and the outcome, grow with their number."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from ..heads import Head
from ..metrics.attention import span_log_odds
from ..models.attention import masked_scores
from ..models.base import Model
from ..models.info import ModelError
from ..models.sites import site
from ..prompts.insertions import Insertion
from ..prompts.pairs import PromptPair, make_pairs
from ..prompts.problems import Problem
from ..prompts.prompt import Template
from ..running.progress import progress_bar
from ..statistics import Interval
from .outcomes import OUTCOMES, Outcome, named
from .scores import interval_of

DOSES = (1, 2, 4, 8, 16, 32, 55, 70, 110)
READ_CONDITIONS = ("inserted", "held")
ANSWERED_CONDITIONS = ("inserted", "held", "masked")


def slope_in_log_dose(values: np.ndarray, doses: Sequence[int] | np.ndarray) -> np.ndarray:
    r"""Least-squares slope of values `[..., dose]` in the natural logarithm of the dose, per unit of log N.

    $$ b = \frac{\sum_N (\ln N - \overline{\ln N})\, y_N}{\sum_N (\ln N - \overline{\ln N})^2} $$

    1 for the log odds of reading N identical tokens whose positions change nothing; 0: the number does not matter. NaN
    where a value is.

    Source: methods I12.

    >>> float(slope_in_log_dose(np.log([1.0, 10.0, 100.0]) + 3, [1, 10, 100]).round(6))
    1.0
    """
    x = np.log(np.asarray(doses, dtype=float))
    if len(x) < 2 or len(set(x.tolist())) != len(x):
        raise ValueError(f"a slope needs at least two different doses, got {list(doses)}")
    centred = x - x.mean()
    return np.asarray((values * centred).sum(-1) / (centred**2).sum())


def dose_response(
    model: Model,
    problems: Iterable[Problem],
    insertion: Insertion,
    *,
    doses: Sequence[int] = DOSES,
    layer: int = 0,
    outcome: str | Outcome = "answer_logprob",
    template: str | Template = "raw",
    progress: bool = True,
    seed: int = 0,
) -> "DoseResponse":
    r"""Insert 1, 2, 4 ... tokens; measure each head's log odds of reading them, and the outcome.

    For N identical tokens whose question keeps its positions (condition "held"), in layer 0 of a model with rotary
    positions,

    $$ \operatorname{logit}(1 - \lambda_i) = \ln N + \text{const} $$

    for every head and query: a slope of exactly 1 with no free parameter, which is a check of the whole measurement.
    In the condition "inserted" positions move as well, so the slope says how far that matters.

    Parameters
    ----------
    insertion : what to insert; its `n_tokens` is replaced by each of `doses`.
    layer : whose heads are read (zero-based).

    The log odds are means over the rows after the insertion that see the span at every dose. Source: methods I12, E8.
    """
    read_outcome = named(outcome, OUTCOMES, "outcome", Outcome)
    if read_outcome.needs_clean:
        raise ValueError(f"dose-response needs a signed outcome such as 'answer_logprob', got {read_outcome.name!r}")
    doses = tuple(int(dose) for dose in doses)
    if len(doses) < 2 or min(doses) < 1 or list(doses) != sorted(set(doses)):
        raise ValueError(f"doses must be at least two increasing numbers of tokens from 1 up, got {list(doses)}")
    if insertion.n_tokens is None or insertion.kind == "text":
        raise ValueError(f"an insertion of kind {insertion.kind!r} has one length only, so it has no dose")
    if not 0 <= layer < model.info.n_layers:
        raise ValueError(
            f"layer {layer} is out of range (zero-based): the model has layers 0 to {model.info.n_layers - 1}"
        )
    if not model.shows_rotated:
        raise ModelError(f"{model.info.name} shows no rotated queries and keys on backend {model.info.backend!r}")
    asked = tuple(problems)
    by_dose = [make_pairs(model, asked, replace(insertion, n_tokens=dose), template=template) for dose in doses]
    n, n_heads = len(asked), model.info.n_heads
    log_odds = {condition: np.full((n, len(doses), n_heads), np.nan) for condition in READ_CONDITIONS}
    outcomes = {condition: np.full((n, len(doses)), np.nan) for condition in ANSWERED_CONDITIONS}
    base = np.full(n, np.nan)
    with progress_bar(n * len(doses), "doses", enabled=progress) as bar:
        for index in range(n):
            rows: dict[str, list[np.ndarray]] = {condition: [] for condition in READ_CONDITIONS}
            for at, pairs in enumerate(by_dose):
                pair = pairs[index].answered(read_outcome.appended)
                for condition in ANSWERED_CONDITIONS:
                    read, value = _one(model, pair, condition, layer, read_outcome)
                    outcomes[condition][index, at] = value
                    if condition in rows:
                        rows[condition].append(read)
                if at == 0:
                    base[index] = _one(model, pair, "base", layer, read_outcome)[1]
                bar.update(1)
            for condition, read_rows in rows.items():
                log_odds[condition][index] = _mean_of_common_rows(np.stack(read_rows))
    return DoseResponse(
        problem_ids=tuple(problem.id for problem in asked),
        doses=np.array(doses),
        layer=layer,
        log_odds=log_odds,
        outcomes=outcomes,
        base=base,
        unit=read_outcome.unit,
        settings={
            "model": model.info.name,
            "backend": model.info.backend,
            "outcome": read_outcome.name,
            "insertion": replace(insertion, n_tokens=doses[-1]).label,
            "template": by_dose[0][0].template.name,
        },
        seed=seed,
    )


def _one(model: Model, pair: PromptPair, condition: str, layer: int, outcome: Outcome) -> tuple[np.ndarray, float]:
    """Log odds of reading the span `[head, row after the span]` (empty where not asked), and the outcome."""
    inputs = pair.condition(condition)
    length = inputs.n_tokens
    q_site, k_site = site(layer, "attn.hook_rot_q"), site(layer, "attn.hook_rot_k")
    result = model.run(
        inputs,
        capture={q_site: None, k_site: None} if condition in READ_CONDITIONS else {},
        logits_at=[length - back for back in outcome.reads(pair)],
    )
    assert result.logits is not None
    value = float(outcome.value(result.logits, pair, None)[0])
    if condition not in READ_CONDITIONS:
        return np.zeros((0, 0)), value
    q, k = (result.captured[name].double() for name in (q_site, k_site))
    visible = model.visible(inputs)[layer]
    after = slice(pair.span[1], length)
    scores = masked_scores(q[:, after], k, visible[:, :, after], model.attention_rule(layer))
    rows = torch.arange(length)[after].to(scores.device)
    span = pair.span_mask.to(scores.device)
    shown = visible[:, :, after].expand(scores.shape).contiguous()
    return span_log_odds(scores, span=span, visible=shown, dest_positions=rows)[0].cpu().numpy(), value


def _mean_of_common_rows(log_odds: np.ndarray) -> np.ndarray:
    """Mean over rows `[dose, head, row]` that are finite at every dose; NaN where there is none."""
    common = np.isfinite(log_odds).all(0)
    count = common.sum(-1)
    total = np.where(common, log_odds, 0.0).sum(-1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


@dataclass(frozen=True, eq=False)
class DoseResponse:
    """Log odds of reading the span per problem, dose and head of one layer, and the outcome per problem and dose.

    `log_odds[condition]` `[problem, dose, head]` for "inserted" and "held"; `outcomes[condition]` `[problem, dose]` for
    these and "masked"; `base` `[problem]` is the outcome without any insertion.
    """

    problem_ids: tuple[str, ...]
    doses: np.ndarray
    layer: int
    log_odds: dict[str, np.ndarray]
    outcomes: dict[str, np.ndarray]
    base: np.ndarray
    unit: str
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    @property
    def heads(self) -> tuple[Head, ...]:
        """The heads that were read, in order."""
        return tuple(Head(self.layer, head) for head in range(self.log_odds["held"].shape[-1]))

    def slopes(self, condition: str = "held") -> np.ndarray:
        """Slope of logit(1 - lambda) in log N, `[problem, head]`: 1 for N identical tokens at held positions in layer 0."""
        if condition not in self.log_odds:
            raise ValueError(f"unknown condition {condition!r}; choose one of {', '.join(self.log_odds)}")
        return slope_in_log_dose(np.moveaxis(self.log_odds[condition], 1, -1), self.doses)

    def effects(self, contrast: str = "total") -> Interval:
        """Mean effect of each dose on the outcome with its interval over problems, `[dose]`.

        "total": inserted - base; "content": inserted - masked; "shift": masked - base; "held": held - base.
        """
        without = self.base[:, None]
        inserted, held, masked = (self.outcomes[name] for name in ANSWERED_CONDITIONS)
        known = {
            "total": inserted - without,
            "content": inserted - masked,
            "shift": masked - without,
            "held": held - without,
        }
        if contrast not in known:
            raise ValueError(f"unknown contrast {contrast!r}; choose one of {', '.join(known)}")
        return interval_of(known[contrast], 0.95, self.seed)

    def summary(self) -> Any:
        """One row per head: both slopes with their intervals over problems, and the log odds at the largest dose."""
        import pandas as pd

        table: dict[str, Any] = {
            "layer": [head.layer for head in self.heads],
            "head": [head.head for head in self.heads],
            "label": [str(head) for head in self.heads],
            "paper_label": [head.paper_label for head in self.heads],
        }
        for condition in READ_CONDITIONS[::-1]:
            made = interval_of(self.slopes(condition), 0.95, self.seed)
            name = f"slope_{condition}"
            table |= {name: made.estimate, f"{name}_ci_low": made.low, f"{name}_ci_high": made.high}
        table[f"log_odds_at_{self.doses[-1]}"] = self.log_odds["inserted"][:, -1].mean(0)
        table["n"] = np.isfinite(self.slopes("inserted")).sum(0)
        return pd.DataFrame(table)

    def outcome_table(self) -> Any:
        """One row per dose: the mean outcome, and each contrast's effect with its interval over problems."""
        import pandas as pd

        table: dict[str, Any] = {"n_tokens": self.doses, "outcome": self.outcomes["inserted"].mean(0)}
        for contrast in ("total", "content", "shift", "held"):
            made = self.effects(contrast)
            table |= {contrast: made.estimate, f"{contrast}_ci_low": made.low, f"{contrast}_ci_high": made.high}
        return pd.DataFrame(table | {"n": np.isfinite(self.outcomes["inserted"]).sum(0)})

    def to_frame(self) -> Any:
        """One tidy row per problem, dose and head."""
        import pandas as pd

        shape = self.log_odds["held"].shape
        grid = np.indices(shape).reshape(3, -1)
        table = {
            "problem": np.array(self.problem_ids)[grid[0]],
            "n_tokens": self.doses[grid[1]],
            "label": np.array([str(head) for head in self.heads])[grid[2]],
        }
        table |= {f"log_odds_{condition}": values.ravel() for condition, values in self.log_odds.items()}
        return pd.DataFrame(table | {"outcome": self.outcomes["inserted"][grid[0], grid[1]]})

    def describe(self) -> str:
        """The slopes in both conditions, and the dose at which the outcome moves most."""
        held, inserted = self.slopes("held"), self.slopes("inserted")
        total = self.effects("total")
        most = int(np.argmax(np.abs(total.estimate)))
        low, high = float(total.low[most]), float(total.high[most])
        words = (
            f"{self.settings.get('insertion')} and fewer, {len(self.problem_ids)} problems, layer {self.layer} (zero-based), "
            f"{len(self.heads)} heads. Slope of logit(1 - lambda) in log N: held positions {_range(held)}"
        )
        words += " (1 for identical tokens in layer 0)" if self.layer == 0 else ""
        words += (
            f"; inserted {_range(inserted)}. The outcome {self.settings.get('outcome')} moves most at "
            f"{self.doses[most]} tokens: {float(total.estimate[most]):+.4f} {self.unit} against no insertion, 95 % interval "
            f"[{low:+.4f}, {high:+.4f}]"
        )
        return words + ("." if low * high > 0 else ", which holds 0 or is undefined.")

    def __repr__(self) -> str:
        table = self.outcome_table()[["n_tokens", "total", "total_ci_low", "total_ci_high", "content", "shift", "n"]]
        return f"{self.describe()}\n{table.to_string(index=False, float_format=lambda x: f'{x:+.4f}')}"


def _range(slopes: np.ndarray) -> str:
    finite = slopes[np.isfinite(slopes)]
    return f"{finite.min():.4f} to {finite.max():.4f}" if finite.size else "undefined"
