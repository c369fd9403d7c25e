"""The effect without the tokens: what a span does to some heads on average, given to prompts that lack it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scipy.stats import spearmanr
from torch import Tensor

from ..core.arguments import Arguments, check_count, checked, count_of, listed, one_of
from ..core.heads import Head
from ..mechanism.decompose import DECOMPOSED, span_reads
from ..metrics.patterns import widened
from ..models.base import Model
from ..models.memory import rows_per_pass
from ..models.sites import site
from ..patching.effect import SMALLEST_EFFECT, fewest_for, share_words
from ..patching.knockouts import random_sets
from ..patching.outcomes import Outcome
from ..patching.prepared import Prepared, Settings, prepare, single
from ..prompts.conditions import CONDITIONS, Contrast
from ..prompts.insertions import Insertion
from ..prompts.pairs import Given, PromptPair, digest_of, draws_beside
from ..runtime.columns import columns_of
from ..runtime.loop import RunOptions
from ..statistics import by_group
from .cells import Asked, Cells, heads_of, named_on
from .head_sets import halves
from .locate import under

CELLS = ("Transfer", "Random heads", "Other insertion")
"""What is given: the named heads' means, those of random heads of the same layers, those heads' under another insertion."""

Means = tuple[np.ndarray, np.ndarray]  # lambda `[..., layer, head]` and Sigma `[..., layer, head, d_head]`


@checked
def transfer(
    model: Model,
    pairs: Iterable[PromptPair] | Prepared,
    heads: Asked,
    *,
    fresh: Iterable[PromptPair] | Prepared | None = None,
    contrast: str = "total",
    outcome: str | Outcome = "answer_logprob",
    control: str | Insertion | None = "random_sentence",
    n_control_draws: int = 5,
    n_random_sets: int = 20,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    seed: int = 0,
) -> "Transfer":
    r"""Apply the insertion's mean change of the named heads to prompts without it: how much of the effect returns?

    On some problems each head's retained mass and what it reads of the span are measured, means over the rows after the span
    (the outcome's answer included: these rows are edited), then over problems,

    $$ \bar\lambda = \overline{1 - \textstyle\sum_{k \in I} A'_{ik}}, \qquad
       \bar\Sigma = \overline{\textstyle\sum_{k \in I} A'_{ik} v_k} $$

    and given to other problems' prompts that lack the span, at every token from its place on, all heads together:

    $$ z_i \leftarrow \bar\lambda z_i + \bar\Sigma, \qquad
       \text{transfer}_p = Y_p(z \leftarrow \bar\lambda z + \bar\Sigma) - Y_p $$

    If that brings the effect back, no token was needed: what the heads read is a constant bias. Controls: random sets of heads
    of the same layers, and these heads' means under another insertion of the same length and place.

    Parameters
    ----------
    fresh : problems that are given the means, none of them among `pairs`. Default: every second one of `pairs`.
    contrast : "total" (base -> inserted): given to the plain prompt. "content" (masked -> inserted): to the inserted prompt
        whose span cannot be seen, so that positions are the same. "held" (base -> held): span in place, positions unmoved.
    control : another insertion, "random_sentence" (means over `n_control_draws` draws), an `Insertion`, or None. Pairs of token
        ids have none.
    checkpoint : a folder, as in `patch_heads`.

    Raises `ValueError` for too few problems or several blocks, `ModelError` where queries and keys cannot be had.

    Source: methods §3 (the identity, per query), §8.1 | differs in: one mean for all queries and problems.
    """
    between, options = one_of(contrast, DECOMPOSED, "contrast"), RunOptions(checkpoint, progress, seed)
    check_count(n_random_sets, name="n_random_sets", at_least=0)
    check_count(n_control_draws, name="n_control_draws (control=None leaves it out)")
    if isinstance(control, str):
        one_of(control, {"random_sentence": None}, "control")
    model.need_rotated("lambda and Sigma")
    prepared = prepare(model, pairs, outcome, signed_for="a transfer")
    chosen = heads_of(model, heads, "transfer", contrast="content", outcome=outcome)
    search, other = halves(prepared, fresh)
    needed, got = fewest_for(2 * len(CELLS)), f"got {search.n_groups} and {other.n_groups}"
    if search.n_groups < 2 or other.n_groups < needed:
        raise ValueError(
            f"a transfer is measured on 2 problems (or groups) or more and tested on {needed} others, {got}"
        )
    for pair in (*search.pairs, *other.pairs):
        pair.need_span("a transfer of heads")
        pair.one_block("a transfer of heads")
    controls = _controls(search, control, n_control_draws, seed)
    sets = random_sets(chosen, model.info, n_random_sets, seed=seed)
    layers = sorted({head.layer for head in chosen})
    own, *others = (_means(each, layers, between, options) for each in (search, *controls))
    moved = [(own, chosen), *((own, members) for members in sets), *((each, chosen) for each in others)]
    lam, sigma = map(np.stack, zip(*(_moving(means, members, layers) for means, members in moved), strict=True))
    settings: Settings = {"contrast": contrast, "heads": list(map(str, chosen)), "n_random_sets": n_random_sets}
    settings |= {"control": controls[0].insertion if controls else None, "n_control_draws": len(controls)}
    settings |= {"measured_on": digest_of(search.pairs), "seed": seed}
    found = other.each(
        single(lambda at: _given(other, at, between, layers, (lam, sigma))),
        label="transferring heads",
        settings={**settings, "control_prompts": [digest_of(each.pairs) for each in controls]},
        options=options.part("transfer", chosen, settings["measured_on"]),
        alone=True,
    )
    values, ends = (np.array([each[name] for each in found], dtype=float) for name in ("given", "ends"))
    given, random, draws = np.split(values, [1, 1 + len(sets)], axis=1)
    at = _places(chosen, layers)
    made: Arguments = {"heads": chosen, "edit_lam": lam[0][at], "edit_sigma": sigma[0][at]}
    made |= {"base": ends[:, 0], "inserted": ends[:, 1], "given": given[:, 0], "sets": sets, "random": random}
    made |= {"other": draws, "measured_ids": search.ids, "seed": seed}
    return Transfer(**made, **other.fields({**settings, **named_on(heads, other.ids)}))


def _controls(search: Prepared, control: str | Insertion | None, n_draws: int, seed: int) -> list[Prepared]:
    own = search.bare[0].insertion
    if control is None or isinstance(own, Given):
        return []
    if isinstance(control, str):
        made = draws_beside(own, Insertion.random_sentence(search.bare[0].n_inserted, seed=seed), n_draws)
    else:
        made = draws_beside(own, control.placed_as(own), 1)
    if own in made:
        raise ValueError(f"control: {own.label} is the insertion under study; give another one, or None")
    return [under(search, each) for each in made]


def _means(problems: Prepared, layers: list[int], contrast: Contrast, options: RunOptions) -> Means:
    found = problems.each(
        single(lambda at: span_reads(problems.model, problems.pairs[at], layers, contrast.corrupted)),
        label=f"measuring lambda and Sigma ({problems.insertion})",
        settings={"layers": layers, "contrast": contrast.name},
        options=options.part("means", layers, problems.insertion, digest_of(problems.pairs)),
        alone=True,
    )
    lam, sigma = (np.array([each[name] for each in found], dtype=float) for name in ("lam", "sigma"))
    return by_group(lam, problems.groups).mean(0), by_group(sigma, problems.groups).mean(0)


def _places(heads: Sequence[Head], layers: list[int]) -> tuple[list[int], list[int]]:
    return [layers.index(head.layer) for head in heads], [head.head for head in heads]


def _moving(means: Means, heads: Sequence[Head], layers: list[int]) -> Means:
    """Return lambda and Sigma that move these heads and no others, of which lambda is 1 and Sigma 0."""
    (lam, sigma), inside = means, np.zeros(means[0].shape, dtype=bool)
    inside[_places(heads, layers)] = True
    return np.where(inside, lam, 1.0), np.where(inside[..., None], sigma, 0.0)


def _given(problems: Prepared, at: int, contrast: Contrast, layers: list[int], edits: Means) -> dict[str, np.ndarray]:
    """Return what each edit brings to a problem's clean run, against a row of the same pass without edit, and both ends."""
    model, runs = problems.model, problems.runs((at,))
    inputs, start = runs.inputs(contrast.clean), contrast.start(runs.first, CONDITIONS[contrast.clean])
    read, length = runs.read(contrast.clean), runs.length(contrast.clean)
    sizes = {"changed": length, "length": length, "read": len(read)}
    most = max(1, rows_per_pass(model.info, batch=1, **sizes, devices=model.devices) - 1)

    def moved(z: Tensor, place: int, part: slice) -> Tensor:
        """Return the first row left alone, each other one edited, from `start` on; not computed in half precision."""
        new, wide = z.clone(), widened(z[1:, start:])
        by, more = (torch.from_numpy(each[part, place]).to(wide) for each in edits)
        new[1:, start:] = (by[:, None, :, None] * wide + more[:, None]).to(z.dtype)
        return new

    passes = []
    for first in range(0, n_edits := len(edits[0]), most):
        part = slice(first, min(first + most, n_edits))
        put = {site(layer, "attn.hook_z"): partial(moved, place=place, part=part) for place, layer in enumerate(layers)}
        run = model.run(inputs.repeated(1 + part.stop - first), edits=put, logits_at=read)
        passes.append(runs.outcomes(run.logits)[0])
    there = model.run(runs.inputs(contrast.corrupted), logits_at=runs.read(contrast.corrupted)).logits
    ends = np.array([float(passes[0][0]), float(runs.outcomes(there)[0, 0])])
    return {"given": np.concatenate([values[1:] - values[0] for values in passes]), "ends": ends}


@dataclass(frozen=True, eq=False, repr=False)
class Transfer(Cells[str]):
    """How much of an insertion's effect comes back without its tokens: `given` `[problem]`, of `inserted` - `base`.

    `edit_lam` `[head]` and `edit_sigma` `[head, d_head]` are the means that the `heads` were given, over the rows that the edit
    changes, of `measured_ids`. `random` `[problem, set]`: what `sets` of heads of the same layers bring with their own means;
    `other` `[problem, draw]`: what these heads bring with means under another insertion. The test is of the three `CELLS`.
    """

    measured_ids: tuple[str, ...]
    heads: tuple[Head, ...]
    edit_lam: np.ndarray
    edit_sigma: np.ndarray
    base: np.ndarray
    inserted: np.ndarray
    given: np.ndarray
    sets: tuple[tuple[Head, ...], ...]
    random: np.ndarray
    other: np.ndarray
    unit: str
    smallest_effect: float = SMALLEST_EFFECT

    columns = columns_of("""
        exceeded | more than this in | of n | problems in which they exceed this control by the smallest effect
        p_exceeded | p, more than | p | that they exceed it by that in most problems, corrected
        spearman | rank correlation | | of the heads' and the insertion's effects over problems (Spearman)
    """)
    what = ("edit", "edits")

    @property
    def total_effect(self) -> np.ndarray:
        return self.inserted - self.base

    @property
    def per_cell(self) -> np.ndarray:
        """What each of `cells` brings, `[problem, cell]`; of sets (without the heads, if any is) and draws their mean."""
        apart = np.array([set(self.heads).isdisjoint(members) for members in self.sets], dtype=bool)
        random = self.random[:, apart] if apart.any() else self.random
        groups = (each.mean(1) for each in (self.given[:, None], random, self.other) if each.shape[1])
        return np.stack(list(groups), 1)

    @property
    def cells(self) -> tuple[str, ...]:  # type: ignore[override]
        sizes = (1, self.random.shape[1], self.other.shape[1])
        return tuple(name for name, size in zip(CELLS, sizes, strict=True) if size)

    def table(self) -> pd.DataFrame:
        """Give one row per cell, as of any part of an effect; `spearman`, the rank correlation with the total over problems; of
        controls `exceeded` problems in which the heads bring more by more than the smallest effect, and its corrected p."""
        more = self.whole.prevalence(self.per_cell[:, :1] - self.per_cell[:, 1:], senses=(1,))  # of each control
        total, ranks = self.whole.units(self.total_effect), []
        for cell in self.whole.units(self.per_cell).T:
            both = np.stack([cell, total])[:, ~np.isnan(cell + total)]
            varies = both.shape[1] and np.ptp(both, axis=1).all()  # else there are no ranks
            ranks.append(float(spearmanr(*both).statistic) if varies else np.nan)
        exceeded, p = [np.nan, *more.count[0]], [np.nan, *more.p_corrected[0]]
        return super().table().assign(spearman=ranks, exceeded=exceeded, p_exceeded=p)

    def to_frame(self) -> pd.DataFrame:
        """Return one tidy row per problem and cell, with both ends."""
        n = len(self.cells)
        return super().to_frame().assign(base=np.repeat(self.base, n), inserted=np.repeat(self.inserted, n))

    def headline(self) -> str:
        s, told = self.settings, "nothing: most problems show no effect of one sign"
        if self.established:
            row = self.table().iloc[0]
            rank = f"rank correlation with the problem's own effect {row['spearman']:z.2f}"
            but = f", not shown to be more than {self._least} in most problems" * (not row["p_corrected"] < self.level)
            told = f"{share_words(row)} of the effect (outcome {s.get('outcome')}; {rank}){but}"
        what = f"The mean lambda and Sigma of {listed(self.heads)} under {s.get('insertion')}"
        return f"{what}, applied to prompts without its tokens, reproduce {told}."

    def details(self) -> list[str]:
        return [f"Means of {count_of(len(self.measured_ids), 'problem')}, given to others.", *super().details()]

    def printed(self) -> pd.DataFrame:
        columns = "label share share_ci_low share_ci_high k n p_corrected median spearman exceeded".split()
        return self.table()[columns].rename(columns={"label": "means of"})
