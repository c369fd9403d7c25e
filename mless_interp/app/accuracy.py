"""`mless-interp accuracy`: does an insertion change the answers; treatments compared on the same problems."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..core.arguments import one_of
from .command_line import LIMITS, Asking, chosen_names, chosen_place, option
from .run_folder import Computed, Kept, Presented, program

if TYPE_CHECKING:
    from ..answers import Treatment

TREATMENTS = "none mless mful random_sentence arm".split()
OF_TREATMENTS = {
    "unit": "mless",
    "word": "mful",
    "n_tokens place": "mless mful random_sentence",
    "arm_c arm_p1 arm_reading": "arm",
}
"""Options, and the treatments for which they are."""


@dataclass(frozen=True, kw_only=True)
class Options(Asking):
    backend: str = option(
        "bridge", "bridge or nnsight (with a cache), hooked_transformer (much slower), auto.", of="backends"
    )
    limit: int = LIMITS["accuracy"]
    treatments: str = option(
        "none,mless,mful,random_sentence,arm",
        "Any of these; each is compared with the first. A place follows an @: mless@before-answer.",
    )
    unit: str = option(" /", "The meaningless unit of mless, with its space.")
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
    engine: Literal["auto", "hugging_face", "forward", "vllm", "processes", "ray"] = option(  # type: ignore[assignment]
        "auto", "Who writes answers; vllm: insertions only; processes, ray: hugging_face on several workers."
    )
    vllm_python: str | None = option(None, "vllm: its environment's interpreter. [default: $MLESS_VLLM_PYTHON]")
    tensor_parallel_size: int = option(1, "vllm: number of GPUs that share the model.", min=1)
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
    kinds = {name.partition("@")[0] for name in names} | ({"mless"} if knocked_out is not None else set())
    for only, used in OF_TREATMENTS.items():
        if not kinds & {*used.split()}:
            options.only_defaults(only, f"no treatment is {' or '.join(used.split())}")
    if not options.temperature:
        options.only_defaults("top_p", "without --temperature nothing is sampled")
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
    if knocked_out is not None:
        treatments.append(replace(_treatment(options, "mless"), knockout=knocked_out, name="knockout"))
    how = options.chosen("n_samples", "temperature", "top_p", "max_new_tokens", "batch_size") | {"engine": engine}
    check_asked(treatments, **how)
    how |= {"template": options.template, "checkpoint": options.partial / "answers.jsonl", **options.common}
    model = options.load(*(each.insertion for each in treatments if each.insertion is not None))
    found = evaluate_accuracy(model, questions, treatments, **how)
    return Computed({"AccuracyResults": found}, model, facts={"n_problems": len(questions)})


def _treatment(options: Options, name: str) -> "Treatment":
    from ..answers import Treatment
    from ..mechanism import ARM
    from ..prompts.insertions import Insertion

    kind, _, place = name.partition("@")
    if kind == "none":
        return Treatment(name=name)
    if kind == "arm":
        arm = ARM(options.arm_c, options.arm_p1, reading=options.arm_reading, seed=options.seed)
        return Treatment(arm=arm, name=name)
    named, unit = {"mless": ("meaningless", options.unit), "mful": ("meaningful", options.word)}.get(kind, (kind, None))
    how = options.chosen("n_tokens", "seed") | chosen_place(place or options.place)
    return Treatment(Insertion.named(named, unit=unit, **how), name=name)


def present(kept: Kept) -> Presented:
    from .. import views

    found = kept.results["AccuracyResults"]
    files = {"accuracy.csv": found.table(), "completions.jsonl": found.to_frame()}
    files["accuracy.png"] = picture = views.accuracy_bars(found)
    if len(found.treatments) > 1:
        files["comparisons.csv"] = found.compare_all().to_frame()
    question = f"Does any of {', '.join(found.treatments)} change the answers?"
    page = kept.page("Accuracy under insertions", question, found)
    caption = "Share of right answers by treatment, with 95 % intervals over problems."
    return Presented(files, lambda: page.result(found, pictures={caption: picture}))


app = program("accuracy", compute, present)
