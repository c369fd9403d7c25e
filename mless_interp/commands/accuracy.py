"""`mless-interp accuracy`: does an insertion change the answers; treatments compared on the same problems."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from typer import Option

from ..command_line import (
    Asking,
    LimitOption,
    NTokensOption,
    OutOption,
    PlaceOption,
    between,
    chosen_heads,
    chosen_insertion,
    chosen_names,
    chosen_place,
    read_heads,
)
from ..given import count_of
from .kept import Computed, Kept, Presented, program

N_READ = 3
"""Problems whose answers stand on the page, at least."""
FLIPPED = 12
"""Problems that are right under one treatment and wrong under another, of those, at most."""


@dataclass(frozen=True, kw_only=True)
class Options(Asking):
    """What can be asked."""

    backend: Annotated[
        str, Option(help="bridge or nnsight (answers with a cache), hooked_transformer (much slower), auto.")
    ] = "bridge"
    attention: Annotated[str, Option(help="eager, or (nnsight only) sdpa: faster, and knockouts work with it too.")] = (
        "eager"
    )
    limit: LimitOption = 500
    template: Annotated[
        str, Option(help="raw, raw_as_sent, paper (text-level insertion, as its code), text or chat.")
    ] = "raw"
    treatments: Annotated[
        str,
        Option(
            "--treatments",
            "--conditions",
            help="Any of none, mless, mful, random_sentence, arm; the first is what others are compared with.",
        ),
    ] = "none,mless,mful,random_sentence,arm"
    unit: Annotated[str, Option(help="The meaningless unit of mless.")] = " /"
    word: Annotated[str, Option(help="The repeated word of mful.")] = "he"
    n_tokens: NTokensOption = 55
    place: PlaceOption = "before-question"
    knockout: Annotated[
        str | None,
        Option(help="Heads that cannot see mless' tokens, zero-based: 0:13,0:21. Adds the treatment knockout."),
    ] = None
    arm_c: Annotated[
        float, Option(callback=between(0.0), help="ARM's c; the paper tunes it per model and benchmark.")
    ] = 0.13
    arm_p1: Annotated[float, Option(min=0, max=100, help="ARM's p1, a percentile.")] = 99.5
    arm_reading: Annotated[str, Option(help="paper_add or code_replace.")] = "paper_add"
    n_samples: Annotated[int, Option(min=1, help="Answers to each problem; above 1 with a temperature.")] = 1
    temperature: Annotated[float, Option(min=0, help="0 is greedy.")] = 0.0
    top_p: Annotated[float, Option(callback=between(0.0, 1.0), help="Nucleus of the sampling: above 0, at most 1.")] = (
        1.0
    )
    max_new_tokens: Annotated[
        int | None, Option(min=1, help="Longest answer. [default: 2048, or what the context leaves]")
    ] = None
    batch_size: Annotated[int | None, Option(min=1, help="Prompts at once. [default: sized to memory]")] = None
    engine: Annotated[
        str,
        Option(
            help="auto, hugging_face, forward or vllm (a process of its own; insertions only); or ray: hugging_face on several "
            "workers."
        ),
    ] = "auto"
    vllm_python: Annotated[
        str | None, Option(help="vllm: the interpreter of its environment. [default: what MLESS_VLLM_PYTHON names]")
    ] = None
    tensor_parallel_size: Annotated[int, Option(min=1, help="vllm: how many GPUs hold the model together.")] = 1
    engines: ClassVar[tuple[str, ...]] = ("auto", "hugging_face", "forward", "vllm")
    published: Annotated[
        str | None, Option(help="A model of the paper's tables, whose bars stand beside yours: Qwen2.5-Math-7B.")
    ] = None
    benchmark: Annotated[str, Option(help="The benchmark of --published.")] = "MATH-500"
    out: OutOption = Path("results/accuracy")


def _engine(options: Options) -> Any:
    """Who completes."""
    from ..generation.vllm import Vllm

    if options.engine == "vllm":
        return Vllm(options.vllm_python, options.tensor_parallel_size)
    if options.vllm_python is not None or options.tensor_parallel_size != 1:
        raise ValueError("--vllm-python and --tensor-parallel-size are for --engine vllm")
    return "auto" if options.engine == "ray" else options.engine


def compute(options: Options) -> Computed:
    """Answer problems under several treatments and compare them.

    Writes accuracy.csv (a row per treatment), comparisons.csv (each treatment against the first), completions.jsonl (a row
    per answer, with its grades), accuracy.png, the results themselves in results/ (mi.load) and run.json; with --report
    also report.html. A run that is stopped goes on when it is started again with the same settings.
    """
    from ..accuracy import Treatment, evaluate_accuracy
    from ..accuracy.evaluate import check_asked
    from .answers import of_accuracy

    published = None
    if options.published is not None:
        published = _published(options.published, options.benchmark)
        if published.empty:
            raise ValueError(
                f"the paper prints nothing for {options.published!r} on {options.benchmark!r}; see mi.paper.published()"
            )
    treatments = _treatments(options)
    asked: dict[str, Any] = {
        "n_samples": options.n_samples,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "max_new_tokens": options.max_new_tokens,
        "batch_size": options.batch_size,
        "engine": _engine(options),
    }
    check_asked(treatments, **asked)
    read_heads(options.knockout, None)
    questions = options.questions()
    inserted = max((each.insertion.n_tokens or 0 for each in treatments if each.insertion is not None), default=0)
    model = options.load(at_least=inserted + (options.max_new_tokens or 1))
    if options.knockout is not None:
        heads = chosen_heads(options.knockout, None, n_layers=model.info.n_layers, n_heads=model.info.n_heads)
        treatments.append(Treatment(_mless(options), knockout=heads or (), name="knockout"))
    found = evaluate_accuracy(
        model,
        questions,
        treatments,
        **asked,
        template=options.template,
        checkpoint=options.partial / "answers.jsonl",
        progress=options.progress,
        seed=options.seed,
    )
    told = f"{of_accuracy(found)}\n{found!r}"
    if published is not None:
        printed = ", ".join(f"{row.treatment} {row.percent:g} % ({row.source})" for row in published.itertuples())
        told += f"\nThe paper prints: {printed}."
    return Computed(
        results={"AccuracyResults": found},
        told=told,
        model=model,
        facts={
            "settings": found.settings,
            "conclusion": found.describe(),
            "comparisons": [one.describe() for one in found.compare_all().comparisons] if len(treatments) > 1 else [],
            "n_problems": len(questions),
            "problems": found.problem_ids,
            "questions": {each.id: each.question for each in questions if each.id in _to_read(found)},
        },
    )


def present(kept: Kept) -> Presented:
    """The tables, every answer, the bars, and the page."""
    from .. import views
    from ..views.report import Report
    from .answers import model_name, of_accuracy, told_treatments

    found, options = kept.results["AccuracyResults"], kept.options
    published = None if options["published"] is None else _published(options["published"], options["benchmark"])
    compared = found.compare_all() if len(found.treatments) > 1 else None
    answers, picture = found.to_frame(), views.accuracy_bars(found, published=published)

    def page() -> Report:
        question = (
            f"How does {model_name(kept.run['model']['name'])} answer {count_of(kept.run['n_problems'], 'problem')} under "
            f"{told_treatments(found)}, and does any of these differ from {found.treatments[0]}?"
        )
        made = Report("Accuracy under insertions", question=question, answer=of_accuracy(found))
        caption = "Share of right answers by treatment, with 95 % intervals over problems."
        made = made.result(found, pictures={caption: picture})
        if compared is not None:
            made = made.result(compared, heading="Against the first treatment")
        texts = kept.run.get("questions") or kept.run.get("first_questions", {})
        flipped = [name for name in _flipped(found) if name in texts]
        made = made.heading(
            "Answers: problems that change first" if flipped else "The first problems and their answers"
        )
        made = made.sentence(_flip_words(found, len(flipped)))
        made = made.table(_answers(found, answers, list(texts), flipped), "Answers as they came.", columns=_ANSWERED)
        return made.sentence(*(f"{name}: {text}" for name, text in texts.items()))

    files = {
        "accuracy.csv": found.summary(),
        **({} if compared is None else {"comparisons.csv": compared.to_frame()}),
        "completions.jsonl": answers,
        "accuracy.png": picture,
    }
    return Presented(files, page)


_ANSWERED = {"problem": "problem", "right": "right", "treatment": "treatment"}
_ANSWERED |= {
    "completion": "answer (its last 400 characters)",
    "gold": "key",
    "tokens": "tokens",
    "decided": "decided by",
}


def _flipped(found: Any) -> list[str]:
    """Problems that are right (most samples) under one treatment and wrong under another, in their order."""
    right = found.share_right() > 0.5
    known = found.share_right() >= 0  # NaN: not run
    moved = (right & known).any(1) & (~right & known).any(1)
    return [problem for problem, changed in zip(found.problem_ids, moved, strict=True) if changed]


def _to_read(found: Any) -> list[str]:
    """The problems whose answers the page shows: those that change first, then the first ones."""
    changed = _flipped(found)[:FLIPPED]
    others = [problem for problem in found.problem_ids if problem not in changed]
    return [*changed, *others[: max(0, N_READ - len(changed))]]


def _flip_words(found: Any, shown: int) -> str:
    n = len(_flipped(found))
    if len(found.treatments) == 1 or not n:
        return f"No problem of {len(found.problem_ids)} is right under one treatment and wrong under another."
    which = {n: "; all of them are shown", 0: ""}.get(shown, f"; the first {shown} are shown")
    return f"{n} of {count_of(len(found.problem_ids), 'problem')} are right under one treatment and wrong under another{which}."


def _answers(found: Any, answers: Any, problems: list[str], flipped: list[str]) -> Any:
    """A row per problem and treatment (its first sample, and how many of its samples are right), changed problems first."""
    order = {name: at for at, name in enumerate([*flipped, *(name for name in problems if name not in flipped)])}
    here = answers[answers["problem"].isin(list(order))]
    rows = here.groupby(["problem", "treatment"], sort=False)
    shown = rows.first().reset_index()
    right = rows["strict"].agg(["sum", "count"]).reset_index()
    several = found.n_samples > 1
    words = [
        (f"{int(good)} of {int(n)}" if several else "yes" if good else "no") if n else None
        for good, n in zip(right["sum"], right["count"], strict=True)
    ]
    shown = shown.assign(
        right=words, completion=shown["completion"].str[-400:], tokens=shown["n_tokens"].astype("Int64")
    )
    shown["gold"] = shown.get("gold")
    return shown.sort_values("problem", key=lambda names: names.map(order), kind="stable")


def _published(model: str, benchmark: str) -> Any:
    from ..paper import published
    from ..paper.figures import key_of

    return published(model=key_of(model), benchmark=benchmark)


def _treatments(options: Options) -> list[Any]:
    """Those asked for by name."""
    from ..accuracy import Treatment
    from ..mechanism import ARM
    from ..prompts.insertions import Insertion

    n, seed, place = options.n_tokens, options.seed, chosen_place(options.place)
    known: dict[str, Any] = {
        "none": dict,
        "mless": lambda: {"insertion": _mless(options)},
        "mful": lambda: {"insertion": Insertion.meaningful(options.word, n, **place)},
        "random_sentence": lambda: {"insertion": Insertion.random_sentence(n, seed=seed, **place)},
        "arm": lambda: {"arm": ARM(options.arm_c, options.arm_p1, reading=options.arm_reading, seed=seed)},
    }
    names = chosen_names(options.treatments)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(
            f"unknown treatment {unknown[0]!r}; choose any of {', '.join(known)} (and --knockout 0:13,0:21)"
        )
    return [Treatment(name=name, **known[name]()) for name in names]


def _mless(options: Options) -> Any:
    return chosen_insertion(
        "meaningless", options.unit, n_tokens=options.n_tokens, seed=options.seed, place=options.place
    )


app = program("accuracy", compute, present)
