"""Every attention metric by name: which formula of `metrics/` it is, on which rows or tokens, and its unit.

Four kinds. *Row* metrics are numbers per attention row, averaged over the question (`name`) or read at its last row
(`name_last`). *Profile* metrics are functions of the attention that each token receives in one run. *Paired* metrics
compare a run with the first condition's, on the tokens that both have. *State* metrics are numbers of the residual stream
that enters a layer (the same for all its heads) or of its heads' values.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial, wraps
from typing import Literal, get_args

import torch
from torch import Tensor

from ..core.arguments import cells_of, nearest
from ..metrics import attention, collapse, outputs, received
from ..metrics.patterns import segment_mean
from ..runtime.columns import Column
from .streaming import Layout, Need, Reduced, Rows, Vectors

Kind = Literal["row", "profile", "paired", "state"]


@dataclass(frozen=True, eq=False)
class Profile:
    """What metrics of a layer's received attention see: what it was reduced to, and uniform attention in its place."""

    reduced: Reduced
    null: Reduced
    layout: Layout
    min_rows: int

    @cached_property
    def received(self) -> Tensor:
        """`[head, token]`."""
        return self.reduced.mean("received", self.min_rows).cpu()

    @cached_property
    def relative(self) -> Tensor:
        """Received attention over that of uniform attention, `[head, token]`."""
        uniform = self.null.mean("received", self.min_rows).to(self.received)
        return received.relative_received(self.received, uniform.expand_as(self.received))

    @property
    def alpha(self) -> Tensor:
        """Mean attention on each token, its own included; a metric that reads it needs "sink_levels"."""
        return self.reduced.mean("alpha", 1).cpu()

    @property
    def shared(self) -> Tensor:
        """Received attention of the tokens that both runs of a comparison have, `[head, shared]`."""
        return self.received[:, self.layout.shared]

    @property
    def span(self) -> Tensor:
        return self.layout.span


@dataclass(frozen=True, eq=False)
class Metric:
    """One entry of the catalogue, with what its formula needs beside a pattern.

    `signed`: 0 is its middle (no difference, no correlation), not its lower end. `censored`: it may be infinite ("never"),
    so that it is summarised by its median. `one_block`: counted from an end of the span, so that it needs a span in one block.
    `default`: measured unless metrics are asked for.
    """

    name: str
    kind: Kind
    unit: str
    meaning: str
    formula: Callable[..., Tensor]
    needs: tuple[Need, ...] = ()
    default: bool = True
    signed: bool = False
    censored: bool = False
    one_block: bool = False

    @property
    def of_patterns(self) -> bool:
        """Whether it follows from the patterns of the runs alone."""
        return not set(self.needs) & {"values", "residual", "output_weights", "first_rows"}


