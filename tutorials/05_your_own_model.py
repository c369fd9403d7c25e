# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 5 · Your own model, your own cache
#
# **The question.** You have a TransformerLens `HookedTransformer`, a `TransformerBridge`, an nnsight model, or an
# `ActivationCache`. How does it go in? `wrap_model` puts it behind one interface, and every analysis runs on it
# unchanged. This chapter measures the same with all of them and compares the numbers.
#
# All models here have random weights, so that nothing is downloaded.
#
# ## A HookedTransformer in your hands
#
# A `HookedTransformer` of GPT-2's shape (learned positions, LayerNorm, an MLP without a gate), built from a config.
# Yours may be `HookedTransformer.from_pretrained("gpt2")`. TransformerLens 3.9 is the last release that has the class.

# %%
import mless_interp as mi

demo = mi.load_model("demo")  # for its tokenizer
problems = mi.load_problems("demo", limit=6)
filler = mi.Insertion.meaningless(" /", n_tokens=20)
own = None
try:
    from transformer_lens import HookedTransformer, HookedTransformerConfig
except ImportError:
    print("this transformer-lens has no HookedTransformer; 3.9 is the last that has")
else:
    config = HookedTransformerConfig(
        n_layers=3,
        d_model=64,
        n_heads=8,
        d_head=8,
        d_vocab=demo.info.d_vocab,
        n_ctx=512,
        act_fn="gelu_new",
        normalization_type="LN",
        positional_embedding_type="standard",
        initializer_range=0.3,
        seed=0,
        device="cpu",
    )
    hooked = HookedTransformer(config)
    own = mi.wrap_model(hooked, name="my GPT-2", tokenizer=demo.tokenizer)
    print(own.underlying is hooked, own.checks, sep="\n")

# %% [markdown]
# Every analysis takes it. One line finds which heads carry the effect of the slashes, by cutting each one off from
# them. Learned positions come from a table, so a prompt that exceeds the context is refused before anything runs.

# %%
if own is not None:
    print(mi.patch_heads(own, mi.make_pairs(own, problems, filler), edit="knockout", progress=False))

# %% [markdown]
# A missing site is refused by its name: GPT-2's MLP has no gate, so no `hook_pre_linear`. Without rotary positions,
# queries and keys enter the scores as they are.

# %%
if own is not None:
    tokens = mi.make_pairs(own, problems, filler)[0].inserted.tokens
    sites = ["blocks.0.attn.hook_q", "blocks.0.attn.hook_rot_q"]
    q, entering = own.run(tokens, capture=dict.fromkeys(sites)).captured.values()
    print((q == entering).all().item())
    try:
        own.run(tokens, capture={"blocks.0.mlp.hook_pre_linear": None})
    except mi.ModelError as error:
        print(error)

# %% [markdown]
# ## A model in a directory
#
# The rest of this chapter uses a Qwen2, saved to a temporary directory. Replace the directory by your own model's or by
# a hub id.

# %%
import tempfile
from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.utils import logging

logging.disable_progress_bar()
folder = Path(tempfile.mkdtemp()) / "tiny-qwen2"
torch.manual_seed(0)
config = Qwen2Config(
    vocab_size=demo.info.d_vocab,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=3,
    num_attention_heads=8,
    num_key_value_heads=2,
    initializer_range=0.3,
    eos_token_id=demo.tokenizer.eos_token_id,
)
Qwen2ForCausalLM(config).save_pretrained(folder)
saved = demo.tokenizer.save_pretrained(folder)

# %% [markdown]
# ## TransformerLens: HookedTransformer
#
# `load_model(..., backend="hooked_transformer")` converts the saved weights **without** folding anything.
# `model.underlying` is the library's own object.

# %%
models = {}
if own is not None:
    models["HookedTransformer"] = mi.load_model(folder, backend="hooked_transformer")
    print(isinstance(models["HookedTransformer"].underlying, HookedTransformer))

