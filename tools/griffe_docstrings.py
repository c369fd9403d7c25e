"""A griffe extension: the project's docstrings as Markdown.

They are prose with at most one list under "Parameters", which may be followed by more prose, and doctests anywhere. The
list becomes a Markdown list and each run of doctest lines a code block; everything else is Markdown already.
"""

import re

import griffe

ITEM = re.compile(r"^(?:[*\w`\"]+(?:, [*\w`\"]+)*) : ")


def as_markdown(text: str) -> str:
    """One docstring as Markdown.

    >>> print(as_markdown("Add.\\n\\nParameters\\n----------\\na : first\\n    number\\n\\nMore.\\n\\n>>> 1\\n1"))
    Add.
    <BLANKLINE>
    **Parameters**
    <BLANKLINE>
    - `a`: first number
    <BLANKLINE>
    More.
    <BLANKLINE>
    ```pycon
    >>> 1
    1
    ```
    """
    lines = text.splitlines()
    made: list[str] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        if line.strip() == "Parameters" and at + 1 < len(lines) and set(lines[at + 1].strip()) == {"-"}:
            made += ["**Parameters**", ""]
            at += 2
            while at < len(lines) and (ITEM.match(lines[at]) or (lines[at].startswith("    ") and made[-1])):
                if ITEM.match(lines[at]):
                    name, _, rest = lines[at].partition(" : ")
                    made.append(f"- {', '.join(f'`{part.strip()}`' for part in name.split(','))}: {rest}")
                else:
                    made[-1] += f" {lines[at].strip()}"
                at += 1
            continue
        if line.lstrip().startswith(">>>"):
            made.append("```pycon")
            while at < len(lines) and lines[at].strip():
                made.append(lines[at].strip())
                at += 1
            made.append("```")
            continue
        made.append(line)
        at += 1
    return "\n".join(made)


class Docstrings(griffe.Extension):
    """Rewrites every docstring when its object is collected."""

    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:
        """Called by griffe once for each object."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
