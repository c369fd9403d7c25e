# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 0 · Start here
#
# **The question.** A row of meaningless slashes comes between the system prompt and the question. Does it change the
# model's view of the right answer, which attention heads are responsible, and do answers return without them? This
# notebook asks all of it once, offline, on a small trained model that is included. Later chapters take each step apart.
#
# **Where it runs.** Wherever `mless_interp` is installed: `pip install .` in a copy of the project, then `jupyter lab`.
# **On Google Colab**: build a wheel on your machine with `pip wheel . --no-deps -w dist`, upload it with the folder
# symbol at the left, and run this in a new cell before all others (no GPU is needed; restart the session if Colab asks
# for it):
#
# ```
# %pip install /content/mless_interp-0.1.0-py3-none-any.whl
# ```

# %%
import mless_interp as mi

model = mi.load_model("demo")  # or a saved model's directory, or a hub id
model

# %% [markdown]
# ## Problems, with and without slashes
#
# Fifty-five slashes are inserted as token ids, so nothing merges at the borders. A `PromptPair` contains both prompts
# and the map from each token of the question to its place before; it prints its alignment in one line.

# %%
problems = mi.load_problems("demo", limit=108)  # or a .jsonl file with MATH-500's keys
filler = mi.Insertion.meaningless(" /", n_tokens=55)
everything = mi.make_pairs(model, problems, filler)
pairs, fresh, others = everything[:24], everything[24:48], problems[48:]
pairs[0]

# %% [markdown]
# ## One head at a time
#
# Two runs of equal length are compared. In the *clean* run no token can attend to the slashes, in the *corrupted* run
# every token can. The effect is the difference of the right answer's log-probability. Then the output of one head is
# replaced by its clean value, for every head, exactly: how much of the effect disappears?

# %%
patches = mi.patch_heads(model, pairs, progress=False)
mi.views.head_map(patches)

# %% [markdown]
# Strokes mark heads that carry more than 5 % of the effect in most problems, by an exact test corrected for 112 heads.
# The next cell runs the whole experiment: both directions (twice as many tests, so a head that just passes here may not
# be named there), each head's own attention to the slashes, the named heads again on fresh problems, and random words of
# the same length as a control.

# %%
found = mi.locate_heads(model, pairs, confirm=fresh, n_random_sets=20, n_control_draws=2, progress=False)
found.summary().head(8)[["label", "kind", "confirmed", "removed_k", "n", "removed_share"]].round(2)

# %% [markdown]
# `print(found)` reports the result in a few lines; `found.explain()` says everything.

# %%
print(found)

# %% [markdown]
# ## Where such a head looks
#
# Each row is a token that attends, each column a token that receives attention. The inserted block is one column, the
# sum of the attention to its tokens. Point at a cell for its number.

# %%
strongest = list(found.summary()["label"].head(2))
mi.views.attention(model, pairs[0], strongest)

# %% [markdown]
# ## Do answers return?
#
# Log-probabilities are not answers. Sixty other problems are answered as they are, with the slashes, and with the
# slashes hidden from the confirmed heads.

# %%
treatments = [None, filler, mi.Treatment(filler, knockout=list(found.confirmed), name="slashes, heads cut off")]
answers = mi.evaluate_accuracy(model, others, treatments, progress=False)
mi.views.accuracy_bars(answers)

# %% [markdown]
# ## Keep it
#
# A page opens from disk without a network, with every number and the command to repeat it.

# %%
from pathlib import Path

folder = Path("results")
folder.mkdir(exist_ok=True)
page = mi.Report("Heads that carry the slashes", question="Which heads carry 55 slashes in the demo model?").result(
    found
)
page.save(folder / "start_here.html").name

# %% [markdown]
# ## What to conclude, and what not
#
# - In this model a few heads of the first layer read the slashes and carry most of their effect on the right answer's
#   log-probability, on fresh problems too, and not for random words.
# - *That* the model responds was trained: rows of slashes marked stories whose numbers were unreliable. *Which* heads
#   carry the response was not chosen.
# - Whether answers return *because* these heads are cut off needs random sets of the same layer and more than sixty
#   problems: `mless-interp locate --confirm 64 --answers 200 --report` finds that random sets recover about as many.
# - An unnamed head may still matter unless its verdict is "negligible".
#
# **Your own model** replaces "demo": a directory, a hub id, or `mi.wrap_model(hooked)` for a HookedTransformer in
# memory ([chapter 5](05_your_own_model.ipynb)). Next: [insertions and alignment](01_insertions_and_alignment.ipynb).
