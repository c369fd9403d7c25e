"""`mless-interp mechanism`: do inserted tokens scale what attention writes or add to it, and what do MLPs make of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Option

from ..core.arguments import count_of
from .command_line import Inserting, LayersOption, OutcomeOption, OutOption, chosen_heads, contrasts
from .run_folder import Computed, Kept, Presented, program, shown_attention

CONTRASTS = ("content", "held")


@dataclass(frozen=True, kw_only=True)
class Options(Inserting):
    """What can be asked."""

    layers: LayersOption = None
    layer: Annotated[
        int, Option(min=0, help="The layer of MLP and mediation, zero-based (the paper speaks of the first).")
    ] = 0
    contrast: Annotated[
        Literal["content", "held"],
        Option(help=f"What is drawn: {contrasts(*CONTRASTS)}. For the MLP: content."),
    ] = "content"
    control: Annotated[
        bool, Option("--control/--no-control", help="Compare lambda with random words of the same length.")
    ] = True
    direction: Annotated[
        Literal["denoising", "noising"],
        Option(help="Mediation: noising (add the parts without the span) or denoising (take them away)."),
    ] = "noising"
    outcome: OutcomeOption = "answer_logprob"
    c: Annotated[float, Option(min=1e-9, help="Near zero: |a| < 1.4826 MAD c. There is no rule for c; vary it.")] = 0.13
    out: OutOption = Path("results/mechanism")


def compute(options: Options) -> Computed:
    """Measure the mechanism on a model: attention as lambda z + Sigma, MLP activations, scale against bias.

    Writes heads.csv and heads_total.csv (a row per head), layers.csv, activations.csv (a row per token class and metric),
    claims.csv (the paper's three), mediation.csv, decomposition.parquet (a row per problem, head and metric), all with
    intervals; lambda.png, lambda_map.png, shares.png, layers.png, activations.png, near_zero.png, mediation.png; the results
    themselves in results/ (mi.load) and run.json; with --report also report.html.
    A stopped run resumes when you start it again with the same settings.
    """
    chosen_heads(None, options.layers)
    layer, contrast, questions = options.layer, options.contrast, options.questions()
    from ..core.heads import Head
    from ..mechanism import activation_shift, decompose_attention, mediate

    model, (pairs,) = options.begin(questions)
    heads = chosen_heads(None, options.layers, (model.info.n_layers, model.info.n_heads))
    common = {"layer": layer, "c": options.c, **options.common}
    how: dict[str, Any] = {"contrast": contrast, "direction": options.direction, "outcome": options.outcome}
    mediated = mediate(model, pairs, checkpoint=options.partial / "mediation.jsonl", **how, **common)
    shift = activation_shift(model, pairs, checkpoint=options.partial / "activations.jsonl", **common)
    controlled = options.control and pairs[0].insertion.kind != "random_sentence"
    parts = decompose_attention(
        model,
        pairs,
        heads=heads,
        contrasts=(contrast, "total", *(other for other in CONTRASTS if other != contrast)),
        control="random_sentence" if controlled else None,
        checkpoint=options.partial / "decomposition.jsonl",
        **options.common,
    )
    shown = {}
    if options.attention == "eager":
        least = [Head.parse(label) for label in parts.table().nsmallest(3, "lam")["label"]]
        shown["attention"] = shown_attention(model, pairs[:1], least)
    everything = (mediated, parts, shift)
    settings = {"attention": parts.settings, "activations": shift.settings, "mediation": mediated.settings}
    facts = {"settings": settings, "n_problems": len(pairs)}
    return Computed({type(result).__name__: result for result in everything}, model, pairs, shown, facts)


MEDIATED = (
    "Scale only, bias only, both: medians over problems with 95 % intervals. Filled: most problems move that way (sign test, "
    "corrected p < 0.05)."
)


def present(kept: Kept) -> Presented:
    """Six tables, seven pictures, and the page."""
    from .. import views
    from ..views.report import Report

    parts, shift, mediated = (kept.results[name] for name in ("AttentionDecomposition", "ActivationShift", "Mediation"))
    layer = kept.options["layer"]
    drawn = layer if layer in parts.layers else parts.layers[0]
    pictures = {
        "lambda.png": views.lambda_heads(parts, layer=drawn),
        "lambda_map.png": views.lambda_map(parts),
        "shares.png": views.shares(parts, layer=drawn),
        "layers.png": views.affine_layers(parts),
        "activations.png": views.activation_histograms(shift),
        "near_zero.png": views.near_zero(shift),
        "mediation.png": views.mediation(mediated),
    }

    def page() -> Report:
        question = (
            f"Does {parts.settings['insertion']} act on {kept.model_name} by scaling what attention "
            f"wrote, or by adding to it, over {count_of(kept.run['n_problems'], 'problem')}?"
        )
        made = Report("The mechanism", question=question, answer=mediated.headline())
        first = {MEDIATED: pictures["mediation.png"]}
        made = made.result(mediated, heading="Scale or bias", pictures=first)
        lambdas = {
            "Lambda per head, its null, and the slope of the best fit, another number.": pictures["lambda.png"],
            "Shares of the heads in the residual change, by part.": pictures["shares.png"],
            "What the affine form leaves open in each layer.": pictures["layers.png"],
        }
        made = made.result(parts, heading="Attention", pictures=lambdas)
        moved = {
            "MLP activations before and after.": pictures["activations.png"],
            "Near zero by token class.": pictures["near_zero.png"],
        }
        made = made.result(shift, heading="Activations", pictures=moved)
        return kept.view(made, heading="Heads with the smallest lambda")

    tables = {
        "heads.csv": parts.table(),
        "heads_total.csv": parts.table("total"),
        "layers.csv": parts.layer_table(),
        "activations.csv": shift.by_class(),
        "claims.csv": shift.claims(),
        "mediation.csv": mediated.table(),
    }
    return Presented({**tables, **pictures, "decomposition.parquet": parts.to_frame()}, page)


app = program("mechanism", compute, present)
