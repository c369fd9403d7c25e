"""What every command shares: options, how it begins and is stopped, one line for wrong input, a command to repeat.

A command is a dataclass of options and a function of it, `app = analysis(main)`. The options that most of them take are
fields of `Saving`, `Loading`, `Asking` and `Inserting`, to be inherited from; a field that is declared again has another
default or another explanation. What single commands share is an annotation: `heads: HeadsOption = None`. What is computed
and shown: the file of each command beside this one.
"""

import dataclasses
import functools
import inspect
import json
import math
import os
import shlex
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_type_hints

import typer
import typer.core
from typer import Option

from ..core.arguments import beside, checked, nearest
from ..core.heads import Head, check_heads
from ..prompts.conditions import CONTRASTS, as_words
from ..prompts.problems import Problem, whole_groups
from ..runtime.engines import Engine, Shard, ShardDone, here
from ..runtime.folders import COMPUTED, RUN, keep_begun, read_begun
from ..runtime.loop import out_of_memory
from ..runtime.text_safety import visible

BACKENDS = "auto hooked_transformer bridge nnsight".split()
KINDS = (
    "meaningless meaningful random_sentence other_questions repeat_question from_key counting whitespace pause repeated_bos "
    "ids text"
).split()
SIGNED_OUTCOMES = "answer_logprob answer_prob solution_logprob logit_diff".split()
OUTCOMES = [*SIGNED_OUTCOMES, "kl", "kl_last"]
EDITS = "z knockout knockout_zero edge_noise restore_scale reroute_to_sink reroute_uniform matched_mass q k v".split()
TEMPLATES = "raw raw_as_sent paper text chat".split()
DTYPES = "float32 float64 bfloat16 float16".split()
ATTENTIONS = "eager sdpa flash_attention_2".split()
"""Names of tables that load torch, which neither explaining a command nor refusing a wrong name needs; tests hold them to the
tables."""

# ------------------------------------------------------------------------------------------------------- checks of options


def between(above: float, most: float = math.inf) -> Callable[[float | None], float | None]:
    """The check of an option that is a number above one and at most another, told by the option's name."""

    def check(value: float | None) -> float | None:
        if value is None or (above < value <= most and math.isfinite(value)):
            return value
        at_most = f" and at most {most:g}" if math.isfinite(most) else ""
        raise typer.BadParameter(f"must be greater than {above:g}{at_most}, got {value}")

    return check


def one_of_names(*names: str) -> Callable[[str | None], str | None]:
    """The check of an option that is one of these names."""

    def check(value: str | None) -> str | None:
        if value is None or value in names:
            return value
        raise typer.BadParameter(f"unknown name {value!r}; choose one of {', '.join(names)}{nearest(value, names)}")

    return check


def is_model(name: str | None) -> str | None:
    """The check of an option that is 'demo', a directory or a hub id (which has one slash at most)."""
    path = Path(name or "demo").expanduser()
    if path.is_dir() and not any((path / file).is_file() for file in ("config.json", "adapter_config.json")):
        raise typer.BadParameter(f"{str(path.absolute())!r} holds no config.json: it is not a saved Hugging Face model")
    if name is None or not (name.startswith((".", "/", "~")) or name.count("/") > 1) or path.is_dir():
        return name
    raise typer.BadParameter(f"there is no directory {_with_neighbour(path)}")


def is_file(name: str | None) -> str | None:
    """The check of an option that is a bundled name, or a file."""
    if name is None or Path(name).suffix not in (".jsonl", ".txt") or Path(name).is_file():
        return name
    raise typer.BadParameter(f"there is no file {_with_neighbour(Path(name))}")


def _with_neighbour(path: Path) -> str:
    """A path in full, with what is named most like it in its folder."""
    whole = path.absolute()
    return f"{str(whole)!r}{nearest(whole.name, beside(whole))}"


def listed(names: Iterable[str]) -> str:
    """Names as a help text lists them.

    >>> listed(["a", "b", "c"])
    'a, b or c'
    """
    *most, last = names
    return f"{', '.join(most)} or {last}"


