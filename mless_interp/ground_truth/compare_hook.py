"""Is a user's own hook what it is meant to be: it runs beside the exact edit, and the first difference is named."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ..core.arguments import checked, count_of, listed, nearest
from ..core.heads import Head
from ..models.base import Model
from ..models.info import ModelError
from ..models.inputs import Edit, Inputs
from ..models.sites import parsed, site
from ..patching.interventions import INTERVENTIONS, run_edits
from ..patching.prepared import fit_pairs
from ..prompts.pairs import PromptPair, own_pairs
from ..runtime.columns import columns_of
from ..runtime.progress import progress_bar
from ..runtime.results import Result
from .case import apart, worst
from .identities import tolerance_of

COMPARED = ("hook_resid_pre", "attn.hook_z", "hook_attn_out", "hook_resid_mid", "hook_mlp_out", "hook_resid_post")
"""Sites at which a hook is held against the exact edit, in the order of a forward pass."""
READ_OF_HEADS = ("attn.hook_q", "attn.hook_k", "attn.hook_v", "attn.hook_z")
ROTATED = ("attn.hook_rot_q", "attn.hook_rot_k")
READ_OF_STREAM = ("hook_attn_out", "hook_resid_pre", "hook_resid_mid", "hook_resid_post")
AS_MEANT = "as meant"


@dataclass(frozen=True, eq=False, repr=False)
class HookComparison(Result):
    """What a user's hook really does, problem by problem; `found` says it in words, "as meant" where nothing differs.

    `plain`, `hooked` and `exact` `[problem]` are log-probabilities of the token that the plain run prefers, in nats; NaN
    for a capture, which changes nothing. `error` `[problem]` is the largest difference from what was meant, as a share of
    the largest value there; NaN where shapes do not fit.
    """

    problem_ids: tuple[str, ...]
    heads: tuple[Head, ...]
    meant: str
    found: tuple[str, ...]
    plain: np.ndarray
    hooked: np.ndarray
    exact: np.ndarray
    error: np.ndarray
    in_a_batch: str
    batched: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)

    axes = (("plain", "problem"), ("hooked", "problem"), ("exact", "problem"), ("error", "problem"))
    columns = columns_of("""
        found | what it does | | the first difference from what was meant
        plain | without it | | log-probability of the token that the plain run prefers, in nats
        hooked | with the hook | | the same log-probability under the user's hook
        exact | with the exact edit | | the same log-probability under the exact edit
    """)

    @property
    def passed(self) -> bool:
        """Whether it does what was meant in every problem, in a padded batch, too."""
        return set(self.found) == {AS_MEANT} and not self.in_a_batch

    def table(self) -> pd.DataFrame:
        """Return one row per kind of finding, the most frequent first: its problems `k` of `n`, and medians over them."""
        rows, n = self.to_frame(), len(self.problem_ids)
        numbers = ["error", "plain", "hooked", "exact"]
        made = [
            {"found": words, "k": k, "n": n, **rows.loc[rows["found"] == words, numbers].median()}
            for words, k in Counter(self.found).most_common()
        ]
        return pd.DataFrame(made)

    def to_frame(self) -> pd.DataFrame:
        """Return one row per problem."""
        names = ("found", "error", "plain", "hooked", "exact")
        return pd.DataFrame({"problem": self.problem_ids} | {name: getattr(self, name) for name in names})

    def headline(self) -> str:
        """Return whether the hook is what was meant; if not, what it does in most problems."""
        (most, k), n = Counter(self.found).most_common(1)[0], len(self.found)
        if most == AS_MEANT and k == n:
            but = f"; but {self.in_a_batch}" if self.in_a_batch else ""
            return f"Yes, this is {self.meant}, in {k} of {count_of(n, 'problem')}{but}."
        return f"No, this is not {self.meant}; in {k} of {count_of(n, 'problem')} {most}."

    def details(self) -> list[str]:
        """Return what else was found."""
        others = [f"In {k} of {len(self.found)}: {words}." for words, k in Counter(self.found).most_common()[1:]]
        return [*others, *([f"{self.in_a_batch[0].upper()}{self.in_a_batch[1:]}."] if self.in_a_batch else [])]

    def caveats(self) -> list[str]:
        """Return what was not tried."""
        return [f"Tried on {count_of(len(self.found), 'prompt')} alone: code for other batches can still be wrong."] * (
            not self.batched
        )


@checked
def compare_hook(
    model: Model,
    pairs: Iterable[PromptPair],
    hook: Any,
    heads: Iterable[Head | str],
    *,
    edit: str | Callable[[Tensor], Tensor] = "zero",
    progress: bool = True,
) -> HookComparison:
    """Run your own ablation of heads beside the exact edit, and say what it really does.

    Both runs of each problem's inserted prompt are compared at every layer: the outputs of all heads, what attention and
    MLP add, the residual stream. The first difference is named: another head, coordinates after the output projection, some
    rows only, other values, or no effect at all. Two prompts of different length then run as one left-padded batch.

    Parameters
    ----------
    hook : `(name, function)` pairs as TransformerLens' `fwd_hooks`; or a function of the library's own model that adds
        hooks and returns what removes them: a handle, a context manager, or a list of these. The model is
        `model.underlying`, of nnsight the Hugging Face model underneath.
    heads : the heads that you mean to change.
    edit : what you mean to do to each: "zero" its output at all rows, "knockout" (or another name of `INTERVENTIONS` that
        needs no second run), or your function of a head's z `[batch, token, d_head]`.

    Raises `ValueError` for a hook of another shape. Nothing that the hook added is left behind.
    """
    chosen = model.info.chosen(heads, what="edit")
    made = own_pairs(model, fit_pairs(pairs))
    names = [name for name, known in INTERVENTIONS.items() if not known.needs_donor]
    if isinstance(edit, str) and edit not in ("zero", *names):
        raise ValueError(f"edit must be 'zero', {', '.join(map(repr, names))} or a function of z, got {edit!r}")
    named = isinstance(hook, list | tuple) and all(isinstance(each, tuple) and len(each) == 2 for each in hook)
    if not callable(hook) and not (named and hook):
        raise TypeError(
            f"hook must be (name, function) pairs or a function that adds hooks, got {type(hook).__name__} {hook!r:.60}"
        )
    calls = Counter[str]()
    sites = [site(layer, name) for layer in range(model.info.n_layers) for name in COMPARED]
    sites = _that_pass(model, made[0].condition("inserted"), sites)
    found, errors, outcomes = [], [], []
    with progress_bar(len(made), "comparing", enabled=progress) as bar:
        for pair in made:
            inputs = pair.condition("inserted")
            plain = _ran(model, inputs, sites)
            exact = _ran(model, inputs, sites, _exact(model, pair, inputs, chosen, edit))
            with _added(model, hook, calls):
                hooked = _ran(model, inputs, sites)
            words, error = _first_difference(model, pair, plain, hooked, exact, chosen, calls)
            found.append(words)
            errors.append(error)
            outcomes.append([_preferred(run, plain) for run in (plain, hooked, exact)])
            bar.update(1)
    lengths = sorted(made, key=lambda pair: len(pair.inserted))
    batched = len(lengths[0].inserted) < len(lengths[-1].inserted)
    what = f"{edit!r}" if isinstance(edit, str) else "your edit"
    return HookComparison(
        problem_ids=tuple(pair.id for pair in made),
        heads=chosen,
        meant=f"the edit {what} of {listed(chosen)}",
        found=tuple(found),
        **dict(zip(("plain", "hooked", "exact"), np.array(outcomes).T, strict=True)),
        error=np.array(errors),
        in_a_batch=_padded(model, lengths[0], lengths[-1], hook, chosen) if batched else "",
        batched=batched,
        settings={"model": model.info.name, "backend": model.info.backend},
    )


@checked
def compare_capture(
    model: Model,
    pairs: Iterable[PromptPair],
    capture: Callable[[list[list[int]]], Any],
    head: Head | str,
    *,
    of: str = "z",
) -> HookComparison:
    """Hold what your own code reads as one head's output against the head's output, and say what it really is.

    Parameters
    ----------
    capture : your function of token ids, one list per prompt, run in one call; it returns what you take for the head's
        output of each prompt, `[prompt, token, d_head]`, or a list of `[token, d_head]`. Of a padded batch the first rows
        are compared, as code reads them that forgets the padding.
    of : "z" (before W_O), "q", "k" or "v" of the head.

    What does not fit is looked for elsewhere: other heads, layers and sites, slices of the streams of width d_model, what
    the head writes (z W_O), and rows that are shifted.
    """
    (chosen,) = model.info.chosen([head], what="read")
    made = own_pairs(model, fit_pairs(pairs))
    if of not in ("z", "q", "k", "v"):
        raise ValueError(f'of must be "z", "q", "k" or "v", got {of!r}')
    values = capture([list(pair.inserted.ids) for pair in made])
    if len(values) != len(made):
        raise ValueError(f"capture must return one entry per prompt, {len(made)}, got {len(values)}")
    read = (*READ_OF_HEADS, *(ROTATED if model.has_rotated_sites else ()), *READ_OF_STREAM)
    sites = [site(layer, name) for layer in range(model.info.n_layers) for name in read]
    sites = _that_pass(model, made[0].condition("inserted"), sites)
    found, errors = [], []
    for pair, value in zip(made, values, strict=True):
        run = _ran(model, pair.condition("inserted"), sites)
        words, error = _what_it_is(model, run, torch.as_tensor(value).detach().cpu().double(), chosen, of)
        found.append(words)
        errors.append(error)
    nothing = np.full(len(made), np.nan)
    return HookComparison(
        problem_ids=tuple(pair.id for pair in made),
        heads=(chosen,),
        meant=f"{of} of {chosen}",
        found=tuple(found),
        plain=nothing,
        hooked=nothing,
        exact=nothing,
        error=np.array(errors),
        in_a_batch="",
        batched=len(made) > 1,
        settings={"model": model.info.name, "backend": model.info.backend},
    )


def _that_pass(model: Model, inputs: Inputs, sites: Sequence[str]) -> list[str]:
    """Return the sites that this model has: attention and MLP side by side have no stream between them."""
    known = [name for name in sites if "resid_mid" not in name]
    try:
        model.run(inputs, capture=dict.fromkeys(sites), logits_at="none")
    except ModelError:
        return known
    return list(sites)


def _ran(
    model: Model, inputs: Inputs, sites: Sequence[str], edits: Mapping[str, Edit] | None = None
) -> dict[str, Tensor]:
    """Return the activations of one prompt at these sites, `[token, ...]`, and the `logits` of its last row, in float64."""
    run = model.run(inputs, capture=dict.fromkeys(sites), edits=edits, logits_at="last")
    assert run.logits is not None
    found = {name: value[-1].cpu().double() for name, value in run.captured.items()}
    return found | {"logits": run.logits[-1, -1].cpu().double()}


def _exact(
    model: Model, pair: PromptPair, inputs: Inputs, heads: Sequence[Head], edit: str | Callable[[Tensor], Tensor]
) -> dict[str, Edit]:
    """Return the edits of a run that do to the heads what is meant."""
    if isinstance(edit, str) and edit != "zero":
        span = pair.span_mask[None]
        return run_edits(model, inputs, INTERVENTIONS[edit], heads, span=span, rows=~span, start=0)
    change = torch.zeros_like if isinstance(edit, str) else edit

    def of_layer(z: Tensor, numbers: Sequence[int]) -> Tensor:
        new = z.clone()
        for number in numbers:
            new[:, :, number] = change(z[:, :, number].clone())
        return new

    layers = {head.layer for head in heads}
    return {
        site(layer, "attn.hook_z"): partial(of_layer, numbers=[head.head for head in heads if head.layer == layer])
        for layer in layers
    }


@contextmanager
def _added(model: Model, hook: Any, calls: Counter[str]) -> Iterator[None]:
    """Have the user's hooks on the model; the calls of those with a name are counted."""
    library: Any = (
        model.hf_model if model.info.backend == "nnsight" and model.hf_model is not None else model.underlying
    )
    with ExitStack() as stack:
        if callable(hook):
            before = {part: (set(part._forward_hooks), set(part._forward_pre_hooks)) for part in library.modules()}
            stack.callback(_removed, library, before)
            _handles(hook(library), stack)
        else:
            if not hasattr(library, "hooks"):
                raise ValueError(
                    "(name, function) pairs are hooks of TransformerLens; for other models give a function that adds hooks "
                    "and returns their handles"
                )
            known = getattr(library, "hook_dict", {})
            for name, _ in hook:
                if isinstance(name, str) and known and name not in known and name.split(".")[-1] != "hook_result":
                    raise ValueError(f"{model.info.name} has no hook point {name!r}{nearest(name, known)}")
            named = [
                (
                    name,
                    _counted(name if isinstance(name, str) else getattr(name, "__name__", "a filter"), function, calls),
                )
                for name, function in hook
            ]
            stack.enter_context(library.hooks(fwd_hooks=named))
        yield


