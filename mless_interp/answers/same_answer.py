r"""Whether two answers are equal: by their text in one spelling, by their numbers, by their parts, and then by math-verify.

What counts as the same answer:

- Fractions, decimals, mixed numbers, repeating decimals, `a \times 10^b`, `1.5e3` and numbers with thousands separators are
  compared exactly: 0.15 is 3/20 and is not 0.1500001; 0.333 is not 1/3. `7 7` is no number, and `1, 234` is a list of two.
- Two numbers with a slash are their fraction, whatever follows: 3/2 x is 1.5 x. (a/2b is a/(2b).) y' and A^T are not y and A.
- Degree, percent and currency signs do not count: 90 is 90 degrees, 50 % is 50 (and is not 0.5). But \$5 is not 5 cents.
- A unit may be left out; two different units differ (5 cm is not 5 m, 5 cents are not 5 dollars). Words of scale are part of
  the number: 2 million is 2000000, and 3 halves are not 3. Numbers with a base need it: 52_8 is not 52.
- Points and tuples are in order and need their brackets, intervals their kinds of brackets: (1, 2] is not (1, 2), nor 1, 2.
- Times and ratios are the same in every part (5:25 is not 10:50), and 3:4 is also 3/4 and 0.75.
- Lists, sets and unions are in any order, `1 \pm 2` is a list of two, and a set may be written without braces.
- Matrices entry by entry, round and square brackets alike; a determinant is none.
- `x = 5` is 5, but `x = 5` is not `y = 5`. Equations and inequalities are math-verify's.
- Words and capitals in a row are compared as text, without case: XI is not IX. A choice may stand in brackets: (C) is C.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

from .math_verify_process import GaveUp, asked

LONGEST = 500  # characters; a longer answer is compared as text only
MOST_PARTS = 40
GAVE_UP = "gave up"  # nothing decided, within the limits of time and memory
NEW_ROW, UNIT = "\x01", "\x02"  # stand in plain answers for a matrix's line break and before a unit
_SIGNS = str.maketrans(
    {
        "−": "-", "–": "-", "×": r"\cdot ", "⋅": r"\cdot ", "·": r"\cdot ", "π": r"\pi ", "∞": r"\infty ", "≤": r"\leq ",
        "≥": r"\geq ", "≠": r"\neq ", "±": r"\pm ", "∪": r"\cup ", "∈": r"\in ", "∅": r"\emptyset ", "°": r"\degree ",
        "£": "", "€": "", "½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}",
        "¾": r"\frac{3}{4}", "²": "^2", "³": "^3", "⁴": "^4", "\u200b": "", NEW_ROW: " ", UNIT: " ",
    }
)  # fmt: skip
_TEXT = r"\\(?:text|mbox|hbox|textbf|textit|textrm|textnormal|mathrm)\s*\{([^{}]*?)\.?\s*\}"
_END = r"(?![a-zA-Z])"
_DEGREE = rf"(?:\^\s*(?:\{{\s*\\circ\s*\}}|\\circ{_END})|\\degree{_END})"
_RULES = (
    (r"\\\\(?:\s*\[[^\]]*\])?", NEW_ROW),
    # signs that do not count
    (r"(?:,\\!|\{,\})\s*(?=\d{3}(?!\d))", ""),
    (r"(?<=\d),(?=(?:\d{3},)*\d{3}\s*(?!\\?\w*\{?\s*(?:and|or)\b)(?:[a-zA-Z]{2}|\\(?:text|mbox|mathrm|pi)))", ""),
    (rf"{_DEGREE}\s*,|,\s*\\?\$(?=\d)", ";"),
    (rf"\\[,;:>\s]|(?<!\\)~|\\q?quad{_END}", " "),
    (rf"\\(?:left|right|middle|[bB]igg?[lr]?|(?:display|text|script)style|(?:no)?limits|boxed){_END}|\\!|\\?[$%]", ""),
    (_DEGREE, ""),
    (r"^\s*\\[(\[]|\\[)\]](?=[\s.,;]*$)", ""),
    (r"(?<!\.)(?:[\s,;\\]|\.(?!\.))+$", ""),  # an ellipsis stays
    (rf"^\s*\\?[a-zA-Z]\s*\\in{_END}", ""),
    (r"\+\s*(?=\\infty)", ""),
    # one name for each thing
    (r"\\(?:mathbf|mathit|boldsymbol|bm|operatorname|mathrm(?=\{[ie]\}))\s*\*?\s*\{([^{}]*)\}", r"\1"),
    (r"\\not\s*=", r"\\neq "),
    (rf"\\[dtc]frac{_END}", r"\\frac"),
    (rf"\\times{_END}", r"\\cdot "),
    (rf"\\(le|ge|ne)(?:q?slant)?{_END}", r"\\\1q"),
    (r"\\varnothing|\\\{\s*\\\}", r"\\emptyset"),
    (rf"(?<![\\a-zA-Z])(pi|infty|theta){_END}", r"\\\1 "),
    (rf"(?<![\\a-zA-Z])inf(?:inity)?{_END}", r"\\infty "),
    (r"(\\(?:text|mbox|mathrm)\s*\{[^{}^]*)(\^\d)\s*\}", r"\1}\2"),  # \text{cm^2}
    (r"^((?:\\text\w*\{)?[A-Z])\)(?=\}?$)", r"\1"),  # a choice: C)
    (r"\\mathbb\s*\{?R\}?|[aA]ll real(?: number)?s", r"(-\\infty,\\infty)"),
    (rf"(?<![a-zA-Z])([apAP])\.\s?([mM])(?:\.|{_END})", r"\1\2"),  # 3:30 p.m.
    # lists, and braces round every argument
    (r"\\(?:text|mbox)\s*\{\s*,?\s*(?:and|or)\s*\}|(?<=[\s}\d])(?:and|or)(?=[\s\d\\])|,\s+(?=\d{3}(?!\d))", ";"),
    (r"(?:√|(?<![\\a-zA-Z])sqrt)\s*(?:\(([^()]*)\)|(\d+|[a-zA-Z]))", r"\\sqrt{\1\2}"),
    (r"\\(frac|sqrt(?:\[\w+\])?)\s*(\d|(?<=\s)[a-zA-Z]|\\pi)", r"\\\1{\2}"),
    (r"(\\frac\s*\{(?:[^{}]|\{[^{}]*\})*\})\s*(\d|[a-zA-Z]|\\pi)", r"\1{\2}"),
    (r"([_^])\s*([0-9])", r"\1{\2}"),
)
_UNIT = re.compile(
    rf"(?:(?<=[\w)}}])[\s-]*{_TEXT}|(?<=[\d}}])(\s*[a-zA-Z]{{2,}}(?:[ ./]+[a-zA-Z]{{2,}})*))"
    r"\s*(\^\{\d\})?\s*(?=$|\\?[,;)\]}])"
)
_NUMBER = re.compile(r"[+-]?(?:\d+(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d*)(?:\.\d*)?")
_POWER_OF_TEN = re.compile(r"(?:(.+)\\cdot)?10\^(?:\{([+-]?\d{1,3})\}|(\d{1,3}))")
_FRACTION = re.compile(r"([+-]?)(\d*) ?\\frac\{([+-]?[\d.,]+)\}\{([+-]?[\d.,]+)\}")
_REPEATING = re.compile(r"([+-]?)(\d*)\.(\d*)\\(?:overline|bar)\{(\d+)\}")
_NAME = re.compile(
    r"\\?[a-zA-Z]+(?:_(?:\w|\{\w+\}))?'?(?:\([a-zA-Z](?:,[a-zA-Z])*\))?|\(\\?[a-zA-Z]+(?:,\\?[a-zA-Z]+)+\)"
)
_MATRIX = re.compile(r"\[?\\begin\{([bBp]?matrix|smallmatrix|array)\}(?:\{[lcr|]*\})?(.*)\\end\{\1\}\]?")
_UNIT_NAMES = {
    "in": "inch", "inche": "inch", "ft": "foot", "feet": "foot", "yd": "yard", "mi": "mile", "mm": "millimeter",
    "cm": "centimeter", "km": "kilometer", "kg": "kilogram", "hr": "hour", "min": "minute", "sec": "second", "lb": "pound",
    "mph": "mileperhour", "oz": "ounce", "sq": "square", "cu": "cubic", "am": "am", "pm": "pm", "usd": "dollar",
}  # fmt: skip
_MISREAD: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"(?<![\d./])([\d.]+)((?:/[\d.]+)+)(?![\d.^_!])", lambda at: rf"\frac{{{at[1]}}}{{{at[2][1:].replace('/', '*')}}}"),
    (r"\d*\.\d+", lambda at: r"\frac{{{}}}{{{}}}".format(*Fraction("0" + at[0]).as_integer_ratio())),
    (r"([a-zA-Z])(?:_\{(\w+)\})?('+)", lambda at: f"{at[1]}_{{{at[2] or ''}{'prime' * len(at[3])}}}"),
    (r"\^(?:T|\{T\})", "^{t_{upper}}"),
)  # fmt: skip
"""What math-verify would take for 1/(2x), round, or leave out (primes, `^T`), in a spelling that it reads rightly."""
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
"""Words that are part of the number, as powers of ten."""
_CHANGES = re.compile(  # the number before these words, so they are no unit; `;` is "and" or "or"
    r"(?i)^\s*(?:;|and\b)|\b(?:dozens?|below|minus|at (?:least|most))\b|^\W*(?:hal(?:f|ves)|(?:squar|cub)ed|score|gross"
    r"|factorial|repeating|base(?: (?:two|three|four|five|six|seven|eight|nine|ten))?|(?:thir|four|fif|six|seven|eigh|nin"
    r"|ten|eleven|twelf|\w+teen|\w+tie|hundred|thousand|\w+illion)(?:d|th)s?)(?: of\b.*|\W*)$"
)
_IN_ORDER = re.compile(r"[A-Z]{2,}|(?!\d+E\d+$)(?=.*\d)(?=.*[A-F])[\dA-F]+")
"""Capitals alone and digits of other bases, which are no products: XI, 1AB."""
_FUNCTIONS = set(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log exp max min gcd lcm mod det lim sup inf sqrt frac "
    "infty theta alpha beta gamma delta lambda sigma omega phi".split()
)
"""Runs of letters that are mathematics without a backslash, not words."""


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
    if max(len(answer), len(gold)) > LONGEST:
        return Equality(answer == gold, "text")
    if {(r"\$" in x, bool(re.search(r"\bcents?\b", x))) for x in (answer, gold)} == {(True, False), (False, True)}:
        return Equality(False, "text")
    try:
        return _compare(plain(answer), plain(gold))
    except GaveUp:  # what cannot be decided in part is not decided
        return Equality(False, GAVE_UP)


def plain(answer: str) -> str:
    """Return an answer in one spelling, without spaces but between digits (`7 7` is not 77) and between words."""
    s = answer.translate(_SIGNS)
    for old, new in _RULES:
        s = re.sub(old, new, s)
    s = re.sub(r"(?<=^\\text\{)[\s(]*[a-zA-Z]{2}\W*$", lambda two: two[0].upper(), s)  # \text{iv} is no product either
    s = re.sub(_TEXT, r" \1 ", _UNIT.sub(_plain_unit, s))
    s = re.sub(r"\s+", " ", s).strip()
    return re.sub(r"(?<![0-9]) (?=[0-9])|(?<![a-zA-Z]) (?=[a-zA-Z])| (?![0-9a-zA-Z])|(?<=\b[A-Z]) (?=[A-Z]\b)", "", s)


def _plain_unit(found: re.Match[str]) -> str:
    """Return what stands after a number with words of scale as powers of ten and its unit's one name; else as it is."""
    before, said = found.string[: found.start()], found[1] or found[2] or ""
    if not re.search(r"\d|\\pi", before) or _CHANGES.search(said) or (found[1] is None and _is_product(said)):
        return found[0]
    power, scale, words = re.sub(r"\D", "", found[3] or ""), 0, ""
    for word in re.findall("[a-z]+", said.lower().replace("metre", "meter").replace("(s)", "")):
        one = _UNIT_NAMES.get(word.removesuffix("s"), word.removesuffix("s") or "second")
        if one in ("square", "cubic"):
            power = power or ("2" if one == "square" else "3")
        elif one in _SCALES:
            scale += _SCALES[one]
        elif one != "unit":
            words += one
    return (rf"\cdot 10^{scale}" if scale else "") + (UNIT + words + power.replace("1", "") if words else "")


