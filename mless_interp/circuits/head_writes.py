"""What heads write, as tokens, and which tokens' keys their queries prefer: a description, no evidence."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ..core.arguments import Arguments, check_count, checked, count_of
from ..core.heads import Head
from ..models.attention_math import masked_scores
from ..models.base import Model
from ..patching.interventions import LayerState
from ..patching.prepared import Prepared, Settings, prepare
from ..patching.sweep import Sweep
from ..prompts.pairs import PromptPair
from ..prompts.token_classes import token_texts
from ..runtime.base_result import Quantity, Result, Shown, ShownTable, tidy
from ..runtime.columns import columns_of
from ..runtime.loop import RunOptions
from ..runtime.text_safety import one_line
from ..runtime.workers import Tick, Unit
from ..statistics import by_group, defined_mean
from .cells import Asked, Flow, heads_of, named_on, named_words, need_weights

WRITTEN = ("Sigma", "change")
LOOKS = "query"
KINDS = (*WRITTEN, LOOKS)
"""What is read from the span, all that the insertion changes, where the head looks."""
UNITS = dict.fromkeys(WRITTEN, "logits") | {LOOKS: "nats"}
SIDES = dict.fromkeys(WRITTEN, ("promotes", "suppresses")) | {LOOKS: ("prefers", "avoids")}
INSERTED = " (inserted)"  # behind a token of the span, which is another key than the same token in the question
FEWEST_PROBLEMS, SHARE_THAT_HAS_IT = 3, 0.1
"""A key is told of where at least so many of the problems, and this share of them, have its token."""
LEAST_LOOK = 0.01  # scores nearer to 0 than this, one per cent of attention, are no preference


@checked
def what_it_writes(
    model: Model,
    pairs: Iterable[PromptPair] | Prepared,
    heads: Asked | None = None,
    *,
    top: int = 8,
    checkpoint: str | Path | None = None,
    progress: bool = True,
) -> "HeadWrites":
    r"""List the tokens that a head's output promotes and suppresses, and whose keys its query prefers. Only describes.

    Three means over problems and rows (all after the insertion, with the answer's), of the run with the insertion:

    - *Sigma*: what the head takes from the span, $\Sigma_i = \sum_{k \in I} A_{ik} v_k$, written as $\Sigma W_O$.
    - *change*: all that the insertion changes of what it writes, $\Delta z\, W_O$ (inserted - masked, as `patch_heads`' "z").
    - *query*: scores $q_i \cdot k_j$ less their mean over what row $i$ sees outside the span, by the token at $j$, in nats.

    The first two, averaged over rows, are read as the unembedding would read them if the head wrote straight to it, at the row
    that predicts the answer with the stream $x$ there (Gemma 2: through the norm after attention):

    $$ \Delta\ell = \ell(x) - \ell(x - \Delta), \qquad \ell(x) = W_U\, n(x) $$

    less its mean over all tokens, which no softmax sees. `direct_effects` says how much of a head's effect is direct.

    Parameters
    ----------
    heads : zero-based heads, or what `locate_heads` gave (its named heads). Default all.
    top : tokens kept on each side.

    Raises `ModelError` as `direct_effects` does.

    Source: nostalgebraist's logit lens (2020), of heads Elhage et al. (2021), Wang et al. (2211.00593); methods §8.1.
    """
    check_count(top, name="top")
    chosen = heads_of(model, heads, "describe", contrast="content")
    need_weights(model, [head.layer for head in chosen], "what_it_writes")
    model.need_rotated("what heads take from the span, and where they look,")
    sweep, prepared = Sweep.named("content", "denoising", "z"), prepare(model, pairs)

    def of_unit(unit: Unit, tick: Tick) -> list[dict[str, np.ndarray]]:
        with torch.no_grad():
            found = _of_unit(Flow(prepared.runs(unit), sweep), chosen)
        tick(len(unit))
        return found

    settings: Settings = {"writes of": list(map(str, chosen))}
    options = RunOptions(checkpoint, progress)
    found = prepared.each(of_unit, label="reading what heads write", settings=settings, options=options)
    top = min(top, _n_known(model) // 2)
    stream, wrote = (np.array([each[name] for each in found], dtype=np.float32) for name in ("stream", "wrote"))
    ids, logits = _promoted(model, stream, wrote, top, prepared.groups)
    seen = [np.array(each["scores"], dtype=float) for each in found]
    keys, scores = _looked_at(prepared.pairs, seen, top, prepared.groups)
    tokens, text = [], cache(partial(_text, model))
    for of_head, looks in zip(ids.tolist(), keys, strict=True):
        looked = (text(key) + INSERTED * inside if key >= 0 else "" for key, inside in looks)
        written = (tuple(text(token, written=True) for token in row) for row in of_head)
        tokens.append((*written, tuple(looked)))
    settings = {**prepared.settings, "outcome": None, **named_on(heads, prepared.ids)}
    made: Arguments = {"problem_ids": prepared.ids, "groups": prepared.groups, "resolution": model.resolution}
    values = np.concatenate([logits, scores[:, :, None]], 2)
    return HeadWrites(heads=chosen, tokens=tuple(tokens), values=values, settings=settings, **made)


def _of_unit(flow: Flow, heads: Sequence[Head]) -> list[dict[str, np.ndarray]]:
    """Read of each problem mean vectors `wrote` `[head, written, d_model]`, the `stream`, `scores` `[head, key]`."""
    runs, run, sweep = flow.runs, flow.receiving, flow.sweep
    predicts = runs.read(sweep.conditions[1])[0] - run.start
    rows = ~runs.first.span_mask[run.start :]
    rows[predicts] = True
    stream = flow.stepper.stream(run, 2 * flow.layers.n_layers)[:, predicts].float().cpu().numpy()
    cut = runs.cut(sweep.contrast)
    wrote = torch.zeros(len(runs.pairs), len(heads), len(WRITTEN), stream.shape[-1], dtype=torch.float32)
    looks = torch.zeros(len(runs.pairs), len(heads), run.n_tokens)
    for layer in sorted({head.layer for head in heads}):
        state = LayerState.of(flow.model, run, layer, span=cut.keys, rows=cut.rows)
        sigma = state.mixed(state.pattern() * state.span_keys)
        scores = masked_scores(state.q, state.k, state.visible, state.rule).float()
        relative = _relative(scores, state.visible, rows, ~state.span)
        for at, head in enumerate(heads):
            if head.layer != layer:
                continue
            without = flow.output(layer).change(run.z[layer], head.head, -sigma[:, :, head.head])
            for place, lost in enumerate((without, flow.head_writes(head))):
                wrote[:, at, place] = -lost[:, rows.to(lost.device)].float().cpu().mean(1)
            looks[:, at] = relative[:, head.head].cpu()
    found = []
    for pair, x, written, look in zip(runs.pairs, stream, wrote.numpy(), looks.double().numpy(), strict=True):
        by_key = [defined_mean(look[:, places], axis=1) for places in _places(pair).values()]
        found.append({"stream": x, "wrote": written, "scores": np.stack(by_key, -1)})
    return found


def _relative(scores: Tensor, visible: Tensor, rows: Tensor, base: Tensor) -> Tensor:
    """Subtract from scores their mean over `base` keys `[b, src]` a row sees: mean over rows, `[b, H, src]`; NaN: unseen."""
    seen = visible[:, :, rows.to(visible.device)]
    scores = scores[:, :, rows.to(scores.device)]
    among = seen & base[:, None, None]
    n_base = among.sum(-1, keepdim=True)
    seen = seen & (n_base > 0)
    return (scores - scores.where(among, 0).sum(-1, keepdim=True) / n_base).where(seen, 0).sum(2) / seen.sum(2)


def _places(pair: PromptPair) -> dict[tuple[int, int], list[int]]:
    """Return where each token of the prompt stands, apart in the span (1) and outside it (0)."""
    places: dict[tuple[int, int], list[int]] = {}
    for at, token in enumerate(pair.inserted.ids):
        places.setdefault((token, int(pair.span_mask[at])), []).append(at)
    return places


def _n_known(model: Model) -> int:
    """Count classes, or tokens that the tokenizer has; a vocabulary may be padded with rows that are none."""
    known = model.info.d_vocab if model.tokenizer is None else len(model.tokenizer)
    return model.info.n_classes or min(known, model.info.d_vocab)


def _promoted(
    model: Model, stream: np.ndarray, wrote: np.ndarray, top: int, groups: Sequence[str] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """Find tokens of the largest and the smallest mean `[head, written, 2 top]`, and each problem's changes of their logits."""
    layers = model.need_layers("what_it_writes").layers
    like = model.attention_output(layers.n_layers - 1).weights
    known = _n_known(model)

    def changes(at: int) -> Tensor:
        x, written = (torch.from_numpy(each[at]).to(like) for each in (stream, wrote))
        with model.turn(), torch.no_grad():
            logits = layers.unembed(torch.cat([x[None], x - written.flatten(0, 1)]))[:, :known].double()
        lost = (logits[:1] - logits[1:]).unflatten(0, written.shape[:2])
        return lost - lost.mean(-1, keepdim=True)

    weights = [1 / groups.count(name) for name in groups] or [1.0] * len(stream)  # a group counts once
    sums = (weight * changes(at) for at, weight in enumerate(weights))
    order = sum(sums, start=torch.zeros(())).argsort(descending=True, stable=True)
    chosen = torch.cat([order[..., :top], order[..., -top:]], -1)
    return chosen.cpu().numpy(), np.stack([changes(at).gather(-1, chosen).cpu().numpy() for at in range(len(stream))])


def _looked_at(
    pairs: Sequence[PromptPair], scores: Sequence[np.ndarray], top: int, groups: Sequence[str] = ()
) -> tuple[list[list[tuple[int, int]]], np.ndarray]:
    """Find each head's keys of extreme mean score (-1: too few), and their scores `[problem, head, 2 top]` or NaN."""
    of_problem = [dict(zip(_places(pair), each.T, strict=True)) for pair, each in zip(pairs, scores, strict=True)]
    of = groups or range(len(pairs))
    once = dict.fromkeys((key, group) for keys, group in zip(of_problem, of, strict=True) for key in keys)
    counts, n = Counter(key for key, _ in once), len(set(of))
    least = min(n, max(FEWEST_PROBLEMS, SHARE_THAT_HAS_IT * n))
    usual = [key for key, n in counts.items() if n >= least]
    nothing = np.full(len(scores[0]), np.nan)
    table = np.array([[known.get(key, nothing) for key in usual] for known in of_problem])  # [problem, key, head]
    table = table.reshape(len(pairs), len(usual), len(nothing)).swapaxes(1, 2)
    mean, each = defined_mean(by_group(table, groups, mean=True)), min(top, len(usual) // 2)
    order = np.argsort(-mean, kind="stable")  # undefined ones come last
    chosen = [[(-1, 0)] * 2 * top for _ in nothing]
    values = np.full((len(pairs), len(nothing), 2 * top), np.nan)
    for head, n_known in enumerate(np.isfinite(mean).sum(-1)):
        known = order[head, :n_known]
        for slot, rank in [*enumerate(known[:each]), *enumerate(known[len(known) - each :], 2 * top - each)]:
            values[:, head, slot], chosen[head][slot] = table[:, head, rank], usual[rank]
    return chosen, values


def _text(model: Model, token: int, *, written: bool = False) -> str:
    """Write a token as it stands in a text (with space), as the vocabulary spells it if its bytes are no text, or its id."""
    tokenizer = model.tokenizer
    if tokenizer is None or (written and model.info.n_classes is not None):
        return str(token)
    text = token_texts([token, token], tokenizer.decode)[1]  # the first of a text may lose its space
    return text if text and "\ufffd" not in text else f"<{tokenizer.convert_ids_to_tokens(token)}>"


@dataclass(frozen=True, eq=False, repr=False)
class HeadWrites(Result):
    """Tokens that heads promote and suppress, and whose keys they prefer: `values` `[problem, head, kind, token]`.

    `tokens[head][kind]` are the texts: the largest means, falling, then the smallest, in their order. Kinds: "Sigma", "change"
    (logits), "query" (scores in nats; NaN where a problem lacks the token).
    """

    problem_ids: tuple[str, ...]
    heads: tuple[Head, ...]
    tokens: tuple[tuple[tuple[str, ...], ...], ...]
    values: np.ndarray
    resolution: float = 0.0

    columns = columns_of("""
        of | of | | Sigma: what is taken from the span; change: all that the insertion changes; query: where the head looks
        token | token | | as it stands in a text; inserted ones are marked
        promoted | promoted, preferred | | tokens of the largest means, the largest first
        suppressed | suppressed, avoided | | tokens of the smallest means, the smallest first
        largest | largest | | the largest mean: change of a logit; of the query, score in nats
        amount | amount | | mean over problems: change of the token's logit; of the query, score in nats
        spread | spread | | standard deviation over problems
    """)

    @property
    def top(self) -> int:
        return self.values.shape[-1] // 2

    @cached_property
    def of_groups(self) -> np.ndarray:
        """Values of problems; of variants of one problem their mean."""
        return by_group(self.values, self.groups, mean=True)

    @property
    def means(self) -> np.ndarray:
        """Means over the problems that have the token, `[head, kind, token]`."""
        return defined_mean(self.of_groups, axis=0)

    def of(self, head: Head | str, kind: str = "change") -> tuple[list[str], list[str]]:
        """Name tokens promoted (preferred), largest first, and suppressed (avoided), smallest first, beyond rounding."""
        at, which = self.heads.index(Head.parse(str(head))), KINDS.index(kind)
        up, down = ([self.tokens[at][which][place] for place in self._told(at, which, sign)] for sign in (1, -1))
        return up, down

    def _told(self, at: int, which: int, sign: int) -> list[int]:
        """Find places of tokens whose mean has this sign and is more than rounding, the largest first."""
        mean, places = self.means[at, which], range(self.values.shape[-1])[::sign]
        rounding = LEAST_LOOK if KINDS[which] == LOOKS else self.resolution
        return [place for place in places if sign * mean[place] > rounding]

    def table(self) -> pd.DataFrame:
        """Give a row per head, kind and token: mean (`amount`) and standard deviation (`spread`) over `n` problems that have
        it, and in how many (`k`) it has the mean's sign."""
        spread, rows = np.sqrt(defined_mean((self.of_groups - self.means) ** 2)), []
        for (at, head), (which, kind) in product(enumerate(self.heads), enumerate(KINDS)):
            for place in sorted(self._told(at, which, 1) + self._told(at, which, -1)):
                values, mean = self.of_groups[:, at, which, place], self.means[at, which, place]
                token, side = quoted(self.tokens[at][which][place]), SIDES[kind][place >= self.top]
                k, n = int((np.sign(values) == np.sign(mean)).sum()), int(np.isfinite(values).sum())
                rows.append((str(head), kind, side, token, mean, spread[at, which, place], k, n, UNITS[kind]))
        return pd.DataFrame(rows, columns="label of side token amount spread k n unit".split())

    def quantity(self, column: str) -> Quantity:
        return Quantity("logits; nats of queries", True)

    def to_frame(self) -> pd.DataFrame:
        """Return one tidy row per problem, head, kind and token."""
        places = range(self.values.shape[-1])
        axes = {"problem": self.problem_ids, "label": list(map(str, self.heads)), "of": KINDS, "place": places}
        table = tidy(axes, value=self.values)
        texts = [quoted(token) if token else "" for of_head in self.tokens for row in of_head for token in row]
        table.insert(4, "token", texts * len(self.problem_ids))
        return table[table["token"] != ""].reset_index(drop=True)

    def headline(self) -> str:
        words = []
        for head in self.heads[:3]:
            up, looks = self.of(head)[0], self.of(head, LOOKS)[0]
            words.append(
                f"{head} promotes {_few(up, 3) or 'nothing'} and prefers the keys of {_few(looks, 2) or 'nothing'}"
            )
        more = f"; {count_of(len(self.heads) - 3, 'more head')}" * (len(self.heads) > 3)
        size = np.fmax.reduce(np.abs(self.means[:3, KINDS.index("change")]), axis=None)
        most = "" if np.isnan(size) else f"largest change {size:.2g} {UNITS['change']}; "
        return f"{'; '.join(words)}{more} ({most}descriptive only)."

    def details(self) -> list[str]:
        return named_words(self.settings)

    def printed(self) -> pd.DataFrame:
        rows = []
        for (at, head), (which, kind) in product(enumerate(self.heads), enumerate(KINDS)):
            up, down = self.of(head, kind)
            size = float(np.fmax.reduce(np.abs(self.means[at, which])))
            rows.append((str(head), kind, _few(up, 5), _few(down, 5), size))
        return pd.DataFrame(rows, columns="label of promoted suppressed largest".split())

    def plot(self, **options: object) -> object:
        return super().plot(**{"value": "amount", **options})  # a row for each token, which the print has not

    def shown(self) -> Shown:
        short = "Tokens that heads promote and suppress; of the query, whose keys it prefers and avoids: a description."
        whole = "Every token with the mean over problems by which it was chosen; rounding is left out."
        return Shown((ShownTable(self.printed(), short), ShownTable(self.table().drop(columns="unit"), whole)))


def quoted(token: str) -> str:
    r"""Return a token in quotation marks, on one line.

    >>> print(quoted(" /"), quoted("\n"))
    ' /' '\n'
    """
    text, inserted = token.removesuffix(INSERTED), INSERTED * token.endswith(INSERTED)
    return f"'{one_line(text)}'{inserted}"


def _few(names: Sequence[str], at_most: int = 3) -> str:
    return ", ".join(map(quoted, names[:at_most]))
