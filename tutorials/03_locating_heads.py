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
# **The question.** Which attention heads carry the effect of the slashes? Attention cannot answer this (chapter 2). We
# edit every head, one at a time and in both directions, and read the answer's probability. We begin with a model whose
# circuit is known: only a method that finds a known circuit deserves trust when it finds nothing.

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
everything = mi.make_pairs(model, mi.load_problems(planted, limit=48), mi.Insertion.meaningless(" /", n_tokens=55))
pairs, fresh = everything[:24], everything[24:]  # the second half is for later
model

# %% [markdown]
# The weights of this model are set in code. Two heads **read** the slashes and write what they read. A third, one layer
# later, **mediates**: it never attends to a slash but passes on what the readers wrote. Three **decoys** mislead:
# *silent* attends to the slashes and writes nothing, *unread* attends and writes where nothing reads, *avoids* writes
# much and looks elsewhere. Their attention:

# %%
scores = mi.score_heads(model, pairs, metrics=["span_mass"], progress=False)
scores.top("span_mass", 6)[["label", "span_mass", "span_mass_ci_low", "span_mass_ci_high"]].round(3)

# %% [markdown]
# By attention, two decoys rank above the readers, and the mediator does not appear.
#
# ## Patching one head
#
# In the `masked` (clean) run no token can read the slashes, in the `inserted` (corrupted) run every token can. The
# outcome is the log-probability of the right answer. **Denoising** puts a head's clean output into the corrupted run:
# does the effect disappear? **Noising** is the reverse: does the effect appear? `effect_fraction` is the share of the
# whole effect, 0 nothing, 1 all.

# %%
patches = mi.patch_heads(model, pairs, contrast="content", direction="denoising", edit="z", progress=False)
mi.views.head_map(patches)

# %% [markdown]
# Every cell is *exact*: it equals one whole forward pass with that edit. The readers and the mediator have large effects,
# the decoys do not. Strokes mark heads that do more than 5 % of the effect in most problems.
#
# A **knockout** hides the slashes from one head and so distinguishes readers from mediators. The knockout removes only
# the head's own reading; the z patch removes the head's whole response. The difference is the part that the head passes
# on. (A head's effect is its part of the slashes' effect: above 0 here, because the slashes *raise* the answer's
# log-probability in this model.)

# %%
knockout = mi.patch_heads(model, pairs, edit="knockout", progress=False)
for head in (mi.Head(0, 13), mi.Head(0, 21), mi.Head(1, 4), mi.Head(0, 3), mi.Head(0, 8), mi.Head(1, 20)):
    z_effect, own_read = (float(sweep.effect[:, head.layer, head.head].mean()) for sweep in (patches, knockout))
    print(f"{head!s:6}  z patch {z_effect:+.3f}  knockout {own_read:+.3f}  passed on {z_effect - own_read:+.3f}")

# %% [markdown]
# ## The whole experiment
#
# `locate_heads` does this for all heads in both directions, and asks three more questions.
#
# - *In how many problems?* A mean can rest on two problems. A head is named if it does more than the smallest effect of
#   interest, 5 % of the median total's upper limit, in most problems. The test is exact and corrected over all heads.
# - *Would you find it again?* The best of many heads looks better than it is. `confirm=` gives fresh problems, on which
#   only the named heads are tested.
# - *Would other tokens, or any loss of attention, do the same?* Random words and a knockout of other attention are the
#   controls. *Specific* means that a head does more than both in most of the fresh problems.

# %%
import textwrap

found = mi.locate_heads(model, pairs, confirm=fresh, progress=False)
print(found)

# %%
named = {str(head): kind for head, kind in found.confirmed.items()}
print(named)
assert named == {"L0H13": "reader", "L0H21": "reader", "L1H4": "mediator"}

# %% [markdown]
# Exactly the planted heads, each with its kind, confirmed, and no decoy. The other 53 heads are *negligible*: shown to
# do less than the smallest effect.
#
# Does a reader use the content of the span, or does it only lose attention to the span? On the fresh problems
# `locate_heads` also edits what the named readers read:

# %%
for sentence in found.confirmation.reads.details()[1:]:
    print(textwrap.fill(sentence, 110))

# %% [markdown]
# The content of the span matters, not the attention that the head loses to it.
#
# ## A circuit that hides
#
# If several heads do the same and one is enough, removing one changes nothing; if several are needed, adding one brings
# nothing. Results therefore report the two directions separately:

# %%
either = mi.planted_model(
    readers=[mi.Head(0, 13), mi.Head(0, 21), mi.Head(0, 5)], combine="any", n_key_value_heads=4, seed=0
)
either_model = mi.load_model(either)
either_pairs = mi.make_pairs(
    either_model, mi.load_problems(either, limit=24), mi.Insertion.meaningless(" /", n_tokens=55)
)
hidden = mi.locate_heads(either_model, either_pairs, controls=False, progress=False)
hidden.printed().head(3)[["label", "kind", "removed_k", "added_k", "n"]]

# %%
assert set(hidden.found.values()) == {"redundant reader"} and len(hidden.found) == 3

# %% [markdown]
# A *redundant reader*'s reading of the span is enough, and not needed, because the others read the span as well.
#
# ## The demo model
#
# A *trained* model responds to the slashes through an unknown circuit. (Without controls here, to be quick; `make demo`
# runs them.)

# %%
demo = mi.load_model("demo")
demo_pairs = mi.make_pairs(demo, mi.load_problems("demo", limit=128), mi.Insertion.meaningless(" /", n_tokens=55))
answer = mi.locate_heads(demo, demo_pairs[:64], confirm=demo_pairs[64:], controls=False, progress=False)
print(answer)

# %%
mi.views.head_map(answer)

# %% [markdown]
# Read the sentences, not the colours: the map always has a darkest cell.
#
# Five heads are named, all readers of the first layer, and the next 64 problems confirm all five. They are *necessary*:
# removing one of them removes its part in most problems, but adding one by itself brings its part in fewer than half.
# Nearly all other heads are *negligible*. A few are *undecided*: with 64 problems a head must act in about three of four
# problems to be found.
#
# ## Are the paper's heads special?
#
# `enrichment` asks whether given heads rank higher than random heads of the same layer. The paper's figures show ten of
# 28 heads of layer 1 (zero-based: layer 0) of Qwen2.5-Math-7B. In the demo model these numbers mean nothing; the call
# shows how to ask:

# %%
shown = [mi.Head.from_paper(layer=1, head=number) for number in (1, 2, 8, 12, 13, 14, 17, 22, 26, 28)]
print(mi.enrichment(answer, shown))

# %% [markdown]
# ## What to conclude, and what not
#
# - With known truth, the experiment names the planted heads and their kinds, and nothing else.
#   `benchmarks/bench_planted.py` repeats this over random circuits of all kinds.
# - A *named* head is a candidate, a *confirmed* head a finding about most problems of this kind, with this insertion, in
#   this model. "Undecided" does not mean idle; *negligible* does.
# - `mi.statistics.detectable_prevalence` says in advance how many problems are needed.
# - A log-probability of a given answer is not a generated answer. The content contrast does not see heads that respond
#   only to the shift of positions; `contrast="shift"` does.
#
# Next: [what such a head does to the layers above](04_the_mechanism.ipynb).