def contrasts(*names: str) -> str:
    """These contrasts (all, when none is named) in words, for an option's help.

    >>> contrasts("content", "held")
    'content (masked -> inserted); held (base -> held)'
    """
    return as_words({name: CONTRASTS[name] for name in names or CONTRASTS})


# ----------------------------------------------------------------------------------------------------------------- options

PANELS = {
    "Options": (),
    "How many": "limit confirm answers n_tokens twins n_samples draws repeats most_heads doses".split(),
    "Output": "out report overwrite json_file as_json".split(),
    "Advanced": (
        "engine workers gpus_per_worker address shard wait backend dtype tf32 device device_map max_memory offload_folder "
        "quantization_config attention n_before n_context n_answer template place by layers heads direction edit seed "
        "no_progress rows show batch_size vllm_python tensor_parallel_size memory tflops"
    ).split(),
}
"""Under what `--help` lists options, in this order; all others under the first."""
ModelOption = Annotated[
    str, Option(callback=is_model, help="'demo' (bundled), a saved model's directory, or a hub id.")
]
ProblemsOption = Annotated[
    str | None,
    Option(
        callback=is_file,
        help="'demo', 'math500' (from the hub), a .jsonl file with MATH-500's keys, or a .txt file of texts separated by "
        "blank lines that the model continues (then with --template text). [default: the model's own]",
    ),
]
LimitOption = Annotated[int, Option(min=1, help="How many problems, from the first.")]
InsertionOption = Annotated[str, Option(callback=one_of_names(*KINDS), help=f"What is inserted: {listed(KINDS)}.")]
NTokensOption = Annotated[int, Option(min=1, help="Length of the insertion in tokens.")]
LengthOption = Annotated[
    int | None,
    Option(min=1, help="Length of the insertion in tokens. [default: 55; of text and ids as given]"),
]
PlaceOption = Annotated[
    str,
    Option(
        help="Where it goes: before-SEGMENT or after-SEGMENT (question, system, template, bos), at-INDEX (a token's); several "
        "with commas share the tokens."
    ),
]
LayersOption = Annotated[str | None, Option(help="Only these layers, zero-based: 0,2-4.")]
HeadsOption = Annotated[str | None, Option(help="Only these heads, zero-based LAYER:HEAD: 0:13,0:21.")]
OutcomeOption = Annotated[
    str, Option(callback=one_of_names(*SIGNED_OUTCOMES), help=f"What is measured: {listed(SIGNED_OUTCOMES)}.")
]
TwinsOption = Annotated[
    int,
    Option(
        min=0,
        help="Untrained twins (same configuration, weights drawn anew with seeds 0, 1, ...) measured alike; 0: none. Each "
        "costs as much as the model.",
    ),
]
OutOption = Annotated[Path, Option(help="Folder for the results; it appears only when they are whole.")]
ByOption = Annotated[
    str | None,
    Option(
        help="Also name heads within strata of the problems: by 'answer', or by a tag that all problems have "
        "(specialists: heads that act in some strata only)."
    ),
]


