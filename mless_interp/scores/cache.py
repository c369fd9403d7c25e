"""`score_cache`: the same metrics from an `ActivationCache` that somebody already has, without a model."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from ..core.arguments import checked
from ..core.heads import Head
from ..metrics.patterns import RowChoice
from ..models.arithmetic import visibility
from ..prompts.pairs import PromptPair
from ..prompts.prompt import Prompt
from ..runtime.results import Found, put, stacked
from .catalogue import Profile, chosen_metrics, metric_named
from .evaluation import layer_values, plan_for
from .layout import Layout, Thresholds, pair_layout, prompt_layout
from .scored import HeadScores
from .streaming import pattern_blocks, reduce_blocks, uniform_blocks

_PATTERN = re.compile(r"^blocks\.(\d+)\.attn\.hook_pattern$")


@checked
def score_cache(
    cache: Mapping[str, Tensor] | Any,
    prompt: PromptPair | Prompt,
    *,
    base: Mapping[str, Tensor] | Any = None,
    metrics: str | Iterable[str] | None = None,
    rows: RowChoice = "shared",
    exclude_sink: bool = True,
    renorm: bool = False,
    windows: Sequence[int | None] | None = None,
    sinks: bool = False,
    item: int | None = None,
    thresholds: Thresholds | None = None,
) -> HeadScores:
    """Attention metrics of one prompt from the patterns of a TransformerLens `ActivationCache` or a dict like it.

    Parameters
    ----------
    cache : of a HookedTransformer or a bridge; layers without a pattern are left out.
    prompt : the `PromptPair` whose prompt (with or without insertion, told by its length) was run, or one `Prompt`.
    base : the cache of the pair's prompt without insertion; with it there are paired metrics too.
    windows : the sliding window of each layer in tokens, None where it has none; not needed without windows.
    sinks : whether the model's heads have learned sinks (GPT-OSS), so that rows sum to less than 1 and the sink has the rest.
    item : which prompt of a batch; needed if the cache holds several.

    The rest is as in `score_heads`. Metrics that need more than patterns (values, queries and keys) are refused; rows
    that do not sum to 1 and caches without patterns raise `ValueError`.
    """
    names = _pattern_metrics(metrics)
    thresholds = thresholds or Thresholds()
    patterns = _patterns(cache, item)
    length = next(iter(patterns.values())).shape[-1]
    condition, layout = _layout(prompt, length, rows)
    caches: dict[str, tuple[dict[int, Tensor], Layout]] = {}
    if base is not None:
        if not isinstance(prompt, PromptPair) or condition == "base":
            raise ValueError(
                "base= is the cache of a pair's prompt without insertion: give the PromptPair and the other cache"
            )
        other = _patterns(base, item)
        n_other = next(iter(other.values())).shape[-1]
        if n_other != len(prompt.base):
            raise ValueError(f"base= holds a prompt of {n_other} tokens, the pair's base prompt has {len(prompt.base)}")
        caches["base"] = other, pair_layout(prompt, "base", rows=rows)
    caches[condition] = patterns, layout
    n_layers = max(max(found) for found, _ in caches.values()) + 1
    n_heads = next(iter(patterns.values())).shape[0]
    if windows is not None and len(windows) < n_layers:
        raise ValueError(f"windows must name every layer: {n_layers} layers, got {len(windows)}")
    values: Found = {}
    null: Found = {}
    profiles: dict[int, tuple[Profile, Profile]] = {}
    for name, (found, where) in caches.items():
        first = name == next(iter(caches))
        plan = plan_for(
            names, span=where.span is not None, other=not first, values=False, exclude_sink=exclude_sink, renorm=renorm
        )
        for layer, pattern in found.items():
            window = None if windows is None else windows[layer]
            visible = visibility(where.n_tokens, window=window, device=pattern.device)[0]
            reduced = reduce_blocks(pattern_blocks(pattern, visible, n_extra=int(sinks)), where, plan)
            even = uniform_blocks(visible, pattern.float().dtype, n_extra=int(sinks))
            uniform = reduce_blocks(even, where, plan.of_uniform())
            compared = None if first else profiles.get(layer)
            made, nulls, profiles[layer] = layer_values(names, reduced, uniform, where, thresholds, compared)
            for metric, heads in made.items():
                put(values, metric, name, layer, heads.double().numpy(), shape=(n_layers, n_heads))
            for metric, one in nulls.items():
                put(null, metric, name, layer, float(one[0]), shape=n_layers)
    return HeadScores(
        problem_ids=(prompt.id if isinstance(prompt, PromptPair) else "prompt",),
        conditions=tuple(caches),
        heads=tuple(Head(layer, head) for layer in sorted(patterns) for head in range(n_heads)),
        values=stacked([values]),
        null=stacked([null]),
        settings={
            "rows": rows,
            "exclude_sink": exclude_sink,
            "renorm": renorm,
            "sinks": sinks,
            "thresholds": vars(thresholds),
            "insertion": prompt.insertion.label if isinstance(prompt, PromptPair) else "one prompt",
        },
    )


def _pattern_metrics(metrics: str | Iterable[str] | None) -> tuple[str, ...]:
    names = chosen_metrics(metrics)
    beyond = [name for name in names if not metric_named(name).of_patterns]
    if beyond and metrics != "all":
        raise ValueError(
            f"{beyond[0]} needs more than patterns (values, or queries and keys): use score_heads with the model"
        )
    return tuple(name for name in names if name not in beyond)


def _layout(prompt: PromptPair | Prompt, length: int, rows: RowChoice) -> tuple[str, Layout]:
    """(condition, layout) of the prompt that the cache holds."""
    if isinstance(prompt, Prompt):
        if length != len(prompt):
            raise ValueError(
                f"the cache holds {length} tokens, the prompt has {len(prompt)}; was a token added in front?"
            )
        return "inserted" if prompt.indices("inserted") else "base", prompt_layout(prompt, rows=rows)
    if length not in (len(prompt.inserted), len(prompt.base)):
        raise ValueError(
            f"the cache holds {length} tokens, but the pair's prompts have {len(prompt.base)} (base) and "
            f"{len(prompt.inserted)} (inserted): run the model on `pair.inserted.tokens` or `pair.base.tokens` "
            "(prepend_bos=False)"
        )
    condition = "inserted" if length == len(prompt.inserted) else "base"
    return condition, pair_layout(prompt, condition, rows=rows)


def _patterns(cache: Any, item: int | None) -> dict[int, Tensor]:
    """layer -> pattern `[head, token, token]` of one prompt."""
    layers = sorted(int(match[1]) for name in cache.keys() if (match := _PATTERN.match(str(name))))  # noqa: SIM118
    if not layers:
        raise ValueError(
            "this cache holds no attention patterns (blocks.{layer}.attn.hook_pattern): run_with_cache without a "
            'filter, or with names_filter=lambda name: name.endswith("hook_pattern"); fused attention never makes one'
        )
    found: dict[int, Tensor] = {}
    for layer in layers:
        pattern = cache[f"blocks.{layer}.attn.hook_pattern"]
        if pattern.ndim == 4:
            if item is None and len(pattern) > 1:
                raise ValueError(f"the cache holds {len(pattern)} prompts: say which one with item=")
            if not -len(pattern) <= (item or 0) < len(pattern):
                raise ValueError(f"item {item} is out of range: the cache holds {len(pattern)} prompts")
            pattern = pattern[item or 0]
        found[layer] = pattern.detach()
    return found
