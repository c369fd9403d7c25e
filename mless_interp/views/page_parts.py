"""What a page is built of: tables and head maps, turned from numbers into texts, sort keys and colours. No HTML here."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd

from ..prompts.conditions import CONTRASTS
from ..scores.catalogue import METRICS as CATALOGUE

COLUMNS = {
    "label": ("head", "layer and query head, zero-based"),
    "paper_label": ("in the paper's counting", "one-based"),
    "effect": ("mean effect", "the part of the insertion's effect that the head carries, in the outcome's unit"),
    "patching_changes": ("patching changes", "patched - receiving, mean over problems, in the outcome's unit"),
    "effect_fraction": ("share of the mean effect", "mean effect / the insertion's mean effect"),
    "k": ("problems", "number of problems (of n) in which the effect exceeds the smallest effect"),
    "prevalence": ("share of problems", "k / n"),
    "p_prevalence": ("p, corrected", "prevalence test: more than half of all problems; Holm over heads and senses"),
    "recovered": ("recovered", "(patched - corrupted) / (clean - corrupted)"),
    "kind": ("verdict", "a test over most problems, corrected for testing many heads"),
    "claimed": ("claimed", "the verdict on the problems that named the head"),
    "sense": ("sense", "with the insertion's effect, or against it"),
    "confirmed": ("confirmed", "passes again on fresh problems"),
    "reads_sink": ("reads a sink", "the span that the head reads is an attention sink in most problems"),
    "removed_count": (
        "problems: removed",
        "in so many of n, patching its output out removes more than the smallest effect",
    ),
    "added_count": ("problems: added", "in so many of n, patching its output in adds more than the smallest effect"),
    "removed_share": ("removed, share", "the share of the whole effect that patching its output out removes"),
    "added_share": ("added, share", "the share of the whole effect that patching its output in adds"),
    "random_words_share": ("with random words too", "the share of the head's effect that comes with random words too"),
    "removed_median": ("removed, median", "median of what patching its output out removes, in the outcome's unit"),
    "removed_p": ("p, removed", "corrected for all heads tested, both sides and both senses"),
    "added_p": ("p, added", "corrected for all heads tested, both sides and both senses"),
    "knockout_median": ("own read, median", "what hiding the inserted tokens from this head takes away"),
    "mediated_removed_median": ("mediated, median", "the part of the head's effect that earlier heads cause"),
    "random_effect": ("under random words", "the head's effect where random words of the same length are inserted"),
    "questions_effect": ("under other questions", "the head's effect where questions of other problems are inserted"),
    "mful_effect": ("under a repeated word", "the head's effect where a repeated word is inserted"),
    "matched_mass_effect": ("as much attention elsewhere", "what taking as much attention from other tokens removes"),
    "shift_effect": ("under the gap alone", "the head's effect where positions are shifted and nothing is inserted"),
    "exceeds_random": ("more than random words", "in so many problems"),
    "exceeds_mass": ("more than as much attention", "in so many problems"),
    "exceeds_random_n": ("of", "problems where random words were tried"),
    "exceeds_mass_n": ("of so many", "problems where as much attention elsewhere can be taken"),
    "p_specific": ("p, specific", "more than under random words by more than the smallest effect, on fresh problems"),
    "intervention": ("edit", "what is done to the head's attention to the span"),
    "share": ("share", "part of the whole that this one has: 0 nothing, 1 everything, below 0 against it"),
    "shown": ("shown", "what most problems show, by an exact test"),
    "p_more": ("p, more", "that it does more than the smallest effect in most problems"),
    "p_against": (
        "p, against",
        "that it does more than the smallest effect, against the insertion's, in most problems",
    ),
    "p_less": ("p, less", "that it does less than the smallest effect in most problems"),
    "p_half": ("p, half", "that it does more than half of the knockout in most problems"),
    "p_half_against": ("p, half, against", "the same, against the insertion's effect"),
    "lam": ("lambda", "share of attention left to the tokens that are not inserted"),
    "lam_null": ("lambda of uniform attention", "what even attention to all tokens would leave"),
    "lam_p": ("p, corrected", "that lambda differs from uniform attention's in most problems; corrected for all heads"),
    "lam_control": ("lambda under random words", "the same with random words of the same length"),
    "lam_control_p": ("p against random words", "that lambda differs from that under random words; corrected"),
    "lam_n": ("n", "problems where lambda is defined"),
    "lam_minus_uniform": ("lambda minus uniform", "more than 0: the inserted tokens are read less than evenly"),
    "residual": ("residual", "change that lambda z + Sigma leaves unexplained; 0: affine"),
    "fit_slope": ("slope of the best fit", "of the output with the span on that without; another number than lambda"),
    "fit_r2": ("R² of the fit", "share of variance that the best affine fit explains"),
    "scale_share": ("by scale", "part of the layer's change that scaling the head's old output makes; signed"),
    "bias_share": ("by bias", "part of the layer's change that adding the span's values makes; signed"),
    "rest_share": ("from upstream", "part of the layer's change that earlier layers make; signed"),
    "reading": ("reading", "what is read: the outcome, or a metric of the gate activations"),
    "before": ("before", "mean over problems without the span"),
    "after": ("after", "mean over problems with the span"),
    "mean": ("mean change", "mean over problems"),
    "median": ("median", "over problems"),
    "n_up": ("problems that rise", "in so many of n it rises"),
    "n_down": ("problems that fall", "in so many of n it falls"),
    "n_tied": ("problems that stay", "in so many of n it neither rises nor falls beyond rounding"),
    "n_undefined": ("undefined", "problems where it is not defined"),
    "p_fdr": ("p, false discovery rate", "Benjamini and Hochberg, over classes and metrics"),
    "contrast": ("contrast", "the two runs that are compared"),
    "token_class": ("tokens", "class of tokens"),
    "tokens_per_problem": ("tokens per problem", "mean number of tokens of the class"),
    "metric": ("metric", "what is measured; units stand beside"),
    "unit": ("unit", "of the values in this row"),
    "primary": ("primary", "whether it is the contrast that the claim is about"),
    "estimate": ("measured", "mean difference over problems"),
    "claim": ("claim", "what the paper says"),
    "measured": ("measured", "mean over problems"),
    "null": ("null", "what it is compared with; see the column 'null is'"),
    "null_is": ("null is", "what would be measured if the claim did not hold"),
    "difference": ("difference", "after - before, or second - first, on the same problems"),
    "verdict": ("verdict", "agrees, disagrees, or cannot tell: from the interval against the null, over problems"),
    "untrained": ("untrained", "the same of untrained twins: same configuration and prompts, weights drawn anew"),
    "untrained_verdict": (
        "untrained twins",
        "in how many of them the claim agrees; where in most, it holds without training",
    ),
    "reason": ("reason", "why nothing can be told, or the rank that the verdict rests on"),
    "rank": ("rank", "1 is the largest; ties share the middle rank"),
    "condition": ("condition", "which run: without insertion, with it, ..."),
    "before_received": ("before the span", "attention that a token before the span receives, mean"),
    "inserted_received": ("in the span", "attention that an inserted token receives, mean"),
    "question_received": ("in the question", "attention that a token of the question receives, mean"),
    "before_relative": ("before the span, relative", "the same / uniform attention's"),
    "inserted_relative": ("in the span, relative", "the same / uniform attention's"),
    "question_relative": ("in the question, relative", "the same / uniform attention's"),
    "n_tokens": ("inserted tokens", "how many tokens are inserted"),
    "outcome": ("outcome", "mean over problems, with the insertion"),
    "total": ("total effect", "with the insertion - without it, median over problems"),
    "content": ("content effect", "with the insertion - the same positions, insertion hidden; median over problems"),
    "shift": ("effect of the shift", "shifted positions, nothing inserted - unshifted; median over problems"),
    "held": ("effect at held positions", "with the insertion, positions as without - without it; median over problems"),
    "slope_held": (
        "slope, positions held",
        "of the log odds of reading the span in log N; 1 for identical tokens in layer 0",
    ),
    "slope_inserted": ("slope, as inserted", "the same where later tokens are shifted by the insertion"),
    "treatment": ("treatment", "what was done to the problem before it was answered"),
    "second": ("treatment", "what was done to the problem before it was answered"),
    "first": ("against", "the treatment that it is compared with"),
    "accuracy": ("right", "share of right answers, strictly graded"),
    "accuracy_second": ("right", "share of right answers under the treatment"),
    "accuracy_first": ("right under the first", "share of right answers under the treatment that it is compared with"),
    "lenient": ("right, lenient", "share of right answers, leniently graded"),
    "paper": ("right, paper's grader", "share of right answers as the paper's own rule grades"),
    "boxed": ("boxed", "share of answers with a \\boxed{} result"),
    "cut_off": ("cut off", "share of answers that ran into the longest length"),
    "gave_up": ("undecided", "share of grades that nothing decided; they count as wrong"),
    "n_missing": ("not run", "answers that are missing"),
    "gained": ("gained", "problems right under this treatment alone"),
    "lost": ("lost", "problems right under the first treatment alone"),
    "p": ("p", "uncorrected"),
    "p_holm": ("p, corrected", "Holm's correction over the comparisons"),
    "p_corrected": ("p, corrected", "Holm's correction over the tests made together"),
    "test": ("test", "which test gives p"),
    "detectable": ("detectable", "share of problems that must change, all one way, to be found with 80 % power"),
    "flag": ("remark", "what is unusual about the interval"),
    "set": ("set", "which heads together"),
    "n": ("n", "problems where it is defined"),
    "n_heads": ("number of heads", "how many heads"),
    "inserts": ("inserts", "which tokens, how many, and where if not before the question"),
    "most_read_by": (
        "most read by",
        "the head with the largest share of attention on the inserted tokens, mean over problems",
    ),
    "shown_again": ("heads confirmed", "heads that were named and pass again on fresh problems"),
    "answers_n": ("answered", "problems answered without the insertion and with it"),
    "difference_p": ("p, answers", "that right answers change; corrected for all insertions of the study"),
    "heads": ("heads", "which heads, zero-based"),
    "fraction": ("share of the heads", "heads that see the span / all ranked heads"),
    "faithfulness": ("effect restored", "share of the whole effect that these heads restore"),
    "reversed": ("reversed ranking", "the same for the ranking from its end"),
    "random_mean": ("random orders", "the same for heads in random order, mean"),
    "name": ("identity", "what is checked"),
    "says": ("says", "what must hold"),
    "status": ("status", "pass, fail, or why it does not apply"),
    "error": ("largest error", "as a share of the largest value compared"),
    "tolerance": ("allowed", "the error up to which it holds"),
    "way": ("way", "direct: straight to the logits; indirect: through later parts of the model"),
    "edge": (
        "edge",
        "sender -> receiver and, of a head that receives, by its queries (q), keys (k), values (v) or all",
    ),
    "site and token": (
        "site and token",
        "what is patched, in which layer (zero-based), at which token of the question",
    ),
    "head and place": (
        "head and place",
        "which head; row: a token of the question; span: a part of the inserted tokens",
    ),
    "of": (
        "of",
        "Sigma: what is taken from the span; change: all that the insertion changes; query: where the head looks",
    ),
    "side": (
        "side",
        "which end of the tokens: promoted or suppressed, preferred or avoided; of a set: sufficient or necessary",
    ),
    "token": ("token", "as it stands in a text; inserted ones are marked"),
    "promoted": ("promoted, preferred", "tokens of the largest means, the largest first"),
    "suppressed": ("suppressed, avoided", "tokens of the smallest means, the smallest first"),
    "largest": ("largest", "the largest mean: change of a logit; of the query, score in nats"),
    "alike": ("alike over problems", "mean cosine of a problem's vector with the mean over problems; 1: one direction"),
    "rows_alike": ("alike over rows", "length of the mean of the rows' unit vectors; 1: one direction"),
    "fresh_share": ("share on fresh problems", "what the set brings there / median effect"),
    "p_random": ("p, random sets", "rank among random sets of the same size and layers, on fresh problems"),
    "random_share": ("share of random sets", "median over them, on fresh problems"),
    "changed": ("changed", "heads that came (+) and went (-)"),
    "what is given": ("what is given", "means of lambda and Sigma: of these heads, or of a control"),
    "exceeded": ("problems: more than", "in so many of n the heads bring more than this control"),
    "p_exceeded": ("p, more than", "that they bring more than this control in most problems, corrected"),
    "lambda": ("lambda", "share of attention left to the tokens that are not inserted, mean"),
    "norm of Sigma": ("norm of Sigma", "length of the mean of what the head takes from the span"),
    "mean effect": ("mean effect", "the part of the insertion's effect, mean over problems, in the outcome's unit"),
    "share of the mean effect": (
        "share of the mean effect",
        "mean effect / mean of the insertion's whole effect: 0 nothing, 1 everything, below 0 against it",
    ),
    "amount": ("amount", "mean over problems: change of the token's logit; of the query, score in nats"),
    "spread": ("spread", "standard deviation over problems"),
}
"""Column names of result tables as people read them, and what they mean."""
NAMES = {"effect": ("part", "which part acts: scale, bias, both, interaction, rest, or all of it (total)")}
"""The same for columns that hold words where a column of that name elsewhere holds numbers."""
OF_EFFECTS = {
    "median": ("median effect", "median over problems of what the contrast does to the outcome"),
    "k": ("problems", "in so many of those where it is defined, the effect has the median's sign, beyond rounding"),
    "p": (
        "p, corrected",
        "sign test that most problems show an effect of one sign; Holm over all effects of the study",
    ),
    "undefined": ("undefined", "problems where the outcome is not defined"),
}
"""What columns such as `content_median` hold, by their ends."""
VERDICTS = ("claimed", "kind", "verdict", "untrained_verdict", "confirmed", "reads_sink", "shown", "status")
"""Columns that stand right after the first."""
LATER = ("paper_label", "layer", "head", "sense", "n", "recovered", "prevalence", "flag", "unit", "null_is", "contrast")
"""Columns that stand behind the others where there are more than `AT_ONCE`."""
COUNTS = {"k": "n", "removed_count": "n", "added_count": "n", "of_this_sign": "n", "named": "of_heads"} | {
    f"exceeds_{name}": f"exceeds_{name}_n" for name in ("random", "mass")
}
"""Columns of counts, and the column that says of how many: shown as "52 of 64"."""
OF_SHARES = ("low", "lenient_low", "paper_low")
"""Lower ends of 95 % intervals whose names do not say so."""
AT_ONCE = 6
"""Columns that a table shows before all are asked for."""

BLUE_TO_RED = "053061 2166ac 4393c3 92c5de d1e5f0 f7f7f7 fddbc7 f4a582 d6604d b2182b 67001f".split()
"""ColorBrewer's RdBu, reversed, as in the still pictures: told apart by colour-blind readers, 0 in the middle."""