@dataclass(frozen=True, kw_only=True)
class Saving:
    """The options of every analysis: who computes, and where it leaves what."""

    engine: Annotated[str, Option(help="serial, or ray: several workers, each with a model of its own (an extra).")] = (
        "serial"
    )
    workers: Annotated[int, Option(min=1, help="ray: how many workers.")] = 2
    gpus_per_worker: Annotated[float, Option(min=0, help="ray: GPUs that each worker reserves.")] = 0.0
    address: Annotated[
        str | None, Option(help="ray: a running cluster (auto: this machine's). [default: Ray is started here]")
    ] = None
    shard: Annotated[
        str | None,
        Option(
            help="Only this part of the work, zero-based: 0/4 to 3/4, each on a machine; then the same command without it."
        ),
    ] = None
    wait: Annotated[
        float, Option(min=0, help="Stop waiting for other shards after this many seconds without progress.")
    ] = 0.0
    seed: Annotated[int, Option(min=0, help="Seed of everything random: random insertions, draws, the bootstrap.")] = 0
    out: OutOption = Path("results")
    report: Annotated[
        bool, Option("--report", help="Also write report.html: findings, tables, pictures; opens without network.")
    ] = False
    overwrite: Annotated[
        bool,
        Option("--overwrite", help="Replace an existing folder, and clear what a stopped run with other options left."),
    ] = False
    no_progress: Annotated[bool, Option("--no-progress", help="No progress bars.")] = False

    engines: ClassVar[tuple[str, ...]] = ("serial",)
    """What `--engine` may name besides ray."""

    @property
    def folder(self) -> Path:
        """Where the results go."""
        return self.out

    @property
    def partial(self) -> Path:
        """Where a run that is stopped leaves what had finished, for when it is started again."""
        if self.folder.name in ("", ".."):
            raise ValueError(
                f"{str(self.folder)!r} is no folder of results by its own name: give that, {str(self.folder.resolve())!r}"
            )
        return self.folder.with_name(f".{self.folder.name}.partial")

    @property
    def part(self) -> Shard | None:
        """The part of the work that was asked for; None for all of it."""
        return None if self.shard is None else replace(Shard.parse(self.shard), wait=self.wait)

    @property
    def kept(self) -> Path:
        """Where results lie between their computing and their showing."""
        return self.partial / COMPUTED

    @property
    def progress(self) -> bool:
        return not self.no_progress

    def say(self, text: str) -> None:
        """Say on standard error what is being done where no bar moves."""
        if self.progress:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    def computing(self) -> Engine:
        """Who computes: `--engine` and `--shard`."""
        workers: Engine = here
        if self.wait and self.shard is None:
            raise ValueError("--wait is for --shard: it says how long a shard waits for the others")
        if self.engine == "ray":
            from ..runtime.workers import RayWorkers

            workers = RayWorkers(self.workers, gpus=self.gpus_per_worker, address=self.address)
        elif self.engine not in self.engines:
            raise ValueError(f"unknown engine {self.engine!r}; choose one of {', '.join([*self.engines, 'ray'])}")
        return workers if self.part is None else replace(self.part, engine=workers)


@dataclass(frozen=True, kw_only=True)
class Loading:
    """The options of every command that loads a model."""

    backend: Annotated[str, Option(callback=one_of_names(*BACKENDS), help=f"{listed(BACKENDS)}.")] = "auto"
    dtype: Annotated[str, Option(callback=one_of_names(*DTYPES), help=f"{listed(DTYPES)}.")] = "float32"
    tf32: Annotated[bool, Option(help="On a GPU, multiply float32 in TF32 (10 bits), several times as fast.")] = True
    device: Annotated[str | None, Option(help="cpu, cuda, cuda:1 ... [default: a GPU if there is one]")] = None
    device_map: Annotated[
        str | None,
        Option(help="Spread the model over devices (nnsight, bridge): auto, balanced, sequential, or JSON."),
    ] = None
    max_memory: Annotated[
        str | None,
        Option(help='With --device-map auto: the most of each device, JSON such as {"0": "20GiB", "cpu": "60GiB"}.'),
    ] = None
    offload_folder: Annotated[
        str | None, Option(help="Where --device-map puts the weights that it leaves on the disk (nnsight).")
    ] = None
    quantization_config: Annotated[
        str | None,
        Option(help='Quantise while loading, JSON: {"quant_method": "bitsandbytes", "load_in_4bit": true}.'),
    ] = None
    attention: Annotated[
        str,
        Option(
            callback=one_of_names(*ATTENTIONS),
            help="eager, or sdpa (nnsight): fused and lean, for long prompts; no patterns to show.",
        ),
    ] = "eager"

    def loading(self) -> dict[str, Any]:
        """All of them as `load_model` takes them; `ValueError` for what cannot be read."""
        placed: Any = self.device_map
        if placed is not None and placed.lstrip().startswith("{"):
            placed = _json_object("--device-map", placed)
        made = {name: getattr(self, name) for name in ("backend", "dtype", "tf32", "device", "offload_folder")}
        made |= {"device_map": placed, "attn_implementation": self.attention}
        if self.max_memory is not None:
            most = _json_object("--max-memory", self.max_memory)
            made["max_memory"] = {int(name) if name.isdecimal() else name: size for name, size in most.items()}
        if self.quantization_config is not None:
            made["quantization_config"] = _json_object("--quantization-config", self.quantization_config)
        return made


