"""Heads: zero-based, ordered, one of each; the paper's one-based numbers only through `from_paper`."""

import re

import numpy as np
import pytest

from mless_interp.core.heads import Head, check_heads

pytestmark = pytest.mark.usefixtures("untyped")


def test_a_head_is_a_zero_based_name_that_reads_back() -> None:
    assert str(Head(0, 13)) == repr(Head(0, 13)) == "L0H13"
    assert {Head.parse(text) for text in ("3:14", "L3H14", "l3h14", " 3 : 14 ", "3.14", "3,14")} == {Head(3, 14)}
    assert sorted([Head(1, 0), Head(0, 21), Head(0, 3)]) == [Head(0, 3), Head(0, 21), Head(1, 0)]
    head = Head(*np.unravel_index(5, (2, 4)))
    assert head == Head(1, 1) and type(head.layer) is type(head.head) is int


def test_the_papers_layer_1_head_14_is_layer_0_head_13() -> None:
    assert Head.from_paper(layer=1, head=14) == Head(0, 13) and Head(0, 13).paper_label == "layer 1 head 14"
    for layer, head in ((0, 14), (1, 0)):
        with pytest.raises(ValueError, match=f"one-based: layer {layer}, head {head} do not exist there"):
            Head.from_paper(layer=layer, head=head)


@pytest.mark.parametrize("text", ["", "3", "3:14:1", "-1:2", "L3"])
def test_text_that_names_no_head_is_refused_with_the_way_to_write_it(text: str) -> None:
    with pytest.raises(ValueError, match=r"cannot read '.*' as a head: write LAYER:HEAD, for example 0:13.*zero-based"):
        Head.parse(text)


def test_only_whole_numbers_from_0_name_a_head() -> None:
    with pytest.raises(ValueError, match=r"layer must be 0 or more \(zero-based\), got -1.*Head.from_paper"):
        Head(-1, 0)
    with pytest.raises(TypeError, match="head must be a whole number, got 1.0"):
        Head(0, 1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ([Head(2, 0)], "L2H0: layer 2 is out of range (zero-based): the model has layers 0 to 1"),
        (["0:0", "0:4"], "L0H4: query head 4 is out of range (zero-based): the model has query heads 0 to 3"),
        ([Head(0, 1), Head(1, 1), "0:1"], "L0H1 is given twice"),
        ("L0H13", "cannot read 'L' as a head"),
    ],
)
def test_checked_heads_keep_their_order_and_those_that_are_not_there_are_named(heads: object, message: str) -> None:
    assert check_heads(iter(["1:0", "L0H3"]), n_layers=2, n_heads=4) == (Head(1, 0), Head(0, 3))
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        check_heads(heads, n_layers=2, n_heads=4)  # type: ignore[arg-type]
