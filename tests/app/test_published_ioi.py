"""The published circuit for indirect objects, on a tiny random GPT-2 in a folder: prompts, the comparison, wrong input."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT, needs_hooked_transformer
from models_under_test import four_specialists, of_classes
from typer.testing import CliRunner

import mless_interp as mi

SCRIPT = ROOT / "analyses" / "published_ioi.py"


def module() -> Any:
    spec = importlib.util.spec_from_file_location("published_ioi", SCRIPT)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def tokenizer(names: list[str]) -> Any:
    """These names are single words; every other letter is a token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    ioi = module()
    words = {
        word for text in ioi.TEMPLATES for word in text.replace(",", " ").replace(".", " ").split() if "{" not in word
    }
    known = ["<unk>", "<eos>", ",", ".", *sorted(words), *ioi.PLACES, *ioi.OBJECTS, *names]
    made = Tokenizer(models.WordLevel({word: at for at, word in enumerate(dict.fromkeys(known))}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("isolated")]
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<eos>", eos_token="<eos>", unk_token="<unk>")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    made, words = tmp_path_factory.mktemp("gpt2"), tokenizer(module().NAMES)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(words), n_layer=4, n_head=4, n_embd=32, n_positions=64, bos_token_id=1, eos_token_id=1
    )
    model = GPT2LMHeadModel(config)
    for weight in model.parameters():
        weight.data += 0.2 * torch.randn_like(weight) * (weight.dim() > 1)
    model.save_pretrained(made)
    words.save_pretrained(made)
    return made


def test_prompts_are_those_of_the_paper() -> None:
    ioi, words = module(), tokenizer(module().NAMES)
    made = ioi.prompts(words, 40, seed=0)
    assert made == ioi.prompts(words, 40, seed=0) and len({tuple(ids) for ids in made["ids"]}) == 40
    for ids, clean, answer, distractor in zip(
        *(made[key] for key in ("ids", "clean", "answers", "distractors")), strict=True
    ):
        assert len(ids) == len(clean) and ids.count(distractor[0]) == 2 and ids.count(answer[0]) == 1
        changed = [at for at, (one, other) in enumerate(zip(ids, clean, strict=True)) if one != other]
        assert len(changed) == 3 and len({clean[at] for at in changed}) == 3  # three names, all others
        assert not {clean[at] for at in changed} & {answer[0], distractor[0]}
    assert len(set(np.concatenate(made["answers"]))) > 10


def test_the_published_heads_of_this_size_are_compared(folder: Path, tmp_path: Path) -> None:
    asked = ["--limit", "12", "--no-progress", "--report", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(module().app, [str(folder), *asked])
    assert done.exit_code == 0, done.stderr
    table = pd.read_csv(tmp_path / "out" / "comparison.csv")
    assert table["head"].tolist() == ["L0H1", "L3H0", "L2H2"]  # what 4 layers of 4 heads have of them
    found = mi.load(tmp_path / "out")["LocatedHeads"]
    kinds = dict(zip(map(str, found.heads), found.judged.kinds, strict=True))
    assert table["here"].tolist() == [kinds[head] for head in table["head"]]
    said = " ".join(done.stdout.split())
    judged = module().established(found)
    assert ("of 3 published heads of this size are confirmed in the published sense" in said) is judged
    assert ("cannot be judged" in said) is not judged
    assert (tmp_path / "out" / "report.html").is_file()


@needs_hooked_transformer
def test_heads_that_fresh_prompts_do_not_confirm_do_not_agree() -> None:
    """A head named on problems of its class, tested again on those of another class."""
    ioi, options = module(), {"contrast": "replaced", "controls": False, "progress": False}
    one, two = of_classes(24, 0, (1,)), of_classes(24, 0, (2,))
    for fresh, agrees in ((of_classes(24, 1, (1,)), True), (two, False)):
        found = mi.locate_heads(four_specialists(), one, confirm=fresh, **options)
        table = ioi.comparison(found, (1, 4)).set_index("head")
        assert list(found.found) == [mi.Head(0, 1)] and table["agrees"].tolist() == [agrees]
        assert table["confirmed"].tolist() == [agrees]
        assert ioi.verdict(table.reset_index(), found).startswith(f"{int(agrees)} of 1 published heads")
    silent = mi.pairs_from_ids([[8, 9, 8, 8 + at] for at in (0, 1)], [0, 1], clean=[[9, 9, 8, 8], [9, 9, 8, 9]])
    with pytest.warns(UserWarning, match="too few"):
        found = mi.locate_heads(four_specialists(), silent, **options)
    table = ioi.comparison(found, (1, 4))
    assert table["agrees"].isna().all() and "cannot be judged" in ioi.verdict(table, found)
