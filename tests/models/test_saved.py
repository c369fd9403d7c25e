"""What is looked at in a saved model's folder before anything long, rule by rule, with files of a few bytes."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from mless_interp.models import loaded_weights
from mless_interp.models import model_folder as saved
from mless_interp.models.info import ModelError
from mless_interp.models.loaded_weights import WeightsHash, config_hash
from mless_interp.models.model_folder import check_saved, first_line, named_shards

TINY = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4, "num_hidden_layers": 1,
    "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 4, "intermediate_size": 4, "vocab_size": 8,
    "max_position_embeddings": 8, "tie_word_embeddings": False,
}  # fmt: skip
N_WEIGHTS = 8 * 4 + 8 * 4 + 4 * 16 + 3 * 16 + 3 * 4


def part(folder: Path, name: str, **tensors: torch.Tensor) -> Path:
    save_file({key: each.clone() for key, each in tensors.items()}, folder / name, {"format": "pt"})
    return folder / name


def said(call: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(ModelError) as error:
        call(*arguments, **options)
    return str(error.value)


# ----------------------------------------------------------------------------------------------------------- its files


def test_a_json_file_holds_an_object(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    for text in ("{", "", "[" * 100_000):
        file.write_text(text)
        assert said(saved.document, tmp_path, "config.json").startswith(f"{file} is damaged, it holds no JSON (")
    for text, kind in (("[1]", "list"), ('"x"', "str"), ("null", "NoneType")):
        file.write_text(text)
        message = f"{file} is damaged: expected a JSON object, got a {kind}; get the file again"
        assert said(saved.document, tmp_path, "config.json") == message
    file.write_text('{"ä": 1}', encoding="utf-8")
    assert saved.document(tmp_path, "config.json") == {"ä": 1}


def test_a_file_lies_inside_or_among_the_blobs_of_a_hub(tmp_path: Path) -> None:
    inner, outer = tmp_path / "snapshots" / "01", tmp_path / "elsewhere" / "01"
    for folder in (inner, outer, tmp_path / "blobs", outer / "deep"):
        folder.mkdir(parents=True)
    (tmp_path / "blobs" / "b").write_text("{}")
    (outer / "own").write_text("{}")
    (outer / "deep" / "own").write_text("{}")
    for folder in (inner, outer):
        (folder / "linked").symlink_to(tmp_path / "blobs" / "b")
    assert saved.inside(inner, "linked") == inner / "linked"
    assert saved.inside(outer, "own") == outer / "own" and saved.inside(outer, "deep/own") == outer / "deep" / "own"
    outside = "names the file {!r}, which lies outside of it: copy it into the folder"
    for folder, name in (
        (outer, "linked"),
        (outer, "../01/own"),
        (outer, str(outer / "own")),
        (inner, str(tmp_path / "blobs" / "b")),
        (inner, "../../elsewhere/01/own"),
    ):
        assert said(saved.inside, folder, name) == f"{str(folder)!r} {outside.format(name)}"
    for name in ("none", "deep"):
        message = f"{str(outer)!r} lacks the file {name!r}: get the whole folder again"
        assert said(saved.inside, outer, name) == message


@pytest.mark.parametrize(
    "index", [None, [], {}, {"weight_map": None}, {"weight_map": {}}, {"weight_map": ["a"]}, {"weight_map": {"a": 1}},
              {"weight_map": {"a": "x.safetensors", "b": None}}],
)  # fmt: skip
def test_an_index_maps_weights_to_names_of_files(index: Any) -> None:
    message = "here is damaged: expected a weight_map from weights to files; get the file again"
    assert said(named_shards, index, "here") == message


def test_shards_are_safetensors_by_its_side_each_once_in_order() -> None:
    made = {"weight_map": {"a": "2.safetensors", "b": "1.safetensors", "c": "2.safetensors", "d": "in/3.safetensors"}}
    assert named_shards(made, "here") == ["1.safetensors", "2.safetensors", "in/3.safetensors"]
    for name, what in (
        ("x.bin", "'x.bin': weights are read from safetensors only, as others can run code"),
        ("x.safetensors.bin", "'x.safetensors.bin': weights are read"),
        ("/x.safetensors", "'/x.safetensors', which lies outside of its folder: copy it into the folder"),
        ("a/../../x.safetensors", "'a/../../x.safetensors', which lies outside of its folder"),
    ):
        assert said(named_shards, {"weight_map": {"a": "1.safetensors", "b": name}}, "here").startswith(
            f"here names {what}"
        )


def test_where_the_weights_are(tmp_path: Path) -> None:
    none = (
        f"{str(tmp_path)!r} holds no weights: neither model.safetensors nor model.safetensors.index.json; get the whole"
    )
    assert said(saved._weight_files, tmp_path).startswith(none)
    for suffix in ("ckpt", "pth", "pt", "bin"):
        (tmp_path / f"w.{suffix}").write_bytes(b"")
        assert f"has its weights as w.{suffix} only, which can run code" in said(saved._weight_files, tmp_path)
        if suffix != "bin":
            (tmp_path / f"w.{suffix}").unlink()
    (tmp_path / "a.bin").write_bytes(b"")
    assert "as a.bin only" in said(saved._weight_files, tmp_path), "the first by name"
    files = [part(tmp_path, f"{n}.safetensors", w=torch.ones(1)) for n in (1, 2)]
    index = {"weight_map": {"b": "2.safetensors", "a": "1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert saved._weight_files(tmp_path) == files
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "gone")
    assert "lacks the file 'model.safetensors'" in said(saved._weight_files, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    assert saved._weight_files(part(tmp_path, "model.safetensors", w=torch.ones(1)).parent) == [
        tmp_path / "model.safetensors"
    ]


def test_tensors_are_counted_once_over_any_number_of_files(tmp_path: Path) -> None:
    one, two = torch.ones(1), torch.ones(2)
    files = [part(tmp_path, "1", a=one, b=one), part(tmp_path, "2", c=one), part(tmp_path, "3", d=two)]
    assert saved._count_tensors(tmp_path, files, quantised=False) == 4
    assert saved._count_tensors(tmp_path, [], quantised=False) == 0
    again = part(tmp_path, "4", e=one, b=one, a=one)
    again.write_bytes(again.read_bytes()[:-1])
    assert said(saved._count_tensors, tmp_path, [again], quantised=False).startswith(
        f"{again} is damaged or was cut off ("
    )
    again.unlink()
    assert "is damaged or was cut off" in said(saved._count_tensors, tmp_path, [again], quantised=False)


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


def configured(folder: Path, **changes: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(TINY | changes))
    return folder


def test_a_config_fits_the_number_of_tensors_and_of_bytes(tmp_path: Path) -> None:
    check = saved._check_config
    least = N_WEIGHTS // saved.WEIGHTS_PER_BYTE
    assert least * saved.WEIGHTS_PER_BYTE == N_WEIGHTS
    check(configured(tmp_path), 1, least, trust_remote_code=False)
    words = f"it describes {N_WEIGHTS} weights, and they are 1 tensors in {least - 1} bytes; get the whole folder again"
    found = said(check, tmp_path, 1, least - 1, trust_remote_code=False)
    assert found == f"{tmp_path / 'config.json'} does not belong to the weights beside it: {words}"
    check(configured(tmp_path, num_hidden_layers=2), 2, 10**4, trust_remote_code=False)
    words = "num_hidden_layers is 3, and they are 2 tensors in 10,000 bytes"
    assert words in said(check, configured(tmp_path, num_hidden_layers=3), 2, 10**4, trust_remote_code=False)


def test_what_no_library_can_read_or_make_is_told_on_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def fails(*given: Any, **options: Any) -> None:
        asked.append((given, options))
        raise RuntimeError("it failed:\n\n  because\n of this")

    monkeypatch.setattr(saved.AutoModelForCausalLM, "from_config", fails)
    found = said(saved._check_config, configured(tmp_path), 9, 10**4, trust_remote_code=False)
    assert found == f"no model can be made as {tmp_path / 'config.json'} says: it failed: because"
    assert asked[-1][1] == {"trust_remote_code": False}
    monkeypatch.setattr(saved.AutoConfig, "from_pretrained", fails)
    found = said(saved._check_config, tmp_path, 9, 10**4, trust_remote_code=True)
    assert found == f"{tmp_path / 'config.json'} cannot be read by this version of transformers: it failed: because"
    assert asked[-1] == ((tmp_path,), {"local_files_only": True, "trust_remote_code": True})
    lines = {
        "one": "one", "one\ntwo": "one", "a:\nb": "a: b", "a:\nb:\nc\nd": "a: b: c", "a:": "a:", "a:\nb:": "a: b:",
        "\n  x \n": "x",
    }  # fmt: skip
    assert {text: first_line(RuntimeError(text)) for text in lines} == lines
    assert first_line(RuntimeError("")) == first_line(RuntimeError(" \n")) == "RuntimeError"


def test_a_whole_folder_passes_and_every_document_of_it_is_read(tmp_path: Path) -> None:
    part(configured(tmp_path), "model.safetensors", w=torch.ones(100))
    (tmp_path / "vocab.txt").write_text("a")
    check_saved(tmp_path)
    for name in saved.DOCUMENTS:
        whole = (tmp_path / name).read_text() if name == "config.json" else "{}"
        (tmp_path / name).write_text("[]")
        assert said(check_saved, tmp_path).startswith(f"{tmp_path / name} is damaged: expected a JSON object")
        (tmp_path / name).write_text(whole)
    (tmp_path / "config.json").unlink()
    assert "lacks the file 'config.json'" in said(check_saved, tmp_path)
    part(configured(tmp_path), "model.safetensors", **{"w.weight": torch.ones(100, dtype=torch.int8)})
    assert "holds whole numbers" in said(check_saved, tmp_path)
    check_saved(configured(tmp_path, quantization_config={"quant_method": "awq", "bits": 4}))


# --------------------------------------------------------------------------------------------------------- its weights


class Held(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Module()
        self.inner.weight = nn.Parameter(torch.ones(2, 3))
        self.inner.register_parameter("bias", None)
        self.register_buffer("kept", torch.ones(2))
        self.register_buffer("made_anew", torch.zeros(2), persistent=False)


def test_all_that_a_module_holds_is_listed_by_its_plain_name() -> None:
    listed = [(name, tuple(tensor.shape), kept) for name, tensor, kept in loaded_weights.held_tensors(Held())]
    assert listed == [("kept", (2,), True), ("made_anew", (2,), False), ("inner.weight", (2, 3), True)]
    wrapped = nn.Module()
    wrapped._original_component = Held()
    assert [name for name, *_ in loaded_weights.held_tensors(wrapped)] == ["kept", "made_anew", "inner.weight"]
    with loaded_weights.brought(None) as had_to, loaded_weights.brought(Held()) as had:
        assert (had_to, had) == (False, False)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_numbers_that_are_none_are_counted(dtype: torch.dtype) -> None:
    count = loaded_weights._not_finite
    nan, inf = float("nan"), float("inf")
    assert count("w", torch.tensor([1.0, 2.0]).to(dtype)) is None and count("w", torch.ones(0, dtype=dtype)) is None
    assert count("w", torch.tensor([nan, 1.0, nan, 2.0]).to(dtype)) == (2, 0)
    if dtype != torch.float8_e4m3fn:  # which has no infinity
        assert count("w", torch.tensor([nan, inf, -inf]).to(dtype)) == (1, 2)
        assert (
            count("w", torch.tensor([1.0, inf]).to(dtype)) == count("w", torch.tensor([1.0, -inf]).to(dtype)) == (0, 1)
        )
        for name in ("mask", "attn.mask", "causal_mask", "IGNORE", "attn.IGNORE", "masked_bias"):
            assert count(name, torch.tensor([-inf, 0.0]).to(dtype)) is None
            assert count(name, torch.tensor([-inf, nan]).to(dtype)) == (1, 1)
        assert (
            count("unmask", torch.tensor([inf]).to(dtype))
            == count("mask.weight", torch.tensor([inf]).to(dtype))
            == (0, 1)
        )
    assert count("w", torch.tensor([1e300], dtype=torch.float64)) is None, "finite in its own dtype"
    assert count("w", torch.ones(3, dtype=torch.int64)) is None and count("w", torch.ones(3, device="meta")) is None


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
