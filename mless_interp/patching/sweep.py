"""Exact sweeps: patch one head at a time, every head, and see what the outcome does."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..heads import Head, check_heads
from ..models.base import Model
from ..models.inputs import Inputs
from ..models.memory import halved
from ..prompts.pairs import PromptPair
from ..running.checkpoint import Checkpoint
from ..running.progress import progress_bar
from .interventions import INTERVENTIONS, EdgeNoise, Intervention, Knockout, LayerState, PatchZ
from .outcomes import OUTCOMES, Outcome, named
from .scores import PatchScores

CONTRASTS: dict[str, tuple[str, str]] = {
    "content": ("masked", "inserted"),
    "shift": ("base", "gap"),
    "total": ("base", "inserted"),
}
"""contrast -> (clean condition, corrupted condition)."""
DIRECTIONS = ("denoising", "noising")
POSITIONS = ("question", "last", "prefix", "span", "all")


def patch_heads(
    model: Model,
    pairs: Iterable[PromptPair],
    *,
    contrast: str = "content",
    direction: str = "denoising",
    edit: str | Intervention = "z",
    outcome: str | Outcome = "answer_logprob",
    heads: Iterable[Head] | None = None,
    positions: str = "question",
    checkpoint: str | Path | None = None,
    max_rows: int | None = None,
    progress: bool = True,
    seed: int = 0,
) -> "PatchScores":
    """Patch every head (or `heads`), one at a time, exactly.

    Parameters
    ----------
    contrast : "content" (masked C3 -> inserted C1), "shift" (base C0 -> gap C2), "total" (base C0 -> inserted C1,
        through the alignment). The first is the clean run, the second the corrupted one.
    direction : "denoising" patches the clean run's activation into the corrupted run, "noising" the reverse.
    edit : "z" (the donor's head output), "knockout" (denoising: the head cannot see the span, renormalised; noising: in
        the run that cannot see the span this head alone sees it), another name of `INTERVENTIONS`, or an object.
    outcome : "answer_logprob", "solution_logprob", "logit_diff", "kl" (from the clean run, over the question), "kl_last".
    heads : zero-based `Head`s; default all.
    positions : where z is edited: "question" (everything after the insertion point: all that can change), "last" (from
        the position that predicts the answer on), or "prefix", "span", "all" (equal-length contrasts; prefix and span
        are no-ops, for checking).
    checkpoint : a file that receives each finished problem at once; a run started again with the same settings goes on
        from there. `max_rows` limits the rows of one batch (default: sized to memory, halved when memory runs out).

    Returns `PatchScores` with per-problem values `[problem, layer, head]`.

    Source: activation patching as in Heimersheim & Nanda (2404.15255), methods §6; each value equals one whole forward
    pass with that edit, at a fraction of the cost (`Model.replay`).
    """
    read_outcome = named(outcome, OUTCOMES, "outcome", Outcome)
    bare = checked_pairs(pairs, contrast, direction, positions)
    intervention = _chosen(edit, contrast, direction)
    chosen = model.info.heads if heads is None else tuple(heads)
    chosen = check_heads(chosen, n_layers=model.info.n_layers, n_heads=model.info.n_heads)
    if not chosen:
        raise ValueError("no heads to patch")
    answered = [pair.answered(read_outcome.appended) for pair in bare]
    read_outcome.check(answered)
    settings = {
        "contrast": contrast,
        "direction": direction,
        "edit": _edit_label(intervention),
        "outcome": read_outcome.name,
        "positions": positions,
        "heads": [str(head) for head in chosen],
        "model": model.info.name,
        "backend": model.info.backend,
        "dtype": model.info.dtype,
        "largest_logit": None if model.checks is None else round(model.checks.largest_logit, 3),  # same weights?
    }
    saved = Checkpoint(checkpoint, {**settings, "prompts": [_fingerprint(pair) for pair in answered]})
    shape = (len(answered), model.info.n_layers, model.info.n_heads)
    patched = np.full(shape, np.nan)
    ends = np.full((len(answered), 2), np.nan)  # receiving, donor
    with progress_bar(len(answered) * len(chosen), "patching heads", enabled=progress) as bar:
        waiting: list[int] = []
        for index, pair in enumerate(answered):
            done = saved.get(pair.id)
            if done is None:
                waiting.append(index)
            else:
                ends[index], patched[index] = done["ends"], np.array(done["patched"], dtype=float)
                bar.update(len(chosen))
        for group in equal_geometry(waiting, answered, read_outcome):
            batch = [answered[index] for index in group]
            sweep = _Sweep(model, batch, contrast, direction, intervention, read_outcome, positions, max_rows)
            values, group_ends = sweep.all_heads(chosen, bar)
            for place, index in enumerate(group):
                patched[index], ends[index] = values[place], group_ends[place]
                saved.put(answered[index].id, {"ends": ends[index].tolist(), "patched": patched[index].tolist()})
    return PatchScores(
        problem_ids=tuple(pair.id for pair in answered),
        patched=patched,
        receiving=ends[:, 0],
        donor=ends[:, 1],
        heads=chosen,
        unit=read_outcome.unit,
        settings=settings,
        seed=seed,
    )


def _edit_label(intervention: Intervention) -> str:
    options = {key: value for key, value in vars(intervention).items() if key != "name"}
    return intervention.name + ("" if not options else "(" + ", ".join(f"{k}={v}" for k, v in options.items()) + ")")


def _chosen(edit: str | Intervention, contrast: str, direction: str) -> Intervention:
    if edit == "knockout":
        intervention: Intervention = Knockout() if direction == "denoising" else EdgeNoise()
    else:
        intervention = named(edit, INTERVENTIONS, "edit", None)
    if not callable(intervention) or not hasattr(intervention, "needs_span"):
        raise TypeError(f"edit must be a name ({', '.join(INTERVENTIONS)}) or an Intervention, got {edit!r}")
    if intervention.needs_span and contrast != "content":
        raise ValueError(
            f"edit {intervention.name!r} acts on attention to the inserted span, so it needs contrast='content', got "
            f"{contrast!r}"
        )
    return intervention


def checked_pairs(
    pairs: Iterable[PromptPair], contrast: str = "content", direction: str = "denoising", positions: str = "question"
) -> tuple[PromptPair, ...]:
    """The pairs, fit for patching with these settings; `ValueError` with the reason and the count otherwise."""
    for given, known, what in (
        (contrast, tuple(CONTRASTS), "contrast"),
        (direction, DIRECTIONS, "direction"),
        (positions, POSITIONS, "positions"),
    ):
        if given not in known:
            raise ValueError(f"unknown {what} {given!r}; choose one of {', '.join(known)}")
    found = tuple(pairs)
    if not found:
        raise ValueError("there are no prompt pairs to patch")
    merged = sum(pair.boundary_merge for pair in found)
    if merged:
        raise ValueError(
            f"{merged} of {len(found)} pairs merged tokens at the border of a text-level insertion, so their positions "
            'cannot be aligned: make them with template="raw" for patching'
        )
    empty = [pair.id for pair in found if pair.n_after == 0]
    if empty:
        raise ValueError(
            f"{len(empty)} of {len(found)} pairs have no tokens after the insertion (first: {empty[0]!r}), so nothing can "
            'change there: insert before="question"'
        )
    repeated = len(found) - len({pair.id for pair in found})
    if repeated:
        raise ValueError(f"{repeated} problem ids are given twice; the problem is the unit of replication")
    if contrast == "total" and positions not in ("question", "last"):
        raise ValueError("contrast 'total' joins prompts of two lengths: positions must be 'question' or 'last'")
    return found


def _fingerprint(pair: PromptPair) -> list[Any]:
    return [pair.id, pair.span[0], pair.span[1], pair.n_answer, hash_ids(pair.inserted.ids)]


def hash_ids(ids: Sequence[int]) -> str:
    """A short fingerprint of token ids, the same in every process."""
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()[:16]


def equal_geometry(indices: list[int], pairs: list[PromptPair], outcome: Outcome) -> Iterator[list[int]]:
    """Problems of the same geometry, which can share a batch, in order of first appearance."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for index in indices:
        pair = pairs[index]
        found.setdefault((len(pair.base), pair.span, pair.n_answer), []).append(index)
    for members in found.values():
        for at in range(0, len(members), 8):
            yield members[at : at + 8]