def _handles(made: Any, stack: ExitStack) -> None:
    """Undo at the end what a user's function gave."""
    if isinstance(made, AbstractContextManager) and not hasattr(made, "remove"):
        stack.enter_context(made)
    elif hasattr(made, "remove") and not isinstance(made, list):
        stack.callback(made.remove)
    elif isinstance(made, Iterable):
        for each in made:
            _handles(each, stack)
    elif made is not None:
        raise ValueError(f"hook must return a handle, a context manager or a list of these, got {type(made).__name__}")


def _removed(library: Any, before: Mapping[Any, tuple[set[int], set[int]]]) -> None:
    """Take away what was added and not removed."""
    for part in library.modules():
        known = before.get(part, (set(), set()))
        for hooks, old in zip((part._forward_hooks, part._forward_pre_hooks), known, strict=True):
            for key in set(hooks) - old:
                del hooks[key]


def _counted(name: str, function: Callable[..., Any], calls: Counter[str]) -> Callable[..., Any]:
    calls.setdefault(name, 0)

    def run(*args: Any, **kwargs: Any) -> Any:
        calls[name] += 1
        return function(*args, **kwargs)

    return run


def _differs(model: Model, first: Tensor, second: Tensor) -> bool:
    return not apart(first, second).relative <= tolerance_of(model)


