"""Heads' sight of the span taken away: reads taken apart, and sets of heads against random sets and single knockouts."""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from ..core.arguments import Arguments, check_count, check_share, checked, count_of, listed, one_of
from ..core.heads import Head
from ..models.base import Model
from ..models.info import ModelInfo
from ..models.memory import rows_per_pass
from ..prompts.conditions import CONTRASTS, OF_CIRCUITS, Contrast
from ..prompts.pairs import PromptPair
from ..runtime import base_result as results
from ..runtime.base_result import Quantity, Shown, ShownTable, counted, interval_columns, limits_of, tidy, with_limits
from ..runtime.columns import columns_of
from ..runtime.loop import RunOptions
from ..statistics import CONFIDENCE, defined_mean, derive_generator, holm, median_interval, prevalence_test, sign_test
from .effect import SMALLEST_EFFECT, WHOLE, Parts, fewest_for
from .interventions import Knockout, PatchZ, run_edits
from .outcomes import Outcome
from .prepared import Gated, Measured, Prepared, Runs, Settings, prepare, single
from .sweep import Sweep, sweep_heads

CHOSEN_HERE = "chosen on these problems, so no p-value"
"""Printed instead of a p-value where the same problems chose the heads by their effects."""
MATTERS = {"same": "matters", "less": "hardly matters by itself", "other": "acts the other way"}
REPLACES = {"same": "does not replace the span", "less": "replaces the span", "other": "does even more"}
FOLLOWS = {
    "knockout_zero": ("what it reads from the span (bias)", MATTERS),
    "restore_scale": ("less attention to the rest (scale)", MATTERS),
    "reroute_to_sink": ("the first token", REPLACES),
    "reroute_uniform": ("an even spread over all other tokens", REPLACES),
}
"""What follows of an edit that acts as the knockout does, next to nothing and less than half of it, or against it."""
READ_EDITS = ("knockout", *FOLLOWS)  # the edits of a read; the last axis of `ReadEffects.values`
ASKED = ("more", "against", "less")
"""The possible verdicts of a cell: beyond the smallest effect with or against the insertion's effect, or below it."""
BESIDE = ("half", "half_against")
"""The verdicts of an edit compared with the knockout: less than half of it, where that is with the effect, or against it."""


@checked
def joint_knockout(
    model: Model,
    pairs: Iterable[PromptPair] | Prepared,
    heads: Iterable[Head | str],
    *,
    contrast: str = "content",
    outcome: str | Outcome = "answer_logprob",
    n_random_sets: int = 100,
    singles: np.ndarray | None = None,
    chosen_elsewhere: bool = False,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    seed: int = 0,
) -> "JointKnockout":
    r"""Hide the span from a set of heads at once, and from random sets of equal size in the same layers.

    $$ \Delta_p(S) = Y_p - Y_p^{\,S \text{ cannot see the span}}, \qquad
       p = \frac{1 + \#\{R : |\tilde\Delta(R)| \ge |\tilde\Delta(S)|\}}{1 + \#R} $$

    with the median over problems. Each random set holds as many heads of each layer as the given one, some perhaps of the given
    ones. Where no more than `n_random_sets` exist, all are taken and p is exact.

    contrast : "content", or "computed": what is taken is then the span's sight of the question.
    singles : effects of the single knockouts `[problem, head]` in the order of `heads`; swept here otherwise.
    chosen_elsewhere : True says that the heads were chosen without these problems; only then is there a p.
    Source: the necessity test of Shi et al. (2410.13032), methods §8 | differs in: attention to the span is knocked out, not
    the head; whole sets keep their layers.
    """
    options, between = RunOptions(checkpoint, progress, seed), cutting(contrast)
    prepared = prepare(model, pairs, outcome, signed_for="a joint knockout").under(between)
    check_count(n_random_sets, name="n_random_sets", at_least=0)
    chosen = model.info.chosen(heads, what="knock out")
    sets = random_sets(chosen, model.info, n_random_sets, seed=seed)
    gates = torch.stack([gate_row(members, model.info) for members in ((), chosen, *sets)])
    settings: Settings = {"heads": list(map(str, chosen)), "contrast": contrast}
    settings |= {"n_random_sets": n_random_sets, "seed": seed}
    how: Arguments = {"settings": settings, "contrast": between, "options": options}
    values = gated_outcomes(prepared, gates, label="knocking out sets of heads", **how)
    if singles is None:
        sweep = Sweep.named(contrast, edit="knockout" if between.cuts else "z")
        swept = sweep_heads(prepared, {"singles": sweep}, chosen, options=options.beside("singles", chosen))
        singles = swept["singles"].per_head
    effect, random = values[:, 0] - values[:, 1], values[:, :1] - values[:, 2:]
    made: Arguments = {"effect": effect, "singles": singles, "random": random, "sets": sets}
    made |= {"heads": chosen, "seed": seed, "chosen_elsewhere": chosen_elsewhere}
    return JointKnockout(**made, **prepared.fields(settings))


