r"""One spelling for answers that mean the same: LaTeX as people and models write it made plain, units and their names.

Nothing here decides whether two answers are equal; `same_answer.py` does.
"""

import re

NEW_ROW = "\x01"
r"""Stands for the line break `\\` of matrices in plain answers, so that no rule takes half of it for another command."""
_COMMAND = re.compile(r"\\([a-zA-Z]+)")
_RENAMED = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "le": "leq", "ge": "geq", "leqslant": "leq", "geqslant": "geq",
    "ne": "neq", "infin": "infty", "land": "wedge", "lbrace": "{", "rbrace": "}", "times": "cdot", "arctg": "arctan",
    "tg": "tan", "varnothing": "emptyset",
}  # fmt: skip
_DROPPED = (
    "displaystyle textstyle scriptstyle left right middle big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr "
    "limits nolimits boxed pounds euro"
).split()
_COMMANDS = {
    **{name: f"\\{new}" for name, new in _RENAMED.items()}, **dict.fromkeys(_DROPPED, ""),
    **dict.fromkeys(("quad", "qquad", "enspace", "thinspace"), " "),
    "lt": "<", "gt": ">", "lparen": "(", "rparen": ")", "lbrack": "[", "rbrack": "]",
}  # fmt: skip
_SIGNS = str.maketrans(
    {
        "−": "-", "–": "-", "×": r"\cdot ", "⋅": r"\cdot ", "·": r"\cdot ", "π": r"\pi ", "∞": r"\infty ", "≤": r"\leq ",
        "≥": r"\geq ", "≠": r"\neq ", "±": r"\pm ", "∪": r"\cup ", "∈": r"\in ", "°": r"^{\circ}", "\u00a0": " ",
        "£": "", "€": "",
        "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}", "²": "^2", "³": "^3", "∅": r"\emptyset ",
    }
)  # fmt: skip
_FONTS = re.compile(r"\\(?:mathbf|boldsymbol|bm|mathit|mathsf|mathtt|operatorname)\s*\*?\s*\{([^{}]*)\}")
TEXT = re.compile(r"\\(?:text|mbox|textbf|textit|textrm|textnormal|mathrm|hbox)\s*\{([^{}]*)\}")
_DELIMITED = ((r"\(", r"\)"), (r"\[", r"\]"), ("$$", "$$"), ("$", "$"))
FUNCTIONS = set(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp lg max min gcd lcm mod det dim ker deg arg "
    "lim sup inf pi theta alpha beta gamma delta lambda sigma omega phi psi rho tau mu sqrt frac infty infinity".split()
)
"""Runs of three or more letters that are mathematics without a backslash, not words."""
_SHORT_WORDS = {"no", "on", "up", "am", "pm"}
_TYPED = {"pi": "pi", "infinity": "infty", "infty": "infty", "inf": "infty", "theta": "theta"}


def plain(answer: str) -> str:
    r"""Return an answer in one spelling: no sizes, spacing, fonts, degree, percent or currency signs; braces where LaTeX lets
    one leave them out. `\text{...}` stays.
    """
    s = re.sub("√\\s*(?:\\(([^()]*)\\)|(\\d+|[a-zA-Z]))", r"\\sqrt{\1\2}", answer) if "√" in answer else answer
    s = s.replace(NEW_ROW, " ").replace(r"\\", f" {NEW_ROW} ").translate(_SIGNS).strip()
    s = re.sub(r"(?<!\\)%.*\n", " ", s) if "\n" in s else s
    s = s[:-1].rstrip() if s.endswith((".", ",", ";")) else s
    for before, after in _DELIMITED:
        if len(s) > len(before) + len(after) and s.startswith(before) and s.endswith(after):
            s = s[len(before) : -len(after)].strip()
    s = s.replace(r"\!", "").replace("{,}", ",").replace(r"\$", "").replace("$", "").replace(r"\%", "").replace("%", "")
    s = re.sub(r",\s+(?=\d{3}\b)", ",", s) if r",\!" in answer else s
    s = re.sub(r"\\(?:$|[,;:>\s])|(?<!\\)~", " ", s)
    s = _FONTS.sub(r"\1", s)
    s = _COMMAND.sub(lambda found: _COMMANDS.get(found[1], found[0]), s)
    s = re.sub(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z]))|\\degree(?![a-zA-Z])", "", s)
    s = re.sub(r"(?<![\\a-zA-Z])(pi|infinity|infty|inf|theta)(?![a-zA-Z])", lambda found: f"\\{_TYPED[found[1]]} ", s)
    s = re.sub(r"(?<![\\a-zA-Z])sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}", s)
    s = re.sub(r"([_^])\s*([0-9])", r"\1{\2}", _braced(s))
    s = re.sub(r"\+\s*(?=\\infty)", "", s)
    s = re.sub(r"(?<![a-zA-Z])([ap])\.\s?m(?:\.|(?![a-zA-Z]))", r"\1m", s, flags=re.IGNORECASE)  # 3:30 p.m.
    s = re.sub(r"\s+", " ", s).strip()
    return s[:-1].rstrip() if s.endswith((".", ",", ";")) else s


def compact(answer: str) -> str:
    """Return a plain answer without spaces, but for one between digits (`7 7` is not 77) and between letters."""
    s = re.sub(r"\s+", " ", answer)
    s = re.sub(r"(?<=[0-9]) (?=[0-9])|(?<=[a-zA-Z]) (?=[a-zA-Z])", "\0", s)
    return s.replace(" ", "").replace("\0", " ")