def _first_difference(
    model: Model,
    pair: PromptPair,
    plain: Mapping[str, Tensor],
    hooked: Mapping[str, Tensor],
    exact: Mapping[str, Tensor],
    heads: Sequence[Head],
    calls: Counter[str],
) -> tuple[str, float]:
    """Return what a hook does where it first departs from the exact edit, and the largest difference there."""
    differ, order = partial(_differs, model), list(plain)
    departs = [name for name in exact if differ(exact[name], hooked[name])]
    changes = [name for name in plain if differ(plain[name], hooked[name])]
    if not departs or _behind_z(model, departs, changes, hooked, exact, heads):
        return AS_MEANT, worst(apart(exact[name], hooked[name]) for name in exact if name not in departs).relative
    at = departs[0]
    error = apart(exact[at], hooked[at]).relative
    if not changes:
        return f"it has no effect{_why_none(model, calls)}", error
    begun = order.index(at) > order.index(changes[0])
    first, plain = (at, exact) if begun else (changes[0], plain)  # what it changes before is as meant
    (layer, what), meant = parsed(first) or (None, ""), parsed(at)
    if layer is None:
        return "it changes the logits alone", error
    if meant is not None and meant[0] < layer:
        return f"it leaves {listed([head for head in heads if head.layer == meant[0]] or heads)} as it is", error
    asked = [head for head in heads if head.layer == layer]
    if what == "attn.hook_z":
        changed = _heads_apart(model, layer, plain[first], hooked[first])
        if changed != asked and not begun:
            return f"it changes {_named(changed, model)}, not {listed(asked or heads)}", error
        rows = [row for row in range(len(plain[first])) if differ(plain[first][row], hooked[first][row])]
        if at == first and not differ(exact[first][rows], hooked[first][rows]):
            return f"it changes {_span('row', rows)} only", error
        wrong = _heads_apart(model, layer, exact[first], hooked[first])
        off = [row for row in range(len(exact[first])) if differ(exact[first][row], hooked[first][row])]
        own = " in rows of the inserted tokens themselves" * bool(pair.span_mask[off].all())
        return f"it gives {listed(wrong)} other values than that edit{own}", error
    if what in ("hook_attn_out", "hook_resid_mid"):
        axis = (plain[first] - hooked[first]).abs().amax(0)
        scale = float(plain[first].abs().max())
        places = (axis > tolerance_of(model) * scale).nonzero().flatten().tolist()
        if len(places) == model.info.d_model:
            return f"it changes what layer {layer}'s attention adds otherwise than that edit", error
        return (
            f"it changes {_span('coordinate', places)} of what layer {layer}'s attention adds, after the output projection "
            f"W_O has mixed all heads; {listed(heads)} is z[:, :, head] before it"
        ), error
    where = {"hook_resid_pre": "the residual stream before", "hook_mlp_out": "what the MLP adds in"}
    return f"it changes {where.get(what, 'the residual stream after')} layer {layer}, no head's output", error


