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
# **The question.** The paper's models have 7 billion parameters and 784 heads. What changes at that size? Attention
# patterns exceed memory, a sweep takes hours and must survive an interruption, and the model may lie on several devices
# or on another machine. This chapter shows each on a small model. Cells marked *not executed here* need weights or a
# network.
#
# ## Several devices, half precision, fused attention
#
# ```python
# model = mi.load_model(
#     "Qwen/Qwen2.5-Math-7B",         # needs the network once, or a local directory
#     backend="nnsight",
#     device_map="auto",              # spread over the devices at hand
#     dtype="bfloat16",
#     attn_implementation="sdpa",     # fused attention: fast and lean, without a pattern
# )
# ```
#
# For layer-0 identities use `float32`: bfloat16 has three significant digits. The same call for the demo model:

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
# Fused attention never computes a pattern, and asking for one is an error. The metrics rebuild the scores of one layer
# from its rotated queries and keys, in blocks of rows, reduce them to numbers per head, and drop them before the next
# layer. Memory grows with layers × heads × tokens, not with tokens².

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
# A head patch at the question's positions leaves earlier layers, earlier tokens and the other heads unchanged. A sweep
# of all heads costs about *heads per layer × (layers + 1) / 2 × question tokens / all tokens* passes, not one pass per
# head.


# %%
def passes(layers, heads, question, tokens):
    return heads * (layers + 1) / 2 * question / tokens


for name, layers, heads in (("demo", 4, 28), ("Qwen2.5-0.5B", 24, 14), ("Qwen2.5-Math-7B", 28, 28)):
    print(
        f"{name:16s} {layers * heads:4d} heads: a sweep = {passes(layers, heads, 42, 115):.0f} forward passes a problem"
    )

# %% [markdown]
# `locate_heads` needs four sweeps; `plan_run` estimates their time. Where that is too much, rank heads
# by gradients on some problems: `best = mi.attribute_heads(model, some, method="atp").ranking()[:64]`; test the best on
# others: `mi.locate_heads(model, others, heads=best)`.
#
# ## A run that survives
#
# Every finished problem is written to disk at once. A killed run continues when started again with the same settings;
# with other settings it refuses and lists the differences. Let us interrupt one.

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
# When memory runs out the batch is halved; `max_rows` sets it by hand.
#
# ## Saving with provenance

# %%
mi.save(folder / "result", whole_run)
again = mi.load(folder / "result")
print(sorted(path.name for path in (folder / "result").iterdir()))
print(again["PatchScores"].to_frame().head(3).round(4).to_string(index=False))
print(sorted(again["provenance"]), again["provenance"]["versions"]["torch"])

# %% [markdown]
# ## Another machine: NDIF
#
# nnsight can run the model on the National Deep Inference Fabric. The two cells below are **not executed here**: they
# need an account, a key and a hosted model. `remote="local"` rehearses the same requests on local weights. Nothing has
# been tried against the live service: begin with a single `model.run` and compare it with a local run.

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
# mless-interp locate --model path/to/Qwen2.5-Math-7B --problems path/to/math500.jsonl --limit 128 --confirm 128 \
#     --backend nnsight --dtype float32 --out results/qwen-math-7b
# ```
#
# ## What to conclude, and what not
#
# - The method is the same at every size. Only what fits into memory changes.
# - Fused attention gives the same metrics as eager attention, to rounding. Half precision does not resolve small effects,
#   and the result says up to which size.
# - No published model has been measured in these notebooks.
