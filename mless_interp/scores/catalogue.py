"""Every attention metric by name: which formula of `metrics/` it is, on which rows or tokens, and its unit.

Four kinds. *Row* metrics are numbers per attention row, averaged over the question (`name`) or read at its last row
(`name_last`). *Profile* metrics are functions of the attention that each token receives in one run. *Paired* metrics
compare a run with the first condition's, on the tokens that both have. *State* metrics are numbers of the residual stream
that enters a layer (the same for all its heads) or of its heads' values. Each entry declares what its formula needs beside
the pattern; what a run is reduced to (`evaluation.plan_for`) follows from that alone.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ..core.arguments import nearest
from ..metrics import attention, distances, entropy, outputs, received, sinks, spikes
from ..metrics import recovery as profiles
from ..metrics.segments import segment_mean
from ..runtime.columns import Column, declare
from .layout import Layout, Thresholds
from .streaming import Need, RowFormula, Rows, States, flow_step

Kind = Literal["row", "profile", "paired", "state"]


@dataclass(frozen=True, eq=False)
class Profile:
    """A layer's received attention, raw and relative to uniform, and mean sink levels if needed, `[head, token]`."""

    received: Tensor
    relative: Tensor
    sink_levels: Tensor | None
    layout: Layout
    thresholds: Thresholds

    @property
    def alpha(self) -> Tensor:
        assert self.sink_levels is not None, 'a metric that reads alpha declares that it needs "sink_levels"'
        return self.sink_levels

    @property
    def span(self) -> Tensor:
        assert self.layout.span is not None
        return self.layout.span

    @property
    def shared_question(self) -> Tensor:
        """Which of the shared tokens belong to the question, `[shared]`."""
        return self.layout.question[self.layout.shared]


@dataclass(frozen=True, eq=False)
class TwoProfiles:
    """Two runs' profiles at the tokens that both have: `base` and `inserted` `[head, shared]`, raw and relative."""

    base: Tensor
    inserted: Tensor
    base_relative: Tensor
    inserted_relative: Tensor
    question: Tensor
    thresholds: Thresholds
    one_block: bool = True


@dataclass(frozen=True, eq=False)
class Metric:
    """One entry of the catalogue, with what its formula needs beside a pattern.

    `signed`: 0 is its middle (no difference, no correlation), not its lower end. `censored`: it may be infinite ("never"),
    so that it is summarised by its median. `variant`: which of several formulas in use it is.
    """

    name: str
    kind: Kind
    unit: str
    meaning: str
    formula: Callable[[Any], Tensor]
    needs: tuple[Need, ...] = ()
    default: bool = True
    signed: bool = False
    censored: bool = False
    variant: str = ""

    @property
    def of_patterns(self) -> bool:
        """Whether it follows from the patterns of the runs alone."""
        return not set(self.needs) & {"values", "residual", "output_weights", "flow", "first_rows"}


def _row(name: str, unit: str, meaning: str, formula: RowFormula, *needs: Need, **more: Any) -> Metric:
    return Metric(name, "row", unit, meaning, formula, needs, **more)


def _from_pattern(formula: Callable[..., Tensor], *masks: str) -> RowFormula:
    """A formula of `metrics/` on a block of rows; `masks` names the masks it takes (span, sink)."""

    def value(rows: Rows) -> Tensor:
        given = {"span": rows.span} if "span" in masks else {}
        if "sink" in masks:
            given["sink"] = rows.sink
        return formula(rows.block.pattern, **given, **rows.options)

    return value


def _chain(part: str) -> RowFormula:
    return lambda rows: getattr(entropy.entropy_chain(rows.block.pattern, span=rows.span, **rows.options), part)


def _output_weight(rows: Rows) -> Tensor:
    assert rows.values is not None
    values = torch.nn.functional.pad(rows.values[:, : rows.block.n_src], (0, 0, 0, rows.block.n_extra))
    return outputs.span_output_weight(
        rows.block.pattern, values, span=rows.span, output_weights=rows.output_weights, **rows.options
    )


def _rollout(rows: Rows) -> Tensor:
    assert rows.flow is not None
    return flow_step(rows.block, rows.flow)


def _density(rows: Rows) -> Tensor:
    segments = {"span": rows.span, "sink": rows.sink}
    if rows.block.scores is None:
        return attention.log_density_ratio(rows.block.pattern, **segments, **rows.options)
    return attention.log_density_ratio_from_scores(rows.block.scores, **segments, **rows.options)


