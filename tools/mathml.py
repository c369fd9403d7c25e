"""TeX formulas to MathML, which browsers draw themselves: no script, no fonts, no network.

    python tools/mathml.py '\\frac{1}{n} \\sum_i x_i'

Knows the TeX that the documentation uses and refuses everything else by name, so that no formula is ever half right.
"""

import re
import sys
from html import escape

LETTERS = dict(
    zip(
        "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi omega "
        "Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega ell partial infty emptyset".split(),
        "αβγδϵζηθικλμνξπρστυϕχψωΓΔΘΛΞΠΣΦΨΩℓ∂∞∅",
        strict=True,
    )
)
OPERATORS = {
    "le": "≤", "ge": "≥", "ne": "≠", "neq": "≠", "in": "∈", "notin": "∉", "cap": "∩", "cup": "∪", "cdot": "·",
    "times": "×", "pm": "±", "circ": "∘", "odot": "⊙", "to": "→", "mapsto": "↦", "leftarrow": "←", "rightarrow": "→",
    "sim": "∼", "approx": "≈", "equiv": "≡", "subset": "⊂", "setminus": "∖", "mid": "|", "dots": "…", "ldots": "…",
    "cdots": "⋯", "top": "⊤", "perp": "⊥", "forall": "∀", "exists": "∃", "ll": "≪", "gg": "≫", "propto": "∝", "div": "÷",
}  # fmt: skip
LARGE = {"sum": "∑", "prod": "∏", "int": "∫", "bigcup": "⋃", "bigcap": "⋂"}
FENCES = {
    "lVert": "‖", "rVert": "‖", "Vert": "‖", "lvert": "|", "rvert": "|", "vert": "|", "langle": "⟨", "rangle": "⟩",
    "lfloor": "⌊", "rfloor": "⌋", "lceil": "⌈", "rceil": "⌉", "{": "{", "}": "}", "|": "‖", "lbrace": "{", "rbrace": "}",
}  # fmt: skip
NAMES = "ln log exp min max sup inf sin cos tanh det dim arg sgn Pr".split()
LIMITS = {"min", "max", "sup", "inf"}
SPACES = {",": 0.167, ":": 0.222, ";": 0.278, " ": 0.25, "quad": 1, "qquad": 2, "!": -0.167}
ACCENTS = {
    "bar": "‾",
    "hat": "^",
    "tilde": "~",
    "overline": "‾",
    "widehat": "^",
    "widetilde": "~",
    "dot": "˙",
    "vec": "→",
}
FONTS = {"mathrm": "normal", "mathbf": "bold", "mathcal": "script", "mathbb": "double-struck", "mathit": "italic"}
STYLES = {"textstyle": "false", "displaystyle": "true"}
SIZES = re.compile(r"(?:big|Big|bigg|Bigg)[lrm]?$")
TOKEN = re.compile(r"\s*(\\[A-Za-z]+|\\.|[0-9]+(?:\.[0-9]+)?|'+|.)", re.DOTALL)
IGNORED = {"limits", "nolimits", "displaylimits", "nonumber"}


