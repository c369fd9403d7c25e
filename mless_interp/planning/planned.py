"""`plan_run`: what a run takes, before any weight is here: tokens, memory, operations, time, and how to run it."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from ..generation.complete import rows_at_once
from ..given import checked, count_of
from ..grading.graders import grade
from ..models.info import ModelError, ModelInfo
from ..models.load import BACKENDS
from ..models.memory import TOKENS_PER_PASS, rows_per_pass
from ..patching.outcomes import Outcome, outcome_named
from ..patching.prepared import fit_pairs, units_of
from ..prompts.conditions import one_of
from ..prompts.insertions import Insertion
from ..prompts.pairs import PromptPair, make_pairs
from ..prompts.problems import Problem
from ..running.results import as_html, as_text, told_as_html
from ..running.visible import visible
from . import needed as needs
from .command import command_of
from .operations import Arithmetic
from .quantised import Quantised
from .shape import Shape
from .steps import Step, controls, describing, explaining, geometry, n_read, sweeping
from .timing import Chosen, Timed, layers_to_time, n_different, once_of, seconds_of

DTYPES = ("float32", "float64", "bfloat16", "float16")
ATTENTIONS = ("eager", "sdpa", "flash_attention_2")
WHAT = ("sweep", "locate", "profiles", "mechanism", "accuracy")
N_NAMED = 5
"""How many heads are supposed to be named, where that decides what a run takes."""
MAX_NEW_TOKENS = 2048
N_GRADED = 16
SMALL = 10**8
"""Parameters up to which a model is run as it is by default, with attention that can be shown."""
IMPORTING = 3.0
"""Seconds that the libraries take."""
LOADED_PER_SECOND = 0.6e9
"""Bytes of weights that are read, checked and hashed in a second."""
SHARES = {"sweep": 0.4, "locate": 0.4, "profiles": 0.1, "mechanism": 0.1, "accuracy": 0.3}
"""Of a GPU's operations that an analysis is supposed to reach where nothing can be timed."""
OPERATIONS_PER_BYTE = 200.0
"""Of GPUs: how many operations they do while they read a byte; generating reads all weights for every token."""
AN_HOUR = 3600.0
ELSEWHERE = "gpu elsewhere"
GB = 1e9


@dataclass(frozen=True)
class Term:
    """A part of the time: its seconds, whether they are an `estimate` or follow from times of the real code, and how."""

    name: str
    seconds: float
    estimate: bool
    how: str


