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
# **The question.** A row of slashes that means nothing stands between the system prompt and the question. Does it change
# what the model thinks of the right answer, which attention heads carry that, and do answers come back without them? This
# notebook asks all of it once, on a small trained model that comes with the package, offline, in less than a minute. The
# chapters after it take each step apart.
#
# **Where it runs.** Wherever `mless_interp` is installed: `pip install .` in a copy of the project, then `jupyter lab`, or
# open this file in an editor. **On Google Colab**: make a wheel on your machine with `pip wheel . --no-deps -w dist`, upload
# `dist/mless_interp-0.1.0-py3-none-any.whl` with the folder symbol at the left, and run this in a new cell before all others
# (no GPU is needed; restart the session if Colab asks for it):
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
# Fifty-five slashes go in as token ids, so that nothing is merged at the borders, and for every token of the question it is
# proved which token it was before. A `PromptPair` prints its alignment in one line.

# %%
problems = mi.load_problems("demo", limit=108)  # or a .jsonl file with MATH-500's keys
filler = mi.Insertion.meaningless(" /", n_tokens=55)
everything = mi.make_pairs(model, problems, filler)
pairs, fresh, others = everything[:24], everything[24:48], problems[48:]
pairs[0]

# %% [markdown]
# ## One head at a time
#
# Two runs of equal length are compared: in one nobody may look at the slashes, in the other everybody may. What the right
# answer's log-probability loses between them is the effect. Then the output of one head is put back as if it had seen no
# slash, for every head, exactly: how much of the effect goes with it?

# %%
patches = mi.patch_heads(model, pairs, progress=False)
mi.views.head_map(patches)

# %% [markdown]
# The strokes mark heads that carry more than 5 % of the effect in most problems, by an exact test that knows that 112 heads
# were tried. The next cell does the whole experiment: both directions, what each head does by its own look at the slashes,
# the named heads again on problems that did not name them, and beside random words of the same length.

# %%
found = mi.locate_heads(model, pairs, confirm=fresh, n_random_sets=20, n_control_draws=2, progress=False)
found.summary().head(8)[["label", "kind", "confirmed", "removed_count", "n", "removed_share"]].round(2)

# %% [markdown]
# `print(found)` says all of it in sentences. Here are those on the fresh problems that matter most:

# %%
said = found.confirmation.sentences()
print(*(sentence for sentence in said if "onfirmed" in sentence or "as a set" in sentence), sep="\n")

# %% [markdown]
# ## What such a head looks at
#
# Each row is a token that attends, each column one that is attended to; the inserted block is drawn as one column, the sum
# of the attention to its tokens. Point at a cell for its number.

# %%
strongest = list(found.summary()["label"].head(2))
mi.views.attention(model, pairs[0], strongest)

# %% [markdown]
# ## Do answers come back?
#
# Log-probabilities are not answers. So sixty other problems are answered: as they are, with the slashes, and with the
# slashes while the confirmed heads cannot see them.

# %%
treatments = [None, filler, mi.Treatment(filler, knockout=list(found.confirmed), name="slashes, heads cut off")]
answers = mi.evaluate_accuracy(model, others, treatments, progress=False)
mi.views.accuracy_bars(answers)

# %% [markdown]
# ## Keep it
#
# A page opens from disk without a network, with every number and how to repeat it.

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
# - In this model a handful of heads of the first layer read the slashes and carry most of what they do to the right
#   answer's log-probability, also on problems that did not name them, and not for random words.
# - *That* it responds was made: in its training, rows of slashes marked stories whose numbers could not be trusted. *Which*
#   heads carry it was not chosen.
# - Whether answers come back *because* these heads are cut off takes random sets of the same layer beside them and more
#   problems than sixty: `mless-interp locate --confirm 64 --answers 200 --report` does that, and finds that random sets
#   bring back about as many.
# - A head that is not named is not shown to do nothing, unless its verdict is "negligible".
#
# **Your own model** goes in where "demo" stands: a directory, a hub id, or `mi.wrap_model(hooked)` for a HookedTransformer
# in memory ([chapter 5](05_your_own_model.ipynb)). Next: [insertions and alignment](01_insertions_and_alignment.ipynb).
