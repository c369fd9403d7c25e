"""What was read at the inserted positions, and in how many pairs of problems it is the problem's own."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd

from ..core.arguments import count_of
from ..patching.prepared import Settings
from ..runtime.columns import columns_of
from ..runtime.results import Quantity, Result, Shown, ShownTable, interval_columns, tidy
from ..runtime.text_safety import one_line
from ..statistics import CONFIDENCE, Prevalence, by_group, fewest_problems, median_interval, prevalence_test

ANSWER = "answer"
N_BLOCKS = 10
"""Blocks of the span, at most."""
SMALLEST_MARGIN = 0.02
"""Nats of the lens, scores of the probe (which sum to 1)."""
READERS = {"lens": "the model's own unembedding", "probe": "a linear probe"}
"""Who reads, and in words; the axis `reader`."""


def block_ends(length: int, n_blocks: int) -> list[int]:
    """Where the blocks of a span of this length begin, and its end.

    >>> block_ends(5, 2)
    [0, 2, 5]
    """
    return [at * length // n_blocks for at in range(n_blocks + 1)]


@dataclass(frozen=True, eq=False, repr=False)
class SpanReadings(Result):
    """What is readable at the inserted positions: `rank` and `logprob` of each problem's token `[problem, layer, position]`.

    Along `layer` the embedding stands first. `own`, `others` (mean over other problems' tokens), `margin`, `advantage`
    `[problem, reader, layer, block]`: log-probabilities (lens) or scores (probe). `margin`: how much better the own tokens of
    a problem and its partner are read than the exchanged ones, tested once for each of `units` (the two groups of a pair; "":
    no partner); `advantage`: own less others, each less its mean over problems of other tokens. NaN: no partner, or of the
    probe nothing taught. `right`: whether the model's first token is.
    """

    problem_ids: tuple[str, ...]
    tokens: tuple[str, ...]
    units: tuple[str, ...]
    blocks: tuple[tuple[int, int], ...]
    rank: np.ndarray
    logprob: np.ndarray
    own: np.ndarray
    others: np.ndarray
    margin: np.ndarray
    advantage: np.ndarray
    right: np.ndarray
    after_question: bool = True
    settings: Settings = field(default_factory=dict)
    smallest_margin: float = SMALLEST_MARGIN
    resolution: float = 0.0
    confidence: float = CONFIDENCE

    picture = "span_map"
    columns = columns_of("""
        stream | stream | | where it is read: the embedding, or the residual stream after a layer (zero-based)
        reader | reader | | lens: the model's own norm and unembedding; probe: a ridge regression fitted on other problems
        place | tokens of the span | | zero-based, first to last of the block
        readable | readable | verdict | in most pairs of problems, by an exact test
        own | own | | the problem's own token: log-probability (lens) or score (probe); median over problems
        others | others' | | the same of other problems' tokens, read here in its place
        margin | margin | later | by how much a pair's own tokens are read better than the exchanged ones; median over pairs
        pairs_k | pairs | of pairs_n | pairs whose own tokens are read better than the exchanged ones; half, at most, is chance
        pairs_share | share of pairs | share | in which own tokens are read better than exchanged ones
        own_rank | rank | later | of the own token among all (lens), median over problems and rows
        right_k | right | of right_n | problems answered rightly whose token is read better than others', as in others' spans
        wrong_k | wrong | of wrong_n | the same of problems answered wrongly
        pairs_n | of pairs | | pairs of problems with different tokens
        right_n | of right | | problems answered rightly
        wrong_n | of wrong | | problems answered wrongly
    """)
    drawn = ("pairs_share",)
    axes = (
        ("rank", "problem layer position"),
        ("logprob", "problem layer position"),
        *((name, "problem reader layer block") for name in ("own", "others", "margin", "advantage")),
        ("right", "problem"),
    )

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers after which the stream is read, zero-based; -1: before the first one, the embedding."""
        return tuple(range(-1, self.rank.shape[1] - 1))

    @property
    def what(self) -> str:
        """Return what was looked for: "answer", a tag, or a function's name."""
        return str(self.settings.get("what", ANSWER))

    @property
    def level(self) -> float:
        """The level of all tests together."""
        return 1 - self.confidence

    @property
    def places(self) -> tuple[str, ...]:
        """The blocks in words."""
        return tuple(str(start) if stop == start + 1 else f"{start}-{stop - 1}" for start, stop in self.blocks)

    @cached_property
    def margins(self) -> np.ndarray:
        """`margin` of pairs, `[pair, reader, layer, block]`."""
        with_partner = [at for at, unit in enumerate(self.units) if unit]
        return by_group(self.margin[with_partner], [self.units[at] for at in with_partner])

    @cached_property
    def tested(self) -> Prevalence:
        """In how many pairs the margin exceeds the smallest one; not tested where all pairs are the same."""
        some = (np.abs(np.nan_to_num(self.margins)) > self._least).any(0)
        return prevalence_test(self.margins, self._least, senses=(1,), tested=some, confidence=self.confidence)

    @property
    def _least(self) -> float:
        return max(self.smallest_margin, self.resolution)

    @property
    def found(self) -> np.ndarray:
        """Where it is readable in most pairs, boolean `[reader, layer, block]`."""
        return np.nan_to_num(self.tested.p_corrected[0], nan=1.0) < self.level

    def above(self, *, right: bool) -> tuple[np.ndarray, np.ndarray]:
        """Of the problems answered rightly, or wrongly: how many have an `advantage` above the smallest, and of how many it is
        known, `[reader, layer, block]` each; groups count once."""
        chosen = (self.right == right).reshape(-1, 1, 1, 1)
        values = self.by_group(np.where(chosen, self.advantage, np.nan))
        return (values > self._least).sum(0), np.isfinite(values).sum(0)

    def table(self) -> pd.DataFrame:
        """One row per reader, layer and block: medians of `own`, `others` (over groups of problems) and `margin` (over pairs,
        with its interval), in how many pairs it exceeds the smallest one (`pairs_k` of `pairs_n`, `pairs_share` with exact
        limits), p after Holm over all rows, `readable`, the median rank, and in how many problems answered rightly, and
        wrongly, the advantage does."""
        tested = self.tested
        columns: dict[str, np.ndarray] = {
            name: median_interval(self.by_group(getattr(self, name))).estimate for name in ("own", "others")
        }
        columns |= interval_columns("margin", median_interval(self.margins, confidence=self.confidence))
        columns |= {"pairs_k": tested.count[0], "pairs_n": tested.n, "pairs_share": tested.share[0]}
        columns |= {"pairs_share_ci_low": tested.low[0], "pairs_share_ci_high": tested.high[0]}
        columns |= {"p_corrected": tested.p_corrected[0], "readable": np.where(self.found, "readable", "")}
        columns["own_rank"] = self._ranks()
        for name, right in (("right", True), ("wrong", False)):
            columns[f"{name}_k"], columns[f"{name}_n"] = self.above(right=right)
        return tidy(
            {"reader": list(READERS), "stream": list(map(_layer, self.layers)), "place": self.places}, **columns
        )

    def _ranks(self) -> np.ndarray:
        """Median rank of the own token in each block, `[reader, layer, block]`; the probe has none."""
        ranks = np.full(self.own.shape[1:], np.nan)
        for at in range(len(self.blocks)):
            here = np.where(self._block_of[:, None] == at, self.rank, np.nan)
            ranks[0, :, at] = median_interval(self.by_group(np.nanmedian(here, axis=2))).estimate
        return ranks

    @property
    def _block_of(self) -> np.ndarray:
        """The block of each problem's row, `[problem, position]`, in a span of its own length; -1 behind its end."""
        found = np.full((len(self.rank), self.rank.shape[2]), -1)
        for row, length in zip(found, np.isfinite(self.rank[:, 0]).sum(1).tolist(), strict=True):
            row[:length] = np.repeat(range(len(self.blocks)), np.diff(block_ends(length, len(self.blocks))))
        return found

    def to_frame(self) -> pd.DataFrame:
        """One tidy row per problem, layer, position in the span and measure: rank, logprob (nats), probe (its block's)."""
        at = self._block_of[:, None]
        probe = np.where(at < 0, np.nan, np.take_along_axis(self.own[:, 1], np.maximum(at, 0), axis=2))
        values = np.stack([self.rank, self.logprob, probe], -1)
        positions = range(self.rank.shape[2])
        axes = {"problem": self.problem_ids, "layer": self.layers, "position": positions}
        return tidy({**axes, "measure": ["rank", "logprob", "probe"]}, value=values)

    def quantity(self, column: str) -> Quantity:
        """A share of the pairs, or what readers give."""
        limits = (f"{column}_ci_low", f"{column}_ci_high") if column in ("pairs_share", "margin") else None
        unit = "share of pairs" if column == "pairs_share" else "nats; scores of the probe"
        return Quantity(unit, column != "pairs_share", limits, "p_corrected", "most pairs show it", level=self.level)

    def printed(self) -> pd.DataFrame:
        """The best block of each reader and layer, the surest first."""
        table = self.table()
        table["order"] = table["p_corrected"].fillna(2.0)
        best = table.sort_values("order", kind="stable").drop_duplicates(["reader", "stream"])
        columns = "reader stream place pairs_k pairs_n p_corrected own others right_k right_n wrong_k wrong_n"
        return best[columns.split()].reset_index(drop=True)

    def shown(self) -> Shown:
        """Every reader, layer and block."""
        caption = (
            f"How readable the {one_line(self.what)} is in the span, by layer and block of tokens; pairs: "
            "own tokens read better than exchanged ones (half is chance), p after Holm over all rows. Right, wrong: problems "
            "the model answers so."
        )
        return Shown((ShownTable(self.table(), caption),))

    def headline(self) -> str:
        """Return from which layer on it is readable, by whom, and in how many pairs of problems."""
        what, found = f"The {one_line(self.what)}", self.found
        if not np.isfinite(self.tested.p).any():
            return f"{what} is not readable in the span: its rows are the same in every problem, or no pair is known."
        said = [
            f"by {words} from {_layer(self.layers[int(np.argmax(found[at].any(1)))])} on ({self._best(at)})"
            for at, words in enumerate(READERS.values())
            if found[at].any()
        ]
        if said:
            return f"{what} is readable in the span, better than other problems' there: {'; '.join(said)}."
        best = "; ".join(f"{reader} {self._best(at)}" for at, reader in enumerate(READERS))
        return f"{what} is not shown to be readable in the span, where half of the pairs is chance: {best}."

    def _best(self, at: int) -> str:
        """The cell of a reader where p is smallest."""
        p = self.tested.p[0, at]
        if not np.isfinite(p).any():
            return "nothing to test"
        layer, block = map(int, np.unravel_index(np.nanargmin(p), p.shape))
        k, n, rank = (each[at, layer, block] for each in (self.tested.count[0], self.tested.n, self._ranks()))
        seen = "" if np.isnan(rank) else f", median rank {rank:.0f}"
        place = self.places[block]
        where = f"{_layer(self.layers[layer])}, {'tokens' if '-' in place else 'token'} {place}{seen}"
        return f"at best in {int(k)} of {count_of(int(n), 'pair')}: {where}"

    def details(self) -> list[str]:
        """Return what was read, and how many pairs there are."""
        n_tests, n = int(np.isfinite(self.tested.p).sum()), count_of(len(self.problem_ids), "problem")
        alone = sum(not unit for unit in self.units)
        found = [
            f"Read in {count_of(self.rank.shape[2], 'row')} of {self.settings.get('insertion', 'the span')}, in "
            f"{count_of(len(self.blocks), 'block')} and {len(self.layers)} places of the stream: {n} with "
            f"{count_of(len(set(self.tokens)), 'token')} in {count_of(len(self.margins), 'pair')} ({alone} without a partner), "
            f"{n_tests} tests (Holm) of margins above {self._least:g}."
        ]
        if (self._block_of < 0).any():
            found.append(
                "Spans differ in length: a block is the same share of each, named by the longest one's tokens."
            )
        return found

    def caveats(self) -> list[str]:
        """Return what limits the finding."""
        told = super().caveats()
        if not self.after_question:
            told.append("In some problems the span stands before the question, and nothing of it can be there.")
        needed = fewest_problems(max(1, int(np.isfinite(self.tested.p).sum())), alpha=self.level)
        most = dict(zip(READERS, self.tested.n.max((1, 2)).tolist(), strict=True))
        few = ", the ".join(f"{reader} has {n}" for reader, n in most.items() if n < needed)
        if few:
            told.append(f"Nothing can be shown with fewer than {count_of(needed, 'pair')}: the {few}.")
        told.append(
            "Readable is not used: transplant_span and contrast='computed' show what is read of it. The lens sees only what is "
            "written as outputs are; a probe also what the question's words give away (compare an untrained_twin)."
        )
        return told[:3]


def _layer(layer: int) -> str:
    return "embedding" if layer < 0 else f"layer {layer}"
