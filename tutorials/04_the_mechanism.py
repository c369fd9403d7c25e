# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 4 · The mechanism: lambda, activations, ARM
#
# **The question.** The paper explains the gain by a chain: inserted tokens *scale* the attention output by $\lambda$
# and add a *bias* $\Sigma$; the variance of the MLP's input changes; activations move away from zero; and moving the
# activations directly (ARM) has the same effect without slashes. Each link is a number that we can measure on any model,
# here the demo model.

# %%
import numpy as np

import mless_interp as mi

model = mi.load_model("demo")
pairs = mi.make_pairs(model, mi.load_problems("demo", limit=24), mi.Insertion.meaningless(" /", n_tokens=55))

# %% [markdown]
# ## Scale and bias
#
# For each query, attention with the span is $z' = \lambda z + \Sigma$: the output from the other tokens, scaled by the
# remaining mass, plus the input from the span. `decompose_attention` measures both for every head and problem, next to
# a head that spreads its attention evenly.

# %%
parts = mi.decompose_attention(model, pairs, progress=False)
print(parts)

# %% [markdown]
# - In **layer 0** the residual is zero to rounding. There the affine form is an identity for any inserted text, so it is no
#   evidence.
# - In **deeper layers** a large part of the change is *not* of this form, because the inputs of these layers have
#   changed too.
# - The slope of the best straight line through $(z, z')$ is **not** $\lambda$, even where its $R^2$ is good.

# %%
mi.views.head_map(parts, value="lam_minus_uniform")

# %% [markdown]
# ## What happens to the activations
#
# We compare the gate activations $a = \mathrm{act}(W_{gate} x)$ of the first MLP at the tokens that both prompts share.
# The paper claims three changes: the variance rises, fewer activations lie near zero, the mean rises. Each claim is tested
# over *problems*: the million activations of one prompt are not a million observations.

# %%
shift = mi.activation_shift(model, pairs, progress=False)
print(shift)

# %%
mi.views.activation_histograms(shift)

# %% [markdown]
# The histograms nearly coincide; the strip below shows their difference. The table gives estimate, interval and sign
# test, corrected over the claims. "Undecided" means that these problems do not decide it.
#
# The paper adds that digits, operators and conjunctions have the most activations near zero. By class of token:

# %%
classes = shift.by_class()
near = classes[(classes["metric"] == "near_zero_arm") & (classes["contrast"] == "content")]
near[
    [c for c in ("token_class", "before", "after", "change", "change_ci_low", "change_ci_high", "n") if c in near]
].round(4)

# %% [markdown]
# Conjunctions and digits do have the larger shares here, without any insertion; operators hardly, and only 3 problems
# contain one. Neither any of the three nor all tokens together (+0.0007) show a difference.
#
# ## Which part moves them?
#
# Scale and bias can be applied separately: $z \leftarrow \lambda z$, or $z \leftarrow z + \Sigma$. Mediation measures
# the effect of each on activations and answer, and their interaction.

# %%
mediation = mi.mediate(model, pairs, progress=False)
print(mediation)

# %%
variance = mediation.table().query("reading == 'variance'")
variance[["effect", "median", "median_ci_low", "median_ci_high", "n_up", "n_down"]].round(4)

# %% [markdown]
# Scaling attention *down* raises the variance of the activations here (attention and residual stream may point against
# each other), the bias lowers the variance by more, and both together lower it: the reverse of the claim.
#
# ## ARM: the same without slashes
#
# ARM gives the smallest activations of the first layer a random push. The paper's text *adds* the push and its code
# *replaces* the activation; `reading` selects one. Published parameters differ per model and benchmark:

# %%
arm = mi.ARM(c=0.13, p1=99.5, reading="code_replace", seed=0)
print(arm.label)
print(mi.ARM.from_paper("Qwen2.5-Math-7B", "MATH-500"))

# %%
import torch

for reading in ("paper_add", "code_replace"):
    edited = mi.ARM(c=0.13, p1=99.5, reading=reading, seed=0)
    change = []
    for pair in pairs:
        answered = pair.answered()
        inputs = answered.condition("base")
        read = list(range(len(answered.base) - answered.n_answer - 1, len(answered.base) - 1))
        target = torch.tensor(answered.base.ids[read[0] + 1 : read[-1] + 2])
        values = []
        for edits in ({}, edited.edits(model, keys=[pair.id])):
            logits = model.run(inputs.tokens, edits=edits, logits_at=read).logits[0]
            values.append(float(torch.log_softmax(logits.double(), -1).gather(-1, target[:, None]).sum()))
        change.append(values[1] - values[0])
    found = mi.statistics.bootstrap_interval(np.array(change))
    print(f"{reading}, change of the answer's log-probability in nats: {found}")
    print(f"it rises in {sum(c > 0 for c in change)} of {len(change)} problems")

# %% [markdown]
# Look at the intervals before the signs. A model that is right on all its problems can hardly gain.
# `mi.evaluate_accuracy` compares *generated* answers with slashes, ARM and knocked-out heads.
#
# ## What to conclude, and what not
#
# - The first-layer formula is algebra. Its content is $\lambda$ of each head, and the difference from an even spread.
# - "Activations are redistributed" is three claims; test each over problems, and allow "undecided".
# - A change of activations and a change of answers are two effects of one cause until mediation shows more.
# - These numbers are about the small demo model. `mless-interp mechanism` runs the whole chapter on yours.
#
# Next: [your own model](05_your_own_model.ipynb).