@dataclass(frozen=True, kw_only=True)
class Asking(Loading, Saving):
    """The options of an analysis that asks one model about problems, and how it begins."""

    model: ModelOption = "demo"
    problems: ProblemsOption = None
    limit: LimitOption = 32
    n_before: Annotated[
        int | None, Option(min=1, help="Of a .txt file's texts: tokens before the place of insertion. [default: 16]")
    ] = None
    n_context: Annotated[
        int | None, Option(min=2, help="Of a .txt file's texts: tokens of the context in all. [default: 64]")
    ] = None
    n_answer: Annotated[
        int | None, Option(min=1, help="Of a .txt file's texts: tokens of the continuation, at least. [default: 1]")
    ] = None
    template: Annotated[
        str,
        Option(
            callback=one_of_names(*TEMPLATES),
            help="raw, raw_as_sent (the paper's doubled braces), text (for base models: adds nothing) or chat.",
        ),
    ] = "raw"

    def first(self, limit: int | None) -> tuple[Problem, ...]:
        """The first problems of the source (None: all)."""
        sizes = {"n_before": self.n_before, "n_context": self.n_context, "n_answer": self.n_answer}
        return chosen_problems(self.problems, self.model, limit=limit, **sizes)

    def questions(self) -> tuple[Problem, ...]:
        """The problems that were asked for; says where there are fewer."""
        found = self.first(self.limit)
        if len(found) < self.limit:
            sys.stderr.write(f"--limit {self.limit}: there are {len(found)} problems, all are taken.\n")
        return found

    def pool(self) -> tuple[Problem, ...]:
        """All problems of the source: what `other_questions` draws from, whatever --limit is."""
        return self.first(None)

    def in_parts(self, **counts: int) -> list[tuple[Problem, ...]]:
        """So many problems for each purpose, none of a group in two of them; `ValueError` where there are fewer."""
        wanted, asked = sum(counts.values()), [f"--{name} {count}" for name, count in counts.items() if count]
        if len(asked) < 2:
            return [replace(self, limit=count).questions() if count else () for count in counts.values()]
        found = whole_groups(self.first(wanted), *counts.values())
        if len(found) < wanted:
            raise ValueError(
                f"{' and '.join(asked)} need {wanted} problems, there are {len(found)}: give smaller numbers, or more problems"
            )
        ends = [0, *accumulate(counts.values())]
        return [found[start:end] for start, end in pairwise(ends)]

    def load(self) -> Any:
        """The model that was asked for, once the engine is known to be right."""
        options, engine = self.loading(), self.computing()
        self.say(f"loading {self.model} ...")
        from ..models.load import load_model, shape_of

        if (shape := shape_of(self.model)) is not None:
            heads = getattr(self, "heads", getattr(self, "knockout", None))
            chosen_heads(heads, getattr(self, "layers", None), n_layers=shape[0], n_heads=shape[1])
        return load_model(self.model, **options).on(engine)


@dataclass(frozen=True, kw_only=True)
class Inserting(Asking):
    """The options of an analysis of one insertion."""

    insertion: InsertionOption = "meaningless"
    unit: Annotated[
        str | None,
        Option(
            help="The repeated unit, word, or the text [default: ' /' or 'he']; of from_key the problem's key, of "
            "repeat_question how many times, of ids the token ids (5,6), of pause the token."
        ),
    ] = None
    n_tokens: LengthOption = None
    place: PlaceOption = "before-question"

    def begin(self, *parts: tuple[Problem, ...]) -> tuple[Any, list[tuple[Any, ...]]]:
        """The model and the pairs of each part of the problems; a wrong insertion is told before the model is loaded."""
        from ..prompts.pairs import make_pairs

        given: dict[str, Any] = {"n_tokens": self.n_tokens, "seed": self.seed, "place": self.place}
        filler = chosen_insertion(self.insertion, self.unit, **given, pool=self.pool)
        model = self.load()
        made = make_pairs(model, [problem for part in parts for problem in part], filler, template=self.template)
        ends = [0, *accumulate(map(len, parts))]
        return model, [made[start:end] for start, end in pairwise(ends)]


