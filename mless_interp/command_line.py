"""What every analysis script shares: options, how it begins and ends, one line for wrong input, a command to repeat.

An analysis is a dataclass of options and a function of it, `app = analysis(main)`. The options that most of them take are
fields of `Saving`, `Asking` and `Inserting`, to be inherited from; a field that is declared again has another default or
another explanation. What single scripts share is an annotation: `heads: mi.command_line.HeadsOption = None`.
"""

import dataclasses
import functools
import inspect
import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer import Option

from .heads import Head
from .prompts.conditions import CONDITIONS, CONTRASTS, as_words
from .prompts.problems import Problem, load_problems

BACKENDS = "auto, hooked_transformer, bridge or nnsight"
KINDS = "meaningless, meaningful, random_sentence, other_questions, repeated_bos or text"
OUTCOMES = "answer_logprob, answer_prob, solution_logprob, logit_diff, kl or kl_last"
EDITS = (
    "z, knockout, knockout_zero, edge_noise, restore_scale, reroute_to_sink, reroute_uniform, matched_mass, q, k or v"
)
"""What help texts list of tables that load torch, which explaining a command does not need; tests hold them to the tables."""

ModelOption = Annotated[str, Option(help="'demo' (bundled), a saved model's directory, or a hub id.")]
BackendOption = Annotated[str, Option(help=f"{BACKENDS}.")]
DtypeOption = Annotated[str, Option(help="float32, float64, bfloat16 or float16.")]
DeviceOption = Annotated[str | None, Option(help="cpu, cuda, cuda:1 ... [default: a GPU if there is one]")]
ProblemsOption = Annotated[
    str | None,
    Option(help="'demo', 'math500' (from the hub), or a .jsonl file with MATH-500's keys. [default: the model's own]"),
]
LimitOption = Annotated[int, Option(help="How many problems, from the first (the unit of replication is the problem).")]
TemplateOption = Annotated[
    str, Option(help="raw, raw_as_sent (the paper's doubled braces), text (for base models: adds nothing) or chat.")
]
InsertionOption = Annotated[str, Option(help=f"{KINDS}.")]
UnitOption = Annotated[str | None, Option(help="The repeated unit, word, or the text. [default: ' /' or 'he']")]
NTokensOption = Annotated[int, Option(help="Length of the insertion in tokens.")]
AttentionOption = Annotated[
    str, Option(help="eager, or sdpa (nnsight): fused and lean, for long prompts; the same numbers.")
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
ConditionsOption = Annotated[str, Option(help=f"{as_words(CONDITIONS)}. All are compared with the first.")]
SeedOption = Annotated[int, Option(help="Seed of all that is drawn: random insertions, permutations, the bootstrap.")]
OutOption = Annotated[Path, Option(help="Folder for the results; it appears only when they are whole.")]
OverwriteOption = Annotated[bool, Option("--overwrite", help="Replace an existing folder.")]
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
    """The options of every analysis, and how it ends: `save`."""

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
        return self.folder.with_name(f".{self.folder.name}.partial")

    @property
    def progress(self) -> bool:
        return not self.no_progress

    def save(self, files: Mapping[str, Any], *, page: Callable[[], Any], model: Any = None, **facts: Any) -> None:
        """Write all files, or none, and say where they are: `run.json` last, and with `--report` the page.

        `files`: by name, tables (.csv, .parquet, .jsonl), pictures and views (.png, .html), and results themselves (a
        folder's name and a tuple of them). `facts` stand in run.json beside what `provenance` tells of `model`, and on the
        page that `page` makes.
        """
        from .running.folders import new_folder
        from .running.store import provenance

        run = provenance(model, repeat=repeat_command(), seed=self.seed, **facts)
        with new_folder(self.folder, overwrite=self.overwrite) as folder:
            for name, content in files.items():
                _write(folder / name, content, model)
            (folder / "run.json").write_text(json.dumps(run, indent=1), encoding="utf-8")
            if self.report:
                page().provenance(run).save(folder / "report.html")
        shutil.rmtree(self.partial, ignore_errors=True)
        written = [*files, "run.json"] + ["report.html"] * self.report
        typer.echo(f"Results: {self.folder}/{', '.join(written)}")


def _write(path: Path, content: Any, model: Any) -> None:
    match path.suffix:
        case ".csv":
            content.to_csv(path, index=False)
        case ".parquet":
            content.to_parquet(path, index=False)
        case ".jsonl":
            content.to_json(path, orient="records", lines=True, force_ascii=False)
        case ".png" | ".html":
            content.save(path)
        case "":
            from .running.store import save

            save(path, *content, model=model)
        case other:
            raise ValueError(f"{path.name}: an analysis writes no {other} files")


@dataclass(frozen=True, kw_only=True)
class Asking(Saving):
    """The options of an analysis that asks one model about problems, and how it begins."""

    model: ModelOption = "demo"
    backend: BackendOption = "auto"
    problems: ProblemsOption = None
    limit: LimitOption = 32
    template: TemplateOption = "raw"
    dtype: DtypeOption = "float32"
    device: DeviceOption = None

    def questions(self) -> tuple[Problem, ...]:
        """The problems that were asked for."""
        return chosen_problems(self.problems, self.model, limit=self.limit)

    def load(self, **options: Any) -> Any:
        """The model that was asked for; `options` are `load_model`'s."""
        from .models.load import load_model

        return load_model(self.model, backend=self.backend, dtype=self.dtype, device=self.device, **options)


@dataclass(frozen=True, kw_only=True)
class Inserting(Asking):
    """The options of an analysis of one insertion."""

    insertion: InsertionOption = "meaningless"
    unit: UnitOption = None
    n_tokens: NTokensOption = 55

    def begin(self, **options: Any) -> tuple[Any, tuple[Any, ...]]:
        """The model and the problems' pairs; wrong insertions and problems are told before the model is loaded."""
        from .prompts.insertions import Insertion
        from .prompts.pairs import make_pairs

        questions = self.questions()
        counted: dict[str, Any] = {"unit": self.unit, "n_tokens": self.n_tokens, "seed": self.seed}
        filler = Insertion.named(self.insertion, problems=questions, **counted)
        model = self.load(**options)
        return model, make_pairs(model, questions, filler, template=self.template)


def analysis(main: Callable[[Any], None]) -> typer.Typer:
    """The program of a function of one dataclass of options, `Saving` or what inherits from it.

    Each field is an option, explained by its annotation; the function's docstring explains the program. A folder that may
    not be replaced is refused before anything begins, and wrong input is one line.
    """
    (options,) = (hint for name, hint in get_type_hints(main).items() if name != "return")

    @functools.wraps(main)
    def command(**given: Any) -> None:
        from .running.folders import claimed

        asked = options(**given)
        with claimed(asked.folder, overwrite=asked.overwrite, analysis=Path(main.__code__.co_filename).stem):
            main(asked)

    command.__signature__ = inspect.Signature(list(_parameters(options)))  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(one_line_errors(command))
    return app


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


def one_line_errors(command: Callable[..., Any]) -> Callable[..., Any]:
    """Wrong input ends the program with one line on standard error and exit code 2.

    Set MLESS_TRACEBACK=1 to see where it came from.
    """

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except (ValueError, TypeError, OSError, MemoryError, KeyboardInterrupt) as error:
            if os.environ.get("MLESS_TRACEBACK"):
                raise
            stopped = isinstance(error, KeyboardInterrupt)
            text = " ".join(" ".join([str(error), *getattr(error, "__notes__", ())]).split())
            sys.stderr.write(f"{'stopped' if stopped else 'error'}: {text or type(error).__name__}\n")
            raise SystemExit(130 if stopped else 2) from error

    return wrapped


def chosen_heads(heads: str | None, layers: str | None, *, n_layers: int, n_heads: int) -> tuple[Head, ...] | None:
    """Heads from `--heads 0:13,0:21` and/or `--layers 0,2-4` (zero-based); None means all.

    >>> chosen_heads("0:1", None, n_layers=2, n_heads=2)
    (L0H1,)
    >>> chosen_heads(None, "0-1", n_layers=4, n_heads=1)
    (L0H0, L1H0)
    """
    if heads is not None and layers is not None:
        raise ValueError("give --heads or --layers, not both")
    if heads is not None:
        return tuple(Head.parse(part) for part in heads.split(",") if part.strip())
    if layers is None:
        return None
    found: list[int] = []
    for part in layers.split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal()) or int(first) > int(last):
            raise ValueError(f"cannot read {part!r} as layers: write 0,2-4 (zero-based)")
        found += range(int(first), int(last) + 1)
    for layer in found:
        if layer >= n_layers:
            raise ValueError(f"layer {layer} is out of range (zero-based): the model has layers 0 to {n_layers - 1}")
    return tuple(Head(layer, head) for layer in sorted(set(found)) for head in range(n_heads))


def chosen_names(text: str) -> tuple[str, ...]:
    """Names from an option such as `--conditions base,inserted`.

    >>> chosen_names("base, inserted,")
    ('base', 'inserted')
    """
    return tuple(part.strip() for part in text.split(",") if part.strip())


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


def chosen_problems(problems: str | None, model: str, *, limit: int) -> tuple[Problem, ...]:
    """The first `limit` problems of `--problems`; without it those that a model's directory brings along, or the demo's."""
    own = Path(model) / "problems.jsonl"
    return load_problems(problems or (str(own) if own.is_file() else "demo"), limit=limit)


def repeat_command() -> str:
    """The command that started this program, ready to paste."""
    return shlex.join(["python", *sys.argv])
