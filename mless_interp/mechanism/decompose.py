"""Head outputs with an inserted span as lambda z + Sigma: measured on any model, tested against a null, said in words."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ..core.arguments import Arguments, check_count, checked, count_of, one_of, several_of
from ..core.heads import Head
from ..metrics import outputs
from ..metrics.attention import retained_mass, span_mass
from ..metrics.patterns import uniform_pattern, widened
from ..models.attention_math import values_of_heads, with_extra
from ..models.base import Model
from ..models.info import AttentionRule, Reducer
from ..models.sites import Held, attention_sites, site
from ..patching.prepared import Measured, Settings, fit_pairs, single
from ..prompts.conditions import CONDITIONS, CONTRASTS, HELD_POSITIONS, Contrast
from ..prompts.insertions import Insertion
from ..prompts.pairs import PromptPair, digest_of, draws_beside, followed, over_pairs, own_pairs, pairs_like
from ..prompts.problems import groups_of
from ..runtime import base_result as results
from ..runtime.base_result import Found, Shown, ShownTable, interval_columns, of_heads
from ..runtime.columns import columns_of
from ..runtime.loop import RunOptions
from ..scores.streaming import recomputed_blocks
from ..statistics import Prevalence, defined_mean, fewest_problems, mean_interval, prevalence_test

DECOMPOSED = {name: contrast for name, contrast in CONTRASTS.items() if contrast.reads_span}
"""Contrasts whose corrupted run reads the span: what it reads is lambda and Sigma."""
SHARES = ("share", "scale_share", "bias_share", "shift_share", "rest_share")
"""Metrics whose sum over heads is the layer's."""
METRICS: dict[str, str] = {
    **dict.fromkeys(("lam", "lam_sd", "lam_last"), "probability"),
    "sigma_norm": "norm of z",
    "direction_coherence": "share",
    "value_cosine": "cosine",
    "value_spectral_share": "share",
    "value_effective_rank": "directions",
    **dict.fromkeys(("change", "residual"), "ratio of norms"),
    "fit_slope": "slope",
    "fit_r2": "R squared",
    **dict.fromkeys(SHARES, "share"),
}
"""Metric -> unit."""
NULLS = {"lam_null": "lam_p", "lam_control": "lam_control_p"}
"""The column of what lambda is compared with -> that of the corrected p-values."""
CLAIM = "differs from uniform attention, the same way in most problems"  # what a small `lam_p` says
SAME = 1e-6  # attention masses that are no further apart than this are the same up to rounding
Visit = Callable[[int, Tensor, Tensor, Tensor, Tensor], None]
"""Takes a layer, and what it shows of the run: queries and keys as they enter the scores, values, head outputs."""


class Read(NamedTuple):
    """What rows after the insertion point read in one run of one layer: `sigma` `[head, row, d_head]`, and `lam` `[head,
    row]`, the attention kept outside the span (a learned sink's share with it)."""

    lam: Tensor
    sigma: Tensor

    @classmethod
    def of(cls, q: Tensor, k: Tensor, v: Tensor, visible: Tensor, rule: AttentionRule, *, span: Tensor) -> "Read":
        """Read one run `[1, token, ...]`, a block of rows at a time; never in half precision. `span` is boolean `[token]`."""
        values, parts = values_of_heads(widened(v)[0], q.shape[2]), list[tuple[Tensor, Tensor]]()
        rows = rows_after(span)
        for whole in recomputed_blocks(q, k, visible[0], rule, first=int(rows.nonzero()[0])):
            block = whole.only(rows)
            keys = {"visible": block.visible, "span": block.mask(span)}
            padded = torch.nn.functional.pad(values[:, : block.n_src], (0, 0, 0, block.n_extra))
            parts.append((retained_mass(block.pattern, **keys), outputs.span_output(block.pattern, padded, **keys)))
        return cls(*(torch.cat(blocks, 1) for blocks in zip(*parts, strict=True)))


def rows_after(span: Tensor) -> Tensor:
    """Return which rows stand after the insertion point, none of the span's own, boolean `[token]`."""
    return ~span & (span.cumsum(0) > 0)


