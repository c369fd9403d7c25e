"""Digit, operator, conjunction or other: by hand, however the text is cut into tokens, and with the published tokenizers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mless_interp.prompts.token_classes import token_classes, token_texts


def _short(found: tuple[str, ...]) -> str:
    """One letter a class: p for operator, which shares its first letter with other."""
    return "".join({"digit": "d", "operator": "p", "conjunction": "c", "other": "o"}[name] for name in found)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["7", " 12", "3.", "1,000", "(4)", "٣"], "dddddd"),
        (["x7", "½", "2nd", "1+1", ""], "ooooo"),
        ([" +", "^{", ")/(", "-", " ≤", "×", "->"], "ppppppp"),
        (["_", "%", "!", "~", "&", "$", "\\"], "ooooooo"),
        (["\\frac", "{", "1", "}"], "podo"),
        (["\\", "frac", "{"], "opo"),
        (["=\\", "frac"], "pp"),
        (["\\in", " ", "S"], "poo"),
        (["times", " in", " sum", " log"], "oooo"),
        (["well", "-", "known", " x", "-", "y", " 3", "-D"], "oooopodo"),
        ([" And", " if", " then", " AND,", "but"], "ccccc"),
        (["b", "and", " f", "or", " or", "der", "so", "me"], "oooooooo"),
        ([" be", "cause", " it"], "cco"),
        (["<|im_start|>", "</s>", "<bos>"], "ooo"),
        (["�", "\n", " "], "ooo"),
        ([" and", "/", "or"], "coc"),
    ],
)
def test_classes_by_hand(texts: list[str], expected: str) -> None:
    assert _short(token_classes(texts)) == expected


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_character_s_class_does_not_depend_on_the_cut(data: st.DataObject) -> None:
    text = data.draw(
        st.sampled_from(["Find $\\frac{12}{3}-5$ and x if it is well-known or \\sum_{k=1} k.", "a/b so 3<4"])
    )
    cuts = sorted(data.draw(st.sets(st.integers(1, len(text) - 1))))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    single = token_classes(list(text))
    for start, piece, found in zip([0, *cuts], pieces, token_classes(pieces), strict=True):
        inside = {single[start + i] for i, sign in enumerate(piece) if sign not in " ${}().,\\"}
        assert found == (inside.pop() if len(inside) == 1 else "other")


def test_a_token_is_read_after_the_eight_before_it_at_most() -> None:
    lengths: list[int] = []
    assert token_texts(range(12), lambda ids: lengths.append(len(ids)) or "".join(map(chr, ids)))[-1] == chr(11)
    assert lengths[0] == 1 and lengths[1:3] == [2, 1] and max(lengths) == 9
