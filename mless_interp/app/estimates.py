"""`plan_run`: seconds, memory and the command of a run, from a few real units of it, or from a config where no weights are."""

import time
import timeit
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from accelerate.utils import get_max_memory
from huggingface_hub import try_to_load_from_cache
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from .. import answers, mechanism, scores
from ..answers.decoding import rows_at_once
from ..answers.evaluate import MAX_NEW_TOKENS
from ..circuits.circuit import trace_circuit
from ..core.arguments import Arguments, checked, count_of, one_of
from ..models.architectures import decoder_layers
from ..models.attention_math import product
from ..models.base import Model
from ..models.hugging_face import hugging_face_info, load_tokenizer, only_here
from ..models.info import ModelError, ModelInfo
from ..models.load import CONVERTED_AT_MOST, load_model, source_of
from ..models.load_options import BACKENDS, DTYPES, INDEX, WEIGHTS, document, first_line
from ..models.memory import TOKENS_PER_PASS, threads_for, turn
from ..patching.knockouts import gate_row, gated_outcomes
from ..patching.outcomes import Outcome, outcome_named
from ..patching.prepared import fit_pairs, prepare, units_of
from ..patching.sweep import Sweep, patch_heads, sweep_heads
from ..prompts.conditions import CONTRASTS
from ..prompts.insertions import Insertion
from ..prompts.pairs import PromptPair, make_pairs
from ..prompts.problems import Problem
from ..prompts.prompt import Tokenizer
from ..runtime.loop import RunOptions
from ..runtime.text_safety import visible
from . import INCLUDED
from .accuracy import TREATMENTS
from .command_line import Attention
from .study_runner import Study, pairs_of, read_study

COSTS = {
    "sweep": (2, 1),
    "locate": (2, 4),
    "profiles": (6, 0),
    "mechanism": (22, 0),
    "accuracy": (0, 0),
    "circuit": (10, 6),
}
"""Whole passes and exact sweeps of a problem where nothing can be timed, between what small and wide models take."""
OF_A_CONTRAST = 3  # whole passes of a problem, and one more for its attention, in a study
N_NAMED = 8  # heads that are taken to be in a circuit
N_SETS = 400  # sets of heads that a search measures on a problem, about: sufficient, necessary and random ones
SMALL = 10**8  # parameters up to which a model is run by default with attention that can be shown
AROUND = 12.0  # seconds in which libraries load and, at the end, tables and pictures are made
LOADED_PER_SECOND = 0.6e9  # bytes of weights that are read, checked and hashed
REACHED = {"here": 0.8, "elsewhere": 0.4}  # of a matrix product's speed, measured here or as a GPU's own figure
ROWS_OF_A_GPU = 200  # prompts that a GPU answers in the time of one: it reads all weights for each token
SHARE_OF_GPU = 0.9
ELSEWHERE = "GPU elsewhere"
LIBRARIES = {"cpu": 0.6e9, "cuda": 0.8e9}  # bytes that Python and the libraries take, and a context on a GPU


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """Store the time and memory that `plan_run` found: seconds (`parts`) and bytes (`memory`) of each part.

    `chosen`: backend, dtype, device and attention. `tokens`: fewest and most of an inserted prompt. `available`: bytes of the
    device. `timed`, or counted from the config alone.
    """

    model: str
    what: str
    chosen: Mapping[str, str]
    n_problems: int
    n_parameters: int
    tokens: tuple[int, int]
    parts: Mapping[str, float]
    memory: Mapping[str, float]
    available: float
    timed: bool
    n_fresh: int = 0

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    @property
    def peak(self) -> float:
        """Bytes at the peak, without files that the system maps and can take back."""
        weights, recorded, one_pass, libraries, loading = self.memory.values()
        return libraries + weights + max(loading, recorded + one_pass)

    @property
    def fits(self) -> bool:
        return self.peak <= self.available

    def __repr__(self) -> str:
        problems = count_of(self.n_problems, "problem") + f" ({self.n_fresh} fresh)" * bool(self.n_fresh)
        tokens = " to ".join(map(str, dict.fromkeys(self.tokens)))
        memory = ", ".join(f"{name} {value / 1e9:.3g}" for name, value in self.memory.items())
        loading = " ".join(f"--{name}={value}" for name, value in self.chosen.items() if value != ELSEWHERE)
        lines = [
            f"{'Fits' if self.fits else 'Does not fit'} on {self.chosen['device']} in {self.chosen['dtype']} "
            f"({self.peak / 1e9:.3g} of {self.available / 1e9:.3g} GB); takes about {duration(self.seconds)}.",
            f"{self.model}, {self.n_parameters:,} parameters; {self.what} of {problems} of {tokens} tokens.",
            f"Time, {'timed on a few problems' if self.timed else 'counted from the config'}:",
            *(f"  {duration(spent)}: {name}" for name, spent in self.parts.items()),
            f"Memory, GB: {memory}.",
            f"Load with: {loading}",
        ]
        return visible("\n".join(lines))