WORDS = """
span_mass | share | span | attention on the span
lam | share | span | attention kept outside the span
span_mass_without_sink | share | span | attention on the span, of what does not go to the sink
log_density_ratio | nats | span scores signed | attention per span token against another token's; 0 is even
within_span_entropy | share | span | evenness of the attention inside the span
entropy | nats | | entropy of the attention row
normalised_entropy | share | | entropy over its maximum
effective_tokens | tokens | | tokens read as if evenly
participation | tokens | | participation ratio
entropy_without_sink | nats | | entropy without the sink
entropy_between | nats | span | entropy: span or rest
entropy_outside | nats | span | entropy: where outside the span
entropy_inside | nats | span | entropy: where inside the span
span_output_weight | share | span values output_weights asked | share of the span by norm
js_distance | sqrt bits | first_rows asked | change of where shared tokens are read (Jensen-Shannon)
hellinger | | first_rows asked | the same by Hellinger
total_variation | share | first_rows asked | the same by total variation
kurtosis | | | excess kurtosis of received attention: spiky or diffuse
sink_alpha | share | sink_levels | mean attention on the first token
sink_rate | share | sink_levels | is the first token a sink
span_sink_rate | share | span sink_levels | share of the span's tokens that are sinks
span_first_alpha | share | span sink_levels asked | mean attention on the first inserted token
span_first_alpha_ratio | ratio | span sink_levels asked | the same over the mean of the other inserted tokens
span_received | share | span | mean attention that a span token receives
span_relative | ratio | span | the same over uniform attention's
collapse | share | span signed | drop of the span below its reference, raw
collapse_relative | share | span signed | drop of the span below its reference, relative to uniform
collapsed_share | share | span | share of the span's tokens that are collapsed
onset_step | ratio | span signed one_block | step of relative attention where the span begins (one block)
span_variation | | span | variation of received attention inside the span
recovery_ratio | ratio | span | level after the span over the level before it, relative to uniform
recovery_ratio_raw | ratio | span | the same, raw (largely positional)
recovery_fraction | share | span signed | share of the drop into the span that is made up after it
span_residual_norm | ratio | span residual asked | length of the span's residual stream over other tokens'
span_first_residual_norm | ratio | span residual asked | the same of the first inserted token
sink_residual_norm | ratio | span residual asked | the same of the first token of the prompt, the sink
span_sink_cosine | | span residual asked signed | cosine of the span's residual stream to the sink's
span_first_sink_cosine | | span residual asked signed | the same of the first inserted token
span_value_norm | ratio | span values asked | length of the span's values over other tokens'
span_first_value_norm | ratio | span values asked | the same of the first inserted token
sink_value_norm | ratio | span values asked | the same of the first token of the prompt, the sink
retention | ratio | | received attention that all shared tokens keep
recovery_aligned | ratio | | received attention that the question's tokens keep
recovery_latency | tokens | censored one_block | tokens until attention is back; inf: never (one block)
recovered | share | one_block | whether attention comes back at all
recovery_tau | tokens | one_block | time constant of the recovery
spike_spearman | | signed | do the same tokens rank high
spike_pearson | | signed | the same, linear
spike_slope | ratio | | attenuation: slope through the origin
spike_r_squared | share | | explained by a pure scaling
spike_f1 | | | F1 of matched peaks
peak_attenuation | ratio | | height of the base run's peaks that is left
"""
"""Name, unit, needs and flags (asked: measured only where asked for) and meaning of every metric, in the order of tables."""


def _of_rows(formula: Callable[..., Tensor], masks: tuple[str, ...], rows: Rows) -> Tensor:
    return formula(rows.block.pattern, visible=rows.block.visible, **{mask: getattr(rows, mask) for mask in masks})


def _chain(term: int, rows: Rows) -> Tensor:
    return attention.entropy_chain(rows.block.pattern, span=rows.span, visible=rows.block.visible)[term]


def _output_weight(rows: Rows) -> Tensor:
    values = torch.nn.functional.pad(rows.beside["values"][:, : rows.block.n_src], (0, 0, 0, rows.block.n_extra))
    given = {"span": rows.span, "output_weights": rows.beside["output_weights"], "visible": rows.block.visible}
    return outputs.span_output_weight(rows.block.pattern, values, **given)


def _density(rows: Rows) -> Tensor:
    given = {"span": rows.span, "sink": rows.sink, "visible": rows.block.visible}
    return attention.log_density_ratio(rows.block.pattern, scores=rows.block.scores, **given)


def _distance(formula: Callable[[Tensor, Tensor], Tensor], rows: Rows) -> Tensor:
    block = rows.block
    common = torch.isin(block.positions, rows.layout.shared.to(block.positions))
    found = block.pattern.new_full(block.pattern.shape[:-1], torch.nan)
    if bool(common.any()):
        theirs, there, here = rows.beside["other"].rows(rows.layout, block.positions[common], block.n_src)
        base = attention.renormalised_rows(theirs, alignment=there.to(theirs.device))
        own = attention.renormalised_rows(block.pattern[:, common], alignment=here.to(block.pattern.device))
        found[:, common] = formula(base.to(own), own)
    return found


PLACES: dict[str, Callable[[Tensor, Layout], Tensor]] = {
    "span": lambda values, layout: segment_mean(values, layout.span),
    "span_first": lambda values, layout: received.first_of(values, layout.span),
    "sink": lambda values, layout: segment_mean(values, layout.sink),
}
OF_VECTORS: dict[str, Callable[[Tensor, Layout], Tensor]] = {
    "norm": lambda x, layout: received.relative_norms(x, others=(~layout.span & ~layout.sink).to(x.device)),
    "cosine": lambda x, layout: received.cosines_to_sink(x, sink=layout.sink.to(x.device)),
}


def _state(place: str, of: Need, formula: str, vectors: Vectors, layout: Layout, n_heads: int) -> Tensor:
    return PLACES[place](OF_VECTORS[formula](vectors[of], layout).cpu().expand(n_heads, -1), layout)


def _of_both(formula: Callable[[Tensor, Tensor], Tensor], base: Profile, own: Profile) -> Tensor:
    return formula(base.shared, own.shared)


