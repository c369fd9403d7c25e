"""Do sweeps in half precision rank the heads as float32 does, and does their own noise say where they cannot?

Weights are rounded to bfloat16 once, so that only the arithmetic differs. Small models have small logits; a real model's
are of 16 to 32, which bfloat16 rounds to an eighth. So the unembedding is changed until logits where the outcome is read
reach `--logits`: by "shift" one direction (the mean normed stream there) is added to all of its rows, which adds the same
to all logits of a position and leaves every probability as it was; by "scale" it is multiplied by a power of two, which
sharpens all probabilities. "demo" has its own
problems; any other model continues its own texts: drawn from it, the span inserted after a third of them, the answer is
the next token that it would say.

"ranked" counts the heads above the sweep's noise, "error / noise" is the 95th percentile over heads of what half precision
does to their mean effects, as a share of it.

    OMP_NUM_THREADS=1 python benchmarks/bench_precision.py --model demo --backend bridge
"""

import argparse
import copy
import math
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

import mless_interp as mi

TOP, WORDS = 10, 48
COLUMNS = ("dtype", "edit", "direction", "Pearson r", "top 10", "ranked", "top 10 of ranked", "noise", "error / noise")


@dataclass(frozen=True)
class Held:
    """A model in memory, as `load_model` takes it."""

    name: str
    hf_model: Any
    tokenizer: Any


def rounded(source: str, *, scale: float = 1.0, along: torch.Tensor | None = None) -> Held:
    """A model's float32 copy with weights that bfloat16 holds exactly; its unembedding untied, scaled and shifted."""

    made, tokenizer = mi.models.hugging_face.load_hugging_face(
        mi.models.load.source_of(source), mi.models.load_options.Loading(device="cpu")
    )
    config = copy.deepcopy(made.config)
    config.tie_word_embeddings = False
    untied = type(made)(config).eval()
    weights = made.state_dict()
    last = weights["lm_head.weight"] * scale
    weights["lm_head.weight"] = last if along is None else last + along
    untied.load_state_dict({name: weight.bfloat16().float() for name, weight in weights.items()})
    return Held(source, untied, tokenizer)


def enlarged(source: str, model: mi.Model, pairs: Any, *, by: str, logits: float) -> Held:
    """The model with logits of this size where the outcome is read."""
    if by == "scale":
        return rounded(source, scale=2.0 ** max(0, math.ceil(math.log2(logits / largest_logit(model, pairs)))))
    streams = []
    norm = mi.models.architectures.unwrapped(mi.models.architectures.decoder_of(model.hf_model).norm)
    handle = norm.register_forward_hook(lambda module, given, made: streams.append(made[0, -1].detach()))
    try:
        largest_logit(model, pairs)
    finally:
        handle.remove()
    mean = torch.stack(streams).mean(0)
    return rounded(source, along=logits * mean / (mean @ mean))


@torch.no_grad()
def own_texts(held: Held, count: int) -> list[mi.PromptPair]:
    """Pairs of texts that the model drew itself; 21 tokens of a repeated one are inserted after their first third."""
    pairs = []
    bos = held.tokenizer.bos_token_id
    span = tuple(held.tokenizer.encode("/", add_special_tokens=False)[-1:]) * 21
    for number in range(count):
        torch.manual_seed(number)
        start = torch.tensor([[bos]])
        ids = held.hf_model.generate(start, do_sample=True, min_new_tokens=WORDS, max_new_tokens=WORDS)[0].tolist()
        third = len(ids) // 3
        base = mi.prompts.Prompt(tuple(ids), ("system",) * third + ("question",) * (len(ids) - third))
        inserted = mi.prompts.insert_tokens(base, third, span)
        answer = int(held.hf_model(torch.tensor([inserted.ids])).logits[0, -1].argmax())
        pair = mi.PromptPair(
            problem=mi.Problem(id=f"t{number}", question="its own text", answer="-"),
            base=base,
            inserted=inserted,
            insertion=mi.Insertion.meaningless("/", len(span)),
        )
        pairs.append(replace(pair, answer_ids=(answer,)))
    return pairs


def pairs_of(source: str, held: Held, model: mi.Model, count: int) -> Any:
    """The problems of a model."""
    if source == "demo":
        return mi.make_pairs(model, mi.load_problems("demo", limit=count), mi.Insertion.meaningless(" /", 55))
    return own_texts(held, count)


def largest_logit(model: mi.Model, pairs: Any) -> float:
    """Median over problems of the largest |logit| at the last position of the inserted prompt."""
    found = [model.run(pair.condition("inserted"), logits_at="last").logits.abs().max() for pair in pairs]
    return float(torch.stack(found).median())


def first(values: np.ndarray, k: int = TOP) -> set[int]:
    """The cells of the k largest magnitudes."""
    return set(np.argsort(-np.abs(values), kind="stable")[:k].tolist())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo", help="a model (default demo)")
    parser.add_argument("--backend", default="bridge")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--problems", type=int, default=32)
    parser.add_argument("--logits", type=float, default=25.0, help="how large logits are to be (default 25)")
    parser.add_argument("--by", choices=("shift", "scale"), default="shift", help="how they become so large")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float16"])
    options = parser.parse_args()
    plain = rounded(options.model)
    model = mi.load_model(plain, backend="bridge", device="cpu")
    texts = pairs_of(options.model, plain, model, options.problems)
    held = enlarged(options.model, model, texts, by=options.by, logits=options.logits)
    how: dict[str, Any] = {"backend": options.backend, "device": options.device, "tf32": False}
    models = {dtype: mi.load_model(held, dtype=dtype, **how) for dtype in ("float32", *options.dtypes)}
    packages = ", ".join(
        f"{name} {version(name)}" for name in ("mless_interp", "torch", "transformers", "transformer-lens", "nnsight")
    )
    print(
        f"{packages}; {torch.get_num_threads()} threads, {options.device}, {options.backend}. {held.name}, by {options.by}: "
        f"largest logits {largest_logit(models['float32'], texts):.1f}, {len(texts)} problems\n"
    )
    print(f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}", flush=True)
    for edit in ("z", "knockout"):
        for direction in ("denoising", "noising"):
            truth = None
            for dtype, each in models.items():
                found = mi.patch_heads(each, texts, edit=edit, direction=direction, progress=False)
                values = found.per_head
                truth = values if truth is None else truth
                mean, exact = values.mean(0), truth.mean(0)
                table = found.table()
                ranked = table["rank"].notna().to_numpy()
                kept = first(np.where(ranked, mean, 0.0), min(TOP, int(ranked.sum())))
                row = (
                    dtype,
                    edit,
                    direction,
                    f"{np.corrcoef(mean, exact)[0, 1]:.4f}",
                    len(first(mean) & first(exact)),
                    f"{int(ranked.sum())} of {len(mean)}",
                    f"{len(kept & first(exact))} of {len(kept)}",
                    f"{found.noise_floor:.1e}",
                    f"{np.quantile(np.abs(mean - exact), 0.95) / found.noise_floor:.2f}",
                )
                print(f"| {' | '.join(map(str, row))} |", flush=True)


if __name__ == "__main__":
    main()