def cutting(contrast: str) -> Contrast:
    """Look up a contrast in which heads can be cut off or given what they wrote clean."""
    return one_of(contrast, {name: CONTRASTS[name] for name in OF_CIRCUITS}, "contrast that hides or exchanges tokens")


def random_sets(heads: Sequence[Head], info: ModelInfo, n_sets: int, *, seed: int) -> tuple[tuple[Head, ...], ...]:
    """Draw other sets with as many heads in each layer (some hold some of these): all, or `n_sets` at random, each once."""
    counts = sorted(Counter(head.layer for head in heads).items())
    given, others = set(heads), {layer: [head for head in info.heads if head.layer == layer] for layer, _ in counts}
    if math.prod(math.comb(info.n_heads, count) for _, count in counts) - 1 <= n_sets:
        every = itertools.product(*(itertools.combinations(others[layer], count) for layer, count in counts))
        return tuple(found for parts in every if set(found := tuple(itertools.chain(*parts))) != given)
    generator = derive_generator(seed, "random head sets", *heads)
    drawn: dict[tuple[Head, ...], None] = {}
    while len(drawn) < n_sets:
        places = {layer: generator.choice(len(others[layer]), count, replace=False) for layer, count in counts}
        found = tuple(others[layer][at] for layer, _ in counts for at in sorted(places[layer]))
        if set(found) != given:
            drawn[found] = None
    return tuple(drawn)


def gate_row(heads: Iterable[Head], info: ModelInfo, *, closed: bool = True) -> torch.Tensor:
    """Make gates `[layer, head]`: these heads closed and all others open, or (`closed=False`) these open and others closed."""
    return torch.from_numpy(info.mask_of(heads) != closed).float()


def gated_outcomes(
    prepared: Prepared,
    gates: torch.Tensor,
    *,
    label: str,
    settings: Settings,
    contrast: Contrast,
    options: RunOptions = RunOptions(),
) -> np.ndarray:
    """Read the outcome `[problem, row]` under each row of gates `[row, layer, head]`, 0 (cannot see the span) or 1, in the
    contrast's corrupted run. Where nothing can be cut off ("replaced"), a closed gate gives the head its clean output."""
    way = _by_replay if contrast.cuts and prepared.model.stepper is not None else _by_forward
    compute = single(lambda at: way(prepared.runs((at,)), gates, contrast))
    return np.array(prepared.each(compute, label=label, settings=settings, alone=True, options=options), dtype=float)


def _by_replay(runs: Runs, gates: torch.Tensor, contrast: Contrast) -> np.ndarray:
    gated = Gated(runs, contrast)
    most = rows_per_pass(runs.model.info, batch=1, **gated.sizes, devices=runs.model.devices)
    # of all rows, so that a part's bits are the whole's
    layers = (gates != 1).any(-1).any(0).nonzero().flatten().tolist()
    with torch.no_grad():
        parts = gates.to(gated.recording.z[0]).split(most)
        logits = [gated.tail(gates=part, span=gated.span, rows=gated.rows, gated_layers=layers) for part in parts]
    return np.concatenate([runs.outcomes(each)[0] for each in logits])


def _by_forward(runs: Runs, gates: torch.Tensor, contrast: Contrast) -> np.ndarray:
    run, (rows, span) = contrast.corrupted, runs.cut(contrast)
    inputs, start = runs.inputs(run), runs.start(contrast, run)
    edit, donor = (Knockout(), None) if contrast.cuts else (PatchZ(), runs.recording(contrast.clean, start))
    edited = partial(run_edits, runs.model, inputs, edit, span=span, rows=rows, start=start, donor=donor)
    found = []
    for row in gates:
        shut = [Head(*place) for place in (row == 0).nonzero().tolist()]
        edits = edited(shut) if shut else {}
        found.append(runs.outcomes(runs.model.run(inputs, edits=edits, logits_at=runs.read(run)).logits)[0])
    return np.concatenate(found)


