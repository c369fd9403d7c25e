"""`mless-interp mechanism`: do inserted tokens scale what attention writes or add to it, and what do MLPs make of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..core.arguments import Arguments
from ..prompts.conditions import CONTRASTS, as_words
from .command_line import Inserting, option
from .run_folder import Computed, Kept, Presented, Report, program, shown_attention

DRAWN = ("content", "held")


@dataclass(frozen=True, kw_only=True)
class Options(Inserting):
    layers: str | None = None
    layer: int = option(0, "The layer of MLP and mediation, zero-based (the paper speaks of the first).", min=0)
    contrast: Literal["content", "held"] = option(
        "content",
        f"What is drawn: {as_words({name: CONTRASTS[name] for name in DRAWN})}. Of MLP and mediation: content.",
    )
    control: bool = option(True, "Compare lambda with random words of the same length.", "--control/--no-control")
    outcome: str = "answer_logprob"
    c: float = option(0.13, "Near zero: |a| < 1.4826 MAD c. There is no rule for c; vary it.", min=1e-9)
    out: Path = Path("results/mechanism")


def compute(options: Options) -> Computed:
    """Split head outputs into what the span adds (bias) and the rest, scaled; measure MLP activations.

    Writes heads.csv and heads_total.csv (a row per head), activations.csv (a row per token class and metric),
    claims.csv (the paper's three), mediation.csv, decomposition.parquet (a row per problem, head and metric), all with
    intervals; lambda.png, activations.png, mediation.png.
    """
    contrast, folder, questions = options.contrast, options.partial, options.questions()
    from ..mechanism import activation_shift, decompose_attention, mediate

    model, (pairs,) = options.begin(questions)
    heads = options.heads_of((model.info.n_layers, model.info.n_heads))
    common = options.chosen("layer", "c") | options.common
    mediated = mediate(model, pairs, outcome=options.outcome, checkpoint=folder / "mediation.jsonl", **common)
    shift = activation_shift(model, pairs, checkpoint=folder / "activations.jsonl", **common)
    how: Arguments = {"heads": heads, "checkpoint": folder / "decomposition.jsonl"}
    if options.control and pairs[0].insertion.kind != "random_sentence":
        how["n_control_draws"] = 5
    contrasts = tuple(dict.fromkeys((contrast, "total", *DRAWN)))
    parts = decompose_attention(model, pairs, contrasts=contrasts, **how, **options.common)
    shown = shown_attention(model, pairs[:1], parts.table().nsmallest(3, "lam")["label"].tolist())
    results = {"Mediation": mediated, "AttentionDecomposition": parts, "ActivationShift": shift}
    return Computed(results, model, pairs, shown, {"settings": {name: made.settings for name, made in results.items()}})


def present(kept: Kept) -> Presented:
    from .. import views

    parts, shift, mediated = (kept.results[name] for name in ("AttentionDecomposition", "ActivationShift", "Mediation"))
    pictures = {
        "lambda.png": views.forest(parts, value="lam", heads=parts.table().nsmallest(10, "lam")["label"].tolist()),
        "activations.png": views.activation_histograms(shift),
        "mediation.png": mediated.plot(),
    }
    tables = {
        "heads.csv": parts.table(),
        "heads_total.csv": parts.table("total"),
        "activations.csv": shift.by_class(),
        "claims.csv": shift.table(),
        "mediation.csv": mediated.table(),
        "decomposition.parquet": parts.to_frame(),
    }

    def page() -> Report:
        smallest = {
            "Lambda of the heads that read the span most; uniform attention's is in the table.": pictures["lambda.png"]
        }
        effects = {"Medians of the outcome with 95 % intervals.": pictures["mediation.png"]}
        before = {"MLP activations before and after.": pictures["activations.png"]}
        question = "Does the insertion act by scaling what attention wrote, or by adding to it?"
        made = kept.page("The mechanism", question, mediated)
        made = made.result(mediated, heading="Scale or bias", pictures=effects)
        made = made.heading("Attention").answered(parts.headline()).result(parts, heading=None, pictures=smallest)
        made = made.heading("Activations").answered(shift.headline()).result(shift, heading=None, pictures=before)
        return kept.view(made, heading="Heads with the smallest lambda")

    return Presented(tables | pictures, page)


app = program("mechanism", compute, present)