class Parser:
    """A row of TeX tokens, read from left to right."""

    def __init__(self, tex: str, *, display: bool) -> None:
        self.tex, self.at, self.display = tex, 0, display

    def fail(self, what: str) -> ValueError:
        return ValueError(f"formula {self.tex!r}: {what}; tools/mathml.py says which TeX the documentation may use")

    def peek(self) -> str | None:
        found = TOKEN.match(self.tex, self.at)
        return found.group(1) if found and self.tex[self.at :].strip() else None

    def take(self) -> str:
        found = TOKEN.match(self.tex, self.at)
        if found is None or not self.tex[self.at :].strip():
            raise self.fail("it ends too early")
        self.at = found.end()
        return found.group(1)

    def row(self, *ends: str) -> str:
        """Everything up to one of `ends` (which is taken), as the inside of one `<mrow>`."""
        parts: list[str] = []
        while (token := self.peek()) not in ends:
            if token is None:
                raise self.fail(f"no {' or '.join(ends)} comes")
            if token in ("\\textstyle", "\\displaystyle"):
                self.take()
                return "".join(parts) + f'<mstyle displaystyle="{STYLES[token[1:]]}">{self.row(*ends)}</mstyle>'
            parts.append(self.scripted())
        if ends:
            self.take()
        return "".join(parts)

    def whole(self) -> str:
        parts = []
        while self.peek() is not None:
            if self.peek() in ("\\textstyle", "\\displaystyle"):
                style = STYLES[self.take()[1:]]
                return "".join(parts) + f'<mstyle displaystyle="{style}">{self.whole()}</mstyle>'
            parts.append(self.scripted())
        return "".join(parts)

    def argument(self) -> str:
        """One atom or a group in braces; of a number only its first digit, as TeX has it."""
        token = self.peek()
        if token is not None and token[0].isdigit():
            self.at = self.tex.index(token[0], self.at) + 1
            return f"<mrow><mn>{token[0]}</mn></mrow>"
        return f"<mrow>{self.atom()[0]}</mrow>"

    def raw(self) -> str:
        """The text of a group in braces, as it stands."""
        if self.take() != "{":
            raise self.fail("text must stand in braces")
        depth, start = 1, self.at
        while depth:
            if self.at >= len(self.tex):
                raise self.fail("a brace is never closed")
            depth += {"{": 1, "}": -1}.get(self.tex[self.at], 0)
            self.at += 1
        return re.sub(r"\\([_%&#${}])", r"\1", self.tex[start : self.at - 1])

    def scripted(self) -> str:
        """An atom with its primes, subscript and superscript."""
        base, limits = self.atom()
        below = above = ""
        while (token := self.peek()) is not None and token[0] in "_^'":
            self.take()
            if token[0] == "'":
                above += f"<mo>{'′' * len(token)}</mo>"
            elif token == "_":
                below += self.argument()
            else:
                above += self.argument()
        if not below and not above:
            return base
        under = limits and self.display
        names = ("munderover", "munder", "mover") if under else ("msubsup", "msub", "msup")
        name = names[0] if below and above else names[1] if below else names[2]
        scripts = "".join(f"<mrow>{part}</mrow>" for part in (below, above) if part)
        return f"<{name}>{base}{scripts}</{name}>"

    def atom(self) -> tuple[str, bool]:
        """(MathML of one atom, whether its scripts stand above and below in display style)."""
        token = self.take()
        if token == "{":
            return f"<mrow>{self.row('}')}</mrow>", False
        if token[0] == "\\":
            return self.command(token[1:])
        if token[0].isdigit():
            return f"<mn>{token}</mn>", False
        if token.isalpha():
            return f"<mi>{token}</mi>", False
        if token in "}&_^":
            raise self.fail(f"{token!r} stands where nothing can be")
        token = {"-": "−", "*": "∗"}.get(token, token)
        stretch = ' stretchy="false"' if token in "()[]|/" else ""
        return f"<mo{stretch}>{escape(token)}</mo>", False

    def command(self, name: str) -> tuple[str, bool]:
        if name in LETTERS:
            upright = ' mathvariant="normal"' if name[0].isupper() else ""
            return f"<mi{upright}>{LETTERS[name]}</mi>", False
        if name in OPERATORS:
            return f"<mo>{escape(OPERATORS[name])}</mo>", False
        if name in LARGE:
            return f'<mo largeop="true">{LARGE[name]}</mo>', name != "int"
        if name in NAMES:
            return f"<mi>{name}</mi>", name in LIMITS
        if name in SPACES:
            return f'<mspace width="{SPACES[name]}em"></mspace>', False
        if name in FENCES:
            return f'<mo stretchy="false">{FENCES[name]}</mo>', False
        if name in ("%", "_", "&", "#", "$"):
            return f"<mo>{escape(name)}</mo>", False
        if name in IGNORED:
            return "", False
        if name in ("frac", "dfrac", "tfrac"):
            both = self.argument() + self.argument()
            style = {"dfrac": ' displaystyle="true"', "tfrac": ' displaystyle="false"'}.get(name, "")
            return (f"<mstyle{style}><mfrac>{both}</mfrac></mstyle>" if style else f"<mfrac>{both}</mfrac>"), False
        if name in ("binom", "tbinom", "dbinom"):
            both = self.argument() + self.argument()
            return f'<mrow><mo>(</mo><mfrac linethickness="0">{both}</mfrac><mo>)</mo></mrow>', False
        if name == "sqrt":
            return self.root(), False
        if name in ACCENTS:
            return f'<mover accent="true">{self.argument()}<mo>{ACCENTS[name]}</mo></mover>', False
        if name in ("text", "textrm", "texttt"):
            tag = ' style="font-family: monospace"' if name == "texttt" else ""
            return f"<mtext{tag}>{escape(self.raw()).replace(' ', chr(160))}</mtext>", False
        if name == "operatorname":
            return f"<mi>{escape(self.raw())}</mi>", False
        if name in FONTS:
            return self.in_font(FONTS[name]), False
        if name == "left":
            return self.fenced(), False
        if SIZES.match(name):
            size = {"big": 1.2, "Big": 1.8, "bigg": 2.4, "Bigg": 3.0}[name.rstrip("lrm")]
            fence = self.delimiter()
            return f'<mo minsize="{size}em" maxsize="{size}em">{fence}</mo>', False
        if name == "begin":
            return self.environment(), False
        raise self.fail(f"unknown command \\{name}")

    def root(self) -> str:
        if self.peek() == "[":
            self.take()
            index = self.row("]")
            return f"<mroot>{self.argument()}<mrow>{index}</mrow></mroot>"
        return f"<msqrt>{self.argument()}</msqrt>"

    def in_font(self, font: str) -> str:
        text = self.raw() if self.peek() == "{" else self.take()
        if font == "normal":
            return f'<mi mathvariant="normal">{escape(text)}</mi>'
        if not (len(text) == 1 and text.isascii() and text.isalnum()):
            raise self.fail(f"only single letters and digits have a {font} form, got {text!r}")
        return f"<mi>{in_alphabet(text, font)}</mi>"

    def delimiter(self) -> str:
        token = self.take()
        if token[0] == "\\":
            if token[1:] not in FENCES:
                raise self.fail(f"{token} is no delimiter")
            return FENCES[token[1:]]
        return "" if token == "." else escape(token)

    def fenced(self) -> str:
        before = self.delimiter()
        inside = self.row("\\right")
        return stretched(before, inside, self.delimiter())

    def environment(self) -> str:
        kind = self.raw()
        if kind not in ("cases", "aligned", "pmatrix"):
            raise self.fail(f"unknown environment {kind!r}")
        rows: list[list[str]] = [[""]]
        while (token := self.peek()) != "\\end":
            if token is None:
                raise self.fail(f"{kind} never ends")
            if token == "&":
                self.take()
                rows[-1].append("")
            elif token == "\\\\":
                self.take()
                rows.append([""])
            else:
                rows[-1][-1] += self.scripted()
        self.take()
        if self.raw() != kind:
            raise self.fail(f"{kind} ends as something else")
        table = "".join(f"<mtr>{''.join(f'<mtd>{cell}</mtd>' for cell in row)}</mtr>" for row in rows)
        if kind == "cases":  # MathML Core knows no columnalign
            table = table.replace("<mtd>", '<mtd style="text-align: left">')
        align = {"cases": "left", "aligned": "right left", "pmatrix": "center"}[kind]
        made = f'<mtable columnalign="{align}" displaystyle="{str(kind == "aligned").lower()}">{table}</mtable>'
        left, right = {"cases": ("{", ""), "aligned": ("", ""), "pmatrix": ("(", ")")}[kind]
        return stretched(left, made, right) if left else made