@dataclass(frozen=True, kw_only=True)
class Pairing(Inserting):
    """The options of an analysis of one insertion, or of pairs of token ids."""

    pairs: Annotated[
        str | None,
        Option(
            callback=is_file,
            help="Token ids instead of problems and an insertion: a .jsonl file of one pair a line, with the keys ids, answer, "
            "clean or span, and if wanted distractor, tags, id.",
        ),
    ] = None

    @cached_property
    def given(self) -> dict[str, Any]:
        """The pairs of `--pairs` by id; `ValueError` beside options of problems or insertions, or where they lack something."""
        from ..prompts.own_ids import pairs_from_file

        used = [name for name in OF_TEXTS if getattr(self, name) != type(self).__dataclass_fields__[name].default]
        if used:
            raise ValueError(f"--pairs holds whole prompts: leave out --{used[0].replace('_', '-')}")
        found = pairs_from_file(self.pairs or "")
        contrast = CONTRASTS[getattr(self, "contrast", "content")]
        for pair in found:
            contrast.start(pair, contrast.conditions[1])
            if (by := getattr(self, "by", None)) is not None and not pair.problem.text(by):
                raise ValueError(f"--by {by}: pair {pair.id!r} has no such tag")
        named = {pair.id: pair for pair in found}
        if len(named) < len(found):
            raise ValueError(
                f"--pairs: {len(found) - len(named)} pairs are given twice; each counts once: leave copies out"
            )
        return named

    def first(self, limit: int | None) -> tuple[Problem, ...]:
        """The first problems of the source (None: all)."""
        if self.pairs is None:
            return super().first(limit)
        return tuple(pair.problem for pair in self.given.values())[:limit]

    def begin(self, *parts: tuple[Problem, ...]) -> tuple[Any, list[tuple[Any, ...]]]:
        """The model and the pairs of each part of the problems."""
        if self.pairs is None:
            return super().begin(*parts)
        return self.load(), [tuple(self.given[problem.id] for problem in part) for part in parts]


OF_TEXTS = "problems template insertion unit n_tokens place n_before n_context n_answer".split()
"""Options of how prompts are made."""


# ------------------------------------------------------------------------------------------------ beginning and ending


def analysis(main: Callable[[Any], None], *, options: type | None = None, name: str | None = None) -> typer.Typer:
    """The program of a function of one dataclass of `options`, `Saving` or what inherits from it (default: as annotated).

    Each field is an option, explained by its annotation; the function's docstring explains the program. A folder that may
    not be replaced is refused before anything begins, and wrong input is one line. A run that is stopped says what it kept
    and how to go on; one that ended before it kept anything leaves no hidden folder.
    """
    if options is None:
        (options,) = (hint for name, hint in get_type_hints(main).items() if name != "return")
    program = name or getattr(main, "__module__", None) or "analysis"

    @functools.wraps(main)
    def command(asked: Any) -> None:
        from ..runtime.folders import claimed

        missing = [folder for folder in asked.folder.absolute().parents if not folder.exists()]
        try:
            with plain_warnings(), claimed(asked.folder, overwrite=asked.overwrite, analysis=program, shard=asked.part):
                _begin_partial(asked)
                try:
                    main(asked)
                finally:
                    if asked.part is None and not _finished(asked) and not (asked.kept / RUN).is_file():
                        shutil.rmtree(asked.partial, ignore_errors=True)
        except ShardDone as ended:
            tell(f"{visible(str(ended))}: {repeat_command()}")
        except KeyboardInterrupt:
            sys.stderr.write(f"stopped: {_what_is_kept(asked)}\n")
            raise SystemExit(130) from None
        finally:
            with suppress(OSError):  # what is not empty stays
                for folder in missing:
                    folder.rmdir()

    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(cls=Command)(one_line_errors(of_options(command, options)))
    return app


