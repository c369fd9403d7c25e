# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 1 · Insertions and alignment
#
# **The question.** *Meaningless Tokens, Meaningful Gains* ([arXiv 2510.01032](https://arxiv.org/abs/2510.01032)) puts a
# long run of slashes between the system prompt and the question and finds that answers change. To see what happens
# inside the model we must know, for every token of the question, *which token it was before the insertion*. This
# chapter shows why that is not trivial, and which checks `mless_interp` makes before it compares anything.

# %%
import mless_interp as mi

model = mi.load_model("demo")
model

# %% [markdown]
# The demo model has 4 layers with 28 query heads and 4 key-value heads each, like a slice of Qwen2.5, and answers small
# word problems. `model.checks` are the figures of the self-check that every model passes at loading: logits agree with
# plain Hugging Face, a gap of positions is a masked span, replay is a whole pass.

# %%
print(model.checks)

# %% [markdown]
# ## A prompt is ids with a name on each token
#
# A `Problem` has a system prompt, a question and an answer. `build_prompt` returns token ids and the segment of each
# token.

# %%
problem = mi.load_problems("demo", limit=1)[0]
prompt = mi.prompts.build_prompt(model.tokenizer, problem)
print(problem.system, "|", problem.question, "|", problem.answer)
print({name: len(prompt.indices(name)) for name in dict.fromkeys(prompt.segments)})

# %% [markdown]
# ## Why inserting text is a trap
#
# Joined strings leave the insertion to the tokenizer. A byte-pair tokenizer merges across the borders and inside a run:
# `"/" * 55` is not 55 tokens. To show it without a download we train a small byte-pair tokenizer on text with runs of
# slashes, as every web corpus has them.

# %%
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

text = [
    "https://example.org/a/b/c",
    "//////// a comment ////////",
    "Find 3/4 of 12. Then add 1/2.",
    "and/or // path/to/file",
] * 50
bpe = Tokenizer(models.BPE())
bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
bpe.train_from_iterator(text, trainers.BpeTrainer(vocab_size=400, show_progress=False))
for string in ["/" * 55, " /" * 55, "add:", "Find", "add:" + "/" * 2 + "Find"]:
    print(len(bpe.encode(string).ids), "tokens:", bpe.encode(string).tokens[-6:])

# %% [markdown]
# 55 slashes without spaces are 9 tokens, with spaces 110. In the last line the colon before the slashes has become the
# token `://`: the insertion changed its neighbour.
#
# An `Insertion` is therefore counted in **tokens** and inserted as **ids**. `make_pairs` builds both prompts and checks
# the map between them token by token: without its inserted tokens the long prompt *is* the short one, or there is an
# error.

# %%
filler = mi.Insertion.meaningless(" /", n_tokens=55)
problems = mi.load_problems("demo", limit=8)
pairs = mi.make_pairs(model, problems, filler)
pair = pairs[0]
print(f"base {len(pair.base)} tokens, inserted {len(pair.inserted)} tokens, span {pair.span}")
print(
    "the tokens before and after the span:",
    model.tokenizer.convert_ids_to_tokens(pair.inserted.ids[pair.span[0] - 2 : pair.span[0] + 2]),
)
for short in (0, pair.span[0] - 1, pair.span[0], len(pair.base) - 1):
    long = pair.alignment[short]
    print(
        f"token {short:2d} without insertion is token {long:2d} with it: {pair.base.ids[short] == pair.inserted.ids[long]}"
    )

# %% [markdown]
# ## A picture
#
# The question moves 55 places to the right. That is already an intervention: its rotary position ids change before any
# token attends to a slash.

# %%
import matplotlib.pyplot as plt

colours = {"system": "#56B4E9", "inserted": "#D55E00", "question": "#009E73", "template": "#999999", "bos": "#999999"}
figure, axes = plt.subplots(figsize=(9, 1.8))
for row, each in enumerate((pair.inserted, pair.base)):
    for at, name in enumerate(each.segments):
        axes.barh(row, 1, left=at, color=colours[name], edgecolor="white", linewidth=0.4)
axes.set_yticks([0, 1], ["with 55 slashes", "without"])
axes.set_xlabel("token position")
handles = [plt.Rectangle((0, 0), 1, 1, color=colours[name]) for name in ("system", "inserted", "question")]
axes.legend(
    handles, ["system", "inserted", "question"], ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False
)
figure.tight_layout()
plt.show()

# %% [markdown]
# ## Conditions
#
# "Without" against "with" mixes two changes: the question *moves*, and the question can *read slashes*. Five runs
# separate them.
#
# | condition | tokens | the question's positions | who may read the slashes |
# | --- | --- | --- | --- |
# | `base` C0 | system, question | unmoved | there are none |
# | `gap` C2 | system, question | moved by 55 | there are none |
# | `masked` C3 | system, slashes, question | moved by 55 | only the slashes |
# | `inserted` C1 | system, slashes, question | moved by 55 | every token |
# | `held` C4 | system, slashes, question | unmoved | every token |
#
# `gap` and `masked` differ in length and must give the *same* numbers at the shared tokens. This identity tests the
# tool.

# %%
import torch

logits = {}
for name in ("base", "gap", "masked", "inserted", "held"):
    inputs = pair.condition(name)
    run = model.run(inputs, logits_at="last")
    logits[name] = torch.log_softmax(run.logits[0, -1].double(), -1)
for first, second, why in (
    ("gap", "masked", "an identity"),
    ("base", "gap", "only the shift of positions"),
    ("masked", "inserted", "reading the slashes"),
):
    print(f"{first} -> {second}: largest difference {(logits[first] - logits[second]).abs().max():.1e} nats ({why})")

# %% [markdown]
# **Contrasts** compare two conditions: `content` = masked → inserted, `shift` = base → gap, `total` = base → inserted.
# The first two join prompts of *equal length*, so no patch moves an activation to a wrong position, and
# `total = shift + content` by construction.
#
# ## What else can be inserted
#
# Controls matter more than the slashes. They are counted the same way, so lengths match exactly.

# %%
for insertion in (
    mi.Insertion.meaningless(" ?", 12),
    mi.Insertion.random_sentence(12, seed=0),
    mi.Insertion.random_sentence(12, seed=0, draw=1),
):
    made = mi.make_pairs(model, problems[:1], insertion)[0]
    print(f"{insertion.label:32s} {model.tokenizer.decode(made.inserted.ids[made.span[0] : made.span[1]])}")

# %% [markdown]
# Comparisons that are undefined are refused before anything runs, with the remedy:

# %%
try:
    mi.patch_heads(model, pairs, contrast="total", edit="knockout")  # nobody in `base` could look at a slash
except ValueError as error:
    print(error)

# %% [markdown]
# ## What to conclude, and what not
#
# - With strings, 55 slashes are rarely 55 tokens, and the tokens next to them can change.
# - A difference between `base` and `inserted` is *not yet* an effect of the slashes. Part of it is the shift of
#   positions, which `gap` measures.
# - Nothing here shows that slashes help. The demo model exists so that every step can be run; with your own model only
#   the line that loads it changes.
#
# Next: [what the heads attend to, with and without](02_attention_collapse_and_recovery.ipynb).
