"""`reproduce_figure`: the profiles behind one of the paper's figures on a model, and what its claims come to there."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.arguments import checked
from ..core.heads import Head
from ..metrics.patterns import RowChoice
from ..models.base import Model
from ..models.load import load_model, untrained_twin
from ..prompts.insertions import Insertion
from ..prompts.pairs import make_pairs
from ..prompts.problems import Problem
from ..scores import AttentionProfile, attention_profile
from .claims import CLAIMS, check_claims
from .figures import MODELS, Figure, figure_named


@checked
def reproduce_figure(
    model: Model,
    figure: str | Figure,
    problems: Iterable[Problem],
    *,
    heads: Iterable[Head | str] | None = None,
    n_tokens: int = 55,
    template: str = "raw",
    rows: RowChoice = "shared",
    draws: int = 3,
    repeats: int = 20,
    twins: int = 0,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    seed: int = 0,
) -> dict[str, Any]:
    """Measure what one of the paper's figures shows on a model, and check its claims.

    Parameters
    ----------
    figure : the paper's number ("13") or key ("000").
    heads : those to show; default the figure's, of its first model.
    draws : draws of random words per problem, averaged; `repeats` : other tokens repeated as often, among which the
        insertion's has its rank (20 or more); each only where the figure's claims need them.
    twins : untrained twins of the model that are checked alike.
    checkpoint : a folder that receives each finished problem of each profile.

    Returns `AttentionProfile`s by the name of their series ("Mless", "Mful", "random words"), and the `ClaimChecks` under
    "claims".
    """
    shown = figure_named(figure) if isinstance(figure, str) else figure
    chosen = shown.heads(shown.models[0]) if heads is None else model.info.chosen(heads, what="show")
    questions, filler = tuple(problems), Insertion.meaningless(n_tokens=n_tokens)

    def measured(of: Model, folder: Path | None) -> dict[str, Any]:
        def profile(name: str, filler: Insertion, *conditions: str) -> AttentionProfile:
            return attention_profile(
                of,
                make_pairs(of, questions, filler, template=template),
                heads=chosen,
                conditions=conditions or ("base", "inserted"),
                rows=rows,
                checkpoint=None if folder is None else folder / f"{name}.jsonl",
                progress=progress,
                seed=seed,
            )

        made, random, others = {"Mless": profile("mless", filler, "base", "inserted", "gap")}, [], []
        if shown.key in CLAIMS["low_in_span"].figures:
            tokens = filler.other_repeats(of.tokenizer, repeats, seed=seed)
            others = [profile(f"repeat-{at}", each, "inserted") for at, each in enumerate(tokens)]
        if shown.kind in ("against_random_sentence", "bars_and_head"):
            words = [Insertion.random_sentence(n_tokens, seed=seed, draw=draw) for draw in range(draws)]
            random = [profile(f"random-{at}", each) for at, each in enumerate(words)]
        if shown.kind == "against_random_sentence":
            made["random words"] = random[0]
        if shown.kind == "bars_and_head":
            made["Mful"] = profile("mful", Insertion.meaningful(n_tokens=n_tokens))
        claims = check_claims(
            made["Mless"],
            heads=[head for head in chosen if head.layer == 0],
            random_sentence=random,
            meaningful=made.get("Mful"),
            repeats=others,
            claims=[claim.key for claim in CLAIMS.values() if shown.key in claim.figures],
            seed=seed,
        )
        return made | {"claims": claims}

    folder = None if checkpoint is None else Path(checkpoint)
    made = measured(model, folder)
    of_twins = [
        measured(untrained_twin(model, at), None if folder is None else folder / f"twin-{at}")["claims"]
        for at in range(twins)
    ]
    return made | {"claims": replace(made["claims"], twins=tuple(of_twins))}


def load_panel_model(key: str, *, tiny: bool = False, directory: str | None = None, **options: Any) -> Model:
    """A model of the figures: from `directory` or the hub, with `load_model`'s options, or its small random stand-in
    (`tiny`, which takes `backend` and `attn_implementation` only).

    Raises `ValueError` for an unknown key.
    """
    if key not in MODELS:
        raise ValueError(f"no model {key!r} in the figures; there are {', '.join(MODELS)}")
    model = MODELS[key]
    if not tiny:
        return load_model(directory or model.hub_id, **options)
    from ..ground_truth.stand_ins import stand_in

    return stand_in(
        model.architecture,
        name=model.title,
        n_heads=model.n_heads,
        n_key_value_heads=model.n_key_value_heads,
        **options,
    )


def stand_in_problems(n: int, *, seed: int = 0) -> tuple[Problem, ...]:
    """Problems that the tiny stand-ins can read."""
    from ..ground_truth.stand_ins import stand_in_problems as draw

    return draw(n, seed=seed)
