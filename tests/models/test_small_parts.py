"""Small parts by hand: how many rows fit, what inputs and rules say, what names mean."""

import copy
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from models_under_test import planted_here, without_stepper

import mless_interp as mi
from mless_interp.models import info, memory
from mless_interp.models.base import refuse_without_gradients
from mless_interp.models.hugging_face import _from_pretrained, quantisation_of
from mless_interp.models.load import config_of, source_of, tokenizer_of_model
from mless_interp.models.load_options import ADAPTER, Loading, check_tokenizer, first_line
from mless_interp.models.sites import extension_of, gate_edits, site
from mless_interp.models.traced_ops import FIRST, additive_mask, can_be_sent, got, put, tail
from mless_interp.models.weights import device_of
from mless_interp.runtime.workers import Processes

SIZES = {"n_layers": 3, "n_heads": 40, "n_key_value_heads": 2, "d_head": 8, "d_model": 8000, "d_mlp": 15000}
INFO = info.ModelInfo("m", "bridge", "A", **SIZES, d_vocab=5000, context_length=64, windows=(None, 16, None), dtype="float32",
                 device="cpu", attention="eager")  # fmt: skip
SMALL = replace(INFO, d_model=32, d_mlp=128, d_vocab=50)
DOUBLE, EXPERTS = replace(INFO, dtype="float64"), replace(INFO, d_mlp=None)
NEAR = {"rtol": 1e-4, "atol": 1e-4}
GPUS = {"cuda:0": SimpleNamespace(total_memory=6_000_000_000), "cuda:1": SimpleNamespace(total_memory=9_000_000_000)}


def test_rows_of_a_pass_fill_products_and_fit_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", GPUS.__getitem__)
    pass_, cpu, gpus = memory.rows_per_pass, ("cpu",), ("cuda:1", "cpu", "cuda:0")
    one: dict[str, Any] = {"batch": 1, "changed": 1, "length": 500, "read": 5}
    # 8 x 8,000 + 4 x 15,000 + 4 x 40 x 500 + 3 x 5 x 5,000 = 279,000 numbers, 4 bytes each, of 1 GB; or 4 x 4 x 8,000
    assert [pass_(info, **one, devices=cpu) for info in (INFO, DOUBLE, EXPERTS)] == [896, 448, 720]
    assert pass_(INFO, **one | {"batch": 2}, devices=cpu) == 448
    assert pass_(INFO, **one | {"changed": 3, "length": 2500}, devices=gpus) == 151
    assert (
        pass_(INFO, **one | {"length": 10**9}, devices=cpu) == 1 == pass_(SMALL, **one | {"changed": 5000}, devices=cpu)
    )
    few: dict[str, Any] = {"batch": 2, "changed": 3, "length": 9, "read": 1}
    assert [pass_(SMALL, **few, devices=where) for where in (cpu, gpus)] == [171, 2731]  # of 1,024 and 16,384 tokens
    sent = [(INFO, 4), (DOUBLE, 4), (INFO, 100), (INFO, 10**6)]  # of 8 numbers each, 750,000 bytes at most
    assert [memory.rows_per_request(info, batch=2, changed=3, length=n) for info, n in sent] == [3906, 1953, 163, 1]
    graph: dict[str, Any] = {"changed": 1, "length": 500, "read": 5, "bytes_each": 4}
    rows = [memory.rows_per_graph(info, **graph, devices=where) for info in (INFO, EXPERTS) for where in (cpu, gpus)]
    assert rows == [740, 555, 568, 426]
    assert memory.rows_per_graph(INFO, **graph | {"changed": 10**5}, devices=cpu) == 1


def test_a_pass_is_worth_threads_and_its_place_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    widths = ((2048, None), (512, None), (512, 512), (32, 128))
    assert [memory.threads_for(replace(INFO, d_model=d, d_mlp=mlp)) for d, mlp in widths] == [8, 4, 1, 1]
    monkeypatch.setattr(torch.cuda, "get_device_name", {"cuda:0": "A", "cuda:1": "B"}.__getitem__)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")
    here = {"device": f"cpu {torch.backends.cpu.get_cpu_capability()}", "torch": torch.__version__, "threads": 2}
    assert memory.computed_on(("cpu",), threads=2) == here | {"products": "medium"}
    for tf32, products in ((True, "tf32"), (False, "highest")):
        found = memory.computed_on(("cuda:1", "cpu", "cuda:0"), threads=2, tf32=tf32)
        assert found == {"device": "A and B", "torch": torch.__version__, "products": products}
    with pytest.raises(MemoryError):
        memory.halved(1, MemoryError())


