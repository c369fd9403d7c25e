"""What a run found, in one sentence: the first thing of its page. Numbers with their intervals, heads by name."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from ..accuracy.comparisons import compare_answers
from ..arguments import count_of
from ..heads import Head
from ..locating.sentences import few_problems, smallest_words
from ..patching.parts import share_words
from ..running.results import limits_of, of_heads, with_limits
from ..running.text_safety import short_name
from ..scores.scored import OF_SINKS
from ..statistics import defined_mean

NAMED_AT_MOST = 6
"""Heads that a sentence lists; it counts the others."""


def listed(items: Iterable[Any], at_most: int = NAMED_AT_MOST) -> str:
    """Items with commas, those that are too many counted.

    >>> listed("abc", 2), listed("ab", 2)
    ('a, b and 1 more', 'a, b')
    """
    found = [str(item) for item in items]
    more = len(found) - at_most
    return ", ".join(found[:at_most]) + (f" and {more} more" if more > 0 else "")


def model_name(name: str) -> str:
    """A model as people write it: the paper's models by their titles, one from a folder by the folder's name.

    >>> model_name("qwen2.5-math-7b"), model_name("results/model"), model_name("Qwen/Qwen2.5-7B")
    ('Qwen2.5-Math-7B', 'results/model', 'Qwen/Qwen2.5-7B')
    """
    from ..paper.figures import title_of

    title = title_of(name)
    return short_name(name) if title == name else title


def _each(row: Any, estimate: str, low: str, high: str, *, percent: bool = False) -> str:
    """An estimate with its limits, from a row of a table; "of undefined size" where it is NaN."""
    value = float(row[estimate])
    if np.isnan(value):
        return "undefined"
    scale, form = (100, ".0f") if percent else (1, ".2f")
    return f"{scale * value:{form}}{' %' if percent else ''}{limits_of(row[low], row[high], form, scale=scale)}"


def of_located(found: Any) -> str:
    """Of `LocatedHeads`: which heads carry how much of what, in how many problems, and what fresh problems say."""
    s, n = found.settings, len(found.problem_ids)
    effect = found.judged.effect
    total = f"median effect {with_limits(effect.median, found.unit)}, {count_of(n, 'problem')}"
    few = few_problems(effect.n, len(found.heads), found.confidence)
    if not found.established:
        return f"No head is named: {s['insertion']} has no established effect on {s['outcome']} ({total}).{few and ' ' + few}"
    share = smallest_words(effect)
    if not found.found:
        return (
            f"None of {count_of(len(found.heads), 'head')} is shown to carry more than {share} of the effect of "
            f"{s['insertion']} on {s['outcome']} in most problems ({total}).{few and ' ' + few}"
        )
    kinds: dict[str, list[Head]] = {}
    senses = found.summary().set_index("label")["sense"]
    for head, kind in found.found.items():
        kinds.setdefault(kind + ", against it" * (senses[str(head)] == "against"), []).append(head)
    named = "; ".join(f"{listed(heads)} ({kind})" for kind, heads in kinds.items())
    sure, made = found.confirmed, found.confirmation
    if made is None:
        tested = "not yet confirmed on fresh problems"
    elif len(sure) == len(found.found):
        tested = f"confirmed on {len(made.problem_ids)} fresh ones"
    else:
        tested = f"{listed(sure) or 'none of them'} confirmed on {len(made.problem_ids)} fresh ones"
    count = len(found.found)
    return (
        f"{count} of {count_of(len(found.heads), 'head')} {'carries' if count == 1 else 'carry'} more than {share} of the "
        f"effect of {s['insertion']} on {s['outcome']} ({total}) in most problems, {tested}: {named}.{_specific(found)}"
    )


def _specific(found: Any) -> str:
    """Which of the confirmed heads do more than under random words of the same length; nothing where that was not tested."""
    sure, made = found.confirmed, found.confirmation
    table = None if made is None else made.control_table()
    if table is None or not len(sure) or table.empty or not table["exceeds_random_n"].any():
        return ""
    passed = set(table.loc[table["p_specific"] < made.judged.effect.level, "label"])
    specific = [str(head) for head in sure if str(head) in passed]
    which = "all of them" if len(specific) == len(sure) > 1 else listed(specific) or "none"
    return f" Shown to be specific to this insertion (more than under random words of the same length): {which}."


def of_sweep(found: Any) -> str:
    """Of `PatchScores`: which heads do more than the smallest effect, in how many problems, and what share."""
    s, n, m = found.settings, len(found.problem_ids), len(found.heads)
    what = f"the effect of {s.get('insertion')} on {s.get('outcome')}"
    if not found.established:
        return f"No head is tested: that most of {count_of(n, 'problem')} show {what} with one sign is not established."
    share = smallest_words(found.whole)
    table = in_order(found.summary())
    named = table[table["p_prevalence"] < found.level]

    def words(row: Any) -> str:
        return f"{row['label']} ({row['k']} of {count_of(row['n'], 'problem')}, share {share_words(row)})"

    if len(named):
        told = listed(words(row) for row in named.to_dict("records"))
        return (
            f"{len(named)} of {count_of(m, 'head')} {'does' if len(named) == 1 else 'do'} more than {share} of {what} in "
            f"most problems: {told}."
        )
    (first,) = table.head(1).to_dict("records")
    few = few_problems(found.whole.n, m, found.confidence, per_head=2)
    return (
        f"None of {count_of(m, 'head')} is shown to do more than {share} of {what} in most problems; closest is {words(first)}."
        f"{few and ' ' + few}"
    )


def in_order(table: pd.DataFrame) -> pd.DataFrame:
    """A sweep's heads as its question asks: the surest first, of equally sure ones the largest median."""
    keys = table.assign(_p=table["p_prevalence"].fillna(2.0), _size=-table["median"].abs().fillna(0.0))
    return table.loc[keys.sort_values(["_p", "_size"], kind="stable").index].reset_index(drop=True)


