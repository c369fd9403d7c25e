"""What every command shares: options, how it begins and is stopped, one line for wrong input, a command to repeat.

A command is a dataclass of options and a function of it, `app = analysis(main)`. The options that most of them take are
fields of `Saving`, `Loading`, `Asking` and `Inserting`, to be inherited from; a field that is declared again has another
default or another explanation. What single commands share is an annotation: `heads: HeadsOption = None`. What is computed,
kept and shown: `commands/`.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_type_hints

import typer
import typer.core
from typer import Option

from .given import checked
from .heads import Head
from .prompts.conditions import CONDITIONS, CONTRASTS, as_words
from .prompts.problems import Problem
from .running.folders import COMPUTED, RUN
from .running.loop import out_of_memory
from .running.visible import visible
from .running.work import Engine, Shard, ShardDone, here

BACKENDS = "auto, hooked_transformer, bridge or nnsight"
KINDS = (
    "meaningless, meaningful, random_sentence, other_questions, repeat_question, from_key, counting, whitespace, pause, "
    "repeated_bos, ids or text"
)
OUTCOMES = "answer_logprob, answer_prob, solution_logprob, logit_diff, kl or kl_last"
EDITS = (
    "z, knockout, knockout_zero, edge_noise, restore_scale, reroute_to_sink, reroute_uniform, matched_mass, q, k or v"
)
"""What help texts list of tables that load torch, which explaining a command does not need; tests hold them to the tables."""


def between(above: float, most: float = math.inf) -> Callable[[float | None], float | None]:
    """The check of an option that is a number above one and at most another, told by the option's name."""

    def check(value: float | None) -> float | None:
        if value is None or (above < value <= most and math.isfinite(value)):
            return value
        raise typer.BadParameter(
            f"must be greater than {above:g}" + (f" and at most {most:g}" if math.isfinite(most) else "")
        )

    return check


