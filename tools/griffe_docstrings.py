"""A griffe extension: the project's docstrings as Markdown.

They are prose with at most one list under "Parameters", which may be followed by more prose, and doctests anywhere. The
list becomes a Markdown list and each run of doctest lines a code block; everything else is Markdown already. (griffe's
own numpydoc parser takes the prose of "name : prose" for types and what follows for parameters, and knows no doctest
outside an "Examples" section.)
"""

import re
from textwrap import dedent

import griffe

ITEM = re.compile(r"^([*\w`\"]+(?:, [*\w`\"]+)*) : (.*(?:\n {4}.*)*)", re.MULTILINE)
PARAMETERS = re.compile(rf"^Parameters\n-+\n((?:{ITEM.pattern}\n?)+)", re.MULTILINE)
DOCTEST = re.compile(r"^ *>>>.*(?:\n.*\S.*)*", re.MULTILINE)


def as_markdown(text: str) -> str:
    """One docstring as Markdown.

    >>> as_markdown("Add.\\n\\nParameters\\n----------\\na : first\\n    number\\n\\n>>> 1\\n1").splitlines()
    ['Add.', '', '**Parameters**', '', '- `a`: first number', '', '```pycon', '>>> 1', '1', '```']
    """

    def item(found: re.Match[str]) -> str:
        return f"- `{found[1].replace(', ', '`, `')}`: {' '.join(found[2].split())}"

    text = PARAMETERS.sub(lambda found: "**Parameters**\n\n" + ITEM.sub(item, found[1]), text)
    return DOCTEST.sub(lambda found: f"```pycon\n{dedent(found[0])}\n```", text)


class Docstrings(griffe.Extension):
    """Rewrites every docstring when its object is collected."""

    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:
        """Called by griffe once for each object."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
