"""What can be read at the inserted positions: the answer, or something on the way to it, by unembedding and by probes."""

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..core.arguments import check_count, check_share, checked, shown
from ..metrics.activations import ridge_scores
from ..models.base import Model
from ..models.info import ModelError
from ..models.replay import Stepper
from ..models.sites import site
from ..prompts.pairs import PromptPair, digest_of, over_pairs, own_pairs
from ..prompts.problems import distinct, groups_of
from ..prompts.prompt import encode_within
from ..runtime.loop import RunOptions
from ..statistics import CONFIDENCE, defined_mean, forward_folds, swap_margins, swap_partners
from .span_readings import ANSWER, N_BLOCKS, SMALLEST_MARGIN, SpanReadings, block_ends

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
    confidence: float = CONFIDENCE,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    seed: int = 0,
) -> "SpanReadings":
    r"""How readable is the answer, or an intermediate, at the inserted positions, layer by layer?

    One token $t_p$ of each problem is looked for in the residual stream $x$ of the span's rows, before the first layer and
    after each one, by two readers:

    - *lens*: the model's own last norm and unembedding, $V_{p,t} = \log \mathrm{softmax}(W_U\, n(x))_t$ (nats), with its
      soft-cap and scale, mean over a block's rows;
    - *probe*: the score of $t$ by a ridge regression on $x$ (root mean square 1, mean over a block's rows), fitted on other
      groups of problems (`metrics.activations`).

    Each problem is paired with one that has another token. Readable: the own tokens of both are read better than the exchanged
    ones, in most pairs,

    $$ m = V_{p, t_p} - V_{q, t_p} + V_{q, t_q} - V_{p, t_q} > \delta $$

    by an exact test, Holm over readers, layers and blocks. What makes a token likely everywhere cancels, and where the span
    says nothing of the token the sign is a fair coin, so common answers are no evidence.

    Parameters
    ----------
    what : "answer" (its first token, or the class), a tag of the problems (a text of one token, as it stands behind the answer
        prefix; of `pairs_from_ids` a token id), or a function of the pair that gives a token id (of several the first).
    n_blocks : the span's rows are pooled into so many blocks of equal size, 10 at most; as many as there are rows, at most.
    smallest_margin : delta, in nats and in scores of the probe; more than 0, as everything leaves some trace of everything.
    confidence : of intervals; 1 - confidence is the level of all tests together.
    checkpoint : a file that receives each finished problem; started again with the same settings the run goes on there.

    Raises `ValueError` before anything runs where a problem lacks the tag, its text is not one token, or no two problems can
    be paired; `ModelError` for models whose layers are not known one by one, or that run elsewhere.

    Source: nostalgebraist's logit lens (2020); probes: Alain & Bengio (1610.01644); filler tokens Pfau et al. (2404.15758);
    methods §6.
    """
    check_share(confidence, name="confidence")
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
    tokens = np.array([_token(model, pair, what) for pair in found])
    kinds = [len(pair.answer_ids) if what == ANSWER else 1 for pair in found]
    groups = tuple(pair.problem.group or pair.id for pair in found)
    every, labels = np.unique(tokens, return_inverse=True)
    partners = swap_partners(labels, kinds, groups, seed=seed)
    name = what if isinstance(what, str) else getattr(what, "__name__", "<lambda>")
    name = "token that the function gives" if name == "<lambda>" else name
    if (partners < 0).all():
        raise ValueError(
            f"no two of these {len(found)} problems (of two groups) differ in {name!r} (answers: of as many tokens), so "
            "nothing can be compared: give more problems"
        )
    n_blocks = min(n_blocks, *(pair.n_inserted for pair in found))
    settings = {
        "what": name,
        "tokens": every.tolist(),
        "n_blocks": n_blocks,
        **model.identity,
        "prompts": digest_of(found),
        "insertion": found[0].insertion.label,
    }
    done = over_pairs(
        model,
        found,
        lambda unit, tick: [_of_one(model, stepper, found[at], int(labels[at]), every, n_blocks) for at in unit],
        label="reading the span",
        settings=settings,
        prompts=[[pair.fingerprint(), int(token)] for pair, token in zip(found, tokens, strict=True)],
        options=RunOptions(checkpoint, progress),
    )
    lens = np.array([each["lens"] for each in done], dtype=float)
    shape = (*lens.shape[2:], model.info.d_model)
    packed = [np.frombuffer(base64.b64decode(each["stream"]), dtype="<f4") for each in done]
    streams = np.stack([values.reshape(shape).astype(float) for values in packed])
    units = tuple(
        "" if at < 0 else " | ".join(sorted((own, groups[at]))) for own, at in zip(groups, partners, strict=True)
    )
    probe = _probed(streams, labels, forward_folds(units, groups, seed=seed))
    values = np.stack([lens, probe], 2)  # [problem, token, reader, layer, block]
    fair = _comparable(labels, kinds)
    longest = max(pair.n_inserted for pair in found)
    classes = model.info.n_classes is not None
    return SpanReadings(
        problem_ids=tuple(pair.id for pair in found),
        groups=groups_of(pair.problem for pair in found),
        tokens=tuple(
            str(token) if classes else pair.text_of(model, int(token))
            for pair, token in zip(found, tokens, strict=True)
        ),
        units=units,
        blocks=tuple(pairwise(block_ends(longest, n_blocks))),
        rank=np.stack([_padded(each["rank"], longest) for each in done]),
        logprob=np.stack([_padded(each["logprob"], longest) for each in done]),
        own=values[np.arange(len(found)), labels],
        others=_mean_over(values, fair),
        margin=swap_margins(values, labels, partners),
        advantage=_advantage(values, labels, fair),
        right=np.array([each["right"] for each in done], dtype=float),
        after_question=all(pair.span_sees_question for pair in found),
        settings=settings | {"seed": seed},
        smallest_margin=smallest_margin,
        resolution=model.resolution,
        confidence=confidence,
    )