ModelOption = Annotated[str, Option(help="'demo' (bundled), a saved model's directory, or a hub id.")]
BackendOption = Annotated[str, Option(help=f"{BACKENDS}.")]
Tf32Option = Annotated[
    bool, Option(help="On a GPU, products of float32 in TF32 (10 bits), several times as fast; or in full.")
]
DtypeOption = Annotated[str, Option(help="float32, float64, bfloat16 or float16.")]
DeviceOption = Annotated[str | None, Option(help="cpu, cuda, cuda:1 ... [default: a GPU if there is one]")]
DeviceMapOption = Annotated[
    str | None,
    Option(
        help="Spread the model over devices (nnsight, bridge): auto, balanced, sequential, or JSON of module -> device."
    ),
]
MaxMemoryOption = Annotated[
    str | None,
    Option(help='With --device-map auto: the most of each device, JSON such as {"0": "20GiB", "cpu": "60GiB"}.'),
]
OffloadFolderOption = Annotated[
    str | None, Option(help="Where --device-map puts the weights that it leaves on the disk (nnsight).")
]
QuantizationOption = Annotated[
    str | None,
    Option(
        help='Quantise while loading, JSON: {"quant_method": "bitsandbytes", "load_in_4bit": true}. A directory that is '
        "quantised says so itself."
    ),
]
ProblemsOption = Annotated[
    str | None,
    Option(
        help="'demo', 'math500' (from the hub), a .jsonl file with MATH-500's keys, or a .txt file of texts parted by "
        "blank lines that the model is to go on with (then with --template text). [default: the model's own]"
    ),
]
NBeforeOption = Annotated[
    int | None, Option(min=1, help="Of a .txt file's texts: tokens before the place of insertion. [default: 16]")
]
NContextOption = Annotated[
    int | None, Option(min=2, help="Of a .txt file's texts: tokens of the context in all. [default: 64]")
]
NAnswerOption = Annotated[
    int | None, Option(min=1, help="Of a .txt file's texts: tokens of the continuation, at least. [default: 1]")
]
LimitOption = Annotated[
    int, Option(min=1, help="How many problems, from the first (the unit of replication is the problem).")
]
TemplateOption = Annotated[
    str, Option(help="raw, raw_as_sent (the paper's doubled braces), text (for base models: adds nothing) or chat.")
]
InsertionOption = Annotated[str, Option(help=f"{KINDS}.")]
UnitOption = Annotated[
    str | None,
    Option(
        help="The repeated unit, word, or the text [default: ' /' or 'he']; of from_key the problem's key, of "
        "repeat_question how many times, of ids the token ids (5,6), of pause the token."
    ),
]
NTokensOption = Annotated[int, Option(min=1, help="Length of the insertion in tokens.")]
LengthOption = Annotated[
    int | None,
    Option(
        min=1,
        help="Length of the insertion in tokens, of kinds that are counted in tokens. [default: 55; of text and ids as given]",
    ),
]
PlaceOption = Annotated[
    str,
    Option(
        help="Where it goes: before-SEGMENT or after-SEGMENT (question, system, template, bos), at-INDEX (a token's); several "
        "with commas share the tokens."
    ),
]
AttentionOption = Annotated[
    str, Option(help="eager, or sdpa (nnsight): fused and lean, for long prompts; no patterns to show.")
]
LayersOption = Annotated[str | None, Option(help="Only these layers, zero-based: 0,2-4.")]
OutcomeOption = Annotated[
    str, Option(help=f"{OUTCOMES}. The last two, which are never negative, for single sweeps only.")
]
EditOption = Annotated[
    str | None,
    Option(help=f"sweep: {EDITS}. [default: z]"),
]
HeadsOption = Annotated[str | None, Option(help="Only these heads, zero-based LAYER:HEAD: 0:13,0:21.")]
ProblemOption = Annotated[
    str | None,
    Option(help="The problem whose attention is shown, by id or place. [default: the mean over the first 32]"),
]
ConditionsOption = Annotated[str, Option(help=f"{as_words(CONDITIONS)}. All are compared with the first.")]
SeedOption = Annotated[
    int, Option(min=0, help="Seed of all that is drawn: random insertions, permutations, the bootstrap.")
]
EngineOption = Annotated[str, Option(help="serial, or ray: several workers, each with a model of its own (an extra).")]
WorkersOption = Annotated[int, Option(min=1, help="ray: how many workers.")]
GpusOption = Annotated[float, Option(min=0, help="ray: GPUs that each worker reserves.")]
AddressOption = Annotated[
    str | None, Option(help="ray: a running cluster (auto: this machine's). [default: Ray is started here]")
]
ShardOption = Annotated[
    str | None,
    Option(help="Only this part of the work, zero-based: 0/4 to 3/4, each on a machine; then mless-interp merge OUT."),
]
WaitOption = Annotated[
    float, Option(min=0, help="A shard waits for the other ones' parts until nothing new came for so many seconds.")
]
OutOption = Annotated[Path, Option(help="Folder for the results; it appears only when they are whole.")]
OverwriteOption = Annotated[
    bool,
    Option("--overwrite", help="Replace an existing folder, and clear what a stopped run with other options left."),
]
NoProgressOption = Annotated[bool, Option("--no-progress", help="No progress bars.")]
ReportOption = Annotated[
    bool,
    Option(
        "--report",
        help="Also write report.html: findings, tables that sort, pictures, provenance; opens without network.",
    ),
]


def contrasts(*names: str) -> str:
    """These contrasts (all, when none is named) in words, for an option's help.

    >>> contrasts("content", "held")
    'content (masked -> inserted); held (base -> held)'
    """
    return as_words({name: CONTRASTS[name] for name in names or CONTRASTS})


# ------------------------------------------------------------------------------------------------ beginning and ending


