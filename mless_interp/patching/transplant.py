"""Put the keys and values of a span into the run of another problem."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import pandas as pd
from torch import Tensor

from ..core.arguments import Arguments, check_count, checked, count_of
from ..models.base import Model
from ..models.info import Inputs
from ..models.sites import attention_sites
from ..prompts.pairs import PromptPair, over_pairs
from ..runtime.base_result import interval_columns, limits_of, tidy
from ..runtime.columns import columns_of
from ..runtime.loop import RunOptions
from ..statistics import by_group, defined_mean, derive_generator, fewest_problems, median_interval, sign_test
from ..statistics.label_swaps import swap_partners
from .outcomes import Outcome
from .prepared import Measured, Prepared, prepare, single


@checked
def transplant_span(
    model: Model,
    pairs: Iterable[PromptPair] | Prepared,
    *,
    n_partners: int = 4,
    outcome: str | Outcome = "answer_logprob",
    checkpoint: str | Path | None = None,
    progress: bool = True,
    seed: int = 0,
) -> "Transplant":
    """Give each problem's run the spans of other problems: do those problems' answers become more likely?

    Every layer's keys (before they are rotated) and values of the span's rows are those of a partner's own run with the same
    insertion. Problems are paired, each with one of the same inserted tokens and another answer; every run gets the spans of
    whole pairs. `carried`: how much more likely a pair's spans make their own answers than exchanged; above 0 in most pairs:
    the span holds something of its own problem that the answer reads. Before the question, behind the same system prompt, it
    is exactly 0.

    n_partners : other problems whose spans are given to each one, an even number: pairs that share no group with it.
    outcome : "answer_logprob" or "answer_prob".
    Source: methods §6; filler tokens after the question as in Pfau et al. (2404.15758).
    """
    options = RunOptions(checkpoint, progress, seed)
    if check_count(n_partners, name="n_partners", at_least=2) % 2:
        raise ValueError(f"n_partners must be even, as whole pairs of problems are given, got {n_partners}")
    prepared = prepare(model, pairs, outcome, signed_for="a transplant")
    read = prepared.outcome
    if read.appended != "answer" or read.needs_distractor:
        raise ValueError(f"a transplant reads others' answers: outcome {read.name!r} has none; use 'answer_logprob'")
    partners = partners_of(prepared.bare, n_partners, seed=seed)
    before = {pair.base.ids[: pair.base.indices("question")[0]] for pair in prepared.bare}
    settings = {"n_partners": n_partners, "seed": seed, "n_prompts": len(before), **prepared.settings}
    dealt = [(at, *others) for at, others in enumerate(partners)]
    given = [[prepared.bare[k] for k in each] for each in dealt]
    prompts = [[prepared.pairs[k].fingerprint() for k in each] for each in dealt]  # with their answers' prefixes
    how: Arguments = {"label": "transplanting spans", "settings": settings, "prompts": prompts, "options": options}
    found = over_pairs(model, prepared.pairs, single(lambda at: _one(model, read, given[at])), **how)
    names = tuple(tuple(prepared.ids[k] for k in chosen) for chosen in partners)
    return Transplant(partners=names, values=np.array(found, dtype=float), seed=seed, **prepared.fields(settings))


def partners_of(pairs: Sequence[PromptPair], n: int, *, seed: int) -> tuple[tuple[int, ...], ...]:
    """Deal `n` others to each problem, by their places: whole pairs, the same ones to all, that share no group with it."""
    groups = [pair.problem.group or pair.id for pair in pairs]
    answers, tokens = (pd.Series([getattr(p, ids) for p in pairs]).factorize()[0] for ids in ("answer_ids", "span_ids"))
    every = enumerate(swap_partners(answers, tokens.tolist(), groups, seed=seed).tolist())
    circle = [(one, other) for one, other in every if one < other]
    derive_generator(seed, "transplant partners").shuffle(circle)
    behind = {place: at + 1 for at, two in enumerate(circle) for place in two}  # so every pair is given to two or more
    found = []
    for at, pair in enumerate(pairs):
        start = behind.get(at, at) % max(len(circle), 1)
        around = [two for two in circle[start:] + circle[:start] if tokens[two[0]] == tokens[at]]
        fit = [two for two in around if groups[at] not in {groups[place] for place in two}]
        if len(fit) < n // 2:
            few = f"problem {pair.id!r} has {count_of(len(fit), 'pair')} of partners among {len(pairs)} problems"
            needs = f"{n // 2} of other groups, with the very same inserted tokens and answers that differ"
            raise ValueError(f"{few}: a transplant needs {needs}")
        found.append(tuple(place for two in fit[: n // 2] for place in two))
    return tuple(found)


def _one(model: Model, outcome: Outcome, pairs: Sequence[PromptPair]) -> np.ndarray:
    """Read `[answer, span]` of the first of these problems, with its own and with the others' answers and spans."""
    sites = [name for layer in range(model.info.n_layers) for name in attention_sites(layer, "k", "v")]
    spans = [_span_of(model, pair, sites) for pair in pairs[1:]]
    values = np.empty((len(pairs), len(pairs)))

    def put(value: Tensor, name: str, rows: Tensor) -> Tensor:
        new = value.clone()
        for row, span in enumerate(spans, start=1):
            new[row, rows.to(value.device)] = span[name].to(value)
        return new

    for at, pair in enumerate(pairs):
        asked = outcome.asked(replace(pairs[0], answer_ids=pair.answer_ids), model.info)
        edits = {name: partial(put, name=name, rows=asked.span_mask.nonzero()[:, 0]) for name in sites}
        read = [len(asked.inserted) - back for back in outcome.reads(asked)]
        logits = model.run(Inputs(asked.inserted.tokens.repeat(len(pairs), 1)), edits=edits, logits_at=read).logits
        assert logits is not None
        values[at] = outcome.read(logits, asked).double().cpu().numpy()
    return values


