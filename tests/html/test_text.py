"""Numbers in words, by example."""

import pytest

from vitral.html.text import align_columns, format_count, format_loss, format_points, percent, shorten


@pytest.mark.parametrize(
    ("share", "shown"),
    [
        (0.863, "86.3%"), (0.0, "0.0%"), (1.0, "100.0%"), (None, "\u2013"), (0.9994, "99.9%"), (0.9995, "> 99.9%"),
        (0.99999, "> 99.9%"), (0.0004, "< 0.1%"), (0.0005, "0.1%"),
    ],
)  # fmt: skip
def test_a_share_never_reads_as_all_or_nothing_when_it_is_not(share: float | None, shown: str) -> None:
    assert percent(share) == shown


def test_a_difference_is_in_points() -> None:
    assert format_points(0.0216) == "2.2 points"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.41296, "0.413"), (12.06, "12.1"), (0.00021, "0.000210"), (0.0, "0"), (12345.6, "12,346"), (-0.5, "-0.500")],
)
def test_a_loss_has_three_digits(value: float, shown: str) -> None:
    assert format_loss(value) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0"), (5702, "5,702"), (999_999, "999,999"), (21_700_000, "21.7 million"), (999_960_000, "1.0 billion"),
        (86_567_656, "86.6 million"), (4_200_000_000, "4.2 billion"), (1_300_000_000_000_000, "1.3 \u00d7 10¹⁵"),
        (10**20, "1.0 \u00d7 10²⁰"),
    ],
)  # fmt: skip
def test_a_large_number_is_said_in_short(count: int, shown: str) -> None:
    assert format_count(count) == shown


def test_columns_are_flush_left_or_right() -> None:
    rows = [("a", "bb", "1"), ("ねこ", "b", "234")]
    assert align_columns(rows) == ["a     bb  1", "ねこ  b   234"]
    assert align_columns(rows, right=(0, 2)) == ["   a  bb    1", "ねこ  b   234"]
    assert align_columns([("a", ""), ("b", "2", "3")], right=(1,)) == ["a", "b  2  3"]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("cat", "cat"),
        ("fourteen chars", "fourteen chars"),
        ("species of class 17", "species…ass 17"),
        ("ねこ" * 8, "ねこね…こねこ"),
    ],
)
def test_a_long_name_is_cut_in_the_middle(name: str, shown: str) -> None:
    assert shorten(name, 14) == shown