@dataclass(frozen=True)
class Fit:
    """What a device would hold in a precision, against what it has, in bytes."""

    device: str
    dtype: str
    needs: float
    has: float

    @property
    def fits(self) -> bool:
        return self.needs <= self.has


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """What `plan_run` found. Times in seconds, memory in bytes, `tokens` as (fewest, median, most) of an inserted prompt.

    `operations` count a product and its sum as two; `token_layers` are positions times layers that are computed.
    """

    model: str
    what: str
    chosen: Chosen
    n_problems: int
    n_units: int
    n_parameters: int
    n_layers: int
    n_heads: int
    tokens: tuple[int, float, int]
    tokens_after: float
    operations: float
    token_layers: float
    memory: needs.Memory
    terms: tuple[Term, ...]
    fits: tuple[Fit, ...]
    timed_layers: int
    command: str
    advice: tuple[str, ...]
    price: float | None = None

    @property
    def seconds(self) -> float:
        return sum(term.seconds for term in self.terms)

    @property
    def peak(self) -> float:
        """Bytes on the device at the peak, those of mapped files included (`own_fit.needs`: what must be there)."""
        return self.memory.resident if self.chosen.device == "cpu" else self.memory.device

    @property
    def own_fit(self) -> Fit:
        """Whether what was chosen fits."""
        return next(fit for fit in self.fits if (fit.device, fit.dtype) == (self.chosen.device, self.chosen.dtype))

    def answer(self) -> str:
        """Fits or not, and how long, in a sentence."""
        own, c = self.own_fit, self.chosen
        where = f"on {c.device} in {c.dtype}, {own.needs / GB:.3g} of {own.has / GB:.3g} GB"
        if not own.fits:
            others = [f"{fit.device} in {fit.dtype}" for fit in self.fits if fit.fits]
            return f"Does not fit {where}" + (
                f"; fits {', '.join(others)}." if others else ", nor anything else asked for."
            )
        cost = "" if self.price is None else f", {self.price * self.seconds / AN_HOUR:.3g} at {self.price:g} an hour"
        return f"Fits {where}; takes about {duration(self.seconds)}{cost}."

    def sentences(self) -> list[str]:
        """The answer, what it is of, what is an estimate, and what to choose."""
        c, low, high = self.chosen, self.tokens[0], self.tokens[2]
        length = f"{low}" if low == high else f"{low} to {high}"
        of = (
            f"{self.model}: {self.n_parameters:,} parameters, {count_of(self.n_layers, 'layer')} of "
            f"{count_of(self.n_heads, 'head')}; {self.what} of "
            f"{count_of(self.n_problems, 'problem')} of {length} tokens (median {self.tokens_after:.0f} after the insertion) "
            f"in {count_of(self.n_units, 'unit')}, {self.operations:.2g} operations, {self.token_layers:.2g} token-layers; "
            f"backend {c.backend}, {c.attention} attention."
        )
        guessed = [term.name for term in self.terms if term.estimate]
        if self.timed_layers:
            layers = count_of(self.timed_layers, "random layer")
            how = f"Times are from the real code on {layers} of this geometry on {c.device}"
        else:
            how = "No time was taken, as that GPU is not here"
        how += f"; estimates: {', '.join(guessed)}." if guessed else "."
        run = f"Run: {self.command}" if self.command else "No command does this; in Python it is mi.evaluate_accuracy."
        return [self.answer(), of, how, *self.advice, run]

    def summary(self) -> pd.DataFrame:
        """A row for each part of time and of memory, and for what fits where."""
        m = self.memory
        rows: list[tuple[str, str, str]] = [
            ("time", term.name, f"{duration(term.seconds)}{' (estimate: ' + term.how + ')' if term.estimate else ''}")
            for term in self.terms
        ]
        parts = {
            "weights": m.weights,
            "of them in their files, which the system can take back": m.kept,
            "recorded runs of a unit": m.recordings,
            "one pass": m.one_pass,
            "libraries": m.libraries,
            "files, mapped while weights are copied": m.mapped,
            "peak on the device": self.peak,
            "peak on the host": m.resident if self.chosen.device == "cpu" else m.host_beside,
        }
        rows += [("memory", name, f"{value / GB:.3g} GB") for name, value in parts.items()]
        rows += [
            (
                "fits",
                f"{fit.device}, {fit.dtype}",
                f"{'yes' if fit.fits else 'no'}: {fit.needs / GB:.3g} of {fit.has / GB:.3g} GB",
            )
            for fit in self.fits
        ]
        return pd.DataFrame(rows, columns=["what", "part", "value"])

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        found = asdict(self) | {"seconds": self.seconds, "peak_bytes": self.peak, "answer": self.answer()}
        found["fits"] = [asdict(fit) | {"fits": fit.fits} for fit in self.fits]
        return found

    def __repr__(self) -> str:
        return visible("\n".join([*self.sentences(), "", as_text(self.summary())]))

    def _repr_html_(self) -> str:
        """In a notebook: the same, wrapped."""
        return told_as_html(self.sentences(), as_html(self.summary()))


