"""What kind of token it is: digit, operator, conjunction or other, by the text around it.

The classes are those of arXiv 2510.01032, section 6 (Fig. 7), which names them but gives no lists; the lists here are ours.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence

from ..core.arguments import n_alike

CLASSES = ("digit", "operator", "conjunction", "other")
OPERATOR_COMMANDS = frozenset(
    """
    frac dfrac tfrac cfrac cdot cdots times div sqrt pm mp ast star circ oplus otimes le leq leqslant lt ge geq geqslant
    gt ne neq equiv approx sim simeq cong propto sum prod int iint oint lim log ln exp sin cos tan cot sec csc arcsin
    arccos arctan sinh cosh tanh min max gcd lcm mod bmod pmod binom dbinom tbinom choose cup cap setminus in notin subset
    subseteq to rightarrow Rightarrow mapsto implies iff land lor neg lnot over mid parallel perp
    """.split()
)
"""LaTeX commands that act on something or compare; the bare words ("three times", "in") are no operators."""
CONJUNCTIONS = frozenset(
    """
    and or but nor yet so if then unless because although though since while whereas when whenever until once whether
    either neither both
    """.split()
)
"""Coordinating, subordinating and correlative ones; "for", "as", "that" and "where" are left out: mostly something else."""

_BARE = frozenset(" \t\r\n\v\f()[]{}$\\.,;:'\"`")
_SIGNS = frozenset("+-*/=<>^|·∙⋅")
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_WORD = re.compile(r"(?<![\\\w])[^\W\d_]+(?![\w])")
_JOINED = re.compile(r"(?<=[^\W\d_]{2})[-/](?=[^\W\d_]{2})")
_CONTEXT = 8


def token_classes(texts: Sequence[str]) -> tuple[str, ...]:
    r"""Return the class of each token, from the tokens' texts in order.

    White space, brackets, `$`, the backslash and punctuation do not count; of what is left of a token

    - digit: all are decimal digits;
    - operator: all are operator signs (+ - * / = < > ^ | and Unicode's mathematical symbols) or belong to a LaTeX command
      in `OPERATOR_COMMANDS`, however it is cut into tokens; a hyphen or slash between two words is none;
    - conjunction: all belong to a whole word in `CONJUNCTIONS`, in upper or lower case, however it is cut;
    - other: everything else, tokens of which nothing is left among them.

    >>> token_classes(["Find", " ", "2", "+", "\\", "frac", "{", "12", "}", " or", " f", "or"])
    ('other', 'other', 'digit', 'operator', 'other', 'operator', 'other', 'digit', 'other', 'conjunction', 'other',
    'other')
    """
    whole = "".join(texts)
    operators = _places(match.span(1) for match in _COMMAND.finditer(whole) if match.group(1) in OPERATOR_COMMANDS)
    conjunctions = _places(match.span() for match in _WORD.finditer(whole) if match.group().lower() in CONJUNCTIONS)
    joints = _places(match.span() for match in _JOINED.finditer(whole))
    operators |= {
        place
        for place, sign in enumerate(whole)
        if place not in joints and (sign in _SIGNS or (sign != "~" and unicodedata.category(sign) == "Sm"))
    }
    digits = {place for place, sign in enumerate(whole) if sign.isdecimal()}
    found, start = [], 0
    for text in texts:
        core = {start + offset for offset, sign in enumerate(text) if sign not in _BARE}
        start += len(text)
        kinds = (("digit", digits), ("operator", operators), ("conjunction", conjunctions))
        found.append(next((name for name, places in kinds if core and core <= places), "other"))
    return tuple(found)


def token_texts(ids: Sequence[int], decode: Callable[[list[int]], str]) -> tuple[str, ...]:
    """Return what each token adds to the text of those before it, so that spaces stand as in the text.

    `decode` is a tokenizer's, special tokens kept. A character of several tokens appears with its last one, and a stand-in
    (U+FFFD) before.

    >>> token_texts([1, 2], lambda ids: " ".join("_ab"[i] for i in ids))
    ('a', ' b')
    """
    texts = []
    for at in range(len(ids)):
        before = list(ids[max(0, at - _CONTEXT) : at])
        shown, known = decode([*before, ids[at]]), decode(before) if before else ""
        texts.append(shown[n_alike(shown, known) :])
    return tuple(texts)


def _places(spans: Iterable[tuple[int, int]]) -> set[int]:
    return {place for start, stop in spans for place in range(start, stop)}
