"""The exact identities of methods §3, runnable on any model and prompt pair: what they are made of, a formula each, the table.

They are arithmetic, not findings: a model behind a backend that tells the truth obeys them up to rounding, whatever its
weights. `certificate.py` runs them on a user's model; the tests run them on every backend and architecture.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..metrics import attention as metrics
from ..metrics.outputs import span_output
from ..metrics.patterns import with_sink_key
from ..models.attention_math import masked_scores, softmax, values_of_heads, with_extra, with_sinks
from ..models.base import Model
from ..models.checks import Finding, apart, size, worst
from ..models.info import Edit, Inputs
from ..models.sites import site
from ..patching.interventions import Intervention, Knockout, KnockoutZero, LayerState, PatchZ
from ..prompts.conditions import CONTRASTS
from ..prompts.pairs import PromptPair, followed, pairs_of_any

DOSES = (4, 16)  # how many tokens I12 inserts, the second against the first


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer of a run: `pattern` `[H, T, K]` rebuilt from rotated q and k (or the library's `own` where it does not show
    them), `v` `[H, K, d]`, `z` `[H, T, d]`, `visible` `[1|H, T, K]`, `span` `[K]` the inserted keys. A learned sink is one more
    key, whose value is 0."""

    pattern: Tensor
    v: Tensor
    z: Tensor
    own: Tensor | None
    visible: Tensor
    span: Tensor


@dataclass(frozen=True, eq=False)
class Case:
    """A model and one pair; each condition is run once and kept."""

    model: Model
    pair: PromptPair
    runs: dict[str, dict[str, Tensor]] = field(default_factory=dict, repr=False)

    @property
    def layers(self) -> range:
        return range(self.model.info.n_layers)

    def run(self, condition: str) -> dict[str, Tensor]:
        """Return every captured site of one condition by hook name, and "logits" `[1, T, vocab]`."""
        if condition not in self.runs:
            sites = ["attn.hook_v", "attn.hook_z", "hook_resid_post"]
            sites += ["attn.hook_rot_q", "attn.hook_rot_k"] if self.model.has_rotated_sites else []
            sites += ["attn.hook_pattern"] if self.model.info.attention == "eager" else []
            names = [site(layer, name) for layer in self.layers for name in sites]
            done = self.model.run(self.pair.condition(condition), capture=dict.fromkeys(names))
            assert done.logits is not None
            self.runs[condition] = {**done.captured, "logits": done.logits}
        return self.runs[condition]

    def scores(self, condition: str, layer: int = 0) -> Tensor:
        """Return attention scores `[H, T, K]` from queries and keys as they enter them, -inf where not visible."""
        q, k = (self.run(condition)[site(layer, f"attn.hook_rot_{part}")] for part in "qk")
        rule, visible = self.model.attention_rule(layer), self.model.visible(self.pair.condition(condition))[layer]
        return with_sinks(masked_scores(q, k, visible.to(q.device), rule), rule.column)[0]

    def layer(self, condition: str, layer: int = 0) -> Layer:
        rule = self.model.attention_rule(layer)
        run = {name: values[0] for name, values in self.run(condition).items()}
        v, z, own = (run.get(site(layer, f"attn.hook_{name}")) for name in ("v", "z", "pattern"))
        assert v is not None and z is not None
        visible = self.model.visible(self.pair.condition(condition))[layer].to(z.device)[0]
        if self.model.has_rotated_sites:
            pattern = softmax(self.scores(condition, layer))
        else:
            assert own is not None
            pattern = with_sink_key(own, visible=visible)[0] if rule.n_extra else own
        values = torch.nn.functional.pad(values_of_heads(v, self.model.info.n_heads), (0, 0, 0, rule.n_extra))
        masks = with_extra(visible, rule, value=True), with_extra(self.pair.span_mask.to(z.device), rule)
        return Layer(pattern, values, z.transpose(0, 1), own, *(mask.to(pattern.device) for mask in masks))

    def parts(self, layer: Layer) -> tuple[Tensor, Tensor]:
        """Return lambda `[H, shared]` and Sigma `[H, shared, d]` of a run with the span."""
        masks = {"span": layer.span, "visible": layer.visible}
        lam = metrics.retained_mass(layer.pattern, **masks)
        return self.shared(lam), self.shared(span_output(layer.pattern, layer.v, **masks))

    def shared(self, values: Tensor) -> Tensor:
        """Return `[H, T, ...]` at the tokens that both prompts have."""
        return values[:, self.pair.shared]

    def edited(self, intervention: Intervention, donor: str = "masked") -> Tensor:
        """Edit each head of the inserted run's layer 0 alone: outputs `[b, Q, H, d]`; `donor` is another condition."""
        start, inputs, span = self.pair.span[1], self.pair.condition(donor), self.pair.span_mask[None]
        receiving = self.model.record(self.pair.condition("inserted"), start=start)
        given = self.model.record(inputs, start=inputs.n_tokens - self.pair.n_after)
        nowhere = torch.zeros(1, inputs.n_tokens, dtype=torch.bool)  # of a donor only z is taken
        source = LayerState.of(self.model, given, 0, span=nowhere)
        return intervention(replace(LayerState.of(self.model, receiving, 0, span=span), donor=source))

    def written(self, z: Tensor) -> Tensor:
        """Return what each head of layer 0 adds to the residual stream `[H, shared, d_model]` if its output in the masked run
        became `z` `[H, shared, d]`: one row per head, through the model's own output projection."""
        inputs, name, at = self.pair.condition("masked"), site(0, "hook_attn_out"), self.pair.shared

        def edit(old: Tensor) -> Tensor:
            new = old.clone()
            for head in range(len(z)):
                new[head, at, head] = z[head].to(new)
            return new

        def added(tokens: Tensor, edits: dict[str, Edit] | None = None) -> Tensor:
            given = Inputs(tokens, None, inputs.attention_mask)
            return self.model.run(given, edits=edits, capture={name: None}, logits_at="none").captured[name][:, at]

        return added(inputs.tokens.expand(len(z), -1), {site(0, "attn.hook_z"): edit}) - added(inputs.tokens)

    def resid_mid(self, condition: str) -> Tensor:
        """Return the residual stream with what layer 0's attention adds at the shared tokens, `[shared, d_model]`."""
        names = (site(0, "hook_resid_pre"), site(0, "hook_attn_out"))
        run = self.model.run(self.pair.condition(condition), capture=dict.fromkeys(names), logits_at="none")
        before, added = (run.captured[name] for name in names)
        # their sum, as it is nowhere in a layer whose MLP reads beside its attention
        return (before.to(added.device) + added)[0, self.pair.shared]