def visiting(layers: Iterable[int], visit: Visit) -> dict[str, Reducer]:
    """Make captures of a run that call `visit` inside each of these layers; nothing outlives it."""
    held = Held()

    def reduce(layer: int, parts: Sequence[str], z: Tensor) -> None:
        q, k, v = held.take(*parts)  # by now they have come, in whatever order
        visit(layer, q, k, v, z)

    capture: dict[str, Reducer] = {}
    for layer in layers:
        parts = attention_sites(layer, "rot_q", "rot_k", "v")
        capture |= {**held.captures(*parts), site(layer, "attn.hook_z"): partial(reduce, layer, parts)}
    return capture


def span_reads(
    model: Model, pair: PromptPair, layers: Sequence[int], condition: str = "inserted"
) -> dict[str, np.ndarray]:
    """Measure lambda `[layer, head]` and Sigma `[layer, head, d_head]` of one problem, means over rows after the insertion."""
    inputs = pair.condition(condition).to(model.info.device)
    visible = model.visible(inputs)
    means: dict[str, dict[int, np.ndarray]] = {"lam": {}, "sigma": {}}

    def visit(layer: int, q: Tensor, k: Tensor, v: Tensor, z: Tensor) -> None:
        seen, rule = visible[layer].to(k.device), model.attention_rule(layer)
        for name, values in Read.of(q, k, v, seen, rule, span=pair.span_mask)._asdict().items():
            means[name][layer] = values.mean(1).double().cpu().numpy()

    model.run(inputs, capture=visiting(layers, visit), logits_at="none")
    return {name: np.stack([of[layer] for layer in layers]) for name, of in means.items()}


