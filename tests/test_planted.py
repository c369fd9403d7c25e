"""Planted models: the planted heads, and no others, carry the span; checked by brute force on Hugging Face layers."""

import json
import random
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from mless_interp.heads import Head
from mless_interp.models.planted import PlantedModel, planted_model, planted_truth, random_planted
from mless_interp.models.planted_tokenizer import draw_vocabulary
from mless_interp.models.planted_weights import still_dimensions

CARRIES, NOTHING, NEARLY_NOTHING = 0.08, 0.02, 0.03


# ---------------------------------------------------------------------------------------------------------------------
# A slow, independent checker: one row of a batch per head, the layers from the edited one on, 4D float masks


@dataclass
class Prompt:
    """Token ids `[token]`, the span, the row whose next token is the answer, and the answer's id."""

    ids: list[int]
    span: slice
    reads_at: int
    answer: int


def encode(planted: PlantedModel, text: str) -> list[int]:
    return planted.tokenizer(text, add_special_tokens=False)["input_ids"]


def make_prompt(planted: PlantedModel, problem: dict, span: list[int]) -> Prompt:
    """System, span, question, answer prefix and answer, tokenised apart and joined."""
    system = encode(planted, problem["system"])
    head = system + span + encode(planted, problem["problem"]) + encode(planted, r" Answer : \boxed{")
    (answer,) = encode(planted, problem["answer"])
    return Prompt([*head, answer], slice(len(system), len(system) + len(span)), len(head) - 1, answer)


class Checker:
    """Outcomes (log-probability of the answer, nats) of one prompt under every intervention on every head."""

    def __init__(self, planted: PlantedModel, prompt: Prompt) -> None:
        self.model, self.prompt = planted.hf_model, prompt
        self.layers = self.model.model.layers
        self.n_heads = self.model.config.num_attention_heads
        n = len(prompt.ids)
        self.causal = torch.ones(n, n, dtype=torch.bool).tril()
        self.inserted = self.causal[None].expand(self.n_heads, n, n)  # C1 [head, dest, src], True = visible
        self.masked = self.inserted.clone()  # C3
        self.masked[:, prompt.span.stop :, prompt.span] = False
        self.question = slice(prompt.span.stop, n)

    def run(
        self, base: Tensor, *, start: int = 0, resid: Tensor | None = None, mask: Tensor | None = None, z=None
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Outcome [row], residuals [row, token, d_model] before and z [row, token, head x d] of each layer run.

        `base` [head, dest, src] is every layer's mask; `mask` [row, head, dest, src] or `z` (row, token, head x d)
        replaces that of layer `start`.
        """
        model = self.model
        h = model.model.embed_tokens(torch.tensor([self.prompt.ids])) if resid is None else resid
        position = model.model.rotary_emb(h, torch.arange(len(self.prompt.ids))[None])
        resids, zs = [], []
        for index in range(start, len(self.layers)):
            seen = base[None] if mask is None or index != start else mask
            additive = torch.zeros(seen.shape, dtype=h.dtype).masked_fill(~seen, torch.finfo(h.dtype).min)

            def edit(module, args, index=index):
                zs.append(args[0])
                return (z,) if z is not None and index == start else args

            hook = self.layers[index].self_attn.o_proj.register_forward_pre_hook(edit)
            resids.append(h)
            h = self.layers[index](h, attention_mask=additive, position_embeddings=position)
            hook.remove()
        logits = model.lm_head(model.model.norm(h[:, self.prompt.reads_at]))
        return logits.log_softmax(-1)[:, self.prompt.answer].double(), resids, zs

    @torch.no_grad()
    def effects(self) -> dict[str, Tensor]:
        """`total`, and per head [layer, head]: knockout, edge_noise, denoise, noise; all signed as removals in C1 or
        additions in C3 are (methods section 6: patched - receiving)."""
        y1, resid1, z1 = self.run(self.inserted)
        y3, resid3, z3 = self.run(self.masked)
        n, rows = len(self.prompt.ids), range(self.n_heads)
        found: dict[str, list[Tensor]] = {name: [] for name in ("knockout", "edge_noise", "denoise", "noise")}
        for layer in range(len(self.layers)):
            knocked = self.inserted.repeat(self.n_heads, 1, 1, 1)
            opened = self.masked.repeat(self.n_heads, 1, 1, 1)
            knocked[rows, rows], opened[rows, rows] = self.masked[0], self.causal
            patched1, patched3 = (z.view(1, n, self.n_heads, -1).repeat(self.n_heads, 1, 1, 1) for z in (z1[layer], z3[layer]))
            clean, corrupted = patched3.clone(), patched1.clone()
            for h in rows:
                patched1[h, self.question, h] = clean[h, self.question, h]
                patched3[h, self.question, h] = corrupted[h, self.question, h]
            many1, many3 = (r[layer].expand(self.n_heads, -1, -1) for r in (resid1, resid3))
            at = {"start": layer}
            found["knockout"].append(self.run(self.inserted, resid=many1, mask=knocked, **at)[0] - y1)
            found["edge_noise"].append(self.run(self.masked, resid=many3, mask=opened, **at)[0] - y3)
            found["denoise"].append(self.run(self.inserted, resid=many1, z=patched1.flatten(2), **at)[0] - y1)
            found["noise"].append(self.run(self.masked, resid=many3, z=patched3.flatten(2), **at)[0] - y3)
        return {"total": (y1 - y3)[0], "inserted": y1[0], "masked": y3[0]} | {k: torch.stack(v) for k, v in found.items()}


def mean_effects(planted: PlantedModel, *, n_tokens: int, n_problems: int = 3, span: list[int] | None = None) -> dict:
    """`Checker.effects`, averaged over problems; head effects as fractions of the total (removal and addition: > 0)."""
    unit = encode(planted, " /") * n_tokens if span is None else span
    cells = [Checker(planted, make_prompt(planted, p, unit)).effects() for p in planted.problems(n_problems, seed=7)]
    mean = {name: torch.stack([cell[name] for cell in cells]).mean(0) for name in cells[0]}
    fractions = {"knockout": -mean["knockout"], "edge_noise": mean["edge_noise"]}
    fractions |= {"denoise_upstream": mean["knockout"] - mean["denoise"], "noise_upstream": mean["noise"] - mean["edge_noise"]}
    return mean | {name: value / mean["total"] for name, value in fractions.items()}