@dataclass(frozen=True, kw_only=True)
class Saving:
    """The options of every analysis, and where it leaves what."""

    seed: SeedOption = 0
    out: OutOption = Path("results")
    report: ReportOption = False
    overwrite: OverwriteOption = False
    no_progress: NoProgressOption = False

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
        return None

    @property
    def kept(self) -> Path:
        """Where results lie between their computing and their showing."""
        return self.partial / COMPUTED

    @property
    def progress(self) -> bool:
        return not self.no_progress

    def shortage(self) -> str:
        """That there are fewer problems than were asked for, in a sentence; "" where there are not."""
        return ""

    def say(self, text: str) -> None:
        """What is being done where no bar moves, on standard error."""
        if self.progress:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


@dataclass(frozen=True, kw_only=True)
class Computing(Saving):
    """The options of an analysis that can be computed by several processes."""

    engine: EngineOption = "serial"
    workers: WorkersOption = 2
    gpus_per_worker: GpusOption = 0.0
    address: AddressOption = None
    shard: ShardOption = None
    wait: WaitOption = 0.0

    engines: ClassVar[tuple[str, ...]] = ("serial",)
    """What `--engine` may name beside ray."""

    @property
    def part(self) -> Shard | None:
        return None if self.shard is None else replace(Shard.parse(self.shard), wait=self.wait)

    def computing(self) -> Engine:
        """Who computes: `--engine` and `--shard`."""
        workers: Engine = here
        if self.wait and self.shard is None:
            raise ValueError("--wait is for --shard: it says how long a shard waits for the others")
        if self.engine == "ray":
            from .running.workers import RayWorkers

            workers = RayWorkers(self.workers, gpus=self.gpus_per_worker, address=self.address)
        elif self.engine not in self.engines:
            raise ValueError(f"unknown engine {self.engine!r}; choose one of {', '.join([*self.engines, 'ray'])}")
        return workers if self.part is None else replace(self.part, engine=workers)


@dataclass(frozen=True, kw_only=True)
class Loading:
    """The options of every command that loads a model."""

    backend: BackendOption = "auto"
    dtype: DtypeOption = "float32"
    tf32: Tf32Option = True
    device: DeviceOption = None
    device_map: DeviceMapOption = None
    max_memory: MaxMemoryOption = None
    offload_folder: OffloadFolderOption = None
    quantization_config: QuantizationOption = None
    attention: AttentionOption = "eager"

    def loading(self) -> dict[str, Any]:
        """All of them as `load_model` takes them; `ValueError` for what cannot be read."""
        placed: Any = self.device_map
        if placed is not None and placed.lstrip().startswith("{"):
            placed = _json_object("--device-map", placed, """auto, or '{"": "cuda:0"}'""")
        elif placed is not None and not placed.strip():
            raise ValueError("--device-map is empty: write auto, or leave it out")
        if self.attention not in ATTENTIONS:
            raise ValueError(f"unknown attention {self.attention!r}; choose one of {', '.join(ATTENTIONS)}")
        made: dict[str, Any] = {"backend": self.backend, "dtype": self.dtype, "tf32": self.tf32}
        made |= {"device": self.device, "device_map": placed, "attn_implementation": self.attention}
        if self.max_memory is not None:
            most = _json_object("--max-memory", self.max_memory, """'{"0": "20GiB", "cpu": "60GiB"}'""")
            made["max_memory"] = {int(name) if name.isdecimal() else name: size for name, size in most.items()}
        if self.offload_folder is not None:
            made["offload_folder"] = self.offload_folder
        if self.quantization_config is not None:
            form = """'{"quant_method": "bitsandbytes", "load_in_4bit": true}'"""
            made["quantization_config"] = _json_object("--quantization-config", self.quantization_config, form)
        return made


