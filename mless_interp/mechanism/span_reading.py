"""What can be read at the inserted positions: the answer, or something on the way to it, by unembedding and by probes."""

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .. import statistics
from ..core.arguments import check_count, checked, count_of, shown
from ..metrics.activations import ridge_scores
from ..models.base import Model
from ..models.info import ModelError
from ..models.replay import Stepper
from ..models.sites import site
from ..patching.prepared import Measured, single
from ..prompts.pairs import PromptPair, digest_of, over_pairs, own_pairs
from ..prompts.problems import distinct, groups_of
from ..prompts.prompt import encode_within
from ..runtime.base_result import Quantity, Shown, ShownTable, interval_columns, tidy
from ..runtime.columns import columns_of
from ..runtime.loop import RunOptions
from ..runtime.text_safety import one_line
from ..statistics import Prevalence, by_group, defined_mean, median_interval, prevalence_test

ANSWER = "answer"
N_BLOCKS = 10  # blocks of the span, at most
SMALLEST_MARGIN = 0.02  # nats of the lens, scores of the probe (which sum to 1)
READERS = {"lens": "the model's own unembedding", "probe": "a linear probe"}
"""Who reads, and in words; the axis `reader`."""


def block_ends(length: int, n_blocks: int) -> list[int]:
    """Return where the blocks of a span of this length begin, and its end: of 5 tokens in 2 blocks 0, 2, 5."""
    return [at * length // n_blocks for at in range(n_blocks + 1)]


@dataclass(frozen=True, eq=False, repr=False)
class SpanReadings(Measured):
    """What is readable at the inserted positions: `rank` and `logprob` of each problem's token `[problem, layer, position]`.

    Along `layer` the embedding stands first. `own`, `others` (mean over other problems' tokens), `margin` `[problem, reader,
    layer, block]`: log-probabilities (lens) or scores (probe). `margin`: how much better the own tokens of a problem and its
    partner are read than the exchanged ones, tested once for each of `units` (the two groups of a pair; "": no partner). NaN:
    no partner, or of the probe nothing taught.
    """

    units: tuple[str, ...]
    rank: np.ndarray
    logprob: np.ndarray
    own: np.ndarray
    others: np.ndarray
    margin: np.ndarray
    after_question: bool = True
    smallest_margin: float = SMALLEST_MARGIN

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
        pairs_n | of pairs | | pairs of problems with different tokens
    """)
    drawn = ("pairs_share",)

    @property
    def layers(self) -> tuple[int, ...]:
        """Name the layers after which the stream is read, zero-based; -1: before the first one, the embedding."""
        return tuple(range(-1, self.rank.shape[1] - 1))

    @property
    def what(self) -> str:
        return str(self.settings.get("what", ANSWER))

    @property
    def places(self) -> tuple[str, ...]:
        blocks = pairwise(block_ends(self.rank.shape[2], self.own.shape[3]))
        return tuple(str(start) if stop == start + 1 else f"{start}-{stop - 1}" for start, stop in blocks)

    @cached_property
    def margins(self) -> np.ndarray:
        """`margin` of pairs, `[pair, reader, layer, block]`."""
        with_partner = [at for at, unit in enumerate(self.units) if unit]
        return by_group(self.margin[with_partner], [self.units[at] for at in with_partner])

    @cached_property
    def tested(self) -> Prevalence:
        """Test in how many pairs the margin exceeds the smallest one; not where all pairs are the same."""
        some = (np.abs(np.nan_to_num(self.margins)) > self._least).any(0)
        return prevalence_test(self.margins, self._least, senses=(1,), tested=some, confidence=self.confidence)

    @property
    def _least(self) -> float:
        return max(self.smallest_margin, self.resolution)

    @property
    def found(self) -> np.ndarray:
        """Find where it is readable in most pairs, boolean `[reader, layer, block]`."""
        return np.nan_to_num(self.tested.p_corrected[0], nan=1.0) < self.level

    def table(self) -> pd.DataFrame:
        """Return one row per reader, layer and block: medians of `own`, `others` (over groups of problems) and `margin` (over
        pairs), in how many pairs it exceeds the smallest one (`pairs_k` of `pairs_n`, `pairs_share`), p after Holm over all
        rows, `readable`, and the median rank."""
        tested = self.tested
        columns: dict[str, np.ndarray] = {
            name: median_interval(self.by_group(getattr(self, name))).estimate for name in ("own", "others")
        }
        columns |= interval_columns("margin", median_interval(self.margins, confidence=self.confidence))
        counts = {"pairs_k": tested.count[0], "pairs_n": tested.n, "pairs_share": tested.share[0]}
        counts |= {"pairs_share_ci_low": tested.low[0], "pairs_share_ci_high": tested.high[0]}
        known = np.isfinite(tested.p[0])  # elsewhere no pair differs, which is not fewer than by chance
        columns |= {name: np.where(known, each, np.nan) for name, each in counts.items()}
        columns |= {"p_corrected": tested.p_corrected[0], "readable": np.where(self.found, "readable", "")}
        columns["own_rank"] = self._ranks
        axes = {"reader": list(READERS), "stream": list(map(_layer, self.layers)), "place": self.places}
        return tidy(axes, **columns)

    @cached_property
    def _ranks(self) -> np.ndarray:
        """Take the median rank of the own token in each block, `[reader, layer, block]`; the probe has none."""
        ranks = np.full(self.own.shape[1:], np.nan)
        for at in range(len(self.places)):
            here = np.where(self._block_of[:, None] == at, self.rank, np.nan)
            ranks[0, :, at] = median_interval(self.by_group(np.nanmedian(here, axis=2))).estimate
        return ranks

    @cached_property
    def _block_of(self) -> np.ndarray:
        """Find the block of each problem's row, `[problem, position]`, in a span of its own length; -1 behind its end."""
        found, n_blocks = np.full((len(self.rank), self.rank.shape[2]), -1), self.own.shape[3]
        for row, length in zip(found, np.isfinite(self.rank[:, 0]).sum(1).tolist(), strict=True):
            row[:length] = np.repeat(range(n_blocks), np.diff(block_ends(length, n_blocks)))
        return found

    def to_frame(self) -> pd.DataFrame:
        """Return one tidy row per problem, layer, position and measure: rank, logprob (nats), probe (its block's)."""
        at = self._block_of[:, None]
        probe = np.where(at < 0, np.nan, np.take_along_axis(self.own[:, 1], np.maximum(at, 0), axis=2))
        measures = {"rank": self.rank, "logprob": self.logprob, "probe": probe}
        axes = {"problem": self.problem_ids, "layer": self.layers, "position": range(self.rank.shape[2])}
        return tidy({**axes, "measure": list(measures)}, value=np.stack(list(measures.values()), -1))

    def quantity(self, column: str) -> Quantity:
        unit = "share of pairs" if column == "pairs_share" else "nats; scores of the probe"
        return Quantity(unit, column != "pairs_share", "p_corrected", "most pairs show it", level=self.level)

    def printed(self) -> pd.DataFrame:
        best = self.table().sort_values("p_corrected", kind="stable").drop_duplicates(["reader", "stream"])
        columns = ["reader", "stream", "place", "pairs_k", "pairs_n", "p_corrected", "own", "others"]
        return best[columns].reset_index(drop=True)

    def shown(self) -> Shown:
        caption = (
            f"How readable the {one_line(self.what)} is in the span, by layer and block of tokens; pairs: "
            "own tokens read better than exchanged ones (half is chance), p after Holm over all rows."
        )
        table = self.table().sort_values("p_corrected", kind="stable")
        return Shown((ShownTable(table, caption, [*self.printed(), *table]),))

    def headline(self) -> str:
        what, found = f"The {one_line(self.what)}", self.found
        if not np.isfinite(self.tested.p).any():
            return f"{what} was not tested: the span's rows are equal in all problems, or no two problems form a pair."
        said = [
            f"by {words}, first at {_layer(self.layers[int(np.argmax(found[at].any(1)))])} ({self._best(at)})"
            for at, words in enumerate(READERS.values())
            if found[at].any()
        ]
        if said:
            return f"{what} is readable above chance in the span, better than other problems' there: {'; '.join(said)}."
        best = "; ".join(f"{reader} {self._best(at)}" for at, reader in enumerate(READERS))
        return f"{what} is not shown to be readable in the span, where half of the pairs is chance: {best}."

    def _best(self, at: int) -> str:
        p = self.tested.p[0, at]
        if not np.isfinite(p).any():
            return "nothing to test"
        layer, block = map(int, np.unravel_index(np.nanargmin(p), p.shape))
        k, n, rank = (each[at, layer, block] for each in (self.tested.count[0], self.tested.n, self._ranks))
        seen = "" if np.isnan(rank) else f", median rank {rank:.0f}"
        place = self.places[block]
        where = f"{_layer(self.layers[layer])}, {'tokens' if '-' in place else 'token'} {place}{seen}"
        return f"at best in {int(k)} of {count_of(int(n), 'pair')}: {where}"

    def details(self) -> list[str]:
        n_tests, alone = int(np.isfinite(self.tested.p).sum()), sum(not unit for unit in self.units)
        pairs = f"{count_of(len(self.margins), 'pair')} ({count_of(alone, 'problem')} without a partner)"
        found = [f"{pairs}, {n_tests} tests (Holm) of margins above {self._least:g}."]
        if (self._block_of < 0).any():
            found.append("Spans differ in length: a block is the same share of each, named by the longest's tokens.")
        return found

    def caveats(self) -> list[str]:
        told = []
        needed = statistics.fewest_problems(max(1, int(np.isfinite(self.tested.p).sum())), alpha=self.level)
        most = zip(READERS, self.tested.n.max((1, 2)).tolist(), strict=True)
        if few := ", the ".join(f"{reader} has {n}" for reader, n in most if n < needed):
            told.append(f"Nothing can be shown with fewer than {count_of(needed, 'pair')}: the {few}.")
        told += super().caveats()
        if not self.after_question:
            told.append("A span before the question cannot contain anything of it: insert after the question.")
        told.append(
            "Readable is not used: transplant_span and contrast='computed' show what is read of it. A probe also sees what the "
            "question's words give away (compare an untrained_twin)."
        )
        return told[:3]


def _layer(layer: int) -> str:
    return "embedding" if layer < 0 else f"layer {layer}"


What = str | Callable[[PromptPair], object]
LEAST = 0.01
"""What differs by less than this share of the stream's length between problems the probe hardly sees: no head would."""


@checked
def read_span(
    model: Model,
    pairs: Iterable[PromptPair],
    *,
    what: What = ANSWER,
    n_blocks: int = N_BLOCKS,
    smallest_margin: float = SMALLEST_MARGIN,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    seed: int = 0,
) -> "SpanReadings":
    r"""Look for the answer, or an intermediate, at the inserted positions, layer by layer.

    One token $t_p$ of each problem is looked for in the residual stream $x$ of the span's rows, before the first layer and
    after each one, by two decoders, mean over a block's rows:

    - *lens*: the model's own last norm and unembedding, $V_{p,t} = \log \mathrm{softmax}(W_U\, n(x))_t$ (nats);
    - *probe*: the score of $t$ by a ridge regression on $x$ (root mean square 1), fitted on other groups of problems.

    Each problem is paired with one that has another token. Readable: the own tokens of both are read better than the exchanged
    ones, in most pairs,

    $$ m = V_{p, t_p} - V_{q, t_p} + V_{q, t_q} - V_{p, t_q} > \delta $$

    by an exact test, Holm over decoders, layers and blocks. If the span contains nothing of the token, the sign is a fair coin.

    what : "answer" (its first token, or the class), a tag of the problems (a text of one token, as it stands behind the answer
        prefix; of `pairs_from_ids` a token id), or a function of the pair that gives a token id (of several the first).
    n_blocks : number of blocks of equal size into which the span's rows are pooled, at most 10 and at most the number of rows.
    smallest_margin : delta, in nats and in scores of the probe; more than 0, as everything leaves some trace of everything.
    checkpoint, progress : as in `patch_heads`; other problems must have the same answer tokens.

    Raises `ModelError` for models whose layers are not known one by one, or that run elsewhere.
    Source: nostalgebraist's logit lens (2020); probes: Alain & Bengio (1610.01644); filler tokens Pfau et al. (2404.15758);
    methods §6.
    """
    check_count(n_blocks, name="n_blocks")
    if n_blocks > N_BLOCKS:
        raise ValueError(f"n_blocks must be {N_BLOCKS} at most, got {n_blocks}: more tests would each show less")
    if not 0 < smallest_margin < np.inf:
        raise ValueError(f"smallest_margin must be above 0 (nats, and scores of the probe), got {smallest_margin}")
    stepper = model.need_layers("read_span")
    found = own_pairs(model, tuple(pairs))
    distinct(pair.problem for pair in found)
    for pair in found:
        pair.need_span("what is read there")
    tokens = [_token(model, pair, what) for pair in found]
    kinds = [len(pair.answer_ids) if what == ANSWER else 1 for pair in found]
    groups = tuple(pair.problem.group or pair.id for pair in found)
    every, labels = np.unique(tokens, return_inverse=True)
    partners = statistics.swap_partners(labels, kinds, groups, seed=seed)
    name = what if isinstance(what, str) else "token that the function gives"
    if (partners < 0).all():
        raise ValueError(
            f"no two of these {len(found)} problems (of two groups) differ in {name!r} (answers: of as many tokens), so "
            "nothing can be compared: give more problems"
        )
    n_blocks = min(n_blocks, *(pair.n_inserted for pair in found))
    settings = {"what": name, "tokens": every.tolist(), "n_blocks": n_blocks, **model.identity}
    settings |= {"prompts": digest_of(found), "insertion": found[0].insertion.label}
    done = over_pairs(
        model,
        found,
        single(lambda at: _of_one(model, stepper, found[at], int(labels[at]), every, n_blocks)),
        label="reading the span",
        settings=settings,
        prompts=[[pair.fingerprint(), token] for pair, token in zip(found, tokens, strict=True)],
        options=RunOptions(checkpoint, progress),
    )
    lens = np.array([each["lens"] for each in done], dtype=float)  # [problem, token, layer, block]
    paired = zip(groups, partners, strict=True)
    units = tuple("" if at < 0 else " | ".join(sorted((own, groups[at]))) for own, at in paired)
    packed = b"".join(base64.b64decode(each["stream"]) for each in done)
    streams = np.frombuffer(packed, dtype="<f4").reshape(len(found), *lens.shape[2:], -1).astype(float)
    probe, folds = np.full_like(lens, np.nan), statistics.forward_folds(units, groups, seed=seed)
    for layer, block in np.ndindex(*lens.shape[2:]):
        x = streams[:, layer, block]
        gram = x @ x.T
        for train, test in folds:
            probe[test, :, layer, block] = ridge_scores(gram, labels, train, test, least=LEAST)
    values = np.stack([lens, probe], 2)  # [problem, token, reader, layer, block]
    each_own = np.eye(len(every), dtype=bool)[labels]
    fair = (np.equal.outer(kinds, kinds) @ each_own) & ~each_own  # tokens of other problems of the same kind
    others = np.where(fair.reshape(*fair.shape, 1, 1, 1), values, np.nan)
    return SpanReadings(
        problem_ids=tuple(pair.id for pair in found),
        groups=groups_of(pair.problem for pair in found),
        units=units,
        seed=seed,
        rank=_padded(each["rank"] for each in done),
        logprob=_padded(each["logprob"] for each in done),
        own=values[np.arange(len(found)), labels],
        others=defined_mean(others, axis=1),
        margin=statistics.swap_margins(values, labels, partners),
        after_question=all(pair.span_sees_question for pair in found),
        settings=settings | {"seed": seed},
        smallest_margin=smallest_margin,
        resolution=model.resolution,
    )


def _token(model: Model, pair: PromptPair, what: What) -> int:
    """Find the token (or class) that is looked for in a problem; `ValueError` where there is none."""
    given = what(pair) if callable(what) else pair.answer_ids if what == ANSWER else _of_tag(model, pair, what)
    ids, known = np.ravel(np.asarray(given)), model.info.n_classes or model.info.d_vocab
    if ids.dtype.kind not in "iu" or not len(ids) or not 0 <= ids[0] < known:
        got, where = shown(given) if len(ids) else "none", f"0 to {known - 1} in {model.info.name}"
        raise ValueError(f"problem {pair.id!r}: what is read must be a token id, {where}, got {got}")
    return int(ids[0])


def _of_tag(model: Model, pair: PromptPair, tag: str) -> Sequence[int]:
    text = pair.problem.texts.get(tag)
    if text is None:
        raise ValueError(f"problem {pair.id!r} has no tag {tag!r}; it has {', '.join(pair.problem.texts)}")
    if pair.given:
        return [int(text)] if text.isdecimal() else []
    model.need_tokenizer(f"the tag {tag!r}")
    ids = encode_within(model.tokenizer, text)
    if len(ids) != 1:
        raise ValueError(
            f"problem {pair.id!r}: its {tag} {shown(text)} is {len(ids)} tokens, and one is read: write it as one, maybe with "
            "the space before it, or give a function of the pair that names the token"
        )
    return ids


def _of_one(
    model: Model, stepper: Stepper, pair: PromptPair, own: int, every: np.ndarray, n_blocks: int
) -> Mapping[str, object]:
    """Read one problem: rank and log-probability of its token `[layer, row]`, log-probabilities of all tokens `[token, layer,
    block]`, and the mean streams `[layer, block, d_model]`."""
    asked = pair if pair.n_answer else pair.answered(unfed=len(pair.answer_ids))
    rows = asked.span_mask.nonzero()[:, 0]
    names = [site(0, "hook_resid_pre"), *(site(layer, "hook_resid_post") for layer in range(model.info.n_layers))]
    keep = dict.fromkeys(names, lambda x: x[0, rows.to(x.device)])
    run = model.run(asked.condition("inserted"), capture=keep, logits_at="none")
    last = run.captured[names[-1]].device
    wanted = torch.as_tensor(every, device=last)
    rank, logprob, lens, stream = [], [], [], []
    for name in names:
        x = run.captured[name].to(last)
        with model.turn(), torch.no_grad():
            logits = stepper.layers.unembed(x)
        tokens = logits[:, wanted].double() - logits.double().logsumexp(-1, keepdim=True)
        if not bool(torch.isfinite(tokens).all()):
            what = f"{model.info.name} gives log-probabilities that are no numbers"
            raise ModelError(f"problem {pair.id!r}: {what} at {name}")
        rank.append((logits > logits[:, wanted[own], None]).sum(-1).add(1).tolist())
        logprob.append(tokens[:, own].tolist())
        lens.append(_pooled(tokens, n_blocks))
        size = x.double().square().mean(-1, keepdim=True).sqrt()
        stream.append(_pooled(x.double() / size.where(size > 0, 1.0), n_blocks))
    packed = base64.b64encode(np.stack(stream).astype("<f4").tobytes()).decode()
    return {"rank": rank, "logprob": logprob, "lens": np.moveaxis(np.stack(lens), 2, 0), "stream": packed}


def _pooled(x: Tensor, n_blocks: int) -> np.ndarray:
    """Take the mean over the rows of each block, `[block, ...]` of `[row, ...]`."""
    return np.stack([x[start:stop].mean(0).cpu().numpy() for start, stop in pairwise(block_ends(len(x), n_blocks))])


def _padded(each: Iterable[Sequence[Sequence[float]]]) -> np.ndarray:
    """Stack `[problem, layer, row]` with NaN behind a shorter span."""
    rows = [torch.tensor(values, dtype=torch.float64).T for values in each]
    return pad_sequence(rows, batch_first=True, padding_value=np.nan).mT.numpy()
