"""Greedy continuation with an intervention, one whole forward pass a token: what engines with a cache must equal."""

from collections import defaultdict
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from mless_interp.answers import decoding, engines
from mless_interp.answers.decoding import Request
from mless_interp.core.heads import Head
from mless_interp.models.base import Model
from mless_interp.models.info import Inputs
from mless_interp.patching.interventions import Intervention, run_edits


def generate(
    model: Model,
    inputs: Inputs,
    *,
    max_new_tokens: int,
    intervention: Intervention | None = None,
    heads: tuple[Head, ...] = (),
    span: Tensor | None = None,
    start: int = 0,
    stop_ids: tuple[int, ...] = (),
) -> Tensor:
    """New tokens `[batch, new]`; generated ones are never part of the span. The intervention acts at every step."""
    tokens = inputs.tokens.to(model.info.device)
    for _ in range(max_new_tokens):
        edits = {}
        if intervention is not None and span is not None:
            more = tokens.shape[1] - span.shape[-1]
            inside = torch.nn.functional.pad(span.view(1, -1), (0, more), value=False)
            edits = run_edits(model, Inputs(tokens), intervention, heads, span=inside, start=start)
        logits = model.run(tokens, edits=edits, logits_at="last").logits
        assert logits is not None
        tokens = torch.cat([tokens, logits[:, -1].argmax(-1, keepdim=True)], 1)
        if int(tokens[0, -1]) in stop_ids:
            break
    return tokens[:, inputs.n_tokens :]


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