def told_heads(found: Any, show: int) -> list[Head]:
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


def of_scores(found: Any) -> str:
    """Of `HeadScores`: which head's attention collapses most in the span, and which head reads it most."""
    table = found.summary()

    def largest(metric: str) -> Any:
        return table.loc[table[metric].idxmax()] if metric in table and table[metric].notna().any() else None

    def untrained(metric: str, row: Any) -> str:
        """The same of the untrained twins, each one's own largest, and whether it comes up to the model's."""
        if not found.twins:
            return ""
        value = float(np.mean([np.nanmax(of_heads(twin.middle(metric), twin.heads)) for twin in found.twins]))
        least = row[f"{metric}_ci_low"] if np.isfinite(row[f"{metric}_ci_low"]) else row[metric]
        return f" (untrained twins: {100 * value:.0f} %{', so this holds without training' if value >= least else ''})"

    parts = []
    if (row := largest("collapse_relative")) is not None:
        drop = _each(row, "collapse_relative", "collapse_relative_ci_low", "collapse_relative_ci_high", percent=True)
        where = f"most inside the span in {row['label']}, by {drop} relative to uniform"
        none = f"inside the span in no head (nearest to it {row['label']}, {drop} relative to uniform)"
        told = where if row["collapse_relative"] > 0 else none
        parts.append(f"attention per token drops {told}{untrained('collapse_relative', row)}")
    if (row := largest("span_mass")) is not None:
        mass = _each(row, "span_mass", "span_mass_ci_low", "span_mass_ci_high", percent=True)
        null = row.get("span_mass_null", np.nan)
        even = "" if np.isnan(null) else f" (uniform attention: {100 * null:.0f} %)"
        parts.append(
            f"{row['label']} reads the span most, with {mass} of its attention{even}{untrained('span_mass', row)}"
        )
    metric = next((name for name in found.metrics if largest(name) is not None), None)
    if not parts and set(OF_SINKS) <= set(found.metrics):
        counts, n = found.sinks()
        many, only = int((2 * counts > n).sum()), found.heads[0] if len(counts) == 1 else None
        whom = f"{many or 'none'} of {len(counts)} heads" if only is None else only
        said = f"the span is {'not ' if only and not many else ''}an attention sink to {whom} in most problems"
        parts.append(said if n.any() else "whether the span is a sink is undefined")
    if not parts and metric is None:
        return f"Nothing is defined of the span of {found.settings.get('insertion')}."
    if not parts:
        row = largest(str(metric))
        value = _each(row, str(metric), f"{metric}_ci_low", f"{metric}_ci_high")
        parts.append(f"{str(metric).replace('_', ' ')} is largest in {row['label']}, {value}")
    of = f"{count_of(len(found.heads), 'head')}, means over {count_of(len(found.problem_ids), 'problem')}"
    return f"{found.settings.get('insertion')} ({of}): {'; '.join(parts)}."