def without_text(answer: str) -> str:
    r"""Return the answer with each `\text{...}` replaced by what stands in it."""
    return re.sub(r"\s+", " ", TEXT.sub(r" \1 ", answer)).strip()


def holds_words(answer: str) -> bool:
    r"""Return whether an answer says something in words: in `\text{...}`, or three letters in a row that are no function."""
    if any(re.search("[a-zA-Z]{2}", text) for text in TEXT.findall(answer)):
        return True
    words = re.findall("[a-z]+", _COMMAND.sub(" ", re.sub(r"\\(?:begin|end)\{\w*\}", " ", answer)).lower())
    return any(word in _SHORT_WORDS or (len(word) > 2 and word not in FUNCTIONS) for word in words)


def _braced(s: str) -> str:
    r"""Return `\frac12`, `\frac1{2}` and `\sqrt3` with braces round every argument."""
    found = re.search(r"\\(frac|sqrt)(?![a-zA-Z])\s*(\[[^\[\]]*\])?", s)
    if not found:
        return s
    arguments, rest = "", s[found.end() :]
    for _ in range(2 if found[1] == "frac" else 1):
        argument, rest = _argument(rest)
        if argument is None:
            break
        arguments += f"{{{_braced(argument).strip()}}}"
    return f"{s[: found.start()]}\\{found[1]}{found[2] or ''}{arguments or ' '}{_braced(rest)}"


def _argument(s: str) -> tuple[str | None, str]:
    """Return the next LaTeX argument (a group, a command or one character), None if there is none, and what follows."""
    s = s.lstrip()
    closed = closing(s, 0) if s.startswith("{") else None
    if closed is not None:
        return s[1:closed], s[closed + 1 :]
    found = re.match(r"\\(?:[a-zA-Z]+|.?)|[^{})\]&]", s, re.DOTALL)
    return (found[0], s[found.end() :]) if found else (None, s)


def closing(s: str, at: int) -> int | None:
    """Return where the brace opened at `at` is closed; None if it never is."""
    depth = 0
    for found in re.compile(r"\\.|[{}]", re.DOTALL).finditer(s, at):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if depth == 0:
            return found.start()
    return None


_UNIT_NAMES = {
    "in": "inch", "inche": "inch", "ft": "foot", "feet": "foot", "yd": "yard", "mi": "mile", "mm": "millimeter",
    "cm": "centimeter", "km": "kilometer", "kg": "kilogram", "hr": "hour", "min": "minute", "sec": "second", "lb": "pound",
    "metre": "meter", "centimetre": "centimeter", "kilometre": "kilometer", "millimetre": "millimeter", "mph": "mileperhour",
    "oz": "ounce", "sq": "square", "cu": "cubic", "am": "am", "pm": "pm", "usd": "dollar", "rad": "radian",
}  # fmt: skip
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
"""Words that are part of the number, as powers of ten."""
_WORDS_AFTER = re.compile(r"(.*[\d}])(\s*(?:[a-zA-Z]{2,}[ ./]+)*[a-zA-Z]{2,}[ ./]*)(\^\{?\d\}?)?")
_TEXT_AFTER = re.compile(
    r"(.*\S)\s*\\(?:text|mbox|textrm|mathrm|textnormal|textbf|hbox)\s*\{([^{}]*)\}\s*(\^\{?\d\}?)?"
)


def without_unit(text: str) -> tuple[str, str]:
    r"""Return an answer and its unit, in one spelling; the unit is empty where there is none, or none that counts."""
    found = _TEXT_AFTER.fullmatch(text)
    if found is None or not re.search(r"\d|\\pi", found[1]):
        found = _WORDS_AFTER.fullmatch(text)
        if found is None or re.search(r"\\[a-zA-Z]*$", found[1]) or _mathematics(found[2]):
            return text, ""
    power = re.sub(r"[^\d]", "", found[3] or "")
    words, scale = [], 0
    for word in re.findall("[a-z]+", found[2].lower()):
        one = word.removesuffix("s")
        one = _UNIT_NAMES.get(one, one)
        if one in ("square", "cubic"):
            power = power or ("2" if one == "square" else "3")
        elif one in _SCALES:
            scale += _SCALES[one]
        elif one != "unit":
            words.append(one)
    value = found[1].strip().rstrip("-").strip() + (rf"\cdot10^{{{scale}}}" if scale else "")
    return value, "".join(words) + (f"^{power}" if words and power not in ("", "1") else "")


def _mathematics(words: str) -> bool:
    """Return whether letters after a number are a product or a function, `2ab` or `3 sin`, and no unit (a
    known one, or a word with a vowel: of four letters or more, or of three after a space)."""
    found = re.findall("[a-z]+", words.lower())
    if any(word in FUNCTIONS and word not in _UNIT_NAMES for word in found):  # 5 min: minutes
        return True
    shortest = 3 if words[:1].isspace() else 4
    return not all(
        word in _UNIT_NAMES
        or word.rstrip("s") in _UNIT_NAMES
        or (len(word) >= shortest and re.search("[aeiou]", word))
        or (word in ("per", "of") and len(found) > 1)
        for word in found
    )
