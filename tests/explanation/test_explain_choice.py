"""A class is chosen by its name, layers by their numbers; a slip is answered with what there is."""

import re

import pytest

from tests.errors import raises
from vitral.explanation.explain import find_class, parse_layers

CLASSES = ("tabby cat", "tiger cat", "Egyptian cat", "golden retriever", "crane", "crane", "7")


def test_a_class_is_found_by_its_name() -> None:
    assert find_class("golden retriever", CLASSES) == 3


def test_a_number_is_a_label_unless_it_is_a_name() -> None:
    assert find_class("4", CLASSES) == 4
    assert find_class("7", CLASSES) == 6
    with raises("config.unknown_name", "class", 7, "'12'"):
        find_class("12", CLASSES)


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("cat", ["tabby cat", "tiger cat", "Egyptian cat"]),
        ("CAT", ["tabby cat", "tiger cat", "Egyptian cat"]),
        ("goldn retriver", ["golden retriever"]),
        ("zzz", ["tabby cat", "tiger cat", "Egyptian cat", "golden retriever", "crane"]),  # the first five
    ],
)
def test_an_unknown_class_is_answered_with_the_nearest_names(word: str, near: list[str]) -> None:
    with raises("config.unknown_name", "class", 7, repr(word)) as caught:
        find_class(word, CLASSES)
    assert re.findall("'(.+?)'", caught.value.hint) == near


def test_two_classes_of_one_name_are_told_apart_by_number() -> None:
    with raises("config.ambiguous_name", "class", 2, "'crane'", 4, 5):
        find_class("crane", CLASSES)


def test_a_model_without_classes_has_none_to_choose() -> None:
    with raises("config.unsupported", "class"):
        find_class("cat", ())


@pytest.mark.parametrize(
    ("wanted", "layers"),
    [
        ("", range(1, 13)),
        ((), range(1, 13)),
        ("1,6,12", [1, 6, 12]),
        ("1-4,12", [1, 2, 3, 4, 12]),
        (" 12 , 2 - 3 ", [2, 3, 12]),
        ((12, 1), [1, 12]),
        ("5,5", [5]),
    ],
)
def test_layers_are_counted_from_one(wanted: str | tuple[int, ...], layers: list[int]) -> None:
    assert parse_layers(wanted, 12) == tuple(layers)


@pytest.mark.parametrize("wanted", ["0", "13", "1-13", "4-2", "one", "1,", "-3", "1.5", (0,), (-1,)])
def test_a_layer_that_is_not_there_is_refused_with_the_range(wanted: str | tuple[int, ...]) -> None:
    with raises("config.out_of_range", "layers", 1, 12):
        parse_layers(wanted, 12)


def test_a_model_without_layers_has_none_to_choose() -> None:
    assert parse_layers("", 0) == ()
    with raises("config.unsupported", "layers"):
        parse_layers("1", 0)
