"""Completions with the logits that their tokens were chosen from."""

from collections import defaultdict
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from mless_interp.answers import decoding, engines
from mless_interp.answers.decoding import Request
from mless_interp.models.base import Model


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
        found = engines.generate_completions(model, requests, **options)
    return {key: SimpleNamespace(**vars(each), logits=torch.stack(kept[key])) for key, each in found.items()}
