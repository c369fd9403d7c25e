r"""Where the answer stands: balanced `\boxed{...}` in a text, found in one pass."""

import re
from collections.abc import Iterator

_BOX = re.compile(r"\\f?box(?:ed)?\s*\{")
BOXED = ("boxed",)
BOXED_OR_FBOX = ("boxed", "fbox")


def balanced_boxes(text: str, *, commands: tuple[str, ...] = BOXED) -> Iterator[tuple[int, int, int]]:
    r"""Start, start of content and end of content of every balanced box, in the order in which they close.

    A box is `\boxed`, optional white space, and a brace that is closed again; a backslash and the character after it
    belong together, so `\{` and `\}` are no braces, and `\\{` is a line break and a brace. A box that is never closed is
    none; boxes inside it count. One pass, whatever the text holds.
    """
    opened: list[tuple[int, int] | None] = []
    at = 0
    while at < len(text):
        if text[at] == "\\":
            found = _BOX.match(text, at)
            if found and found.group()[1:-1].rstrip() in commands:
                opened.append((at, found.end()))
                at = found.end()
            else:
                at += 2
            continue
        if text[at] == "{":
            opened.append(None)
        elif text[at] == "}" and opened:
            box = opened.pop()
            if box is not None:
                yield *box, at
        at += 1


def last_box(text: str, *, commands: tuple[str, ...] = BOXED) -> str | None:
    r"""What stands in the last balanced `\boxed{...}`, the outer one where they are nested, stripped; None without one.

    >>> last_box(r"\boxed{1}, no: \boxed{ \frac{1}{2} }. And \boxed{3")
    '\\frac{1}{2}'
    """
    last = None
    for _, start, end in balanced_boxes(text, commands=commands):
        last = (start, end)  # the last to close is not inside another balanced one
    return None if last is None else unboxed(text[slice(*last)], commands=commands).strip()


def unboxed(text: str, *, commands: tuple[str, ...] = BOXED) -> str:
    r"""The text with every balanced box replaced by what stands in it.

    >>> unboxed(r"x = \boxed{7}")
    'x = 7'
    """
    cut: set[int] = set()
    for box, start, end in balanced_boxes(text, commands=commands):
        cut.update(range(box, start))
        cut.add(end)
    return "".join(c for i, c in enumerate(text) if i not in cut) if cut else text


def has_closed_box(text: str) -> bool:
    r"""Whether the text holds a balanced `\boxed{...}` that is not empty: the sign to stop generating.

    >>> has_closed_box(r"\boxed{ 7 }"), has_closed_box(r"\boxed{"), has_closed_box(r"\boxed{}")
    (True, False, False)
    """
    return any(text[start:end].strip() for _, start, end in balanced_boxes(text))