@checked
def decompose_attention(
    model: Model,
    pairs: Iterable[PromptPair],
    *,
    heads: Iterable[Head | str] | None = None,
    layers: Iterable[int] | None = None,
    contrasts: Sequence[str] = ("content", "total", "held"),
    held_positions: str = "first",
    n_control_draws: int = 0,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    seed: int = 0,
) -> "AttentionDecomposition":
    r"""Split what an inserted span does to every head's output into scale, bias and shift, and say what is left.

    $$ z'_i = \lambda_i z_i + \Sigma_i, \qquad \lambda_i = 1 - \sum_{k \in I} A'_{ik}, \qquad
       \Sigma_i = \sum_{k \in I} A'_{ik} v_k $$

    per query and head. Against the run without the span at the same positions this is an identity in layer 0, whatever
    is inserted; against the plain prompt there is a third term, $\lambda_i (z^{\text{gap}}_i - z^{\text{base}}_i)$; in
    deeper layers a residual is left: how far attention is *not* affine there.

    heads, layers : which (zero-based), one or the other; default all. Shares are of all heads of a layer in any case.
    contrasts : "content" (masked -> inserted), "total" (base -> inserted), "held" (base -> held: content without any shift
        of positions), ... The first one is what is printed.
    held_positions : the span's own positions in C4, "first" or "spread" (methods §2 asks to report both).
    n_control_draws : of random words, as long and in the same place, with whose mean lambda is compared; 0: none.
    checkpoint, progress : as in `patch_heads`.

    Raises `ModelError` where the model shows no rotated queries and keys or no output weights.
    Source: arXiv 2510.01032, Eq. 1-2; methods §3 (I1, I2, I9, I10). The paper calls lambda the drop and takes one number.
    """
    model.need_rotated("lambda and Sigma")
    found = own_pairs(model, fit_pairs(followed(pairs), what="decompose"))
    for pair in found:
        pair.need_span("what is read of it")
    contrasts = several_of(contrasts, DECOMPOSED, "contrast")
    one_of(held_positions, HELD_POSITIONS, "held_positions")
    chosen = model.info.chosen(heads, layers, what="decompose")
    check_count(n_control_draws, name="n_control_draws", at_least=0)
    if n_control_draws and any(pair.given for pair in found):
        raise ValueError("pairs of token ids have no text that random words could stand in: leave n_control_draws out")
    words = Insertion.random_sentence(found[0].n_inserted, seed=seed).placed_as(found[0].insertion)
    controls = draws_beside(found[0].insertion, words, n_control_draws)
    draws = [followed(pairs_like(model, found, control)) for control in controls]
    grid, needed = model.info.mask_of(chosen), [CONTRASTS[name] for name in contrasts]
    runs = tuple(dict.fromkeys(run for each in needed for run in (each.clean, each.corrupted, _matched_run(each))))
    layers_of = np.flatnonzero(grid.any(1)).tolist()
    for layer in layers_of:
        model.attention_output(layer)  # what is not known is told before anything runs
    settings: Settings = {"contrasts": list(contrasts), "held_positions": held_positions, **model.identity}
    settings |= {"heads": list(map(str, chosen)), "n_heads": model.info.n_heads, "insertion": found[0].insertion.label}
    settings |= {"control": words.label if draws else None}
    settings |= {"control_prompts": [digest_of(draw) for draw in draws], "prompts": digest_of(found)}

    def measured(pair: PromptPair, others: Sequence[PromptPair]) -> dict[str, Any]:
        """Measure `heads[metric][contrast]` `[layer, head]`, lambda of uniform attention `[layer]`, and the mean lambda
        `[layer, head]` under other insertions: one forward pass of all runs of the pair, each layer reduced where it is made.
        """
        by_head: Found = {}
        uniform = {contrast: np.full(len(grid), np.nan) for contrast in contrasts}
        inputs = pair.side_by_side(runs, held_positions=held_positions).to(model.info.device)
        visible_in, rows = model.visible(inputs), rows_after(pair.span_mask).nonzero()[:, 0]

        def visit(layer: int, q: Tensor, k: Tensor, v: Tensor, z: Tensor) -> None:
            visible, rule = visible_in[layer].to(z.device), model.attention_rule(layer)
            read = {
                run: Read.of(q[row, None], k[row, None], v[row, None], visible[row, None], rule, span=pair.span_mask)
                for row, run in enumerate(runs)
                if CONDITIONS[run].reads_span
            }
            after = {run: z[row, rows.to(z.device)].transpose(0, 1) for row, run in enumerate(runs)}
            for contrast in contrasts:
                row = runs.index(CONTRASTS[contrast].corrupted)
                of_span = v[row, pair.span_mask.to(v.device)]
                numbers = _numbers(model, layer, CONTRASTS[contrast], after, read, of_span)
                together = torch.stack([values.double() for values in numbers.values()]).detach().cpu().numpy()
                for metric, values in zip(numbers, np.where(grid[layer], together, np.nan), strict=True):
                    results.put(by_head, metric, contrast, layer, values, shape=grid.shape)
                seen = with_extra(visible[row, :1, rows.to(z.device)], rule, value=True)
                span = with_extra(pair.span_mask.to(visible.device), rule)
                even = uniform_pattern(seen, dtype=torch.float64)
                uniform[contrast][layer] = float((1 - span_mass(even, span=span, visible=seen)).mean())

        model.run(inputs, capture=visiting(layers_of, visit), logits_at="none")
        lam = np.full(grid.shape, np.nan)
        if others:
            lam[layers_of] = np.mean([span_reads(model, other, layers_of)["lam"] for other in others], axis=0)
        return {"heads": by_head, "uniform": uniform, "control": np.where(grid, lam, np.nan)}

    compute = single(lambda at: measured(found[at], [draw[at] for draw in draws]))
    how: Arguments = {"settings": {**settings, "seed": seed}, "options": RunOptions(checkpoint, progress)}
    done = over_pairs(model, found, compute, label="decomposing attention", **how)
    return AttentionDecomposition(
        problem_ids=tuple(pair.id for pair in found),
        groups=groups_of(pair.problem for pair in found),
        contrasts=contrasts,
        heads=chosen,
        values=results.stacked([each["heads"] for each in done], METRICS),
        uniform=results.stacked(done, ["uniform"])["uniform"],
        control=np.array([each["control"] for each in done], dtype=float) if draws else None,
        settings=settings,
        seed=seed,
    )


def _matched_run(contrast: Contrast) -> str:
    """Name the run that lambda and Sigma are held against; between it and a clean run at other positions lies the shift."""
    return contrast.clean if contrast.same_positions else CONTRASTS["content"].clean


