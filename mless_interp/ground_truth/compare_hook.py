"""Is a user's own hook what it is meant to be: it runs beside the exact edit, and the first difference is named."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from ..core.arguments import checked, count_of, listed, nearest, one_of
from ..core.heads import Head
from ..models.base import Model
from ..models.checks import apart, worst
from ..models.info import Edit, Inputs
from ..models.sites import parsed, site
from ..patching.interventions import INTERVENTIONS, run_edits
from ..patching.prepared import fit_pairs
from ..prompts.pairs import PromptPair, own_pairs
from ..runtime.base_result import Result, largest_first
from ..runtime.columns import columns_of
from ..runtime.loop import progress_bar
from .identities import tolerance_of

COMPARED = ("hook_resid_pre", "attn.hook_z", "hook_attn_out", "hook_mlp_out", "hook_resid_post")
"""Sites at which a hook is held against the exact edit, in the order of a forward pass."""
AS_MEANT = "as meant"
MIXED = "after the output projection W_O has mixed all heads"
NO_EFFECT = "it has no effect"

Activations = Mapping[str, Tensor]
"""Of one prompt by hook name, `[token, ...]`, and the `logits` of its last row; float64."""
Hooks = Callable[[nn.Module], object] | Sequence[tuple[str, Callable[..., object]]]


@dataclass(frozen=True, eq=False, repr=False)
class HookComparison(Result):
    """What a user's hook really does, problem by problem; `found` says it in words, "as meant" where nothing differs.

    `error` `[problem]` is the largest difference from what was meant, as a share of the largest value there; NaN where shapes
    do not fit.
    """

    problem_ids: tuple[str, ...]
    meant: str
    found: tuple[str, ...]
    error: np.ndarray

    columns = columns_of("""
        found | what it does | | the first difference from what was meant
        error | largest difference | p | from what was meant, as a share of the largest value there
    """)

    @property
    def passed(self) -> bool:
        """Whether it does what was meant in every problem."""
        return set(self.found) == {AS_MEANT}

    def table(self) -> pd.DataFrame:
        """Return one row per kind of finding, the most frequent first: its problems `k` of `n`, and their median error."""
        errors = self.to_frame().groupby("found", sort=False)["error"]
        rows = errors.agg(k="size", error="median").assign(n=len(self.found)).reset_index()
        return largest_first(rows[["found", "k", "n", "error"]], "k")

    def to_frame(self) -> pd.DataFrame:
        """Return one row per problem."""
        return pd.DataFrame({"problem": self.problem_ids, "found": self.found, "error": self.error})

    def headline(self) -> str:
        most, k = self._kinds()[0]
        told = f"in {k} of {count_of(len(self.found), 'problem')}"
        return f"Yes, this is {self.meant}, {told}." if self.passed else f"No, this is not {self.meant}; {told} {most}."

    def _kinds(self) -> list[tuple[str, int]]:
        return sorted(Counter(self.found).most_common(), key=lambda each: each[0] == AS_MEANT)

    def details(self) -> list[str]:
        return [f"In {k} of {len(self.found)}: {words}." for words, k in self._kinds()[1:]]


@checked
def compare_hook(
    model: Model,
    pairs: Iterable[PromptPair],
    hook: object,
    heads: Iterable[Head | str],
    *,
    edit: str | Callable[[Tensor], Tensor] = "zero",
    progress: bool = True,
) -> HookComparison:
    """Compare your own ablation of heads with the exact edit, and name what it really does.

    Both runs of each problem's inserted prompt are compared at every layer: head outputs, what attention and MLP add, the
    residual stream. The first difference is named.

    hook : `(name, function)` pairs as TransformerLens' `fwd_hooks`; or a function of the library's own model (of nnsight the
        Hugging Face model) that adds PyTorch's forward hooks to it, or gives a context manager that does; none stays.
    heads : the heads that you mean to change. edit : what you mean to do to each: "zero" its output at all rows, "knockout"
        (or another of `INTERVENTIONS` that needs no second run), or your function of a head's z `[batch, token, d_head]`.
    """
    chosen = model.info.chosen(heads, what="edit")
    made = own_pairs(model, fit_pairs(pairs))
    if isinstance(edit, str):
        one_of(edit, ("zero", *(name for name, known in INTERVENTIONS.items() if not known.needs_donor)), "edit")
    if not callable(hook) and not (isinstance(hook, list | tuple) and hook):
        raise TypeError(f"hook must be (name, function) pairs or a function that adds hooks, got {hook!r:.60}")
    calls = Counter[str]()
    sites = [site(layer, name) for layer in range(model.info.n_layers) for name in COMPARED]
    rows = []
    with progress_bar(len(made), "comparing", enabled=progress) as bar:
        for pair in made:
            inputs = pair.condition("inserted")
            plain, exact = _ran(model, inputs, sites), _ran(model, inputs, sites, _exact(model, pair, chosen, edit))
            with _added(model, hook, calls):
                hooked = _ran(model, inputs, sites)
            words, error = _first_difference(model, pair, chosen, plain, exact, hooked)
            rows.append((words + _why_none(model, calls) if words == NO_EFFECT else words, error))
            bar.update(1)
    meant = f"{f'the edit {edit!r}' if isinstance(edit, str) else 'your edit'} of {listed(chosen)}"
    return _compared(model, made, meant, rows)


@checked
def compare_capture(
    model: Model,
    pairs: Iterable[PromptPair],
    capture: Callable[[list[list[int]]], Tensor | np.ndarray | Sequence[Tensor | np.ndarray]],
    head: Head | str,
) -> HookComparison:
    """Compare what your own code reads as one head's output with that output, and name what it really is.

    capture : your function of token ids, one list per prompt, run in one call; it returns what you take for the head's
        output (z, before W_O) of each prompt, `[prompt, token, d_head]`, or a list of `[token, d_head]`. Of a padded batch
        the first rows are compared, as code reads them that forgets the padding. What does not fit is looked for at other
        heads and rows, and behind W_O.
    """
    (chosen,) = model.info.chosen([head], what="read")
    made = own_pairs(model, fit_pairs(pairs))
    values = capture([list(pair.inserted.ids) for pair in made])
    n = None if values is None else len(values)
    if n != len(made):
        raise ValueError(f"capture must return one entry per prompt, {len(made)}, got {n}")
    sites = [site(layer, name) for layer in range(model.info.n_layers) for name in ("attn.hook_z", "hook_attn_out")]
    rows = [
        _what_it_is(model, _ran(model, pair.condition("inserted"), sites), torch.as_tensor(value), chosen)
        for pair, value in zip(made, values, strict=True)
    ]
    return _compared(model, made, f"z of {chosen}", rows)


def _compared(model: Model, pairs: Sequence[PromptPair], meant: str, rows: list[tuple[str, float]]) -> HookComparison:
    found, error = zip(*rows, strict=True)
    settings = {"model": model.info.name, "backend": model.info.backend}
    return HookComparison(tuple(pair.id for pair in pairs), meant, found, np.array(error), settings=settings)


def _ran(model: Model, inputs: Inputs, sites: Sequence[str], edits: Mapping[str, Edit] | None = None) -> Activations:
    run = model.run(inputs, capture=dict.fromkeys(sites), edits=edits, logits_at="last")
    assert run.logits is not None
    found = {name: value[-1].cpu().double() for name, value in run.captured.items()}
    return found | {"logits": run.logits[-1, -1].cpu().double()}


def _exact(
    model: Model, pair: PromptPair, heads: Sequence[Head], edit: str | Callable[[Tensor], Tensor]
) -> dict[str, Edit]:
    if isinstance(edit, str) and edit != "zero":
        span, inputs = pair.span_mask[None], pair.condition("inserted")
        return run_edits(model, inputs, INTERVENTIONS[edit], heads, span=span, rows=~span, start=0)
    change = torch.zeros_like if isinstance(edit, str) else edit

    def of_layer(layer: int, z: Tensor) -> Tensor:
        new = z.clone()
        for head in heads:
            if head.layer == layer:
                new[:, :, head.head] = change(z[:, :, head.head].clone())
        return new

    return {site(layer, "attn.hook_z"): partial(of_layer, layer) for layer in {head.layer for head in heads}}


@contextmanager
def _added(model: Model, hook: Hooks, calls: Counter[str]) -> Iterator[None]:
    """Have the user's hooks on the model and none of them afterwards; the calls of those with a name are counted."""
    library: Any = model.underlying
    if model.info.backend == "nnsight" and model.hf_model is not None:
        library = model.hf_model
    tables = [hooks for part in library.modules() for hooks in (part._forward_hooks, part._forward_pre_hooks)]
    before = [set(hooks) for hooks in tables]
    try:
        if callable(hook):
            # a context manager, such as HookedTransformer.hooks(...), hooks when it is entered
            with ExitStack() as entered:
                made = hook(library)
                for each in made if isinstance(made, list | tuple) else [made]:
                    if isinstance(each, AbstractContextManager):
                        entered.enter_context(each)
                yield
        else:
            with library.hooks(fwd_hooks=_counted(model, library, hook, calls)):
                yield
    finally:
        for hooks, own in zip(tables, before, strict=True):
            for key in set(hooks) - own:
                del hooks[key]