def _is_product(letters: str) -> bool:
    """Return whether letters after a number are a product or a function, `2ab` or `3 sin`, and no unit (a
    known one, or a word with a vowel: of four letters or more, or of three after a space)."""
    shortest = 3 if letters[:1].isspace() else 4
    words = re.findall("[a-z]+", letters.lower())
    unknown = [word for word in words if word.removesuffix("s") not in _UNIT_NAMES and word not in ("of", "per")]
    return any(word in _FUNCTIONS or len(word) < shortest or not re.search("[aeiou]", word) for word in unknown)


def number(text: str) -> Fraction | None:
    r"""Return the exact value of a number (decimal, repeating, fraction, mixed, `a \cdot 10^b`); None where it is none."""
    if found := _REPEATING.fullmatch(text):
        sign, whole, once, again = found.groups()
        nines = (10 ** len(again) - 1) * 10 ** len(once)
        return Fraction(f"{sign}1") * Fraction(int(whole + once + again) - int(f"0{whole}{once}"), nines)
    text = re.sub(r"^([+-]?[\d.]+)[eE]([+-]?\d{1,3})$", r"\1\\cdot10^{\2}", text)
    text = re.sub(r"(?<![^\s+-])([\d.,]+)/([+-]?[\d.,]+)$", r"\\frac{\1}{\2}", text)
    if found := _FRACTION.fullmatch(text):
        above, below = number(found[3]), number(found[4])
        if above is None or not below or (found[2] and min(above, below) < 0):
            return None
        return Fraction(f"{found[1]}1") * (int(found[2] or 0) + above / below)
    if found := _POWER_OF_TEN.fullmatch(text):
        front = number(found[1] or "1")
        return None if front is None else front * Fraction(10) ** int(found[2] or found[3])
    return Fraction(re.sub("[ ,]", "", text)) if _NUMBER.fullmatch(text) and re.search(r"\d", text) else None


