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
# and add a *bias* $\Sigma$; the variance of what enters the MLP changes; activations move away from zero; and one can
# have the same without any slash, by moving the activations directly (ARM). Each link is a number that can be
# measured on any model. Here they are, on the demo model, one after the other.

# %%
import numpy as np

import mless_interp as mi

model = mi.load_model("demo")
pairs = mi.make_pairs(model, mi.load_problems("demo", limit=24), mi.Insertion.meaningless(" /", n_tokens=55))

# %% [markdown]
# ## Scale and bias
#
# For each query, attention with the span is $z' = \lambda z + \Sigma$: what it gave to the other tokens, scaled by
# the mass that is left, plus what it takes from the span. `decompose_attention` measures both for every head and
# problem, beside the null of a head that spreads its attention evenly.

# %%
import textwrap


def show(result):
    """Print a result, its sentences wrapped, its tables as they are."""
    for line in str(result).splitlines():
        print(line if "  " in line else textwrap.fill(line, 110))


parts = mi.decompose_attention(model, pairs, progress=False)
show(parts)

# %% [markdown]
# Three things to read in the output.
#
# - In **layer 0** the residual is zero to rounding. The affine form is an identity there, for any text that is
#   inserted. It cannot be evidence for anything.
# - In **deeper layers** a large part of the change is *not* of this form: the inputs of these layers have changed
#   too.
# - The slope of the best straight line through $(z, z')$ is **not** $\lambda$. A fit with a good $R^2$ is easily
#   taken for a measurement of $\lambda$; here both stand in one table.

# %%
mi.views.lambda_map(parts)

# %% [markdown]
# ## What happens to the activations
#
# The gate activations $a = \mathrm{act}(W_{gate} x)$ of the first MLP, at the tokens that both prompts share. The
# paper claims three changes: the variance rises, fewer activations lie near zero, the mean rises. Each is tested over
# *problems*, because the million activations of one prompt are not a million observations.

# %%
shift = mi.activation_shift(model, pairs, progress=False)
show(shift)

# %%
mi.views.activation_histograms(shift)

# %% [markdown]
# The two histograms lie almost on each other; the strip below shows their difference. The table says more than the
# picture: the estimate, its interval, and the sign test, corrected over the claims. "Undecided" means that these
# problems do not decide it, in either direction.
#
# The paper adds that digits, operators and conjunctions have the most activations near zero. By class of token:

# %%
classes = shift.by_class()
near = classes[(classes["metric"] == "near_zero_arm") & (classes["contrast"] == "content")]
near[[c for c in ("token_class", "before", "after", "difference", "ci_low", "ci_high", "n") if c in near]].round(4)

# %% [markdown]
# Here conjunctions and digits do have the larger shares, without any insertion; operators do not, but only 3 problems
# contain one. In none of the three a difference is shown; over all tokens the share *rises* by 0.0007.
#
# ## Which part moves them?
#
# Scale and bias can be applied one without the other: $z \leftarrow \lambda z$, or $z \leftarrow z + \Sigma$. What
# each does to the activations, and to the answer, is a mediation analysis; the interaction is what both do together
# beyond their sum.

# %%
mediation = mi.mediate(model, pairs, progress=False)
show(mediation)

# %% [markdown]
# The variance is a good example of why one measures instead of arguing: scaling attention *down* raises the
# variance of the activations here (attention and residual stream may point against each other), the bias lowers it by
# more, and both together lower it: the reverse of what is claimed.
#
# ## ARM: the same without slashes
#
# If activations near zero are the point, move them by hand. That is ARM: in the first layer, the smallest activations
# get a random push. The paper's text *adds* the push and its code *replaces* the activation; both are here, as
# `reading`. Published values of its two parameters differ per model and benchmark:

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
        for edits in ({}, edited.edits(model, inputs, keys=[pair.id])):
            logits = model.run(inputs.tokens, edits=edits, logits_at=read).logits[0]
            values.append(float(torch.log_softmax(logits.double(), -1).gather(-1, target[:, None]).sum()))
        change.append(values[1] - values[0])
    found = mi.statistics.bootstrap_interval(np.array(change))
    print(f"{reading}, change of the answer's log-probability in nats: {found}")
    print(f"it rises in {sum(c > 0 for c in change)} of {len(change)} problems")

# %% [markdown]
# Look at the intervals before the signs. A model that is right on all its problems can hardly gain, so this says
# little about a model with room to improve. Whether answers change when they are *generated* is what
# `mi.evaluate_accuracy` and `analyses/accuracy.py` measure, with slashes, ARM and knocked-out heads in one paired
# comparison.
#
# ## What to conclude, and what not
#
# - The first-layer formula is algebra. Its content is $\lambda$ of each head, and how it differs from an even spread.
# - "Activations are redistributed" is three claims; test each, over problems, and allow "undecided" as an answer.
# - A change of activations and a change of answers under the same insertion are two effects of one cause until a
#   mediation says more.
# - The demo model is small and trained on one kind of text. These numbers are about it. `analyses/mechanism.py` runs
#   the whole chapter on yours.
#
# Next: [your own model](05_your_own_model.ipynb).
