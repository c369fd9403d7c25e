"""Put the keys and values of a span into the run of another problem."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import pandas as pd
from torch import Tensor

from ..core.arguments import Arguments, check_count, checked
from ..models.base import Model
from ..models.info import Inputs
from ..models.sites import attention_sites
from ..prompts.pairs import PromptPair, over_pairs
from ..runtime.base_result import interval_columns, limits_of, tidy
from ..runtime.columns import columns_of
from ..runtime.loop import RunOptions
from ..statistics import derive_generator, median_interval, sign_test
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
    insertion. `carried`: how much more likely a partner's span makes the partner's answer than the other partners' spans do;
    above 0 in most problems: the span holds something of its own problem that the answer reads. Before the question, behind
    the same system prompt, it is exactly 0.

    n_partners : other problems whose spans are given to each one, 2 or more, drawn among those with the same inserted tokens
        and answers that all differ.
    outcome : "answer_logprob" or "answer_prob".
    Source: methods §6; filler tokens after the question as in Pfau et al. (2404.15758).
    """
    options = RunOptions(checkpoint, progress, seed)
    check_count(n_partners, name="n_partners", at_least=2)  # an answer is held against the other partners' spans
    prepared = prepare(model, pairs, outcome, signed_for="a transplant")
    read = prepared.outcome
    if read.appended != "answer" or read.needs_distractor:
        raise ValueError(f"a transplant reads others' answers: outcome {read.name!r} has none; use 'answer_logprob'")
    partners = partners_of(prepared.bare, n_partners, seed=seed)
    before = {pair.base.ids[: pair.base.indices("question")[0]] for pair in prepared.bare}
    settings = {"n_partners": n_partners, "seed": seed, "n_prompts": len(before), **prepared.settings}
    given = [[prepared.bare[k] for k in (at, *others)] for at, others in enumerate(partners)]
    prompts = [[pair.fingerprint() for pair in each] for each in given]
    how: Arguments = {"label": "transplanting spans", "settings": settings, "prompts": prompts, "options": options}
    found = over_pairs(model, prepared.pairs, single(lambda at: _one(model, read, given[at])), **how)
    names = tuple(tuple(prepared.ids[k] for k in chosen) for chosen in partners)
    return Transplant(partners=names, values=np.array(found, dtype=float), seed=seed, **prepared.fields(settings))


def partners_of(pairs: Sequence[PromptPair], n: int, *, seed: int) -> tuple[tuple[int, ...], ...]:
    """Draw for each problem `n` others whose answers differ from its own and from each other's, by their places."""
    found = []
    for at, pair in enumerate(pairs):
        chosen: dict[tuple[int, ...], int] = {pair.answer_ids: at}
        for other in derive_generator(seed, "transplant partners", pair.id).permutation(len(pairs)).tolist():
            if pairs[other].span_ids == pair.span_ids and len(chosen) <= n:
                chosen.setdefault(pairs[other].answer_ids, other)
        if len(chosen) <= n:
            needs = f"a transplant needs {n} others with the very same inserted tokens and answers that differ"
            raise ValueError(f"problem {pair.id!r} has {len(chosen) - 1} partners among {len(pairs)} problems: {needs}")
        found.append(tuple(chosen.values())[1:])
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
    both is the problem itself, place k its k-th partner (`partners[problem]`, ids)."""

    partners: tuple[tuple[str, ...], ...]
    values: np.ndarray
    unit: str

    signed = True
    caption = "What transplanted spans do: medians over problems, with intervals."
    columns = columns_of("""
        reading | reading | | what is read: how much a span raises its own answer
        above | above 0 in | | problems whose number is above 0, beyond rounding
    """)

    @cached_property
    def carried(self) -> np.ndarray:
        """How much more likely its own span makes a partner's answer than the other partners' spans do, `[problem]`."""
        theirs = self.values[:, 1:, 1:]
        own = np.einsum("pkk->pk", theirs)
        return (own - (theirs.sum(2) - own) / (theirs.shape[1] - 1)).mean(1)

    def table(self) -> pd.DataFrame:
        """Return one row: the median of `carried`, in how many problems it is above 0, p of a sign test."""
        values = self.by_group(self.carried[:, None])
        made = interval_columns("median", median_interval(values, confidence=self.confidence))
        above, p = (values > self.resolution).sum(0), sign_test(values, rounding=self.resolution)
        return pd.DataFrame({"reading": ["carried"], **made, "above": above, "n": len(values), "p": p})

    def to_frame(self) -> pd.DataFrame:
        """Return one tidy row per problem, whose answer is read and whose span is there."""
        tables = []
        for problem, partners, values in zip(self.problem_ids, self.partners, self.values, strict=True):
            both = [problem, *partners]
            tables.append(tidy({"problem": [problem], "answer_of": both, "span_of": both}, value=values[None]))
        return pd.concat(tables, ignore_index=True)

    def headline(self) -> str:
        if np.abs(self.carried).max() <= self.resolution:
            return "Nothing changes in any problem: the span holds nothing of the question it is read with."
        row = self.table().iloc[0]
        sure, limits = row["p"] < self.level, limits_of(row["median_ci_low"], row["median_ci_high"])
        against = ", but the other way round" if sure and row["median"] < 0 else ""
        told = f"{'' if sure else 'not established, '}median {row['median']:+.4f} {self.unit}{limits}"
        return f"The transplanted span raises its own problem's answer{against} ({told}); {self.counted}."

    def details(self) -> list[str]:
        n = self.settings.get("n_prompts", 1)
        several = f"Before their questions these problems have {n} different prompts: what is carried may be theirs."
        return [several] if n > 1 else []
