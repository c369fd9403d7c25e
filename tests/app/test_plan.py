"""A plan: timed on real units or counted from a config alone, and true of what then happens."""

import json
import shlex
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

import mless_interp as mi
from mless_interp.__main__ import app
from mless_interp.app import estimates
from mless_interp.app.estimates import COSTS, Shape, extrapolated
from mless_interp.models.load import DEMO_DIRECTORY

FILLER = mi.Insertion.meaningless(" /", n_tokens=20)
GPU: dict[str, Any] = {"memory": int(80e9), "tflops": 100}


def problems(n: int) -> Any:
    return mi.load_problems("demo", limit=n)


@pytest.fixture
def without_weights(tmp_path: Path) -> Path:
    """The demo model's folder without its weights."""
    folder = tmp_path / "bare"
    shutil.copytree(DEMO_DIRECTORY, folder, ignore=shutil.ignore_patterns("*.safetensors", "*.jsonl"))
    return folder


def saved(folder: Path, config: Any) -> Shape:
    config.save_pretrained(folder)
    Shape.of("demo").tokenizer.save_pretrained(folder)
    return Shape.of(str(folder))


def test_parameters_and_operations_are_those_of_the_model() -> None:
    shape, model = Shape.of("demo"), mi.load_model("demo", backend="nnsight").hf_model
    assert shape.n_parameters == sum(weight.numel() for weight in model.parameters())
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        model(torch.arange(40)[None], use_cache=False)
    assert shape.operations(40, positions=40, read=40) == pytest.approx(counted.get_total_flops(), rel=0.01)


def test_tied_weights_and_experts_count_once(tmp_path: Path) -> None:
    from transformers import MixtralConfig, Qwen2Config

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "vocab_size": 300}
    tied, apart = (saved(tmp_path, Qwen2Config(**sizes, tie_word_embeddings=tied)) for tied in (True, False))
    assert apart.n_parameters - tied.n_parameters == 300 * 32
    some, few = (saved(tmp_path, MixtralConfig(**sizes, num_local_experts=n, num_experts_per_tok=2)) for n in (8, 2))
    assert some.active - few.active == 6 * 32  # the router's rows, and no expert
    assert some.n_parameters > few.n_parameters


@pytest.mark.parametrize("config", [{"load_in_4bit": True}, {"quant_method": "gptq", "bits": 3}, {}])
def test_quantised_weights_count_by_their_bits(config: dict[str, Any], without_weights: Path) -> None:
    said = json.loads((without_weights / "config.json").read_text())
    (without_weights / "config.json").write_text(json.dumps(said | {"quantization_config": config}))
    shape, plain = Shape.of(str(without_weights)), Shape.of("demo")
    products = 4 * (224 * (28 + 2 * 4) * 8 + 224 * 28 * 8 + 3 * 224 * 256)
    bits = config.get("bits", 4 if config else 8)
    assert shape.weights("bfloat16") == (plain.n_parameters - products) * 2 + products * bits / 8
    plan = mi.plan_run(str(without_weights), problems(1), FILLER, what="profiles", **GPU)
    assert plan.chosen["backend"] == "nnsight" and plan.chosen["dtype"] == "bfloat16"


