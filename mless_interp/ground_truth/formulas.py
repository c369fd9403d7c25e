"""The identities themselves, one function each: from a case to how far its two sides are apart."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from ..metrics.attention import (
    attention_entropy,
    entropy_chain,
    jensen_shannon_divergence,
    renormalised_rows,
    span_log_odds,
)
from ..models.arithmetic import masked_scores, with_extra, with_sinks
from ..models.sites import site
from ..patching.interventions import Knockout, KnockoutZero, LayerState, PatchZ
from ..prompts.conditions import CONTRASTS
from ..prompts.pairs import followed, pairs_of_any
from .case import Case, Finding, apart, size, worst

DOSES = (4, 16)
"""How many units I12 inserts, the second against the first."""


def own_pattern(case: Case) -> Finding:
    """I0: softmax(q k) is the pattern that the library shows, and times the values it is z, in every layer."""
    found = []
    for layer in case.layers:
        run = case.layer("inserted", layer)
        found.append(apart(run.pattern.to(run.v) @ run.v, run.z))
        if run.own is not None:
            found.append(apart(run.own, run.pattern[..., : run.own.shape[-1]]))
    return worst(found)


def affine(case: Case) -> Finding:
    """I1: z' = lambda z_ref + Sigma, inserted against gap and held against base."""
    found = []
    for new, reference in (("inserted", "gap"), ("held", "base")):
        after, before = case.layer(new), case.layer(reference)
        lam, sigma = case.parts(after)
        found.append(apart(case.shared(after.z), lam[..., None] * before.z + sigma))
    return worst(found)


def third_term(case: Case) -> Finding:
    """I2: against the plain run the shift of positions adds lambda (z_gap - z_base)."""
    after, gap, base = (case.layer(name) for name in ("inserted", "gap", "base"))
    lam, sigma = case.parts(after)
    shift = lam[..., None] * (gap.z - base.z)
    return apart(case.shared(after.z) - base.z, (lam - 1)[..., None] * base.z + sigma + shift, scale=size(after.z))


def one_vector(case: Case) -> Finding:
    """I3: identical inserted tokens have one value vector v, so Sigma = (1 - lambda) v."""
    after, gap = case.layer("inserted"), case.layer("gap")
    lam, sigma = case.parts(after)
    towards = (1 - lam)[..., None] * after.v[:, case.pair.span[0]][:, None]
    found = [apart(sigma, towards, scale=size(after.v))]
    return worst([*found, apart(case.shared(after.z), lam[..., None] * gap.z + towards)])


def renormalised(case: Case) -> Finding:
    """I4: the pattern over the shared tokens, renormalised, is the reference pattern (distance 0)."""
    after, gap = case.layer("inserted"), case.layer("gap")
    extra = torch.arange(len(case.pair.inserted), after.pattern.shape[-1])
    at = torch.cat([case.pair.shared, extra]).to(after.pattern.device)
    rows = renormalised_rows(case.shared(after.pattern), alignment=at)
    kept = ~rows.isnan().any(-1)
    divergence = jensen_shannon_divergence(gap.pattern, rows)[kept]
    return worst([apart(rows[kept], gap.pattern[kept]), Finding(float(divergence.double().max()), 1.0)])


def prefix(case: Case) -> Finding:
    """I5: what stands before the span never changes, in any layer."""
    m = case.pair.span[0]
    names = [site(layer, "hook_resid_post") for layer in case.layers]
    return worst(apart(case.run("base")[name][:, :m], case.run("inserted")[name][:, :m]) for name in names)


def gap_is_masked(case: Case) -> Finding:
    """I6: the gap and the masked condition agree on shared tokens, in every layer and in the logits."""
    gap, masked, at = case.run("gap"), case.run("masked"), case.pair.shared
    names = ["logits", *(site(layer, "attn.hook_z") for layer in case.layers)]
    return worst(apart(masked[name][:, at], gap[name]) for name in names)


def before_it_is_blind(case: Case) -> Finding:
    """I13: a span that stands before the question has nothing to read of it: blind = inserted, everywhere."""
    blind, inserted = case.run("blind"), case.run("inserted")
    return worst(apart(blind[name], inserted[name]) for name in inserted)