@dataclass(frozen=True, eq=False, repr=False)
class JointKnockout(Measured):
    """A set of heads knocked out together: `effect` `[problem]`, what that removes of the insertion's effect.

    `singles` `[problem, head]` is what each removes alone, `random` `[problem, set]` what each of `sets` removes together.
    Heads that were not `chosen_elsewhere` have no `p`: the choice alone makes them beat random ones.
    """

    heads: tuple[Head, ...]
    effect: np.ndarray
    singles: np.ndarray
    random: np.ndarray
    sets: tuple[tuple[Head, ...], ...]
    unit: str
    chosen_elsewhere: bool = False

    columns = columns_of("""
        median | median part of the insertion's effect | | what the set carries: knocking it out undoes this
        effect | mean part | | the same, mean over problems
    """)

    @property
    def interaction(self) -> np.ndarray:
        """Joint knockout minus the sum of the single ones, `[problem]`; of the effect's own sign: together they do more."""
        return self.effect - self.singles.sum(1)

    @property
    def p(self) -> float:
        """Rank of the set's |median effect| among random ones' and its own; NaN without any, or where chosen here."""
        return (1 + self.n_as_large) / (1 + len(self.sets)) if self.sets and self.chosen_elsewhere else float("nan")

    @property
    def n_as_large(self) -> int:
        """Count random sets whose |median effect| is as large as the set's."""
        own, others = (np.abs(median_interval(self.by_group(each)).estimate) for each in (self.effect, self.random))
        return int((~(others < own * (1 - 1e-9))).sum())  # an undefined one is not told from it

    def table(self) -> pd.DataFrame:
        """Return one row per set, the given one first: median effect and mean."""
        values = np.column_stack([self.effect, self.random])
        made = interval_columns("median", median_interval(self.by_group(values), confidence=self.confidence))
        names = ["given"] + [f"random {i}" for i in range(len(self.sets))]
        heads = [" ".join(map(str, members)) for members in (self.heads, *self.sets)]
        return pd.DataFrame({"set": names, "heads": heads, **made, "effect": defined_mean(self.by_group(values))})

    def to_frame(self) -> pd.DataFrame:
        """Return one tidy row per set (`given`, `random 0`, ...; `singles`: the sum of its heads one at a time) and problem."""
        sets = {"given": self.effect, "singles": self.singles.sum(1)}
        sets |= {f"random {at}": values for at, values in enumerate(self.random.T)}
        rows = tidy({"measure": list(sets), "problem": self.problem_ids}, value=np.stack(list(sets.values())))
        return rows[["problem", "measure", "value"]]

    def headline(self) -> str:
        together, outcome = " together" if len(self.heads) > 1 else "", self.settings.get("outcome") or "the outcome"
        made = median_interval(-self.by_group(self.effect), confidence=self.confidence)  # the outcome's change
        if not made.n:
            return f"{outcome} is undefined in every problem."
        raises, lowers = float(made.low) > self.resolution, float(made.high) < -self.resolution
        does = "raises" if raises else "lowers" if lowers else "is not shown to change"
        size = f"{float(made.estimate):+#.3g} {self.unit}{limits_of(made.low, made.high, '+#.3g')}"
        over = counted(int(made.n), self.groups)
        return f"Knocking out {listed(self.heads)}{together} {does} {outcome} (median {size} over {over})."

    def in_short(self) -> list[str]:
        """Return a sentence on what several heads undo together, beside random sets; none of one head or without such sets."""
        if len(self.heads) < 2 or not self.sets or np.isnan(self.effect).all():
            return []
        own, others = self._middle(self.effect), self._middle(self.random)
        p = f" (p = {self.p:.2g})" if self.chosen_elsewhere else ""
        sets = f"{len(self.sets)} random sets {others:#.3g} (median), {self.n_as_large or 'none'} as much"
        on = counted(int(median_interval(self.by_group(self.effect)).n), self.groups, "fresh " * self.chosen_elsewhere)
        return [f"Together {listed(self.heads)} undo {own:#.3g} {self.unit} on {on}; {sets}{p}."]

    def _middle(self, values: np.ndarray) -> float:
        return float(np.nanmedian(median_interval(self._turned(values)).estimate))

    def _turned(self, values: np.ndarray) -> np.ndarray:
        """Return effects of groups, positive where they have the sign of the set's."""
        return self.by_group(values) * (-1.0 if median_interval(self.by_group(self.effect)).estimate < 0 else 1.0)

    def details(self) -> list[str]:
        found: list[str] = []
        if np.isnan(self.effect).all():
            return found
        if self.sets:
            p = f"p = {self.p:.3g}" if self.chosen_elsewhere else CHOSEN_HERE
            others = f"Of {count_of(len(self.sets), 'random set')} in the same layers"
            found.append(f"{others} {self.n_as_large or 'none'} do{'es' * (self.n_as_large < 2)} as much; {p}.")
        elif self.settings.get("n_random_sets"):
            found.append("There is no other set of the same size in the same layers.")
        if len(self.heads) > 1:
            apart, words = self._turned(self.interaction), "they add up, as far as can be told"
            made = median_interval(apart, confidence=self.confidence)
            if float(sign_test(apart)) < self.level:
                words = "together they do more than their sum" if made.estimate > 0 else "they overlap"
                if abs(made.estimate) <= SMALLEST_EFFECT * self._middle(self.effect[:, None]):
                    words = f"less than {100 * SMALLEST_EFFECT:.0f} % of what they do together"
            words = f": {words}" if np.isfinite(made.low) else ""
            found.append(f"Interaction (above 0: more than the sum of single knockouts) {with_limits(made)}{words}.")
        return found

    def printed(self) -> pd.DataFrame:
        """Return the set's row, and one of the random sets: their median, and between which medians the middle of them lie."""
        table = self.table()
        made, random = table.head(1).copy(), table.iloc[1:]
        if len(random):
            which = f"median and middle {self.interval_words} of {count_of(len(random), 'set')}"
            middle = random["median"].quantile([0.5, (1 - self.confidence) / 2, (1 + self.confidence) / 2])
            made.loc[1] = ["random", which, *middle, random["effect"].median()]
        return made

    def rest(self) -> str:
        return next(iter(self.details()), "") if self.sets else ""


