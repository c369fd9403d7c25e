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
# **The question.** The paper shows one curve per head: how much attention each token *receives*, on average, from the
# tokens after it. With slashes inserted the curve of the original tokens falls, is near zero over the slashes, and
# comes back in the question. What of this is a discovery about language models, and what is arithmetic? This chapter
# draws the curve, puts a null model under it, and finds out.

# %%
import numpy as np

import mless_interp as mi

model = mi.load_model("demo")
pairs = mi.make_pairs(model, mi.load_problems("demo", limit=24), mi.Insertion.meaningless(" /", n_tokens=55))
profile = mi.attention_profile(model, pairs, progress=False)

# %% [markdown]
# ## The curve
#
# For token $j$ it is the mean of column $j$ of a head's attention matrix, strictly below the diagonal (all later
# tokens look at it). Here for two heads of the first layer: above the original tokens, without and with the
# insertion; below the whole prompt, the span shaded. The thin grey line is the **null**: what a head would give that
# spreads its attention evenly over everything that it can see.

# %%
mi.views.profiles(profile, [mi.Head(0, 13), mi.Head(0, 21)])

# %% [markdown]
# Look at the grey line first. It falls as well, and it is near zero over the slashes as well, although there is no
# head in it at all. With 107 tokens instead of 52 every token's share of the attention is about half. "Near zero
# inside the span" is what *uniform* attention looks like on a longer prompt. A per-token weight of 0.01 over 55
# tokens is more than half of all attention.
#
# So two numbers are worth more than the height of the curve: the **span mass**, the attention that the span gets as a
# whole, and the **density ratio**, attention per slash over attention per other visible token. 0 on the logarithmic
# axis means: a slash gets as much as any other token.

# %%
scores = mi.score_heads(model, pairs, progress=False)
columns = ["label", "span_mass", "span_mass_ci_low", "span_mass_ci_high", "span_mass_null", "log_density_ratio"]
table = scores.summary()
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
# Most heads lie below 0: a slash gets less than an ordinary token, in some heads of layer 1 thousands of times less.
# A few lie above: they prefer the slashes to other tokens. *That* varies from head to head and is a property of the model.
#
# ## What is an identity
#
# In the first layer the attention of the question to an original token is multiplied by $\lambda_i = 1 - m_i$ where
# $m_i$ is the span mass of query $i$: the softmax has more terms in its denominator, the others are as before. This
# is algebra, for *any* inserted text, against the run whose positions have moved in the same way (`gap`). It can be
# checked to the last digit.

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
# So "attention to the original tokens decreases in the first layer" cannot fail, and random words would do the
# same. Only *how much*, and in which heads, is information. In deeper layers the identity no longer holds exactly,
# because the residual stream has changed too.
#
# ## Recovery
#
# Does the curve come back after the span? Two questions hide in this, and each number needs its null beside it.
# `recovery_ratio` compares the question with the tokens before the span, in one prompt, both measured against an even
# spread: 1 says that the question stands as well as they do. `recovery_aligned` compares the question with itself, with
# the insertion against without: an even spread gives 0.41 here, since the question now shares with 55 more tokens.
# `collapse` is the drop of the span below the tokens before it: an even spread already "collapses" by 0.54.

# %%
measures = ["collapse", "recovery_ratio", "recovery_aligned"]
picked = ["label", "span_mass"] + [name for measure in measures for name in (measure, f"{measure}_null")]
table.sort_values("span_mass", ascending=False)[picked].round(3).head(8)

# %%
above = (table["recovery_aligned"] > table["recovery_aligned_null"]).sum()
deeper = (table["collapse"] > table["collapse_null"]).sum()
print(f"of {len(table)} heads {deeper} collapse more than an even spread, {above} keep more on the question")

# %% [markdown]
# The heads in the table are the exceptions: they like the slashes, so theirs collapse *less* than an even spread, and
# all of them keep less for the question. Most heads do the reverse. Only the distance from the null speaks about
# the model.
#
# ## One head, seen token by token
#
# CircuitsVis draws the whole pattern: without, with, and the difference on one colour scale, the long span pooled
# into blocks. It works offline, in a notebook and as a page.

# %%
strongest = max(model.info.heads[:28], key=lambda head: scores.mean("span_mass")[head.layer, head.head])
mi.views.attention(model, pairs[0], [strongest])

# %% [markdown]
# ## Numbers per problem, with intervals
#
# Every value is kept per problem, because the problem is the unit of replication: 24 problems are 24 observations,
# however many tokens they have. What is undefined (a recovery that never happens, a ratio with nothing below it) is
# NaN and counted.

# %%
scores.to_frame().query("metric == 'span_mass' and label == 'L0H13'")[["problem", "label", "condition", "value"]].head()

# %% [markdown]
# ## What to conclude, and what not
#
# - The collapse over the span is mostly dilution. Compare with the grey line before you see a phenomenon.
# - In layer 0 the fall of the original tokens is an identity; the span mass of each head is the whole content of the
#   picture.
# - Heads differ by an order of magnitude in how much they look at the slashes. That makes them *candidates*, not
#   culprits: a head may look and write nothing that matters. In the planted model of the next chapter the two heads
#   that look hardest do just that, and a head that matters does not look at all. So the next chapter cuts heads out.
#
# Next: [which heads carry the effect](03_locating_heads.ipynb).