def _distance(formula: Callable[[Tensor, Tensor], Tensor]) -> RowFormula:
    def value(rows: Rows) -> Tensor:
        block = rows.block
        assert rows.other is not None
        common = torch.isin(block.positions, rows.layout.shared.to(block.positions))
        found = block.pattern.new_full(block.pattern.shape[:-1], torch.nan)
        if bool(common.any()):
            theirs, there, here = rows.other.rows(rows.layout, block.positions[common], block.n_src)
            base = distances.renormalised_rows(theirs, alignment=there.to(theirs.device))
            own = distances.renormalised_rows(block.pattern[:, common], alignment=here.to(block.pattern.device))
            found[:, common] = formula(base.to(own), own)
        return found

    return value


ROWS = (
    _row("span_mass", "share", "attention on the span", _from_pattern(attention.span_mass, "span"), "span"),
    _row("lam", "share", "attention kept outside the span", _from_pattern(attention.retained_mass, "span"), "span"),
    _row(
        "span_mass_without_sink",
        "share",
        "attention on the span, of what does not go to the sink",
        _from_pattern(attention.non_sink_span_mass, "span", "sink"),
        "span",
    ),
    _row(
        "log_density_ratio",
        "nats",
        "attention per span token against another token's; 0 is even",
        _density,
        "span",
        "scores",
        signed=True,
    ),
    _row(
        "within_span_entropy",
        "share",
        "evenness of the attention inside the span",
        _from_pattern(entropy.within_span_entropy, "span"),
        "span",
    ),
    _row("entropy", "nats", "entropy of the attention row", _from_pattern(entropy.attention_entropy)),
    _row("normalised_entropy", "share", "entropy over its maximum", _from_pattern(entropy.normalised_entropy)),
    _row("effective_tokens", "tokens", "tokens read as if evenly", _from_pattern(entropy.effective_tokens)),
    _row("participation", "tokens", "participation ratio", _from_pattern(entropy.participation)),
    _row(
        "entropy_without_sink", "nats", "entropy without the sink", _from_pattern(entropy.entropy_without_sink, "sink")
    ),
    _row("entropy_between", "nats", "entropy: span or rest", _chain("between"), "span"),
    _row("entropy_outside", "nats", "entropy: where outside the span", _chain("outside"), "span"),
    _row("entropy_inside", "nats", "entropy: where inside the span", _chain("inside"), "span"),
    _row(
        "rollout_span_share", "share", "share of the span by attention rollout", _rollout, "span", "flow", default=False
    ),
    _row(
        "span_output_weight",
        "share",
        "share of the span by norm",
        _output_weight,
        "span",
        "values",
        "output_weights",
        default=False,
        variant="after W_O",
    ),
    _row(
        "js_distance",
        "sqrt bits",
        "change of where shared tokens are read (Jensen-Shannon)",
        _distance(distances.jensen_shannon_distance),
        "first_rows",
        default=False,
    ),
    _row("hellinger", "", "the same by Hellinger", _distance(distances.hellinger), "first_rows", default=False),
    _row(
        "total_variation",
        "share",
        "the same by total variation",
        _distance(distances.total_variation),
        "first_rows",
        default=False,
    ),
)


def _profile(
    name: str, unit: str, meaning: str, formula: Callable[[Profile], Tensor], *needs: Need, **more: Any
) -> Metric:
    return Metric(name, "profile", unit, meaning, formula, needs, **more)


def _collapse(of: str) -> Callable[[Profile], Tensor]:
    return lambda p: profiles.span_collapse(getattr(p, of), span=p.span, reference=p.layout.reference(p.thresholds))


def _onset(p: Profile) -> Tensor:
    if not p.layout.one_block:
        return torch.full_like(p.relative[..., 0], torch.nan)
    return profiles.onset_step(p.relative.masked_fill(p.layout.sink, torch.nan), span=p.span, width=p.thresholds.width)


def _recovery_ratio(of: str) -> Callable[[Profile], Tensor]:
    return lambda p: profiles.recovery_ratio(getattr(p, of), before=p.layout.before, after=p.layout.question)


