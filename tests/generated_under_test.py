"""Completions with the logits that their tokens were chosen from."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from mless_interp.answers import decoding, engines
from mless_interp.answers.decoding import Completion, Request
from mless_interp.answers.vllm import Vllm
from mless_interp.models.base import Model


def generate_completions(
    model: Model,
    requests: Iterable[Request],
    *,
    batch_size: int | None = None,
    engine: str | Vllm = "auto",
    on_finished: Callable[[dict[str, Completion]], None] = lambda _: None,
    **options: Any,
) -> dict[str, Completion]:
    """Every request checked and completed, by key."""
    asked, how, chosen = tuple(requests), decoding.decoding_for(model, **options), engines.engine_for(model, engine)
    decoding.check_requests(model, asked, how)
    chosen.check(model, how)
    return decoding.complete_all(model, asked, how, chosen, batch_size=batch_size, on_finished=on_finished)


def with_logits(model: Model, requests: Iterable[Request], **options: Any) -> dict[str, SimpleNamespace]:
    """`generate_completions`, each with the `logits` `[token, vocab]` that its tokens were chosen from."""
    kept: dict[str, list[Tensor]] = defaultdict(list)

    def keep(rows: list[decoding.Row], logits: Tensor) -> None:
        for row, values in zip(rows, logits, strict=True):
            if row.stop is None:
                kept[row.request.key].append(values.detach().float().cpu())

    with pytest.MonkeyPatch.context() as patch:
        for module in (decoding, engines):
            patch.setattr(module, "check_finite", keep)
        found = generate_completions(model, requests, **options)
    return {key: SimpleNamespace(**vars(each), logits=torch.stack(kept[key])) for key, each in found.items()}
