# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 8 · A published circuit: palindromes
#
# **The question.** Other people trained a small model and published its circuit. Do we find the same circuit without using
# their answer?
#
# The model is a monthly problem of [ARENA](https://github.com/callummcdougall/ARENA_2.0) (July 2023): two layers of two
# attention heads, no MLPs. The model reads ten numbers and then ten more, and says whether the second ten mirror the first.
# Its authors published that head L0H0 looks from a number of the second half to its mirror image in the first, and that
# L1H0 collects L0H0's findings at the last token. The other two heads matter little.
#
# The weights are not part of this project. Download `palindrome_classifier.pt` from
# `chapter1_transformers/exercises/monthly_algorithmic_problems/july23_palindromes` of that repository and write it as a
# folder that `load_model` reads: the config's fields and the weights, no code.

# %% tags=["skip-execution"]
import json
from pathlib import Path

import torch
from safetensors.torch import save_file

config = {"n_layers": 2, "n_heads": 2, "d_model": 28, "d_head": 14, "n_ctx": 22, "d_vocab": 33, "d_vocab_out": 2}
config |= {"attn_only": True, "normalization_type": "LN", "act_fn": "relu"}
state = torch.load("palindrome_classifier.pt", weights_only=True, map_location="cpu")
state = {name: each.contiguous() for name, each in state.items() if not name.endswith(("mask", "IGNORE"))}
Path("palindromes").mkdir()
Path("palindromes/config.json").write_text(json.dumps(config))
save_file(state, "palindromes/model.safetensors")

# %%
import os

import numpy as np

import mless_interp as mi

FOLDER = os.environ.get("PALINDROMES", "palindromes")
hooked = mi.load_model(FOLDER).underlying
model = mi.wrap_model(hooked, name="palindromes")
model

# %% [markdown]
# ## Prompts without text
#
# This model has no tokenizer: it reads token ids and gives two classes (1 = palindrome). `pairs_from_ids` makes pairs of
# ids. Each pair contains a palindrome and a *clean* prompt of the same length, in which some numbers of the second half
# have other values, as in the training data. Token 31 comes first and 32 last; the model answers at the last token.

# %%
random, n = np.random.default_rng(0), 192
half = random.integers(0, 31, (n, 10))
palindromes = np.concatenate([np.full((n, 1), 31), half, half[:, ::-1], np.full((n, 1), 32)], 1)
broken = palindromes.copy()
changed = random.random((n, 10)) < 0.5
changed[~changed.any(1), 0] = True
broken[:, 11:21] = np.where(changed, (broken[:, 11:21] + random.integers(1, 31, (n, 10))) % 31, broken[:, 11:21])

pairs = mi.pairs_from_ids(palindromes, [1] * n, clean=broken, distractors=[0] * n)
print(palindromes[0])
print(broken[0])

# %% [markdown]
# ## Which heads?
#
# The contrast `replaced` compares the two prompts of a pair. `locate_heads` exchanges the output of one head at a time
# between the two runs, in both directions. A head is named if the exchange moves the answer in most problems, and the
# named heads are tested again on fresh problems.

# %%
found = mi.locate_heads(model, pairs[:64], confirm=pairs[64:128], contrast="replaced", controls=False, progress=False)
mi.views.head_map(found)

# %%
assert sorted(map(str, found.confirmed)) == ["L0H0", "L1H0"]
print(found)

# %% [markdown]
# ## Which head acts on which, and through which input?
#
# An edge shows one head's change to one other head only, through its queries (`q`), keys (`k`), values (`v`), or several
# of them at once. A hard case shows the mechanism: in the clean prompt a single number has another value. Training rarely
# contained that case, and the model overlooks it in about two of ten problems, so we take more problems.

# %%
one = palindromes.copy()
place = 11 + np.arange(n) % 10
one[np.arange(n), place] = (one[np.arange(n), place] + random.integers(1, 31, n)) % 31
single = mi.pairs_from_ids(palindromes, [1] * n, clean=one, distractors=[0] * n)

inputs = ("q", "k", "v", "qk", "qv", "kv", "qkv")
options = {"contrast": "replaced", "outcome": "logit_diff", "inputs": inputs, "progress": False}
edges = mi.trace_paths(model, single, model.info.heads, **options)
mi.views.path_graph(edges)

# %%
print("\n".join(edges.together_words()))
edges.summary().query("sender == 'L0H0' and receiver == 'L1H0'")[["part", "k", "n", "share"]].round(3)

# %% [markdown]
# This is an AND. L0H0 marks a number of the second half whose mirror image differs. L1H0 finds the marked number by its
# keys *and* carries the mark to the last token by its values. Keys or values by themselves do next to nothing in most
# problems, both together do everything: a test of single inputs would have missed the edge. (The authors wrote "through K,
# and possibly V".)
#
# ## In the other direction
#
# Now begin with the broken prompt and put the palindrome's activations in. A mismatch stays hidden if L1H0 does not find
# the marked number, or finds no mark to carry: AND becomes OR.

# %%
noising = mi.trace_paths(model, single, model.info.heads, direction="noising", **options)
print("\n".join(noising.together_words()))
noising.summary().query("sender == 'L0H0' and receiver == 'L1H0'")[["part", "k", "n", "share"]].round(3)

# %% [markdown]
# ## Through which tokens?
#
# One problem in detail: where the second half differs from the mirrored first, and where L1H0 looks from the last token.

# %%
clean = model.run(pairs[64].condition("clean"), capture={"blocks.1.attn.hook_pattern": None})
looks = clean.captured["blocks.1.attn.hook_pattern"][0, 0, -1]
differs = np.flatnonzero(broken[64] != palindromes[64])
for at in looks.argsort(descending=True)[:5].tolist():
    print(f"token {at:2}: attention {looks[at]:.2f}{'  a mismatch' if at in differs else ''}")

# %% [markdown]
# ## How much of the model is this?
#
# At first all heads write their output of the clean prompt; then L0H0 and L1H0, then the others write their output of the
# palindrome's run. The two alone bring back about three quarters of the mean effect, the other two heads the rest.

# %%
curve = mi.circuit_curve(
    model, pairs[64:128], ["L0H0", "L1H0"], contrast="replaced", chosen_elsewhere=True, progress=False
)
mi.views.circuit_curve(curve)

# %% [markdown]
# ## What to conclude, and what not
#
# - Two heads and one edge between them carry the decision, as published; nothing about the circuit was given to the toolkit.
# - The edge acts by keys and values together. Edges by single inputs are not enough where a circuit is an AND.
# - Needed and sufficient are two questions: an AND under removal is an OR under addition.
# - These results are about pairs drawn like these. If many numbers differ, values carry a part by themselves, because
#   L1H0 then attends to some of them even without its keys; the documentation's page *Published circuits* has that case
#   and other models.
# - A head's output matters; how the head computes this output is another question. The attention above is one example.