def _token(model: Model, pair: PromptPair, what: What) -> int:
    """The token (or class) that is looked for in a problem; `ValueError` where there is none."""
    ids = what(pair) if not isinstance(what, str) else pair.answer_ids if what == ANSWER else _of_tag(model, pair, what)
    several = ids.tolist() if isinstance(ids, Tensor | np.ndarray | np.generic) else ids
    first = next(iter(several), None) if isinstance(several, list | tuple) else several
    known = model.info.n_classes or model.info.d_vocab
    if isinstance(first, bool) or not isinstance(first, int) or not 0 <= first < known:
        raise ValueError(
            f"problem {pair.id!r}: what is read must be a token id, 0 to {known - 1} in {model.info.name}, got {shown(ids)}"
        )
    return first


def _of_tag(model: Model, pair: PromptPair, tag: str) -> Sequence[int]:
    text = pair.problem.text(tag)
    if text is None:
        known = ", ".join(pair.problem.keys)
        raise ValueError(f"problem {pair.id!r} has no tag {tag!r}; it has {known}")
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
    """Of one problem: rank and log-probability of its token `[layer, row]`, of all tokens `[token, layer, block]`, the mean
    streams `[layer, block, d_model]` and whether the model's first token is right."""
    asked = pair if pair.n_answer else pair.answered(unfed=len(pair.answer_ids))
    rows = asked.span_mask.nonzero()[:, 0]
    names = [site(0, "hook_resid_pre"), *(site(layer, "hook_resid_post") for layer in range(model.info.n_layers))]
    predicts = len(asked.inserted) - 1 - asked.n_answer
    keep = dict.fromkeys(names, lambda x: x[0, rows.to(x.device)])
    run = model.run(asked.condition("inserted"), capture=keep, logits_at=[predicts])
    assert run.logits is not None
    last = run.captured[names[-1]].device
    wanted = torch.as_tensor(every, device=last)
    rank, logprob, lens, stream = [], [], [], []
    for name in names:
        x = run.captured[name].to(last)
        with model.turn(), torch.no_grad():
            logits = stepper.layers.unembed(x)
        tokens = logits[:, wanted].double() - logits.double().logsumexp(-1, keepdim=True)
        if not bool(torch.isfinite(tokens).all()):
            raise ModelError(
                f"problem {pair.id!r}: {model.info.name} gives log-probabilities that are no numbers at {name}"
            )
        rank.append((logits > logits[:, wanted[own], None]).sum(-1).add(1).tolist())
        logprob.append(tokens[:, own].tolist())
        lens.append(_pooled(tokens, n_blocks))
        size = x.double().square().mean(-1, keepdim=True).sqrt()
        stream.append(_pooled(x.double() / size.where(size > 0, 1.0), n_blocks))
    answer = pair.answer_ids[0] if pair.answer_ids else -1
    return {
        "rank": rank,
        "logprob": logprob,
        "lens": np.moveaxis(np.stack(lens), 2, 0),
        "stream": base64.b64encode(np.stack(stream).astype("<f4").tobytes()).decode(),
        "right": int(run.logits[0, 0].argmax()) == answer,
    }