def test_a_gate_that_is_not_there_is_not_edited() -> None:
    x = torch.tensor([[[1.0, -1.0]]])
    for gated, bias in ((True, torch.tensor([0.5, 0.5])), (False, None)):
        edits = gate_edits(2, info.GatedMlp(torch.relu, bias, gated), lambda a: a + (a == 1))
        names = ("pre", "pre_linear", "post") if gated else ("pre", "post")
        assert list(edits) == [f"blocks.2.mlp.hook_{name}" for name in names]
        made = torch.relu(x) * 3 + 0.5 if gated else torch.relu(x)
        for name, edit in list(edits.items())[:-1]:
            edit(3 * torch.ones(1, 1, 2) if name.endswith("linear") else x)
        added = torch.tensor([[[3.0 if gated else 1.0, 0.0]]])
        torch.testing.assert_close(edits["blocks.2.mlp.hook_post"](made), made + added)
    edits["blocks.2.mlp.hook_pre"](x)
    with pytest.raises(mi.ModelError, match=r"act\(pre\) here"):
        edits["blocks.2.mlp.hook_post"](made + 1)


def test_names_of_models_and_what_their_folders_say(tmp_path: Path) -> None:
    assert config_of("demo")["max_position_embeddings"] == mi.load_model("demo").info.context_length
    assert source_of("a/b") == "a/b" and config_of("a/b") == {}
    for name in ("a/b/c", "./x", "/x", "~x", " ", "a\\b"):
        with pytest.raises(mi.ModelError, match="unknown model"):
            source_of(name)
    for said, line in (("x failed:\n\n  why \nmore", "x failed: why"), ("only:\n", "only:"), ("", "ValueError")):
        assert first_line(ValueError(said)) == line
    with pytest.raises(mi.ModelError, match="holds no config.json: it is not a saved Hugging Face model"):
        source_of(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"num_hidden_layers": 2, "num_attention_heads": None}))
    assert source_of(str(tmp_path)) == str(tmp_path)
    with pytest.raises(mi.ModelError, match="cannot load the tokenizer of .*holds no tokenizer"):
        tokenizer_of_model(str(tmp_path))
    (tmp_path / "a.tiktoken").touch()
    assert check_tokenizer(tmp_path) is None
    assert len(tokenizer_of_model("demo")("How many ?")["input_ids"]) > 2
    away = torch.nn.Embedding(2, 2, device="meta")
    whole = SimpleNamespace(get_input_embeddings=lambda: away, parameters=away.parameters)
    away._hf_hook = SimpleNamespace(hooks=[None, SimpleNamespace(execution_device="cuda:1")])
    assert device_of(whole) == torch.device("cuda:1")


class Asked(Exception):
    @classmethod
    def from_pretrained(cls, *source: Any, **options: Any) -> None:
        raise cls(*source, options)


def test_what_transformers_are_asked_for(tmp_path: Path) -> None:
    folder, code, cpu = str(tmp_path), {"quant_method": "x"}, {"device": "cpu"}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": code}))
    (tmp_path / ADAPTER).touch()
    here, auto = {"device_map": {"": "cpu"}}, {"device_map": "auto", "max_memory": {0: 1}}
    asked = {"dtype": torch.float32, "attn_implementation": "eager", "output_loading_info": True}
    asked |= {"ignore_mismatched_sizes": True}
    for source, given, wanted in (
        (None, cpu, {}),
        (None, cpu | {"quantization_config": code}, here | {"quantization_config": code}),
        (None, auto, auto),
        (folder, cpu, here | {"adapter_kwargs": {"subfolder": "none"}}),
        (folder, auto, auto | {"adapter_kwargs": {"subfolder": "none"}}),
    ):
        with pytest.raises(Asked) as found:
            _from_pretrained(Asked, source, Loading(**given), name="it")
        assert found.value.args == (source, asked | wanted)
    assert Loading(remote="local").asked == Loading(device_map={"": "disk"}).asked == "nnsight"


