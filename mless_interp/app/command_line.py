"""What every command shares: options, their help, one line for wrong input, a command to repeat.

A command is a dataclass of options, most of them inherited (`Saving` to `Pairing`), and a function of it.
"""

import dataclasses
import functools
import inspect
import json
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer
import typer.core
from typer import Argument, Option

from .. import data
from ..core.arguments import Arguments, beside, nearest
from ..core.heads import Head, check_heads
from ..prompts.problems import Problem, load_problems, whole_groups
from ..runtime import folders
from ..runtime.loop import out_of_memory
from ..runtime.text_safety import visible
from ..runtime.workers import Engine, Processes, RayWorkers, Shard, here
from . import INCLUDED

if TYPE_CHECKING:
    from ..models.base import Model
    from ..prompts.insertions import Insertion
    from ..prompts.pairs import PromptPair

Item = TypeVar("Item")
# Names of tables that load torch, which neither a help nor a refusal needs; `tools/refresh_docs.py tables` writes the file.
NAMES: dict[str, list[str]] = json.loads(Path(data.__file__).with_name("names.json").read_text(encoding="utf-8"))
Dtype = Literal["float32", "float64", "bfloat16", "float16"]
Attention = Literal["eager", "sdpa", "flash_attention_2"]
Rows = Literal["shared", "all", "question"]


def is_model(name: str | None) -> str | None:
    """Refuse what is no model before torch is imported: a directory without one, a name that the hub does not have."""
    if name is None or name == "demo":  # whatever folder has that name
        return name
    if (path := Path(name).expanduser()).is_dir():
        if not any((path / file).is_file() for file in ("config.json", "adapter_config.json")):
            raise typer.BadParameter(
                f"{str(path.absolute())!r} holds no config.json: it is not a saved Hugging Face model"
            )
        return name
    if name.startswith((".", "/", "~")) or name.count("/") > 1:  # a hub id has one slash at most
        raise _not_there("directory", path)
    from huggingface_hub import HfApi, try_to_load_from_cache

    why = "the hub has no model of that name"
    try:
        if isinstance(try_to_load_from_cache(name, "config.json"), str) or HfApi().file_exists(name, "config.json"):
            return name
    except Exception as error:  # noqa: BLE001 - of its client's kinds: no network, offline mode, a name that no id has
        why = str(error).partition("\n")[0]
    raise _not_there("model", path, f": no directory, and not in the hub's cache; {why}")


def is_file(name: str | None) -> str | None:
    """Refuse a file that is not there before torch is imported."""
    if name not in (None, "demo", "math500") and not Path(name).exists():
        raise _not_there("file", Path(name))
    return name


def is_study(name: str, or_of: Iterable[str] = ()) -> str:
    """Refuse what is neither a study (included, or a file) nor `or_of` these analyses before torch is imported."""
    known = (*or_of, *INCLUDED)
    if name not in known and not Path(name).is_file():
        raise typer.BadParameter(f"there is no {name!r}{nearest(name, known)}: give {', '.join(known)} or a .toml file")
    return name


def _not_there(what: str, path: Path, why: str = "") -> typer.BadParameter:
    """Return the refusal of a path, with the most similar name in its folder."""
    meant = nearest(path.name, ["demo", "math500", *beside(path.absolute())])
    return typer.BadParameter(f"there is no {what} {str(path if why else path.absolute())!r}{meant}{why}")


# ----------------------------------------------------------------------------------------------------------------- options

PANELS = {
    "Options": (),
    "How many": "limit confirm answers n_tokens twins n_samples draws repeats most_heads doses".split(),
    "Output": "out report overwrite".split(),
    "Advanced": (
        "engine workers gpus_per_worker address shard wait backend dtype tf32 device device_map max_memory offload_folder "
        "quantization_config attention template place by layers heads direction edit seed no_progress rows batch_size "
        "vllm_python tensor_parallel_size memory tflops"
    ).split(),
}
"""The headings under which `--help` lists options, in this order; all others are under the first."""
MODEL_HELP = "'demo' (bundled), a saved model's directory, or a hub id."
REQUIRED = dataclasses.MISSING  # the default of an option that must be given