def of_options(main: Callable[[Any], None], options: type, *, without: Iterable[str] = ()) -> Callable[..., None]:
    """A function of one dataclass of `options` as one of a keyword for each field but those `without`, in the order of
    `PANELS`."""

    @functools.wraps(main)
    def command(**given: Any) -> None:
        main(options(**given))

    def panel(field: Any) -> str:
        return next((name for name, fields in PANELS.items() if field.name in fields), "Options")

    parameters = []
    fields = [field for field in dataclasses.fields(options) if field.name not in without]
    for field in sorted(fields, key=lambda field: list(PANELS).index(panel(field))):
        asked: Any = field.type
        (option,) = asked.__metadata__
        option.rich_help_panel = panel(field)
        default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
        parameters.append(
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=asked)
        )
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Warnings as one line each, without the file and the line that they come from; afterwards all is as before."""

    def show(message: Warning | str, *rest: Any) -> None:
        sys.stderr.write(f"warning: {visible(' '.join(str(message).split()))}\n")

    with warnings.catch_warnings():
        warnings.showwarning = show  # type: ignore[assignment]
        yield


BEGUN = "options.json"
"""In the hidden folder: the options of the run that left it."""
WHERE = "out report shard wait workers gpus_per_worker address overwrite no_progress".split()
"""Options that only say where a run computes, how it begins and what it writes."""


def _begin_partial(asked: Saving) -> None:
    """Say what an earlier run kept; with --overwrite, clear what a run of other options left."""
    from ..runtime.folders import ANALYSIS

    given = json.loads(json.dumps(dataclasses.asdict(asked), default=str))
    begun = asked.partial / BEGUN
    before = read_begun(begun) if begun.is_file() else None
    differ = differing({} if before is None else before, given)
    if asked.part is not None and before is not None and differ:
        raise FileExistsError(
            f"{str(asked.partial)!r} keeps what a run with other options had finished ({differ}): finish that, choose another "
            "folder, or delete it"
        )
    done = _finished(asked)
    if asked.overwrite and differ:
        for path in asked.partial.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != ANALYSIS:
                path.unlink()
    elif done:
        with_others = f" by a run with other options ({differ})" * bool(before and differ)
        asked.say(f"going on from {done} finished steps, kept in {asked.partial}{with_others} ...")
    if not done or asked.overwrite or not differ:
        keep_begun(begun, given)


def differing(one: dict[str, Any], other: dict[str, Any]) -> str:
    """The options of two runs in which they differ and on which numbers depend, in words; "" where there are none."""
    names = [name for name in {**one, **other} if same_numbers(name) and one.get(name) != other.get(name)]
    return "; ".join(f"--{name.replace('_', '-')} was {one.get(name)}, now {other.get(name)}" for name in names)


def same_numbers(option: str) -> bool:
    """Return whether two runs must agree in an option to have the same numbers."""
    return option not in WHERE


def _finished(asked: Saving) -> int:
    """How many finished steps the hidden folder holds: lines of its checkpoints after the first, their settings."""
    files = [file for file in asked.partial.rglob("*.jsonl") if file.is_file()]
    return sum(max(file.read_bytes().count(b"\n") - 1, 0) for file in files)


def _what_is_kept(asked: Saving) -> str:
    if (asked.kept / RUN).is_file():
        return f"the results are computed and kept in {asked.kept}; go on with: mless-interp report {asked.folder}"
    done = _finished(asked)
    if not done:
        return "nothing had finished yet; the same command starts again"
    steps = "1 finished step is" if done == 1 else f"{done} finished steps are"
    return f"{steps} kept in {asked.partial}; the same command, started again, goes on from there"


# ------------------------------------------------------------------------------------------------------- wrong input


IN_ONE_LINE = (ValueError, TypeError, OSError, ModuleNotFoundError, KeyboardInterrupt)
"""What a user can mend, or did."""
LONGEST = 3000
"""Characters of an error that are told: what was given wrong can be of any length."""


def one_line_errors(command: Callable[..., Any]) -> Callable[..., Any]:
    """Wrong input, and memory that ran out, end the program with one line on standard error and exit code 2.

    Set MLESS_TRACEBACK=1 to see where it came from.
    """

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except (Exception, KeyboardInterrupt) as error:
            if os.environ.get("MLESS_TRACEBACK") or not (isinstance(error, IN_ONE_LINE) or out_of_memory(error)):
                raise
            stopped = isinstance(error, KeyboardInterrupt)
            text = visible(" ".join(" ".join([str(error), *getattr(error, "__notes__", ())]).split()))
            if len(text) > LONGEST:
                text = f"{text[: LONGEST * 2 // 3]} [...] {text[-LONGEST // 3 :]}"
            sys.stderr.write(f"{'stopped' if stopped else 'error'}: {text or type(error).__name__}\n")
            raise SystemExit(130 if stopped else 2) from error

    return wrapped


def tell(text: str) -> None:
    """Print, and go on with what is left to do where nobody reads any more (`| head`)."""
    try:
        typer.echo(text)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Command(typer.core.TyperCommand):
    """A program of one command, whose options are listed in panels."""

    def get_short_help_str(self, limit: int = 0) -> str:
        """Return the first sentence, whole."""
        return f"{' '.join((self.help or '').split()).partition('. ')[0].rstrip('.')}."

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words of the command; say how a command takes its model where that is no option."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if getattr(error, "option_name", "") == "--model":
                told: Any = error
                told.message, told.possibilities = f"the model is no option here: {ctx.command_path} MODEL", None
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options under the headings of `PANELS`."""
        panels: dict[str, list[Any]] = {}
        for each in self.get_params(ctx):
            if (record := each.get_help_record(ctx)) is not None:
                panels.setdefault(getattr(each, "rich_help_panel", None) or "Options", []).append(record)
        for title, records in panels.items():
            with formatter.section(title):
                formatter.write_dl(records)


