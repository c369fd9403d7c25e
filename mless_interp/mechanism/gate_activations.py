"""How an insertion shifts the activations of an MLP: one layer, shared tokens, per problem and token class."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.arguments import check_count, checked
from ..metrics.activations import histogram
from ..metrics.patterns import widened
from ..metrics.token_classes import CLASSES, token_classes, token_texts
from ..models.base import Model
from ..models.sites import site
from ..patching.prepared import fit_pairs, single
from ..prompts.conditions import CONDITIONS, CONTRASTS, one_of, several_of
from ..prompts.pairs import PromptPair, digest_of, followed, over_pairs, own_pairs
from ..prompts.problems import groups_of
from ..runtime.loop import RunOptions
from .activation_results import ActivationShift
from .activation_summaries import (
    DISTANCES,
    GROUPS,
    VALUES,
    NearZero,
    check_widths,
    distances,
    histogram_edges,
    summarise,
    token_groups_of,
)

POSITIONS = ("shared", "question")
Classify = Callable[[PromptPair], Sequence[str]]


@checked
def activation_shift(
    model: Model,
    pairs: Iterable[PromptPair],
    *,
    layer: int = 0,
    contrasts: Sequence[str] = ("content", "shift"),
    positions: str = "shared",
    c: float = 0.13,
    q: float = 0.1,
    bins: int = 100,
    classify: Classify | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    seed: int = 0,
) -> ActivationShift:
    r"""What an insertion does to the activations $a = \operatorname{act}(\operatorname{gate}(x))$ of one layer's MLP.

    Only tokens that both prompts have are read. Each problem gives one number per metric, contrast and token class, before
    and after; elements are no replicates.

    Parameters
    ----------
    layer : zero-based; the paper speaks of the first.
    contrasts : "content" (masked -> inserted), "shift" (base -> gap: the positions alone), "total" (base -> inserted),
        "held" (base -> held).
    positions : "shared" tokens, or those of the "question" (all after the insertion). Tokens before the insertion cannot
        change, so "shared" dilutes every difference by their share.
    c : width of near zero in ARM's form, 1.4826 MAD c of the *base* run's |a|, over all its tokens, used for every run and
        class; results depend on it (the paper's values: 0.05 to 0.45). `relative_sparsity` takes it from the contrast's
        own run before.
    q : near zero in the quantile form: below the q quantile of the base run's |a|.
    bins : of the histograms, equal, from the 0.1 to the 99.9 per cent quantile of the first problem's base run.
    classify : a pair -> one of digit, operator, conjunction, other for each token of its base prompt; None:
        `metrics.token_classes` on the tokenizer's text.
    checkpoint : a file that receives each finished problem; a run started again with the same settings goes on there.

    An MLP without a gate has $a = \operatorname{act}(\operatorname{up}(x))$: our extension of the paper's form. Where
    attention and MLP read the same input (GPT-J, GPT-NeoX, Falcon, Phi-2), nothing inserted reaches the MLP of layer 0.

    Raises `ModelError` for experts, which share no activation, and for MLPs of a build that is not known.
    Source: methods §5; arXiv 2510.01032, Figs. 4 and 7.
    """
    gate = model.gated_mlp(layer)
    names = several_of(contrasts, CONTRASTS, "contrast")
    one_of(positions, dict.fromkeys(POSITIONS), "positions")
    check_widths(c=c, q=q)
    check_count(bins, name="bins", at_least=2)
    found = own_pairs(model, fit_pairs(followed(pairs)))
    classes = [_classes(model, pair, classify) for pair in found]
    read = _Reader(model, site(layer, "mlp.hook_pre"), gate.activation, positions)
    settings = {
        "layer": layer,
        "gated": gate.gated,
        "insertion": found[0].insertion.label,
        "template": found[0].base.template,
        "contrasts": list(names),
        "positions": positions,
        "c": c,
        "q": q,
        "bins": bins,
        "classes": "token text" if classify is None else "given",
        **model.identity,
        "prompts": digest_of(found),
    }
    edges = histogram_edges(read(found[0], "base"), bins=bins)
    done = over_pairs(
        model,
        found,
        single(lambda at: _one(read, found[at], classes[at], names, edges, c=c, q=q)),
        label=f"activations of layer {layer}",
        settings={**settings, "edges": edges.tolist()},  # of the first problem
        prompts=[[pair.fingerprint(), of_tokens] for pair, of_tokens in zip(found, classes, strict=True)],
        options=RunOptions(checkpoint, progress),
    )
    stacked = {key: np.array([value[key] for value in done], dtype=np.float64) for key in done[0]}
    return ActivationShift(
        problem_ids=tuple(pair.id for pair in found),
        groups=groups_of(pair.problem for pair in found),
        layer=layer,
        contrasts=names,
        token_groups=GROUPS,
        metrics=(*VALUES, *DISTANCES),
        before=stacked["before"],
        after=stacked["after"],
        difference=stacked["difference"],
        n_tokens=stacked["n_tokens"].astype(int),
        thresholds=stacked["thresholds"],
        edges=edges.numpy(),
        counts=stacked["counts"].sum(0),
        settings=settings,
        seed=seed,
    )


@dataclass(frozen=True, eq=False)
class _Reader:
    """Runs one condition of a pair and keeps the wanted site's activations at the wanted tokens, nothing else."""

    model: Model
    site: str
    activation: Callable[[Tensor], Tensor]
    positions: str

    def __call__(self, pair: PromptPair, condition: str) -> Tensor:
        places = torch.arange(len(pair.base)) if not CONDITIONS[condition].has_span else pair.shared
        places = places[self.first(pair) :]
        keep = {self.site: lambda pre: widened(self.activation(pre[0, places.to(pre.device)]))}
        found: Tensor = self.model.run(pair.condition(condition), capture=keep, logits_at="none").captured[self.site]
        if not bool(torch.isfinite(found).all()):
            raise ValueError(f"problem {pair.id!r}, condition {condition!r}: infinite or NaN activations")
        return found

    def first(self, pair: PromptPair) -> int:
        """The first token of the base prompt that is read."""
        return pair.spans[0][0] if self.positions == "question" else 0


def _one(
    read: _Reader,
    pair: PromptPair,
    kinds: tuple[str, ...],
    contrasts: tuple[str, ...],
    edges: Tensor,
    *,
    c: float,
    q: float,
) -> dict[str, Any]:
    """One problem: `before`, `after`, `difference` `[contrast, group, metric]`, token counts, thresholds, histograms."""
    groups = token_groups_of(kinds[read.first(pair) :])
    runs = {"base": read(pair, "base")}
    thresholds = NearZero.of(runs["base"], c=c, q=q)
    parts: dict[str, list[Any]] = {"before": [], "after": [], "difference": [], "counts": []}
    for contrast in contrasts:
        ends = CONTRASTS[contrast].clean, CONTRASTS[contrast].corrupted
        for condition in ends:
            if condition not in runs:
                runs[condition] = read(pair, condition)
        before, after = (runs[condition] for condition in ends)
        own = NearZero.of(before, c=c, q=q).arm
        cells: dict[str, list[Any]] = {key: [] for key in parts}
        for mask in groups.values():
            a, b = (run[mask.to(run.device)] for run in (before, after))
            first, second = (summarise(part, thresholds=thresholds, own_threshold=own, edges=edges) for part in (a, b))
            apart = distances(a, b)
            nothing = [float("nan")] * len(DISTANCES)
            cells["before"].append([*first.values(), *nothing])
            cells["after"].append([*second.values(), *nothing])
            cells["difference"].append([*(second[name] - first[name] for name in VALUES), *apart.values()])
            cells["counts"].append([_counts(part, edges) for part in (a, b)])
        for key, value in cells.items():
            parts[key].append(value)
    n_tokens = [int(mask.sum()) for mask in groups.values()]
    return {**parts, "n_tokens": n_tokens, "thresholds": [thresholds.arm, thresholds.quantile]}


def _counts(activations: Tensor, edges: Tensor) -> list[float]:
    if not len(activations):
        return [0.0] * (len(edges) - 1)
    return histogram(activations.flatten().double(), edges=edges.to(activations.device)).tolist()


def _classes(model: Model, pair: PromptPair, classify: Classify | None) -> tuple[str, ...]:
    """The class of every token of the base prompt."""
    if classify is None:
        model.need_tokenizer("activation_shift without classify=")
        decode = lambda ids: model.tokenizer.decode(  # noqa: E731
            ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return token_classes(token_texts(pair.base.ids, decode))
    found = tuple(classify(pair))
    if len(found) != len(pair.base) or set(found) - set(CLASSES):
        raise ValueError(
            f"problem {pair.id!r}: classify must give one of {', '.join(CLASSES)} for each of the {len(pair.base)} tokens, "
            f"got {len(found)} with the names {sorted(set(found))}"
        )
    return found
