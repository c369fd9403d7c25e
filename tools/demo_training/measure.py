r"""What the demo model gets right, and what tokens inserted between system and question do to it.

Four runs of one problem, [system][span][question and answer]:

- `base` (C0): no span;
- `gap` (C2): no span, but the question stands at the positions that it would have after the span;
- `inserted` (C1): with the span;
- `masked` (C3): with the span, but only the span itself can attend to it.

$$ \text{content} = C1 - C3, \qquad \text{shift} = C2 - C0, \qquad \text{total} = C1 - C0 $$

C2 and C3 are equal but for rounding; `masked_against_gap` is the largest difference found.

`CRITERIA` were fixed before training: weights are bundled only if they meet every one.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import task
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

import mless_interp as mi

N_INSERTED = 55
N_EFFECTS = 64  # the first problems measure effects, the others accuracy
BATCH = 64
CONDITIONS = ("base", "gap", "inserted", "masked")
NUMBER = len(task.ANSWER)  # where the number stands among the answer's words
CRITERIA: dict[str, tuple[float, float]] = {
    "share right with nothing inserted": (0.95, 1.0),
    "share right with 55 slashes": (0.80, 0.95),
    "share right with 55 `he`": (0.97, 1.0),
    "share right with 55 random words": (0.97, 1.0),
    "sign test of the content effect of slashes, p": (0.0, 0.05),
    "share of problems with the median's sign": (0.90, 1.0),
    "share of all |effects| in the largest 5 % of problems": (0.0, 0.25),
}
"""What the weights are to do, as the smallest and the largest value allowed; whole answers, content effects."""


@dataclass(frozen=True)
class Answers:
    """The answer's words under teacher forcing `[p, w]`: log-probability in nats, and whether it is the argmax."""

    log_probs: Tensor
    right: Tensor

    @property
    def number_log_prob(self) -> Tensor:
        """Log-probability of the answer's number, in nats `[p]`."""
        return self.log_probs[:, NUMBER]

    @property
    def all_right(self) -> Tensor:
        """True where every word up to `<eos>` is the argmax, that is, where greedy decoding gives the answer `[p]`."""
        return self.right.all(dim=1)


