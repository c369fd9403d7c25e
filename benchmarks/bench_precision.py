"""Do sweeps in half precision rank the heads as float32 does, and does their own noise say where they cannot?

Weights are rounded to bfloat16 once, so that only the arithmetic differs. The unembedding is multiplied by a power of two
(which no precision rounds) until the largest logit where the outcome is read reaches `--logits`: small models have small
logits, and half precision rounds those of 16 to 32, a real model's, to an eighth in bfloat16. "demo" has its own
problems; any other model continues its own texts: drawn from it, the span inserted after a third of them, the answer is
the next token that it would say.

    OMP_NUM_THREADS=1 python benchmarks/bench_precision.py --model demo --backend bridge
"""

import argparse
import copy
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

import mless_interp as mi

TOP, WORDS, CONTINUED = 10, 48, 1
COLUMNS = ("dtype", "edit", "direction", "Pearson r", "top 10", "ranked", "top 10 of ranked", "noise", "error / noise", "s")


@dataclass(frozen=True)
class Held:
    """A model in memory, as `load_model` takes it."""

    name: str
    hf_model: Any
    tokenizer: Any


def rounded(source: str, scale: float) -> Held:
    """A model's float32 copy with weights that bfloat16 holds exactly, its unembedding untied and scaled."""
    from mless_interp.models.hugging_face import Placement, load_hugging_face
    from mless_interp.models.load import source_of

    made, tokenizer = load_hugging_face(source_of(source), Placement(torch.float32, "cpu"), trust_remote_code=False)
    config = copy.deepcopy(made.config)
    config.tie_word_embeddings = False
    untied = type(made)(config).eval()
    weights = {name: weight.bfloat16().float() for name, weight in made.state_dict().items()}
    untied.load_state_dict(weights | {"lm_head.weight": weights["lm_head.weight"] * scale})
    return Held(f"{source}, unembedding x {scale:g}", untied, tokenizer)


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
        base = mi.Prompt(tuple(ids), ("system",) * third + ("question",) * (len(ids) - third))
        inserted = mi.insert_tokens(base, third, span)
        answer = int(held.hf_model(torch.tensor([inserted.ids])).logits[0, -1].argmax())
        pair = mi.PromptPair(
            problem=mi.Problem(id=f"t{number}", question="its own text", answer="-"),
            base=base,
            inserted=inserted,
            insertion=mi.Insertion.meaningless("/", len(span)),
            span=(third, third + len(span)),
            alignment=tuple(t if t < third else t + len(span) for t in range(len(base))),
            span_source="unit",
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
    parser.add_argument("--problems", type=int, default=32)
    parser.add_argument("--logits", type=float, default=20.0, help="how large logits are to be (default 20)")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float16"])
    options = parser.parse_args()
    plain = rounded(options.model, 1.0)
    model = mi.load_model(plain, backend=options.backend)
    texts = pairs_of(options.model, plain, model, options.problems)
    scale = 2.0 ** max(0, int(np.ceil(np.log2(options.logits / largest_logit(model, texts)))))
    held = rounded(options.model, scale)
    models = {dtype: mi.load_model(held, backend=options.backend, dtype=dtype) for dtype in ("float32", *options.dtypes)}
    packages = ", ".join(
        f"{name} {version(name)}" for name in ("mless_interp", "torch", "transformers", "transformer-lens", "nnsight")
    )
    print(
        f"{packages}; {torch.get_num_threads()} threads, CPU, {options.backend}. {held.name}: largest logits "
        f"{largest_logit(models['float32'], texts):.1f}, {len(texts)} problems\n"
    )
    print(f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}", flush=True)
    import time

    for edit in ("z", "knockout"):
        for direction in ("denoising", "noising"):
            truth = None
            for dtype, each in models.items():
                began = time.perf_counter()
                found = mi.patch_heads(each, texts, edit=edit, direction=direction, progress=False)
                spent = time.perf_counter() - began
                values = found.per_head
                truth = values if truth is None else truth
                mean, exact = values.mean(0), truth.mean(0)
                table = found.summary()
                ranked = table["rank"].notna().to_numpy() if "rank" in table else np.ones(len(mean), dtype=bool)
                noise = table["noise"].to_numpy() if "noise" in table else np.full(len(mean), np.nan)
                kept = first(np.where(ranked, mean, 0.0), min(TOP, int(ranked.sum())))
                row = (
                    dtype,
                    edit,
                    direction,
                    f"{np.corrcoef(mean, exact)[0, 1]:.4f}",
                    len(first(mean) & first(exact)),
                    f"{int(ranked.sum())} of {len(mean)}",
                    f"{len(kept & first(exact))} of {len(kept)}",
                    f"{np.median(noise):.1e}",
                    f"{np.median(np.abs(values - truth).max(0) / noise):.2f}",
                    f"{spent:.1f}",
                )
                print(f"| {' | '.join(map(str, row))} |", flush=True)


if __name__ == "__main__":
    main()
