"""Formulas and checks give what they gave; `python tests/expressions_under_test.py` writes `kept_expressions.txt` anew."""

import pytest
from expressions_under_test import expressions, value_of

KEPT = expressions()


def words(text: str) -> list[object]:
    """Words, of which numbers are numbers."""
    found: list[object] = []
    for word in text.split():
        try:
            found.append(float(word))
        except ValueError:
            found.append(word)
    return found


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("expression", KEPT)
def test_it_gives_what_it_gave(expression: str) -> None:
    expected = [
        pytest.approx(each, rel=1e-5, abs=1e-9, nan_ok=True) if isinstance(each, float) else each
        for each in words(KEPT[expression])
    ]
    assert words(value_of(expression)) == expected