PROFILES = (
    _profile(
        "kurtosis",
        "",
        "excess kurtosis of received attention: spiky or diffuse",
        lambda p: received.kurtosis(p.received),
    ),
    _profile(
        "sink_alpha",
        "share",
        "mean attention on the first token",
        lambda p: segment_mean(p.alpha, p.layout.sink),
        "sink_levels",
    ),
    _profile(
        "sink_rate",
        "share",
        "is the first token a sink",
        lambda p: received.sink_rate(p.alpha, p.layout.sink, threshold=p.thresholds.sink),
        "sink_levels",
    ),
    _profile(
        "span_sink_rate",
        "share",
        "share of the span's tokens that are sinks",
        lambda p: received.sink_rate(p.alpha, p.span, threshold=p.thresholds.sink),
        "span",
        "sink_levels",
    ),
    _profile(
        "span_first_alpha",
        "share",
        "mean attention on the first inserted token",
        lambda p: sinks.first_of(p.alpha, p.span),
        "span",
        "sink_levels",
        default=False,
    ),
    _profile(
        "span_first_alpha_ratio",
        "ratio",
        "the same over the mean of the other inserted tokens",
        lambda p: sinks.first_against_rest(p.alpha, p.span),
        "span",
        "sink_levels",
        default=False,
    ),
    _profile(
        "span_received",
        "share",
        "mean attention that a span token receives",
        lambda p: segment_mean(p.received, p.span),
        "span",
    ),
    _profile(
        "span_relative",
        "ratio",
        "the same over uniform attention's",
        lambda p: segment_mean(p.relative, p.span),
        "span",
    ),
    _profile(
        "collapse", "share", "drop of the span below its reference, raw", _collapse("received"), "span", signed=True
    ),
    _profile(
        "collapse_relative",
        "share",
        "drop of the span below its reference, relative to uniform",
        _collapse("relative"),
        "span",
        signed=True,
    ),
    _profile(
        "collapsed_share",
        "share",
        "share of the span's tokens that are collapsed",
        lambda p: profiles.collapsed_share(p.relative, span=p.span, threshold=p.thresholds.collapsed),
        "span",
    ),
    _profile(
        "onset_step",
        "ratio",
        "step of relative attention where the span begins (one block)",
        _onset,
        "span",
        signed=True,
    ),
    _profile(
        "span_variation",
        "",
        "variation of received attention inside the span",
        lambda p: profiles.span_variation(p.received, span=p.span),
        "span",
    ),
    _profile(
        "recovery_ratio",
        "ratio",
        "level after the span over the level before it, relative to uniform",
        _recovery_ratio("relative"),
        "span",
    ),
    _profile("recovery_ratio_raw", "ratio", "the same, raw (largely positional)", _recovery_ratio("received"), "span"),
    _profile(
        "recovery_fraction",
        "share",
        "share of the drop into the span that is made up after it",
        lambda p: profiles.recovery_fraction(
            p.relative, before=p.layout.before, span=p.span, after=p.layout.question, tolerance=p.thresholds.step
        ),
        "span",
        signed=True,
    ),
)


def _latency(c: TwoProfiles) -> Tensor:
    if not c.one_block:  # what is counted from the span's end has several ends to be counted from
        return torch.full_like(c.inserted[:, 0], torch.nan)
    return profiles.recovery_latency(
        c.inserted_relative[:, c.question],
        c.base_relative[:, c.question],
        width=c.thresholds.width,
        threshold=c.thresholds.recovered,
    )


def _recovered(c: TwoProfiles) -> Tensor:
    latency = _latency(c)
    return torch.where(latency.isnan(), torch.nan, latency.isfinite().to(latency.dtype))


def _tau(c: TwoProfiles) -> Tensor:
    if not c.one_block:
        return torch.full_like(c.inserted[:, 0], torch.nan)
    ratio = profiles.aligned_ratio(c.base, c.inserted)[:, c.question]
    return profiles.recovery_time_constant(profiles.running_median(ratio))


def _peaks(c: TwoProfiles) -> tuple[Tensor, Tensor]:
    return spikes.spike_peaks(c.base), spikes.spike_peaks(c.inserted)


def _paired(name: str, unit: str, meaning: str, formula: Callable[[TwoProfiles], Tensor], **more: Any) -> Metric:
    return Metric(name, "paired", unit, meaning, formula, ("first_profile",), **more)


PAIRED = (
    _paired(
        "retention",
        "ratio",
        "received attention that all shared tokens keep",
        lambda c: profiles.aligned_recovery(c.base, c.inserted, tokens=torch.ones_like(c.question)),
    ),
    _paired(
        "recovery_aligned",
        "ratio",
        "received attention that the question's tokens keep",
        lambda c: profiles.aligned_recovery(c.base, c.inserted, tokens=c.question),
    ),
    _paired(
        "recovery_latency", "tokens", "tokens until attention is back; inf: never (one block)", _latency, censored=True
    ),
    _paired("recovered", "share", "whether attention comes back at all", _recovered),
    _paired("recovery_tau", "tokens", "time constant of the recovery", _tau),
    _paired(
        "spike_spearman",
        "",
        "do the same tokens rank high",
        lambda c: spikes.timing_spearman(c.base, c.inserted),
        signed=True,
    ),
    _paired("spike_pearson", "", "the same, linear", lambda c: spikes.timing_pearson(c.base, c.inserted), signed=True),
    _paired(
        "spike_slope",
        "ratio",
        "attenuation: slope through the origin",
        lambda c: spikes.attenuation_slope(c.base, c.inserted),
    ),
    _paired(
        "spike_r_squared",
        "share",
        "explained by a pure scaling",
        lambda c: spikes.attenuation_r_squared(c.base, c.inserted),
    ),
    _paired("spike_f1", "", "F1 of matched peaks", lambda c: spikes.matched_peaks_f1(*_peaks(c)).to(c.base)),
    _paired(
        "peak_attenuation",
        "ratio",
        "height of the base run's peaks that is left",
        lambda c: spikes.peak_attenuation(c.base, c.inserted, peaks=spikes.spike_peaks(c.base)),
    ),
)