def _numbers(
    model: Model, layer: int, contrast: Contrast, z: Mapping[str, Tensor], reads: Mapping[str, Read], v: Tensor
) -> dict[str, Tensor]:
    before, after, read = z[contrast.clean], z[contrast.corrupted], reads[contrast.corrupted]
    matched = None if contrast.same_positions else z[_matched_run(contrast)]
    parts = outputs.affine_parts(after, before, lam=read.lam, sigma=read.sigma, matched=matched)
    size = widened(before).flatten(-2).norm(dim=-1)
    change = parts["change"].flatten(-2).norm(dim=-1)
    # the relative error that rounding alone may leave in a head's output: four units in the last place
    eps = torch.finfo(before.dtype).eps
    noise = 4 * (max(eps, torch.finfo(torch.float32).eps) if model.float32_softmax else eps)
    slope, _, r2 = outputs.affine_fit(before, after)
    values, inside = v.transpose(0, 1), torch.ones(len(v), dtype=torch.bool, device=v.device)  # of the span
    of_values = (outputs.value_cosine, outputs.value_spectral_share, outputs.value_effective_rank)
    group = model.info.n_heads // model.info.n_key_value_heads
    found = {
        "lam": read.lam.mean(-1),
        "lam_sd": read.lam.std(-1, correction=0),
        "lam_last": read.lam[:, -1],
        "sigma_norm": read.sigma.norm(dim=-1).mean(-1),
        "direction_coherence": outputs.direction_coherence(read.sigma),
        **{each.__name__: each(values, span=inside).repeat_interleave(group, 0) for each in of_values},
        "change": torch.where(size > 0, change / size, torch.nan),
        "residual": outputs.affine_residual(parts["rest"], parts["change"], rounding=noise * size),
        "fit_slope": slope,
        "fit_r2": r2,
    }
    # shares of what the layer's attention adds to the residual stream, before a norm of its output where there is one
    output, wide = model.attention_output(layer), parts["change"].dtype
    weights = output.weights.to(parts["change"])
    added = torch.einsum("hrd,hdm->rm", parts["change"], weights)
    if float(added.norm()) < 10 * noise * float(output.before_norm(before.transpose(0, 1).to(wide)).norm()):
        added = torch.full_like(added, torch.nan)  # nothing but rounding
    for name, part in parts.items():
        share = outputs.residual_share(part, added, output_weights=weights)
        found["share" if name == "change" else f"{name}_share"] = share
    return found