def _span_of(model: Model, pair: PromptPair, sites: Sequence[str]) -> dict[str, Tensor]:
    """Read keys (before they are rotated) and values of the span's rows by hook name, `[token, kv_head, d_head]`."""
    rows = pair.span_mask.nonzero()[:, 0]
    kept = dict.fromkeys(sites, lambda x: x[0, rows.to(x.device)].clone())
    return model.run(pair.condition("inserted"), capture=kept, logits_at="none").captured


@dataclass(frozen=True, eq=False, repr=False)
class Transplant(Measured):
    """Outcomes of each problem's run with its own and other problems' spans, `values` `[problem, answer, span]`: place 0 of
    both is the problem itself, place k its k-th partner (`partners[problem]`, ids). Places 1 and 2 are a pair, 3 and 4, ..."""

    partners: tuple[tuple[str, ...], ...]
    values: np.ndarray
    unit: str

    signed = True
    caption = "What transplanted spans do: medians over pairs of problems, with intervals."
    columns = columns_of("""
        reading | reading | | what is read: how much a span raises its own answer
        above | above 0 in | | pairs whose number is above 0, beyond rounding
        n | pairs | | pairs of problems, or of groups of them
    """)

    @cached_property
    def exchanged(self) -> dict[tuple[str, str], np.ndarray]:
        """Find the outcomes of each pair (ids) in the runs that got its spans, `[recipient, answer, span]`."""
        found: dict[tuple[str, str], list[np.ndarray]] = {}
        for values, ids in zip(self.values, self.partners, strict=True):
            for at in range(0, len(ids) - 1, 2):
                found.setdefault((ids[at], ids[at + 1]), []).append(values[at + 1 : at + 3, at + 1 : at + 3])
        if len(set().union(*found)) < 2 * len(found):
            raise ValueError("these pairs share problems, as an earlier version made them: transplant again")
        return {pair: np.stack(each) for pair, each in found.items()}

    @cached_property
    def carried(self) -> np.ndarray:
        """How much more likely its spans make a pair's own answers than exchanged, `[pair]`, in the order of `exchanged`."""
        return np.array([defined_mean((y * (np.eye(2) - 0.5)).sum((1, 2))) for y in self.exchanged.values()])

    @cached_property
    def by_unit(self) -> np.ndarray:
        """`carried` of pairs of groups, `[unit]`: exchanged spans would change the sign of one alone."""
        group_of = dict(zip(self.problem_ids, self.groups or self.problem_ids, strict=True))
        return by_group(self.carried, [" | ".join(sorted(group_of[each] for each in pair)) for pair in self.exchanged])

    @property
    def counted(self) -> str:
        return f"{count_of(int(np.isfinite(self.by_unit).sum()), 'pair')} of {'groups' if self.groups else 'problems'}"

    def table(self) -> pd.DataFrame:
        """Return one row: the median of `carried` over pairs, in how many of n it is above 0, p of a sign test."""
        values = self.by_unit[:, None]
        made = interval_columns("median", median_interval(values, confidence=self.confidence))
        above, p = (values > self.resolution).sum(0), sign_test(values, rounding=self.resolution)
        return pd.DataFrame({"reading": ["carried"], **made, "above": above, "n": np.isfinite(values).sum(0), "p": p})

    def to_frame(self) -> pd.DataFrame:
        """Return one tidy row per problem, whose answer is read and whose span is there."""
        tables = []
        for problem, partners, values in zip(self.problem_ids, self.partners, self.values, strict=True):
            both = [problem, *partners]
            tables.append(tidy({"problem": [problem], "answer_of": both, "span_of": both}, value=values[None]))
        return pd.concat(tables, ignore_index=True)

    def headline(self) -> str:
        if np.isnan(self.carried).all():
            return f"{self.settings.get('outcome')} is undefined in every problem."
        if np.fmax.reduce(np.abs(self.carried)) <= self.resolution:
            return f"Nothing changes in any pair by more than rounding ({self.resolution:.1g} {self.unit})."
        row = self.table().iloc[0]
        told = f"median {row['median']:+.4f} {self.unit}{limits_of(row['median_ci_low'], row['median_ci_high'])}"
        does = "is not shown to change"
        if row["p"] < self.level:
            does = "raises" if row["median"] > 0 else "lowers"
        return f"The transplanted span {does} its own problem's answer ({told}); {self.counted}."

    def details(self) -> list[str]:
        n, needed = self.settings.get("n_prompts", 1), fewest_problems(2, alpha=self.level)
        several = f"Before their questions these problems have {n} different prompts: what is carried may be theirs."
        few = f"Nothing can be shown with fewer than {count_of(needed, 'pair')}."
        return [several] * (n > 1) + [few] * bool(np.isfinite(self.by_unit).sum() < needed)
