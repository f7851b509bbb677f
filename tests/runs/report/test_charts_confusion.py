"""The matrix and the pairs, against counting."""

import re

import pytest

from tests.evaluation.test_accuracy import NAMES, ZOO, given_as, random_answers
from vitral.evaluation.accuracy import compute_accuracy
from vitral.runs.report.charts import MAX_CLASSES, MAX_PAIRS, confusion_matrix, most_confused


def test_a_cell_stands_at_its_row_and_column() -> None:
    matrix = confusion_matrix(compute_accuracy(given_as(ZOO, 4), NAMES))
    assert matrix is not None
    counts = {(cell.y / matrix.side, cell.x / matrix.side): cell.images for cell in matrix.cells}
    assert counts == {(0, 0): 3, (0, 1): 1, (0, 3): 1, (1, 0): 2, (1, 1): 1, (2, 1): 1}
    assert [cell.style for cell in matrix.cells] == ["right", "wrong", "wrong", "wrong", "right", "wrong"]
    assert re.findall(r"[\d.]+", matrix.cells[0].label) == ["3", "5", "60.0"]
    assert re.findall(r"[\d.]+", matrix.cells[1].label) == ["1", "5", "20.0"]
    assert matrix.cells[0].strength == 0.6
    assert [name.full for name in matrix.names] == list(NAMES)


@pytest.mark.parametrize("count", [2, 10, 16, 17, MAX_CLASSES])
def test_a_matrix_holds_all_its_classes(count: int) -> None:
    matrix = confusion_matrix(
        compute_accuracy(random_answers(300, count), [f"a class of number {n}" for n in range(count)])
    )
    assert matrix is not None
    assert matrix.width == count * matrix.side
    assert all(0 <= cell.x <= matrix.width - matrix.side for cell in matrix.cells)
    assert len({name.short for name in matrix.names}) == count
    assert matrix.numbered == (count <= 16)


def test_too_many_classes_have_no_matrix() -> None:
    assert confusion_matrix(compute_accuracy(random_answers(300, 31), [str(n) for n in range(31)])) is None


def test_a_name_that_disturbs_is_short_after_it_is_written_out() -> None:
    matrix = confusion_matrix(compute_accuracy(random_answers(9, 2), ("\n" * 20, "b")))
    assert matrix is not None
    assert matrix.names[0].short == r"\n\n\n\…\n\n\n"


def test_pairs_come_most_confused_first() -> None:
    found = most_confused(compute_accuracy(given_as(ZOO, 4), NAMES))
    assert [(pair.name, pair.predicted_as, pair.images) for pair in found] == [
        ("dog", "cat", 2), ("cat", "dog", 1), ("cat", "hen", 1), ("fox", "dog", 1)
    ]  # fmt: skip
    assert found[0].share == pytest.approx(2 / 3)


def test_pairs_are_few_and_none_when_all_is_right() -> None:
    assert len(most_confused(compute_accuracy(random_answers(500, 40), [str(n) for n in range(40)]))) == MAX_PAIRS
    assert most_confused(compute_accuracy(given_as([(0, 0), (1, 1)], 2), ("a", "b"))) == []
