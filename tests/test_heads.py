"""Heads: zero-based, ordered, one of each; the paper's one-based numbers only through `from_paper`."""

from dataclasses import FrozenInstanceError

import jaxtyping
import numpy as np
import pytest

from mless_interp.core.heads import Head, as_heads, check_heads


@pytest.fixture
def as_users_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the type checks of the tests, which would speak before our own messages."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def test_a_head_prints_its_zero_based_name() -> None:
    assert str(Head(0, 13)) == repr(Head(0, 13)) == "L0H13"


def test_the_papers_layer_1_head_14_is_layer_0_head_13() -> None:
    assert Head.from_paper(layer=1, head=14) == Head(0, 13)
    assert Head.from_paper(layer=1, head=1) == Head(0, 0)


def test_the_paper_label_counts_from_one_and_leads_back() -> None:
    assert Head(0, 13).paper_label == "layer 1 head 14"
    for head in (Head(0, 0), Head(3, 7), Head(27, 27)):
        assert Head.from_paper(layer=head.layer + 1, head=head.head + 1) == head


def test_heads_are_ordered_by_layer_then_number() -> None:
    assert sorted([Head(1, 0), Head(0, 21), Head(0, 3)]) == [Head(0, 3), Head(0, 21), Head(1, 0)]


def test_equal_heads_are_one_dictionary_key() -> None:
    assert {Head(2, 5): "a"}[Head.parse("L2H5")] == "a"


def test_a_head_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Head(0, 1).layer = 2


@pytest.mark.parametrize("text", ["3:14", "L3H14", "l3h14", " 3 : 14 ", "3.14", "3,14"])
def test_a_head_is_read_from_every_way_of_writing_it(text: str) -> None:
    assert Head.parse(text) == Head(3, 14)


def test_printing_and_reading_a_head_are_inverse() -> None:
    assert all(Head.parse(str(Head(layer, head))) == Head(layer, head) for layer in range(12) for head in range(12))


@pytest.mark.parametrize("text", ["", "3", "3:", ":14", "3:14:1", "-1:2", "3-14", "three:one", "L3", "0x3:1"])
def test_text_that_names_no_head_is_refused_with_the_way_to_write_it(text: str) -> None:
    with pytest.raises(ValueError, match=r"cannot read '.*' as a head: write LAYER:HEAD, for example 0:13.*zero-based"):
        Head.parse(text)


def test_negative_numbers_are_refused_with_the_way_to_one_based_ones() -> None:
    with pytest.raises(ValueError, match=r"layer must be 0 or more \(zero-based\), got -1.*Head.from_paper"):
        Head(-1, 0)
    with pytest.raises(ValueError, match=r"head must be 0 or more \(zero-based\), got -2"):
        Head(0, -2)


@pytest.mark.parametrize(("layer", "head"), [(0, 14), (1, 0)])
def test_the_paper_has_no_layer_or_head_zero(layer: int, head: int) -> None:
    with pytest.raises(ValueError, match=f"one-based: layer {layer}, head {head} do not exist there"):
        Head.from_paper(layer=layer, head=head)


def test_true_is_no_layer() -> None:
    with pytest.raises(TypeError, match=r"layer must be a whole number \(zero-based\), got True \(bool\)"):
        Head(True, 0)


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize("wrong", [1.0, "1", None])
def test_only_whole_numbers_name_a_head(wrong: object) -> None:
    with pytest.raises(TypeError, match=r"head must be a whole number \(zero-based\), got"):
        Head(0, wrong)


@pytest.mark.usefixtures("as_users_run_it")
def test_whole_numbers_of_numpy_become_pythons_own() -> None:
    head = Head(*np.unravel_index(5, (2, 4)))
    assert head == Head(1, 1)
    assert type(head.layer) is int and type(head.head) is int


def test_checked_heads_keep_their_order() -> None:
    given = [Head(1, 0), Head(0, 3)]
    assert check_heads(given, n_layers=2, n_heads=4) == (Head(1, 0), Head(0, 3))
    assert check_heads(iter(given), n_layers=2, n_heads=4) == (Head(1, 0), Head(0, 3))


def test_a_layer_beyond_the_model_is_refused() -> None:
    assert check_heads([Head(1, 0)], n_layers=2, n_heads=4)
    with pytest.raises(ValueError, match=r"L2H0: layer 2 is out of range \(zero-based\): the model has layers 0 to 1"):
        check_heads([Head(2, 0)], n_layers=2, n_heads=4)


def test_a_head_beyond_the_model_is_refused() -> None:
    assert check_heads([Head(0, 3)], n_layers=2, n_heads=4)
    with pytest.raises(ValueError, match=r"L0H4: head 4 is out of range \(zero-based\): .* query heads 0 to 3"):
        check_heads([Head(0, 0), Head(0, 4)], n_layers=2, n_heads=4)


def test_a_head_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="L0H1 is given twice"):
        check_heads([Head(0, 1), Head(1, 1), Head(0, 1)], n_layers=2, n_heads=4)


@pytest.mark.usefixtures("as_users_run_it")
def test_a_pair_of_numbers_is_no_head() -> None:
    with pytest.raises(
        TypeError, match=r'expected a Head, got \(0, 1\); write Head\(layer, head\) or "L0H13" \(zero-based\)'
    ):
        check_heads([(0, 1)], n_layers=2, n_heads=4)


def test_labels_are_taken_for_heads() -> None:
    assert as_heads(["L0H13", "1:4", Head(2, 0)]) == (Head(0, 13), Head(1, 4), Head(2, 0))
    assert check_heads(["0:1"], n_layers=1, n_heads=2) == (Head(0, 1),)
    with pytest.raises(ValueError, match=r"head 2 is out of range \(zero-based\)"):
        check_heads(["0:2"], n_layers=1, n_heads=2)
    with pytest.raises(ValueError, match="L0H1 is given twice"):
        check_heads(["0:1", Head(0, 1)], n_layers=1, n_heads=2)


@pytest.mark.usefixtures("as_users_run_it")
def test_one_label_is_not_several_heads() -> None:
    with pytest.raises(TypeError, match=r'heads are several: write heads=\["L0H13"\]'):
        as_heads("L0H13")
