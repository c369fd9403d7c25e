"""How do inserted tokens act on attention and on MLP activations: by scaling what was there, or by adding something?

Splits every head's output into lambda z + Sigma (exact in the first layer, with a residual in deeper ones), compares the
gate activations of one MLP with and without the insertion, and gives the layer's heads only the scale or only the bias.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

import mless_interp as mi

CONTRASTS = ("content", "held")


@dataclass(frozen=True, kw_only=True)
class Options(mi.command_line.Inserting):
    """What can be asked of this script."""

    attention: mi.command_line.AttentionOption = "eager"
    layers: mi.command_line.LayersOption = None
    layer: Annotated[
        int, Option(help="The layer of MLP and mediation, zero-based (the paper speaks of the first).")
    ] = 0
    contrast: Annotated[
        str, Option(help=f"What is drawn and said: {mi.command_line.contrasts(*CONTRASTS)}. For the MLP: content.")
    ] = "content"
    control: Annotated[
        bool, Option("--control/--no-control", help="Compare lambda with random words of the same length.")
    ] = True
    direction: Annotated[
        str, Option(help="Mediation: noising (add the parts without the span) or denoising (take them away).")
    ] = "noising"
    outcome: mi.command_line.OutcomeOption = "answer_logprob"
    c: Annotated[float, Option(help="Near zero: |a| < 1.4826 MAD c. There is no rule for c; vary it.")] = 0.13
    out: mi.command_line.OutOption = Path("results/mechanism")


def main(options: Options) -> None:
    """Measure the mechanism on a model: attention as lambda z + Sigma, MLP activations, scale against bias.

    Writes heads.csv and heads_total.csv (a row per head), layers.csv, activations.csv (a row per token class and metric),
    claims.csv (the paper's three), mediation.csv, decomposition.parquet (a row per problem, head and metric), all with
    intervals; lambda.png, lambda_map.png, shares.png, layers.png, activations.png, near_zero.png, mediation.png; the results
    themselves in results/ (mi.load) and run.json; with --report also report.html. A run that is stopped goes on from where it
    was when it is started again with the same settings.
    """
    layer, contrast = options.layer, options.contrast
    if contrast not in CONTRASTS:
        raise ValueError(f"unknown contrast {contrast!r}; choose content or held (heads_total.csv has the total one)")
    model, pairs = options.begin(attn_implementation=options.attention)
    heads = mi.chosen_heads(None, options.layers, n_layers=model.info.n_layers, n_heads=model.info.n_heads)
    common = {"progress": options.progress, "seed": options.seed}
    mediated = mi.mediate(
        model,
        pairs,
        layer=layer,
        contrast=contrast,
        direction=options.direction,
        outcome=options.outcome,
        c=options.c,
        checkpoint=options.partial / "mediation.jsonl",
        **common,
    )
    shift = mi.activation_shift(
        model, pairs, layer=layer, c=options.c, checkpoint=options.partial / "activations.jsonl", **common
    )
    controlled = options.control and pairs[0].insertion.kind != "random_sentence"
    parts = mi.decompose_attention(
        model,
        pairs,
        heads=heads,
        contrasts=(contrast, "total", *(other for other in CONTRASTS if other != contrast)),
        control="random_sentence" if controlled else None,
        checkpoint=options.partial / "decomposition.jsonl",
        **common,
    )
    drawn = layer if layer in parts.layers else parts.layers[0]
    pictures = {
        "lambda.png": mi.views.lambda_heads(parts, layer=drawn),
        "lambda_map.png": mi.views.lambda_map(parts),
        "shares.png": mi.views.shares(parts, layer=drawn),
        "layers.png": mi.views.affine_layers(parts),
        "activations.png": mi.views.activation_histograms(shift),
        "near_zero.png": mi.views.near_zero(shift),
        "mediation.png": mi.views.mediation(mediated),
    }

    def page() -> mi.Report:
        question = (
            f"Does {pairs[0].insertion.label} act on {model.info.name} by scaling what attention wrote, or by adding to it, "
            f"over {len(pairs)} problems?"
        )
        made = mi.Report("The mechanism", question=question).result(parts, heading="Attention")
        made = made.figure(
            pictures["lambda.png"], "Lambda per head, its null, and the slope of the best fit, another number."
        )
        made = made.figure(pictures["shares.png"], "Shares of the heads in the residual change, by part.")
        made = made.figure(pictures["layers.png"], "What the affine form leaves open in each layer.")
        made = made.result(shift, heading="Activations")
        made = made.figure(pictures["activations.png"], "Gate activations before and after.")
        made = made.figure(pictures["near_zero.png"], "Near zero by token class.")
        made = made.result(mediated, heading="Scale or bias")
        made = made.figure(pictures["mediation.png"], "Scale only, bias only, both.")
        made = made.heading("What the model reads").prompt(model, pairs[0])
        if options.attention != "eager":
            return made
        least = map(mi.Head.parse, parts.summary().nsmallest(3, "lam")["label"])
        return made.heading("Heads with the smallest lambda").view(mi.views.attention(model, pairs[0], least))

    print(parts, shift, mediated, sep="\n\n", end="\n\n")
    options.save(
        {
            "heads.csv": parts.summary(),
            "heads_total.csv": parts.summary("total"),
            "layers.csv": parts.layer_table(),
            "activations.csv": shift.by_class(),
            "claims.csv": shift.claims(),
            "mediation.csv": mediated.summary(),
            **pictures,
            "decomposition.parquet": parts.to_frame(),
            "results": (parts, shift, mediated),
        },
        model=model,
        page=page,
        settings={"attention": parts.settings, "activations": shift.settings, "mediation": mediated.settings},
        conclusion=[parts.describe(), shift.describe(), mediated.describe()],
        n_problems=len(pairs),
        prompts=[pair.record() for pair in pairs],
    )


app = mi.command_line.analysis(main)

if __name__ == "__main__":
    app()
