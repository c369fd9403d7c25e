# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 2 · Attention collapse and recovery
#
# **The question.** The paper shows one curve per head: the average attention that each token *receives* from later
# tokens. With slashes inserted the curve of the original tokens falls, is near zero over the slashes, and returns in
# the question. Which part is a discovery about language models, and which part is arithmetic?

# %%
import numpy as np

import mless_interp as mi

model = mi.load_model("demo")
pairs = mi.make_pairs(model, mi.load_problems("demo", limit=24), mi.Insertion.meaningless(" /", n_tokens=55))
profile = mi.attention_profile(model, pairs, progress=False)

# %% [markdown]
# ## The curve
#
# For token $j$ the curve is the mean of column $j$ of a head's attention matrix, strictly below the diagonal. Two heads
# of the first layer: above the original tokens, without and with the insertion; below the whole prompt, the span
# shaded. The thin grey lines are the **null**: a head that spreads its attention evenly over all visible tokens.

# %%
mi.views.profiles(profile, [mi.Head(0, 13), mi.Head(0, 21)])

# %% [markdown]
# The grey line falls too, and is near zero over the slashes too. With 107 tokens instead of 52, every token's even
# share halves. "Near zero inside the span" is *uniform* attention on a longer prompt: 0.01 per token over 55 tokens is
# more than half of all attention.
#
# Two numbers say more than the height of the curve: the **span mass**, the attention on the whole span, and the
# **density ratio**, attention per slash over attention per other visible token. On the logarithmic axis, 0 means that a
# slash receives as much as any other token.

# %%
scores = mi.score_heads(model, pairs, progress=False)
columns = ["label", "span_mass", "span_mass_ci_low", "span_mass_ci_high", "span_mass_null", "log_density_ratio"]
table = scores.table()
first = table[table["layer"] == 0]
first[columns].sort_values("span_mass", ascending=False).round(3).head(8)

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(7, 3.2))
for layer, marker in zip(range(model.info.n_layers), "os^D", strict=True):
    rows = table[table["layer"] == layer]
    axes.scatter(rows["span_mass"], rows["log_density_ratio"], marker=marker, label=f"layer {layer}", alpha=0.8)
axes.axhline(0, color="black", linewidth=0.8)
axes.axvline(first["span_mass_null"].mean(), color="black", linewidth=0.8, linestyle=":", label="uniform attention")
axes.set_xlabel("span mass (share of attention on the 55 slashes)")
axes.set_ylabel("log density ratio (0: like any token)")
axes.legend(frameon=False, fontsize=8)
figure.tight_layout()
plt.show()

# %% [markdown]
# Most heads lie below 0: a slash receives less than an ordinary token, in some heads of layer 1 thousands of times
# less. A few heads prefer the slashes. *That* difference between heads is a property of the model.
#
# ## What is an identity
#
# In the first layer the question's attention to an original token is multiplied by $\lambda_i = 1 - m_i$, with $m_i$
# the span mass of query $i$: the softmax has more terms in its denominator. This is algebra for *any* inserted text,
# against the run with the same positions (`gap`).

# %%
pair = pairs[0]
name = "blocks.0.attn.hook_pattern"


def pattern(condition):
    inputs = pair.condition(condition)
    run = model.run(
        inputs,
        capture={name: None},
        logits_at="none",
    )
    return run.captured[name][0]


shared = np.array(pair.alignment)
question = shared[pair.span[0] :]  # the rows after the span
with_slashes, moved = pattern("inserted"), pattern("gap")
a, b = pair.span
lam = 1 - with_slashes[:, question][:, :, a:b].sum(-1, keepdim=True)
predicted = lam * moved[:, pair.span[0] :]
print(
    "layer 0, all heads: largest difference", float((with_slashes[:, question][:, :, shared] - predicted).abs().max())
)
print("lambda of one query, by head:", [round(float(x), 2) for x in lam[:6, -1, 0]], "...")

# %% [markdown]
# "Attention to the original tokens decreases in the first layer" therefore cannot fail, and random words do the same.
# Only *how much*, and in which heads, is information. In deeper layers the identity is no longer exact, because the
# residual stream has changed.
#
# ## Recovery
#
# Each number needs its null. `recovery_ratio` compares the question with the tokens before the span in one prompt, both
# relative to an even spread; 1 means equal levels. `recovery_aligned` compares the question with and without the
# insertion; an even spread gives 0.41 here. `collapse` is the drop of the span below the tokens before it; an even
# spread gives 0.54.

# %%
measures = ["collapse", "recovery_ratio", "recovery_aligned"]
picked = ["label", "span_mass"] + [name for measure in measures for name in (measure, f"{measure}_null")]
table.sort_values("span_mass", ascending=False)[picked].round(3).head(8)

# %%
above = (table["recovery_aligned"] > table["recovery_aligned_null"]).sum()
deeper = (table["collapse"] > table["collapse_null"]).sum()
print(f"of {len(table)} heads {deeper} collapse more than an even spread, {above} keep more on the question")

# %% [markdown]
# The heads in the table prefer the slashes, so they collapse *less* than an even spread and keep less for the question.
# Most heads do the reverse. Only the distance from the null describes the model.
#
# ## One head, token by token
#
# CircuitsVis draws the whole pattern: without, with, and the difference, the span pooled into blocks. It works offline.

# %%
strongest = max(model.info.heads[:28], key=lambda head: scores.mean("span_mass")[head.layer, head.head])
mi.views.attention(model, pairs[0], [strongest])

# %% [markdown]
# ## Numbers per problem, with intervals
#
# Every value is kept per problem, because the problem is the unit of replication: 24 problems are 24 observations.
# Undefined values (a recovery that never happens) are NaN and counted.

# %%
scores.to_frame().query("metric == 'span_mass' and label == 'L0H13'")[["problem", "label", "condition", "value"]].head()

# %% [markdown]
# ## What to conclude, and what not
#
# - The collapse over the span is mostly dilution. Compare with the grey line first.
# - In layer 0 the fall of the original tokens is an identity; the span mass of each head is the whole content of the
#   picture.
# - Heads differ by an order of magnitude in how much they attend to the slashes. That makes them *candidates*: a head
#   may attend and write nothing that matters. In the planted model of the next chapter the two heads that attend most
#   do just that, and a head that matters does not attend at all.
#
# Next: [which heads carry the effect](03_locating_heads.ipynb).