# %% [markdown]
# ## TransformerLens: TransformerBridge
#
# The bridge keeps the Hugging Face modules and puts TransformerLens' hook names on them. Wrapping changes no weight,
# leaves no hook, and runs the self-check. Give the tokenizer too: TransformerLens 4 loads the bridge's own anew, with a
# beginning-of-sequence token in front.

# %%
from transformer_lens.model_bridge import TransformerBridge

hf_model = Qwen2ForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
own_bridge = mi.load_model(folder, backend="bridge").underlying  # as if you had made it yourself
print(isinstance(own_bridge, TransformerBridge))
models["TransformerBridge"] = mi.wrap_model(own_bridge, name="my bridge", tokenizer=demo.tokenizer)
print(models["TransformerBridge"].checks)

# %% [markdown]
# ## nnsight

# %%
import nnsight

traced = nnsight.LanguageModel(hf_model, tokenizer=demo.tokenizer)
models["nnsight"] = mi.wrap_model(traced, name="my nnsight model")
models["nnsight"]

# %% [markdown]
# ## The same numbers from all of them
#
# A sweep over all heads, and an attention metric, on each:

# %%
import pandas as pd

rows = []
for name, model in models.items():
    pairs = mi.make_pairs(model, problems, filler)
    patches = mi.patch_heads(model, pairs, progress=False)
    scores = mi.score_heads(model, pairs, metrics=["span_mass"], progress=False)
    effects = patches.effect.mean(0)
    rows.append(
        {
            "backend": name,
            "total effect": patches.total_effect.mean(),
            "L0H3 effect": effects[0, 3],
            "L0H3 span mass": scores.mean("span_mass")[0, 3],
        }
    )
table = pd.DataFrame(rows).set_index("backend")
print(table.round(6))
disagreement = (table.max() - table.min()).max()
print(f"largest disagreement: {disagreement:.1e}")
assert disagreement < 1e-4

# %% [markdown]
# ## A cache that you already have
#
# Every attention metric also takes a TransformerLens `ActivationCache`. It needs the patterns, and the prompt for the
# place of the span.

# %%
library = models.get("HookedTransformer", models["TransformerBridge"])
pair = mi.make_pairs(library, problems, filler)[0]
_, cache = library.underlying.run_with_cache(pair.inserted.tokens)
from_cache = mi.score_cache(cache, pair)
from_cache.top("span_mass", 5)[["label", "span_mass"]].round(4)

# %% [markdown]
# ## Your own edit
#
# `Model.run` captures any TransformerLens hook name through a reducer (so that nothing large is kept) and edits any of
# them with a pure function, on every backend. Here: one head's attention to the span is set to zero *without*
# renormalising, and the remaining attention is read in the same pass.

# %%
a, b = pair.span


def silence(pattern):
    edited = pattern.clone()  # never edit somebody's tensor in place
    edited[:, 3, b:, a:b] = 0
    return edited


for name, model in models.items():
    site = "blocks.0.attn.hook_pattern"
    left = model.run(
        pair.inserted.tokens,
        edits={site: silence},
        capture={site: lambda pattern: pattern[0, 3, b:].sum(-1).mean()},
        logits_at="last",
    )
    print(f"{name:18s} attention left to head L0H3: {float(left.captured[site]):.4f}")

# %% [markdown]
# ## Is my model measured correctly?
#
# `mless-interp check MODEL` runs the self-check and the exact identities on your model and prints a certificate. A
# backend that shows a wrong pattern for your architecture fails there.
#
# ## What to conclude, and what not
#
# - The library is a matter of convenience; the numbers agree to rounding. The tests compare every hook name on every
#   backend for Qwen2, Llama and Gemma 3, and GPT-2's shape with TransformerLens' own patching.
# - HookedTransformer is the familiar one, the bridge keeps the original modules (quantised ones too), nnsight spans
#   several devices: next chapter.
# - A cache contains whole patterns: layers × heads × tokens². For long prompts use `score_heads`, which reduces each
#   layer while it runs.
#
# Next: [larger models](06_larger_models_with_nnsight.ipynb).