def _pooled(x: Tensor, n_blocks: int) -> np.ndarray:
    """The mean over the rows of each block, `[block, ...]` of `[row, ...]`."""
    return np.stack([x[start:stop].mean(0).cpu().numpy() for start, stop in pairwise(block_ends(len(x), n_blocks))])


def _padded(rows: Sequence[Sequence[float | int]], length: int) -> np.ndarray:
    """`[layer, row]` with NaN behind a shorter span."""
    values = np.array(rows, dtype=float)
    return np.pad(values, ((0, 0), (0, length - values.shape[1])), constant_values=np.nan)


def _probed(streams: np.ndarray, labels: np.ndarray, steps: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Scores of all tokens in each problem, `[problem, token, layer, block]`; NaN in problems that no probe reads."""
    n, n_layers, n_blocks, _ = streams.shape
    scores = np.full((n, labels.max() + 1, n_layers, n_blocks), np.nan)
    for layer, block in np.ndindex(n_layers, n_blocks):
        x = streams[:, layer, block]
        gram = x @ x.T
        for train, test in steps:
            scores[test, :, layer, block] = ridge_scores(gram, labels, train, test, least=LEAST)
    return scores


def _comparable(labels: np.ndarray, kinds: Sequence[int]) -> np.ndarray:
    """Which tokens are those of other problems of the same kind, and not the problem's own, boolean `[problem, token]`."""
    each = np.eye(labels.max() + 1, dtype=bool)[labels]
    alike = np.equal.outer(kinds, kinds)
    return (alike @ each) & ~each


def _mean_over(values: np.ndarray, among: np.ndarray) -> np.ndarray:
    """The mean over the tokens that are named for each problem, `[problem, ...]` of `[problem, token, ...]`."""
    chosen = among.reshape(*among.shape, *[1] * (values.ndim - 2))
    return defined_mean(np.where(chosen, values, np.nan), axis=1)


def _advantage(values: np.ndarray, labels: np.ndarray, fair: np.ndarray) -> np.ndarray:
    """How much better a problem's own token is read there than others', each less its mean over problems of other tokens."""
    above = np.empty_like(values)
    for token in range(values.shape[1]):
        others = np.where((labels == token).reshape(-1, *[1] * (values.ndim - 2)), np.nan, values[:, token])
        here = ~np.isnan(others)
        total, n = np.nansum(others, axis=0), here.sum(0)
        left = n - here  # a problem is not held against itself
        above[:, token] = values[:, token] - (total - np.nan_to_num(others)) / np.where(left > 0, left, np.nan)
    return above[np.arange(len(labels)), labels] - _mean_over(above, fair)
