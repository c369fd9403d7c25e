"""Outcomes from logits at the positions that an outcome reads, and how fast growing circuits restore one."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..core.shapes import Logits, PerHead
from .patterns import widened

PerRun = Float[Tensor, " batch"]


def _log_probabilities(logits: Tensor) -> Tensor:
    return torch.log_softmax(logits if logits.dtype == torch.float64 else logits.float(), -1)


def answer_logprob(logits: Logits, answer: Int[Tensor, " read"]) -> PerRun:
    r"""Sum of the answer tokens' teacher-forced log-probabilities, in nats.

    $$ Y = \sum_k \ln p(a_k \mid \text{prompt}, a_{<k}) $$

    0 means that the model is certain of the answer; more negative is less likely. `logits[:, k]` are those of the position that
    predicts answer token `k`. Source: methods §7 (`Y_lp`).

    >>> answer_logprob(torch.tensor([[[0.0, 0.0]]]), torch.tensor([1])).exp()
    tensor([0.5000])
    """
    there = answer.to(logits.device, non_blocking=logits.device.type != "cpu")
    picked = _log_probabilities(logits).gather(-1, there.expand(logits.shape[:2])[..., None])
    return picked[..., 0].sum(-1)


def mean_logprob(logits: Logits, answer: Int[Tensor, " read"]) -> PerRun:
    r"""Mean over tokens of the teacher-forced log-probability, in nats per token; for solutions of unequal length. Source:
    methods §7 (`solution_logprob`).

    >>> mean_logprob(torch.zeros(1, 3, 4), torch.tensor([0, 1, 2])).exp()
    tensor([0.2500])
    """
    return answer_logprob(logits, answer) / answer.shape[0]


def answer_probability(logits: Logits, answer: Int[Tensor, " read"]) -> PerRun:
    r"""Geometric mean of the answer tokens' teacher-forced probabilities: a bounded outcome.

    $$ Y = \exp\Big(\frac{1}{K} \sum_k \ln p(a_k \mid \text{prompt}, a_{<k})\Big) $$

    1 means that the model is certain of the answer, 0 that it excludes it. A single problem can move it by 1 at most, where a
    log-probability can fall without end. Source: methods §9 (`answer_prob`).

    >>> answer_probability(torch.zeros(1, 2, 4), torch.tensor([0, 1]))
    tensor([0.2500])
    """
    return mean_logprob(logits, answer).exp()


def logit_difference(logits: Logits, right: int, wrong: int) -> PerRun:
    r"""Logit of the right token minus that of a wrong one, at the last position read, in logits.

    $$ Y = \ell_{\text{right}} - \ell_{\text{wrong}} $$

    0 means that both are as likely; positive favours the right one. Source: Heimersheim & Nanda (2404.15255); methods §7
    (`Y_ld`).

    >>> logit_difference(torch.tensor([[[1.0, 3.0]]]), 1, 0)
    tensor([2.])
    """
    last = logits[:, -1] if logits.dtype == torch.float64 else logits[:, -1].float()
    return last[:, right] - last[:, wrong]


def kl_divergence(logits: Logits, reference: Logits) -> PerRun:
    r"""Mean over positions of KL(reference || run), in nats per position.

    $$ Y = \frac{1}{|R|} \sum_{t \in R} \sum_w p_{\text{ref}}(w) \ln \frac{p_{\text{ref}}(w)}{p_{\text{run}}(w)} $$

    0 means the same predictions. With the clean run as reference, a patch that brings the value down brings the run towards the
    clean one. Source: methods §7 (`Y_kl`).

    >>> kl_divergence(torch.zeros(1, 2, 3), torch.zeros(1, 2, 3))
    tensor([0.])
    """
    run, ref = _log_probabilities(logits), _log_probabilities(reference)
    return (ref.exp() * (ref - run)).sum(-1).mean(-1)


def circuit_performance(fractions: Float[Tensor, " size"], faithfulness: Float[Tensor, "*lead size"]) -> PerHead:
    r"""Area under the faithfulness curve of growing circuits: CPR, higher is better.

    $$ \mathrm{CPR} = \int_0^1 f(k)\, dk $$

    1: the first heads restore everything; above 1: they overshoot. It rewards heads that push the effect up. By the trapezoid
    rule over the given fractions of heads, linear in the fraction. Source: MIB, Mueller et al. 2025 (arXiv 2504.13151).

    >>> circuit_performance(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0]))
    tensor(0.5000)
    """
    _check_fractions(fractions)
    return torch.trapezoid(widened(faithfulness), fractions, dim=-1)


def circuit_distance(fractions: Float[Tensor, " size"], faithfulness: Float[Tensor, "*lead size"]) -> PerHead:
    r"""Area between the faithfulness curve of growing circuits and 1: CMD, lower is better.

    $$ \mathrm{CMD} = \int_0^1 |1 - f(k)|\, dk $$

    0: every circuit behaves like the whole model. It counts heads of both signs. Source: MIB, Mueller et al. 2025 (arXiv
    2504.13151).

    >>> circuit_distance(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0]))
    tensor(0.5000)
    """
    _check_fractions(fractions)
    return torch.trapezoid((1 - widened(faithfulness)).abs(), fractions, dim=-1)


def _check_fractions(fractions: Tensor) -> None:
    if len(fractions) < 2 or (fractions.diff() <= 0).any():
        raise ValueError(
            f"fractions must be at least two strictly increasing sizes, got {fractions.tolist()}; small fractions of "
            "few heads round to the same number of heads: drop the duplicates"
        )