@checked
def plan_run(
    name: str,
    problems: Iterable[Problem | PromptPair],
    insertion: Insertion | None = None,
    *,
    what: str = "locate",
    template: str = "raw",
    outcome: str = "answer_logprob",
    backend: str | None = None,
    dtype: str | None = None,
    device: str | None = None,
    attention: str | None = None,
    memory: int | None = None,
    tflops: float | int | None = None,
    n_treatments: int = 2,
    max_new_tokens: int | None = None,
    n_named: int = N_NAMED,
    price: float | int | None = None,
    seconds: float | int = 20.0,
    source: Mapping[str, Any] | None = None,
    trust_remote_code: bool = False,
) -> Plan:
    """What a run takes: from config.json and the tokenizer, without any weights.

    Tokens are those of the prompts, parameters those of the model built without memory; operations are counted. The time is
    that of the real code on a few random layers of the same geometry, as many as take about `seconds`, extended to all
    layers by the operations; logits, which grow with the vocabulary, are timed apart. What is an estimate is called one.

    Parameters
    ----------
    name : "demo", a directory with config.json and the tokenizer (no weights are needed), or a hub id.
    problems : with the `insertion` and the `template`, or pairs that are made already. `source`: the options of the commands
        that name them, for the command that is told: {"problems": "mine.txt", "n_context": 64}.
    what : "sweep" (one exact sweep of all heads), "locate" (four, and what is done with `n_named` heads that are supposed to
        be named), "profiles", "mechanism" or "accuracy" (`n_treatments` times all problems, answers of
        `max_new_tokens`, where that is not given as long as the longest solution here).
    backend, dtype, device, attention : as `load_model` takes them; None: chosen here, and told.
    memory, tflops : bytes, and 10^12 operations a second, of a GPU that is not here; both together.
    price : of an hour on the machine, in any currency.

    Raises `ModelError` where the config is none of a model that is taken, `ValueError` for problems that cannot be run.
    """
    one_of(what, dict.fromkeys(WHAT), "what")
    if backend is not None:
        one_of(backend, dict.fromkeys(BACKENDS), "backend")
    if (memory is None) != (tflops is None):
        raise ValueError("a GPU that is not here needs both its memory and its tflops: memory=80e9, tflops=400")
    for label, value in (("memory", memory), ("tflops", tflops), ("seconds", seconds), ("price", price)):
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{label} must be above 0, got {value}")
    if memory is not None and device is not None:
        raise ValueError(f"memory and tflops are of a GPU that is not here: leave out the device, got {device!r}")
    for label, count in (("n_treatments", n_treatments), ("max_new_tokens", max_new_tokens), ("n_named", n_named)):
        if count is not None and count < 1:
            raise ValueError(f"{label} must be 1 or more, got {count}")
    for label, word, words in (("dtype", dtype, DTYPES), ("attention", attention, ATTENTIONS)):
        if word is not None:
            one_of(word, dict.fromkeys(words), label)
    read = outcome_named(outcome, signed_for="locating heads" if what == "locate" else "")
    shape = Shape.of(name, trust_remote_code=trust_remote_code)
    if what == "locate" and n_named > shape.info.n_layers * shape.info.n_heads:
        raise ValueError(
            f"n_named must be at most the model's {shape.info.n_layers * shape.info.n_heads} heads, got {n_named}"
        )
    if backend == "hooked_transformer" and shape.quantised:
        raise ModelError(
            f"{name!r} is quantised ({shape.quantised.method}), and HookedTransformer converts whole weights: use the bridge"
        )
    pairs = _pairs(shape, tuple(problems), insertion, template)
    if what in ("sweep", "locate"):
        pairs = fit_pairs(pairs)
        answered = tuple(pair.answered(read.appended) for pair in pairs)
        read.check(answered)
        units = [[pairs[at] for at in unit] for unit in units_of(answered, read)]
    else:
        units = [[pair] for pair in pairs]
    places = {ELSEWHERE: memory} if memory is not None else needs.here()
    work = _Work(shape, what, read, pairs, units, n_treatments, max_new_tokens, n_named, places)
    chosen = work.chosen(backend=backend, dtype=dtype, device=device, attention=attention)
    if tflops is None:
        terms, timed_layers = work.timed(chosen, float(seconds))
    else:
        terms, timed_layers = work.estimated(chosen, float(tflops)), 0
    plan = Plan(
        model=name,
        what=what,
        chosen=chosen,
        n_problems=len(pairs),
        n_units=len(units),
        n_parameters=shape.n_parameters,
        n_layers=shape.info.n_layers,
        n_heads=shape.info.n_heads,
        tokens=work.tokens,
        tokens_after=float(np.median([pair.n_after for pair in pairs])),
        operations=work.operations,
        token_layers=work.operations / (2 * shape.active),
        memory=work.memory(chosen),
        terms=terms,
        fits=work.fits(chosen),
        timed_layers=timed_layers,
        command="",
        advice=(),
        price=None if price is None else float(price),
    )
    command = command_of(
        what,
        pairs[0],
        model=name,
        chosen=chosen,
        here=chosen.device in needs.here(),
        problems={"problems": "FILE.jsonl"} if source is None else dict(source),
        limit=len(pairs),
        outcome=outcome,
        n_treatments=n_treatments,
        max_new_tokens=max_new_tokens,
    )
    return replace(plan, command=command, advice=_advice(plan, places, shape.quantised))


