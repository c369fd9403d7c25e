# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 3 · Locating heads
#
# **The question.** Which attention heads carry the effect of the slashes? Looking at attention does not answer it
# (chapter 2). So we cut: one head at a time, every head, in both directions, and see what the answer's probability
# does. First in a model where we know the truth, because a method that has never been seen to find what is there
# cannot be believed when it finds nothing.

# %%
import mless_interp as mi

planted = mi.planted_model(
    readers=[mi.Head(0, 13), mi.Head(0, 21)],
    mediators=[mi.Head(1, 4)],
    decoys={"silent": [mi.Head(0, 3)], "unread": [mi.Head(0, 8)], "avoids": [mi.Head(1, 20)]},
    n_key_value_heads=4,
    seed=0,
)
model = mi.load_model(planted)
pairs = mi.make_pairs(model, mi.load_problems(planted, limit=16), mi.Insertion.meaningless(" /", n_tokens=55))
model

# %% [markdown]
# The weights of this model are set in code. Two heads **read** the slashes and write what they saw; a third, one
# layer later, **mediates**: it never looks at a slash but passes on what the readers wrote. Three **decoys** are
# there to fool us: *silent* stares at the slashes and writes nothing, *unread* stares and writes where nobody reads,
# *avoids* writes loudly and looks elsewhere. Here is what they do with their attention:

# %%
scores = mi.score_heads(model, pairs, metrics=["span_mass"], progress=False)
scores.top("span_mass", 6)[["label", "span_mass", "span_mass_ci_low", "span_mass_ci_high"]].round(3)

# %% [markdown]
# By attention alone two decoys come before the readers, and the mediator is nowhere.
#
# ## Patching one head
#
# We compare two runs of equal length: in `masked` nobody may read the slashes, in `inserted` everybody may. The
# outcome is the log-probability of the right answer. **Denoising** takes a head's output from the masked (clean) run
# into the inserted (corrupted) one: does the effect go away? **Noising** is the reverse: does the effect appear?
# `effect_fraction` is the share of the whole effect, 0 nothing, 1 all.

# %%
patches = mi.patch_heads(model, pairs, contrast="content", direction="denoising", edit="z", progress=False)
mi.views.head_map(patches)

# %% [markdown]
# Every cell is an *exact* value: it equals one whole forward pass with that edit, computed only from the edited layer
# on and for the tokens that can have changed. Now the readers and the mediator stand out, and the decoys do not.
# (Strokes on a white cell: problems agree on an effect of almost nothing. Significant is not the same as large.)
#
# But the mediator *and* the readers light up, and one picture does not say who is who. A **knockout** does: it
# forbids one head to look at the slashes. It removes what the head reads itself; the z patch removes all that the
# head does. The difference is what it passes on. (Effects are negative here because the slashes *raise* the answer's
# log-probability in this model, and the edit takes that away.)

# %%
knockout = mi.patch_heads(model, pairs, edit="knockout", progress=False)
for head in (mi.Head(0, 13), mi.Head(0, 21), mi.Head(1, 4), mi.Head(0, 3), mi.Head(0, 8), mi.Head(1, 20)):
    z_effect, own_read = (float(sweep.effect[:, head.layer, head.head].mean()) for sweep in (patches, knockout))
    print(f"{head!s:6}  z patch {z_effect:+.3f}  knockout {own_read:+.3f}  passed on {z_effect - own_read:+.3f}")

# %% [markdown]
# ## The whole experiment
#
# `locate_heads` does this for all heads in both directions, and then asks what a referee would ask. Are 56 heads
# tested at once? Then p-values are corrected over all of them (max-T, whole problems sign-flipped). Is it significant
# but tiny? There is a smallest effect of interest. Would a random sentence of the same length do the same? Would any
# loss of that much attention? Those are the controls, and *specific* means that a head passed them.

# %%
import textwrap


def show(result):
    """Print a result, its sentences wrapped, its tables as they are."""
    for line in str(result).splitlines():
        print(line if "  " in line else textwrap.fill(line, 110))


found = mi.locate_heads(model, pairs, progress=False)
show(found)

# %%
named = {str(head): kind for head, kind in found.found.items()}
print(named)
assert named == {"L0H13": "reader", "L0H21": "reader", "L1H4": "mediator"}

# %% [markdown]
# Exactly the planted heads, each with its kind, and no decoy.
#
# ## The demo model: an honest answer
#
# Now a *trained* model, whose circuit nobody knows. It does respond to the slashes. Does a head carry it?

# %%
demo = mi.load_model("demo")
demo_pairs = mi.make_pairs(demo, mi.load_problems("demo", limit=32), mi.Insertion.meaningless(" /", n_tokens=55))
answer = mi.locate_heads(demo, demo_pairs, progress=False)
show(answer)

# %%
mi.views.head_map(answer.patches)

# %% [markdown]
# Read the sentences, not the colours. The map always has a darkest cell, and strokes (significant in this one
# direction, over this map) are not yet a named head. Whether it means anything depends on the
# other direction, on how much problems differ, and on how many heads were tried.
#
# ## Are the paper's heads special?
#
# `enrichment` asks whether a given set of heads ranks higher than random sets of heads of the same layer. The paper's
# figures show ten of 28 heads of layer 1 (zero-based: layer 0) of Qwen2.5-Math-7B without saying how they were
# chosen. In the demo model those numbers mean nothing, so this is only how one would ask:

# %%
shown = [mi.Head.from_paper(layer=1, head=number) for number in (1, 2, 8, 12, 13, 14, 17, 22, 26, 28)]
show(mi.enrichment(answer, shown))

# %% [markdown]
# ## What to conclude, and what not
#
# - With known truth, the experiment names the planted heads and their kinds, and nothing else.
#   `benchmarks/bench_planted.py` repeats this over random models and over data in which there is nothing to find.
# - "No head is named" is a result about *single heads* and *this many problems*. The output says how many more
#   problems would be needed. It does not say that the slashes do nothing.
# - Denoising and noising may disagree: two heads that each suffice hide each other in one direction. That is why both
#   are required.
# - A teacher-forced log-probability is not an answer that was generated. And the content contrast is blind to heads
#   that respond to the shift of positions only; `contrast="shift"` is there for them.
#
# Next: [what such a head does to the layers above](04_the_mechanism.ipynb).
