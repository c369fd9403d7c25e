"""What heads write (the span's part of their output, how it changes when a span is inserted), and outcomes from logits.

Values are per *query* head (`[*lead, src, d_head]`, the leading axes of the pattern): with grouped-query attention repeat the
key-value heads with `repeat_interleave`, never `repeat`. For the affine form, rows are the queries after the insertion point,
one vector each; `before` is the run that the inserted one is compared with, row by row.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..core.shapes import Logits, Pattern, PerHead, PerRow, Segment, Vectors, Visible
from .patterns import check_span, prepared, widened

RowVectors = Float[Tensor, "*lead dest d"]


def span_output(
    pattern: Pattern, values: Float[Tensor, "*#lead src d"], *, span: Segment, visible: Visible | None = None
) -> RowVectors:
    r"""Return the part of each row's head output that comes from the span: the additive term Sigma, in units of the values.

    $\Sigma_i = \sum_{k \in I} A_{ik} v_k$. With `retained_mass`, in the first layer and at held positions,
    $z'_i = \lambda_i z_i + \Sigma_i$ exactly. Source: arXiv 2510.01032, Eq. 1-2.

    >>> span_output(torch.tensor([[1.0, 0.0], [0.75, 0.25]]), torch.tensor([[5.0], [4.0]]),
    ...             span=torch.tensor([False, True]))
    tensor([[0.],
            [1.]])
    """
    check_span(span, n_tokens=pattern.shape[-1])
    pattern, visible = prepared(pattern, visible)
    part = _weighted(pattern, values, span)
    return torch.where(visible.any(-1)[..., None], part, torch.nan)


def span_output_weight(
    pattern: Pattern,
    values: Float[Tensor, "*#lead src d"],
    *,
    span: Segment,
    output_weights: Float[Tensor, "*#lead d d_model"] | None = None,
    visible: Visible | None = None,
) -> PerRow:
    r"""Return the share of the span in a head's output by norm instead of attention, in [0, 1].

    $$ n_i = \frac{\lVert \sum_{k \in I} A_{ik} v_k W_O \rVert}
                  {\lVert \sum_{k \in I} A_{ik} v_k W_O \rVert + \lVert \sum_{j \notin I} A_{ij} v_j W_O \rVert} $$

    0: the span writes nothing (however much attention it gets); 1: nothing else does. NaN where the output is zero. Without
    `output_weights` norms are taken before $W_O$. Source: after Kobayashi et al. 2020 (arXiv 2004.10102), each side summed.

    >>> span_output_weight(torch.tensor([[1.0, 0.0], [0.75, 0.25]]), torch.tensor([[1.0], [9.0]]),
    ...                    span=torch.tensor([False, True]))
    tensor([0.0000, 0.7500])
    """
    check_span(span, n_tokens=pattern.shape[-1])
    pattern, _ = prepared(pattern, visible)
    parts = [_weighted(pattern, values, side) for side in (span, ~span)]
    written = parts if output_weights is None else [part @ output_weights.to(part.dtype) for part in parts]
    inside, outside = (part.norm(dim=-1) for part in written)
    return inside / (inside + outside)  # 0 / 0 is NaN


def value_cosine(values: Vectors, *, span: Segment) -> PerHead:
    r"""Return the mean cosine of all pairs of value vectors in the span, in [-1, 1].

    $\frac{1}{N(N-1)} \sum_{k \ne l \in I} \cos(v_k, v_l)$. 1: all point the same way, so attention to the span adds one
    direction whatever its spread; about 0: unrelated. Zero vectors leave the mean; NaN with fewer than two others.

    >>> value_cosine(torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]]), span=torch.tensor([True, False, True]))
    tensor(0.)
    """
    check_span(span, n_tokens=values.shape[-2], may_cover_all=True)
    units, count = _units(values, span)
    pairs = units.sum(-2).square().sum(-1) - count
    return torch.where(count > 1, pairs / (count * (count - 1)), torch.nan)


def value_spectral_share(values: Vectors, *, span: Segment) -> PerHead:
    r"""Return the share of the span's value energy on one direction, in [1/rank, 1].

    $\sigma_1^2 / \textstyle\sum_r \sigma_r^2$ of the singular values of $V_I$ (uncentred). 1: rank one, a pure bias. NaN if
    all are zero.

    >>> value_spectral_share(torch.tensor([[3.0, 0.0], [0.0, 3.0], [5.0, 5.0]]), span=torch.tensor([True, True, False]))
    tensor(0.5000)
    """
    energy = _singular_values(values, span).square()
    return energy.amax(-1) / energy.sum(-1)


def value_effective_rank(values: Vectors, *, span: Segment) -> PerHead:
    r"""Return the number of directions that the span's values fill as if evenly.

    $\exp H(\sigma / \textstyle\sum_r \sigma_r)$. 1: one direction; N: all orthogonal and equally long. NaN where all values
    are zero. Source: effective rank of Roy & Vetterli 2007, uncentred.

    >>> value_effective_rank(torch.tensor([[3.0, 0.0], [0.0, 3.0], [5.0, 5.0]]), span=torch.tensor([True, True, False]))
    tensor(2.)
    """
    singular = _singular_values(values, span)
    total = singular.sum(-1, keepdim=True)
    rank = torch.special.entr(singular / total.clamp(min=torch.finfo(total.dtype).tiny)).sum(-1).exp()
    return torch.where(total[..., 0] > 0, rank, torch.nan)


def direction_coherence(vectors: Vectors) -> PerHead:
    r"""Return how far vectors at different rows point the same way, whatever their lengths, in [0, 1].

    $R = \left\lVert \frac{1}{|Q|} \sum_{i \in Q} \frac{\Sigma_i}{\lVert \Sigma_i \rVert} \right\rVert$, of `span_output` rows
    for example. 1: one direction at every row; 0: the pushes cancel. Zero and undefined vectors leave the mean.

    >>> direction_coherence(torch.tensor([[2.0, 0.0], [5.0, 0.0]])), direction_coherence(torch.tensor([[1.0], [-3.0]]))
    (tensor(1.), tensor(0.))
    """
    units, count = _units(vectors, torch.ones_like(vectors[..., 0], dtype=torch.bool))
    return units.sum(-2).norm(dim=-1) / count


def _weighted(pattern: Pattern, values: Tensor, segment: Segment) -> Tensor:
    return torch.where(segment[..., None, :], pattern, 0) @ values.to(pattern.dtype)


def _units(vectors: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    vectors = widened(vectors)  # scaled, exactly: float32 has no squares of what heads write that hardly read
    vectors = vectors.ldexp(-vectors.abs().amax(-1, keepdim=True).frexp().exponent.clamp(min=-126))
    norms = vectors.norm(dim=-1, keepdim=True)
    keep = keep[..., None] & (norms > 0)
    return torch.where(keep, vectors / norms, 0), keep.sum((-2, -1))


def _singular_values(values: Tensor, span: Tensor) -> Tensor:
    check_span(span, n_tokens=values.shape[-2], may_cover_all=True)
    used = span.flatten(end_dim=-2).any(0) if span.ndim > 1 else span
    return torch.linalg.svdvals(torch.where(span[..., used, None], widened(values)[..., used, :], 0))


def affine_parts(
    after: RowVectors, before: RowVectors, *, lam: PerRow, sigma: RowVectors, matched: RowVectors | None = None
) -> dict[str, Float[Tensor, "*lead row d"]]:
    r"""Return the "change" of head outputs as the sum of "scale", "bias" (and "shift") and "rest", in units of z.

    $z'_i - z_i = (\lambda_i - 1) z_i + \Sigma_i + \lambda_i (z^{\text{matched}}_i - z_i) + \text{rest}$. Without `matched`,
    `before` has the inserted run's positions. With it, `before` is the plain run, `matched` the one without the span at the
    inserted run's positions, and the third term the shift of rotary positions, which the paper's Eq. 2 leaves out. In the
    first layer the rest is 0. Source: arXiv 2510.01032, Eq. 2; methods §3, I1, I2, I10.

    >>> parts = affine_parts(torch.tensor([[0.92]]), torch.tensor([[1.4]]), lam=torch.tensor([0.8]),
    ...                      sigma=torch.tensor([[-0.2]]))
    >>> [round(float(parts[name]), 4) + 0.0 for name in ("scale", "bias", "rest")]
    [-0.28, -0.2, 0.0]
    """
    after, before, sigma = widened(after), widened(before), widened(sigma)
    kept = widened(lam)[..., None]
    change, scale = after - before, (kept - 1) * before
    parts = {"change": change, "scale": scale, "bias": sigma, "rest": change - scale - sigma}
    if matched is not None:
        parts["shift"] = kept * (widened(matched) - before)
        parts["rest"] = parts["rest"] - parts["shift"]
    return parts


def affine_residual(rest: RowVectors, change: RowVectors, *, rounding: PerHead | float = 0.0) -> PerHead:
    r"""Return how much of the change the form leaves open: eps, a ratio of norms over all rows.

    $\epsilon = \lVert \text{rest} \rVert_F / \lVert z' - z \rVert_F$. 0: the form is exact, as it must be in the first layer;
    1: it explains nothing. NaN where the change is less than ten times `rounding` (the norm that rounding alone may have).
    Source: methods §3.

    >>> affine_residual(torch.tensor([[0.0, 3.0]]), torch.tensor([[4.0, 3.0]]))
    tensor(0.6000)
    """
    size = widened(change).flatten(-2).norm(dim=-1)
    floor = torch.as_tensor(rounding, dtype=size.dtype, device=size.device)
    resolved = (size > 0) & (size >= 10 * floor)
    return torch.where(resolved, widened(rest).flatten(-2).norm(dim=-1) / size, torch.nan)


def affine_fit(before: RowVectors, after: RowVectors) -> tuple[PerHead, Float[Tensor, "*lead d"], PerHead]:
    r"""Return the one slope and offset that map all rows best, by least squares, and the share of variance that they explain.

    $$ a = \frac{\sum_i \langle z_i - \bar z, z'_i - \bar z' \rangle}{\sum_i \lVert z_i - \bar z \rVert^2}, \quad
       b = \bar z' - a \bar z, \quad R^2 = 1 - \frac{\sum_i \lVert z'_i - a z_i - b \rVert^2}
                                                    {\sum_i \lVert z'_i - \bar z' \rVert^2} $$

    $R^2 = 1$: one affine map moves every row, which says nothing about the retained mass: $a$ may be negative. NaN where the
    rows before (for $a$) or after (for $R^2$) do not differ. Source: methods §3 (lam*, sig*); arXiv 2510.01032 reads Eq. 2 in
    this way.

    >>> affine_fit(torch.tensor([[0.0], [1.0]]), torch.tensor([[3.0], [1.0]]))
    (tensor(-2.), tensor([3.]), tensor(1.))
    """
    before, after = widened(before), widened(after)
    middle, middle_after = before.mean(-2), after.mean(-2)
    x, y = before - middle[..., None, :], after - middle_after[..., None, :]
    least = torch.finfo(x.dtype).eps ** 2
    spread, spread_after = x.square().sum((-2, -1)), y.square().sum((-2, -1))
    varies = spread > least * before.square().sum((-2, -1))
    varies_after = spread_after > least * after.square().sum((-2, -1))
    slope = torch.where(varies, (x * y).sum((-2, -1)) / spread, torch.nan)
    wrong = (y - slope[..., None, None] * x).square().sum((-2, -1))
    offset = middle_after - slope[..., None] * middle
    return slope, offset, torch.where(varies_after, 1 - wrong / spread_after, torch.nan)


def residual_share(
    parts: Float[Tensor, "head row d"],
    change: Float[Tensor, "row d_model"],
    *,
    output_weights: Float[Tensor, "head d d_model"],
) -> Float[Tensor, " head"]:
    r"""Return the share of each head's part in what the layer's attention changes in the residual stream; a signed number.

    $$ s_h = \frac{\langle u_h W_O^h, \delta \rangle}{\langle \delta, \delta \rangle}, \qquad
       \delta = \sum_h (z'_h - z_h) W_O^h $$

    The shares of all heads' whole changes sum to 1. Below 0: against the change. NaN where nothing changes. Source: methods §3,
    I9, I10.

    >>> residual_share(torch.tensor([[[1.0]], [[3.0]]]), torch.tensor([[4.0]]), output_weights=torch.ones(2, 1, 1))
    tensor([0.2500, 0.7500])
    """
    parts, change = widened(parts), widened(change)
    read = torch.einsum("rm,hdm->hrd", change, output_weights.to(change))
    square = change.square().sum()
    return torch.where(square > 0, (parts * read).sum((-2, -1)) / square, torch.nan)  # squares may underflow


PerRun = Float[Tensor, " batch"]


def answer_logprob(logits: Logits, answer: Int[Tensor, " read"]) -> PerRun:
    r"""Return the sum of the answer tokens' teacher-forced log-probabilities, in nats.

    $Y = \sum_k \ln p(a_k \mid \text{prompt}, a_{<k})$. 0: the model is certain of the answer. `logits[:, k]` are those of
    the position that predicts answer token `k`. Source: methods §7 (`Y_lp`).

    >>> answer_logprob(torch.tensor([[[0.0, 0.0]]]), torch.tensor([1])).exp()
    tensor([0.5000])
    """
    there = answer.to(logits.device, non_blocking=logits.device.type != "cpu")
    picked = widened(logits).log_softmax(-1).gather(-1, there.expand(logits.shape[:2])[..., None])
    return picked[..., 0].sum(1)


def mean_logprob(logits: Logits, answer: Int[Tensor, " read"]) -> PerRun:
    """Return the mean teacher-forced log-probability, in nats per token. Source: methods §7 (`solution_logprob`).

    >>> mean_logprob(torch.zeros(1, 3, 4), torch.tensor([0, 1, 2])).exp()
    tensor([0.2500])
    """
    return answer_logprob(logits, answer) / answer.shape[0]


def answer_probability(logits: Logits, answer: Int[Tensor, " read"]) -> PerRun:
    r"""Return the geometric mean of the answer tokens' teacher-forced probabilities: a bounded outcome.

    $Y = \exp(\frac{1}{K} \sum_k \ln p(a_k \mid \text{prompt}, a_{<k}))$. A single problem moves it by 1 at most. Source:
    methods §9.

    >>> answer_probability(torch.zeros(1, 2, 4), torch.tensor([0, 1]))
    tensor([0.2500])
    """
    return mean_logprob(logits, answer).exp()


def logit_difference(logits: Logits, right: int, wrong: int) -> PerRun:
    r"""Return the logit of the right token minus that of a wrong one, at the last position read, in logits.

    $Y = \ell_{\text{right}} - \ell_{\text{wrong}}$. 0: as likely. Source: Heimersheim & Nanda (2404.15255); methods §7
    (`Y_ld`).

    >>> logit_difference(torch.tensor([[[1.0, 3.0]]]), 1, 0)
    tensor([2.])
    """
    last = widened(logits[:, -1])
    return last[:, right] - last[:, wrong]


def kl_divergence(logits: Logits, reference: Logits) -> PerRun:
    r"""Return the mean over positions of KL(reference || run), in nats per position.

    $Y = \frac{1}{|R|} \sum_{t \in R} \sum_w p_{\text{ref}}(w) \ln \frac{p_{\text{ref}}(w)}{p_{\text{run}}(w)}$. 0: the same
    predictions. Source: methods §7 (`Y_kl`).

    >>> kl_divergence(torch.zeros(1, 2, 3), torch.zeros(1, 2, 3))
    tensor([0.])
    """
    run, ref = widened(logits).log_softmax(-1), widened(reference).log_softmax(-1)
    return (ref.exp() * (ref - run)).sum(-1).mean(1)


def circuit_performance(fractions: Float[Tensor, " size"], faithfulness: Float[Tensor, "*lead size"]) -> PerHead:
    r"""Return the area under the faithfulness curve of growing circuits: CPR, higher is better.

    $\mathrm{CPR} = \int_0^1 f(k)\, dk$. 1: the first heads restore everything; above 1: they overshoot. By the trapezoid
    rule, linear in the fraction of heads. Source: MIB, Mueller et al. 2025 (arXiv 2504.13151).

    >>> circuit_performance(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0]))
    tensor(0.5000)
    """
    return torch.trapezoid(widened(faithfulness), fractions)


def circuit_distance(fractions: Float[Tensor, " size"], faithfulness: Float[Tensor, "*lead size"]) -> PerHead:
    r"""Return the area between the faithfulness curve of growing circuits and 1: CMD, lower is better.

    $\mathrm{CMD} = \int_0^1 |1 - f(k)|\, dk$. 0: every circuit behaves like the whole model. Source: as `circuit_performance`.

    >>> circuit_distance(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0]))
    tensor(0.5000)
    """
    return torch.trapezoid((1 - widened(faithfulness)).abs(), fractions)
