"""The attention that each token receives, and whether tokens are attention sinks.

Received attention is a mean over the rows that read a token: `received_sums` of blocks of rows add up, and
`received_attention` divides at the end. A sink token has a residual stream many times longer than others', in the direction of
the first token's, and a value vector that is nearly nothing, so that attention on it does little.
"""

import torch
from jaxtyping import Float

from ..core.shapes import Counts, Pattern, PerColumn, PerHead, Segment, Vectors, Visible
from .patterns import check_segment, prepared, segment_mean, widened


def received_sums(
    pattern: Pattern,
    *,
    rows: Segment | None = None,
    diag: bool = False,
    sink: Segment | None = None,
    visible: Visible | None = None,
    first: int | None = None,
) -> tuple[PerColumn, Counts]:
    r"""Return the attention that each token receives, summed over the rows of this block that read it, and their number.

    $S_j = \sum_{i \in R_j} A_{ij}$, $n_j = |R_j|$, $R_j = \{i > j : i \in \text{rows}, i \text{ sees } j\}$. `rows` is a mask
    over all tokens; `diag` admits $i = j$; tokens in `sink` count 0. Sums and counts of disjoint blocks of rows, given with
    their `visible` keys and the position of their `first` row, add.

    >>> received_sums(torch.tensor([[1.0, 0.0, 0.0], [0.6, 0.4, 0.0], [0.5, 0.3, 0.2]]))
    (tensor([1.1000, 0.3000, 0.0000]), tensor([2, 1, 0]))
    """
    n_rows, n_tokens = pattern.shape[-2:]
    if first is None and n_rows == n_tokens:
        first = 0
    if first is None or not 0 <= first <= n_tokens - n_rows:
        raise ValueError(
            f"a block of {n_rows} rows over {n_tokens} keys needs first: the position of its first row's token, counted from "
            f"the start of the whole (padded) prompt, in 0 to {n_tokens - n_rows}; got {first}"
        )
    queries = torch.arange(first, first + n_rows, device=pattern.device)
    pattern, visible = prepared(pattern, visible)
    counted = visible & (torch.arange(n_tokens, device=pattern.device) < queries[:, None] + int(diag))
    if rows is not None:
        check_segment(rows, name="rows", n_tokens=n_tokens)
        counted = counted & rows[..., queries, None]
    if sink is not None:
        check_segment(sink, name="sink", n_tokens=n_tokens)
        counted = counted & ~sink[..., None, :]
    sums = torch.where(counted, pattern, 0).sum(-2)
    return sums, counted.sum(-2).expand(sums.shape)


def received_attention(sums: PerColumn, counts: Counts, *, min_rows: int = 3) -> PerColumn:
    r"""Return the mean attention that each token receives from the tokens after it that see it, a probability.

    $r_j = S_j / n_j$ of `received_sums`, added up over blocks of rows. 0: nobody reads it; 1: everybody reads nothing else. It
    falls with position by itself (later rows have more keys): compare with `uniform_pattern`'s. NaN for tokens read by fewer
    than `min_rows` rows: the last one always, the sink, padding. Source: arXiv 2510.01032 p. 3, after Bogdan et al. 2025 (arXiv
    2506.19143). The paper takes all rows, leaves out the first token for Llama and Gemma, and says nothing about sliding
    windows: rows that cannot see a token do not count.

    >>> pattern = torch.tensor([[1.0, 0.0, 0.0], [0.6, 0.4, 0.0], [0.5, 0.3, 0.2]])
    >>> received_attention(*received_sums(pattern), min_rows=1)
    tensor([0.5500, 0.3000,    nan])
    """
    return torch.where(counts >= max(min_rows, 1), sums / counts.clamp(min=1), torch.nan)


def relative_received(received: PerColumn, uniform: PerColumn) -> PerColumn:
    r"""Return the attention received relative to what uniform attention would give, a ratio: rho.

    $\rho_j = r_j / r_j^{\text{unif}}$, on the same rows and options. 1: no preference; 0: never read. It does not fall with
    position.

    >>> relative_received(torch.tensor([0.5, 0.1]), torch.tensor([0.25, 0.1]))
    tensor([2., 1.])
    """
    return torch.where(uniform > 0, widened(received) / uniform, torch.nan)