def told_treatments(found: Any) -> str:
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


def of_study(found: Any) -> str:
    """Of `StudyResult`: which insertions have an established effect and how large, which heads carry it, what answers do."""
    contrast, outcome = found.contrasts[0], found.outcomes[0]
    table = found.effect_table().query("contrast == @contrast and outcome == @outcome")
    sure = table[table["p_holm"] < found.alpha].to_dict("records")
    have = "has" if len(sure) == 1 else "have"
    told = f"{len(sure)} of {count_of(len(table), 'insertion')} {have} an established {contrast} effect on {outcome}"
    if sure:
        sizes = (f"{row['insertion']!r} {_each(row, 'median', 'median_ci_low', 'median_ci_high')}" for row in sure)
        told += f" (median, {sure[0]['unit']}): {listed(sizes)}"
    told = " ".join([f"{told}.", *found.too_few()])
    if found.located:
        tested = any(made.confirmation is not None for made in found.located.values())
        named = {name: list(made.confirmed if tested else made.found) for name, made in found.located.items()}
        heads = [f"{listed(heads)} under {name!r}" for name, heads in named.items() if heads]
        which = "confirmed on fresh problems" if tested else "named, not confirmed"
        told += f" Heads {which}: {'; '.join(heads)}." if heads else f" No head is {which.partition(',')[0]}."
    return f"{told} {_of_answers(found.answers)}" if found.answers is not None else told


def _of_answers(found: Any) -> str:
    """Under which treatments right answers change, against the first."""
    first, table = found.summary().iloc[0], found.compare_all().summary()
    base = f"{100 * first['accuracy']:.0f} % of {int(first['n'])} without insertion"
    sure = table[(table["p_holm"] < 1 - found.confidence) & (table["low"] * table["high"] > 0)]
    if not len(sure):
        return f"No change of right answers is shown ({base})."
    rows = sure.to_dict("records")
    changed = listed(f"{100 * row['accuracy_second']:.0f} % under {row['second']!r}" for row in rows)
    return f"Right answers ({base}): {changed}."


def of_accuracy(found: Any) -> str:
    """Of `AccuracyResults`: which treatment differs from the first, and by how much."""
    first = found.summary().iloc[0]
    base = f"{100 * first['accuracy']:.1f} %"
    if len(found.treatments) == 1:
        limits = limits_of(first["low"], first["high"], ".1f", scale=100)
        return (
            f"{base}{limits} of {count_of(int(first['n']), 'problem')} are answered right under {first['treatment']!r}."
        )
    table = found.compare_all().summary()
    alpha = 1 - found.confidence
    sure = table[(table["p_holm"] < alpha) & (table["low"] * table["high"] > 0)]

    def words(row: Any) -> str:
        limits = limits_of(row["low"], row["high"], "+.1f", scale=100)
        return (
            f"{row['second']!r} {100 * row['accuracy_second']:.1f} %, {100 * row['difference']:+.1f} points{limits}, p = "
            f"{row['p_holm']:.2g}" + " corrected" * (len(table) > 1)
        )

    reference = f"{first['treatment']!r} ({base} of {count_of(int(first['n']), 'problem')} right)"
    others = [repr(name) for name in table["second"] if name not in set(sure["second"])]
    if not len(sure):
        (row,) = table.loc[[table["difference"].abs().fillna(-1.0).idxmax()]].to_dict("records")
        return f"No treatment is shown to differ from {reference}; the largest difference is {words(row)}."
    rest = f"; no difference is established for {', '.join(others)}" if others else ""
    told = "; ".join(words(row) for row in sure.to_dict("records"))
    return f"{'One treatment differs' if len(sure) == 1 else f'{len(sure)} treatments differ'} from {reference}: {told}{rest}."


def of_cut_off(found: Any) -> str:
    """Of answers without an insertion, with it, and with heads cut off from it, the named ones first, then random sets:
    whether they come back, and where the named set lies among the random ones."""
    table = found.summary().set_index("treatment")
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


def _more(made: Any) -> bool:
    """Is more right under the second of two treatments?"""
    return bool(made.p < made.alpha and len(made.gained) > len(made.lost))


