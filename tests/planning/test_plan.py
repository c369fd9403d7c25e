"""A plan: counted from a config alone, timed on random layers, and true of what then happens."""

import json
import math
import os
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from files_under_test import save_at
from safetensors.torch import load_file
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

import mless_interp as mi
from mless_interp.__main__ import app
from mless_interp.command_line import chosen_insertion
from mless_interp.models.load import DEMO_DIRECTORY
from mless_interp.planning.command import TREATED, command_of
from mless_interp.planning.needed import kept_and_mapped, loading_bytes, parsed_bytes, pass_bytes, weights_bytes
from mless_interp.planning.operations import Arithmetic
from mless_interp.planning.planned import WHAT, duration
from mless_interp.planning.shape import Shape
from mless_interp.planning.steps import Step
from mless_interp.planning.timing import Chosen, Timed, own_ids

FILLER = mi.Insertion.meaningless(" /", n_tokens=20)


def problems(n: int) -> Any:
    return mi.load_problems("demo", limit=n)


@pytest.fixture
def without_weights(tmp_path: Path) -> Path:
    """The demo model's folder without its weights."""
    folder = tmp_path / "bare"
    shutil.copytree(DEMO_DIRECTORY, folder, ignore=shutil.ignore_patterns("*.safetensors", "*.jsonl"))
    return folder


def test_parameters_are_exact() -> None:
    model = mi.load_model("demo", backend="nnsight")
    assert Shape.of("demo").n_parameters == sum(weight.numel() for weight in model.hf_model.parameters())


def test_tied_weights_and_experts_count_once(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, MixtralConfig, Qwen2Config

    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 300,
    }
    for config in (
        Qwen2Config(**sizes, num_key_value_heads=2, tie_word_embeddings=True),
        MixtralConfig(**sizes, num_key_value_heads=2, num_local_experts=8, num_experts_per_tok=2),
    ):
        config.save_pretrained(tmp_path)
        Shape.of("demo").tokenizer.save_pretrained(tmp_path)
        shape = Shape.of(str(tmp_path))
        made = AutoModelForCausalLM.from_config(config)
        assert shape.n_parameters == sum(weight.numel() for weight in made.parameters())
        if config.model_type == "mixtral":
            assert shape.active == shape.per_layer - 6 * 3 * 32 * 64
        else:
            assert shape.active == shape.per_layer


def test_operations_are_those_of_a_pass() -> None:
    shape = Shape.of("demo")
    model = mi.load_model("demo", backend="nnsight").hf_model
    tokens = torch.arange(40)[None]
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        model(tokens, use_cache=False)
    at = Arithmetic(shape, shape.info.n_layers)
    assert at.whole(1, 40) + at.logits(40) == pytest.approx(counted.get_total_flops(), rel=0.01)


def test_a_sweep_of_rows_that_all_join_first_is_a_pass_of_what_changes() -> None:
    one = Arithmetic(Shape.of("demo"), 4)
    assert one.sweep(1, changed=10, read=10, length=50) < one.whole(4, 50)
    few, many = (one.sweep(n, changed=10, read=1, length=50) for n in (1, 3))
    assert many == pytest.approx(3 * few)


FORMS = {
    "float32": ("float32", "1GB", 8),
    "bfloat16": ("bfloat16", "1GB", 8),
    "shards": ("float32", "40MB", 8),
    "on cache lines": ("float32", "1GB", 0),
    "shards on cache lines": ("float32", "40MB", 0),
}
"""How a model is stored: dtype, size of its largest file, and how many bytes behind a cache line its weights begin."""
LOADED_AS = {**dict.fromkeys(FORMS, "float32"), "half": "bfloat16"}
"""What each is loaded as; "half" is the folder "bfloat16", as it is."""