# ------------------------------------------------------------------------------------------------ what options stand for

MOST_LAYERS = 100_000
"""More than any model has: a range of layers is written out before a model is there."""


def read_heads(heads: str | None, layers: str | None) -> tuple[tuple[Head, ...] | None, tuple[int, ...] | None]:
    """What `--heads` or `--layers` name, as far as it can be known without a model: (heads, layers), None for neither.

    >>> read_heads("0:13", None), read_heads(None, "0,2-3")
    (((L0H13,), None), (None, (0, 2, 3)))
    """
    if heads is not None and layers is not None:
        raise ValueError("give --heads or --layers, not both")
    if heads is not None:
        named = tuple(Head.parse(part) for part in heads.split(",") if part.strip())
        if not named:
            raise ValueError("--heads names none: write 0:13,0:21 (zero-based), or leave it out for all")
        return named, None
    if layers is None:
        return None, None
    found: list[int] = []
    for part in layers.split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal()) or int(first) > int(last) or int(last) >= MOST_LAYERS:
            raise ValueError(f"cannot read {part!r} as layers: write 0,2-4 (zero-based)")
        found += range(int(first), int(last) + 1)
    return None, tuple(sorted(set(found)))


@checked
def chosen_heads(heads: str | None, layers: str | None, *, n_layers: int, n_heads: int) -> tuple[Head, ...] | None:
    """Heads from `--heads 0:13,0:21` and/or `--layers 0,2-4` (zero-based); None means all.

    >>> chosen_heads("0:1", None, n_layers=2, n_heads=2)
    (L0H1,)
    >>> chosen_heads(None, "0-1", n_layers=4, n_heads=1)
    (L0H0, L1H0)
    """
    named, found = read_heads(heads, layers)
    if found is None:
        return named and check_heads(named, n_layers=n_layers, n_heads=n_heads)
    if found[-1] >= n_layers:
        raise ValueError(f"layer {found[-1]} is out of range (zero-based): the model has layers 0 to {n_layers - 1}")
    return tuple(Head(layer, head) for layer in found for head in range(n_heads))


