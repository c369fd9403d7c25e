r"""Whether two answers are equal: by their text, by their numbers, by their parts, and then by math-verify.

What counts as the same answer:

- Fractions, decimals, mixed numbers, repeating decimals, `a \times 10^b` and numbers with thousands separators are compared
  exactly: 0.15 is 3/20 and is not 0.1500001; 0.333 is not 1/3. `7 7` is no number, and `1, 234` is a list of two.
- Degree, percent and currency signs do not count: 90 is 90 degrees, 50 % is 50 (and is not 0.5).
- A unit may be left out; two different units differ (5 cm is not 5 m, 5 cents are not 5 dollars). Words of scale are part of
  the number: 2 million is 2000000. Numbers with a base need it: 52_8 is not 52.
- Points and tuples are in order and need their brackets, intervals their kinds of brackets: (1, 2] is not (1, 2), nor 1, 2.
- Lists, sets and unions are in any order, `1 \pm 2` is a list of two, and a set may be written without braces.
- Matrices entry by entry, round and square brackets alike; a determinant is none.
- `x = 5` is 5, but `x = 5` is not `y = 5`. Equations and inequalities are math-verify's.
- Words are compared as text, without case; a choice may stand in brackets: (C) is C.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from . import latex
from .math_verify_process import GaveUp, asked

LONGEST = 500
"""Characters; a longer answer is compared as text only."""
MOST_PARTS = 40
_NUMBER = re.compile(r"[+-]?(\d+(,\d{3})+|\d+|\d+( \d{3})+)?(\.\d*)?")
_POWER_OF_TEN = re.compile(r"(?:(.+?)\\cdot)?10\^(?:\{([+-]?\d{1,3})\}|(\d))")
_FRACTION = re.compile(r"([+-]?)(\d*)\\frac\{([+-]?[\d.,]+)\}\{([+-]?[\d.,]+)\}")
_MIXED = re.compile(r"^([+-]?)(\d+) (\d+)/(\d+)$")
_REPEATING = re.compile(r"([+-]?)(\d*)\.(\d*)\\(?:overline|bar)\{(\d+)\}")
_REALS = re.compile(r"\\mathbb\{?R\}?|\\R|(?:\\text\{)?all real(?:s| numbers)\}?", re.IGNORECASE)
_NAME = re.compile(r"(?:\\?[a-zA-Z]+)(?:_(?:\w|\{\w+\}))?'?(?:\([a-z](?:,[a-z])*\))?|\([a-z](?:,[a-z])+\)")
_BASE = re.compile(r"([0-9A-Fa-f]+)_\{?(\d+)\}?")
_MATRIX = re.compile(r"\\begin\{([bBp]?matrix|smallmatrix|array|vmatrix)\}(?:\{[lcr|\s]*\})?(.*)\\end\{\1\}", re.DOTALL)
GAVE_UP = "gave up"
"""Nothing decided, within the limits of time and memory."""


@dataclass(frozen=True)
class Equality:
    """Whether two answers are equal, and what decided: "text", "number", "parts", "math-verify", or `GAVE_UP`."""

    equal: bool
    by: str


def compare(answer: str, gold: str) -> Equality:
    r"""Return whether an answer equals the gold one, strictly; see the module for what counts as the same.

    >>> compare(r"\dfrac{3}{6}", "0.5"), compare("(1,2]", "(1,2)").equal
    (Equality(equal=True, by='number'), False)
    """
    answer, gold = answer.strip(), gold.strip()
    first, second = latex.plain(answer[: LONGEST + 1]), latex.plain(gold[: LONGEST + 1])
    if not first or not second:
        return Equality(False, "text")
    if latex.compact(first) == latex.compact(second) and max(len(answer), len(gold)) <= LONGEST:
        return Equality(True, "text")
    if max(len(answer), len(gold)) > LONGEST:
        return Equality(answer == gold, "text")
    try:
        return _compare(first, second)
    except GaveUp:  # what cannot be decided in part is not decided
        return Equality(False, GAVE_UP)


def split(text: str, separators: Sequence[str]) -> list[str]:
    """Return the pieces between separators that stand outside all brackets."""
    pieces, depth = [""], 0
    for token in re.findall(rf"{'|'.join(map(re.escape, separators))}|\\.|.", text, re.DOTALL):
        if depth == 0 and token in separators:
            pieces.append("")
            continue
        depth += (token in ("(", "[", "{", r"\{")) - (token in (")", "]", "}", r"\}"))
        pieces[-1] += token
    return [piece.strip() for piece in pieces]


def _enclosed(text: str) -> tuple[str, str] | None:
    r"""Return the two brackets round a whole answer, as "(]" or "{}", and what they hold; None where none enclose it."""
    found = re.fullmatch(r"(\\\{|[(\[])(.*)(\\\}|[)\]])", text, re.DOTALL)
    if not found or (found[1] == r"\{") != (found[3] == r"\}"):
        return None
    depth = 0
    for c in found[2]:
        depth += (c in "([{") - (c in ")]}")
        if depth < 0:
            return None
    return None if depth else (found[1][-1] + found[3][-1], found[2].strip())


def _parts(text: str) -> tuple[str, tuple[str, ...]] | None:
    """Return the kind ("list", "union", a matrix's shape, a tuple's brackets) and the parts of an answer; None: it has none."""
    if number(text) is not None:
        return None
    matrix = _MATRIX.fullmatch(text)
    if matrix:
        rows = [split(row, ["&"]) for row in re.split(latex.NEW_ROW + r"(?:\s*\[[^\]]*\])?", matrix[2])]
        rows = [row for row in rows if any(row)]
        kind = "determinant" if matrix[1] == "vmatrix" else "matrix"
        return f"{kind} {[len(row) for row in rows]}", tuple(cell for row in rows for cell in row)
    spoken = re.sub(r"\\text\s*\{\s*,?\s*(?:and|or)\s*\}|(?<=[\s}\d])(?:and|or)(?=[\s\d\\])", ",", text)
    pieces = _listed(spoken)
    if len(pieces) > 1:
        return "list", _both_signs(pieces)
    union = split(text, [r"\cup"])
    if len(union) > 1:
        return "union", tuple(union)
    brackets, inner = _enclosed(text) or ("", text)
    pieces = _listed(inner)
    if brackets and brackets != "{}":
        return (brackets, tuple(pieces)) if len(pieces) > 1 else None
    members = _both_signs(pieces)
    return ("list", members) if brackets or len(members) > 1 else None


def _listed(text: str) -> list[str]:
    return [piece for piece in split(text, [",", ";"]) if piece]


def _both_signs(pieces: Sequence[str]) -> tuple[str, ...]:
    r"""Return each `a \pm b` as `a + b` and `a - b`."""
    found: list[str] = []
    for piece in pieces:
        signs = (("+", "-"), ("-", "+")) if piece.count(r"\pm") == 1 else ((r"\pm", r"\mp"),)
        found += [piece.replace(r"\pm", s).replace(r"\mp", t) for s, t in signs]
    return tuple(found)


def _compare(answer: str, gold: str, *, depth: int = 0) -> Equality:
    if depth > 8:
        return Equality(latex.compact(answer) == latex.compact(gold), "text")
    answer, gold = _unwrapped(answer), _unwrapped(gold)
    first, second = _parts(answer), _parts(gold)
    values = _value(answer, gold), _value(gold, answer)
    if first is None and values[0] != answer:  # (x, y) = (1, 2) has parts, once its left side is gone
        answer = _unwrapped(values[0])
        first = _parts(answer)
    if second is None and values[1] != gold:
        gold = _unwrapped(values[1])
        second = _parts(gold)
    if first is None and second is None:
        return _compare_leaves(answer, gold)
    if all(parts is None or (parts[0] == "list" and len(parts[1]) == 1) for parts in (first, second)):  # {5} is 5
        return _compare(first[1][0] if first else answer, second[1][0] if second else gold, depth=depth + 1)
    if first is None or second is None:
        if _is_relation(answer) != _is_relation(gold):
            return _by_math_verify(answer, gold)
        return Equality(False, "parts")
    (kind, members), (gold_kind, golds) = first, second
    if kind != gold_kind or len(members) != len(golds) or len(members) > MOST_PARTS:
        return Equality(False, "parts")
    free = list(range(len(members)))
    for place, part in enumerate(golds):  # in any order, each takes the first that equals it and is still free
        here = free if kind in ("list", "union") else [place]
        hit = next((i for i in here if _compare(members[i], part, depth=depth + 1).equal), None)
        if hit is None:
            return Equality(False, "parts")
        free.remove(hit)
    return Equality(True, "parts")


def _unwrapped(text: str) -> str:
    r"""Return an answer without `x \in`, and without round brackets, braces or `\text` round a single thing."""
    text = re.sub(r"^\\?[a-zA-Z]\s*\\in(?![a-zA-Z])", "", text.strip()).strip()
    if _REALS.fullmatch(latex.compact(text)):
        return r"(-\infty,\infty)"
    if latex.compact(text) == r"\{\}":
        return r"\emptyset"
    while True:
        if text.startswith("{") and latex.closing(text, 0) == len(text) - 1:
            text = text[1:-1].strip()
            continue
        spoken = latex.TEXT.fullmatch(text)
        if spoken and re.match(r"\s*-?\.?\d", spoken[1]):
            text = spoken[1].strip()
            continue
        found = _enclosed(text)
        if found is not None and found[0] == "[]" and _MATRIX.fullmatch(found[1]):
            return found[1]
        if found is None or found[0] != "()" or not found[1] or len(split(found[1], [",", ";"])) > 1:
            return text
        text = found[1]


def number(text: str) -> Fraction | None:
    r"""Return the exact value of a number (decimal, repeating, fraction, mixed, `a \cdot 10^b`); None where it is none."""
    if len(text) > LONGEST or re.search(r"\d,\s+\d", text):  # 1, 234 is a list
        return None
    s = _MIXED.sub(r"\1\2\\frac{\3}{\4}", latex.compact(text))
    if found := _REPEATING.fullmatch(s):
        sign, whole, once, again = found.groups()
        repeated = Fraction(int(again), (10 ** len(again) - 1) * 10 ** len(once))
        return Fraction(f"{sign}1") * (Fraction(f"{whole or 0}.{once or 0}") + repeated)
    if found := _FRACTION.fullmatch(s):
        sign, whole, above, below = found[1], found[2], number(found[3]), number(found[4])
        if above is None or not below or (whole and (above < 0 or below < 0)):
            return None
        return Fraction(f"{sign}1") * (int(whole or 0) + above / below)
    if s.count("/") == 1:
        above, below = map(number, s.split("/"))
        return above / below if above is not None and below else None
    if found := _POWER_OF_TEN.fullmatch(s):
        front = Fraction(1) if found[1] is None else number(found[1])
        return None if front is None else front * Fraction(10) ** int(found[2] or found[3])
    if _NUMBER.fullmatch(s) and any(c.isdigit() for c in s):
        return Fraction(re.sub("[ ,]", "", s))
    return None


def _compare_leaves(answer: str, gold: str) -> Equality:
    answer, gold = _value(answer, gold), _value(gold, answer)
    first, answer_unit = latex.without_unit(answer)
    second, gold_unit = latex.without_unit(gold)
    if answer_unit and gold_unit and answer_unit != gold_unit:
        return Equality(False, "text")
    first, second = (_choice(_unwrapped(text)) for text in (first, second))
    if latex.compact(first) == latex.compact(second):
        return Equality(bool(first), "text")
    left, right = number(first), number(second)
    if left is not None and right is not None:
        return Equality(left == right, "number")
    if latex.holds_words(first) or latex.holds_words(second):
        return Equality(_words(first) == _words(second), "text")
    bases = [_BASE.fullmatch(latex.compact(text)) for text in (first, second)]
    if any(bases):
        return Equality(all(bases) and len({(b[1].lower(), b[2]) for b in bases if b}) == 1, "number")
    return _by_math_verify(first, second)


def _value(text: str, other: str) -> str:
    """Return the right side of `name = value` or of `2 + 5 = 7`, unless the other one is an equation with another left side."""
    sides = split(text, ["="])
    if len(sides) < 2 or text.rstrip()[-1:] in "<>=" or re.search(r"[<>!]=|\\(?:[lg]eq|neq)(?![a-z])", text):
        return text
    others = split(other, ["="])
    name = latex.compact(sides[0])
    if len(others) > 1 and latex.compact(others[0]) != name:
        return text
    calculated = not any(re.search("[a-zA-Z]", re.sub(r"\\[a-z]+", "", side)) for side in sides)
    if _NAME.fullmatch(name) or calculated:
        return sides[-1]
    return sides[0] if len(sides) == 2 and _NAME.fullmatch(latex.compact(sides[1])) and len(others) == 1 else text


def _choice(text: str) -> str:
    r"""Return `\text{(C)}` as C."""
    found = re.fullmatch(r"\(?([A-Za-z])\)?", latex.without_text(text))
    return found[1] if found else text


def _words(text: str) -> str:
    return re.sub(r"[\s\\{}]+", " ", latex.without_text(text)).strip(" .").casefold()


def _is_relation(text: str) -> bool:
    return bool(re.search(r"[<>]|\\(?:[lg]eq|neq)(?![a-z])", text))


def _by_math_verify(answer: str, gold: str) -> Equality:
    """Ask math-verify, decimals as fractions, which are exact; but not what it would misread (`7 8`, unclosed braces)."""
    first, second = (_exact(latex.without_text(text)) for text in (answer, gold))
    if first is None or second is None or ("=" in first) != ("=" in second):
        return Equality(False, "text")
    equal = asked(first, second) or (_is_relation(second) != _is_relation(first) and asked(second, first))
    return Equality(equal, "math-verify")


def _exact(text: str) -> str | None:
    r"""Return LaTeX without decimals; None where braces do not match or digits stand apart."""
    unmatched = latex.closing(f"{{{text}}}", 0) != len(text) + 1
    if unmatched or re.search(r"\d \d|\d_|[^\x00-\x7f]", latex.compact(text)):
        return None
    return re.sub(r"\d*\.\d+", _as_fraction, text.replace(latex.NEW_ROW, r"\\"))


def _as_fraction(found: re.Match[str]) -> str:
    value = Fraction("0" + found[0])
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