def _counted(model: Model, library: Any, hook: Sequence[tuple[str, Any]], calls: Counter[str]) -> list[tuple[str, Any]]:
    known = getattr(library, "hook_dict", {})
    if not known:
        raise ValueError(
            "(name, function) pairs are hooks of TransformerLens; for other models give a function that adds hooks"
        )

    def counted(name: str, function: Callable[..., object], *args: object, **kwargs: object) -> object:
        calls[name] += 1
        return function(*args, **kwargs)

    for name, _ in hook:
        if name not in known and not name.endswith("hook_result"):
            raise ValueError(f"{model.info.name} has no hook point {name!r}{nearest(name, known)}")
        calls.setdefault(name, 0)
    return [(name, partial(counted, name, function)) for name, function in hook]


def _differs(model: Model, first: Tensor, second: Tensor) -> bool:
    return not apart(first, second).relative <= tolerance_of(model)


def _first_difference(
    model: Model, pair: PromptPair, heads: Sequence[Head], plain: Activations, exact: Activations, hooked: Activations
) -> tuple[str, float]:
    """Return what the hook does where it first departs from the exact edit of these heads, and the largest difference there."""
    departs = [name for name in exact if _differs(model, exact[name], hooked[name])]
    changes = [name for name in plain if _differs(model, plain[name], hooked[name])]
    # an edit right behind z (of `hook_result`, of a head's part of W_O) leaves z alone as it was
    behind = changes and not {*departs} & {*changes} and all(name.endswith("attn.hook_z") for name in departs)
    if not departs or behind:
        return AS_MEANT, worst(apart(exact[name], hooked[name]) for name in exact if name not in departs).relative
    first, order = departs[0], list(exact)
    error = apart(exact[first], hooked[first]).relative
    if not changes:
        return NO_EFFECT, error
    begun = order.index(changes[0]) < order.index(first)  # what it changes before is as meant
    what = _changed(model, first, exact if begun else plain, hooked)
    layer, name = parsed(first) or (-1, first)
    if name != "attn.hook_z":
        return f"it changes {what}", error
    asked = [head for head in heads if head.layer == layer]
    if not begun and not what:
        return f"it leaves {listed(asked)} as it is; it changes {_changed(model, changes[0], plain, hooked)}", error
    if not begun and what != listed(asked):
        return f"it changes {what}, not {listed(asked or heads)}", error
    at = range(len(hooked[first]))
    rows, off = ([i for i in at if _differs(model, run[first][i], hooked[first][i])] for run in (plain, exact))
    if not begun and not {*rows} & {*off}:
        return f"it changes {'the last row' if rows == [at[-1]] else _span('row', rows)} only", error
    own = " in rows of the inserted tokens themselves" * bool(pair.span_mask[off].all())
    return f"it gives {_changed(model, first, exact, hooked)} other values than that edit{own}", error