@dataclass(frozen=True, kw_only=True)
class Asking(Loading, Computing):
    """The options of an analysis that asks one model about problems, and how it begins."""

    model: ModelOption = "demo"
    problems: ProblemsOption = None
    limit: LimitOption = 32
    n_before: NBeforeOption = None
    n_context: NContextOption = None
    n_answer: NAnswerOption = None
    template: TemplateOption = "raw"

    def questions(self) -> tuple[Problem, ...]:
        """The problems that were asked for."""
        sizes = {"n_before": self.n_before, "n_context": self.n_context, "n_answer": self.n_answer}
        return chosen_problems(self.problems, self.model, limit=self.limit, **sizes)

    def shortage(self) -> str:
        return fewer_than(self.limit, len(self.questions()))

    def shown_problem(self, problem: str | None) -> str | int | None:
        """The problem of `--problem`, an id or a place; `ValueError` if it is none of those that were asked for."""
        return None if problem is None else place_of_problem(problem, self.questions())

    def load(self, *, at_least: int = 0) -> Any:
        """The model that was asked for, once the names that need none, and that its context holds `at_least` so many tokens,
        are known to be right."""
        from .models.load import load_model
        from .prompts.prompt import template_named

        template_named(self.template)
        options, engine = self.loading(), self.computing()
        context = context_of(self.model)
        if context is not None and at_least >= context:
            raise ValueError(
                f"{at_least} tokens to insert and to answer with leave no room for a question in {self.model}'s context of "
                f"{context}: ask for fewer"
            )
        if few := Asking.shortage(self):  # of all that are asked for, those to confirm on too
            sys.stderr.write(f"{few}\n")
        self.say(f"loading {self.model} ...")
        return load_model(self.model, **options).on(engine)


@dataclass(frozen=True, kw_only=True)
class Inserting(Asking):
    """The options of an analysis of one insertion."""

    insertion: InsertionOption = "meaningless"
    unit: UnitOption = None
    n_tokens: LengthOption = None
    place: PlaceOption = "before-question"

    def begin(self) -> tuple[Any, tuple[Any, ...]]:
        """The model and the problems' pairs; wrong insertions and problems are told before the model is loaded."""
        from .prompts.pairs import make_pairs

        questions = self.questions()
        given: dict[str, Any] = {"n_tokens": self.n_tokens, "seed": self.seed, "place": self.place}
        filler = chosen_insertion(self.insertion, self.unit, **given, problems=questions)
        model = self.load(at_least=filler.n_tokens or 0)
        return model, make_pairs(model, questions, filler, template=self.template)


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
        from .running.checkpoint import CheckpointError
        from .running.folders import claimed

        missing = [folder for folder in asked.folder.absolute().parents if not folder.exists()]
        try:
            with plain_warnings(), claimed(asked.folder, overwrite=asked.overwrite, analysis=program, shard=asked.part):
                before = _begin_partial(asked)
                try:
                    main(asked)
                except CheckpointError as error:
                    raise _by_options(asked, before, error) from error
                finally:
                    _sweep(asked)
        except ShardDone as ended:
            typer.echo(f"{visible(str(ended))}: mless-interp merge {shlex.quote(str(asked.folder))}")
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


