"""The order of findings and the words that count."""

import pytest

from vitral.data.doctor.checks import Finding, sort_by_severity
from vitral.html.page import plural


def test_the_worst_comes_first() -> None:
    note = Finding("note", "rotated", "n", 1, (), "")
    usual = Finding("note", "aspect", "n", 1, (), "")
    odd = Finding("warning", "look-alikes", "w", 1, (), "")
    few = Finding("warning", "few", "w", 1, (), "")
    blank = Finding("warning", "blank", "w", 1, (), "")
    leak = Finding("error", "leak", "e", 1, (), "")
    assert sort_by_severity([usual, note, odd, few, leak, blank]) == (leak, blank, few, odd, usual, note)


@pytest.mark.parametrize(("count", "text"), [(0, "0 files"), (1, "1 file"), (2, "2 files"), (12_345, "12,345 files")])
def test_a_count_agrees_with_its_noun(count: int, text: str) -> None:
    assert plural(count, "file") == text


def test_a_noun_may_have_its_own_plural() -> None:
    assert [plural(count, "class", "classes") for count in (1, 3)] == ["1 class", "3 classes"]
