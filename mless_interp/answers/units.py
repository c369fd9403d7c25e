"""Units behind an answer: left out or written, singular or plural, short or long, squared in words or in figures."""

import re

from . import latex

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
    r"""Return an answer and its unit, in one spelling; the unit is empty where there is none, or none that counts.

    >>> without_unit(r"864 \mbox{ inches}^2"), without_unit("864 square inches"), without_unit(r"\text{east}")
    (('864', 'inch^2'), ('864', 'inch^2'), ('\\text{east}', ''))
    >>> without_unit("2 million dollars")
    ('2\\cdot10^{6}', 'dollar')
    """
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
    """Return whether letters after a number are a product or a function, `2ab` or `3 sin`, and no unit.

    A unit is known, or a word with a vowel: of four letters or more, or of three after a space.
    """
    found = re.findall("[a-z]+", words.lower())
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