def _behind_z(
    model: Model,
    departs: Sequence[str],
    changes: Sequence[str],
    hooked: Mapping[str, Tensor],
    exact: Mapping[str, Tensor],
    heads: Sequence[Head],
) -> bool:
    """Whether the heads named are edited right behind z (their `hook_result`, their part of W_O): z alone is as it was."""
    layers = {name: layer for name in departs for layer, what in [parsed(name) or (-1, "")] if what == "attn.hook_z"}
    return (
        len(layers) == len(departs)
        and departs[0] not in changes
        and bool(changes)
        and all(
            set(_heads_apart(model, layer, exact[name], hooked[name])) <= {*heads} for name, layer in layers.items()
        )
    )


def _heads_apart(model: Model, layer: int, one: Tensor, other: Tensor) -> list[Head]:
    """Return the heads of a layer whose z differ."""
    return [Head(layer, n) for n in range(model.info.n_heads) if _differs(model, one[:, n], other[:, n])]


def _why_none(model: Model, calls: Counter[str]) -> str:
    """Return why a hook has no effect, where that is known."""
    never = [name for name, n in calls.items() if not n]
    if never:
        flag = " (it needs set_use_attn_result(True))" if any("hook_result" in name for name in never) else ""
        return f": nothing passes at {listed(never)}{flag}"
    if calls:
        return ": its function runs and changes nothing"
    if model.info.attention != "eager":
        return f": {model.info.attention} attention makes no pattern that a hook could change"
    return ""


