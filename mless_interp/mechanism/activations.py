"""How an insertion shifts the activations of an MLP: one layer, shared tokens, per problem and token class."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..core.arguments import check_count, check_share, checked
from ..metrics import activations as metrics
from ..metrics.patterns import widened
from ..metrics.received import kurtosis
from ..metrics.token_classes import CLASSES, token_classes, token_texts
from ..models.base import Model
from ..models.sites import site
from ..patching.prepared import fit_pairs, single
from ..prompts.conditions import CONDITIONS, CONTRASTS, one_of, several_of
from ..prompts.pairs import PromptPair, digest_of, followed, over_pairs, own_pairs
from ..prompts.problems import groups_of
from ..runtime.loop import RunOptions
from .activation_results import DISTANCES, VALUES, ActivationShift

POSITIONS = ("shared", "question")
Activations = Float[Tensor, "token d_mlp"]
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
    one = _OnePair(model, site(layer, "mlp.hook_pre"), gate.activation, positions, names, c, q)
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
    edges = histogram_edges(one.activations(found[0], "base"), bins=bins)
    done = over_pairs(
        model,
        found,
        single(lambda at: one.measured(found[at], classes[at], edges)),
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
        token_groups=("all", *CLASSES),
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


def check_widths(*, c: float, q: float) -> None:
    """`ValueError` unless both widths of near zero can be used."""
    if not 0 < c < float("inf"):
        raise ValueError(f"c is the width of near zero in robust standard deviations and must be positive, got {c!r}")
    check_share(q, name="q")


@dataclass(frozen=True)
class NearZero:
    """What counts as near zero, in the activations' unit: ARM's form and the quantile form, from one base run."""

    arm: float
    quantile: float

    @classmethod
    def of(cls, activations: Activations, *, c: float, q: float) -> "NearZero":
        """The thresholds of a run, over all its tokens."""
        flat = activations.flatten()
        return cls(float(metrics.arm_threshold(flat, c=c)), float(metrics.quantile(flat.abs(), q=q)))


@dataclass(frozen=True, eq=False)
class _OnePair:
    """What stays the same from problem to problem."""

    model: Model
    site: str
    activation: Callable[[Tensor], Tensor]
    positions: str
    contrasts: tuple[str, ...]
    c: float
    q: float

    def activations(self, pair: PromptPair, condition: str) -> Activations:
        """One condition's activations at the wanted tokens; nothing else of the run is kept."""
        places = pair.shared if CONDITIONS[condition].has_span else torch.arange(len(pair.base))
        places = places[self.first(pair) :]
        keep = {self.site: lambda pre: widened(self.activation(pre[0, places.to(pre.device)]))}
        found: Tensor = self.model.run(pair.condition(condition), capture=keep, logits_at="none").captured[self.site]
        if not bool(torch.isfinite(found).all()):
            raise ValueError(f"problem {pair.id!r}, condition {condition!r}: infinite or NaN activations")
        return found

    def first(self, pair: PromptPair) -> int:
        """The first token of the base prompt that is read."""
        return pair.spans[0][0] if self.positions == "question" else 0

    def measured(self, pair: PromptPair, classes: tuple[str, ...], edges: Tensor) -> dict[str, np.ndarray]:
        """`before`, `after`, `difference` `[contrast, group, metric]`, histograms, numbers of tokens, thresholds."""
        kinds = np.array(classes[self.first(pair) :])
        masks = [torch.ones(len(kinds), dtype=torch.bool), *(torch.from_numpy(kinds == name) for name in CLASSES)]
        runs = {"base": self.activations(pair, "base")}
        thresholds = NearZero.of(runs["base"], c=self.c, q=self.q)
        before, after, difference, counts = [], [], [], []
        for contrast in self.contrasts:
            ends = CONTRASTS[contrast].clean, CONTRASTS[contrast].corrupted
            runs |= {end: self.activations(pair, end) for end in ends if end not in runs}
            own = NearZero.of(runs[ends[0]], c=self.c, q=self.q).arm
            for mask in masks:
                a, b = (runs[end][mask.to(runs[end].device)] for end in ends)
                first, second = (_values(part, thresholds, own, edges) for part in (a, b))
                nothing = np.full(len(DISTANCES), np.nan)
                before.append([*first, *nothing])
                after.append([*second, *nothing])
                difference.append([*(second - first), *_distances(a, b)])
                counts.append([_counts(part, edges) for part in (a, b)])
        shape = len(self.contrasts), len(masks), -1
        return {
            "before": np.reshape(before, shape),
            "after": np.reshape(after, shape),
            "difference": np.reshape(difference, shape),
            "counts": np.reshape(counts, (*shape[:2], 2, -1)),
            "n_tokens": np.array([int(mask.sum()) for mask in masks]),
            "thresholds": np.array([thresholds.arm, thresholds.quantile]),
        }


def _values(activations: Activations, thresholds: NearZero, own_threshold: float, edges: Tensor) -> np.ndarray:
    """Every metric of `VALUES` for these tokens; all NaN where there is no token."""
    if not len(activations):
        return np.full(len(VALUES), np.nan)
    flat = activations.flatten()
    centre = metrics.quantile(activations.T, q=0.5)
    found = {
        "near_zero_arm": metrics.near_zero_fraction(flat, threshold=thresholds.arm),
        "near_zero_quantile": metrics.near_zero_fraction(flat, threshold=thresholds.quantile),
        "relative_sparsity": metrics.near_zero_fraction(flat, threshold=own_threshold),
        "mean": flat.mean(),
        "variance": metrics.median_variance(activations),
        "deviation": (activations - centre).abs().mean() if len(activations) > 1 else torch.nan,
        "l1": metrics.l1_norm(flat),
        "mean_absolute": metrics.mean_absolute(flat),
        "l2": metrics.l2_norm(flat),
        "root_mean_square": metrics.root_mean_square(flat),
        "gini": metrics.gini(flat),
        "histogram_gini": metrics.histogram_gini(flat, edges=edges.to(flat.device)),
        **{name: metrics.quantile(flat, q=int(name[1:]) / 100) for name in ("q01", "q05", "q95", "q99")},
        "minimum": flat.amin(),
        "kurtosis": kurtosis(flat),
    }
    return np.array([float(found[name]) for name in VALUES])


def _distances(before: Activations, after: Activations) -> np.ndarray:
    """Every metric of `DISTANCES` between the same tokens of two runs; NaN where there is no token."""
    if not len(before):
        return np.full(len(DISTANCES), np.nan)
    return np.array([float(getattr(metrics, name)(before.flatten(), after.flatten())) for name in DISTANCES])


def _counts(activations: Activations, edges: Tensor) -> np.ndarray:
    if not len(activations):
        return np.zeros(len(edges) - 1)
    return metrics.histogram(activations.flatten().double(), edges=edges.to(activations.device)).cpu().numpy()


def histogram_edges(activations: Activations, *, bins: int) -> Float[Tensor, " edge"]:
    """Equal bins from the 0.1 to the 99.9 per cent quantile; what lies outside counts in the outer bins."""
    flat = activations.flatten().cpu()
    low, high = (float(metrics.quantile(flat, q=q)) for q in (0.001, 0.999))
    if not high > low:  # all activations are equal
        low, high = low - 1, low + 1
    return torch.linspace(low, high, bins + 1, dtype=torch.float64)


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