MISSING = "–"
"""What a cell shows where a number is undefined."""


@dataclass(frozen=True)
class Column:
    """A column's heading, its definition, and whether it sorts by number."""

    label: str
    note: str
    numeric: bool


@dataclass(frozen=True)
class Cell:
    """What a cell shows, the limits of its interval, and what it sorts by ("" = undefined, which always comes last)."""

    text: str
    key: str
    limits: str = ""

    def __str__(self) -> str:
        return f"{self.text} {self.limits}".rstrip()


@dataclass(frozen=True)
class Table:
    """Rows of cells under columns that sort; those after the first `at_once` are shown when all are asked for."""

    kind: ClassVar[str] = "table"
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    at_once: int = AT_ONCE

    @classmethod
    def of(
        cls, frame: pd.DataFrame, caption: str, *, columns: Sequence[str] | Mapping[str, str] | None = None
    ) -> "Table":
        """A table of a data frame; `columns` chooses and orders them, as a mapping also names them.

        `x` shows its interval `x_ci_low`, `x_ci_high` (or `x_low`, `x_high`; bare `low`, `high` belong to the number before
        them) in the same cell, under a heading that names both; counts say of how many. Verdicts stand second; where there
        are more than six columns, those that matter less stand last.
        """
        names = dict(columns) if isinstance(columns, Mapping) else dict.fromkeys(columns or frame.columns, "")
        unknown = [name for name in names if name not in frame.columns]
        if unknown:
            raise ValueError(f"no column {unknown[0]!r} to show; there are {', '.join(map(str, frame.columns))}")
        made, cells = [], []
        ordered, at_once = _ordered(_with_intervals(names, frame), frame)
        for name, low in ordered:
            label, note, numeric = _heading(name, names[name], frame)
            if low is not None and low == name:
                whose = str(low).removesuffix("_low").removesuffix("_ci").removesuffix("ci").replace("_", " ")
                words = _interval_words(low) + (f" of the {whose}" if whose not in ("", "low") else "")
                made.append(Column(names[name] or words, note or "lower and upper end", True))
                cells.append(_intervals(frame[low].tolist(), frame[_upper(low, frame)].tolist()))
                continue
            if low is not None and frame[[low, _upper(low, frame)]].notna().any(axis=None):
                what = _interval_words(low)
                made.append(Column(f"{label} [{what}]", note or label, True))
                cells.append(_numbers(frame[name].tolist(), (frame[low].tolist(), frame[_upper(low, frame)].tolist())))
                continue
            of = f"{str(name)[:-2]}_n" if str(name).endswith("_k") else COUNTS.get(str(name))
            made.append(Column(label, note, numeric))
            values = frame[name].tolist()
            if numeric and of in frame.columns:
                cells.append(_counts(values, frame[of].tolist()))
            else:
                cells.append(_numbers(values) if numeric else [_other(value) for value in values])
        return cls(caption, tuple(made), tuple(zip(*cells, strict=True)), at_once)

    def sentence(self, row: int) -> str:
        """A row in words: every column's heading with its value, left to right."""
        cells = zip(self.columns, self.rows[row], strict=True)
        return "; ".join(f"{column.label} {cell}" for column, cell in cells)