@pytest.fixture(scope="module")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each of `LOADED_AS` with a random tied model of 43 million weights."""
    from transformers import AutoModelForCausalLM, Qwen2Config

    sizes = {"hidden_size": 512, "intermediate_size": 2816, "num_attention_heads": 8, "num_key_value_heads": 2}
    config = Qwen2Config(**sizes, num_hidden_layers=6, vocab_size=25_000, tie_word_embeddings=True)
    folder = tmp_path_factory.mktemp("heavy")
    for form, (dtype, largest, offset) in FORMS.items():
        made = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
        made.save_pretrained(folder / form, max_shard_size=largest)
        for file in (folder / form).glob("*.safetensors"):
            save_at(load_file(file), file, offset)
        Shape.of("demo").tokenizer.save_pretrained(folder / form)
    (folder / "half").symlink_to(folder / "bfloat16")
    return folder


LOADED = """
import gc, json, re, sys
from pathlib import Path
import mless_interp as mi

def resident(which):
    return 1024 * int(re.search(rf"^{which}:\\s+(\\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)[1])

folder, backend, forms = *sys.argv[1:3], json.loads(sys.argv[3])
mi.load_model("demo", backend=backend)
for form, dtype in forms.items():
    model = None
    gc.collect()
    before, anonymous = resident("VmRSS"), resident("RssAnon")
    Path("/proc/self/clear_refs").write_text("5")
    model = mi.load_model(f"{folder}/{form}", backend=backend, dtype=dtype)
    print(json.dumps([resident("VmHWM") - before, resident("RssAnon") - anonymous]))
"""
"""What each of these takes, beyond libraries: at the peak of loading, and of anonymous memory when it is loaded."""


@pytest.mark.slow
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="no peak of memory can be set back here")
def test_loading_takes_the_memory_that_was_planned(backend: str, heavy: Path) -> None:
    freed_at_once = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    command = [sys.executable, "-c", LOADED, str(heavy), backend, json.dumps(LOADED_AS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=freed_at_once)
    shares, stays = {}, {}
    for (form, dtype), line in zip(LOADED_AS.items(), done.stdout.splitlines(), strict=True):
        peak, anonymous = json.loads(line)
        shape, chosen = Shape.of(str(heavy / form)), Chosen(backend, dtype, "cpu", "eager")
        weights, (kept, mapped) = weights_bytes(shape, chosen), kept_and_mapped(shape, chosen)
        checking = pass_bytes(shape.info, chosen, rows=1, changed=8, length=8, read=8)
        shares[form] = max(loading_bytes(shape, chosen), weights + mapped, weights + checking) / peak
        stays[form] = anonymous < 0.6 * weights  # beside them a first pass leaves some
        assert stays[form] is (kept > 0.9 * weights), (form, anonymous, weights, kept)
    assert all(0.67 < share < 1.5 for share in shares.values()), str(shares)
    if backend != "hooked_transformer":
        assert [form for form, stay in stays.items() if stay] == ["on cache lines", "shards on cache lines", "half"]


@pytest.mark.parametrize(
    ("dtype", "stored", "places", "kept", "mapped"),
    [
        ("bfloat16", "BF16", [[8, 8], [2, 8]], "all", "none"),
        ("float16", "F16", [[8, 8], [2, 8]], "all", "none"),
        ("float32", "F32", [[0, 0], [0, 0]], "all", "none"),
        ("float32", "F32", [[8, 8], [8, 8]], "none", "largest file"),
        ("float32", "F32", [[0, 8], [8, 8]], "first", "second and a file"),
        ("float32", "BF16", [[0, 0], [0, 0]], "none", "all"),
        ("bfloat16", "F32", [[0, 0], [0, 0]], "none", "all"),
    ],
)
def test_copies_are_those_of_the_headers(
    dtype: str, stored: str, places: list[list[int]], kept: str, mapped: str, without_weights: Path
) -> None:
    """Two files of two weights, each of as many cache lines as its number and some bytes before it."""
    sizes: list[list[int]] = [[64_000, 6_400], [640, 128_000]]
    for number, (at, each) in enumerate(zip(places, sizes, strict=True)):
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        for name, start, n_bytes in zip("ab", (at[0], 128_000 + at[1]), each, strict=True):
            header[name] = {"dtype": stored, "shape": [n_bytes // 10, 10], "data_offsets": [start, start + n_bytes]}
        text = json.dumps(header).encode().ljust(64 * 16 - 8)
        (without_weights / f"model-{number}.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    bytes_of = {
        "none": 0,
        "all": 199_040,
        "first": 64_000,
        "largest file": 128_640,
        "second and a file": 6_400 + 128_640,
    }
    chosen = Chosen("nnsight", dtype, "cpu", "eager")
    assert kept_and_mapped(Shape.of(str(without_weights)), chosen) == (bytes_of[kept], bytes_of[mapped])


def test_without_weights_half_precision_is_supposed_to_stay_in_its_files(without_weights: Path) -> None:
    config = json.loads((without_weights / "config.json").read_text()) | {"dtype": "bfloat16"}
    (without_weights / "config.json").write_text(json.dumps(config))
    shape = Shape.of(str(without_weights))
    for dtype, kept, mapped in (("bfloat16", 2, 0), ("float32", 0, 2)):
        found = kept_and_mapped(shape, Chosen("nnsight", dtype, "cpu", "eager"))
        assert found == (kept * shape.n_parameters, mapped * shape.n_parameters)


def test_a_plan_says_what_could_be_read_again_where_memory_is_short(
    monkeypatch: pytest.MonkeyPatch, heavy: Path
) -> None:
    options: dict[str, Any] = {"what": "sweep", "backend": "nnsight", "device": "cpu", "seconds": 0.2}
    whole = mi.plan_run(str(heavy / "half"), problems(1), FILLER, **options, dtype="bfloat16")
    memory = whole.memory
    assert memory.kept == memory.weights and memory.anonymous == memory.host - memory.weights
    monkeypatch.setattr("mless_interp.planning.needed.here", lambda: {"cpu": int(memory.host - memory.weights / 2)})
    short = mi.plan_run(str(heavy / "half"), problems(1), FILLER, **options, dtype="bfloat16")
    copied = mi.plan_run(str(heavy / "float32"), problems(1), FILLER, **options, dtype="float32")
    assert not short.own_fit.fits and not copied.own_fit.fits
    assert [any("would run all the same" in line for line in plan.advice) for plan in (whole, short, copied)] == [
        False,
        True,
        False,
    ]


@pytest.mark.slow
@pytest.mark.parametrize("what", WHAT)
def test_every_analysis_is_planned_without_weights(what: str, without_weights: Path) -> None:
    plan = mi.plan_run(str(without_weights), problems(3), FILLER, what=what, device="cpu", seconds=0.5)
    assert 0 < plan.seconds < 600 and plan.own_fit.fits and plan.timed_layers == 4
    assert plan.terms[0].estimate and all(math.isfinite(term.seconds) and term.seconds > 0 for term in plan.terms)
    assert plan.answer() in repr(plan) and plan.command in repr(plan)
    json.dumps(plan.to_dict(), allow_nan=False)


def test_what_does_not_fit_is_said() -> None:
    options: dict[str, Any] = {"what": "sweep", "memory": 10_000_000, "tflops": 100}
    plan = mi.plan_run("demo", problems(3), FILLER, **options)
    assert plan.answer().startswith("Does not fit on gpu elsewhere") and plan.timed_layers == 0
    assert all(term.estimate for term in plan.terms)


def test_twice_the_problems_take_twice_as_long_elsewhere() -> None:
    options: dict[str, Any] = {"what": "profiles", "memory": int(80e9), "tflops": 100}
    one, two = (mi.plan_run("demo", problems(1) * n, FILLER, **options) for n in (1, 2))
    assert two.operations == 2 * one.operations
    assert two.terms[1].seconds == pytest.approx(2 * one.terms[1].seconds)


@pytest.mark.slow
def test_it_comes_true_within_a_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter", time.process_time)  # other programs run beside tests
    asked = problems(12)
    plan = mi.plan_run(
        "demo", asked, FILLER, what="sweep", backend="nnsight", attention="sdpa", device="cpu", seconds=8
    )
    model = mi.load_model("demo", backend="nnsight", attn_implementation="sdpa", device="cpu")
    pairs = mi.make_pairs(model, asked, FILLER)
    mi.patch_heads(model, pairs[:1], progress=False)
    began = time.perf_counter()
    mi.patch_heads(model, pairs, progress=False)
    spent = time.perf_counter() - began
    predicted = sum(term.seconds for term in plan.terms[1:])
    assert 1 / 4 < predicted / spent < 4, (predicted, spent)


def test_answers_are_as_long_as_was_said() -> None:
    options: dict[str, Any] = {"what": "accuracy", "memory": int(80e9), "tflops": 100}
    own, short, long = (
        mi.plan_run("demo", problems(2), FILLER, **options, max_new_tokens=n).operations for n in (None, 3, 30)
    )
    assert short < long and own != long


def test_what_a_first_call_loads_counts_once() -> None:
    slept: list[float] = []

    def run(model: Any, pairs: Any) -> None:
        seconds = 0.001 if slept else 0.4
        time.sleep(seconds)
        slept.append(seconds)

    step = Step("sleeping", run, lambda at, pairs: 1.0 * len(pairs), lambda at, pairs: 0.0, times=3)
    shape, chosen = Shape.of("demo"), Chosen("nnsight", "float32", "cpu", "sdpa")
    units = [[pair] for pair in mi.make_pairs(shape.tokenizer, problems(2), FILLER)]
    timed = Timed(shape, chosen, mi.load_model("demo", backend="nnsight"), 2, 0.0)
    assert 0.4 <= timed.step(step, units, seconds=0.6) < 0.8
    slept.clear()
    timed.step(step, units, seconds=0.1)
    assert slept == [0.4], "nothing is left for a second call"


@pytest.mark.parametrize("what", ["locate", "profiles", "accuracy"])
def test_no_longer_is_timed_than_was_asked(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter", time.process_time)  # other programs run beside tests
    built: list[float] = []
    of = Timed.of

    def made(*given: Any, **options: Any) -> Timed:
        began = time.perf_counter()
        found = of(*given, **options)
        built.append(time.perf_counter() - began)
        return found

    monkeypatch.setattr(Timed, "of", made)
    asked, began = problems(64), time.perf_counter()
    plan = mi.plan_run("demo", asked, FILLER, what=what, device="cpu", seconds=1)
    assert time.perf_counter() - began - built[0] < 3
    late = [term for term in plan.terms if "by its operations" in term.how]
    assert all(term.estimate and term.seconds > 0 for term in late) and bool(late) == (what == "locate")


def test_timed_prompts_have_a_small_vocabulary_and_the_same_shape() -> None:
    pairs = mi.make_pairs(mi.load_model("demo", backend="nnsight"), problems(3), FILLER)
    small = own_ids(pairs)
    used = {one for pair in small for one in (*pair.inserted.ids, *pair.answer_ids)}
    assert max(used) <= len(used) + sum(len(pair.solution_ids) + len(pair.answer_prefix_ids) for pair in pairs)
    for before, after in zip(pairs, small, strict=True):
        assert after.span == before.span and after.inserted.segments == before.inserted.segments
        same = [(a == b, c == d) for a, c in zip(before.base.ids, after.base.ids, strict=True) for b, d in
                zip(before.base.ids, after.base.ids, strict=True)]  # fmt: skip
        assert all(left == right for left, right in same)


def test_pairs_are_taken_as_they_are() -> None:
    pairs = mi.make_pairs(Shape.of("demo").tokenizer, problems(2), FILLER)
    options: dict[str, Any] = {"what": "sweep", "memory": int(1e10), "tflops": 100}
    assert (
        mi.plan_run("demo", pairs, **options).operations
        == mi.plan_run("demo", problems(2), FILLER, **options).operations
    )
    with pytest.raises(ValueError, match="pairs have their insertion already"):
        mi.plan_run("demo", pairs, FILLER, **options)
    with pytest.raises(ValueError, match="give problems with an insertion"):
        mi.plan_run("demo", problems(2), **options)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"what": "nothing"}, "what"),
        ({"memory": 10}, "both its memory and its tflops"),
        ({"seconds": 0}, "seconds must be above 0"),
        ({"n_named": 0}, "n_named must be 1 or more"),
        ({"dtype": "int8"}, "unknown dtype"),
        ({"backend": "bridge", "attention": "sdpa"}, "needs backend 'nnsight'"),
        ({"device": "cuda:7"}, "no device 'cuda:7' here"),
    ],
)
def test_wrong_input_is_told_before_anything_is_timed(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        mi.plan_run("demo", problems(1), FILLER, **wrong)


@pytest.mark.parametrize("wrong", ["demo", 3, [None], ["pairs"]])
def test_problems_are_problems_or_pairs(wrong: Any) -> None:
    with pytest.raises(TypeError, match="problems must be several"):
        mi.plan_run("demo", wrong, FILLER)


def test_a_config_of_no_decoder_is_refused(without_weights: Path) -> None:
    (without_weights / "config.json").write_text('{"model_type": "nothing"}')
    with pytest.raises(mi.ModelError, match="cannot plan"):
        mi.plan_run(str(without_weights), problems(1), FILLER)


def test_amounts_of_memory() -> None:
    assert parsed_bytes("80GB") == 80 * 10**9 and parsed_bytes("1.5 GiB") == 3 * 2**29
    with pytest.raises(ValueError, match="cannot read 'much'"):
        parsed_bytes("much")
    assert duration(7300.0).endswith(" h")


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    words = ["plan", "demo", "sweep", "--limit", "2", "--n-tokens", "20", "--device", "cpu", "--seconds", "0.3"]
    done = CliRunner().invoke(app, [*words, "--price", "3", "--json", str(file)])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("Fits on cpu in float32") and "at 3 an hour" in done.output
    written = json.loads(file.read_text())
    assert written["n_problems"] == 2 and written["fits"][0]["fits"]


def told(words: list[str], *, command: str) -> dict[str, Any]:
    """What a command makes of these words, without doing it."""
    import typer

    made: Any = typer.main.get_command(app)
    return made.commands[command].make_context(command, list(words)).params


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize(
    "insertion",
    [
        mi.Insertion.meaningless(" /", n_tokens=20),
        mi.Insertion.meaningful("she", n_tokens=12, before="system"),
        mi.Insertion.random_sentence(9, seed=3, after="question"),
        mi.Insertion.ids([5, 6], 8, before=("question", "system")),
        mi.Insertion.repeat_question(2),
        mi.Insertion.text(" / /"),
    ],
    ids=lambda insertion: insertion.kind,
)
def test_the_command_that_is_told_has_the_same_insertion(what: str, insertion: mi.Insertion) -> None:
    elsewhere: dict[str, Any] = {"memory": int(80e9), "tflops": 100}
    plan = mi.plan_run("demo", problems(2), insertion, what=what, source={"problems": "demo"}, **elsewhere)
    if what == "accuracy" and insertion.kind not in TREATED.values():
        assert plan.command == "" and "No command does this" in repr(plan)
        return
    program, command, *words = shlex.split(plan.command)
    options = told(words, command=command)
    assert program == "mless-interp" and (options["model"], options["limit"], options["device"]) == ("demo", 2, None)
    kind, unit = options.get("insertion"), options.get("unit")
    if what == "accuracy":
        asked = options["treatments"].split(",")
        assert len(asked) == 2 and TREATED[asked[1]] == insertion.kind
        kind = insertion.kind
        unit = {"meaningful": options["word"], "meaningless": options["unit"]}.get(kind)
    elif what == "profiles":
        kind, _, unit = options["insertion"][0].partition("=")
    given = {"n_tokens": options["n_tokens"], "seed": options["seed"], "place": options["place"]}
    made = chosen_insertion(kind, unit or None, **given)
    pairs = [mi.make_pairs(Shape.of("demo").tokenizer, problems(2), each) for each in (insertion, made)]
    assert [pair.inserted for pair in pairs[0]] == [pair.inserted for pair in pairs[1]]


@pytest.mark.slow
def test_the_command_that_is_told_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = mi.plan_run(
        "demo", problems(2), FILLER, what="sweep", device="cpu", seconds=0.2, source={"problems": "demo"}
    )
    done = CliRunner().invoke(app, shlex.split(plan.command)[1:])
    assert done.exit_code == 0, done.output
    written = json.loads((tmp_path / "results" / "sweep" / "run.json").read_text())
    assert written["n_problems"] == 2 and written["mode"] == "sweep"


@pytest.mark.parametrize("what", ["sweep", "profiles"])
def test_quotes_and_dashes_reach_the_program_as_they_are(what: str) -> None:
    text, folder = "-a 'b\n$c", "--x/y z"
    (pair,) = mi.make_pairs(Shape.of("demo").tokenizer, problems(1), FILLER)
    pair = replace(pair, insertion=mi.Insertion.text(text))
    chosen = Chosen("auto", "float32", "cpu", "eager")
    asked: dict[str, Any] = {"outcome": "kl", "n_treatments": 2, "max_new_tokens": None, "problems": {}, "limit": 1}
    made = command_of(what, pair, model=folder, chosen=chosen, here=True, **asked)
    _, command, *words = shlex.split(made)
    options = told(words, command=command)
    given = options["insertion"] if what == "sweep" else options["insertion"][0].partition("=")[0]
    unit = options["unit"] if what == "sweep" else options["insertion"][0].partition("=")[2]
    assert (given, unit, options["model"], options["device"]) == ("text", text, folder, "cpu")


def quantised(folder: Path, **config: Any) -> Path:
    """The same folder, whose config says that its weights are quantised."""
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(said | {"quantization_config": config}))
    return folder


@pytest.mark.parametrize(
    ("config", "bits"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.5),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 8),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 4.15625),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8),
    ],
)
def test_quantised_weights_count_as_they_are_stored(config: dict[str, Any], bits: float, without_weights: Path) -> None:
    plain = Shape.of(str(without_weights))
    shape = Shape.of(str(quantised(without_weights, **config)))
    products = 4 * (224 * (28 + 2 * 4) * 8 + 224 * 28 * 8 + 3 * 224 * 256)
    assert shape.n_parameters == plain.n_parameters
    assert shape.bytes_of_weights(2) == (plain.n_parameters - products) * 2 + products * bits / 8
    plan = mi.plan_run(
        str(without_weights), problems(1), FILLER, what="profiles", memory=int(1e10), tflops=100, price=2
    )
    assert plan.chosen.backend == "nnsight" and plan.chosen.dtype == "bfloat16"
    assert any(config["quant_method"] in said for said in plan.advice)
    with pytest.raises(mi.ModelError, match="HookedTransformer converts whole weights"):
        mi.plan_run(str(without_weights), problems(1), FILLER, backend="hooked_transformer")


def test_a_method_that_is_not_known_counts_whole(without_weights: Path) -> None:
    plain = Shape.of(str(without_weights)).bytes_of_weights(2)
    folder = quantised(without_weights, quant_method="gptq", bits="\x1b[31mfour")
    assert Shape.of(str(folder)).bytes_of_weights(2) == plain


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_hidden_layers": 10**9, "layer_types": None}, "num_hidden_layers is 1,000,000,000, no model"),
        ({"vocab_size": -5}, "vocab_size must be a whole number above 0, got -5"),
        ({"hidden_size": 0}, "hidden_size must be a whole number above 0, got 0"),
        ({"num_key_value_heads": 5}, "28 query heads cannot share 5"),
        ({"model_type": "\x1b[31mred\x07"}, r"\x1b[31mred"),
        ({"model_type": "bert"}, "cannot plan|is an encoder"),
        ({"quantization_config": [1]}, "quantization_config must be an object"),
        ({"hidden_size": 28 * 10**6}, "too much to be timed"),
    ],
)
def test_a_wrong_config_is_one_line(changes: dict[str, Any], words: str, without_weights: Path) -> None:
    said = json.loads((without_weights / "config.json").read_text())
    (without_weights / "config.json").write_text(json.dumps(said | changes))
    refused(["plan", str(without_weights), "--limit", "1"], words)


def refused(command: list[str], words: str) -> None:
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2 and done.output.count("\n") == 1 and done.output.startswith("error: "), done.output
    assert any(word in done.output for word in words.split("|")), done.output
    assert not set(done.output) & set("\x1b\x07")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (["no/such/folder"], "there is no such directory"),
        (["demo", "--n-tokens", "5000"], "context"),
        (["demo", "--problems", "no/such.jsonl"], "no/such.jsonl"),
        (["demo", "walk"], "unknown analysis 'walk'"),
        (["demo", "--attention", "none"], "unknown attention 'none'"),
        (["demo", "--memory", "80GB"], "both its memory and its tflops"),
        (["demo", "--named", "113"], "at most the model's 112 heads"),
        (["demo", "--place", "nowhere"], "is no place"),
        (["demo", "--json", "."], "it is a folder"),
        (["demo", "--memory", "80GB", "--tflops", "10", "--device", "cpu"], "leave out the device"),
        (["demo", "--max-new-tokens", "5"], "--max-new-tokens is for accuracy, and locate has no use for it"),
        (["demo", "--treatments", "3"], "--treatments is for accuracy"),
        (["demo", "sweep", "--named", "3"], "--named is for locate, and sweep has no use for it"),
    ],
)
def test_a_wrong_option_is_one_line(asked: list[str], words: str) -> None:
    refused(["plan", *asked], words)


@pytest.mark.parametrize(
    ("kind", "unit", "told_as"),
    [("ids", "5,6", "--n-tokens 2"), ("text", " / /", "--unit ' / /'"), ("repeat_question", "2", "--unit 2")],
)
def test_an_insertion_that_needs_no_length_needs_none_here(kind: str, unit: str, told_as: str) -> None:
    elsewhere = ["--limit", "2", "--memory", "80GB", "--tflops", "100"]
    done = CliRunner().invoke(app, ["plan", "demo", "--insertion", kind, "--unit", unit, *elsewhere])
    assert done.exit_code == 0 and f"--insertion {kind}" in done.output and told_as in done.output, done.output


def test_a_folder_without_tokenizer_is_one_line(without_weights: Path) -> None:
    (without_weights / "tokenizer.json").unlink()
    refused(["plan", str(without_weights)], "holds no tokenizer")


def test_a_folder_without_config_is_one_line(tmp_path: Path) -> None:
    refused(["plan", str(tmp_path)], "holds no config.json")


def test_layers_like_others_have_their_windows() -> None:
    shape = Shape.of("demo")
    made = shape.layers_like(2, n_words=64, dtype=torch.bfloat16, attention="eager")
    assert made.hf_model.config.num_hidden_layers == 2 and made.hf_model.config.vocab_size == 64
    assert all(torch.isfinite(weight).all() for weight in made.hf_model.parameters())
    assert replace(shape.info, n_layers=2).n_heads == made.hf_model.config.num_attention_heads


def test_a_notebook_shows_a_plan_as_sentences_and_a_table() -> None:
    plan = mi.plan_run("demo", problems(2), FILLER, what="sweep", memory=int(80e9), tflops=100)
    shown = replace(plan, model="<b>bold</b>\x1b")._repr_html_()
    assert shown.startswith("<div") and f"<p>{plan.answer()}</p>" in shown and "<table" in shown
    assert "&lt;b&gt;bold" in shown and "<b>bold" not in shown and "\x1b" not in shown