def option(default: object, help: str, *names: str, of: str = "", **how: Any) -> Any:
    """Return a field of a dataclass of options: its default, its help, and what else `typer.Option` takes; `of`: the list in
    `NAMES` of what may be given."""
    return dataclasses.field(default=default, metadata={"typer": Option(*names, help=help, **how), "of": of})


def argument(default: object, help: str, **how: Any) -> Any:
    """Return such a field that has no name on the command line."""
    return dataclasses.field(default=default, metadata={"typer": Argument(help=help, **how)})


SHARED = {
    "model": option(None, MODEL_HELP, callback=is_model),
    "problems": option(
        None,
        "'demo', 'math500' (from the hub), a .jsonl file with MATH-500's keys, or (with --template text) a .txt file of "
        "texts between blank lines. [default: the model's own]",
        callback=is_file,
    ),
    "limit": option(None, "Number of problems, from the first on.", min=1),
    "template": option("raw", "How prompts are made: raw_as_sent doubles braces, text adds nothing.", of="templates"),
    "n_tokens": option(None, "Length of the insertion in tokens. [default: 55; text and ids: as given]", min=1),
    "place": option(
        None,
        "before- or after-SEGMENT (question, system, template, bos), before-answer, at-INDEX; several share tokens.",
    ),
    "layers": option(None, "Only these layers, zero-based: 0,2-4."),
    "heads": option(None, "Only these heads, zero-based: L0H13,L0H21."),
    "by": option(None, "Also name heads that act in some problems only: by 'answer', or a tag of all problems."),
    "outcome": option(None, "Outcome to measure.", of="signed_outcomes"),
    "twins": option(None, "Untrained twins, measured alike; each costs as much as the model. 0: none.", min=0),
    "max_new_tokens": option(None, "Longest answer. [default: 2048, or what the context leaves]", min=1),
    "out": option(None, "Folder for the results, written only when they are complete."),
}
"""Options of several commands, by the name of the field, which says its default; an `option` or `argument` explains itself."""


@dataclass(frozen=True, kw_only=True)
class Saving:
    """The options of every analysis: who computes, and where results are written."""

    engine: Literal["serial", "processes", "ray"] = option(
        "serial",
        "processes: copies of this one (Linux, small models on the CPU); ray (an extra): workers with a model each.",
    )
    workers: int = option(2, "processes, ray: how many.", min=1)
    gpus_per_worker: float = option(0.0, "ray: GPUs that each worker reserves.", min=0)
    address: str | None = option(None, "ray: a running cluster. [default: Ray is started here]")
    shard: str | None = option(None, "Only this part, zero-based: 0/4 to 3/4; last, run without --shard.")
    wait: float = option(0.0, "Stop waiting for other shards after this many seconds without progress.", min=0)
    seed: int = option(0, "Seed of all that is random: insertions, draws, the bootstrap.", min=0)
    out: Path = Path("results")
    report: bool = option(False, "Also write report.html, which opens without network.", "--report")
    overwrite: bool = option(False, "Replace an existing folder.", "--overwrite")
    no_progress: bool = option(False, "No progress bars.", "--no-progress")

    def __post_init__(self) -> None:
        for names, used, by in (
            ("wait", self.shard is not None, "--shard"),
            ("workers", self.engine in ("processes", "ray"), "--engine processes or ray"),
            ("gpus_per_worker address", self.engine == "ray", "--engine ray"),
        ):
            if not used:
                self.only_defaults(names, f"no effect without {by}")

    @property
    def partial(self) -> Path:
        """The folder in which a stopped run leaves what had finished, for when it is started again."""
        return self.out.with_name(f".{self.out.name}.partial")

    @property
    def kept(self) -> Path:
        """The folder of results between their computing and their showing."""
        return self.partial / folders.COMPUTED

    @property
    def part(self) -> Shard | None:
        """The part of the work; None for all of it."""
        return None if self.shard is None else replace(Shard.parse(self.shard), wait=self.wait)

    @property
    def common(self) -> Arguments:
        """The options of every analysis of the library."""
        return {"progress": not self.no_progress, "seed": self.seed}

    def chosen(self, *names: str) -> Arguments:
        """Return these options by name."""
        return {name: getattr(self, name) for name in names}

    def only_defaults(self, names: str, why: str) -> None:
        """Raise `ValueError` where one of these options was given."""
        for name in names.split():
            if getattr(self, name) != type(self).__dataclass_fields__[name].default:
                raise ValueError(f"--{name.replace('_', '-')}: {why}; leave it out")

    def say(self, text: str) -> None:
        """Say on standard error what is being done where no bar moves."""
        if not self.no_progress:
            sys.stderr.write(f"{text}\n")

    def computing(self) -> Engine:
        """Return who computes: `--engine` and `--shard`."""
        workers: Engine = here
        if self.engine == "ray":
            workers = RayWorkers(self.workers, gpus=self.gpus_per_worker, address=self.address)
        elif self.engine == "processes":
            workers = Processes(self.workers)
        return workers if self.part is None else replace(self.part, engine=workers)