def split(text: str, separators: Sequence[str]) -> list[str]:
    """Return the pieces between separators that stand outside all brackets, without empty ones."""
    pieces, depth = [""], 0
    for token in re.findall(r"\\[a-z]+|\\.|.", text):
        depth += (token in ("(", "[", "{", r"\{")) - (token in (")", "]", "}", r"\}"))
        if depth == 0 and token in separators:
            pieces.append("")
        else:
            pieces[-1] += token
    return [piece for piece in pieces if piece]


def _parts(text: str) -> tuple[str, list[str]]:
    """Return what holds the parts of an answer ("list", a tuple's brackets, a matrix's shape), and these; one: it has none."""
    if number(text) is not None:
        return "list", [text]
    if matrix := _MATRIX.fullmatch(text):
        rows = [row.split("&") for row in matrix[2].split(NEW_ROW) if row]
        return f"matrix {[len(row) for row in rows]}", [cell for row in rows for cell in row]
    if len(union := split(text, [r"\cup"])) > 1:
        sets = [each for each in union if re.fullmatch(r"\\\{[^{}]*\\\}", each)]
        one = rf"\{{{','.join(each[2:-2] for each in sets)}\}}"
        if sets == union:
            return _parts(one)
        return "union", [each for each in union if each not in sets] + [one] * bool(sets)
    bare = text.removeprefix("\\")
    depths = list(accumulate((c in "([{") - (c in ")]}") for c in bare))
    if bare[:1] in tuple("([{") and depths[-1] == 0 and all(depths[:-1]):  # one pair of brackets round everything
        brackets, inner = bare[0] + bare[-1], bare[1:-1].removesuffix("\\")
        pieces = split(inner, ",;")
        if text[0] == "{" or (brackets == "()" and len(pieces) < 2):  # {58,500} is a number, \{58,500\} a set
            return "list", [inner]
        if brackets == "{}":  # \{5\} is 5, but \{\{1,2\}\} is not \{1,2\}
            pieces = _both_signs(pieces)
            return "list", [text] if len(pieces) == 1 and len(_parts(pieces[0])[1]) > 1 else pieces
        if len(pieces) > 1:
            return brackets, pieces
    return "list", _both_signs(split(text, ",;"))


