r"""Where the answer stands: balanced `\boxed{...}` in a text, found in one pass."""

import re
from collections.abc import Iterator

_TOKEN = re.compile(r"\\(boxed)\s*\{|\\.|[{}]", re.DOTALL)


def balanced_boxes(text: str) -> Iterator[tuple[int, int, int]]:
    r"""Yield start, start of content and end of content of every balanced box, in the order in which they close.

    A box is `\boxed`, optional white space, and a brace that is closed again; a backslash and the character after it
    belong together, so `\{` and `\}` are no braces, and `\\{` is a line break and a brace. A box that is never closed is
    none; boxes inside it count. One pass, whatever the text holds.
    """
    opened: list[tuple[int, int] | None] = []
    for token in _TOKEN.finditer(text):
        if token[0].endswith("{") and token[0] != r"\{":
            opened.append(token.span() if token[1] else None)
        elif token[0] == "}" and opened:
            box = opened.pop()
            if box is not None:
                yield *box, token.start()


def last_box(text: str) -> str | None:
    r"""Return what stands in the last balanced `\boxed{...}`, the outer one where they are nested, stripped; None without one.

    >>> last_box(r"\boxed{1}, no: \boxed{ \frac{1}{2} }. And \boxed{3")
    '\\frac{1}{2}'
    """
    last = None
    for _, start, end in balanced_boxes(text):
        last = (start, end)  # the last to close is not inside another balanced one
    return None if last is None else unboxed(text[slice(*last)]).strip()


def unboxed(text: str) -> str:
    r"""Return the text with every balanced box replaced by what stands in it.

    >>> unboxed(r"x = \boxed{7}")
    'x = 7'
    """
    cut: set[int] = set()
    for box, start, end in balanced_boxes(text):
        cut.update(range(box, start))
        cut.add(end)
    return "".join(c for i, c in enumerate(text) if i not in cut) if cut else text


def has_closed_box(text: str) -> bool:
    r"""Return whether the text holds a balanced `\boxed{...}` that is not empty: the sign to stop generating.

    >>> has_closed_box(r"\boxed{ 7 }"), has_closed_box(r"\boxed{"), has_closed_box(r"\boxed{}")
    (True, False, False)
    """
    return any(text[start:end].strip() for _, start, end in balanced_boxes(text))
