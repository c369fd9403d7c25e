# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 7 · From heads to a circuit
#
# **The question.** [Chapter 3](03_locating_heads.ipynb) named heads that carry the effect of the slashes. What do they do
# with it? Does a head write straight to the answer, or for others to read? For whom, and by which of their inputs? Through
# which tokens? We ask a model whose circuit we know first: what was planted must come back, and nothing else.

# %%
import mless_interp as mi

readers, mediator = [mi.Head(0, 13), mi.Head(0, 21)], mi.Head(1, 4)
planted = mi.planted_model(readers=readers, mediators=[mediator], seed=0)
model = mi.load_model(planted)
pairs = mi.make_pairs(model, mi.load_problems(planted, limit=24), mi.Insertion.meaningless(" /", n_tokens=55))
planted.edges

# %% [markdown]
# That is all there is in this model: two heads read the slashes in layer 0; the mediator takes what they wrote by its values
# (`v`); the last MLP takes what all three wrote and makes the answer surer; nothing but that MLP writes to the logits.
#
# ## Straight, or through others?
#
# What a head writes more (with the slashes than without) is added to the very last residual stream, where only the
# unembedding sees it: that part of its effect is *direct*. The rest is *indirect*.

# %%
split = mi.direct_effects(model, pairs, [*readers, mediator], progress=False)
mi.views.direct_bars(split)

# %% [markdown]
# All of it is indirect, as planted. So somebody reads them. Who?
#
# ## Edges
#
# One head's change is shown to one reader alone, to its queries, its keys or its values, all else frozen. What the reader
# then writes more goes on through the model. Every pair, every input, each tested over problems and corrected for all that
# were asked.

# %%
edges = mi.trace_paths(model, pairs, [*readers, mediator], mlps="all", progress=False)
mi.views.path_graph(edges)

# %%
came_back = {(edge.sender, edge.receiver): edge.part for edge in edges.found if edge.part != "qkv"}
assert came_back == planted.edges
print(f"{len(edges.found)} of {len(edges.edges)} edges are shown; by single inputs they are the planted ones.")

# %% [markdown]
# The graph is the planted one, letter by letter. (`qkv` is all three inputs together, which of course carries what `v` does.)
# `direction="noising"` asks the other question, which edges *suffice*: where heads stand in for each other no edge is needed,
# and only noising sees them.
#
# ## Where
#
# The same without choosing heads: the stream before each layer, what its attention adds and what its MLP adds, at one token
# of the question at a time.

# %%
sites = mi.patch_sites(model, pairs, n_rows=5, progress=False)
mi.views.site_map(sites)

# %% [markdown]
# Before layer 0 nothing, after it the effect begins to be in the stream, and behind the last layer it is all in the last
# token, which predicts the answer. What lies between is the way there: mediators look at numbers, so part of it stands at
# other tokens for a while.
#
# ## What do they write?
#
# Tokens that a head's output promotes and suppresses, were it to write straight to the unembedding; and the tokens whose
# keys its queries prefer.

# %%
wrote = mi.what_it_writes(model, pairs, [*readers, mediator], progress=False)
mi.views.token_bars(wrote)

# %%
assert all(wrote.of(head, "query")[0][0].endswith("(inserted)") for head in readers)
wrote

# %% [markdown]
# Where they look is plain: readers at the inserted slash, the mediator at numbers. What they *promote* is next to nothing,
# a thousandth of a logit: these heads write on channels that the unembedding does not read. A table of such tokens would
# still have a first row. So it **describes**; the direct effect above, which is an edit, has already said that this way
# carries nothing.
#
# One more thing is exact: in layer 0 and for identical inserted tokens, what a head takes from the span ($\Sigma$) has one
# direction, in all rows and all problems. Hence the cosines of 1.
#
# ## The demo model
#
# A trained model, whose circuit nobody knows. `make demo` names five readers, all in layer 0, on its first 64 problems and
# confirms them on the next 64. We ask on the 48 after those.

# %%
demo = mi.load_model("demo")
fresh = mi.make_pairs(demo, mi.load_problems("demo", limit=176)[128:], mi.Insertion.meaningless(" /", n_tokens=55))
named = ["L0H18", "L0H20", "L0H21", "L0H22", "L0H27"]
demo_split = mi.direct_effects(demo, fresh, named, progress=False)
mi.views.direct_bars(demo_split)

# %%
demo_edges = mi.trace_paths(demo, fresh, named, mlps="all", progress=False)
mi.views.path_graph(demo_edges)

# %%
demo_edges

# %% [markdown]
# Five heads of one layer cannot read each other: their readers are MLPs and the logits. Read the sentences for which of them
# most problems show; edges that are not drawn are undecided, not absent. Shares of edges do not add up, as a path of two
# edges counts in both.

# %%
mi.what_it_writes(demo, fresh, named, progress=False)

# %% [markdown]
# ## In one command
#
# ```
# mless-interp circuit demo --report --out results/circuit
# ```
#
# does all of it, from naming heads on, and makes one page that tells it in this order.
#
# ## What to conclude, and what not
#
# - Planted edges come back, each by the input by which it was planted, and no other. In a trained model the same numbers say
#   which edges most problems show; they do not say that there are no others.
# - Needed and sufficient are two questions. Ask both, `direction="denoising"` and `"noising"`, before an edge is called absent.
# - Heads must be asked on problems that did not name them.
# - Promoted tokens and preferred keys describe. They are not evidence, however well they read: the readers of the planted model
#   promote some token too, and it has nothing to do with what they do.