@dataclass(frozen=True, kw_only=True)
class Loading:
    """The options of every command that loads a model."""

    backend: str = option("auto", "Which library runs the model.", of="backends")
    dtype: Dtype = option("float32", "Precision of weights and activations.")
    tf32: bool = option(True, "On a GPU, multiply float32 in TF32 (10 bits), several times as fast.")
    device: str | None = option(None, "cpu, cuda, cuda:1 ... [default: a GPU if there is one]")
    device_map: str | None = option(None, "Spread over devices (nnsight, bridge): auto, balanced, sequential, or JSON.")
    max_memory: str | None = option(None, 'With --device-map auto: limit of each device, as {"0": "20GiB"}.')
    offload_folder: str | None = option(None, "Where --device-map puts weights on the disk (nnsight).")
    quantization_config: str | None = option(None, 'As {"quant_method": "bitsandbytes", "load_in_4bit": true}.')
    attention: Attention = option("eager", "Kernel. sdpa (nnsight) is fast and lean, and shows no patterns.")

    def loading(self) -> Arguments:
        """Return all of them as `load_model` takes them."""
        if self.device is not None and not re.fullmatch(r"cpu|(cuda|mps|xpu|npu|hpu)(:\d+)?", self.device):
            raise ValueError(f"--device: {self.device!r} is no device; write cpu, cuda or cuda:1")
        names = ("backend", "dtype", "tf32", "device", "offload_folder", "device_map")
        made = {name: getattr(self, name) for name in names} | {"attn_implementation": self.attention}
        for name in ("device_map", "max_memory", "quantization_config"):
            text = getattr(self, name)
            if text is not None and (name != "device_map" or text.lstrip().startswith("{")):
                try:
                    told = dict(json.loads(text))
                except (TypeError, ValueError) as error:
                    flag = name.replace("_", "-")
                    raise ValueError(f"--{flag}: expected JSON as --help shows, got {text!r}") from error
                # devices are numbered, and JSON has no numbers as keys
                made[name] = {int(key) if name == "max_memory" and key.isdecimal() else key: told[key] for key in told}
        return made


LIMITS = {"sweep": 32, "locate": 64, "accuracy": 500, "circuit": 64}
"""Problems of an analysis where nothing else is asked for, if these are not `Asking`'s."""


