"""`mless-interp accuracy`: does an insertion change the answers; treatments compared on the same problems."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from typer import Option

from ..core.arguments import count_of
from ..prompts.conditions import one_of
from .command_line import (
    Asking,
    Backend,
    LimitOption,
    NTokensOption,
    OutOption,
    PlaceOption,
    chosen_heads,
    chosen_insertion,
    chosen_names,
    chosen_place,
)
from .run_folder import Computed, Kept, Presented, program

if TYPE_CHECKING:
    from ..answers import AccuracyResults, Treatment
    from ..answers.vllm import Vllm
    from ..prompts.insertions import Insertion

TREATMENTS = "none mless mful random_sentence arm".split()
N_READ = 3
"""Problems whose answers stand on the page, at least."""
FLIPPED = 12
"""Problems that are right under one treatment and wrong under another, of those, at most."""


@dataclass(frozen=True, kw_only=True)
class Options(Asking):
    """What can be asked."""

    backend: Annotated[
        Backend, Option(help="bridge or nnsight (answers with a cache), hooked_transformer (much slower), auto.")
    ] = "bridge"
    limit: LimitOption = 500
    treatments: Annotated[
        str,
        Option(
            help="Any of none, mless, mful, random_sentence, arm; the others are compared with the first. A "
            "place follows an @: none,mless,mless@after-question,mless@before-answer.",
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
    arm_c: Annotated[float, Option(min=1e-9, help="ARM's c; the paper tunes it per model and benchmark.")] = 0.13
    arm_p1: Annotated[float, Option(min=0, max=100, help="ARM's p1, a percentile.")] = 99.5
    arm_reading: Annotated[
        Literal["paper_add", "code_replace"], Option(help="How ARM is read: from the paper, or from its code.")
    ] = "paper_add"
    n_samples: Annotated[int, Option(min=1, help="Answers to each problem; above 1 with a temperature.")] = 1
    temperature: Annotated[float, Option(min=0, help="0 is greedy.")] = 0.0
    top_p: Annotated[float, Option(min=1e-9, max=1, help="Nucleus of the sampling.")] = 1.0
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
    tensor_parallel_size: Annotated[int, Option(min=1, help="vllm: number of GPUs that share the model.")] = 1
    engines: ClassVar[tuple[str, ...]] = ("auto", "hugging_face", "forward", "vllm")
    out: OutOption = Path("results/accuracy")


def _engine(options: Options) -> "str | Vllm":
    """Who completes."""
    from ..answers.vllm import Vllm

    if options.engine == "vllm":
        return Vllm(options.vllm_python, options.tensor_parallel_size)
    if options.vllm_python is not None or options.tensor_parallel_size != 1:
        raise ValueError("--vllm-python and --tensor-parallel-size are for --engine vllm")
    return "auto" if options.engine == "ray" else options.engine


def compute(options: Options) -> Computed:
    """Answer problems under several treatments and compare them.

    Writes accuracy.csv (a row per treatment), comparisons.csv (each treatment against the first), completions.jsonl (a row
    per answer, with its grades), accuracy.png, the results themselves in results/ (mi.load) and run.json; with --report
    also report.html.
    A stopped run resumes when you start it again with the same settings.
    """
    chosen_heads(options.knockout)
    for name in chosen_names(options.treatments):
        kind, at, place = name.partition("@")
        one_of(kind, dict.fromkeys(TREATMENTS), "treatment")
        if at and kind in ("none", "arm"):
            raise ValueError(f"--treatments: {name!r}: {kind} inserts nothing, so it has no place")
        chosen_place(place or options.place)
    questions = options.questions()
    from ..answers import Treatment, evaluate_accuracy
    from ..answers.evaluate import check_asked

    treatments = _treatments(options)
    names = ("n_samples", "temperature", "top_p", "max_new_tokens", "batch_size")
    asked: dict[str, Any] = {name: getattr(options, name) for name in names} | {"engine": _engine(options)}
    check_asked(treatments, **asked)
    model = options.load()
    if options.knockout is not None:
        treatments.append(
            Treatment(_mless(options, options.place), knockout=chosen_heads(options.knockout) or (), name="knockout")
        )
    found = evaluate_accuracy(
        model,
        questions,
        treatments,
        **asked,
        template=options.template,
        checkpoint=options.partial / "answers.jsonl",
        **options.common,
    )
    by_id = {each.id: each.question for each in questions}
    facts = {"settings": found.settings, "n_problems": len(questions)}
    facts["questions"] = {name: by_id[name] for name in _to_read(found)}
    return Computed({"AccuracyResults": found}, model, facts=facts)


def present(kept: Kept) -> Presented:
    """The tables, every answer, the bars, and the page."""
    from .. import views
    from ..views.report import Report
    from .endings import told_treatments

    found = kept.results["AccuracyResults"]
    compared = found.compare_all() if len(found.treatments) > 1 else None
    answers, picture = found.to_frame(), views.accuracy_bars(found)

    def page() -> Report:
        question = (
            f"How does {kept.model_name} answer {count_of(kept.run['n_problems'], 'problem')} under "
            f"{told_treatments(found)}, and does any of these differ from {found.treatments[0]}?"
        )
        made = Report("Accuracy under insertions", question=question, answer=found.headline())
        caption = "Share of right answers by treatment, with 95 % intervals over problems."
        made = made.result(found, pictures={caption: picture})
        if compared is not None:
            made = made.result(compared, heading="Against the first treatment")
        texts = kept.run["questions"]
        n, order = count_of(len(found.problem_ids), "problem"), list(texts)
        flips = f"{len(_flipped(found))} of {n} are right under one treatment and wrong under another."
        made = made.heading("Answers, problems that change first").sentence(flips)
        shown = answers[answers["problem"].isin(order) & (answers["sample"] == answers["sample"].min())]
        shown = shown.sort_values("problem", key=lambda names: names.map(order.index), kind="stable")
        shown = shown.assign(completion=shown["completion"].str[-400:], gold=shown.get("gold"))
        made = made.table(shown, "Answers as they came (their last 400 characters).", columns=_ANSWERED)
        return made.sentence(*(f"{name}: {text}" for name, text in texts.items()))

    files = {
        "accuracy.csv": found.table(),
        **({} if compared is None else {"comparisons.csv": compared.to_frame()}),
        "completions.jsonl": answers,
        "accuracy.png": picture,
    }
    return Presented(files, page)


_ANSWERED = {"problem": "", "strict": "right", "treatment": "", "completion": "answer", "gold": "key"}


def _flipped(found: "AccuracyResults") -> list[str]:
    """Problems that are right (most samples) under one treatment and wrong under another, in their order."""
    right = found.share_right() > 0.5
    moved = right.any(1) & (found.share_right() <= 0.5).any(1)  # NaN, not run, is neither
    return [problem for problem, changed in zip(found.problem_ids, moved, strict=True) if changed]


def _to_read(found: "AccuracyResults") -> list[str]:
    """The problems whose answers the page shows: those that change first, then the first ones."""
    changed = _flipped(found)[:FLIPPED]
    others = [problem for problem in found.problem_ids if problem not in changed]
    return [*changed, *others[: max(0, N_READ - len(changed))]]


def _treatments(options: Options) -> "list[Treatment]":
    """Those asked for by name."""
    from ..answers import Treatment
    from ..mechanism import ARM
    from ..prompts.insertions import Insertion

    def made(name: str) -> dict[str, Any]:
        kind, _, place = name.partition("@")
        n, seed, where = options.n_tokens, options.seed, place or options.place
        match kind:
            case "none":
                return {}
            case "arm":
                return {"arm": ARM(options.arm_c, options.arm_p1, reading=options.arm_reading, seed=seed)}
            case "mless":
                return {"insertion": _mless(options, where)}
            case "mful":
                return {"insertion": Insertion.meaningful(options.word, n, **chosen_place(where))}
        return {"insertion": Insertion.random_sentence(n, seed=seed, **chosen_place(where))}

    return [Treatment(name=name, **made(name)) for name in chosen_names(options.treatments)]


def _mless(options: Options, place: str) -> "Insertion":
    return chosen_insertion("meaningless", options.unit, n_tokens=options.n_tokens, seed=options.seed, place=place)


app = program("accuracy", compute, present)