def stacked(inputs: list[Inputs]) -> Inputs:
    """Inputs of equal length as one batch."""
    join = lambda parts: None if parts[0] is None else torch.cat(parts)  # noqa: E731
    return Inputs(
        torch.cat([each.tokens for each in inputs]),
        join([each.position_ids for each in inputs]),
        join([each.attention_mask for each in inputs]),
    )


class _Sweep:
    """One batch of problems of the same geometry; short-lived."""

    def __init__(
        self,
        model: Model,
        pairs: list[PromptPair],
        contrast: str,
        direction: str,
        intervention: Intervention,
        outcome: Outcome,
        positions: str,
        max_rows: int | None,
    ) -> None:
        self.model, self.pairs, self.outcome, self.intervention = model, pairs, outcome, intervention
        clean_name, corrupted_name = CONTRASTS[contrast]
        names = (clean_name, corrupted_name) if direction == "denoising" else (corrupted_name, clean_name)
        donor_inputs, receiving_inputs = (stacked([pair.condition(name) for pair in pairs]) for name in names)
        first = pairs[0]
        from_end = outcome.reads(first)
        n_after = first.n_after if positions in ("question",) else from_end[0]
        length = receiving_inputs.n_tokens
        start = 0 if positions in ("all", "prefix", "span") else length - n_after
        self.read = [length - back for back in from_end]
        donor_length = donor_inputs.n_tokens
        read_donor = [donor_length - back for back in from_end]
        self.donor = model.record(donor_inputs, start=start + donor_length - length, logits_at=read_donor)
        self.receiving = model.record(receiving_inputs, start=start, logits_at=self.read)
        self.clean_logits = (self.donor if direction == "denoising" else self.receiving).logits
        self.span = span_of(pairs, receiving_inputs)
        self.donor_span = span_of(pairs, donor_inputs)
        self.edited = self._edited_positions(positions, start, length)
        self.edited_z: dict[int, Tensor] = {}
        self.rows = max_rows or default_rows(model, len(pairs), length - start, length, len(self.read))

    def _edited_positions(self, positions: str, start: int, length: int) -> Tensor:
        """Boolean `[changed]`: where z is replaced."""
        at = torch.arange(start, length)
        a, b = self.pairs[0].span
        if positions == "prefix":
            return at < a
        if positions == "span":
            return (at >= a) & (at < b)
        return torch.ones(length - start, dtype=torch.bool)

    def all_heads(self, heads: tuple[Head, ...], bar: Any) -> tuple[np.ndarray, np.ndarray]:
        """Patched outcomes `[problem, layer, head]` (NaN where not asked) and `[problem, (receiving, donor)]`."""
        info = self.model.info
        n = len(self.pairs)
        values = np.full((n, info.n_layers, info.n_heads), np.nan)
        ends = np.stack([self._outcome(self.receiving.logits, 1), self._outcome(self.donor.logits, 1)], -1)[:, 0]
        ordered, at = sorted(heads), 0
        while at < len(ordered):
            some = ordered[at : at + self.rows]
            try:
                found = self._patched(some)
            except (MemoryError, RuntimeError) as error:
                self.rows = halved(self.rows, error)
                continue
            values[:, [head.layer for head in some], [head.head for head in some]] = found
            at += len(some)
            bar.update(len(some) * n)
        return values, ends

    def _new_z(self, layer: int) -> Tensor:
        if isinstance(self.intervention, PatchZ):
            return self.donor.z[layer]
        if layer not in self.edited_z:
            donor = None
            if self.intervention.needs_donor:
                donor = LayerState.of(self.model, self.donor, layer, span=self.donor_span)
            state = LayerState.of(self.model, self.receiving, layer, span=self.span, donor=donor)
            with torch.no_grad():
                self.edited_z = {layer: self.intervention(state)}  # heads come in layer order: the last one is enough
        return self.edited_z[layer]

    def _patched(self, heads: list[Head]) -> np.ndarray:
        """Patched outcomes `[problem, head]` of one pass. An edit that changes nothing has an effect of exactly 0."""
        # in half precision each layer gets one more row, unedited: rounding is then common to all and cancels
        half = self.receiving.z[0].element_size() < 4
        layers: list[int] = []
        rows: list[Tensor] = []
        same: list[Tensor] = []
        row_of: dict[Head, int] = {}
        plain_of: dict[int, int] = {}
        for layer in sorted({head.layer for head in heads}):
            old, new = self.receiving.z[layer], self._new_z(layer)
            edited = self.edited.to(old.device)
            if half:
                plain_of[layer] = len(rows)
                rows.append(old)
            for head in (head for head in heads if head.layer == layer):
                z = old.clone()
                z[:, edited, head.head] = new[:, edited, head.head].to(z.dtype)
                row_of[head] = len(rows)
                rows.append(z.to(rows[0].device) if rows else z)
                same.append((z == old).flatten(1).all(1).cpu())
            layers += [layer] * (len(rows) - len(layers))
        logits = self.model.replay(self.receiving, layers, torch.stack(rows, 1).flatten(0, 1), logits_at=self.read)
        outcomes = self._outcome(logits, len(rows))
        receiving = self._outcome(self.receiving.logits, 1)
        values = outcomes[:, [row_of[head] for head in heads]]
        if half:
            values = values - outcomes[:, [plain_of[head.layer] for head in heads]] + receiving
        return np.where(torch.stack(same, 1).numpy(), receiving, values)

    def _outcome(self, logits: Tensor | None, rows: int) -> np.ndarray:
        """Outcomes `[problem, row]`."""
        assert logits is not None and self.clean_logits is not None
        found = []
        for place, pair in enumerate(self.pairs):
            clean = self.clean_logits[place : place + 1] if self.outcome.needs_clean else None
            found.append(self.outcome.value(logits[place * rows : (place + 1) * rows], pair, clean))
        return torch.stack(found).double().cpu().numpy()