@dataclass(frozen=True, kw_only=True)
class Asking(Loading, Saving):
    """The options of an analysis that asks one model about problems, and how it begins."""

    model: str = "demo"
    problems: str | None = None
    limit: int = 32
    template: str = "raw"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.heads_of()
        self.loading()
        if (place := getattr(self, "place", None)) is not None:
            chosen_place(place)

    def heads_of(self, shape: tuple[int, int] | None = None) -> tuple[Head, ...] | None:
        """Return the heads of `--heads` (or `--knockout`) or `--layers`, as `chosen_heads`; check `--layer` too."""
        layer = getattr(self, "layer", 0)
        if shape is not None and layer >= shape[0]:
            raise ValueError(f"--layer {layer} is out of range (zero-based): the model has layers 0 to {shape[0] - 1}")
        heads = getattr(self, "heads", getattr(self, "knockout", None))
        return chosen_heads(heads, getattr(self, "layers", None), shape)

    def first(self, limit: int | None) -> tuple[Problem, ...]:
        """Return the first problems of the source (None: all)."""
        found = problems_of(self.model, self.problems, limit=limit)
        check_key(found, "--by", getattr(self, "by", None))
        return found

    def questions(self) -> tuple[Problem, ...]:
        """Return the problems that were asked for; say where there are fewer."""
        found = self.first(self.limit)
        if len(found) < self.limit:
            sys.stderr.write(f"Problems: {len(found)}, fewer than the limit ({self.limit}).\n")
        return found

    def in_parts(self, **counts: int) -> list[tuple[Problem, ...]]:
        """Return problems for each purpose, none of a group in two of them; `ValueError` where there are fewer."""
        wanted, asked = sum(counts.values()), [f"--{name} {count}" for name, count in counts.items() if count]
        if len(asked) < 2:
            return [replace(self, limit=count).questions() if count else () for count in counts.values()]
        found = whole_groups(self.first(wanted), *counts.values())
        if len(found) < wanted:
            raise ValueError(f"{' and '.join(asked)} need {wanted} problems, there are {len(found)}: ask for fewer")
        return split(found, counts.values())

    def load(self, *fillers: "Insertion") -> "Model":
        """Load the model, once options, engine, named heads and insertions are known to be right."""
        options, engine = self.loading(), self.computing()
        self.say(f"loading {self.model} ...")
        from ..models.load import config_of, load_model, tokenizer_of_model
        from ..prompts.pairs import check_length, pairs_of_any

        said = config_of(self.model)
        n_layers, n_heads = said.get("num_hidden_layers"), said.get("num_attention_heads")
        self.heads_of((n_layers, n_heads) if isinstance(n_layers, int) and isinstance(n_heads, int) else None)
        for filler in fillers:
            check_length(filler, said.get("max_position_embeddings"), self.model)
            pairs_of_any(tokenizer_of_model(self.model), self.first(1), filler, template=self.template)
        return load_model(self.model, **options).on(engine)


@dataclass(frozen=True, kw_only=True)
class Inserting(Asking):
    """The options of an analysis of one insertion."""

    insertion: str = option("meaningless", "Kind of insertion.", of="insertions")
    unit: str | None = option(
        None,
        "The repeated unit, word or text [default: ' /' or 'he']; from_key: a key of the problems; repeat_question: a number; "
        "ids: token ids (5,6); pause: a token.",
    )
    n_tokens: int | None = None
    place: str = "before-question"

    def filler(self, **changes: object) -> "Insertion":
        """Return the insertion that was asked for."""
        from ..prompts.insertions import Insertion

        given = self.chosen("unit", "n_tokens", "seed") | chosen_place(self.place) | changes
        if self.insertion == "other_questions":
            given["problems"] = self.first(None)  # what it draws from
        return Insertion.named(self.insertion, **given)

    def begin(self, *parts: tuple[Problem, ...]) -> "tuple[Model, list[tuple[PromptPair, ...]]]":
        """Return the model and the pairs of each part of the problems; refuse a wrong insertion before the model is loaded."""
        from ..prompts.pairs import make_pairs

        filler = self.filler()
        model = self.load(filler)
        made = make_pairs(model, [problem for part in parts for problem in part], filler, template=self.template)
        return model, split(made, map(len, parts))