def _state(
    name: str, unit: str, meaning: str, of: Need, formula: Callable[[States], Tensor], *, signed: bool = False
) -> Metric:
    return Metric(name, "state", unit, meaning, formula, ("span", of), default=False, signed=signed)


def _residual_norms(s: States) -> Tensor:
    assert s.residual is not None
    return sinks.relative_norms(s.residual, others=s.others.to(s.residual.device)).cpu().expand(s.n_heads, -1)


def _value_norms(s: States) -> Tensor:
    assert s.values is not None
    return sinks.relative_norms(s.values, others=s.others.to(s.values.device)).cpu()


def _cosines(s: States) -> Tensor:
    assert s.residual is not None
    return sinks.cosines_to_sink(s.residual, sink=s.layout.sink.to(s.residual.device)).cpu().expand(s.n_heads, -1)


STATES = (
    _state(
        "span_residual_norm",
        "ratio",
        "length of the span's residual stream over other tokens'",
        "residual",
        lambda s: segment_mean(_residual_norms(s), s.span),
    ),
    _state(
        "span_first_residual_norm",
        "ratio",
        "the same of the first inserted token",
        "residual",
        lambda s: sinks.first_of(_residual_norms(s), s.span),
    ),
    _state(
        "sink_residual_norm",
        "ratio",
        "the same of the first token of the prompt, the sink",
        "residual",
        lambda s: segment_mean(_residual_norms(s), s.layout.sink),
    ),
    _state(
        "span_sink_cosine",
        "",
        "cosine of the span's residual stream to the sink's",
        "residual",
        lambda s: segment_mean(_cosines(s), s.span),
        signed=True,
    ),
    _state(
        "span_first_sink_cosine",
        "",
        "the same of the first inserted token",
        "residual",
        lambda s: sinks.first_of(_cosines(s), s.span),
        signed=True,
    ),
    _state(
        "span_value_norm",
        "ratio",
        "length of the span's values over other tokens'",
        "values",
        lambda s: segment_mean(_value_norms(s), s.span),
    ),
    _state(
        "span_first_value_norm",
        "ratio",
        "the same of the first inserted token",
        "values",
        lambda s: sinks.first_of(_value_norms(s), s.span),
    ),
    _state(
        "sink_value_norm",
        "ratio",
        "the same of the first token of the prompt, the sink",
        "values",
        lambda s: segment_mean(_value_norms(s), s.layout.sink),
    ),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in (*ROWS, *PROFILES, *STATES, *PAIRED)}
"""Every metric by name; any row metric also exists as `name_last`, read at the question's last row."""
declare(*(Column(each.name, each.name.replace("_", " "), f"{each.meaning} ({each.unit})") for each in METRICS.values()))
DEFAULT = (*(m.name for m in METRICS.values() if m.default), "span_mass_last", "lam_last")
"""What is measured unless metrics are asked for."""
SINKS = ("sink_alpha", "span_sink_rate", "span_first_alpha", "span_first_alpha_ratio", *(m.name for m in STATES))
"""Whether the span is a sink: what `metrics="sinks"` measures."""


def metric_named(name: str) -> Metric:
    """The metric of that name; `name_last` gives the row metric `name`."""
    found = METRICS.get(name) or METRICS.get(name.removesuffix("_last"))
    if found is None or (found.name != name and found.kind != "row"):
        raise ValueError(
            f"unknown metric {name!r}{nearest(name, METRICS)}; choose of {', '.join(METRICS)}; row metrics also with _last "
            f"({', '.join(m.name for m in ROWS)})"
        )
    return found


def chosen_metrics(metrics: str | Iterable[str] | None) -> tuple[str, ...]:
    """The names asked for: None the usual ones, "all" every one, "sinks" whether the span is one, a name, or several."""
    if metrics is None:
        return DEFAULT
    if metrics == "sinks":
        return SINKS
    if metrics == "all":
        return (*METRICS, *(f"{metric.name}_last" for metric in ROWS))
    names = (metrics,) if isinstance(metrics, str) else tuple(metrics)
    for name in names:
        metric_named(name)
    if not names:
        raise ValueError("no metrics to compute")
    if len(set(names)) != len(names):
        raise ValueError("a metric is given twice")
    return names