@dataclass(frozen=True)
class Identity:
    """One identity: what it `says`, its formula, the reason why it may not `apply`, and how many times the tolerance of
    a first-layer identity it is allowed (rounding adds up over layers, and logarithms of small masses magnify it)."""

    name: str
    says: str
    formula: Callable[[Case], Finding]
    applies: Callable[[Case], str | None] = lambda case: None
    factor: float = 1.0


def _where(holds: Callable[[Case], object], why_not: str) -> Callable[[Case], str | None]:
    return lambda case: None if holds(case) else why_not


_adds = _where(
    lambda case: getattr(case.model._attention_output(0), "norm", None) is None,  # weights may be unknown
    "attention's output is normed before it is added: heads do not add up",
)
_after_something = _where(lambda case: case.pair.span[0], "nothing stands before the span")
_span_first = _where(lambda case: not case.pair.span_sees_question, "the span stands after the question, or part of it")
_span_behind = _where(lambda case: case.pair.span_sees_question, "nothing of the question stands before the span")
_rotated = _where(
    lambda case: case.model.has_rotated_sites,
    "this backend shows no queries and keys as they enter the scores of this architecture",
)


def _identical(case: Case) -> str | None:
    if case.model.learned_positions:
        return "its positions are learned vectors, so the same token has other keys and values at another place"
    return "the inserted tokens are not all the same" if len(set(case.pair.span_ids)) > 1 else _rotated(case)


def _unwindowed(case: Case) -> str | None:
    window = case.model.info.windows[0]
    if not case.pair.insertion.repeats:
        return "the insertion is not a repeated unit"
    if window is not None and window < len(case.pair.base):
        return f"layer 0's sliding window of {window} tokens cuts the span off from some rows"
    return _identical(case)