def _changed(model: Model, name: str, right: Activations, hooked: Activations) -> str:
    """Return what a hook changes at a site: heads, or coordinates of what is added to the stream."""
    layer, what = parsed(name) or (-1, name)
    old, new = right[name], hooked[name]
    if what == "attn.hook_z":
        every = [Head(layer, at) for at in range(model.info.n_heads)]
        return listed(head for head in every if _differs(model, old[:, head.head], new[:, head.head]))
    if what == "logits":
        return "the logits alone"
    off = ~((old - new).abs().amax(0) <= tolerance_of(model) * old.abs().max())  # NaN, too
    part = "" if off.all() else f"{_span('coordinate', off.nonzero()[:, 0].tolist())} of "
    return f"{part}{name}{f', {MIXED}' if what == 'hook_attn_out' else ''}"


def _why_none(model: Model, calls: Counter[str]) -> str:
    if never := [name for name, n in calls.items() if not n]:
        flag = " (it needs set_use_attn_result(True))" if any("hook_result" in name for name in never) else ""
        return f": nothing passes at {listed(never)}{flag}"
    attention = model.info.attention
    return "" if attention == "eager" else f": {attention} attention makes no pattern that a hook could change"


def _span(what: str, places: Sequence[int]) -> str:
    if len(places) == 1:
        return f"{what} {places[0]}"
    whole = places[-1] - places[0] + 1 == len(places)
    return f"{what}s {places[0]} to {places[-1]}" if whole else f"{len(places)} {what}s"