def span_of(pairs: list[PromptPair], inputs: Inputs) -> Tensor:
    """The inserted keys `[b, token]` in the coordinates of this input (none in a prompt without insertion)."""
    length = inputs.n_tokens
    if length != len(pairs[0].inserted):
        return torch.zeros(len(pairs), length, dtype=torch.bool)
    return torch.stack([pair.span_mask for pair in pairs])


TOKENS_PER_PASS = {"cpu": 1024, "cuda": 16_384}
"""Enough tokens in one pass for full matrix products; more would only leave the caches."""


def default_rows(model: Model, batch: int, changed: int, length: int, read: int) -> int:
    """Rows per problem of one pass: full matrix products, within 1 GB or a third of a GPU's free memory.

    A first guess: halved whenever memory runs out.
    """
    info = model.info
    widest = 8 * info.d_model + 4 * (info.d_mlp or 4 * info.d_model)
    per_row = changed * (widest + 4 * info.n_heads * length) + 3 * read * info.d_vocab
    kind = "cuda" if "cuda" in info.device else "cpu"
    budget = torch.cuda.mem_get_info(info.device)[0] / 3 if kind == "cuda" else 1e9
    bytes_each = 8 if info.dtype == "float64" else 4
    fitting = int(budget / (per_row * bytes_each * batch))
    return max(1, min(-(-TOKENS_PER_PASS[kind] // (changed * batch)), fitting))
