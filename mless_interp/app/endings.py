"""What a run found, in one sentence: the first thing of its page. Numbers with their intervals, heads by name."""

from ..answers import AccuracyResults
from ..answers.comparisons import Comparison, compare_answers
from ..core.arguments import count_of, listed
from ..core.heads import Head
from ..runtime.results import limits_of
from ..runtime.text_safety import short_name
from ..scores import HeadScores
from ..statistics import defined_mean


def model_name(name: str) -> str:
    """A model as people write it: the paper's models by their titles, one from a folder by the folder's name.

    >>> model_name("qwen2.5-math-7b"), model_name("results/model"), model_name("Qwen/Qwen2.5-7B")
    ('Qwen2.5-Math-7B', 'results/model', 'Qwen/Qwen2.5-7B')
    """
    from ..paper.figures import title_of

    title = title_of(name)
    return short_name(name) if title == name else title


def told_heads(found: HeadScores, show: int) -> list[Head]:
    """The heads that profiles name and draw: the most collapsed and, if more than one may be, the one that reads the span
    most; those that were asked for, where they are no more."""
    if len(found.heads) <= show:
        return list(found.heads)
    metric = "collapse_relative" if "collapse_relative" in found.metrics else found.metrics[0]
    drawn = list(found.top(metric, show)["label"])
    if "span_mass" in found.metrics and show > 1:
        reader = found.top("span_mass", 1)["label"].iloc[0]
        drawn = drawn if reader in drawn else [*drawn[:-1], reader]
    return [Head.parse(label) for label in drawn]


def told_treatments(found: AccuracyResults) -> str:
    """The treatments of `AccuracyResults` by name, with what each does where its name does not say."""
    told = []
    for name in found.treatments:
        made = found.settings.get("treatments", {}).get(name) or {}
        parts = []
        if insertion := made.get("insertion"):
            what = repr(insertion["unit"]) if insertion.get("unit") else insertion["kind"].replace("_", " ")
            parts.append(f"{count_of(insertion['n_tokens'], 'token')} inserted: {what}")
        if made.get("arm"):
            parts.append("the paper's ARM, which moves activations")
        if made.get("knockout"):
            parts.append(f"{listed(made['knockout'])} cut off from it")
        told.append(name + (f" ({'; '.join(parts)})" if parts else ""))
    return ", ".join(told)


def of_cut_off(found: AccuracyResults) -> str:
    """Of answers without an insertion, with it, and with heads cut off from it, the named ones first, then random sets:
    whether they come back, and where the named set lies among the random ones."""
    table = found.table().set_index("treatment")
    base, inserted, *cut = found.treatments
    share = {name: f"{100 * table.loc[name, 'accuracy']:.1f} %" for name in found.treatments}
    told = (
        f"Of {count_of(int(table['n'].iloc[0]), 'other problem')} {share[base]} are answered right without the insertion and "
        f"{share[inserted]} with it"
    )
    if not cut:
        return f"{told}; no head that reads is named, so none is cut off."
    named, *random = cut
    made = found.compare(inserted, named)
    heads = listed(found.settings["treatments"][named]["knockout"])
    right = 100 * table.loc[[base, inserted, named], "accuracy"].to_numpy()
    points = (
        f" {right[2] - right[1]:.1f} of the {right[0] - right[1]:.1f} percentage points lost"
        if right[0] > right[1]
        else ""
    )
    back = f"this recovers{points or ' answers'}" if _more(made) else "that answers come back is not shown"
    told += f"; with {heads} cut off from it {share[named]} are: {back} (p = {made.p:.2g})."
    if not random:
        return f"{told} There is no other set of the same layers and size."
    return f"{told} {_among(found, named, random)}"


def _more(made: Comparison) -> bool:
    return bool(made.p < made.alpha and len(made.gained) > len(made.lost))


def _among(found: AccuracyResults, named: str, random: list[str]) -> str:
    """Where the answers with the named set cut off lie among those with random sets: the sets' range, how many of them do
    as well, and the difference from their mean, its interval over problems (for these sets)."""
    shares = found.share_right()
    at = [found.treatments.index(name) for name in (named, *random)]
    how = {"ids": found.problem_ids, "groups": found.groups, "seed": found.seed, "confidence": found.confidence}
    names = ("random sets", named)
    made = compare_answers(shares[:, at[1:]], shares[:, at[:1]], names=names, grader="strict", **how)
    own, *others = 100 * defined_mean(found.by_group(shares[:, at]), axis=0)
    told = f"{others[0]:.1f} %"
    if len(random) > 1:
        as_well = sum(other >= own for other in others)
        told = f"{min(others):.1f} % to {max(others):.1f} %, {as_well or 'none'} of the {len(random)} recover at least as many"
    limits = limits_of(made.difference.low, made.difference.high, "+.1f", scale=100)
    return (
        f"With {'a random set' if len(random) == 1 else f'{len(random)} random sets'} of the same layers and size cut off "
        f"likewise: {told}; the named set is {'' if _more(made) else 'not '}shown to do better "
        f"({100 * float(made.difference.estimate):+.1f} points{limits} from {'it' if len(random) == 1 else 'their mean'}, p = "
        f"{made.p:.2g})."
    )