def test_how_weights_are_quantised_is_named() -> None:
    unknown, libraries = "quantization_config in its config", ("bitsandbytes", "hqq", "torch.ao.nn.quantized")
    awq, ones = SimpleNamespace(quant_method=SimpleNamespace(value="awq")), torch.ones(2, 2)
    settings = (
        (None, ""),
        ({"quant_method": "gptq"}, "gptq"),
        (awq, "awq"),
        ({}, unknown),
        (SimpleNamespace(), unknown),
    )
    for weight, module, said, word in (
        (ones, "torch.nn", {}, ""),
        *(
            (ones.half(), "torch.nn", {"config": SimpleNamespace(quantization_config=of)}, word)
            for of, word in settings
        ),
        *(
            (ones.to(getattr(torch, dtype)), "torch.nn", {}, f"weight is {dtype}")
            for dtype in ("int32", "float8_e4m3fn")
        ),
        *((ones, f"{library}.nn", {}, "Part") for library in libraries),
    ):
        part = type("Part", (torch.nn.Module,), {"__module__": module})()
        part.weight = torch.nn.Parameter(weight, requires_grad=False)
        part.__dict__.update(said)
        assert quantisation_of(part) == word


def test_a_part_of_what_a_module_gives_is_shown_and_replaced_alone() -> None:
    x = torch.arange(1.0, 25).view(1, 2, 12)
    parts = {
        ("whole",): x,
        ("heads", 4): x.view(1, 2, 3, 4),
        ("columns", 4, 8, 2): x[..., 4:8].view(1, 2, 2, 2),
        ("grouped", 2, 3, 2, 1, 3): x.view(1, 2, 2, 3, 2)[..., 1:3, :].flatten(2, 3),
        ("half", 1): x[..., 6:],
    }
    for part, wanted in parts.items():
        made = put(part, x, -wanted)
        assert torch.equal(got(part, x), wanted) and torch.equal(got(part, made), -wanted), part
        assert torch.equal(made.abs(), x) and int((made < 0).sum()) == wanted.numel(), part
    for part, share in ((FIRST, 1), (("times", 0.5), 2)):
        made, rest = put(part, (x, "more"), x)
        assert torch.equal(got(part, (x, "more")), x / share) and torch.equal(made, x * share) and rest == "more"
    assert additive_mask(torch.tensor([True, False]), torch.float16).tolist() == [0, -65504]
    sent = (3, [1, ("a", None)], torch.zeros_like, tail, partial(tail, start=3))
    kept = (object(), [object()], lambda z: z, partial(lambda z, at: z, at=1), partial(tail, start=len), len)
    assert all(map(can_be_sent, sent)) and not any(map(can_be_sent, kept))


def test_rules_and_inputs_by_hand() -> None:
    rule, one = info.AttentionRule(2.0, 30.0, torch.tensor([1.0, 2.0, 3.0])), info.AttentionRule(1.0)
    assert rule.of(1) == rule and rule.of(1).sinks.tolist() == [2.0] and one.of(1) == one
    plain = info.AttentionOutput(torch.arange(12.0).view(2, 2, 3), torch.ones(3))
    z, change = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([1.0, -1.0])
    assert plain.before_norm(z).tolist() == [19.0, 22.0, 25.0] and plain.change(z, 1, change).tolist() == [-3.0] * 3
    assert replace(plain, norm=torch.square).change(z, 1, change).tolist() == [-105.0, -123.0, -141.0]
    tokens, mask = torch.tensor([[1, 2]]), torch.ones(1, 1, 2, 2).bool()
    both = info.Inputs.stacked([info.Inputs(tokens, tokens + 4, mask), info.Inputs(tokens + 1, tokens + 5, ~mask)])
    assert (both.tokens.tolist(), both.positions.tolist()) == ([[1, 2], [2, 3]], [[5, 6], [6, 7]])
    assert both.attention_mask[:, 0, 0, 0].tolist() == [True, False]
    twice = replace(both, attention_mask=mask).repeated(2)
    assert twice.tokens[:, 0].tolist() == [1, 1, 2, 2] and twice.attention_mask is mask
    assert extension_of({}) == extension_of({"gated": True}) == [] != extension_of({"gated": False})


WRONG = info.ModelChecks(
    1.23456, None, None, None, None, 1e-3, "whole forward passes (x)", False, 0.5, "it differs", None, output_error=0.25
)
"""Of a model whose replay disagrees, whose queries are not those of its scores, and whose heads do not add up."""