def _among(found: Any, named: str, random: list[str]) -> str:
    """Where the answers with the named set cut off lie among those with random sets: the sets' range, how many of them do
    as well, and the difference from their mean, its interval over problems (for these sets)."""
    shares = found.share_right()
    at = [found.treatments.index(name) for name in (named, *random)]
    made = compare_answers(
        shares[:, at[1:]],
        shares[:, at[:1]],
        names=("random sets", named),
        ids=found.problem_ids,
        groups=found.groups,
        grader="strict",
        seed=found.seed,
        confidence=found.confidence,
    )
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


def of_doses(found: Any) -> str:
    """Of `DoseResponse`: the number of tokens that moves the outcome most, and the slope of attention."""
    total = found.effects("total", together=True)
    most = int(np.nanargmax(np.abs(total.estimate)))
    low, high = float(total.low[most]), float(total.high[most])
    moved = f"{float(total.estimate[most]):+.4f} {found.unit}{limits_of(low, high)}"
    outcome, n = found.settings.get("outcome"), len(found.problem_ids)
    where = f"(interval for all {len(found.doses)} numbers of tokens together, {count_of(n, 'problem')})"
    slopes = {name: found.mean_slope(name) for name in found.log_odds}
    told = {name: f"{float(s.estimate):.2f}{limits_of(s.low, s.high, '.2f')}" for name, s in slopes.items()}
    read = f"the log odds of reading the span grow with the logarithm of the number of tokens with slope {told['inserted']}"
    if found.layer == 0 and abs(float(slopes["held"].estimate) - 1) < 1e-3:
        read += f" (at held positions {told['held']}: arithmetic for identical tokens in the first layer, no finding)"
    else:
        read += f" ({told['held']} at held positions)"
    if low * high > 0:
        return f"{outcome} moves most with {found.doses[most]} inserted tokens, by {moved} {where}; {read}."
    return (
        f"No number of inserted tokens is shown to move {outcome}: the largest median change, with {found.doses[most]}, is "
        f"{moved} {where}; {read}."
    )


def of_mechanism(parts: Any, mediated: Any) -> str:
    """Of the results of the mechanism: what scaling and adding each do to the outcome, and how lambda lies."""
    rows = mediated.summary().set_index(["reading", "effect"])
    reading = "outcome" if "outcome" in mediated.readings else mediated.readings[0]
    here = {name: rows.loc[(reading, name)] for name in ("scale", "bias", "both", "interaction")}
    told = {}
    for name, row in here.items():
        told[name] = f"{row['median']:+.4f}{limits_of(row['median_ci_low'], row['median_ci_high'])}"
    sure = [name for name, row in here.items() if row["p_corrected"] < 1 - mediated.confidence]
    what = mediated.settings.get("outcome") if reading == "outcome" else reading.replace("_", " ")
    shown = ", ".join(name for name in sure if name != "interaction")
    shown = (
        f"shown to move it in most problems: {shown}" if shown else "none of these is shown to move it in most problems"
    )
    apart = f"; the two do not add up (interaction {told['interaction']})" if "interaction" in sure else ""
    return (
        f"Through layer {mediated.settings.get('layer')}, {parts.settings.get('insertion')} changes {what} by {told['scale']} "
        f"{here['both']['unit']} as it scales what attention wrote, by {told['bias']} as it adds to it, by {told['both']} as "
        f"both (medians over {count_of(len(mediated.problem_ids), 'problem')}){apart}; {shown}."
    )


def of_claims(checks: Mapping[str, Any], figure: str) -> str:
    """Of `ClaimChecks` by model: how many of the figure's claims agree, which do not, and of which nothing can be told."""
    sizes = {found.settings.get("n_problems") for found in checks.values()}
    parts = []
    for name, found in checks.items():
        verdicts = [check.verdict for check in found.checks]
        agree, against, unknown = (verdicts.count(verdict) for verdict in ("agrees", "disagrees", "cannot tell"))
        rest = [f"{n} {what}" for n, what in ((against, "disagree"), (unknown, "cannot be told")) if n]
        size = f", {found.settings.get('n_problems')} problems" * (len(sizes) > 1)
        shared = len(found.without_training)
        without = f" ({shared or 'none'} of them without training)" * bool(found.twins and agree)
        parts.append(f"on {name}{size}, {', '.join([f'{agree} of {len(verdicts)} claims agree{without}', *rest])}")
    of = f" ({count_of(sizes.pop(), 'problem')})" if len(sizes) == 1 else ""
    return f"{figure}{of}: {'; '.join(parts)}."
