"""`mless-interp accuracy`: does an insertion change the answers; treatments compared on the same problems."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from ..core.arguments import count_of, one_of
from .command_line import Asking, Backend, chosen_insertion, chosen_names, chosen_place, option
from .run_folder import Computed, Kept, Presented, Report, program

if TYPE_CHECKING:
    from ..answers import AccuracyResults, Treatment

TREATMENTS = "none mless mful random_sentence arm".split()
N_READ = 12
"""Problems whose answers the page shows, at most."""


@dataclass(frozen=True, kw_only=True)
class Options(Asking):
    backend: Backend = option(
        "bridge", "bridge or nnsight (answers with a cache), hooked_transformer (much slower), auto."
    )
    limit: int = 500
    treatments: str = option(
        "none,mless,mful,random_sentence,arm",
        "Any of these; others are compared with the first. A place follows an @: mless@before-answer.",
    )
    unit: str = option(" /", "The meaningless unit of mless.")
    word: str = option("he", "The repeated word of mful.")
    n_tokens: int = option(55, "Length of the insertion in tokens.", min=1)
    place: str = "before-question"
    knockout: str | None = option(None, "Adds a treatment: heads that cannot see mless' tokens, as 0:13,0:21.")
    arm_c: float = option(0.13, "ARM's c; the paper tunes it per model and benchmark.", min=1e-9)
    arm_p1: float = option(99.5, "ARM's p1, a percentile.", min=0, max=100)
    arm_reading: Literal["paper_add", "code_replace"] = option("paper_add", "ARM as in the paper, or as in its code.")
    n_samples: int = option(1, "Answers to each problem; above 1 with a temperature.", min=1)
    temperature: float = option(0.0, "0 is greedy.", min=0)
    top_p: float = option(1.0, "Nucleus of the sampling.", min=1e-9, max=1)
    max_new_tokens: int | None = None
    batch_size: int | None = option(None, "Prompts at once. [default: sized to memory]", min=1)
    engine: str = option(
        "auto",
        "auto, hugging_face, forward, vllm (insertions only), or processes, ray: hugging_face on several workers.",
    )
    vllm_python: str | None = option(None, "vllm: its environment's interpreter. [default: $MLESS_VLLM_PYTHON]")
    tensor_parallel_size: int = option(1, "vllm: number of GPUs that share the model.", min=1)
    engines: ClassVar[tuple[str, ...]] = ("auto", "hugging_face", "forward", "vllm")
    out: Path = Path("results/accuracy")


def compute(options: Options) -> Computed:
    """Answer problems under several treatments and compare them.

    Writes accuracy.csv (a row per treatment), comparisons.csv (each treatment against the first), completions.jsonl (a row
    per answer, with its grades), accuracy.png.
    """
    knocked_out, names = options.heads_of(), chosen_names(options.treatments)
    for name in names:
        kind, at, place = name.partition("@")
        one_of(kind, TREATMENTS, "treatment")
        if at and kind in ("none", "arm"):
            raise ValueError(f"--treatments: {name!r}: {kind} inserts nothing, so it has no place")
        chosen_place(place or options.place)
    questions = options.questions()
    from ..answers import evaluate_accuracy
    from ..answers.evaluate import check_asked
    from ..answers.vllm import Vllm

    engine: object = "auto" if options.engine in ("processes", "ray") else options.engine
    if engine == "vllm":
        engine = Vllm(options.vllm_python, options.tensor_parallel_size)
    elif options.vllm_python is not None or options.tensor_parallel_size != 1:
        raise ValueError("--vllm-python and --tensor-parallel-size are for --engine vllm")
    treatments = [_treatment(options, name) for name in names]
    asked = options.chosen("n_samples", "temperature", "top_p", "max_new_tokens", "batch_size") | {"engine": engine}
    check_asked(treatments, **asked)
    model = options.load(*(each.insertion for each in treatments if each.insertion is not None))
    if knocked_out is not None:
        treatments.append(replace(_treatment(options, "mless"), knockout=knocked_out, name="knockout"))
    how = {"template": options.template, "checkpoint": options.partial / "answers.jsonl", **options.common}
    found = evaluate_accuracy(model, questions, treatments, **asked, **how)
    by_id = {each.id: each.question for each in questions}
    first = list(dict.fromkeys([*_flipped(found), *found.problem_ids]))  # those that change, then the others
    facts = {"n_problems": len(questions), "questions": {name: by_id[name] for name in first[:N_READ]}}
    return Computed({"AccuracyResults": found}, model, facts=facts)


def _treatment(options: Options, name: str) -> "Treatment":
    """Return one of those asked for by name."""
    from ..answers import Treatment
    from ..mechanism import ARM

    kind, _, place = name.partition("@")
    if kind == "none":
        return Treatment(name=name)
    if kind == "arm":
        arm = ARM(options.arm_c, options.arm_p1, reading=options.arm_reading, seed=options.seed)
        return Treatment(arm=arm, name=name)
    named, unit = {"mless": ("meaningless", options.unit), "mful": ("meaningful", options.word)}.get(kind, (kind, None))
    where = place or options.place
    return Treatment(
        chosen_insertion(named, unit, n_tokens=options.n_tokens, seed=options.seed, place=where), name=name
    )


def _flipped(found: "AccuracyResults") -> list[str]:
    """Return problems that are right (most samples) under one treatment and wrong under another, in their order."""
    right = found.share_right() > 0.5
    moved = right.any(1) & (found.share_right() <= 0.5).any(1)  # NaN, not run, is neither
    return [problem for problem, changed in zip(found.problem_ids, moved, strict=True) if changed]


def present(kept: Kept) -> Presented:
    """Make the tables, every answer, the bars, and the page."""
    from .. import views

    found = kept.results["AccuracyResults"]
    compared = found.compare_all() if len(found.treatments) > 1 else None
    answers, picture = found.to_frame(), views.accuracy_bars(found)

    def page() -> Report:
        question = f"Does any of {', '.join(found.treatments)} change the answers?"
        made = kept.page("Accuracy under insertions", question, found)
        caption = "Share of right answers by treatment, with 95 % intervals over problems."
        made = made.result(found, pictures={caption: picture})
        if compared is not None:
            made = made.result(compared, heading="Against the first treatment")
        texts, n = kept.run["questions"], count_of(len(found.problem_ids), "problem")
        flips = f"{len(_flipped(found))} of {n} are right under one treatment and wrong under another."
        shown = answers[answers["problem"].isin(texts) & (answers["sample"] == answers["sample"].min())]
        shown = shown.sort_values("problem", key=lambda names: names.map(list(texts).index), kind="stable")
        shown = shown.assign(completion=shown["completion"].str[-400:], gold=shown.get("gold"))
        columns = {"problem": "", "strict": "right", "treatment": "", "completion": "answer", "gold": "key"}
        made = made.heading("Answers, problems that change first").sentence(flips)
        made = made.table(shown, "Answers as they came (their last 400 characters).", columns=columns)
        return made.sentence(*(f"{name}: {text}" for name, text in texts.items()))

    files = {"accuracy.csv": found.table(), "completions.jsonl": answers, "accuracy.png": picture}
    if compared is not None:
        files["comparisons.csv"] = compared.to_frame()
    return Presented(files, page)


app = program("accuracy", compute, present)