def kurtosis(values: PerColumn) -> PerHead:
    r"""Return the excess kurtosis of the values on the last axis, NaN left out, a pure number.

    $\frac{\tfrac1n \sum_j (x_j - \bar x)^4}{(\tfrac1n \sum_j (x_j - \bar x)^2)^2} - 3$ (biased). Of a received-attention
    profile: "receiver-headness", large when a few tokens get the attention. NaN for constant values. Source: Bogdan et al.
    2025 (arXiv 2506.19143), of sentences.

    >>> kurtosis(torch.tensor([0.0, 0.0, 1.0, 1.0, float("nan")]))
    tensor(-2.)
    """
    values = widened(values)
    deviation = values - values.nanmean(-1, keepdim=True)
    variance = deviation.square().nanmean(-1)
    varied = values.nan_to_num(nan=-torch.inf).amax(-1) > values.nan_to_num(nan=torch.inf).amin(-1)
    return torch.where(varied, deviation.pow(4).nanmean(-1) / variance.square() - 3, torch.nan)


def sink_rate(alpha: PerColumn, tokens: Segment, *, threshold: float = 0.3) -> PerHead:
    r"""Return the share of `tokens` at which a head is a sink head, in [0, 1].

    $\frac{1}{|S|} \sum_{k \in S} [\alpha_k > \epsilon]$; its mean over prompts, layers and heads, of the first token alone, is
    the published sink rate. `alpha` is received attention with `diag=True` and `min_rows=1`. Source: Gu et al. 2024 (arXiv
    2410.10781), on prompts of 64 tokens.

    >>> sink_rate(torch.tensor([0.7, 0.35, 0.2]), torch.tensor([False, True, True]))
    tensor(0.5000)
    """
    is_sink = (alpha > threshold).to(widened(alpha).dtype)
    return segment_mean(torch.where(alpha.isnan(), torch.nan, is_sink), tokens)


def relative_norms(vectors: Vectors, *, others: Segment) -> PerColumn:
    r"""Return each token's norm over the median norm of `others`, a ratio.

    $\lVert x_j \rVert / \operatorname{med}_{k \in S} \lVert x_k \rVert$. Tens and more: a massive activation; near 0, of
    values: attention there moves nothing. `others` ($S$) leave out the span and the first token. NaN where there are none, or
    their median is 0. Source: Sun et al. 2024 (arXiv 2402.17762), who compare entries with the median.

    >>> x = torch.tensor([[30.0, 40.0], [3.0, 4.0], [0.0, 5.0], [0.0, 0.0]])
    >>> relative_norms(x, others=torch.tensor([False, True, True, False]))
    tensor([10.,  1.,  1.,  0.])
    """
    norms = widened(vectors).norm(dim=-1)
    usual = torch.where(others, norms, torch.nan).nanquantile(0.5, -1, keepdim=True)
    return torch.where(usual > 0, norms / usual, torch.nan)


def cosines_to_sink(vectors: Vectors, *, sink: Segment) -> PerColumn:
    r"""Return the cosine of each token's vector with that of the sink, one token, in [-1, 1].

    $x_j \cdot x_0 / (\lVert x_j \rVert \lVert x_0 \rVert)$. 1: where the first token's points, as secondary sinks (arXiv
    2512.22213) and long runs of one token (arXiv 2503.08908) do. NaN for a vector of zeros.

    >>> cosines_to_sink(torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 3.0]]), sink=torch.tensor([True, False, False]))
    tensor([1., 1., 0.])
    """
    x = widened(vectors)
    first = (x * sink[..., None]).sum(-2, keepdim=True)
    length = x.norm(dim=-1) * first.norm(dim=-1)
    return torch.where(length > 0, (x * first).sum(-1) / length, torch.nan)


def first_of(values: PerColumn, span: Segment) -> PerHead:
    """Return a per-token quantity at the first token of a span, in its own unit.

    >>> first_of(torch.tensor([1.0, 5.0, 2.0]), torch.tensor([False, True, True]))
    tensor(5.)
    """
    return segment_mean(values, span & (span.cumsum(-1) == 1))


def first_against_rest(values: PerColumn, span: Segment) -> Float[torch.Tensor, "*lead"]:
    r"""Return a per-token quantity at the first inserted token over its mean at the others, a ratio.

    $x_a / \operatorname{mean}_{j \in S, j > a} x_j$. 1: all are alike; far above: the first stands for the sink. NaN for a
    single token.

    >>> first_against_rest(torch.tensor([9.0, 6.0, 1.0, 3.0]), torch.tensor([False, True, True, True]))
    tensor(3.)
    """
    rest = segment_mean(values, span & (span.cumsum(-1) > 1))
    return torch.where(rest != 0, first_of(values, span) / rest, torch.nan)