@checked
def read_effects(
    model: Model,
    pairs: Iterable[PromptPair] | Prepared,
    heads: Iterable[Head | str],
    *,
    outcome: str | Outcome = "answer_logprob",
    confidence: float = CONFIDENCE,
    smallest_effect: float = SMALLEST_EFFECT,
    chosen_elsewhere: bool = False,
    checkpoint: str | Path | None = None,
    max_rows: int | None = None,
    progress: bool = True,
) -> "ReadEffects":
    r"""Measure what heads read from the span: five edits of each head's attention to it, one head at a time, exactly.

    A head writes $z' = \lambda z_- + \Sigma$, with $\lambda$ the attention that it keeps for the rest, $z_-$ what the rest
    alone would give it and $\Sigma$ what it takes from the span. Each edit puts something else in its place at every token
    after the insertion (content contrast, denoising) and removes $Y_\text{receiving} - Y_\text{patched}$ of the effect:

    - `knockout`, $z_-$: the whole direct read; without it nothing is concluded of the others.
    - `knockout_zero`, $\lambda z_-$: the **bias** alone.
    - `restore_scale`, $z^\text{ref} + \Sigma$ with the output of the run without the span: the **scale** alone, in layer 0;
      deeper it also undoes what earlier layers changed, so nothing is concluded from it there.
    - `reroute_to_sink`, $\lambda z_- + (1 - \lambda) u$ with the value $u$ of the first token outside the span. Where next to
      nothing goes, the span is just a place to park attention. NaN where a row cannot see that token.
    - `reroute_uniform`, the same with the mean value of the other tokens: only dilution, where next to nothing goes.

    smallest_effect : as a share of the upper limit of the |median total effect|, above 0.
    chosen_elsewhere : True says that the heads were chosen without these problems; only then are there p-values.
    Source: methods §3 (I1, I7, I8), §6, §8.
    """
    options = RunOptions(checkpoint, progress, max_rows=max_rows)
    check_share(confidence, name="confidence")
    check_share(smallest_effect, name="smallest_effect")
    prepared = prepare(model, pairs, outcome, signed_for="taking a read apart")
    chosen = model.info.chosen(heads, what="take apart")
    swept = sweep_heads(prepared, {name: Sweep.named(edit=name) for name in READ_EDITS}, chosen, options=options)
    return ReadEffects(
        heads=chosen,
        values=np.stack([swept[name].per_head for name in READ_EDITS], -1),
        total=swept["knockout"].total_effect,
        confidence=confidence,
        smallest_effect=smallest_effect,
        chosen_elsewhere=chosen_elsewhere,
        **prepared.fields({"heads": list(map(str, chosen)), "contrast": "content"}),
    )