def _latency(base: Profile, own: Profile) -> Tensor:
    question = own.layout.shared_question
    before, after = (each.relative[:, each.layout.shared[question]] for each in (base, own))
    return collapse.recovery_latency(after, before)


def _recovered(base: Profile, own: Profile) -> Tensor:
    latency = _latency(base, own)
    return torch.where(latency.isnan(), torch.nan, latency.isfinite().to(latency.dtype))


def _tau(base: Profile, own: Profile) -> Tensor:
    ratio = collapse.aligned_ratio(base.shared, own.shared)[:, own.layout.shared_question]
    return collapse.recovery_time_constant(collapse.running_median(ratio))


def _kept_by(tokens: Callable[[Profile], Tensor], base: Profile, own: Profile) -> Tensor:
    return collapse.aligned_recovery(base.shared, own.shared, tokens=tokens(own))


Formulas = dict[str, Callable[..., Tensor]]
ROWS: Formulas = {
    "span_mass": partial(_of_rows, attention.span_mass, ("span",)),
    "lam": partial(_of_rows, attention.retained_mass, ("span",)),
    "span_mass_without_sink": partial(_of_rows, attention.non_sink_span_mass, ("span", "sink")),
    "log_density_ratio": _density,
    "within_span_entropy": partial(_of_rows, attention.within_span_entropy, ("span",)),
    "entropy": partial(_of_rows, attention.attention_entropy, ()),
    "normalised_entropy": partial(_of_rows, attention.normalised_entropy, ()),
    "effective_tokens": partial(_of_rows, attention.effective_tokens, ()),
    "participation": partial(_of_rows, attention.participation, ()),
    "entropy_without_sink": partial(_of_rows, attention.entropy_without_sink, ("sink",)),
    "entropy_between": partial(_chain, 0),
    "entropy_outside": partial(_chain, 1),
    "entropy_inside": partial(_chain, 2),
    "span_output_weight": _output_weight,
    "js_distance": partial(_distance, lambda p, q: attention.jensen_shannon_divergence(p, q).sqrt()),
    "hellinger": partial(_distance, attention.hellinger),
    "total_variation": partial(_distance, attention.total_variation),
}
PROFILES: Formulas = {
    "kurtosis": lambda p: received.kurtosis(p.received),
    "sink_alpha": lambda p: segment_mean(p.alpha, p.layout.sink),
    "sink_rate": lambda p: received.sink_rate(p.alpha, p.layout.sink),
    "span_sink_rate": lambda p: received.sink_rate(p.alpha, p.span),
    "span_first_alpha": lambda p: received.first_of(p.alpha, p.span),
    "span_first_alpha_ratio": lambda p: received.first_against_rest(p.alpha, p.span),
    "span_received": lambda p: segment_mean(p.received, p.span),
    "span_relative": lambda p: segment_mean(p.relative, p.span),
    "collapse": lambda p: collapse.span_collapse(p.received, span=p.span, reference=p.layout.before),
    "collapse_relative": lambda p: collapse.span_collapse(p.relative, span=p.span, reference=p.layout.before),
    "collapsed_share": lambda p: collapse.collapsed_share(p.relative, span=p.span),
    "onset_step": lambda p: collapse.onset_step(p.relative.masked_fill(p.layout.sink, torch.nan), span=p.span),
    "span_variation": lambda p: collapse.span_variation(p.received, span=p.span),
    "recovery_ratio": lambda p: collapse.recovery_ratio(p.relative, before=p.layout.before, after=p.layout.question),
    "recovery_ratio_raw": lambda p: collapse.recovery_ratio(
        p.received, before=p.layout.before, after=p.layout.question
    ),
    "recovery_fraction": lambda p: collapse.recovery_fraction(
        p.relative, before=p.layout.before, span=p.span, after=p.layout.question
    ),
}
PAIRED: Formulas = {
    "retention": partial(_kept_by, lambda p: torch.ones_like(p.layout.shared_question)),
    "recovery_aligned": partial(_kept_by, lambda p: p.layout.shared_question),
    "recovery_latency": _latency,
    "recovered": _recovered,
    "recovery_tau": _tau,
    "spike_spearman": partial(_of_both, collapse.timing_spearman),
    "spike_pearson": partial(_of_both, collapse.timing_pearson),
    "spike_slope": partial(_of_both, collapse.attenuation_slope),
    "spike_r_squared": partial(_of_both, collapse.attenuation_r_squared),
    "spike_f1": partial(
        _of_both, lambda x, y: collapse.matched_peaks_f1(collapse.spike_peaks(x), collapse.spike_peaks(y)).to(x)
    ),
    "peak_attenuation": partial(_of_both, lambda x, y: collapse.peak_attenuation(x, y, peaks=collapse.spike_peaks(x))),
}
STATES: Formulas = {
    **{f"{place}_residual_norm": partial(_state, place, "residual", "norm") for place in PLACES},
    **{f"{place}_sink_cosine": partial(_state, place, "residual", "cosine") for place in ("span", "span_first")},
    **{f"{place}_value_norm": partial(_state, place, "values", "norm") for place in PLACES},
}
_KINDS: dict[Kind, Formulas] = {"row": ROWS, "profile": PROFILES, "paired": PAIRED, "state": STATES}