@checked
def plan_run(
    name: str,
    problems: Iterable[Problem | PromptPair],
    insertion: Insertion | None = None,
    *,
    what: str | Path | Study = "locate",
    template: str = "raw",
    outcome: str = "answer_logprob",
    backend: str | None = None,
    dtype: str | None = None,
    device: str | None = None,
    attention: str | None = None,
    memory: int | None = None,
    tflops: float | int | None = None,
    max_new_tokens: int | None = None,
    n_fresh: int = 0,
) -> Plan:
    """Estimate a run's seconds and memory before it is started.

    Where the weights are here and fit, each part of the analysis is timed on a few problems of the most usual length. Elsewhere
    operations are counted from config.json and the prompts, over this machine's speed in a matrix product, or a given GPU's.

    name : "demo", a directory with config.json and a tokenizer (with or without weights), or a hub id.
    problems : with the `insertion` and the `template`, or pairs that are made already.
    what : "sweep" (one exact sweep of all heads), "locate" (exact sweeps and controls), "profiles", "mechanism", "accuracy"
        (the command's five treatments, answers of up to `max_new_tokens`, default as long as the longest solution),
        "circuit"; or a study, by its name, its .toml file or as `read_study` gives it: all else is as it says.
    n_fresh : how many of the problems, of "locate" or "circuit", test what the others name.
    backend, dtype, device, attention : as `load_model` takes them; None: chosen here.
    memory, tflops : bytes, and 10^12 operations a second, of a GPU that is not here; both together.
    """
    study = None
    if isinstance(what, Study) or what not in COSTS:
        if not isinstance(what, Study) and not Path(what).is_file():
            one_of(str(what), (*COSTS, *INCLUDED), "analysis or study")
        study = read_study(what)
        if insertion or n_fresh or max_new_tokens or (template, outcome) != ("raw", "answer_logprob"):
            raise ValueError(
                "a study says its insertions, template, outcome, n_fresh and max_new_tokens: leave them out"
            )
        template, outcome, n_fresh, max_new_tokens = study.template, study.outcome, study.confirm, study.max_new_tokens
    asked = {"backend": (backend, BACKENDS), "dtype": (dtype, DTYPES), "attention": (attention, get_args(Attention))}
    for label, (word, known) in asked.items():
        one_of(word or known[0], known, label)
    if (memory is None) != (tflops is None) or (memory is not None and device is not None):
        raise ValueError(
            "for a GPU that is elsewhere give memory (80e9 bytes; 80GB in a command) and tflops (400), and no device"
        )
    shape = Shape.of(name)
    given: tuple[Any, ...] = tuple(problems)
    pairs = given if insertion is None else make_pairs(shape, given, insertion, template=template)
    if study is not None:
        of_each = pairs_of(study, shape, study.in_order(given)).values()
        pairs = max(of_each, key=lambda pairs: sum(len(pair.inserted) for pair in pairs))  # stands for all insertions
    read = outcome_named(outcome, signed_for="locating heads" if what in ("locate", "circuit") else "")
    if not pairs or not all(isinstance(pair, PromptPair) for pair in pairs):
        raise ValueError("give problems with an insertion, or pairs alone")
    if study or what in ("sweep", "locate", "circuit"):
        for made in [pairs] if study is None else of_each:
            fit_pairs(made)
        read.check(tuple(read.asked(pair, shape.info) for pair in pairs))
    lengths = [len(pair.inserted) for pair in pairs]
    new = max_new_tokens or max(len(pair.solution_ids) for pair in pairs) or MAX_NEW_TOKENS
    new = min(new, max(1, shape.info.context_length - max(lengths)))
    places = {f"cuda:{at}" if isinstance(at, int) else at: float(free) for at, free in get_max_memory().items()}
    if memory is not None:
        places = {ELSEWHERE: SHARE_OF_GPU * memory}
    device = next(iter(places)) if device is None else "cuda:0" if device == "cuda" else device
    if device not in places:
        raise ModelError(f"there is no device {device!r} here; choose {' or '.join(places)}, or give memory and tflops")
    if backend is None:
        small = shape.n_parameters <= SMALL and not shape.bits and what != "mechanism" and attention in (None, "eager")
        backend = "nnsight" if not small else "bridge" if study or what == "accuracy" else "auto"
    if attention is None:
        attention = "sdpa" if backend == "nnsight" and what != "mechanism" else "eager"
    if attention != "eager" and backend != "nnsight":
        raise ValueError(f"attention {attention!r} needs backend 'nnsight', got {backend!r}")
    if not 0 <= n_fresh < len(pairs):
        raise ValueError(f"n_fresh must leave problems that name heads: 0 to {len(pairs) - 1}, got {n_fresh}")
    called = str(what) if study is None else f"study {study.title!r}"
    work = _Work(shape, called, read, pairs, template, new, places, tflops, n_fresh, study)
    works, of = [work], ""
    if what == "accuracy":
        works, of = [replace(work, times=len(TREATMENTS))], f", {len(TREATMENTS)} treatments"
    if study is not None:
        n, of = len(of_each), f", {count_of(len(of_each), 'insertion')}"
        works = [replace(work, what="effects", pairs=pairs[: study.limit], times=n)]
        if study.heads == "all":
            works.append(replace(work, what="locate", pairs=pairs[: study.limit + study.confirm], times=n))
        if study.answers:
            answered: Arguments = {"pairs": pairs[: study.answers], "times": n + 1}
            works.append(replace(work, what="accuracy", **answered))
    for one in [dtype] if dtype else ["bfloat16"] if shape.bits else ["float32", "bfloat16"]:
        chosen = {"backend": backend, "dtype": one, "device": device, "attention": attention}
        sizes = len(pairs), shape.n_parameters, (min(lengths), max(lengths))
        kept = [each.memory(chosen) for each in works]
        bytes_of = {part: max(each[part] for each in kept) for part in kept[0]}
        plan = Plan(name, called, chosen, *sizes, {}, bytes_of, places[device], False, n_fresh)
        if plan.fits:
            break
    timed, began = memory is None and shape.is_here and plan.fits, time.perf_counter()
    if timed:
        how: Arguments = {name.replace("attention", "attn_implementation"): value for name, value in chosen.items()}
        model = load_model(shape.info.name, **how)
        parts = {"libraries, loading, self-check and pictures": AROUND + time.perf_counter() - began}
    else:
        parts = {"libraries, loading and pictures": AROUND + shape.weights(chosen["dtype"]) / LOADED_PER_SECOND}
    for each in works:
        spent = each.timed(model) if timed else each.counted(chosen)
        parts |= {f"{part}{of}": each.times * seconds for part, seconds in spent.items()}
    return replace(plan, timed=timed, parts=parts)