@dataclass(frozen=True, eq=False, repr=False)
class AttentionDecomposition(Measured):
    """Head outputs with a span as lambda z + Sigma, per problem, layer and head.

    `values[metric][contrast]` `[problem, layer, head]`: `METRICS`, NaN where undefined or not asked for.
    `uniform[contrast]` `[problem, layer]`: lambda of uniform attention. `control` `[problem, layer, head]`: lambda under
    other insertions of the same length (mean over their draws), if asked for.
    """

    contrasts: tuple[str, ...]
    heads: tuple[Head, ...]
    values: Found
    uniform: dict[str, np.ndarray]
    control: np.ndarray | None = None

    picture = "head_map"
    columns = columns_of("""
        lam | lambda | | share of attention left to the tokens that are not inserted, mean over queries
        lam_null | lambda of uniform attention | | what even attention to all tokens would leave
        lam_p | p, corrected | p | that lambda differs from uniform attention's in most problems; corrected for all heads
        lam_control | lambda under random words | | the same with random words of the same length
        lam_control_p | p against random words | p | that lambda differs from that under random words; corrected
        lam_n | n | | problems where lambda is defined
        lam_minus_uniform | lambda minus uniform | | more than 0: the inserted tokens are read less than evenly
        lam_sd | spread of lambda | | over the queries: one number per head is an approximation
        lam_last | lambda of the last query | | the query that predicts the answer
        sigma_norm | norm of Sigma | | length of what the span contributes to the output, mean over queries
        direction_coherence | coherence of Sigma | | how far Sigma points one way at all queries
        value_cosine | cosine of values | | mean cosine of the span's value vectors
        value_spectral_share | values on one direction | | share of the span's value energy on its first direction
        value_effective_rank | directions of values | | how many directions the span's values fill
        residual | residual | | change that lambda z + Sigma leaves unexplained; 0: affine, as any text makes it in layer 0
        fit_slope | slope of the best fit | | of the output with the span on that without; another number than lambda
        fit_r2 | R² of the fit | | share of variance that the best affine fit explains
        change | change | | length of the change of the head's output / its length before, over all queries together
        share | of the layer's change | share | the head's share in what the layer's attention changes; signed
        scale_share | by scale | share | part of the layer's change that scaling the head's old output makes; signed
        bias_share | by bias | share | part of the layer's change that adding the span's values makes; signed
        shift_share | by shift | share | part of the layer's change that shifted positions make; signed
        rest_share | from upstream | share | part of the layer's change that earlier layers make; signed
    """)
    drawn = ("lam",)
    reported = ("label", "layer", "head", "lam", "lam_n", "lam_null", "lam_p", "share", "scale_share", "bias_share")

    @property
    def layers(self) -> tuple[int, ...]:
        return tuple(sorted({head.layer for head in self.heads}))

    def of(self, metric: str, contrast: str | None = None) -> np.ndarray:
        """Return one metric `[problem, layer, head]`; `contrast` defaults to the first one that has it."""
        results.place_of(metric, self.values, "metric")
        found = self.values[metric]
        contrast = next(iter(found)) if contrast is None else contrast
        results.place_of(contrast, found, f"contrast with {metric}")
        return found[contrast]

    def mean(self, metric: str, contrast: str | None = None) -> np.ndarray:
        """Return the mean over problems where it is defined, `[head]` in the order of `heads`; NaN where there is none."""
        return defined_mean(self.by_group(of_heads(self.of(metric, contrast), self.heads)))

    def nulls(self, contrast: str | None = None) -> dict[str, np.ndarray]:
        """Return what lambda is compared with, by column, `[problem, head]`: that of uniform attention, and of the control."""
        contrast = self.contrasts[0] if contrast is None else contrast
        lam = of_heads(self.of("lam", contrast), self.heads)
        uniform = self.uniform[contrast][:, [head.layer for head in self.heads]]
        found = {"lam_null": np.where(np.isnan(lam), np.nan, uniform)}
        if self.control is not None and CONTRASTS[contrast].corrupted == "inserted":  # the condition it is measured in
            found["lam_control"] = of_heads(self.control, self.heads)
        return found

    def null_test(self, null: np.ndarray, contrast: str | None = None) -> Prevalence | None:
        """Test in how many problems lambda lies above one of `nulls`, and below it, `[sense, head]`; exact, Holm.
        Heads that differ by rounding alone are left out (p = NaN). None with a single problem, or where no head differs."""
        difference = self.by_group(of_heads(self.of("lam", contrast), self.heads) - null)
        differs = (np.abs(difference) > SAME).any(0)
        if len(difference) < 2 or not differs.any():
            return None
        return prevalence_test(difference, SAME, tested=differs, confidence=self.confidence)

    def table(self, contrast: str | None = None) -> pd.DataFrame:
        """Return one row per head: every metric's mean over problems with its interval `_ci_low`, `_ci_high` and `_n`; lambda
        beside `lam_null` and `lam_p` (and `lam_control`, `lam_control_p`), p-values corrected over all heads."""
        contrast = self.contrasts[0] if contrast is None else contrast
        columns: dict[str, Any] = dict(results.head_columns(self.heads))
        for metric, found in self.values.items():
            if contrast in found:
                values = self.by_group(of_heads(found[contrast], self.heads))
                made = mean_interval(values, confidence=self.confidence, seed=self.seed)
                columns |= interval_columns(metric, made) | {f"{metric}_n": made.n}
            if metric == "lam":
                for name, null in self.nulls(contrast).items():
                    columns[name], test = defined_mean(self.by_group(null)), self.null_test(null, contrast)
                    columns[NULLS[name]] = np.nan if test is None else np.fmin(*test.p_corrected)
                columns["lam_minus_uniform"] = columns["lam"] - columns["lam_null"]
        return pd.DataFrame(columns)

    def to_frame(self) -> pd.DataFrame:
        """Return one tidy row per problem, contrast, head and metric, with its unit."""
        frames = [
            results.rows_of(self.problem_ids, self.heads, array, metric, contrast=contrast).assign(unit=METRICS[metric])
            for metric, found in self.values.items()
            for contrast, array in found.items()
        ]
        return pd.concat(frames, ignore_index=True)

    def quantity(self, column: str) -> results.Quantity:
        made = replace(super().quantity(column), unit=METRICS.get(column, ""))
        if column == "lam_minus_uniform":
            return replace(made, unit="share", signed=True, p="lam_p", claim=CLAIM)
        return replace(made, p="lam_p", claim=CLAIM) if column == "lam" else made

    def headline(self) -> str:
        contrast = self.contrasts[0]
        lam = self.mean("lam", contrast)
        null = self.by_group(self.uniform[contrast][:, list(self.layers)]).mean(0)
        low, high = float(np.nanmin(null)), float(np.nanmax(null))
        kept = f"{low:.3f}" if high - low < 5e-4 else f"{low:.3f} to {high:.3f}, by layer"
        words = f"Lambda ranges from {np.nanmin(lam):.3f} to {np.nanmax(lam):.3f} over heads; uniform attention gives {kept}"
        if self.n_groups < 2:
            return f"{words}; a single problem tests nothing."
        names = {"lam_null": "uniform attention", "lam_control": str(self.settings.get("control"))}
        told = (self._tested(null, names[name]) for name, null in self.nulls(contrast).items())
        return "; ".join([words, *told]) + "."

    def _tested(self, null: np.ndarray, name: str) -> str:
        test = self.null_test(null)
        if test is None:
            return f"no head differs from {name}"
        least = fewest_problems(2 * int(np.isfinite(test.p[0]).sum()), alpha=self.level)
        if test.n.max() < least:
            return f"{self.counted} are too few to test a head against {name} ({least} needed)"
        above, below = (int((p < self.level).sum()) for p in test.p_corrected)
        keep = f"{count_of(above, 'head')} {'keeps' if above == 1 else 'keep'} more and {below} less"
        return f"against {name} {keep} in most problems (corrected p < {self.level:.3g})"

    def details(self) -> list[str]:
        found, at, first = [], self.layers[0], self.contrasts[0]
        here = [head.layer == at for head in self.heads]
        shares = {each: self.mean(each, first)[here].sum() for each in SHARES if first in self.values.get(each, {})}
        if np.isfinite(shares["share"]):
            of = count_of(self.of("share").shape[2], "head")
            ways = (f"{shares[each]:z.2f} {self.declared()[each].heading}" for each in SHARES[1:] if each in shares)
            told = f"In layer {at} the share of {sum(here)} of {of} in the change of attention's output is"
            found.append(f"{told} {shares['share']:z.2f} (signed): {', '.join(ways)}.")
        if counted := results.undefined(self.values, self.heads, self.groups):
            found.append(f"Undefined (no change beyond rounding, or too few rows): {counted}.")
        return found

    def printed(self) -> pd.DataFrame:
        # means alone: without the cost of intervals
        contrast = self.contrasts[0]
        null = self.by_group(self.uniform[contrast]).mean(0)[[head.layer for head in self.heads]]
        table = pd.DataFrame({"label": list(map(str, self.heads)), "lam": self.mean("lam", contrast), "lam_null": null})
        for name in ("share", "scale_share", "bias_share", "residual", "fit_slope", "fit_r2"):
            table[name] = self.mean(name, contrast)
        return results.largest_first(table, "share")

    def shown(self) -> Shown:
        table, labels = self.table(), ["label", "paper_label"]
        caption = "Lambda, the share of attention outside of the span, and each head's part in its layer's change."
        columns = [*labels, "lam", *self.nulls(), *NULLS.values(), "residual", "fit_slope", "fit_r2"]
        columns += ["share", "scale_share", "bias_share", "lam_n"]
        told = [*labels, "lam_minus_uniform", "lam", "lam_null", "lam_control", "residual", "share"]
        marked = (table["lam_p"] < self.level).tolist()
        means = f"outlined: {CLAIM}, p < {self.level:.3g} corrected for testing many heads"
        drawn = results.head_map(table, ["lam_minus_uniform"], told, marked=marked, means=means)
        return Shown((ShownTable(table, caption, [name for name in columns if name in table]),), drawn)
