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
everything = mi.make_pairs(model, mi.load_problems(planted, limit=48), mi.Insertion.meaningless(" /", n_tokens=55))
pairs, fresh = everything[:24], everything[24:]  # the second half is for later
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
# Strokes mark the heads that do more than 5 % of the effect in most problems, by an exact test.
#
# But the mediator *and* the readers light up, and one picture does not say who is who. A **knockout** does: it
# forbids one head to look at the slashes. It removes what the head reads itself; the z patch removes all that the
# head does. The difference is what it passes on. (Effects are the slashes' own, and a head's is the part that it carries:
# above 0 here, because the slashes *raise* the answer's log-probability in this model.)

# %%
knockout = mi.patch_heads(model, pairs, edit="knockout", progress=False)
for head in (mi.Head(0, 13), mi.Head(0, 21), mi.Head(1, 4), mi.Head(0, 3), mi.Head(0, 8), mi.Head(1, 20)):
    z_effect, own_read = (float(sweep.effect[:, head.layer, head.head].mean()) for sweep in (patches, knockout))
    print(f"{head!s:6}  z patch {z_effect:+.3f}  knockout {own_read:+.3f}  passed on {z_effect - own_read:+.3f}")

# %% [markdown]
# ## The whole experiment
#
# `locate_heads` does this for all heads in both directions, and then asks what a referee would ask.
#
# - *In how many problems?* A mean can rest on two of them. So a head is named if it does more than a smallest effect of
#   interest, 5 % of the median total, in most problems. The test is a coin: if at most half of all problems were like
#   that, how likely are so many? It is exact, whatever the effects look like, and corrected over all heads.
# - *Would you find it again?* The best of many heads looks better than it is. `confirm=` gives problems that had no part
#   in the choice; the named heads, and nothing else, are tested there again.
# - *Would anything of that length do the same? Any loss of that much attention?* Random words and a knockout of other
#   attention are the controls; *specific* means that a head did more than both in most of the fresh problems.

# %%
import textwrap


def show(result):
    """Print a result, its sentences wrapped, its tables as they are."""
    for line in str(result).splitlines():
        print(line if "  " in line else textwrap.fill(line, 110))


found = mi.locate_heads(model, pairs, confirm=fresh, progress=False)
show(found)

# %%
named = {str(head): kind for head, kind in found.confirmed.items()}
print(named)
assert named == {"L0H13": "reader", "L0H21": "reader", "L1H4": "mediator"}

# %% [markdown]
# Exactly the planted heads, each with its kind, confirmed, and no decoy: the other 53 heads are not just "not named", they
# are shown to do less than the smallest effect (*negligible*).
#
# The output also takes the readers apart: cutting off what they take from the span removes as much as the knockout, and
# parking that attention on another token does not help. So it is what they read that counts, not the attention they lose.
#
# ## A circuit that hides
#
# Reader and mediator are the simple cases. If two heads do the same thing and one is enough, removing either changes
# nothing; if both are needed, adding either brings nothing. That is why the two directions are told apart instead of being
# demanded together:

# %%
either = mi.planted_model(
    readers=[mi.Head(0, 13), mi.Head(0, 21), mi.Head(0, 5)], combine="any", n_key_value_heads=4, seed=0
)
either_model = mi.load_model(either)
either_pairs = mi.make_pairs(
    either_model, mi.load_problems(either, limit=24), mi.Insertion.meaningless(" /", n_tokens=55)
)
hidden = mi.locate_heads(either_model, either_pairs, controls=False, progress=False)
hidden.printed().head(3)[["label", "kind", "removed_count", "added_count", "n"]]

# %%
assert set(hidden.found.values()) == {"redundant reader"} and len(hidden.found) == 3

# %% [markdown]
# *Redundant reader*: its sight of the span is enough, and nobody misses it, because the others read the span as well.
#
# ## The demo model
#
# Now a *trained* model, whose circuit nobody knows. It does respond to the slashes. Does a head carry it? (Without
# controls here, to be quick; `make demo` runs them.)

# %%
demo = mi.load_model("demo")
demo_pairs = mi.make_pairs(demo, mi.load_problems("demo", limit=128), mi.Insertion.meaningless(" /", n_tokens=55))
answer = mi.locate_heads(demo, demo_pairs[:64], confirm=demo_pairs[64:], controls=False, progress=False)
show(answer)

# %%
mi.views.head_map(answer)

# %% [markdown]
# Read the sentences, not the colours: the map always has a darkest cell.
#
# Three things to see. Five heads are named, all readers of the first layer, and the next 64 problems confirm all five. They
# are *necessary*, not enough: without one of them its part is gone in most problems, but one alone brings its part in few
# (L0H21 in 38 of 64). And of the other 107 heads nearly all are shown to be *negligible*; three are *undecided*, as with 64
# problems a head must act in about three of four problems to be found.
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
#   `benchmarks/bench_planted.py` repeats this over random circuits of all kinds, and over real effects that are shifted to
#   where nothing should be named.
# - A *named* head is a candidate, a *confirmed* one a finding about most problems of this kind, with this insertion, in this
#   model. "Undecided" is not "does nothing"; *negligible* is, and it is shown.
# - How many problems are needed is known beforehand: `mi.statistics.detectable_prevalence`.
# - A teacher-forced log-probability is not an answer that was generated. And the content contrast is blind to heads
#   that respond to the shift of positions only; `contrast="shift"` is there for them.
#
# Next: [what such a head does to the layers above](04_the_mechanism.ipynb).