def _pairs(shape: Shape, given: Sequence[Any], insertion: Insertion | None, template: str) -> tuple[PromptPair, ...]:
    """The pairs that were given, or those of the problems."""
    made = [isinstance(one, PromptPair) for one in given]
    if given and all(made):
        if insertion is not None:
            raise ValueError("pairs have their insertion already: give problems with an insertion, or pairs alone")
        return tuple(given)
    if any(made) or insertion is None:
        raise ValueError("give problems with an insertion, or pairs alone")
    return make_pairs(SimpleNamespace(tokenizer=shape.tokenizer, info=shape.info), given, insertion, template=template)


@dataclass(frozen=True, eq=False)
class _Work:
    """What is to be done of which prompts; short-lived."""

    shape: Shape
    what: str
    outcome: Outcome
    pairs: Sequence[PromptPair]
    units: Sequence[Sequence[PromptPair]]
    n_treatments: int
    max_new_tokens: int | None
    n_named: int
    places: Mapping[str, int]

    @property
    def all(self) -> Arithmetic:
        return Arithmetic(self.shape, self.shape.info.n_layers)

    @property
    def tokens(self) -> tuple[int, float, int]:
        lengths = [len(pair.inserted) for pair in self.pairs]
        return min(lengths), float(np.median(lengths)), max(lengths)

    @property
    def steps(self) -> tuple[Step, ...]:
        if self.what == "sweep":
            return (sweeping(self.outcome, 1),)
        if self.what == "locate":
            return (sweeping(self.outcome, 4), *controls(self.outcome, self.n_named))
        return describing() if self.what == "profiles" else explaining(self.outcome) if self.what == "mechanism" else ()

    @property
    def operations(self) -> float:
        if self.what == "accuracy":
            each = [self.all.whole(1, len(pair.inserted)) for pair in self.pairs]
            new = self.new_tokens * len(self.pairs)
            return self.n_treatments * (sum(each) + self.all.whole(new, 1) + self.all.logits(new))
        steps = self.steps
        return sum(
            step.times * (step.operations(self.all, unit) + self.all.logits(step.logits(self.all, unit)))
            for step in steps
            for unit in self.units
        )

    @property
    def new_tokens(self) -> int:
        """How long the longest answer is supposed to be: as was said, as the longest solution, or as the command allows."""
        room = max(1, self.shape.info.context_length - self.tokens[2])
        longest = max(len(pair.solution_ids) for pair in self.pairs)
        return min(self.max_new_tokens or longest or MAX_NEW_TOKENS, room)

    # ------------------------------------------------------------------------------------------------ how it is to be run

    def chosen(
        self,
        *,
        backend: str | None,
        dtype: str | None,
        device: str | None,
        attention: str | None,
    ) -> Chosen:
        """What was asked for; the rest by size: in the first device that holds it, in float32 if that does."""
        if device is None:
            device = next((place for place in self.places if place != "cpu"), "cpu")
        device = "cuda:0" if device == "cuda" else device
        if device not in self.places:
            raise ModelError(
                f"there is no device {device!r} here; choose {' or '.join(self.places)}, or say what another GPU has: memory, "
                "tflops"
            )
        if backend is None:
            small = self.shape.n_parameters <= SMALL and self.shape.quantised is None
            light = "bridge" if self.what == "accuracy" else "auto"
            backend = (
                "nnsight" if attention not in (None, "eager") or not (small or self.what == "mechanism") else light
            )
        if attention is None:
            attention = "sdpa" if backend == "nnsight" and self.what != "mechanism" else "eager"
        if attention != "eager" and backend != "nnsight":
            raise ValueError(f"attention {attention!r} needs backend 'nnsight', got {backend!r}")
        options = [Chosen(backend, one, device, attention) for one in ([dtype] if dtype else self.precisions)]
        return next((one for one in options if self.peak(one) <= self.places[device]), options[-1])

    @property
    def precisions(self) -> tuple[str, ...]:
        """Of weights that are not quantised, the better first."""
        return ("float32", "bfloat16") if self.shape.quantised is None else ("bfloat16",)

    def peak(self, chosen: Chosen) -> float:
        """Bytes at the peak on the device."""
        memory = self.memory(chosen)
        return memory.host if chosen.device == "cpu" else memory.device / needs.SHARE_OF_GPU

    def fits(self, chosen: Chosen) -> tuple[Fit, ...]:
        dtypes = dict.fromkeys([chosen.dtype, *self.precisions])
        options = [replace(chosen, device=place, dtype=one) for place in self.places for one in dtypes]
        return tuple(Fit(one.device, one.dtype, self.peak(one), float(self.places[one.device])) for one in options)

    def info(self, chosen: Chosen) -> ModelInfo:
        device = "cpu" if chosen.device == ELSEWHERE else chosen.device
        return replace(self.shape.info, dtype=chosen.dtype, device=device)

    def rows(self, chosen: Chosen, unit: Sequence[PromptPair]) -> int:
        """Rows of one pass of a sweep, for each problem of the unit."""
        length, changed = geometry(unit, self.outcome)
        if chosen.device == ELSEWHERE:
            return max(1, TOKENS_PER_PASS["cuda"] // (changed * len(unit)))
        read = n_read(unit, self.outcome)
        return rows_per_pass(self.info(chosen), batch=len(unit), changed=changed, length=length, read=read)

    def batch(self, chosen: Chosen) -> int:
        """Prompts that are answered at once."""
        gpu = None if chosen.device == "cpu" else self.places[chosen.device]
        longest, new = self.tokens[2], self.new_tokens
        return min(len(self.pairs), rows_at_once(self.info(chosen), gpu, longest=longest, max_new_tokens=new))

    def memory(self, chosen: Chosen) -> needs.Memory:
        info, shape = self.shape.info, self.shape
        weights = needs.weights_bytes(shape, chosen)
        recordings, length = 0.0, self.tokens[2]
        if self.what in ("sweep", "locate"):
            sizes: dict[str, Any]
            passes = []
            for unit in self.units:
                length, changed = geometry(unit, self.outcome)
                sizes = {"length": length, "changed": changed}
                recorded = needs.recordings_bytes(info, chosen, problems=len(unit), **sizes)
                recordings = max(recordings, recorded)
                rows = len(unit) * min(self.rows(chosen, unit), info.n_layers * (info.n_heads + 1))
                passes.append(needs.pass_bytes(info, chosen, rows=rows, read=n_read(unit, self.outcome), **sizes))
            one_pass = max(passes)
        elif self.what == "accuracy":
            rows = self.batch(chosen)
            cache = 2 * info.n_layers * info.n_key_value_heads * info.d_head * (length + self.new_tokens)
            recordings = float(rows * cache * chosen.bytes_each)
            one_pass = needs.pass_bytes(info, chosen, rows=rows, changed=length, length=length, read=1)
        else:
            one_pass = needs.pass_bytes(info, chosen, rows=1, changed=length, length=length, read=1)
            one_pass += 12.0 * info.n_heads * length**2
            recordings = 12.0 * info.n_layers * length * info.n_heads * info.d_head * (self.what == "mechanism")
        libraries = needs.LIBRARIES.get(chosen.backend, needs.MOST_LIBRARIES)
        kept, mapped = needs.kept_and_mapped(shape, chosen)
        loading = needs.loading_bytes(shape, chosen)
        return needs.Memory(weights, recordings, one_pass, libraries, loading, mapped, kept)

    # ------------------------------------------------------------------------------------------------------ how long it takes

    def timed(self, chosen: Chosen, seconds: float) -> tuple[tuple[Term, ...], int]:
        """The terms of the time, each from times of the real code, and how many layers these were taken on."""
        if self.what == "accuracy":
            return self._answering(chosen, seconds)
        steps = self.steps
        first, *_ = steps

        def counted(at: Arithmetic, unit: Sequence[PromptPair]) -> float:
            return sum((step.sampled or step.operations)(at, unit) for step in steps)

        largest = max(self.units, key=lambda unit: first.operations(self.all, unit))
        n_layers = layers_to_time(self.shape, chosen, lambda at: counted(at, largest), seconds=seconds)
        if n_layers < self.shape.info.n_layers:  # rather one problem through more layers
            n_layers = layers_to_time(self.shape, chosen, lambda at: counted(at, largest[:1]), seconds=seconds)
        timed = Timed.of(self.shape, chosen, n_layers=n_layers, n_words=n_different(self.pairs))
        terms, began, rate = [self._loading(chosen, timed)], time.perf_counter(), 0.0
        for number, step in enumerate(steps):
            how = [f"if {self.n_named} heads are named"] if step.beside else []
            operations = timed.counted(step, self.units)
            if number and time.perf_counter() - began > seconds:  # nothing is left for it
                spent = rate * operations
                how.append("by its operations")
            else:
                spent = timed.step(step, self.units, seconds=seconds / (2 * len(steps)))
                rate = rate or spent / operations
            terms.append(Term(step.name, spent, bool(how), ", ".join(how)))
            read = sum(step.times * step.logits(self.all, unit) for unit in self.units)
            if read and not number:
                rows = self.rows(chosen, largest) * len(largest) * n_read(largest, self.outcome)
                per_position = timed.logits(1.0, per_pass=rows)
            if read:
                terms[-1] = replace(terms[-1], seconds=spent + read * per_position)
        return tuple(terms), n_layers

    def _answering(self, chosen: Chosen, seconds: float) -> tuple[tuple[Term, ...], int]:
        rows, length = self.batch(chosen), self.tokens[2]
        longest = sorted(self.pairs, key=lambda pair: -len(pair.inserted))[:rows]
        n_layers = layers_to_time(self.shape, chosen, lambda at: at.whole(5 * rows, length + 20), seconds=seconds)
        timed = Timed.of(self.shape, chosen, n_layers=n_layers, n_words=n_different(longest))
        prompts, token, begun = timed.decoding(longest, seconds=seconds)
        token += timed.logits(rows, per_pass=rows)
        batches = self.n_treatments * math.ceil(len(self.pairs) / rows)
        share = len(self.pairs) / (math.ceil(len(self.pairs) / rows) * rows)
        mean = float(np.mean([len(pair.inserted) for pair in self.pairs])) / length
        how = f"answers of {self.new_tokens} tokens"
        return (
            self._loading(chosen, timed),
            Term(f"prompts, {rows} at once", begun + batches * share * mean * prompts, False, ""),
            Term("answers", batches * self.new_tokens * token, True, how),
            Term("grading", self._grading(), False, ""),
        ), n_layers

    def _grading(self) -> float:
        """Seconds for all answers, from right ones of a few problems; the first call loads what reads formulas."""
        some = self.pairs[:N_GRADED]

        def run() -> None:
            for pair in some:
                grade(rf"it is \boxed{{{pair.problem.answer}}}", pair.problem.answer)

        first, each = once_of(run), seconds_of(run) / len(some)
        return max(0.0, first - each * len(some)) + each * self.n_treatments * len(self.pairs)

    def estimated(self, chosen: Chosen, tflops: float) -> tuple[Term, ...]:
        """One term, of operations and what a GPU is supposed to reach of its own."""
        share, speed = SHARES[self.what], tflops * 1e12
        how = f"{share:.0%} of {tflops:g} TFLOP/s"
        spent = self.operations / (share * speed)
        if self.what == "accuracy":
            batches = self.n_treatments * math.ceil(len(self.pairs) / self.batch(chosen))
            reads = batches * self.new_tokens * needs.weights_bytes(self.shape, chosen)
            spent = max(spent, reads * OPERATIONS_PER_BYTE / speed)
        return (self._loading(chosen, None), Term(self.what, spent, True, how))

    def _loading(self, chosen: Chosen, timed: Timed | None) -> Term:
        """Libraries, and loading and checking: what that took for the timed layers, and an estimate for the other weights."""
        weights, begun = needs.weights_bytes(self.shape, chosen), IMPORTING
        if timed is not None:
            weights -= timed.n_layers * self.shape.per_layer * chosen.bytes_each
            begun += timed.load_seconds
        how = f"{LOADED_PER_SECOND / GB:g} GB of weights a second beyond the timed layers"
        return Term("loading and self-check", begun + max(0.0, weights) / LOADED_PER_SECOND, True, how)


def _advice(plan: Plan, places: dict[str, int], quantised: Quantised | None) -> tuple[str, ...]:
    """What to know before it is started."""
    said = []
    if quantised is not None:
        bits = (
            f"{quantised.bits:.3g} bits each"
            if quantised.known
            else "of a size that is not known here, so counted whole"
        )
        said.append(
            f"Weights are quantised ({quantised.method}, {bits}); times are of the same layers in {plan.chosen.dtype}, an "
            "estimate, and the library that reads such weights must be installed."
        )
    own = plan.own_fit
    if own.device == "cpu" and not own.fits and plan.memory.anonymous <= own.has:
        said.append(
            f"It would run all the same: {plan.memory.kept / GB:.3g} GB of it are weights in their files, which the system "
            f"can take back; the other {plan.memory.anonymous / GB:.3g} GB fit. But every pass would read from the disk what "
            "did not stay, and no time here counts that."
        )
    if plan.chosen.dtype in ("bfloat16", "float16"):
        said.append(
            f"{plan.chosen.dtype} rounds: the sweep says by how much beside its ranking, and ranks no head below that."
        )
    gpus = [place for place in places if place.startswith("cuda")]
    if len(gpus) > 1:
        said.append(
            f"{len(gpus)} GPUs are here: --engine ray --workers {len(gpus)} --gpus-per-worker 1 shares the units."
        )
    elif plan.seconds > AN_HOUR and plan.n_units > 1:
        n = min(plan.n_units, math.ceil(plan.seconds / AN_HOUR))
        said.append(
            f"On {n} machines it takes about an hour: --shard 0/{n} to {n - 1}/{n}, then mless-interp merge; one process alone "
            "keeps every finished unit and goes on from there."
        )
    if plan.what == "locate" and plan.seconds > AN_HOUR:
        said.append("Above its budget of an hour locating screens heads by gradients; shards sweep all of them.")
    return tuple(said)


def duration(seconds: float) -> str:
    """Seconds as people say them.

    >>> duration(3.14159), duration(118.0), duration(600.0), duration(6600.0), duration(9000.0), duration(432000.0)
    ('3.1 s', '120 s', '10 min', '110 min', '2.5 h', '120 h')
    """
    size, unit = (1, "s") if seconds < 120 else (60, "min") if seconds < 7200 else (3600, "h")
    return f"{float(f'{seconds / size:.2g}'):g} {unit}"