def _heading(name: Any, label: str, frame: pd.DataFrame) -> tuple[str, str, bool]:
    """A column's words, their definition, and whether it holds numbers."""
    numeric = frame[name].dtype.kind in "fiu"
    known = COLUMNS if numeric else NAMES | {key: words for key, words in COLUMNS.items() if key not in NAMES}
    if name in known:
        usual, note = known[name]
    elif of_effect := _of_an_effect(str(name)):
        usual, note = of_effect
    else:
        usual, note = str(name).replace("_", " "), _of_a_metric(str(name))
    return label or usual, note, numeric


def _of_an_effect(name: str) -> tuple[str, str] | None:
    """What a column such as `content_median` or `shift_logit_diff_k` is called and holds; None where it is no effect's."""
    whose, _, kind = name.replace("_n_undefined", "_undefined").rpartition("_")
    contrast = CONTRASTS.get(whose.partition("_")[0])
    if kind not in OF_EFFECTS or contrast is None:
        return None
    word, note = OF_EFFECTS[kind]
    return f"{whose.replace('_', ' ')}, {word}", f"{note} ({contrast.clean} to {contrast.corrupted}: {contrast.says})"


def _of_a_metric(name: str) -> str:
    """What a column of an attention metric holds; nothing where no metric has that name."""
    ends = {
        "_null": ", of uniform attention on the same prompts",
        "_untrained": ", of untrained twins of the model",
        "_n": "; problems where it is defined",
        "_infinite": "; problems where it is infinite",
        "_control": ", under the control",
    }
    if name.startswith("log_odds_at_"):
        return "log odds of reading the span, with as many inserted tokens as the heading says; mean over problems"
    end = next((end for end in ends if name.endswith(end)), "")
    metric = CATALOGUE.get(name.removesuffix(end))
    return "" if metric is None else f"{metric.meaning} ({metric.unit}){ends.get(end, '')}"