def own_pattern(case: Case) -> Finding:
    every = [case.layer("inserted", layer) for layer in case.layers]
    found = [apart(run.pattern.to(run.v) @ run.v, run.z) for run in every]
    found += [apart(run.own, run.pattern[..., : run.own.shape[-1]]) for run in every if run.own is not None]
    return worst(found)


def affine(case: Case) -> Finding:
    found = []
    for new, reference in (("inserted", "gap"), ("held", "base")):
        after, before = case.layer(new), case.layer(reference)
        lam, sigma = case.parts(after)
        found.append(apart(case.shared(after.z), lam[..., None] * before.z + sigma))
    return worst(found)


def third_term(case: Case) -> Finding:
    after, gap, base = (case.layer(name) for name in ("inserted", "gap", "base"))
    lam, sigma = case.parts(after)
    shift = lam[..., None] * (gap.z - base.z)
    return apart(case.shared(after.z) - base.z, (lam - 1)[..., None] * base.z + sigma + shift, scale=size(after.z))


def one_vector(case: Case) -> Finding:
    after, gap = case.layer("inserted"), case.layer("gap")
    lam, sigma = case.parts(after)
    towards = (1 - lam)[..., None] * after.v[:, case.pair.span[0]][:, None]
    same = apart(sigma, towards, scale=size(after.v))
    return worst([same, apart(case.shared(after.z), lam[..., None] * gap.z + towards)])


def renormalised(case: Case) -> Finding:
    after, gap = case.layer("inserted"), case.layer("gap")
    rows = metrics.renormalised_rows(case.shared(after.pattern), alignment=(~after.span).nonzero()[:, 0])
    kept = ~rows.isnan().any(-1)
    divergence = metrics.jensen_shannon_divergence(gap.pattern, rows)[kept]
    return worst([apart(rows[kept], gap.pattern[kept]), Finding(float(divergence.double().max()), 1.0)])


def prefix(case: Case) -> Finding:
    m = case.pair.span[0]
    names = [site(layer, "hook_resid_post") for layer in case.layers]
    return worst(apart(case.run("base")[name][:, :m], case.run("inserted")[name][:, :m]) for name in names)


def gap_is_masked(case: Case) -> Finding:
    gap, masked, at = case.run("gap"), case.run("masked"), case.pair.shared
    names = ["logits", *(site(layer, "attn.hook_z") for layer in case.layers)]
    return worst(apart(masked[name][:, at], gap[name]) for name in names)


def knockout_is_patch(case: Case) -> Finding:
    knocked_out = case.edited(Knockout())
    return worst(apart(knocked_out, case.edited(PatchZ(), name)) for name in ("masked", "gap"))


def zeroed(case: Case) -> Finding:
    n = case.pair.n_after
    lam, _ = case.parts(case.layer("inserted"))
    return apart(case.edited(KnockoutZero())[0].transpose(0, 1), lam[:, -n:, None] * case.layer("gap").z[:, -n:])


def heads_add_up(case: Case) -> Finding:
    after, masked = case.resid_mid("inserted"), case.resid_mid("masked")
    per_head = case.written(case.shared(case.layer("inserted").z))
    change = after - masked
    found = apart(per_head.sum(0), change, scale=size(after))
    squared = (change.double() ** 2).sum()
    if float(squared) == 0:
        return found  # nothing moved: there are no shares
    shares = (per_head.double() * change.double()).sum((1, 2)) / squared
    return worst([found, Finding(abs(float(shares.sum()) - 1) * size(change), size(after))])


def scale_and_bias(case: Case) -> Finding:
    after, reference = case.layer("inserted"), case.shared(case.layer("masked").z)
    lam, sigma = case.parts(after)
    split = reference + (lam - 1)[..., None] * reference + sigma
    whole, parts = case.written(case.shared(after.z)), case.written(split.to(reference))
    return apart(whole, parts, scale=size(case.resid_mid("inserted")))


