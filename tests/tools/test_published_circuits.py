"""The page of published circuits, of a folder that holds a program compiled by hand and a model that nobody described."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import published_circuits
import pytest
from conftest import needs_hooked_transformer
from small_results import OTHERS

import mless_interp as mi

LETTERS = "abcd"


def program(folder: Path, name: str, **about: Any) -> None:
    """The first letter, copied to every later position by the second of two heads; the first head writes what nobody reads."""
    tokens = ["BOS", *LETTERS]
    labels = [f"tokens:{each}" for each in tokens] + [f"indices:{at}" for at in range(4)]
    labels += [*(f"out_1:{each}" for each in LETTERS), "idle_2", "idle_3"]
    row = {label: at for at, label in enumerate(labels)}
    query, key, value = (np.zeros((len(labels), 8)) for _ in range(3))
    out, first, second = np.zeros((8, len(labels))), np.zeros((len(labels), 1)), np.zeros((1, len(labels)))
    key[row["indices:1"], 4], key[row["tokens:BOS"], 0] = 1, 1
    for at, letter in enumerate(LETTERS):
        query[row[f"tokens:{letter}"], [0, 4]] = 100
        value[row[f"tokens:{letter}"], 4 + at] = 1
        out[4 + at, row[f"out_1:{letter}"]] = 1
    weights = {"query/w": query, "key/w": key, "value/w": value, "linear/w": out}
    made = {f"transformer/layer_0/attn/{each}": matrix for each, matrix in weights.items()}
    made |= {f"transformer/layer_0/attn/{each}/b": np.zeros(8) for each in ("query", "key", "value")}
    made |= {"transformer/layer_0/attn/linear/b": np.zeros(len(labels)), "transformer/layer_0/mlp/linear_1/w": first}
    made |= {"transformer/layer_0/mlp/linear_1/b": np.zeros(1), "transformer/layer_0/mlp/linear_2/w": second}
    made |= {"transformer/layer_0/mlp/linear_2/b": np.zeros(len(labels))}
    made |= {"token_embed/embeddings": np.eye(5, len(labels)), "pos_embed/embeddings": np.eye(4, len(labels), 5)}
    np.savez(folder / f"{name}.npz", **made)
    known = {"program": "out", "causal": True, "num_layers": 1, "num_heads": 2, "key_size": 4, "mlp_hidden_size": 1}
    known |= {"layer_norm": False, "activation": "relu", "residual_labels": labels}
    known |= {"input_encoding": {each: at for at, each in enumerate(tokens)}, **about}
    (folder / f"{name}.json").write_text(json.dumps(known))


@needs_hooked_transformer
@pytest.mark.filterwarnings("ignore::UserWarning")  # few problems
def test_a_page_of_any_folder(tmp_path: Path, monkeypatch: Any) -> None:
    import torch
    from safetensors.torch import save_file
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    folder, page = tmp_path / "published", tmp_path / "page.md"
    (folder / "unknown").mkdir(parents=True)
    program(folder, "copy")
    program(folder, "both_ways", causal=False)
    config = {"n_layers": 1, "n_heads": 2, "d_model": 8, "d_head": 4, "n_ctx": 6, "d_vocab": 7, "act_fn": "relu"}
    config |= {"attn_only": True, "normalization_type": None}
    drawn = HookedTransformer(HookedTransformerConfig(**config, seed=0, device="cpu"))
    for weight in drawn.parameters():
        weight.data += torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel()))
    (folder / "unknown" / "config.json").write_text(json.dumps(config))
    save_file(
        {name: each.contiguous() for name, each in drawn.state_dict().items()}, folder / "unknown" / "model.safetensors"
    )
    monkeypatch.setattr(published_circuits, "N", 12)
    monkeypatch.setattr(sys, "argv", ["x", str(folder), "--page", str(page), "--keep", str(tmp_path / "pairs")])
    published_circuits.main()
    text = page.read_text()
    assert "| heads | L0H1 | L0H1 | 1 of 1 | 1 of 1 | 1.000 |" in text
    assert "| edges | L0H1 -> logits | L0H1 -> logits | 1 of 1 | 1 of 1 | 1.000 |" in text
    assert "both_ways.json is not causal" in text
    assert "### unknown: one of its tokens is another" in text and "Nothing published is at hand" in text
    assert mi.prompts.own_ids.pairs_from_file(tmp_path / "pairs" / "copy-replaced.jsonl")[0].clean is not None
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr(sys, "argv", ["x", str(tmp_path / "empty"), "--page", str(page)])
    with pytest.raises(SystemExit):
        published_circuits.main()


def test_heads_against_the_effect_are_said_to_be_so() -> None:
    found = OTHERS["LocatedHeads, two against"]()
    assert {published_circuits.strata_words(found, head) for head in found.found} == {"against"}


@needs_hooked_transformer
def test_what_others_published_comes_out(shared_dir: Path) -> None:
    folder = shared_dir / "models" / "published"
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent")

    def asked(name: str, contrast: str, outcome: str, n: int) -> tuple[Any, Any, dict[str, Any]]:
        model = mi.load_model(folder / name)
        question = next(
            each for each in published_circuits.TASKS[name] if (each.contrast, each.outcome) == (contrast, outcome)
        )
        pairs = question.draw(model, np.random.default_rng(5), n)
        return model, pairs, {"contrast": contrast, "outcome": outcome, "progress": False}

    model, pairs, options = asked("palindromes", "content", "answer_logprob", 24)
    found = mi.locate_heads(model, pairs, controls=False, **options)
    assert {str(head): kind for head, kind in found.found.items()} == {"L0H0": "reader", "L1H0": "mediator"}
    model, pairs, options = asked("induction", "inside", "answer_logprob", 32)
    assert {str(head) for head in mi.locate_heads(model, pairs, controls=False, **options).found} == {"L0H0", "L1H2"}
    edges = mi.trace_paths(model, pairs, ["L0H0", "L1H2"], **options)
    assert {str(edge) for edge in edges.found} == {"L0H0 -> L1H2 k", "L0H0 -> L1H2 qkv", "L1H2 -> logits"}
    model, pairs, options = asked("first_unique_character", "replaced", "logit_diff", 240)
    specialists = mi.locate_heads(model, pairs, by="letter", controls=False, **options).specialists
    shared = {str(head): " ".join(strata) for head, strata in specialists.items() if head.layer == 1}
    assert shared == {"L1H0": "a c", "L1H1": "d e f j", "L1H2": "b g h i"}
