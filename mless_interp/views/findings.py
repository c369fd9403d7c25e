"""How a page shows each kind of result: its own sentences, which column becomes the head map, which columns its table has.

A result of a kind that is not listed is shown by what every result has: `describe()` (or its print) and `summary()`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .page_parts import HeadMap, Table

INTERVAL_MARK = "outlined: the 95 % interval does not hold 0 (each head by itself, not corrected for testing many)"
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!\bEq\.)(?<!\bFig\.)\s+(?=[A-Z\d])")
NAMED_MARK = "outlined: named a reader or a mediator, corrected for testing many heads"


@dataclass(frozen=True)
class Layout:
    """A result as parts of a page."""

    sentences: tuple[str, ...]
    head_map: HeadMap | None
    tables: tuple[Table, ...]


def layout_of(result: Any) -> Layout:
    """The parts of a page that show `result`."""
    return _LAYOUTS.get(type(result).__name__, _any)(result)


def sentences(text: str) -> tuple[str, ...]:
    """A description, sentence by sentence: split where a full stop is followed by a capital outside of quotes.

    >>> sentences("Mless ' . A' x5, 2 problems. Named: L0H1 (layer 1 head 2). None.")
    ("Mless ' . A' x5, 2 problems.", 'Named: L0H1 (layer 1 head 2).', 'None.')
    >>> sentences("In layer 0 z' is an identity. Lambda is not. See Eq. 2.")
    ("In layer 0 z' is an identity.", 'Lambda is not.', 'See Eq. 2.')
    """
    parts, quoted = [""], False
    for piece in _SENTENCE_END.split(text):
        parts.append(f"{parts.pop()} {piece}" if quoted else piece)
        for mark in re.finditer("'", piece):  # an apostrophe and the prime of z' open nothing
            before, after = piece[mark.start() - 1 : mark.start()], piece[mark.end() : mark.end() + 1]
            quoted = bool(re.match(r"\w", after)) if quoted else not re.match(r"\w", before)
    return tuple(part.strip() for part in parts if part.strip())


def _words(result: Any) -> tuple[str, ...]:
    """What a result says of itself; of its print, what comes before the table."""
    if hasattr(result, "describe"):
        return sentences(result.describe())
    return sentences(repr(result).partition("\n")[0])


def _head_map(
    table: Any, values: Sequence[str], columns: Sequence[str], *, marked: Any = None, means: str = ""
) -> HeadMap | None:
    """A map of the first of `values` that is known of any head; none for fewer than two heads."""
    known = [name for name in values if name in table and table[name].notna().any()]
    if not known or len(table) < 2 or table.duplicated(["layer", "head"]).any():
        return None
    caption = "Grey is undefined or was not measured."
    told = [name for name in columns if name in table]
    return HeadMap.of(table, caption, value=known[0], columns=told, marked=marked, marked_means=means)


def _located(found: Any) -> Layout:
    columns = ["label", "paper_label", "kind", "specific", "knockout_fraction", "mediated_fraction", "p_reader"]
    columns += ["p_mediator", "effect_fraction", "ci_low", "knockout_effect", "mediated_removed_effect", "n"]
    table = found.summary()
    marked = (table["kind"] != "neither").tolist()
    drawn = _head_map(table, ["effect_fraction", "effect"], columns, marked=marked, means=NAMED_MARK)
    caption = "Tested heads: named ones first, then by size. Effects have the sign of the insertion's own effect."
    return Layout(_words(found), drawn, (Table.of(table, caption, columns=[n for n in columns if n in table]),))


def _patched(patches: Any) -> Layout:
    columns = ["label", "paper_label", "effect_fraction", "ci_low", "effect", "recovered", "n"]
    table = patches.summary()
    key = "effect_fraction" if table["effect_fraction"].notna().any() else "effect"
    low, high = ("ci_low", "ci_high") if key == "effect_fraction" else ("effect_ci_low", "effect_ci_high")
    marked = (table[low] * table[high] > 0).tolist()
    drawn = _head_map(table, [key], columns, marked=marked, means=INTERVAL_MARK)
    caption = f"Patched heads, the largest share first. Effects in {patches.unit}."
    return Layout(_words(patches), drawn, (Table.of(patches.top(len(table)), caption, columns=columns),))


USUAL_SCORES = ("collapse_relative", "recovery_aligned", "span_mass", "log_density_ratio", "entropy")
"""Metrics whose intervals a page shows; of all others it shows the means."""


def _scored(scores: Any) -> Layout:
    table = scores.summary()
    here = [metric for metric in scores.metrics if metric in table]
    first = [metric for metric in USUAL_SCORES if metric in here] or here[:5]
    columns = ["label", "paper_label"]
    for metric in first:
        columns += [name for name in (metric, f"{metric}_null", f"{metric}_n") if name in table]
    drawn = _head_map(table, first, columns)
    where = f"condition {scores.conditions[-1]!r}"
    caption = (
        f"Attention per head, {where}: means over problems; null: uniform attention on the same prompts; n: problems."
    )
    tables = [Table.of(table, caption, columns=columns)]
    if len(here) > len(first):
        means = table[["label", "paper_label", *here]]
        tables.append(Table.of(means, f"All {len(here)} metrics, {where}: means over problems (latencies: medians)."))
    return Layout(_words(scores), drawn, tuple(tables))


def _doses(found: Any) -> Layout:
    doses = found.outcome_table()
    named = dict.fromkeys(doses.columns, "") | {"n_tokens": "inserted tokens"}
    outcomes = Table.of(doses, f"Outcome by number of inserted tokens, in {found.unit}.", columns=named)
    table = found.summary()
    columns = [name for name in table.columns if name not in ("layer", "head")]
    slopes = Table.of(table, "Slope of the log odds of reading the span in log N, per head.", columns=columns)
    return Layout(_words(found), None, (outcomes, slopes))


def _claims(checks: Any) -> Layout:
    table = checks.to_frame()
    words_for = {"agrees": "agree", "disagrees": "disagree"}
    verdicts = table["verdict"].value_counts(sort=False).items()
    counted = ", ".join(f"{number} {words_for.get(verdict, verdict)}" for verdict, number in verdicts)
    s = checks.settings
    words = (
        f"{len(table)} claims checked on {s.get('model')}, heads {s.get('heads')} (zero-based), {s.get('insertion')}, "
        f"{s.get('n_problems')} problems: {counted}."
    )
    columns = ["claim", "measured", "ci_low", "null", "null_is", "difference_ci_low", "n", "verdict", "reason"]
    return Layout((words,), None, (Table.of(table, "The paper's claims, each against its null.", columns=columns),))


def _answered(found: Any) -> Layout:
    caption = (
        "Answers by condition: shares of problems, strictly graded and beside it leniently and as the paper grades."
    )
    table = found.summary()
    named = dict.fromkeys(table.columns, "") | {"n_tokens": "tokens of an answer"}
    return Layout(_words(found), None, (Table.of(table, caption, columns=named),))


def _compared(compared: Any) -> Layout:
    p_values = compared.p_holm if len(compared.comparisons) > 1 else [None]
    pairs = zip(compared.comparisons, p_values, strict=True)
    caption = f"Each condition against {compared.reference!r} on the same problems ({compared.grader} grades)."
    table = Table.of(compared.to_frame(), caption)
    return Layout(tuple(one.describe(p_corrected=p) for one, p in pairs), None, (table,))


def _activations(shift: Any) -> Layout:
    claims = Table.of(shift.claims(), "The paper's claims about gate activations, over problems.")
    return Layout(_words(shift), None, (claims, Table.of(shift.by_class(), "Every metric, by class of token.")))


def _decomposed(parts: Any) -> Layout:
    table = parts.summary()
    table = table.assign(lambda_minus_uniform=table["lam"] - table["lam_null"])
    told = ["label", "paper_label", "lambda_minus_uniform", "lam", "lam_null", "lam_control", "residual", "share"]
    differs = (table["lam_p"] < 0.05).tolist() if "lam_p" in table else None
    means = "outlined: differs from uniform attention, p < 0.05 corrected for testing many heads"
    drawn = _head_map(table, ["lambda_minus_uniform"], told, marked=differs, means=means if differs else "")
    here = {
        "label": "",
        "paper_label": "",
        "lam": "lambda",
        "lam_null": "uniform attention's",
        "lam_p": "p, corrected",
        "lam_control": "random sentence's",
        "lam_control_p": "p against it, corrected",
        "residual": "residual (0: affine)",
        "fit_slope": "slope of the fit (not lambda)",
        "fit_r2": "R² of the fit",
        "share": "share of the layer's change",
        "scale_share": "by scale",
        "bias_share": "by bias",
        "lam_n": "n",
    }
    columns = {name: label for name, label in here.items() if name in table}
    caption = (
        "Lambda, the share of attention that stays outside of the span, and what each head adds to its layer's change."
    )
    tables = [Table.of(table, caption, columns=columns)]
    rest = [name for name in table if name not in here and not name.endswith(("_n", "_ci_low", "_ci_high"))]
    rest = [name for name in rest if name not in ("layer", "head", "lambda_minus_uniform")]
    if rest:
        tables.append(Table.of(table, "Further measures of each head.", columns=["label", "paper_label", *rest]))
    return Layout(_words(parts), drawn, tuple(tables))


def _mediated(found: Any) -> Layout:
    table = found.summary()
    caption = (
        "Change of each reading when attention's outputs get only their scale, only their bias, or both; interaction is both "
        "minus their sum, total the change by the insertion itself."
    )
    named = dict.fromkeys(table.columns, "") | {"mean": "change", "before": "without the span"}
    return Layout(_words(found), None, (Table.of(table, caption, columns=named),))


def _any(result: Any) -> Layout:
    """A result of any other kind."""
    if not hasattr(result, "summary"):
        if not hasattr(result, "to_frame"):
            raise TypeError(f"a result of this toolkit expected, got {type(result).__name__}")
        return Layout(_words(result), None, (Table.of(result.to_frame(), type(result).__name__),))
    table = result.summary()
    columns = [name for name in table.columns if name not in ("layer", "head")]
    drawn = None
    if {"layer", "head"} <= set(table.columns):
        numeric = [name for name in columns if table[name].dtype.kind == "f"]
        drawn = _head_map(table, numeric, columns)
    caption = f"Summary of {type(result).__name__}."
    return Layout(_words(result), drawn, (Table.of(table, caption, columns=columns),))


_LAYOUTS = {
    "LocatedHeads": _located,
    "PatchScores": _patched,
    "HeadScores": _scored,
    "DoseResponse": _doses,
    "ClaimChecks": _claims,
    "AccuracyResults": _answered,
    "Comparisons": _compared,
    "ActivationShift": _activations,
    "AttentionDecomposition": _decomposed,
    "Mediation": _mediated,
}
