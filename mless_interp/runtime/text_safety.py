"""Texts that came from outside (names, ids, answers) made safe to show: nothing in them acts on a terminal."""

import re
from pathlib import PurePath

WIDTH = 110  # letters of a line on a terminal, at most
_ACTS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def visible(text: str) -> str:
    """Return a text in which what would act and not show is written as its code: escape sequences, control characters (all
    but line breaks and tabs), what turns the direction of writing, and halves of characters."""
    return _ACTS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """Return the same on one line: line breaks and tabs are shown as well."""
    return visible(text).replace("\n", r"\n").replace("\t", r"\t")


def shortened(text: str, longest: int = 60) -> str:
    """Return a text with its middle left out where it is too long for a title, a tick or a legend: "ab…ij"."""
    return text if len(text) <= longest else f"{text[: longest // 2]}…{text[len(text) - (longest - 1) // 2 :]}"


def short_name(name: str) -> str:
    """Return a model's name: of a whole path its last part."""
    path = PurePath(name)
    return path.name if path.is_absolute() and path.name else name