def chosen_place(place: str) -> dict[str, Any]:
    """The place of `--place`, as `Insertion` takes it.

    >>> chosen_place("after-question")
    {'after': ('question',)}
    >>> chosen_place("before-system, at-4,at-9")
    {'before': ('system',), 'at': (4, 9)}
    """
    from ..prompts.insertions import PLACES

    known = [f"{word}-{segment}" for word in ("before", "after") for segment in PLACES]
    found: dict[str, tuple[Any, ...]] = {}
    for part in chosen_names(place) or ("",):
        word, _, where = part.partition("-")
        if part not in known and not (word == "at" and where.isdecimal()):
            raise ValueError(
                f"--place: {part!r} is no place{nearest(part, known)}; write before-question, after-question (or system, "
                "template, bos), or at-4"
            )
        found[word] = (*found.get(word, ()), int(where) if word == "at" else where)
    return found


def chosen_insertion(
    kind: str,
    unit: str | None,
    *,
    n_tokens: int | None,
    seed: int,
    pool: Callable[[], Any] = tuple,
    place: str = "before-question",
) -> Any:
    """The insertion of `--insertion`, `--unit`, `--n-tokens` and `--place`; `pool` gives what `other_questions` draws from."""
    where = chosen_place(place)
    if unit == "":
        raise ValueError("--unit is empty: give what is inserted, such as ' /', or leave it out")
    from ..prompts.insertions import Insertion

    problems = pool() if kind == "other_questions" else ()
    return Insertion.named(kind, unit=unit, n_tokens=n_tokens, seed=seed, problems=problems, **where)


def _json_object(option: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{option}: no valid JSON ({error})") from error
    if not isinstance(found, dict):
        raise ValueError(f"{option}: expected a JSON object, got {text!r}")
    return found


@checked
def chosen_names(text: str) -> tuple[str, ...]:
    """Names from an option such as `--conditions base,inserted`.

    >>> chosen_names("base, inserted,")
    ('base', 'inserted')
    """
    return tuple(part.strip() for part in text.split(",") if part.strip())


@checked
def chosen_numbers(text: str, *, name: str) -> tuple[int, ...]:
    """Whole numbers from an option such as `--doses 1,2,4`.

    >>> chosen_numbers("1,2,4", name="--doses")
    (1, 2, 4)
    """
    parts = [part.strip() for part in text.split(",")]
    wrong = [part for part in parts if not part.isdecimal()]
    if wrong:
        raise ValueError(f"{name}: cannot read {wrong[0]!r} as a number of tokens: write 1,2,4")
    return tuple(int(part) for part in parts)


@checked
def chosen_problems(problems: str | None, model: str, *, limit: int | None, **sizes: int | None) -> tuple[Problem, ...]:
    """The first `limit` problems (None: all) of `--problems`; without it those that a model's directory brings along, or the
    demo's.

    A .txt file's texts are cut into problems by the model's tokenizer, which alone is loaded for it; the sizes are those of
    `problems_from_texts` (None: its own), and `ValueError` where there are no texts to cut.
    """
    from ..prompts.texts import problems_of

    given = {name: size for name, size in sizes.items() if size is not None}
    if problems is not None and not problems.strip():
        raise ValueError("--problems is empty: give 'demo', 'math500' or a file, or leave it out for the model's own")
    if given and Path(problems or "").suffix != ".txt":
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ValueError(f"{options}: only the texts of a .txt file are cut to size: give --problems FILE.txt")
    return problems_of(model, problems, limit=limit, **given)


def repeat_command() -> str:
    """The command whose results these are, ready to paste: the one that started this program, of a shard the whole one."""
    program, words = Path(sys.argv[0]), sys.argv[1:]
    parts = ("--shard", "--wait")
    given = [
        each
        for at, each in enumerate(words)
        if each.partition("=")[0] not in parts and not (at and words[at - 1] in parts)
    ]
    if program.name == "__main__.py":
        return shlex.join(["python", "-m", program.parent.name, *given])
    if program.stem == "mless-interp":
        return shlex.join(["mless-interp", *given])
    return shlex.join(["python", str(program), *given])