def test_latent_attention_with_experts_is_counted_as_published(without_weights: Path) -> None:
    """DeepSeek-V3: all experts lie in memory, the chosen ones take time; a cache holds the latent vectors alone."""
    said: dict[str, Any] = {"model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432}
    said |= {"moe_intermediate_size": 2048, "num_hidden_layers": 61, "n_shared_experts": 1, "num_experts_per_tok": 8}
    said |= {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
    said |= {"v_head_dim": 128, "tie_word_embeddings": False, "dtype": "bfloat16", "num_attention_heads": 128}
    said |= {"num_key_value_heads": 128, "n_routed_experts": 256, "first_k_dense_replace": 3, "vocab_size": 129280}
    packed = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    shapes = []
    for config in (said, said | packed):
        (without_weights / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))
        shapes.append(Shape.of(str(without_weights)))
    plain, quantised = shapes
    embedded = 2 * 129280 * 7168
    assert plain.n_parameters == pytest.approx(671.0e9, rel=1e-3)
    assert plain.active * 61 + embedded == pytest.approx(37.6e9, rel=1e-2)
    assert [plain.weights(dtype) / plain.n_parameters for dtype in ("float32", "bfloat16")] == [4, 2]
    assert quantised.weights("bfloat16") == pytest.approx(plain.n_parameters + embedded, rel=1e-3)
    read = plain.operations(1000, positions=1, read=0) - plain.operations(0, positions=1, read=0)
    assert read == pytest.approx(61 * 2 * 128 * (192 + 128) * 1000) and plain.info.n_cached == 512 + 64


GB = dict(zip(COSTS, (1.04471, 1.04471, 0.80988, 0.808711, 0.82221, 1.04471), strict=True))
SECONDS = dict(zip(COSTS, (7.6066e-4, 2.9291e-3, 1.136e-4, 4.1653e-4, 1.112e-3, 4.5261e-3), strict=True))


@pytest.mark.parametrize("what", COSTS)
def test_what_is_counted_for_a_gpu_elsewhere_is_what_it_was(what: str, without_weights: Path) -> None:
    plan = mi.plan_run(str(without_weights), problems(4), FILLER, what=what, **GPU)
    assert list(plan.parts.values()) == pytest.approx([12.0082, SECONDS[what]], rel=1e-4)
    assert plan.peak == pytest.approx(GB[what] * 1e9, rel=1e-5) and plan.available == 72e9 and plan.tokens == (63, 75)
    bits = {"weights": 4.9398e6, "libraries": 8e8, "loading": 0 if what in ("mechanism", "accuracy") else 4.9398e6}
    assert {name: plan.memory[name] for name in bits} == pytest.approx(bits, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("what", [*COSTS, "counting"])
def test_every_analysis_is_timed_where_the_weights_are(what: str) -> None:
    fresh, filler = 4 * (what in ("locate", "circuit")), None if what == "counting" else FILLER
    plan = mi.plan_run("demo", problems(6 if filler else 24), filler, what=what, device="cpu", n_fresh=fresh)
    if what == "locate":
        swept, controls = list(plan.parts.values())[1:]
        assert controls == pytest.approx(2 * swept), "4 problems are tested, 2 name heads"
    assert plan.fits and "timed on a few problems" in repr(plan) and all(spent > 0 for spent in plan.parts.values())
    assert len(repr(plan).splitlines()) <= 12


def test_a_study_takes_what_its_insertions_take(without_weights: Path) -> None:
    model, slashes = str(without_weights), {"kind": "meaningless", "unit": " /"}
    rows = [slashes | {"name": str(n), "n_tokens": n} for n in (5, 20, 10)]
    asked = {"title": "Slashes", "insertions": rows, "heads": "all", "limit": 3, "confirm": 2, "answers": 4}
    study = mi.read_study(asked | {"max_new_tokens": 7, "contrasts": ["content", "shift"]})
    plan = mi.plan_run(model, problems(6), what=study, **GPU)
    located = mi.plan_run(model, problems(5), FILLER, what="locate", n_fresh=2, **GPU)
    answered = mi.plan_run(model, problems(4), FILLER, what="accuracy", max_new_tokens=7, **GPU)
    (_, locating), (_, answering) = located.parts.values(), answered.parts.values()
    _, effects, *rest = plan.parts.values()
    assert rest == pytest.approx([3 * locating, (3 + 1) / 5 * answering])
    once = mi.plan_run(model, problems(6), what=study.with_changes(contrasts=("content",)), **GPU)
    assert list(once.parts.values())[1] == pytest.approx(effects * (1 + 3) / (1 + 2 * 3))
    assert plan.peak == max(located.peak, answered.peak) and plan.tokens == located.tokens
    assert "study 'Slashes' of 5 problems (2 fresh)" in repr(plan) and ", 3 insertions" in repr(plan)


def test_seconds_add_up_over_problems_and_halve_on_a_gpu_of_twice_the_speed() -> None:
    def spent(some: Any, tflops: float) -> float:
        plan = mi.plan_run("demo", some, FILLER, what="sweep", memory=int(80e9), tflops=tflops)
        return list(plan.parts.values())[1]

    one, two = (spent([each], 100) for each in problems(2))
    assert spent(problems(2), 100) == pytest.approx(one + two) == pytest.approx(2 * spent(problems(2), 200))


def test_weights_that_do_not_fit_are_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "get_max_memory", lambda: {"cpu": 1_000_000})
    monkeypatch.setattr(estimates, "load_model", lambda *_, **__: pytest.fail("loaded"))
    plan = mi.plan_run("demo", problems(2), FILLER, what="sweep")
    assert not plan.fits and not plan.timed and repr(plan).startswith("Does not fit on cpu in bfloat16")


@pytest.mark.parametrize(
    ("backend", "dtype", "peak"), [("nnsight", "bfloat16", 2), ("hooked_transformer", "float32", 8)]
)
def test_loading_holds_a_copy_where_weights_are_converted(
    backend: str, dtype: str, peak: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import Qwen2Config

    monkeypatch.setattr(estimates, "product", lambda x, weight: x)  # of a 7B's width it takes long, and is not read
    shape = saved(tmp_path, Qwen2Config(dtype="float32"))
    plan = mi.plan_run(str(tmp_path), problems(1), FILLER, what="profiles", backend=backend, dtype=dtype, device="cpu")
    assert plan.peak - estimates.LIBRARIES["cpu"] == pytest.approx(peak * shape.n_parameters, rel=0.01)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"memory": int(1e9)}, "give memory .80e9 bytes; 80GB in a command. and tflops .400., and no device"),
        ({"backend": "bridge", "attention": "sdpa"}, "needs backend 'nnsight'"),
        ({"device": "cuda:7"}, "no device 'cuda:7' here"),
        ({"n_fresh": 1}, "n_fresh must leave problems that name heads: 0 to 0, got 1"),
    ],
)
def test_wrong_input_is_refused_before_anything_is_timed(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        mi.plan_run("demo", problems(1), FILLER, **wrong)


def test_the_command_prints_what_loading_takes() -> None:
    line = "plan demo accuracy --unit ' ,' --n-tokens 9 --limit 3 --dtype bfloat16 --memory 80GB --tflops 100"
    done = CliRunner().invoke(app, shlex.split(line))
    assert done.exit_code == 0, done.output
    assert "accuracy of 3 problems" in done.output
    assert done.output.splitlines()[-1] == "Load with: --backend=bridge --dtype=bfloat16 --attention=eager"


def test_fresh_problems_and_studies_are_planned_as_the_analysis_takes_them() -> None:
    told = {"circuit": "circuit of 67 problems (64 fresh) of", "counting": "study 'Counting' of 24 problems of"}
    told |= {"locate --confirm 5": "locate of 8 problems (5 fresh) of", "distractors --seed 5": ", 3 insertions"}
    told |= {"sweep --confirm 5": "--confirm goes with locate and circuit, not with sweep", "countin": "mean counting?"}
    told |= {"counting --unit a": "--unit: the study's file says it; leave it out"}
    told |= {"counting --answers 0 --template chat": "study 'Counting' of 3 problems of"}
    for given, words in told.items():
        done = CliRunner().invoke(app, f"plan demo {given} --limit 3 --memory 80GB --tflops 100".split())
        assert words in done.output


@pytest.mark.parametrize(
    ("once", "each", "first", "sizes"),
    [(0.5, 0.01, 0.2, [1, 1, 2, 4, 8, 16, 32, 64]), (2.0, 3.0, 4.0, [1, 1, 2]), (9.0, 3.0, 0.0, [1, 2])],
)
def test_an_estimate_is_the_line_through_runs_of_some_units(
    once: float, each: float, first: float, sizes: list[int], monkeypatch: Any
) -> None:
    """By a clock that the runs move on; what a first call loads does not count."""
    clock, ran = [0.0], []

    def run(units: int) -> None:
        clock[0] += once + each * units + (0 if ran else first)
        ran.append(units)

    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    assert extrapolated(run, 1000, sizes=2) == pytest.approx(once + 1000 * each)
    assert ran == sizes
    assert extrapolated(run, 1) == pytest.approx(once + each)