def _declared() -> dict[str, Metric]:
    found = {}
    for name, unit, flags, meaning in cells_of(WORDS):
        ((kind, formula),) = ((kind, named[name]) for kind, named in _KINDS.items() if name in named)
        needs = tuple(need for need in get_args(Need) if need in flags.split())
        options = {option: option in flags for option in ("signed", "censored", "one_block")}
        found[name] = Metric(name, kind, unit, meaning, formula, needs, default="asked" not in flags, **options)
    return found


METRICS = _declared()
"""Every metric by name; any row metric also exists as `name_last`, read at the question's last row."""
COLUMNS = tuple(
    Column(name, name.replace("_", " "), f"{each.meaning} ({each.unit})", role="" if each.signed else "level")
    for name, each in METRICS.items()
)
DEFAULT = (*(m.name for m in METRICS.values() if m.default), "span_mass_last", "lam_last")
"""What is measured unless metrics are asked for."""
SINKS = ("sink_alpha", "span_sink_rate", "span_first_alpha", "span_first_alpha_ratio", *STATES)
"""Whether the span is a sink: what `metrics="sinks"` measures."""


OwnMetric = Callable[[Tensor, Tensor], Tensor]
"""A user's function of attention rows `[head, row, key]` and the span's mask `[key]` to a number per row, `[head, row]`."""


def metric_named(name: str) -> Metric:
    """Return the metric of that name; `name_last` gives the row metric `name`."""
    found = METRICS.get(name) or METRICS.get(name.removesuffix("_last"))
    if found is None or (found.name != name and found.kind != "row"):
        raise ValueError(
            f"unknown metric {name!r}{nearest(name, METRICS)}; choose of {', '.join(METRICS)}; row metrics also with _last "
            f"({', '.join(ROWS)}); a metric of your own is a function: metrics=[my_function]"
        )
    return found


def metric_shown(name: str) -> Metric:
    """Return what holds of a result's metric of that name; one of a user's function has neither unit nor flags."""
    return metric_named(name) if name.removesuffix("_last") in METRICS else Metric(name, "row", "", "", _of_rows)


def _own(function: OwnMetric) -> Metric:
    @wraps(function)
    def formula(rows: Rows) -> Tensor:
        # copies: other metrics read what a function may change in place
        found, needed = function(rows.block.pattern.clone(), rows.span.clone()), rows.block.pattern.shape[:-1]
        if not isinstance(found, Tensor) or found.shape != needed:
            gave = f"{[*needed]}, and gave {[*found.shape] if isinstance(found, Tensor) else type(found).__name__}"
            raise ValueError(f"metric {name!r} must give a number per head and row, {gave}")
        return found

    if (name := getattr(function, "__name__", type(function).__name__)).removesuffix("_last") in METRICS:
        raise ValueError(f"{name!r} is a metric of the catalogue: give your function another name")
    return Metric(name, "row", "", "", formula)


def chosen_metrics(metrics: str | Iterable[str | OwnMetric] | None) -> dict[str, Metric]:
    """Return the metrics asked for: None the usual ones, "all", "sinks" (is the span one), or some names and functions."""
    named = {"usual": DEFAULT, "sinks": SINKS, "all": (*METRICS, *(f"{name}_last" for name in ROWS))}
    wanted = "usual" if metrics is None else metrics
    given = named.get(wanted, (wanted,)) if isinstance(wanted, str) else tuple(wanted)
    made = [(each, metric_named(each)) if isinstance(each, str) else ((own := _own(each)).name, own) for each in given]
    if not made or len(dict(made)) != len(made):
        raise ValueError("no metrics to compute" if not made else "a metric is given twice")
    return dict(made)
