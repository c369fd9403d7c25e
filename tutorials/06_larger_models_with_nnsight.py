# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 6 · Larger models with nnsight
#
# **The question.** The paper's models have 7 billion parameters and 784 heads. What changes when the model no longer
# fits into a notebook's patience? Three things: attention patterns no longer fit into memory, a sweep takes hours and
# must survive an interruption, and the model may lie on several devices or on somebody else's. This chapter shows
# each, on a small model, with the cells for a large one beside them. Cells marked *not executed here* need weights or
# a network that this notebook does not assume.
#
# ## Several devices, half precision, fused attention
#
# ```python
# model = mi.load_model(
#     "Qwen/Qwen2.5-Math-7B",         # needs the network once, or a local directory
#     backend="nnsight",
#     device_map="auto",              # spread over the devices at hand
#     dtype="bfloat16",
#     attn_implementation="sdpa",     # fused attention: fast and lean, and it never makes a pattern
# )
# ```
#
# For layer-0 identities use `float32`: bfloat16 has three significant digits. Here the same call, for the demo model.

# %%
import tempfile
from pathlib import Path

import mless_interp as mi

model = mi.load_model("demo", backend="nnsight", attn_implementation="sdpa")
problems = mi.load_problems("demo", limit=8)
pairs = mi.make_pairs(model, problems, mi.Insertion.meaningless(" /", n_tokens=55))
model

# %% [markdown]
# ## No pattern, and still every attention metric
#
# Fused attention never makes a pattern, and asking for one is an error that says so. The metrics do not need it kept:
# the scores of one layer are rebuilt from its rotated queries and keys, in blocks of rows, reduced to numbers per
# head, and dropped before the next layer runs. Memory grows with layers × heads × tokens and not with tokens².

# %%
try:
    model.run(pairs[0].inserted.tokens, capture={"blocks.0.attn.hook_pattern": None})
except mi.ModelError as error:
    print(error)

lean = mi.score_heads(model, pairs, metrics=["span_mass", "entropy"], progress=False)
eager = mi.load_model("demo", backend="nnsight", attn_implementation="eager")
whole = mi.score_heads(eager, pairs, metrics=["span_mass", "entropy"], progress=False)
for metric in ("span_mass", "entropy"):
    print(
        f"{metric}: largest difference between fused and eager {abs(lean.mean(metric) - whole.mean(metric)).max():.1e}"
    )

# %%
import numpy as np

seven_b = {"layers": 28, "heads": 28, "tokens": 1000}
pattern = seven_b["layers"] * seven_b["heads"] * seven_b["tokens"] ** 2 * 4
kept = seven_b["layers"] * seven_b["heads"] * seven_b["tokens"] * 4
print(f"7B shape, {seven_b['tokens']} tokens, per prompt:")
print(f"all patterns {pattern / 1e9:.1f} GB, what is kept of them {kept / 1e6:.1f} MB")

# %% [markdown]
# ## How much work is a sweep?
#
# A head patch at the question's positions leaves earlier layers, earlier tokens and the other heads as they are, so a
# sweep of all heads is worth about *heads per layer × (layers + 1) / 2 × question tokens / all tokens* passes through
# the model, not one pass per head.


# %%
def passes(layers, heads, question, tokens):
    return heads * (layers + 1) / 2 * question / tokens


for name, layers, heads in (("demo", 4, 28), ("Qwen2.5-0.5B", 24, 14), ("Qwen2.5-Math-7B", 28, 28)):
    print(
        f"{name:16s} {layers * heads:4d} heads: a sweep = {passes(layers, heads, 42, 115):.0f} forward passes a problem"
    )

# %% [markdown]
# `locate_heads` needs four sweeps. It times a small sample first, and where the estimate exceeds `budget_seconds` it
# screens with gradients on one half of the problems and tests the best heads exactly on the other half. The result
# says which it did.
#
# ## A run that survives
#
# Every finished problem is written to disk at once. Kill the run at any moment, start it again with the same
# settings, and it goes on; with other settings it refuses and says what differs. Let us interrupt one.

# %%
folder = Path(tempfile.mkdtemp())
file = folder / "sweep.jsonl"
whole_run = mi.patch_heads(model, pairs, checkpoint=file, progress=False)
lines = file.read_text().splitlines(keepends=True)
file.write_text("".join(lines[: len(lines) // 2]) + lines[len(lines) // 2][:40])  # killed in the middle of a line
resumed = mi.patch_heads(model, pairs, checkpoint=file, progress=False)
print("same numbers after the interruption:", np.array_equal(whole_run.patched, resumed.patched))
try:
    mi.patch_heads(model, pairs, checkpoint=file, direction="noising", progress=False)
except ValueError as error:
    print(str(error).replace(str(folder), "..."))

# %% [markdown]
# Memory that runs out halves the batch and goes on; `max_rows` sets it by hand.
#
# ## Saving with provenance

# %%
mi.save(folder / "result", whole_run)
again = mi.load(folder / "result")
print(sorted(path.name for path in (folder / "result").iterdir()))
print(again["PatchScores"].to_frame().head(3).round(4).to_string(index=False))
print(sorted(again["provenance"]), again["provenance"]["versions"]["torch"])

# %% [markdown]
# ## Somebody else's machine: NDIF
#
# nnsight can run the same model on the National Deep Inference Fabric. The two cells below are **not executed here**:
# they need an account, a key and a model that is being served. `remote=True` is passed through to nnsight; the
# streamed metrics rely on functions that are sent with the request, which has not been tried against the live
# service. Begin with a single `model.run` and compare it with a local run.

# %% tags=["skip-execution"]
# Not executed here: needs a network, an NDIF key and a served model.
import nnsight

nnsight.CONFIG.set_default_api_key("YOUR-KEY")
remote_model = mi.load_model("meta-llama/Llama-3.1-8B", backend="nnsight", remote=True)
remote_model.checks

# %% tags=["skip-execution"]
# Not executed here.
remote_pairs = mi.make_pairs(remote_model, problems, mi.Insertion.meaningless(" /", n_tokens=55))
remote_model.run(remote_pairs[0].inserted.tokens, logits_at="last").logits.shape

# %% [markdown]
# ## From the command line
#
# The same, for a night on a cluster (the checkpoints lie in the output folder):
#
# ```
# python analyses/patch_heads.py --model path/to/Qwen2.5-Math-7B --problems path/to/math500.jsonl --limit 128 --confirm 128 \
#     --backend nnsight --dtype float32 --out results/qwen-math-7b
# ```
#
# ## What to conclude, and what not
#
# - Nothing about the method changes with size: the same functions, the same checks, the same statistics. What changes
#   is what may be kept in memory.
# - Fused attention gives the same metrics as eager attention, to rounding. Half precision does not: an effect of a
#   few thousandths of a nat is below its resolution, and the result says so.
# - No published model has been measured in these notebooks. What the paper's heads do in Qwen2.5-Math-7B is yours to
#   find out.
