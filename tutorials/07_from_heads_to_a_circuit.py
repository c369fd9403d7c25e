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
# **The question.** [Chapter 3](03_locating_heads.ipynb) named heads that carry the effect of the slashes. Does such a
# head write to the answer or to other heads? To which heads, through which of their inputs and which tokens? We begin with
# a model whose circuit is known: the method must return the planted edges, and nothing else.

# %%
import mless_interp as mi

readers, mediator = [mi.Head(0, 13), mi.Head(0, 21)], mi.Head(1, 4)
planted = mi.planted_model(readers=readers, mediators=[mediator], seed=0)
model = mi.load_model(planted)
pairs = mi.make_pairs(model, mi.load_problems(planted, limit=24), mi.Insertion.meaningless(" /", n_tokens=55))
planted.edges

# %% [markdown]
# The planted circuit: two heads read the slashes in layer 0; the mediator takes what they wrote by its values (`v`);
# the last MLP takes what all three wrote and raises the answer's probability; only that MLP writes to the logits.
#
# ## Direct and indirect
#
# We add the change that the slashes cause in a head's output to the last residual stream, where only the unembedding
# sees it. That part of the head's effect is *direct*, the rest *indirect*.

# %%
split = mi.direct_effects(model, pairs, [*readers, mediator], progress=False)
mi.views.direct_bars(split)

# %% [markdown]
# All of it is indirect, as planted. Which components read these heads?
#
# ## Edges
#
# One receiving head sees the sender's change, in its queries, keys or values, and everything else stays frozen. The
# receiver's new output runs on through the model. Every pair and every input is tested over problems, corrected for all
# tests.

# %%
edges = mi.trace_paths(model, pairs, [*readers, mediator], mlps="all", progress=False)
mi.views.path_graph(edges)

# %%
came_back = {(str(edge.sender), str(edge.receiver)): edge.part for edge in edges.found if edge.part != "qkv"}
assert came_back == planted.edges
print(f"{len(edges.found)} of {len(edges.edges)} edges are shown; by single inputs they are the planted ones.")

# %% [markdown]
# The graph is the planted one, letter by letter. (`qkv` is all three inputs together, so it contains `v`.)
# `direction="noising"` asks which edges *suffice*: where heads replace one another no edge is needed, and only noising
# finds them.
#
# ## Where
#
# `patch_sites` needs no heads: it patches the stream before each layer, the output of its attention and of its MLP, at
# one token of the question at a time.

# %%
sites = mi.patch_sites(model, pairs, n_rows=5, progress=False)
mi.views.site_map(sites)

# %% [markdown]
# Before layer 0 the stream carries nothing; after the last layer the last token, which predicts the answer, carries
# everything. Between them, mediators look at numbers, so part of the effect passes through other tokens.
#
# ## What do they write?
#
# `what_it_writes` lists the tokens that a head's output would promote and suppress through the unembedding, and the tokens
# whose keys its queries prefer.

# %%
wrote = mi.what_it_writes(model, pairs, [*readers, mediator], progress=False)
assert all(wrote.of(head, "query")[0][0].endswith("(inserted)") for head in readers)
wrote

# %% [markdown]
# Readers look at the inserted slash, the mediator at numbers. They *promote* next to nothing, a thousandth of a logit:
# these heads write on channels that the unembedding does not read. Such a table always has a first row, so it only
# **describes**. The direct effect above, an edit, showed that this way carries nothing.
#
# In layer 0 and for identical inserted tokens, a head's input from the span ($\Sigma$) has one direction in all rows
# and problems, exactly.
#
# ## The demo model
#
# `make demo` names five readers, all in layer 0, on its first 64 problems and confirms them on the next 64. We ask on
# the 48 after those.

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
# Five heads of one layer cannot read each other: their receivers are MLPs and the logits. An edge that is not drawn is
# undecided, not absent. Shares of edges do not add up, because a path of two edges counts in both.

# %%
mi.what_it_writes(demo, fresh, named, progress=False)

# %% [markdown]
# ## In one command
#
# ```
# mless-interp circuit demo --report --out results/circuit
# ```
#
# runs every step, from naming heads to the page.
#
# ## What to conclude, and what not
#
# - Planted edges return, each by its planted input, and no other. In a trained model the numbers show which edges most
#   problems have; they do not exclude others.
# - Needed and sufficient are two questions. Ask both directions before calling an edge absent.
# - Measure heads on problems that did not name them.
# - Promoted tokens and preferred keys describe; they are not evidence.