def _both_signs(pieces: Sequence[str]) -> list[str]:
    r"""Return each `a \pm b` as `a + b` and `a - b`."""
    return [x.replace(r"\pm", sign) for x in pieces for sign in ("+-" if x.count(r"\pm") == 1 else (r"\pm",))]


def _compare(answer: str, gold: str, depth: int = 0) -> Equality:
    if not answer or not gold or depth > 8:
        return Equality(False, "text")
    if answer.replace(";", ",") == gold.replace(";", ","):
        return Equality(True, "text")
    left, right = number(answer), number(gold)
    if left is not None and right is not None:
        return Equality(left == right, "number")
    (kind, parts), (gold_kind, golds) = _parts(answer), _parts(gold)
    inner = [held[0] if len(held) == 1 else text for held, text in ((parts, answer), (golds, gold))]
    (name, value), (gold_name, gold_value) = _named(answer), _named(gold)
    if inner == [answer, gold] and (name is None or gold_name is None or name == gold_name):
        inner = [value, gold_value]
    if inner != [answer, gold]:  # ((5)) and x = 5 are 5, (C) is C; but x = 5 is not y = 5
        return _compare(inner[0], inner[1], depth + 1)
    if max(len(parts), len(golds)) > 1:
        if (len(parts) == 1 or len(golds) == 1) and _is_relation(answer) != _is_relation(gold):
            return _by_math_verify(answer, gold)
        if kind != gold_kind or len(parts) != len(golds) or len(parts) > MOST_PARTS:
            return Equality(False, "parts")
        for part in golds:  # in any order, each takes the first that equals it and is still free
            here = range(len(parts)) if kind in ("list", "union") else [0]
            hit = next((at for at in here if _compare(parts[at], part, depth + 1).equal), None)
            if hit is None:
                return Equality(False, "parts")
            parts.pop(hit)
        return Equality(True, "parts")
    (answer, unit), (gold, gold_unit) = (each.partition(UNIT)[::2] for each in (answer, gold))
    if unit or gold_unit:
        clock = unit + gold_unit in ("am", "pm") and (":" in answer) != (":" in gold)  # 5:30 pm is no ratio
        agree = not clock and (not unit or not gold_unit or unit == gold_unit)
        if len({re.sub(r"\^\{(\d)\}$", r"\1", each) for each in (answer + unit, gold + gold_unit)}) == 1:
            return Equality(True, "text")  # 10 m^2, whose m could be a number
        return _compare(answer, gold, depth + 1) if agree else Equality(False, "text")
    own, wanted = (split(each, ":") for each in (answer, gold))
    if {len(own), len(wanted)} == {1, 2}:
        one, other = (x[0] if len(x) == 1 else rf"\frac{{{x[0]}}}{{{x[1]}}}" for x in (own, wanted))
        return _compare(one, other, depth + 1)
    if max(len(own), len(wanted)) > 1:
        alike = len(own) == len(wanted) and all(
            _compare(*two, depth + 1).equal for two in zip(own, wanted, strict=True)
        )
        return Equality(alike, "parts")
    if any(map(_IN_ORDER.fullmatch, (answer, gold))) or _holds_words(answer) or _holds_words(gold):
        return Equality(answer.casefold() == gold.casefold(), "text")
    return _by_math_verify(answer, gold)


