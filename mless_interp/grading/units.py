"""Units behind an answer: left out or written, singular or plural, short or long, squared in words or in figures."""

import re

from . import latex

_UNIT_NAMES = {
    "in": "inch", "inche": "inch", "ft": "foot", "feet": "foot", "yd": "yard", "mi": "mile", "mm": "millimeter",
    "cm": "centimeter", "km": "kilometer", "kg": "kilogram", "hr": "hour", "min": "minute", "sec": "second", "lb": "pound",
    "metre": "meter", "centimetre": "centimeter", "kilometre": "kilometer", "millimetre": "millimeter", "mph": "mileperhour",
    "oz": "ounce", "sq": "square", "cu": "cubic", "am": "am", "pm": "pm",
}  # fmt: skip
_NO_UNITS = {"degree", "percent", "dollar", "unit", "usd"}
_WORDS_AFTER = re.compile(r"(.*[\d}])(\s*(?:[a-zA-Z]{2,}[ ./]+)*[a-zA-Z]{2,}[ ./]*)(\^\{?\d\}?)?")
_TEXT_AFTER = re.compile(
    r"(.*\S)\s*\\(?:text|mbox|textrm|mathrm|textnormal|textbf|hbox)\s*\{([^{}]*)\}\s*(\^\{?\d\}?)?"
)


def without_unit(text: str) -> tuple[str, str]:
    r"""An answer and its unit, in one spelling; the unit is empty where there is none, or none that counts.

    >>> without_unit(r"864 \mbox{ inches}^2"), without_unit("864 square inches"), without_unit(r"\text{east}")
    (('864', 'inch^2'), ('864', 'inch^2'), ('\\text{east}', ''))
    """
    found = _TEXT_AFTER.fullmatch(text)
    if found is None or not re.search(r"\d|\\pi", found[1]):
        found = _WORDS_AFTER.fullmatch(text)
        if found is None or re.search(r"\\[a-zA-Z]*$", found[1]) or _mathematics(found[2]):
            return text, ""
    value = found[1].strip().rstrip("-").strip()
    power = re.sub(r"[^\d]", "", found[3] or "")
    words = [_UNIT_NAMES.get(w, w) for w in (w[:-1] if w.endswith("s") else w for w in _unit_words(found[2]))]
    for word, meant in (("square", "2"), ("cubic", "3")):
        if word in words:
            words.remove(word)
            power = power or meant
    words = [word for word in words if word not in _NO_UNITS]
    return value, "".join(words) + (f"^{power}" if words and power not in ("", "1") else "")


def _unit_words(text: str) -> list[str]:
    return re.findall("[a-z]+", text.lower())


def _mathematics(words: str) -> bool:
    """Whether letters after a number are a product or a function, `2ab` or `3 sin`, and no unit.

    A unit is known, or a word with a vowel: of four letters or more, or of three after a space.
    """
    found = _unit_words(words)
    if any(word in latex.FUNCTIONS and word not in _UNIT_NAMES for word in found):  # 5 min: minutes
        return True
    shortest = 3 if words[:1].isspace() else 4
    return not all(
        word in _UNIT_NAMES
        or word.rstrip("s") in _UNIT_NAMES
        or (len(word) >= shortest and re.search("[aeiou]", word))
        or (word in ("per", "of") and len(found) > 1)
        for word in found
    )