def _with_intervals(names: Mapping[Any, str], frame: pd.DataFrame) -> list[tuple[Any, str | None]]:
    """Columns in order, each with the lower end of its interval, if it has one; ends that belong to none stand alone."""
    ends = {_upper(str(name), frame) for name in frame.columns}
    found: list[tuple[Any, str | None]] = []
    taken: set[str] = set()
    for name in names:
        low = next((low for low in (f"{name}_ci_low", f"{name}_low") if _upper(low, frame)), None)
        if low is not None:
            taken.add(low)
    for name in names:
        if name in taken or name in ends:
            continue
        own = next((low for low in (f"{name}_ci_low", f"{name}_low") if low in taken), None)
        if own is None and _upper(str(name), frame):
            before = found[-1] if found else (None, None)
            if (
                name in ("low", "ci_low")
                and before[1] is None
                and before[0] in frame
                and frame[before[0]].dtype.kind == "f"
            ):
                found[-1] = (before[0], name)
                continue
            own = name
        found.append((name, own))
    return found


def _ordered(
    columns: Sequence[tuple[Any, str | None]], frame: pd.DataFrame
) -> tuple[list[tuple[Any, str | None]], int]:
    """The first column, verdicts, the others; where there are many, last those that matter less or say nothing. And how
    many of them are shown at once."""
    many = len(columns) > AT_ONCE

    def rank(at: int) -> int:
        name = str(columns[at][0])
        if at == 0:
            return 0
        column = frame[columns[at][0]]
        says = (column.notna() & (column.astype(object) != "")).any()
        if many and (not says or name in LATER or name.endswith(("_null", "_untrained", "_n", "_infinite"))):
            return 3
        return 1 if name in VERDICTS else 2

    ranks = [rank(at) for at in range(len(columns))]
    first = sum(each < 3 for each in ranks)
    return [columns[at] for at in sorted(range(len(columns)), key=ranks.__getitem__)], min(AT_ONCE, first)