def stretched(before: str, inside: str, after: str) -> str:
    """Delimiters as high as what stands between them; either may be empty."""
    left, right = (f'<mo fence="true" stretchy="true">{fence}</mo>' for fence in (before, after))
    return f"<mrow>{left}{inside}{right}</mrow>"


def in_alphabet(letter: str, font: str) -> str:
    """A letter of Unicode's mathematical alphabets.

    >>> in_alphabet("R", "double-struck"), in_alphabet("L", "script"), in_alphabet("1", "bold")
    ('ℝ', 'ℒ', '𝟏')
    """
    odd = {
        "double-struck": dict(zip("CHNPQRZ", "ℂℍℕℙℚℝℤ", strict=True)),
        "script": dict(zip("BEFHILMRego", "ℬℰℱℋℐℒℳℛℯℊℴ", strict=True)),
    }
    if letter in odd.get(font, {}):
        return odd[font][letter]
    upper, lower, digit = {
        "bold": (0x1D400, 0x1D41A, 0x1D7CE),
        "script": (0x1D49C, 0x1D4B6, 0x30),
        "double-struck": (0x1D538, 0x1D552, 0x1D7D8),
        "italic": (0x41, 0x61, 0x30),
    }[font]
    first, start = ("A", upper) if letter.isupper() else ("a", lower) if letter.islower() else ("0", digit)
    return chr(start + ord(letter) - ord(first))


def mathml(tex: str, *, display: bool = False) -> str:
    """A `<math>` element that draws the formula; the TeX goes along for those who copy it.

    >>> mathml("x_1")
    '<math aria-label="x_1"><mrow><msub><mi>x</mi><mrow><mrow><mn>1</mn></mrow></mrow></msub></mrow></math>'
    """
    tex = " ".join(tex.split())
    block = ' display="block"' if display else ""
    return f'<math{block} aria-label="{escape(tex)}"><mrow>{Parser(tex, display=display).whole()}</mrow></math>'


if __name__ == "__main__":
    for formula in sys.argv[1:]:
        print(mathml(formula, display=True))