def load(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """The stored weights in float32, and the tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    return model.eval(), PreTrainedTokenizerFast.from_pretrained(folder)


def read_problems(folder: Path) -> list[dict[str, Any]]:
    """The bundled held-out problems."""
    return [json.loads(line) for line in (folder / "problems.jsonl").read_text(encoding="utf-8").splitlines()]


@torch.inference_mode()
def answers(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    problems: Sequence[dict[str, Any]],
    *,
    spans: Sequence[str] | None = None,
    condition: str = "base",
) -> Answers:
    """Run every problem with its own span of words, all spans of one length, under one of the four conditions."""
    if condition not in CONDITIONS:
        raise ValueError(f"condition must be one of {CONDITIONS}; this one is {condition!r}")
    if (spans is None) != (condition == "base"):
        raise ValueError(f"condition {condition!r} needs {'no spans' if condition == 'base' else 'spans'}")
    chunks = []
    for start in range(0, len(problems), BATCH):
        chunk = slice(start, start + BATCH)
        chunks.append(_answers(model, tokenizer, problems[chunk], spans and spans[chunk], condition))
    return Answers(torch.cat([c.log_probs for c in chunks]), torch.cat([c.right for c in chunks]))


def _answers(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    problems: Sequence[dict[str, Any]],
    spans: Sequence[str] | None,
    condition: str,
) -> Answers:
    def encode(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    before = encode(task.SYSTEM)
    span_ids = [encode(span) for span in spans] if spans is not None else [[]] * len(problems)
    n_span = len(span_ids[0])
    if any(len(ids) != n_span for ids in span_ids):
        raise ValueError(f"all spans must have one length; these have {sorted({len(ids) for ids in span_ids})} tokens")
    endings = [encode(" ".join([*task.ANSWER, p["answer"], "}", task.EOS])) for p in problems]
    present = condition in ("inserted", "masked")
    rows = [
        [*before, *(span if present else []), *encode(p["problem"]), *ending]
        for p, span, ending in zip(problems, span_ids, endings, strict=True)
    ]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [tokenizer.pad_token_id] * (longest - len(row)) for row in rows])
    positions = torch.arange(longest)
    if condition == "gap":
        positions = torch.cat([positions[: len(before)], positions[len(before) :] + n_span])
    # Pads come last, so causality hides them. The mask must be there: without it, transformers takes the gap in the
    # position ids for the border of two packed sequences.
    mask = torch.ones_like(ids)
    if condition == "masked":
        in_span = (positions >= len(before)) & (positions < len(before) + n_span)
        visible = positions[:, None] >= positions[None, :]
        mask = (visible & ~(in_span[None, :] & ~in_span[:, None])).expand(len(rows), 1, -1, -1)
    hidden = model.model(
        input_ids=ids, attention_mask=mask, position_ids=positions.expand(len(rows), -1), use_cache=False
    ).last_hidden_state
    targets = torch.tensor(endings)
    n_words = targets.shape[1]
    first = torch.tensor([len(row) for row in rows])[:, None] - n_words - 1
    at = first + torch.arange(n_words)
    logits = model.lm_head(hidden[torch.arange(len(rows))[:, None], at])
    log_probs = logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    return Answers(log_probs, logits.argmax(-1) == targets)


def criteria(figures: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What `measure` found beside `CRITERIA`: per criterion the `value`, what is `allowed`, and whether it is `met`."""
    right = {name: figures["accuracy"][name]["whole_answer"] for name in ("none", "slashes", "he", "random_words")}
    content = figures["effects"]["slashes"]["content"]
    negative = content["n_negative"] / figures["effects"]["n"]
    same_sign = negative if content["median"] < 0 else 1 - negative
    values = [*right.values(), content["sign_test_p"], same_sign, content["share_of_largest_5_percent"]]
    return {
        name: {"value": value, "allowed": [low, high], "met": low <= value <= high}
        for (name, (low, high)), value in zip(CRITERIA.items(), values, strict=True)
    }


def fillers(n_problems: int) -> dict[str, list[str]]:
    """The spans to insert, one per problem: slashes, a repeated word, and other random words for every problem."""
    return {
        "slashes": [" ".join([task.SLASH] * N_INSERTED)] * n_problems,
        "he": [" ".join(["he"] * N_INSERTED)] * n_problems,
        "random_words": [task.random_words(N_INSERTED, random.Random(f"filler {i}")) for i in range(n_problems)],
    }


def measure(folder: Path) -> dict[str, Any]:
    """Accuracy on the last 500 bundled problems and effects of insertion on the first 64, from the stored weights."""
    model, tokenizer = load(folder)
    problems = read_problems(folder)
    figures = {
        "accuracy": _accuracy(model, tokenizer, problems[N_EFFECTS:]),
        "effects": _effects(model, tokenizer, problems[:N_EFFECTS]),
    }
    return {"criteria": criteria(figures), **figures}


def _accuracy(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, problems: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    spans = fillers(len(problems))
    runs = {"none": answers(model, tokenizer, problems)}
    runs["gap"] = answers(model, tokenizer, problems, spans=spans["slashes"], condition="gap")
    for name, texts in spans.items():
        runs[name] = answers(model, tokenizer, problems, spans=texts, condition="inserted")
    levels = torch.tensor([p["level"] for p in problems])
    figures: dict[str, Any] = {"n": len(problems), "n_inserted": N_INSERTED}
    for name, run in runs.items():
        right = run.all_right.double()
        figures[name] = {
            "whole_answer": round(right.mean().item(), 4),
            "number": round(run.right[:, NUMBER].double().mean().item(), 4),
            "number_log_prob": round(run.number_log_prob.double().mean().item(), 4),
            "whole_answer_by_level": {
                str(level): round(right[levels == level].mean().item(), 4) for level in levels.unique().tolist()
            },
        }
    return figures


def _effects(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, problems: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    base = answers(model, tokenizer, problems).number_log_prob
    figures: dict[str, Any] = {"n": len(problems), "n_inserted": N_INSERTED, "outcome": "log-prob of the number, nats"}
    for name, texts in fillers(len(problems)).items():
        gap, inserted, masked = (
            answers(model, tokenizer, problems, spans=texts, condition=condition).number_log_prob
            for condition in ("gap", "inserted", "masked")
        )
        figures[name] = {"masked_against_gap": (masked - gap).abs().max().item()}
        for effect, values in {"content": inserted - masked, "shift": gap - base, "total": inserted - base}.items():
            figures[name][effect] = {
                "mean": round(values.double().mean().item(), 6),
                "n_negative": int((values < 0).sum()),
            } | _over_problems(values.double())
    return figures


def _over_problems(effect: Tensor) -> dict[str, Any]:
    """What most problems show, and how much of it all the largest 5 % of them carry."""
    values = effect.numpy()
    middle = mi.statistics.median_interval(values)
    return {
        "median": round(float(middle.estimate), 6),
        "median_interval_95": [round(float(middle.low), 6), round(float(middle.high), 6)],
        "sign_test_p": float(mi.statistics.sign_test(values)),
        "share_of_largest_5_percent": round(mi.statistics.concentration(values).share, 4),
    }