def entropy_splits(case: Case) -> Finding:
    found = []
    for run in [case.layer("inserted", layer) for layer in case.layers]:
        between, outside, inside = metrics.entropy_chain(run.pattern, span=run.span, visible=run.visible)
        found.append(apart(metrics.attention_entropy(run.pattern, visible=run.visible), between + outside + inside))
    return worst(found)


def slope_one(case: Case) -> Finding:
    odds = []
    for dose in DOSES:
        insertion = replace(case.pair.insertion, n_tokens=dose)  # of tokens that are all the same
        made = pairs_of_any(case.model, [case.pair.problem], insertion, template=case.pair.template)
        other = Case(case.model, followed(made)[0])
        scores, rule = other.scores("held"), case.model.attention_rule(0)
        inside = with_extra(other.pair.span_mask.to(scores.device), rule)
        after = slice(len(other.pair.base) - other.pair.n_after, None)
        of_rows = metrics.span_log_odds(scores, span=inside, visible=scores > -torch.inf)
        odds.append(of_rows[:, other.pair.shared][:, after])
    slope = (odds[1] - odds[0]) / math.log(DOSES[1] / DOSES[0])
    return apart(slope, torch.ones_like(slope))


def blind_is_inserted(case: Case) -> Finding:
    blind, inserted = case.run("blind"), case.run("inserted")
    return worst(apart(blind[name], inserted[name]) for name in inserted)


def content_splits(case: Case) -> Finding:
    pair, rows, first = case.pair, case.pair.span_mask, case.pair.span[0]
    masked, blind, inserted = (case.layer(name).z for name in ("masked", "blind", "inserted"))
    found = [apart(blind[:, ~rows], inserted[:, ~rows]), apart(masked[:, rows], inserted[:, rows])]
    before = [[case.layer(name, at).z[:, :first] for name in ("blind", "inserted")] for at in case.layers]
    found += [apart(*both) for both in before]
    if case.model.has_rotated_sites:
        hidden = CONTRASTS["computed"].cut(pair.inserted)
        recording = case.model.record(pair.condition("inserted"), start=0)
        state = LayerState.of(case.model, recording, 0, span=hidden.keys[None], rows=hidden.rows[None])
        found.append(apart(Knockout().edited(state)[0].transpose(0, 1), blind))
    return worst(found)


IDENTITIES = (
    Identity("I0", "the pattern shown is softmax(q k), and times the values it is z (every layer)", own_pattern),
    Identity("I1", "z' = λ z_ref + Σ, position-matched", affine),
    Identity("I2", "against the plain run: plus λ (z_gap - z_base)", third_term),
    Identity("I3", "identical tokens: Σ = (1 - λ) v, one vector per head", one_vector, _identical),
    Identity("I4", "renormalised shared pattern = reference pattern", renormalised),
    Identity("I5", "tokens before the span never change (every layer)", prefix, _after_something),
    Identity("I6", "gap = masked on shared tokens (every layer, logits)", gap_is_masked, factor=10.0),
    Identity("I7", "layer 0: knockout = z patch from masked, from gap", knockout_is_patch, _rotated),
    Identity("I8", "span attention zeroed: z = λ z_ref", zeroed, _rotated),
    Identity("I9", "residual change = sum over heads, shares sum to 1", heads_add_up, _adds),
    Identity("I10", "each head adds its scale part + its bias part", scale_and_bias, _adds),
    Identity("I11", "entropy = between + λ outside + (1 - λ) inside (every layer)", entropy_splits),
    Identity("I12", "logit(1 - λ) = log N + constant, slope 1", slope_one, _unwindowed, factor=10.0),
    Identity("I13", "span before the question: blind = inserted (every layer)", blind_is_inserted, _span_first),
    Identity("I14", "content = presence + computed (layer 0: outside the span, in it)", content_splits, _span_behind),
)
"""I0 to I14 of methods §3."""


def tolerance_of(model: Model) -> float:
    """Return the largest relative error allowed to a first-layer identity: methods §6."""
    if model.info.dtype == "float64":
        return 1e-5 if model.float32_softmax else 1e-10  # Hugging Face's eager softmax is float32
    return 1e-4 if model.info.dtype == "float32" else 2e-2
