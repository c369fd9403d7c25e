"""What tests of formulas share: comparing with NaN, masks, seeded numbers, patterns, and the worked example of methods 13."""

import torch

NAN = float("nan")

A0 = torch.tensor([[1, 0, 0], [0.6, 0.4, 0], [0.5, 0.3, 0.2]], dtype=torch.float64)
"""The base prompt [P Q Q] of the worked example."""
A1 = torch.tensor(
    [
        [1, 0, 0, 0, 0],
        [0.7, 0.3, 0, 0, 0],
        [0.6, 0.2, 0.2, 0, 0],
        [0.48, 0.1, 0.1, 0.32, 0],
        [0.25, 0.25, 0.25, 0.15, 0.10],
    ],
    dtype=torch.float64,
)
"""The inserted prompt [P I I Q Q], positions held."""
SPAN = torch.tensor([False, True, True, False, False])
SINK = torch.tensor([True, False, False, False, False])
QUESTION = torch.tensor([False, False, False, True, True])


def same(actual: torch.Tensor, expected: list | float | torch.Tensor, **tolerance: float) -> None:
    torch.testing.assert_close(
        actual, torch.as_tensor(expected, dtype=actual.dtype).expand(actual.shape), equal_nan=True, **tolerance
    )


def mask(*positions: int, n: int) -> torch.Tensor:
    return torch.isin(torch.arange(n), torch.tensor(positions))


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def visible_keys(n: int, *, window: int | None = None, real: torch.Tensor | None = None) -> torch.Tensor:
    """`[*lead, dest, src]`: causal, inside the window, and neither is padding."""
    at = torch.arange(n)
    visible = (at <= at[:, None]) & (at[:, None] - at < (n if window is None else window))
    return visible if real is None else visible & real[..., :, None] & real[..., None, :]


def random_pattern(*lead: int, visible: torch.Tensor, seed: int = 0) -> torch.Tensor:
    scores = 3 * random(*lead, *visible.shape[-2:], seed=seed)
    return torch.where(visible, scores, -torch.inf).softmax(-1).nan_to_num()