def presence_and_computed(case: Case) -> Finding:
    """I14: content = presence + computed: in layer 0 the first lies outside the span alone, the second in its rows alone."""
    pair, rows, first = case.pair, case.pair.span_mask, case.pair.span[0]
    masked, blind, inserted = (case.layer(name).z for name in ("masked", "blind", "inserted"))
    found = [apart(blind[:, ~rows], inserted[:, ~rows]), apart(masked[:, rows], inserted[:, rows])]
    found += [
        apart(case.layer("blind", at).z[:, :first], case.layer("inserted", at).z[:, :first]) for at in case.layers
    ]
    if case.model.has_rotated_sites:
        hidden = CONTRASTS["computed"].cut(pair.inserted)
        recording = case.model.record(pair.condition("inserted"), start=0)
        state = LayerState.of(case.model, recording, 0, span=hidden.keys[None], rows=hidden.rows[None])
        found.append(apart(Knockout().edited(state)[0].transpose(0, 1), blind))
    return worst(found)


def knockout_is_patch(case: Case) -> Finding:
    """I7: in layer 0 a renormalising knockout is the z patch from the masked and from the gap run."""
    donors = ("masked", "gap")
    return worst(apart(case.edited(Knockout(), 0, name), case.edited(PatchZ(), 0, name)) for name in donors)


def zeroed(case: Case) -> Finding:
    """I8: attention on the span set to 0 without renormalising leaves lambda z_ref."""
    n = case.pair.n_after
    lam, _ = case.parts(case.layer("inserted"))
    z = case.edited(KnockoutZero())[0].transpose(0, 1)
    return apart(z, lam[:, -n:, None] * case.layer("gap").z[:, -n:])


def heads_add_up(case: Case) -> Finding:
    """I9: the change of the residual stream after layer 0's attention is the sum over heads."""
    after, masked = case.resid_mid("inserted"), case.resid_mid("masked")
    per_head = case.written_inserted()
    change = after - masked
    found = apart(per_head.sum(0), change, scale=size(after))
    squared = (change.double() ** 2).sum()
    if float(squared) == 0:
        return found  # nothing moved: there are no shares
    shares = (per_head.double() * change.double()).sum((1, 2)) / squared
    return worst([found, Finding(abs(float(shares.sum()) - 1) * size(change), size(after))])


def scale_and_bias(case: Case) -> Finding:
    """I10: what a head adds is its scale part plus its bias part, [(lambda - 1) z_ref + Sigma] W_O."""
    after, masked = case.layer("inserted"), case.layer("masked")
    lam, sigma = case.parts(after)
    reference = case.shared(masked.z)
    split = reference + (lam - 1)[..., None] * reference + sigma
    scale = size(case.resid_mid("inserted"))
    return apart(case.written_inserted(), case.written(split.to(reference)), scale=scale)


def entropy_splits(case: Case) -> Finding:
    """I11: H(A') = h2(lambda) + lambda H(outside) + (1 - lambda) H(inside), in every layer."""
    found = []
    for layer in case.layers:
        run = case.layer("inserted", layer)
        chain = entropy_chain(run.pattern, span=run.mask(case.pair.span_mask), **run.keys).total
        found.append(apart(attention_entropy(run.pattern, **run.keys), chain))
    return worst(found)


def slope_one(case: Case) -> Finding:
    """I12: N identical tokens at held positions: logit(1 - lambda) grows as log N with slope exactly 1."""
    odds = []
    span = case.pair.span_ids
    unit = next(n for n in range(1, len(span) + 1) if len(span) % n == 0 and span == span[:n] * (len(span) // n))
    sizes = [unit * dose for dose in DOSES]
    for n in sizes:
        insertion = replace(case.pair.insertion, n_tokens=n)
        made = pairs_of_any(case.model, [case.pair.problem], insertion, template=case.pair.template)
        other = Case(case.model, followed(made)[0])
        scores, rule = _first_layer_scores(other), case.model.attention_rule(0)
        keys, rows = torch.isfinite(scores), torch.arange(scores.shape[1], device=scores.device)
        inside = with_extra(other.pair.span_mask.to(scores.device), rule)
        after = slice(len(other.pair.base) - other.pair.n_after, None)
        of_rows = span_log_odds(scores, span=inside, visible=keys, dest_positions=rows)
        odds.append(of_rows[:, other.pair.shared][:, after])
    slope = (odds[1] - odds[0]) / math.log(sizes[1] / sizes[0])
    return apart(slope, torch.ones_like(slope))


def _first_layer_scores(case: Case) -> Tensor:
    """Attention scores `[H, T, K]` of layer 0 in the held condition, -inf where not visible."""
    inputs = case.pair.condition("held")
    names = [site(0, "attn.hook_rot_q"), site(0, "attn.hook_rot_k")]
    got = case.model.run(
        inputs.tokens, position_ids=inputs.position_ids, capture=dict.fromkeys(names), logits_at="none"
    ).captured
    q, k = (got[name] for name in names)
    rule, visible = case.model.attention_rule(0), case.model.visible(inputs)[0].to(q.device)
    return with_sinks(masked_scores(q, k, visible, rule), rule.column)[0]