@dataclass(frozen=True, kw_only=True)
class Pairing(Inserting):
    """The options of an analysis of one insertion, or of pairs of token ids."""

    pairs: str | None = option(
        None,
        "Token ids instead of problems and an insertion: a .jsonl file with the keys ids, answer, clean or span, and if wanted "
        "distractor, tags, id.",
        callback=is_file,
    )

    @functools.cached_property
    def given(self) -> "tuple[PromptPair, ...]":
        """The pairs of `--pairs`; `ValueError` beside options of how prompts are made."""
        from ..prompts.own_ids import pairs_from_file

        self.only_defaults("problems template insertion unit n_tokens place", "--pairs holds whole prompts")
        return pairs_from_file(self.pairs or "")

    def first(self, limit: int | None) -> tuple[Problem, ...]:
        given, contrast = () if self.pairs is None else self.given[:limit], getattr(self, "contrast", "content")
        key = "clean" if contrast == "replaced" else "spans"
        if not all(getattr(pair, key) for pair in given) or (key == "clean" and not given):
            raise ValueError(f"--contrast {contrast}: needs --pairs with the key {key.rstrip('s')} in every line")
        return tuple(pair.problem for pair in given) if given else super().first(limit)

    def begin(self, *parts: tuple[Problem, ...]) -> "tuple[Model, list[tuple[PromptPair, ...]]]":
        if self.pairs is None:
            return super().begin(*parts)
        ids = [{problem.id for problem in part} for part in parts]
        return self.load(), [tuple(pair for pair in self.given if pair.id in some) for some in ids]


# ------------------------------------------------------------------------------------- help, errors and warnings in a line


def of_options(main: Callable[[Any], None], options: type, *, without: Iterable[str] = ()) -> Callable[..., None]:
    """Return a function of `options` as one of a keyword for each field but those `without`."""

    @functools.wraps(main)
    def command(**given: object) -> None:
        main(options(**given))

    parameters = []
    for field in dataclasses.fields(options):
        if field.name not in without:
            told = field.metadata or SHARED[field.name].metadata
            shown, kind = told["typer"], Literal[tuple(NAMES[told["of"]])] if told.get("of") else field.type
            shown.rich_help_panel = next((each for each, names in PANELS.items() if field.name in names), "Options")
            default = inspect.Parameter.empty if field.default is REQUIRED else field.default
            how: Arguments = {"default": default, "annotation": Annotated[kind, shown]}
            parameters.append(inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, **how))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Show warnings as one line each, without the file and the line that they come from."""

    with warnings.catch_warnings():
        warnings.showwarning = lambda said, *_: sys.stderr.write(f"warning: {visible(' '.join(str(said).split()))}\n")  # type: ignore[assignment]
        yield


def one_line_errors(command: Callable[..., object]) -> Callable[..., object]:
    """End the program with one line on standard error and exit code 2 for wrong input and out of memory, without traceback."""
    mended = (ValueError, TypeError, OSError, ModuleNotFoundError, KeyboardInterrupt)  # by the user

    @functools.wraps(command)
    def wrapped(*args: object, **kwargs: object) -> object:
        try:
            return command(*args, **kwargs)
        except (Exception, KeyboardInterrupt) as error:
            if os.environ.get("MLESS_TRACEBACK") or not (isinstance(error, mended) or out_of_memory(error)):
                raise
            stopped = isinstance(error, KeyboardInterrupt)
            text = visible(" ".join(" ".join([str(error), *getattr(error, "__notes__", ())]).split()))
            sys.stderr.write(f"{'Stopped' if stopped else 'Error'}: {text or type(error).__name__}\n")
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
        return f"{' '.join((self.help or '').split()).partition('. ')[0].rstrip('.')}."

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {title: [] for title in PANELS}
        for each in self.get_params(ctx):
            if (record := each.get_help_record(ctx)) is not None:
                panels[getattr(each, "rich_help_panel", None) or "Options"].append(record)
        for title, records in filter(all, panels.items()):
            with formatter.section(title):
                formatter.write_dl(records)


# ------------------------------------------------------------------------------------------------ what options stand for


def split(items: tuple[Item, ...], counts: Iterable[int]) -> list[tuple[Item, ...]]:
    """Return so many of the items each, in their order."""
    return [items[start:end] for start, end in pairwise([0, *accumulate(counts)])]


def chosen_heads(
    heads: str | None, layers: str | None = None, shape: tuple[int, int] | None = None
) -> tuple[Head, ...] | None:
    """Return heads from `--heads 0:13,0:21` or `--layers 0,2-4` (zero-based), None for all; without the `shape` of a model
    (layers, heads of each) only what can be read is checked."""
    if heads is not None and layers is not None:
        raise ValueError("give --heads or --layers, not both")
    if heads is not None:
        named = tuple(Head.parse(part.strip()) for part in heads.split(","))
    elif layers is not None:
        parts = [re.fullmatch(r"\s*([0-9]+)(?:-([0-9]+))?\s*", part) for part in layers.split(",")]
        ranges = [range(int(part[1]), int(part[2] or part[1]) + 1) for part in parts if part is not None]
        if None in parts or not all(ranges):
            raise ValueError(f"cannot read {layers!r} as layers: write 0,2-4 (zero-based)")
        every = range(1 if shape is None else shape[1])
        named = tuple(Head(layer, head) for layer in sorted(set().union(*ranges)) for head in every)
    else:
        return None
    n_layers, n_heads = (sys.maxsize, sys.maxsize) if shape is None else shape
    return check_heads(named, n_layers=n_layers, n_heads=n_heads)


def problems_of(model: str, source: str | None = None, *, limit: int | None) -> tuple[Problem, ...]:
    """Return the first `limit` problems (None: all) of `source`: as `load_problems` takes it, or a .txt file, whose texts the
    model's tokenizer cuts into problems; without one those that a model's directory brings along, or the demo's."""
    if source is not None and Path(source).suffix == ".txt":
        from ..models.load import tokenizer_of_model
        from ..prompts.texts import problems_from_texts

        return problems_from_texts(tokenizer_of_model(model), Path(source), limit=limit)
    own = Path(model) / "problems.jsonl"
    return load_problems((own if own.is_file() else "demo") if source is None else source, limit=limit)