def _named(text: str) -> tuple[str | None, str]:
    """Return the left side (None without one), and the value of `name = value` or of `2 + 5 = 7`, else the text."""
    sides = sorted(split(text, "="), key=lambda side: _NAME.fullmatch(side) is None)  # 5 = x too
    chain = len(sides) == 2 or (len(sides) > 2 and not re.search("[,;]", text))
    calculated = not re.search("[a-zA-Z]", re.sub(r"\\[a-z]+", "", text))
    has_value = chain and (calculated or _NAME.fullmatch(sides[0])) and not _is_relation(text)
    return sides[0] if len(sides) > 1 else None, sides[-1] if has_value else text


def _holds_words(text: str) -> bool:
    """Return whether an answer says something in words: three letters in a row that are no function."""
    words = re.findall("[a-z]+", re.sub(r"\\[a-zA-Z]+", " ", text).lower())
    return any(word in ("no", "on", "up") or (len(word) > 2 and word not in _FUNCTIONS) for word in words)


def _is_relation(text: str) -> bool:
    return bool(re.search(r"[<>]|(?<![\d)])!=|\\(?:[lg]eq|neq)(?![a-z])", text))


def _by_math_verify(answer: str, gold: str) -> Equality:
    """Ask math-verify; but not what it would misread in any spelling (`7 8`, `52_8`, and `1<2`, as true as `3<4`)."""
    misread = r"\d \d|\d_|[^ -~]|^[^a-zA-Z]*([<>]|\\[lgn]eq)[^a-zA-Z]*$"
    unread = any(re.search(misread, text) or text.count("{") != text.count("}") for text in (answer, gold))
    if unread or ("=" in answer) != ("=" in gold):
        return Equality(False, "text")
    for old, new in _MISREAD:
        answer, gold = re.sub(old, new, answer), re.sub(old, new, gold)
    if re.search("[)}]'", answer + gold):  # primes of what has no name
        return Equality(False, "text")
    equal = asked(answer, gold) or (_is_relation(gold) != _is_relation(answer) and asked(gold, answer))
    return Equality(equal, "math-verify")