def _named(heads: Sequence[Head], model: Model) -> str:
    """Return heads by name; all of a layer in a word."""
    if len(heads) == model.info.n_heads:
        return f"all heads of layer {heads[0].layer}"
    return listed(heads)


def _span(what: str, places: Sequence[int]) -> str:
    """Return places as a range where they are one, else their number."""
    if len(places) == 1:
        return f"{what} {places[0]}"
    whole = places[-1] - places[0] + 1 == len(places)
    return f"{what}s {places[0]} to {places[-1]}" if whole else f"{len(places)} {what}s"


def _preferred(run: Mapping[str, Tensor], plain: Mapping[str, Tensor]) -> float:
    return float(run["logits"].log_softmax(-1)[plain["logits"].argmax()])


def _padded(model: Model, short: PromptPair, long: PromptPair, hook: Any, heads: Sequence[Head]) -> str:
    """Return what a hook does otherwise to a prompt that is padded on the left beside a longer one; "" if nothing."""
    alone, other = short.condition("inserted"), long.condition("inserted")
    pad = other.n_tokens - alone.n_tokens
    names = [site(layer, "attn.hook_z") for layer in sorted({head.layer for head in heads})]
    shown = torch.ones(2, 1, other.n_tokens, other.n_tokens, dtype=torch.bool)
    shown[1, :, pad:, :pad] = False
    places = torch.arange(other.n_tokens)
    batch = Inputs(
        torch.cat([other.tokens, torch.cat([other.tokens[:, :pad], alone.tokens], 1)]),
        torch.stack([places, (places - pad).clamp(min=0)]),
        shown,
    )

    def rows(run: Mapping[str, Tensor], start: int) -> list[Tensor]:
        return [run[name][start:] for name in names]

    if any(map(partial(_differs, model), rows(_ran(model, alone, names), 0), rows(_ran(model, batch, names), pad))):
        return ""  # this model cannot be padded so: nothing is known
    try:
        with _added(model, hook, Counter()):
            both = rows(_ran(model, alone, names), 0), rows(_ran(model, batch, names), pad)
    except Exception as error:  # noqa: BLE001  a user's own code: whatever it raises is the finding
        return f"in a batch of two prompts it raises {type(error).__name__}"
    if any(map(partial(_differs, model), *both)):
        return (
            "in a batch that is padded on the left it does something else to the shorter prompt: it counts rows from the left, "
            "or takes padding for tokens"
        )
    return ""