def of_options(main: Callable[[Any], None], options: type) -> Callable[..., None]:
    """A function of one dataclass of `options` as one of a keyword for each field."""

    @functools.wraps(main)
    def command(**given: Any) -> None:
        main(options(**given))

    command.__signature__ = inspect.Signature(_parameters(options))  # type: ignore[attr-defined]
    return command


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Warnings as one line each, without the file and the line that they come from; afterwards all is as before."""

    def show(message: Warning | str, *rest: Any) -> None:
        sys.stderr.write(f"warning: {visible(' '.join(str(message).split()))}\n")

    with warnings.catch_warnings():
        warnings.showwarning = show  # type: ignore[assignment]
        yield


def _begin_partial(asked: Saving) -> bytes | None:
    """With --overwrite, clear what a run of other options left; the very same command goes on from its own.

    Gives what was written down of the options of the run that left it.
    """
    from .running.folders import ANALYSIS, keep_begun, read_begun, refuse_strange

    given = json.loads(json.dumps(dataclasses.asdict(asked), default=str))
    begun = asked.partial / BEGUN
    before = read_begun(begun) if begun.is_file() else None
    same = before is not None and of_numbers(before) == of_numbers(given)
    if asked.part is not None and before is not None and not same:
        raise FileExistsError(
            f"{str(asked.partial)!r} keeps what a run with other options had finished: finish that, choose another folder, "
            "or delete it"
        )
    clears = asked.overwrite and not same
    if clears:
        refuse_strange(asked.partial)
    for path in asked.partial.iterdir() if clears else ():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != ANALYSIS:
            path.unlink()
    written = begun.read_bytes() if before is not None and not clears else None
    keep_begun(begun, given, command=repeat_command())
    return written


def _by_options(asked: Saving, before: bytes | None, error: Exception) -> Exception:
    """The error of a checkpoint that is of another run, told by the options in which the two differ, as far as that is why."""
    if before is None or " was made with other " not in str(error):
        return error
    begun = asked.partial / BEGUN
    given = of_numbers(json.loads(begun.read_text(encoding="utf-8"))["options"])
    was = of_numbers(json.loads(before)["options"])
    names = [name for name in {**was, **given} if name != "report" and was.get(name) != given.get(name)]
    if not names:
        return error
    begun.write_bytes(before)  # so that it is told the next time too
    differ = "; ".join(
        f"{_option(type(asked), name)} was {_as_given(was.get(name))}, now {_as_given(given.get(name))}"
        for name in names
    )
    why = str(error).partition(": ")[2].rpartition("; ")[0]
    return type(error)(
        f"{str(asked.partial)!r} keeps what a run with other options had finished: {differ}. Give those again to go on, choose "
        f"another --out, or clear it with --overwrite ({why})"
    )


def _option(options: type, name: str) -> str:
    """How a field of options is written on the command line.

    >>> _option(Asking, "n_answer"), _option(Saving, "out")
    ('--n-answer', '--out')
    """
    (asked,) = getattr(get_type_hints(options, include_extras=True)[name], "__metadata__", (None,))[:1]
    argument = asked.metavar if isinstance(asked, typer.models.ArgumentInfo) else None
    return argument or f"--{name.replace('_', '-')}"


def _as_given(value: Any) -> str:
    """An option's value as it is typed; "not given" where there is none."""
    return (
        "not given"
        if value is None
        else shlex.quote(str(value))
        if isinstance(value, str | int | float)
        else str(value)
    )


BEGUN = "options.json"
"""In the hidden folder: the options of the run that left it."""


WHERE = ("out", "shard", "wait", "workers", "gpus_per_worker", "address", "overwrite", "no_progress")
"""Options that only say where a run computes, and how it begins."""


def of_numbers(options: dict[str, Any]) -> dict[str, Any]:
    """What of a run's options its numbers depend on."""
    return {
        name: value
        for name, value in options.items()
        if name not in WHERE and not (name == "engine" and value in ("serial", "ray"))
    }


def _finished(asked: Saving) -> int:
    """How many finished steps the hidden folder holds: lines of its checkpoints after the first, their settings."""
    files = [file for file in asked.partial.rglob("*.jsonl") if file.is_file()]
    return sum(max(file.read_bytes().count(b"\n") - 1, 0) for file in files)


def _is_computed(asked: Saving) -> bool:
    return (asked.kept / RUN).is_file()


def _what_is_kept(asked: Saving) -> str:
    if _is_computed(asked):
        return f"the results are computed and kept in {asked.kept}; go on with: mless-interp report {asked.folder}"
    done = _finished(asked)
    if not done:
        return "nothing had finished yet; the same command starts again"
    steps = "1 finished step is" if done == 1 else f"{done} finished steps are"
    return f"{steps} kept in {asked.partial}; the same command, started again, goes on from there"


def _sweep(asked: Saving) -> None:
    """Take away a hidden folder in which nothing has finished."""
    if asked.part is None and asked.partial.is_dir() and not _is_computed(asked) and not _finished(asked):
        shutil.rmtree(asked.partial, ignore_errors=True)