def check_key(problems: tuple[Problem, ...], name: str, key: str | None) -> None:
    """Raise `ValueError` where a problem has nothing under the key that an option names."""
    lacking = [each for each in problems if key not in (None, "answer") and not each.texts.get(key)]
    if lacking:
        known = ", ".join(lacking[0].texts)
        raise ValueError(f"{name} {key}: problem {lacking[0].id!r} has nothing under that key; it has {known}")


def chosen_place(place: str) -> Arguments:
    """Return the place of `--place`, as `Insertion` takes it: {'before': ('system',), 'at': (4, 9)}."""
    known = [f"{word}-{segment}" for word in ("before", "after") for segment in NAMES["segments"]] + ["before-answer"]
    found: dict[str, tuple[str | int, ...]] = {}
    for part in chosen_names(place):
        word, _, where = part.partition("-")
        if part not in known and not (word == "at" and where.isdecimal()):
            others = "write before-question, after-question (or system, template, bos), before-answer, or at-4"
            raise ValueError(f"--place: {part!r} is no place{nearest(part, known)}; {others}")
        found[word] = (*found.get(word, ()), int(where) if word == "at" else where)
    return found


def chosen_names(text: str) -> tuple[str, ...]:
    """Return names from an option such as `--conditions base,inserted`."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def repeat_command() -> str:
    """Return the command that started this program, ready to paste; of a shard the whole one."""
    program = Path(sys.argv[0])
    known = {"__main__.py": f"python -m {program.parent.name}", "mless-interp": "mless-interp"}
    given = re.sub(r" --(shard|wait)[= ]\S+", "", f" {shlex.join(sys.argv[1:])}")
    return known.get(program.name, f"python {shlex.quote(str(program))}") + given