def test_a_model_says_what_it_cannot_do_and_why(untyped: None) -> None:
    model = planted_here()[1]
    wrong = model.checked(WRONG)
    assert model.has_rotated_sites and wrong.has_rotated_sites and model.stepper is not None
    assert not model.checked(replace(WRONG, entering_error=None)).has_rotated_sites
    assert model.need_layers("It") and model.need_rotated("They") is None
    assert model.checked(replace(WRONG, shows_rotated=True)).need_rotated("They") is None
    bare, remote, coded = (copy.copy(model) for _ in range(3))
    bare.tokenizer, remote.remote, coded.quantised = None, "local", "4bit"
    assert bare.text_of([5, 6]) == "5 6"
    grow = partial(refuse_without_gradients, what="It")
    sealed, empty = copy.copy(model), copy.copy(model)
    with torch.inference_mode():
        sealed.hf_model = torch.nn.Linear(1, 1)
    empty.hf_model = empty._attention_output = empty._gated_mlp = lambda layer: None
    name, three = site(0, "attn.hook_z"), torch.tensor([[1, 2, 3]])
    for do, message in (
        (lambda: wrong.need_layers("It"), r"which .* cannot \(the self-check found that it disagrees\): use another"),
        (lambda: remote.need_layers("It"), r"cannot \(it runs elsewhere\)"),
        (lambda: without_stepper(model).need_layers("It"), r"cannot \(this architecture cannot be continued"),
        (lambda: wrong.need_rotated("they"), r"on backend 'bridge', which they need \(it differs\)"),
        (lambda: wrong.attention_output(0), r"is not z W_O \+ b \(off by 0.25 of the largest value\)"),
        (lambda: model.attention_output(2), "layer 2 is out of range"),
        (lambda: bare.need_tokenizer("it"), "planted 1 has no tokenizer, which it needs: give one"),
        (lambda: grow(remote), "It needs gradients, but planted 1 runs remotely"),
        (lambda: grow(coded), r"is quantised \(4bit\); gradients need"),
        (lambda: grow(wrong), "cannot be continued layer by layer, which gradients need .*or use exact sweeps"),
        (lambda: grow(sealed), r"was made inside torch.inference_mode\(\), so its weights can never"),
        (lambda: empty.attention_output(1), r"layer 1 has no output weights of shape \[8, 16, 128\] \[head, d_head"),
        (lambda: empty.gated_mlp(1), r"layer 1 has no activation act\(gate\(x\)\)"),
        (lambda: model.run(three, edits={name: lambda z: z[:, :2]}), r"shape \[1, 3, 8, 16\], got \[1, 2, 8, 16\]"),
        (lambda: model.run(three, edits={name: lambda z: 3}), "must return a tensor .* got int"),
        (lambda: torch.inference_mode()(grow)(model), r"has none inside torch.inference_mode\(\): leave it first"),
    ):
        with pytest.raises(ValueError, match=message):
            do()
    sealed.tf32 = True
    for said, products in (({}, "high"), ({"of_passes": False}, torch.get_float32_matmul_precision())):
        with sealed.turn(**said):
            assert torch.get_float32_matmul_precision() == products
    empty.hf_model = None
    assert grow(model) is None and grow(empty) is None and wrong.resolution == 1e-5
    for fine in (None, replace(WRONG, output_error=None), replace(WRONG, output_error=1e-3)):
        assert model.checked(fine).attention_output(1).weights.shape == (8, 16, 128)
    assert repr(replace(WRONG, gap_difference=2e-4, replay_difference=3e-5)) == (
        "ModelChecks(gap difference 2.0e-04, replay difference 3.0e-05; tolerance 1.0e-03, whole forward passes (x))"
    )