def _what_it_is(model: Model, run: Mapping[str, Tensor], value: Tensor, head: Head, of: str) -> tuple[str, float]:
    """Return what a captured value is, and how far it is from what was meant."""
    meant = _candidate(model, run, head.layer, f"attn.hook_{of}", head.head)
    if value.dim() != 2 or value.shape[-1] != meant.shape[1] or len(value) < len(meant):
        if value.shape == (len(meant), model.info.d_model) and (wrote := _writer(model, run, value, head.layer)):
            return f"it is what {wrote} writes, z W_O, of width {model.info.d_model}", np.nan
        shape = list(value.shape)
        return f"it has shape {shape}, where {list(meant.shape)} is meant", np.nan
    error = apart(meant, value[: len(meant)]).relative
    if error <= tolerance_of(model):
        return AS_MEANT, error
    for words, other in _candidates(model, run, head, of):
        for start in range(len(value)):
            rows = min(len(value) - start, len(other))
            if rows < min(4, len(other)):
                break
            if not _differs(model, other[:rows], value[start : start + rows]):
                shift = ", but rows of padding stand before it: the batch is padded on the left" if start else ""
                return f"it is {words}{shift}", error
    return "it is nothing that was looked for", error


def _writer(model: Model, run: Mapping[str, Tensor], value: Tensor, layer: int) -> Head | None:
    """Return the head of the layer that writes this, if any."""
    try:
        weights = model.attention_output(layer).weights.detach().cpu().double()
    except ModelError:
        return None
    wrote = torch.einsum("thd,hdm->htm", run[site(layer, "attn.hook_z")], weights)
    return next((Head(layer, at) for at, each in enumerate(wrote) if not _differs(model, each, value)), None)


def _candidate(model: Model, run: Mapping[str, Tensor], layer: int, name: str, number: int) -> Tensor:
    """Return one query head's rows of a site, `[token, d_head]`; of keys and values those that it reads."""
    values = run[site(layer, name)]
    return values[:, number * values.shape[1] // model.info.n_heads]


def _candidates(model: Model, run: Mapping[str, Tensor], head: Head, of: str) -> Iterator[tuple[str, Tensor]]:
    """Yield what a capture could be instead, with its words: the head itself at other rows, other heads, slices."""
    order = sorted(range(model.info.n_layers), key=lambda layer: abs(layer - head.layer))
    for name in sorted((*READ_OF_HEADS, *ROTATED), key=lambda name: name != f"attn.hook_{of}"):
        for layer in order if site(head.layer, name) in run else ():
            for number in sorted(range(model.info.n_heads), key=lambda number: number != head.head):
                words = f"{name.removeprefix('attn.hook_')} of {Head(layer, number)}"
                yield words, _candidate(model, run, layer, name, number)
    d = model.info.d_head
    for layer in order:
        for name in READ_OF_STREAM:
            if site(layer, name) not in run:
                continue
            for start in range(0, model.info.d_model - d + 1, d):
                after = ", after the output projection W_O has mixed all heads" if name == "hook_attn_out" else ""
                words = f"coordinates {start} to {start + d - 1} of {name} in layer {layer}{after}"
                yield words, run[site(layer, name)][:, start : start + d]