@dataclass(frozen=True, eq=False, repr=False)
class ReadEffects(Parts):
    """The effect that each edit of each head's read removes: `values` `[problem, head, intervention]` (`READ_EDITS`).

    A cell is *shown* to remove "more" than the smallest effect (with the effect, or "against" it), or "less" than that, where
    most problems do (exact tests, Holm over all). That an edit does next to nothing is concluded where it is also smaller than
    half of what the knockout removes, in most problems. Unless the heads were `chosen_elsewhere` p is NaN.
    """

    heads: tuple[Head, ...]
    values: np.ndarray
    total: np.ndarray
    unit: str
    smallest_effect: float = SMALLEST_EFFECT
    chosen_elsewhere: bool = False

    columns = columns_of("""
        intervention | edit | | what is done to the head's attention to the span
        knockout | knockout | | what hiding the span from the head removes
        shown | shown | verdict | what most problems show, by an exact test
        p_more | p, more | p | that it does more than the smallest effect in most problems
        p_against | p, against | p | that it does more than the smallest effect against the insertion's in most problems
        p_less | p, less | p | that it does less than the smallest effect in most problems
        p_half | p, half | p | that it does less than half of what the knockout does with the effect, in most problems
        p_half_against | p, half, against | p | that it does less than half of what the knockout does against the effect
    """)
    reported = (
        *("label", "layer", "head", "intervention", "shown", "k", "n", "n_undefined", "median", "share"),
        *(f"p_{name}" for name in ASKED + BESIDE),
    )

    @property
    def turned(self) -> np.ndarray:
        return self.whole.turned(self.values)

    @cached_property
    def _corrected(self) -> np.ndarray:
        # `p`, also where the heads were chosen here; NaN where nothing is tested
        if np.isnan(self.whole.delta):
            return np.full((len(ASKED + BESIDE), *self.values.shape[1:]), np.nan)
        knocked = self.turned[..., :1]
        below_half = np.sign(knocked) * np.maximum(np.abs(knocked) - 2 * np.abs(self.turned), 0.0)
        half = prevalence_test(self.whole.units(below_half), 0.0).p
        half[..., 0] = np.nan  # the knockout beside itself
        return holm(np.concatenate([self.prevalence.p, self.whole.within(self.values)[0][None], half]))

    @property
    def _sure(self) -> np.ndarray:
        return np.nan_to_num(self._corrected, nan=1.0) < self.level

    @property
    def p(self) -> np.ndarray:
        """`[more | against | less | half | half_against, head, intervention]`; NaN where the heads were chosen here."""
        return self._corrected if self.chosen_elsewhere else np.full_like(self._corrected, np.nan)

    @cached_property
    def verdicts(self) -> np.ndarray:
        """Judge each cell, `[head, intervention]`: one of `ASKED`, "" for none."""
        return np.select(list(self._sure[: len(ASKED)]), ASKED, default="")

    def table(self) -> pd.DataFrame:
        """Return one row per head and edit: `median` of what it removes and its `share` of the total; `k` of `n` problems in
        which more than delta is removed; corrected p of each question; `shown`."""
        made, counted = self.median, self.prevalence
        columns = interval_columns("median", made) | interval_columns("share", self.share)
        columns |= {"k": counted.count[0], "prevalence": counted.share[0]}
        columns |= {"prevalence_ci_low": counted.low[0], "prevalence_ci_high": counted.high[0]}
        columns |= {f"p_{name}": p for name, p in zip(ASKED + BESIDE, self.p, strict=True)}
        columns |= {"shown": self.verdicts, "n": made.n, "n_undefined": self.n_groups - made.n}
        heads = results.head_columns([head for head in self.heads for _ in READ_EDITS])
        edits = {"intervention": READ_EDITS * len(self.heads)}
        return pd.DataFrame(heads | edits | {name: np.ravel(cells) for name, cells in columns.items()})

    def quantity(self, column: str) -> Quantity:
        unit = {"share": WHOLE, "prevalence": "1: every problem"}.get(column, self.unit)
        return Quantity(unit, column != "prevalence")

    def to_frame(self) -> pd.DataFrame:
        """Return one tidy row per edit (the `measure`), problem and head."""
        edits = {name: self.values[..., at] for at, name in enumerate(READ_EDITS)}
        return results.rows_per_head(self.problem_ids, self.heads, edits)

    def printed(self) -> pd.DataFrame:
        said = {"": "", "more": f" (> {self._least})", "less": f" (< {self._least})", "against": " (against)"}
        table: dict[str, list[str]] = {"label": list(map(str, self.heads))}
        for k, name in enumerate(READ_EDITS):
            table[name] = [f"{self._amount(at, k)}{said[shown]}" for at, shown in enumerate(self.verdicts[:, k])]
        return pd.DataFrame(table)

    def shown(self) -> Shown:
        how = "p after Holm over all tests" if self.chosen_elsewhere else CHOSEN_HERE
        caption = f"What each edit of a head's attention to the span undoes (median, {self.unit}); {how}."
        return Shown((ShownTable(self.summary().drop(columns=["layer", "head"]), caption),))

    def headline(self) -> str:
        if not self.established:
            s = self.settings
            return f"{self.whole.headline(s.get('insertion'), s.get('outcome'), self.unit)}, so no read is judged."
        told = listed(f"{head} {self._amount(at, 0)}" for at, head in enumerate(self.heads))
        over = self.whole.counted(self.whole.n)
        return f"Without attention to the span, this share of the effect disappears (median over {over}): {told}."

    def details(self) -> list[str]:
        if not self.established:
            return []
        n_tests = len(self.heads) * (len(ASKED) * len(READ_EDITS) + len(BESIDE) * (len(READ_EDITS) - 1))
        if self.whole.n < (needed := fewest_for(n_tests, self.confidence)):
            first = f"Nothing can be shown with fewer than {self.whole.counted(needed)}: the edits are only described."
        else:
            tests = f"p < {self.level:.3g} after Holm over {np.isfinite(self._corrected).sum()} tests"
            how = tests if self.chosen_elsewhere else CHOSEN_HERE
            first = f"Shown in most problems (smallest effect {self.whole.delta_words(self.unit)}; {how})."
        return [first, *map(self._conclusion, range(len(self.heads)))]

    def _amount(self, at: int, k: int) -> str:
        made, scale, unit, form = self.median, 1, self.unit, "+z.4f"
        if self.established:
            made, scale, unit, form = self.share, 100, "%", "z.0f"
        middle = scale * float(made.estimate[at, k])
        limits = limits_of(made.low[at, k], made.high[at, k], form, scale=scale)
        return f"{middle:{form}} {unit}{limits}" if np.isfinite(middle) else "undefined"

    def _conclusion(self, at: int) -> str:
        head, found = self.heads[at], dict(zip(READ_EDITS, self.verdicts[at], strict=True))
        whole = found.pop("knockout")
        if whole in ("less", ""):
            return f"{head}: its read {'does next to nothing' if whole else 'is not shown to do anything'}."
        if head.layer > 0:
            del found["restore_scale"]  # there it undoes more than the scale
        smaller = dict(zip(READ_EDITS, self._sure[len(ASKED) + (whole == "against"), at], strict=True))
        said = []
        for name, shown in ((name, shown) for name, shown in found.items() if shown):
            what, ways = FOLLOWS[name]
            way = ways["less" if shown == "less" else "same" if shown == whole else "other"]
            if shown == "less" and not smaller[name]:
                way = "is not told apart from the knockout"
            said.append(f"{what} {way}")
        matters = "matters, against the effect" if whole == "against" else "matters"
        return f"{head}: its read {matters}; {'; '.join(said) or 'which part of it is not shown'}."