@pytest.mark.filterwarnings("error")
def test_what_goes_in_and_is_read_up_to_its_borders() -> None:
    model = planted_here()[1]
    last, end = model.info.d_vocab - 1, model.info.context_length - 1
    tokens, places = torch.tensor([[0, last, 2], [1, 2, 3]]), torch.tensor([0, 1, end])
    recording = model.record(info.Inputs(tokens), start=1, logits_at="all")
    assert model.run(info.Inputs(tokens, places)).logits.shape == (2, 3, last + 1)
    for shape in ((1, 1), (1, 8), (2, 1), (2, 8)):
        mask = torch.ones(*shape, 3, 3).tril().bool()
        found = model.run(info.Inputs(tokens, None, mask), logits_at=[0, 2]).logits
        torch.testing.assert_close(found, recording.logits[:, ::2], **NEAR)
    slow, opaque, z = without_stepper(model), copy.copy(model), recording.z[1]
    opaque.layers = object()
    for how, at in (({}, [2]), ({"logits_at": "last"}, [2]), ({"logits_at": "all"}, [1, 2]), ({"logits_at": [1]}, [1])):
        for each in (model, slow, opaque):
            found = each.replay(recording, 1, z, **how, exact_forward=each is opaque)
            torch.testing.assert_close(found, recording.logits[:, at], **NEAR)
    none = model.checked(WRONG).record(info.Inputs(tokens), start=1)
    assert none.resid_pre == none.q == none.k == none.v == () and all(map(torch.equal, none.z, recording.z))
    for do, message in (
        (lambda: model.run(tokens + 1), f"lie in 0 to {last} .* got 1 to {last + 1};"),
        (lambda: model.run(info.Inputs(tokens, places + 1)), f"needs {end + 2} positions"),
        (lambda: model.run(info.Inputs(tokens, None, mask[:, :3])), r"boolean \[2, 1 or 8, 3, 3\] .* got .* \[2, 3, 3, 3\]"),
        (lambda: model.run(info.Inputs(tokens, None, mask.float())), r"must be boolean .* got torch.float32 \[2, 8, 3, 3\]"),
        (lambda: model.run(tokens - 1), f"lie in 0 to {last} .* got -1 to {last - 1}; was the text encoded with another"),
        (lambda: model.run(tokens[:1, :1].expand(1, end + 2)), f"needs {end + 2} .* has a context of {end + 1}: insert"),
        (lambda: model.run(tokens, capture={"blocks.0.attn.hook_zz": None}), "unknown hook name 'blocks.0.attn.hook_zz'"),
        (lambda: model.run(tokens, capture={site(2, "hook_attn_out"): None}), r"layer 2 is out of range \(zero-based\)"),
        (lambda: model.replay(recording, 1, z.repeat(2, 1, 1, 1)[:3]), "prompts, 2, 8, 16.*, got .3, 2, 8, 16"),
        (lambda: model.replay(recording, 1, z[:0]), "prompts, 2, 8, 16.*, got .0, 2, 8, 16"),
        *((lambda layers=layers: model.replay(recording, layers, z.repeat(2, 1, 1, 1)), "row .2. in rising order, 0 to 1")
          for layers in ([-1, 0], [1, 0], [0, 2], [0])),
        (lambda: model.replay(recording, 1, z, logits_at=[0, 2]), "from position 1 on has no logits before it"),
        *((lambda at=at: model.run(tokens, logits_at=at), "must be positions 0 to 2") for at in ([], [-1], [3], tokens)),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            do()


def test_another_process_gets_the_same_model_or_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    model = copy.copy(planted_here()[1]).checked(WRONG)
    same = {name: getattr(model.info, name) for name in ("backend", "dtype", "attention")}
    same |= {"model": "planted 1", "config": None, "toolkit": mi.__version__, "largest_logit": 1.235}
    same["weights"] = "not read here, as the model runs elsewhere"
    assert model.identity == same | {"computed_on": memory.computed_on(("cpu",), threads=1)}
    with pytest.raises(mi.ModelError, match="planted 1 was given as an object which other processes have not"):
        model.sent()
    made: list[int] = []
    model.how = partial(lambda seed: made.append(seed) or model, seed=1)
    here, given = model.sent()
    assert given == (model.how, "planted 1", model.identity, WRONG)
    again = here(*given)
    assert again.checks is WRONG and here(*given).underlying is model.underlying and made == [1]
    here(partial(model.how, seed=2), *given[1:])
    assert made == [1, 2], "loaded in another way"
    with pytest.raises(mi.ModelError, match=r"planted 1 is another model where .*: weights not read .*\(not b\)"):
        here(model.how, "planted 1", model.identity | {"weights": "b", "model": "other"}, WRONG)
    with model.underlying.hooks(fwd_hooks=[("blocks.1.hook_mlp_out", lambda value, hook: value)]):
        with pytest.raises(
            mi.ModelError, match=r"planted 1 has hooks, first .*blocks.1.* which other processes have not"
        ):
            model.sent()
        assert model.identity == model.identity and model.identity["hooks"][:-1] == [*model.hooks]
        assert len(model.identity["hooks"][-1]) == 16
    with model.underlying.hooks(fwd_hooks=[("blocks.1.hook_mlp_out", lambda value, hook: value[:, :5] @ value)]):
        assert model.identity != model.identity, "a hook for other prompts equals no other"
    assert model.on(Processes(2)).engine.count == 2 and model.engine is not model.on(Processes(2)).engine
    monkeypatch.setattr("mless_interp.models.base.threads_for", lambda info: 2)
    with pytest.raises(ValueError, match="Processes are for models whose passes .* planted 1 on cpu is none"):
        model.on(Processes(2))
