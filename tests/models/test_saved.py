"""What is looked at in a saved model's folder before anything long, rule by rule, with files of a few bytes."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from mless_interp.models import loaded_weights
from mless_interp.models import model_folder as saved
from mless_interp.models.info import ModelError
from mless_interp.models.loaded_weights import WeightsHash, config_hash
from mless_interp.models.model_folder import first_line


def said(call: Any, *arguments: Any) -> str:
    with pytest.raises(ModelError) as error:
        call(*arguments)
    return str(error.value)


def test_a_json_file_holds_an_object(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    assert said(saved.document, tmp_path, "config.json").startswith(f"{file} is missing or damaged, it holds no JSON (")
    file.write_text("[1]")
    assert said(saved.document, tmp_path, "config.json").startswith(
        f"{file} is damaged: expected a JSON object, got a list"
    )
    file.write_text('{"ä": 1}', encoding="utf-8")
    assert saved.document(tmp_path, "config.json") == {"ä": 1}


@pytest.mark.parametrize("name", ["vocab.txt", "qwen.tiktoken"])
def test_any_vocabulary_will_do_and_so_will_code_of_its_own(name: str, tmp_path: Path) -> None:
    missing = f"{str(tmp_path)!r} holds no tokenizer (none of tokenizer.json, tokenizer.model, vocab.json, vocab.txt, "
    assert said(saved.check_tokenizer, tmp_path).startswith(missing)
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "x"}')
    assert said(saved.check_tokenizer, tmp_path).startswith(missing)
    (tmp_path / name).write_text("{}")
    saved.check_tokenizer(tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / "tokenizer_config.json").write_text('{"auto_map": {}}')
    saved.check_tokenizer(tmp_path)


def test_what_a_library_says_is_told_on_one_line() -> None:
    lines = {
        "one": "one", "one\ntwo": "one", "a:\nb": "a: b", "a:\nb:\nc\nd": "a: b: c", "a:": "a:", "a:\nb:": "a: b:",
        "\n  x \n": "x",
    }  # fmt: skip
    assert {text: first_line(RuntimeError(text)) for text in lines} == lines
    assert first_line(RuntimeError("")) == first_line(RuntimeError(" \n")) == "RuntimeError"


# --------------------------------------------------------------------------------------------------------- its weights


class Held(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Module()
        self.inner.weight = nn.Parameter(torch.ones(2, 3))
        self.inner.register_parameter("bias", None)
        self.register_buffer("kept", torch.ones(2))
        self.register_buffer("made_anew", torch.zeros(2), persistent=False)


def test_the_hash_is_of_names_dtypes_shapes_and_bytes_of_what_is_saved() -> None:
    def of(**tensors: torch.Tensor) -> str:
        made = nn.Module()
        for name, tensor in tensors.items():
            made.register_buffer(name, tensor)
        return WeightsHash().of(made)

    x = torch.arange(6.0)
    others = [
        of(a=x), of(b=x), of(a=x.double()), of(a=x.reshape(2, 3)), of(a=x + 1), of(a=x, b=x), of(a=x, b=x + 1),
        of(a=x + 1, b=x), of(a=x.reshape(2, 3).T), of(),
    ]  # fmt: skip
    assert len(set(others)) == len(others) and all(len(made) == 5 + 32 and made.startswith("xxh3:") for made in others)
    assert of(a=x, b=x + 1) == of(b=x + 1, a=x), "in any order"
    assert of(a=x.reshape(2, 3).T) == of(a=x.reshape(2, 3).T.contiguous()), "strides are no part of it"
    assert of(a=x, b=x) == of(a=x, b=x.clone()), "tied or not"
    model = Held()
    before = WeightsHash().of(model)
    model.made_anew += 1
    assert WeightsHash().of(model) == before
    model.kept += 1
    assert WeightsHash().of(model) != before


def test_a_config_s_hash_is_of_how_it_is_run() -> None:
    def config(**said: Any) -> SimpleNamespace:
        return SimpleNamespace(to_dict=lambda: said)

    assert config_hash(object()) is None
    base = config_hash(config(a=1, b={"c": 2}))
    assert base == config_hash(config(b={"c": 2}, a=1)) and base is not None and len(base) == 5 + 32
    for name in loaded_weights._NOT_RUN:
        assert config_hash(config(a=1, b={"c": 2}, **{name: "x"})) == base
    others = [config(a=2, b={"c": 2}), config(a=1, b={"c": 3}), config(a=1), config(a=1, b={"c": 2}, rope_theta=1)]
    assert len({base, *map(config_hash, others)}) == 5
    assert config_hash(config(a=torch.float32)) == config_hash(config(a="torch.float32"))