def _what_it_is(model: Model, run: Activations, value: Tensor, head: Head) -> tuple[str, float]:
    value, meant = value.detach().cpu().double(), run[site(head.layer, "attn.hook_z")][:, head.head]
    if value.dim() != 2 or value.shape[1] != meant.shape[1] or len(value) < len(meant):
        return f"it has shape {list(value.shape)}, where {list(meant.shape)} is meant", np.nan
    error = apart(meant, value[: len(meant)]).relative
    if error <= tolerance_of(model):
        return AS_MEANT, error
    for words, other in _candidates(model, run, head):
        first = (value - other[0]).abs().amax(1) <= tolerance_of(model) * other.abs().max()
        for start in first.nonzero()[:, 0].tolist():
            rows = min(len(value) - start, len(other))
            if rows >= min(4, len(other)) and not _differs(model, other[:rows], value[start : start + rows]):
                shift = ", but rows of padding stand before it: the batch is padded on the left" if start else ""
                return f"it is {words}{shift}", error
    return "it is nothing that was looked for", error


def _candidates(model: Model, run: Activations, head: Head) -> Iterator[tuple[str, Tensor]]:
    layers = sorted(range(model.info.n_layers), key=lambda layer: abs(layer - head.layer))
    numbers = sorted(range(model.info.n_heads), key=lambda number: number != head.head)
    for other in [Head(layer, number) for layer in layers for number in numbers]:
        yield f"z of {other}", run[site(other.layer, "attn.hook_z")][:, other.head]
    width = model.info.d_head
    for name in [site(layer, "hook_attn_out") for layer in layers]:
        for start in range(0, model.info.d_model - width + 1, width):
            words = f"coordinates {start} to {start + width - 1} of {name}, {MIXED}"
            yield words, run[name][:, start : start + width]