@dataclass(frozen=True, eq=False)
class _Work:
    """The planned work on its prompts, how many `times` it is done, and the bytes that are free in each of `places`."""

    shape: "Shape"
    what: str
    outcome: Outcome
    pairs: Sequence[PromptPair]
    template: str
    new_tokens: int
    places: Mapping[str, float]
    tflops: float | int | None
    n_fresh: int
    study: Study | None
    times: int = 1

    @property
    def cost(self) -> tuple[int, int]:
        """Whole passes and exact sweeps of a problem."""
        if self.study is None or self.what != "effects":
            return COSTS[self.what]
        return OF_A_CONTRAST * len(self.study.contrasts) + bool(self.study.metrics), 0

    @property
    def batch(self) -> int:
        gpu = next((int(free) for place, free in self.places.items() if place != "cpu"), None)
        longest = max(len(pair.inserted) for pair in self.pairs)
        return min(len(self.pairs), rows_at_once(self.shape.info, gpu, longest=longest, max_new_tokens=self.new_tokens))

    def memory(self, chosen: Mapping[str, str]) -> dict[str, float]:
        """Return the bytes of each part at its largest; "loading": a second copy where a HookedTransformer is made."""
        info, dtype, backend = self.shape.info, chosen["dtype"], chosen["backend"]
        size, weights = getattr(torch, dtype).itemsize, self.shape.weights(dtype)
        place = "cpu" if chosen["device"] == "cpu" else "cuda"
        longest = max(self.pairs, key=lambda pair: len(pair.inserted)).answered(self.outcome.appended)
        length = changed = len(longest.inserted)
        batch, rows, read, runs = 1, 1, 1, 0
        if self.what == "accuracy":
            batch, length = self.batch, length + self.new_tokens
        elif self.what not in ("profiles", "mechanism"):
            answered = tuple(pair.answered(self.outcome.appended) for pair in self.pairs)
            batch, changed, runs = max(map(len, units_of(answered, self.outcome))), length - longest.spans[0][1], 2
            read = len(self.outcome.reads(longest))
            rows = min(-(-TOKENS_PER_PASS[place] // (changed * batch)), info.n_layers * (info.n_heads + 1))
        d_both = (info.d_key or info.d_head) + info.d_head
        cache = (runs * info.n_key_value_heads * d_both or info.n_cached) * length
        recorded = runs * changed * (info.d_model + info.n_heads * d_both)
        scores = 4 * info.n_heads * length * (chosen["attention"] == "eager")
        wide = 8 * info.d_model + 4 * (info.d_mlp or 4 * info.d_model) + scores
        converted = backend == "hooked_transformer" or (backend == "auto" and weights <= CONVERTED_AT_MOST)
        return {
            "weights": weights,
            "recorded runs": float(batch * info.n_layers * (recorded + cache) * size),
            "one pass": float(batch * rows * (changed * wide + 3 * read * info.d_vocab) * max(size, 4)),
            "libraries": LIBRARIES[place],
            "loading": weights * converted,
        }

    def timed(self, model: Model) -> dict[str, float]:
        n, quiet = len(self.pairs), RunOptions(progress=False)
        mean, heads = np.mean([len(pair.inserted) for pair in self.pairs]), model.info.heads
        usual = sorted(self.pairs, key=lambda pair: abs(len(pair.inserted) - mean))

        def spent(n: int, *measures: Callable[..., object]) -> float:
            return extrapolated(lambda some: [measure(model, usual[:some], progress=False) for measure in measures], n)

        match self.what:
            case "accuracy":
                some, treatments = [pair.problem for pair in self.pairs[: self.batch]], (None, self.pairs[0].insertion)
                how: Arguments = {"template": self.template, "progress": False}
                asked = partial(answers.evaluate_accuracy, model, some, treatments, **how)
                of_batch = extrapolated(lambda eights: asked(max_new_tokens=8 * eights), self.new_tokens / 8, sizes=2)
                return {f"answers of {self.new_tokens} tokens": of_batch * n / self.batch / len(treatments)}
            case "profiles":
                drawn = partial(scores.attention_profile, heads=heads[:3])
                return {"profiles of all heads": spent(n, scores.score_heads, drawn)}
            case "mechanism":
                parted = partial(mechanism.decompose_attention, n_control_draws=5)
                mediated = partial(mechanism.mediate, outcome=self.outcome.name)
                return {"mechanism of all heads": spent(n, parted, mechanism.activation_shift, mediated)}
            case "effects":
                assert self.study is not None
                effect = partial(patch_heads, heads=heads[:1], outcome=self.outcome.name)
                measures: list[Any] = [partial(effect, contrast=each) for each in self.study.contrasts]
                if self.study.metrics:
                    attention: Arguments = {"metrics": self.study.metrics, "conditions": ("inserted",)}
                    measures.append(partial(scores.score_heads, **attention))
                return {"effects and attention": spent(n, *measures)}
        one = prepare(model, self.pairs, self.outcome).only([self.pairs.index(usual[0])])

        def swept(per_layer: int) -> None:
            some = [head for head in heads if head.head < per_layer]
            sweep_heads(one, {"sweep": Sweep.named()}, some, options=quiet)

        sweep = n * extrapolated(swept, model.info.n_heads)
        if self.what == "sweep":
            return {"an exact sweep of all heads": sweep}
        four, tested = 4 * sweep / n, self.n_fresh or n
        named = n - self.n_fresh
        parts = {"4 exact sweeps of all heads": named * four, "controls, about as much": tested * four}
        if self.what == "circuit":
            some_heads = heads[:: max(1, len(heads) // N_NAMED)][:N_NAMED]
            wanted = ["direct", "edges", "sites", "positions", "writes"]
            traced = partial(trace_circuit, heads=some_heads, parts=wanted, mlps="all", outcome=self.outcome.name)
            parts[f"edges, sites, positions and writes of {len(some_heads)} heads"] = spent(tested, traced)
            gates = gate_row(some_heads, model.info)[None]
            gated = partial(gated_outcomes, label="sets", settings={}, contrast=CONTRASTS["content"], options=quiet)
            parts["sets of heads"] = tested * extrapolated(lambda n: gated(one, torch.cat([gates] * n)), N_SETS)
        return parts

    def counted(self, chosen: Mapping[str, str]) -> dict[str, float]:
        """Return the seconds of the operations, over a speed that is measured here or was given."""
        shape, info = self.shape, self.shape.info
        n, (passes, sweeps) = 0.0, self.cost
        for pair in self.pairs:
            answered = pair.answered(self.outcome.appended)
            length, read = len(answered.inserted), len(self.outcome.reads(answered))
            changed, heads = length - answered.spans[0][1], sweeps * info.n_layers * (info.n_heads + 1)
            share = (info.n_layers + 1) / (2 * info.n_layers)  # a row begins at the layer that it edits
            n += shape.operations(length, positions=passes * length, read=passes * read)
            n += shape.operations(length, positions=heads * changed, read=heads * read, layers=share)

        @torch.no_grad()
        def speed(rows: int) -> float:
            """Return the operations per second of a matrix product of the model's width: the best of a few."""
            if self.tflops is not None:
                return REACHED["elsewhere"] * self.tflops * 1e12 * min(1.0, rows / ROWS_OF_A_GPU)
            width, of = info.d_model, {"device": chosen["device"], "dtype": getattr(torch, chosen["dtype"])}
            x, weight = torch.ones(rows, width, **of), torch.ones(4 * width, width, **of)
            few = 4 if x.device.type == "cpu" else 500  # by then an idle GPU's clock has risen
            with turn((), threads=threads_for(info)):
                spent = min(timeit.repeat(lambda: product(x, weight).sum().item(), number=1, repeat=few))
            return REACHED["here"] * 8.0 * rows * width * width / spent

        if self.what != "accuracy":
            return {f"{self.what}, {self.times * n:.2g} operations": n / speed(512)}
        prompts = sum(len(pair.inserted) for pair in self.pairs)
        new, length = len(self.pairs) * self.new_tokens, len(self.pairs[0].inserted)
        reading = shape.operations(length, positions=prompts, read=0) / speed(512)
        writing = shape.operations(length, positions=new, read=new) / speed(self.batch)
        return {f"answers of {self.new_tokens} tokens": reading + writing}


@dataclass(frozen=True, eq=False)
class Shape:
    """Hold a model's geometry and tokenizer, and count its parameters (tied ones once) and operations.

    `active`: parameters of a layer that a token meets (of experts the chosen ones). `bits` of each of `n_quantised` parameters.
    """

    info: ModelInfo
    tokenizer: Tokenizer
    n_parameters: int
    active: float
    bits: float = 0.0
    n_quantised: int = 0

    @classmethod
    def of(cls, name: str) -> "Shape":
        """Read config.json and the tokenizer; `ModelError` where there are none, or for a model of a kind that is not taken."""
        source = source_of(name)
        how: Arguments = {"local_files_only": only_here(source), "trust_remote_code": False}
        if Path(source).is_dir():
            document(Path(source), "config.json")
        try:
            config, tokenizer = AutoConfig.from_pretrained(source, **how), load_tokenizer(source, **how)
            with torch.device("meta"):
                made = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
            info = hugging_face_info(made, name=name)
            layers = [layer.module for layer in decoder_layers(made, info)]
        except ModelError:
            raise
        except Exception as error:  # of a dozen kinds, as where models are loaded
            raise ModelError(f"cannot plan with {name!r}: {first_line(error)}") from error
        text = config.get_text_config()
        counts = (getattr(text, key, None) for key in ("num_local_experts", "num_experts", "n_routed_experts"))
        n_experts = next((count for count in counts if count), None)
        idle = 0.0 if n_experts is None else 1 - text.num_experts_per_tok / n_experts
        named = [item for layer in layers for item in layer.named_parameters()]
        experts = sum(weight.numel() for label, weight in named if "experts" in label and "shared" not in label)
        active = (sum(weight.numel() for _, weight in named) - idle * experts) / len(layers)
        shape = cls(info, tokenizer, made.num_parameters(), active)
        if (packed := getattr(config, "quantization_config", None)) is None:
            return shape
        packed = packed if isinstance(packed, dict) else packed.to_dict()
        four = packed.get("load_in_4bit") or packed.get("_load_in_4bit") or packed.get("quant_method") == "mxfp4"
        linear = [each for layer in layers for each in layer.modules() if isinstance(each, nn.Linear | Conv1D)]
        of_experts = experts * (packed.get("quant_method") in ("fp8", "mxfp4"))  # experts are no linear layers
        n_quantised = sum(each.weight.numel() for each in linear) + of_experts
        return replace(shape, bits=4.0 if four else float(packed.get("bits") or 8), n_quantised=n_quantised)

    @property
    def is_here(self) -> bool:
        """Return True where the model's weights are on this machine."""
        if Path(source := source_of(self.info.name)).is_dir():
            return any(Path(source).glob("*.safetensors"))
        return any(isinstance(try_to_load_from_cache(source, file), str) for file in (WEIGHTS, INDEX))

    def weights(self, dtype: str) -> float:
        """Return the bytes of all weights in this precision, those that are quantised by their bits."""
        whole, packed = self.n_parameters - self.n_quantised, self.n_quantised * self.bits / 8
        return whole * getattr(torch, dtype).itemsize + packed

    def operations(self, length: int, *, positions: float | int, read: float | int, layers: float = 1.0) -> float:
        """Return the floating-point operations (two for a product and its sum) of so many positions that see up to `length`
        tokens, through this share of the layers, with logits at `read` of them."""
        info = self.info
        each = 2 * self.active + 2 * info.n_heads * ((info.d_key or info.d_head) + info.d_head) * length
        return layers * info.n_layers * positions * each + 2.0 * read * info.d_model * info.d_vocab


def extrapolated(run: Callable[[int], object], total: float | int, *, sizes: int = 1) -> float:
    """Return the seconds of `run(total)`, by the line through runs of 1, 2, 4 ... units up to the first that takes a second, of
    `sizes` at least."""

    def timed(units: int) -> float:
        began = time.perf_counter()
        run(units)
        return time.perf_counter() - began

    size, spent, enough = 1, timed(1), 1.0
    if spent < 10 * enough:  # what loads at the first call does not count, on a GPU seconds
        spent, sizes = min(spent, timed(1)), max(sizes, 2)  # nor what is done once, on wide models most of it
    each = spent
    while 2 * size <= total and (spent < enough or size < sizes):
        before, size = spent, 2 * size
        spent = timed(size)
        each = max(0.0, spent - before) / (size - size // 2)
    return spent + each * (total - size)


def duration(seconds: float) -> str:
    """Return seconds in words: 3.14 s, 10 min, 2.5 h."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"