def _interval_words(low: str) -> str:
    return "95 % interval" if low.endswith("ci_low") or low in OF_SHARES else "from, to"


def _upper(name: str, frame: pd.DataFrame) -> str | None:
    """The column with the upper end of the interval whose lower end is `name`; None if that is no lower end."""
    high = f"{name.removesuffix('low')}high"
    ends = name == "low" or name.endswith("_low")
    return high if ends and name in frame.columns and high in frame.columns else None


def _numbers(values: Sequence[Any], limits: tuple[Sequence[Any], Sequence[Any]] | None = None) -> list[Cell]:
    """Numbers of one column, with the ends of their intervals, all with the same number of decimals, signed if any is
    negative."""
    ends = () if limits is None else (*limits[0], *limits[1])
    known = [float(value) for value in (*values, *ends) if not pd.isna(value)]
    whole = limits is None and all(isinstance(value, int) or pd.isna(value) for value in values)
    signed, decimals = any(value < 0 for value in known), 0 if whole else _decimals(known)
    cells = []
    for row, value in enumerate(values):
        text, key = MISSING, ""
        if not pd.isna(value):
            text, key = _number(float(value), decimals, signed), _key(float(value))
        pair = () if limits is None else (limits[0][row], limits[1][row])
        known_ends = pair and not any(pd.isna(end) for end in pair)
        words = ", ".join(_number(float(end), decimals, signed) for end in pair) if known_ends else ""
        cells.append(Cell(text, key, words and f"[{words}]"))
    return cells