def _parameters(options: type) -> list[inspect.Parameter]:
    """A keyword for each field, those of `Saving` at the end."""
    ending = {field.name for field in dataclasses.fields(Saving)}
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default,
            annotation=field.type,
        )
        for field in sorted(dataclasses.fields(options), key=lambda field: field.name in ending)
    ]


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


WrongUse: Any = typer.BadParameter.__base__
"""What the options' parser raises of a command line that it cannot read."""


def _in_one_line(
    main: Callable[..., Any],
    args: Any = None,
    prog_name: str | None = None,
    *,
    standalone_mode: bool = True,
    **given: Any,
) -> Any:
    """A program whose command line cannot be read says so in one line, as of any wrong input."""
    if not standalone_mode:
        return main(args, prog_name, standalone_mode=False, **given)
    try:
        code = main(args, prog_name, standalone_mode=False, **given)
    except WrongUse as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
        else:
            path = error.ctx.command_path if error.ctx is not None else prog_name or Path(sys.argv[0]).name
            said = " ".join(error.format_message().split()).rstrip(".") + _came(error, args)
            sys.stderr.write(f"error: {visible(said)}; {path} --help lists what it takes\n")
        raise SystemExit(2) from None
    raise SystemExit(code if isinstance(code, int) else 0)


def _came(error: Any, args: Any) -> str:
    """What was given to the option that an error is about, as far as it was: the last where it was given twice."""
    words, names = list(sys.argv[1:] if args is None else args), getattr(getattr(error, "param", None), "opts", ())
    pairs = [tuple(word.split("=", 1)) if "=" in word else (word, after) for word, after in pairwise([*words, ""])]
    return next((f", got {value!r}" for name, value in reversed(pairs) if name in names), "")


class Command(typer.core.TyperCommand):
    """A program of one command."""

    def main(self, *args: Any, **given: Any) -> Any:
        return _in_one_line(super().main, *args, **given)


class Group(typer.core.TyperGroup):
    """A program of several commands."""

    def main(self, *args: Any, **given: Any) -> Any:
        return _in_one_line(super().main, *args, **given)


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
        if not (first.isdecimal() and last.isdecimal()) or int(first) > int(last):
            raise ValueError(f"cannot read {part!r} as layers: write 0,2-4 (zero-based)")
        if int(last) >= MOST_LAYERS:
            raise ValueError(f"layer {last} is out of range: no model has {MOST_LAYERS} layers")
        found += range(int(first), int(last) + 1)
    return None, tuple(sorted(set(found)))


MOST_LAYERS = 100_000
"""More than any model has: a range of layers is written out before a model is there."""


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
        return named
    for layer in found:
        if layer >= n_layers:
            raise ValueError(f"layer {layer} is out of range (zero-based): the model has layers 0 to {n_layers - 1}")
    return tuple(Head(layer, head) for layer in found for head in range(n_heads))


def chosen_place(place: str) -> dict[str, Any]:
    """The place of `--place`, as `Insertion` takes it.

    >>> chosen_place("after-question")
    {'after': ('question',)}
    >>> chosen_place("before-system, at-4,at-9")
    {'before': ('system',), 'at': (4, 9)}
    """
    found: dict[str, tuple[Any, ...]] = {}
    for part in chosen_names(place):
        word, _, where = part.partition("-")
        if word not in ("before", "after", "at") or not where or (word == "at" and not where.isdecimal()):
            raise ValueError(
                f"--place: {part!r} is no place; write before-question, after-question (or system, template, bos), or at-4"
            )
        found[word] = (*found.get(word, ()), int(where) if word == "at" else where)
    if not found:
        raise ValueError("--place is empty: write before-question, or leave it out")
    return found


def chosen_insertion(
    kind: str, unit: str | None, *, n_tokens: int | None, seed: int, problems: Any = (), place: str = "before-question"
) -> Any:
    """The insertion of `--insertion`, `--unit`, `--n-tokens` and `--place`."""
    from .prompts.insertions import Insertion

    if unit == "":
        raise ValueError("--unit is empty: give what is inserted, such as ' /', or leave it out")
    return Insertion.named(kind, unit=unit, n_tokens=n_tokens, seed=seed, problems=problems, **chosen_place(place))


