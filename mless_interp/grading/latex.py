r"""One spelling for answers that mean the same: LaTeX as people and models write it, made plain.

Nothing here decides whether two answers are equal; `compare.py` does.
"""

import re

NEW_ROW = "\x01"
r"""Stands for the line break `\\` of matrices in plain answers, so that no rule takes half of it for another command."""
_COMMAND = re.compile(r"\\([a-zA-Z]+)")
_RENAMED = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "le": "leq", "ge": "geq", "leqslant": "leq", "geqslant": "geq",
    "ne": "neq", "lt": "<", "gt": ">", "infin": "infty", "land": "wedge", "lbrace": "{", "rbrace": "}", "times": "cdot",
    "lparen": "(", "rparen": ")", "lbrack": "[", "rbrack": "]", "tan": "tan", "arctg": "arctan", "tg": "tan",
    "varnothing": "emptyset",
}  # fmt: skip
_DROPPED = set(
    "displaystyle textstyle scriptstyle left right middle big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr "
    "limits nolimits boxed pounds euro".split()
)
_SPACES = {"quad", "qquad", "enspace", "thinspace"}
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
_TYPED = {"pi": r"\pi ", "infinity": r"\infty ", "infty": r"\infty ", "inf": r"\infty ", "theta": r"\theta "}


def plain(answer: str) -> str:
    r"""An answer in one spelling: no sizes, spacing, fonts, degree, percent or currency signs; braces where LaTeX lets one
    leave them out. `\text{...}` stays.

    >>> plain(r"$\dfrac12\,x$"), plain(r"\$32,\!348."), plain(r"90^\circ")
    ('\\frac{1}{2} x', '32,348', '90')
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
    s = _COMMAND.sub(_one_command, s)
    s = re.sub(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z]))|\\degree(?![a-zA-Z])", "", s)
    s = re.sub(r"(?<![\\a-zA-Z])(pi|infinity|infty|inf|theta)(?![a-zA-Z])", lambda found: _TYPED[found[1]], s)
    s = re.sub(r"(?<![\\a-zA-Z])sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}", s)
    s = re.sub(r"([_^])\s*([0-9])", r"\1{\2}", _braced(s))
    s = re.sub(r"\+\s*(?=\\infty)", "", s)
    s = re.sub(r"(?<![a-zA-Z])([ap])\.\s?m(?:\.|(?![a-zA-Z]))", r"\1m", s, flags=re.IGNORECASE)  # 3:30 p.m.
    s = re.sub(r"\s+", " ", s).strip()
    return s[:-1].rstrip() if s.endswith((".", ",", ";")) else s


def compact(answer: str) -> str:
    """A plain answer without spaces, but for one between digits (`7 7` is not 77) and between letters."""
    s = re.sub(r"\s+", " ", answer)
    s = re.sub(r"(?<=[0-9]) (?=[0-9])|(?<=[a-zA-Z]) (?=[a-zA-Z])", "\0", s)
    return s.replace(" ", "").replace("\0", " ")


def without_text(answer: str) -> str:
    r"""The answer with each `\text{...}` replaced by what stands in it."""
    return re.sub(r"\s+", " ", TEXT.sub(r" \1 ", answer)).strip()


def holds_words(answer: str) -> bool:
    r"""Whether an answer says something in words: in `\text{...}`, or three letters in a row that are no function.

    >>> holds_words(r"\text{no}"), holds_words("east"), holds_words(r"\sin x"), holds_words("ab")
    (True, True, False, False)
    """
    if any(re.search("[a-zA-Z]{2}", text) for text in TEXT.findall(answer)):
        return True
    words = re.findall("[a-z]+", _COMMAND.sub(" ", re.sub(r"\\(?:begin|end)\{\w*\}", " ", answer)).lower())
    return any(word in _SHORT_WORDS or (len(word) > 2 and word not in FUNCTIONS) for word in words)


def _one_command(found: re.Match[str]) -> str:
    name = found.group(1)
    if name in _DROPPED:
        return ""
    if name in _SPACES:
        return " "
    if name in ("lbrace", "rbrace"):
        return "\\" + _RENAMED[name]
    new = _RENAMED.get(name)
    if new is None:
        return found.group()
    return "\\" + new if new.isalpha() else new


def _braced(s: str) -> str:
    r"""`\frac12`, `\frac1{2}`, `\sqrt3`, `x^2` and `x_2` with braces round every one-token argument of \frac and \sqrt."""
    out, at = [], 0
    for found in re.finditer(r"\\(frac|sqrt)(?![a-zA-Z])\s*(\[[^\[\]]*\])?", s):
        if found.start() < at:
            continue
        out.append(s[at : found.start()])
        at = found.end()
        arguments = []
        for _ in range(2 if found.group(1) == "frac" else 1):
            argument, at = _argument(s, at)
            if argument is None:
                break
            arguments.append("{" + _braced(argument).strip() + "}")
        out.append(f"\\{found.group(1)}{found.group(2) or ''}{''.join(arguments)}")
        if not arguments or arguments[-1][-1:] != "}":
            out.append(" ")
    out.append(s[at:])
    return "".join(out)


def _argument(s: str, at: int) -> tuple[str | None, int]:
    """The next LaTeX argument (a group, a command or one character) and where it ends; None at the end of the text."""
    while at < len(s) and s[at].isspace():
        at += 1
    if at >= len(s) or s[at] in "})]&":
        return None, at
    if s[at] == "\\":
        found = _COMMAND.match(s, at)
        end = found.end() if found else at + 2
        return s[at:end], end
    if s[at] != "{":
        return s[at], at + 1
    closed = closing(s, at)
    return (None, at) if closed is None else (s[at + 1 : closed], closed + 1)


def closing(s: str, at: int) -> int | None:
    """Where the brace opened at `at` is closed; None if it never is."""
    depth, i = 0, at
    while i < len(s):
        if s[i] == "\\":
            i += 2
            continue
        depth += {"{": 1, "}": -1}.get(s[i], 0)
        if depth == 0:
            return i
        i += 1
    return None