def _intervals(low: Sequence[Any], high: Sequence[Any]) -> list[Cell]:
    """Intervals that stand alone, sorted by their lower ends."""
    return [Cell(cell.limits or MISSING, cell.key if cell.limits else "") for cell in _numbers(low, (low, high))]


def _counts(values: Sequence[Any], of: Sequence[Any]) -> list[Cell]:
    """Counts with the number that they are of."""
    return [
        Cell(MISSING, "") if pd.isna(value) or pd.isna(n) else Cell(f"{int(value)} of {int(n)}", _key(float(value)))
        for value, n in zip(values, of, strict=True)
    ]


def _other(value: Any) -> Cell:
    if pd.isna(value):
        return Cell(MISSING, "")
    text = {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
    return Cell(text, text)


def _decimals(known: Sequence[float]) -> int:
    """Four decimals, as sentences and prints have; where the column's largest number is 100 or more, four digits of it."""
    largest = max((round(abs(value), 9) for value in known if math.isfinite(value)), default=0.0)
    return 4 if largest < 100 else max(0, 3 - math.floor(math.log10(largest)))


def _number(value: float, decimals: int, signed: bool) -> str:
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    plus, step = "+" if signed else "", 10.0**-decimals
    if (
        value != 0 and abs(value) < (0.5 if decimals > 2 else 10) * step
    ):  # in a column of larger numbers: its own digits
        return f"{value:{plus}.{2 if decimals > 2 else 3}g}"
    return f"{abs(value):.{decimals}f}" if value == 0 else f"{value:{plus}.{decimals}f}"


def _key(value: float) -> str:
    """A number as JavaScript's Number() reads it."""
    return ("Infinity" if value > 0 else "-Infinity") if math.isinf(value) else f"{value:.9g}"


@dataclass(frozen=True)
class Square:
    """One head's place, colour, value and everything known of it in words; `marked` ones are outlined."""

    layer: int
    head: int
    colour: str
    words: str
    marked: bool


@dataclass(frozen=True)
class HeadMap:
    """Layer × head map, zero-based, with all numbers of a head on hover, tap or arrow key."""

    kind: ClassVar[str] = "head_map"
    caption: str
    value: str
    limit: str
    signed: bool
    undefined: bool
    n_layers: int
    n_heads: int
    squares: tuple[Square, ...]
    marked_means: str = ""
    note: str = ""

    @classmethod
    def of(
        cls,
        frame: pd.DataFrame,
        caption: str,
        *,
        value: str,
        columns: Sequence[str] | None = None,
        marked: Sequence[bool] | None = None,
        marked_means: str = "",
    ) -> "HeadMap":
        """A map of one column of a table with columns layer and head; `columns` are told on hover."""
        for name in ("layer", "head", value):
            if name not in frame.columns:
                raise ValueError(f"no column {name!r} to draw; there are {', '.join(map(str, frame.columns))}")
        layers, heads = frame["layer"].tolist(), frame["head"].tolist()
        if len(set(zip(layers, heads, strict=True))) != len(layers):
            raise ValueError("a head map needs one row per head; this table has several rows of the same head")
        table = Table.of(frame, "", columns=columns)
        numbers = [float("nan") if pd.isna(number) else float(number) for number in frame[value].tolist()]
        finite = [abs(number) for number in numbers if math.isfinite(number)]
        limit = max(finite, default=0.0) or 1.0
        shown = [False] * len(numbers) if marked is None else list(marked)
        squares = tuple(
            Square(layer, head, colour(number / limit), table.sentence(row), bool(shown[row]))
            for row, (layer, head, number) in enumerate(zip(layers, heads, numbers, strict=True))
        )
        return cls(
            caption=caption,
            value=_heading(value, "", frame)[0],
            limit=f"{limit:.3g}",
            signed=any(number < 0 for number in numbers),
            undefined=any(math.isnan(number) for number in numbers),
            n_layers=max(layers) + 1,
            n_heads=max(heads) + 1,
            squares=squares,
            marked_means=marked_means if any(shown) else "",
            note=COLUMNS[value][1] if value in COLUMNS else _of_a_metric(value),
        )


def colour(share: float) -> str:
    """Colour of a number in -1..1 (beyond is clipped): blue below 0, red above, grey where undefined.

    >>> colour(0.0), colour(1.0), colour(float("nan"))
    ('#f7f7f7', '#67001f', '#bbbbbb')
    """
    if math.isnan(share):
        return "#bbbbbb"
    place = (min(1.0, max(-1.0, share)) + 1) / 2 * (len(BLUE_TO_RED) - 1)
    low = min(int(place), len(BLUE_TO_RED) - 2)
    ends = [[int(stop[i : i + 2], 16) for i in (0, 2, 4)] for stop in BLUE_TO_RED[low : low + 2]]
    mixed = [round(a + (b - a) * (place - low)) for a, b in zip(*ends, strict=True)]
    return "#" + "".join(f"{part:02x}" for part in mixed)