def context_of(model: str) -> int | None:
    """How many tokens a model of a directory takes, as its config.json says; None where that is not known without loading.

    >>> context_of("demo")
    512
    """
    folder = Path(__file__).parent / "data" / "demo" if model == "demo" else Path(model)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config = {**config, **(config.get("text_config") or {})}
        found = next(
            (config[name] for name in ("max_position_embeddings", "n_positions", "n_ctx") if name in config), None
        )
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):  # loading says what is wrong
        return None
    return found if isinstance(found, int) else None


def _json_object(option: str, text: str, form: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{option}: no valid JSON ({error}); write {form}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{option}: expected a JSON object, got {text!r}; write {form}")
    return found


ATTENTIONS = ("eager", "sdpa", "flash_attention_2")
"""Ways to compute attention that a model can be loaded with."""


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


def place_of_problem(problem: str | None, questions: Any) -> str | int | None:
    """The problem of `--problem`: its id or, where no problem has that id, its place (zero-based)."""
    from .views.pooling import problem_index

    ids = [question.id for question in questions]
    if problem is not None and problem not in ids:
        return problem_index(ids, int(problem) if problem.isdecimal() else problem)
    return problem


@checked
def chosen_problems(problems: str | None, model: str, *, limit: int, **sizes: int | None) -> tuple[Problem, ...]:
    """The first `limit` problems of `--problems`; without it those that a model's directory brings along, or the demo's.

    A .txt file's texts are cut into problems by the model's tokenizer, which alone is loaded for it; the sizes are those of
    `problems_from_texts` (None: its own), and `ValueError` where there are no texts to cut.
    """
    from .prompts.texts import problems_of

    given = {name: size for name, size in sizes.items() if size is not None}
    if problems is not None and not problems.strip():
        raise ValueError("--problems is empty: give 'demo', 'math500' or a file, or leave it out for the model's own")
    if given and Path(problems or "").suffix != ".txt":
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ValueError(
            f"{options}: only the texts of a .txt file are cut to size, not the problems of {problems or 'the model'}: leave "
            "it out, or give --problems FILE.txt"
        )
    return problems_of(model, problems, limit=limit, **given)


def fewer_than(wanted: int, there: int) -> str:
    """That there are fewer problems than `--limit` asks for, and that all are taken; "" where there are enough.

    >>> fewer_than(100, 64), fewer_than(2, 1), fewer_than(64, 64)
    ('--limit 100: there are 64 problems, all are taken.', '--limit 2: there is 1 problem, which is taken.', '')
    """
    taken = "there is 1 problem, which is taken" if there == 1 else f"there are {there} problems, all are taken"
    return f"--limit {wanted}: {taken}." if there < wanted else ""


@contextmanager
def in_place_of(command: str) -> Iterator[None]:
    """What is done here repeats this command, and says so (empty: the one that was given)."""
    before = _REPEATED.set(command or None)
    try:
        yield
    finally:
        _REPEATED.reset(before)


_REPEATED: ContextVar[str | None] = ContextVar("_REPEATED", default=None)


def repeat_command() -> str:
    """The command whose results these are, ready to paste: the one that started this program, of a shard the whole one."""
    if _REPEATED.get() is not None:
        return str(_REPEATED.get())
    program, given = Path(sys.argv[0]), _whole(sys.argv[1:])
    if program.name == "__main__.py":
        return shlex.join(["python", "-m", program.parent.name, *given])
    if program.stem == "mless-interp":
        return shlex.join(["mless-interp", *given])
    return shlex.join(["python", str(program), *given])


def _whole(given: list[str]) -> list[str]:
    """A command's arguments without what makes a shard of it."""
    parts = ("--shard", "--wait")
    return [
        each
        for at, each in enumerate(given)
        if each.partition("=")[0] not in parts and not (at and given[at - 1] in parts)
    ]
