"""From what a layer was reduced to, the metrics of its heads."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..metrics.patterns import segment_mean
from ..metrics.received import relative_received
from .catalogue import Profile, TwoProfiles, metric_named
from .layout import Layout, Thresholds
from .streaming import Need, Plan, Reduced


def plan_for(names: Sequence[str], *, span: bool, other: bool, values: bool, exclude_sink: bool, renorm: bool) -> Plan:
    """What one run has to be reduced to for these metrics; `span`, `other`, `values`: what there is in this run."""
    there: dict[Need, bool] = {
        "span": span,
        "scores": True,
        "sink_levels": True,
        "values": values,
        "residual": values,
        "output_weights": values,
        "flow": span,
        "first_profile": other,
        "first_rows": other,
    }
    wanted = {metric.name: metric for metric in map(metric_named, names) if all(there[need] for need in metric.needs)}
    rows = {name: metric for name, metric in wanted.items() if metric.kind == "row"}
    return Plan(
        received=True,
        exclude_sink=exclude_sink,
        renorm=renorm,
        rows={name: metric.formula for name, metric in rows.items()},
        null_rows=tuple(name for name, metric in rows.items() if metric.of_patterns),
        states={name: metric.formula for name, metric in wanted.items() if metric.kind == "state"},
        needs=frozenset(need for metric in wanted.values() for need in metric.needs),
    )


def profile_of(reduced: Reduced, null: Reduced, layout: Layout, thresholds: Thresholds) -> Profile:
    """A layer's profile from its sums."""
    found, uniform = (each.mean("received", thresholds.min_rows).cpu() for each in (reduced, null))
    alpha = reduced.mean("alpha", 1).cpu() if reduced.of("alpha") else None
    return Profile(found, relative_received(found, uniform.to(found).expand_as(found)), alpha, layout, thresholds)


def head_values(names: Sequence[str], reduced: Reduced, profile: Profile, base: Profile | None) -> dict[str, Tensor]:
    """Each metric that is defined in this run, `[head]`; `base` is the profile to compare with."""
    values: dict[str, Tensor] = {}
    rows, states = reduced.of("rows"), reduced.of("states")
    comparison = None if base is None else compared(base, profile)
    for name in names:
        metric = metric_named(name)
        if metric.name in rows:
            found = rows[metric.name].cpu()
            mean = segment_mean(found, torch.ones(found.shape[-1], dtype=torch.bool))
            value = found[:, -1] if name != metric.name else mean
            values[name] = value.masked_fill(
                value.isinf(), torch.nan
            )  # a probability underflowed: unknown, not nothing
        elif name in states:
            values[name] = states[name].cpu()
        elif metric.kind == "profile" and ("span" not in metric.needs or profile.layout.span is not None):
            values[name] = metric.formula(profile)
        elif metric.kind == "paired" and comparison is not None:
            values[name] = metric.formula(comparison)
    return values


def compared(base: Profile, inserted: Profile) -> TwoProfiles:
    """Two profiles at the tokens that both prompts have."""
    left, right = base.layout.shared, inserted.layout.shared
    return TwoProfiles(
        base=base.received[:, left],
        inserted=inserted.received[:, right],
        base_relative=base.relative[:, left],
        inserted_relative=inserted.relative[:, right],
        question=inserted.shared_question,
        thresholds=inserted.thresholds,
        one_block=inserted.layout.one_block and base.layout.one_block,
    )


def layer_values(
    names: Sequence[str],
    reduced: Reduced,
    null: Reduced,
    layout: Layout,
    thresholds: Thresholds,
    base: tuple[Profile, Profile] | None,
) -> tuple[dict[str, Tensor], dict[str, Tensor], tuple[Profile, Profile]]:
    """(metrics of a layer, those of uniform attention in its place, both profiles); `base`: both to compare with."""
    profile = profile_of(reduced, null, layout, thresholds)
    uniform = profile_of(null, null, layout, thresholds)
    other, uniform_other = base or (None, None)
    values = head_values(names, reduced, profile, other)
    return values, head_values(names, null, uniform, uniform_other), (profile, uniform)
