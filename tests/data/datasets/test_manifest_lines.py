"""Lines of tables and of JSON Lines."""

import pytest

from tests.errors import raises
from vitral.core.errors import DataError
from vitral.data.datasets.manifest import read_json_lines, read_table


def test_rows_have_the_number_of_the_line_that_they_end_on() -> None:
    lines = [" Path ,LABEL\n", "\n", '"a\n', 'b.jpg",cat\n', "c.jpg,dog\n"]
    headers: list[list[str]] = []
    rows = list(read_table("list.csv", lines, ",", headers.append))
    assert headers == [["path", "label"]]
    assert rows == [(4, {"path": "a\nb.jpg", "label": "cat"}), (5, {"path": "c.jpg", "label": "dog"})]


def test_a_header_that_is_refused_ends_it() -> None:
    def refuse(header: list[str]) -> None:
        raise DataError("no header like that", code="data.bad_manifest", where="list.csv")

    with raises("data.bad_manifest", "list.csv"):
        list(read_table("list.csv", ["a,b\n", "1,2,3\n"], ",", refuse))


@pytest.mark.parametrize(
    ("lines", "values"),
    [
        (["a\tb\n", "1\t2\n", "1\t2\t3\n"], ("2", "a, b", "3")),
        (["a\tb\n", "1\t2\n", '"1'], ()),
    ],
)
def test_a_malformed_row_is_refused_by_its_line(lines: list[str], values: tuple[str, ...]) -> None:
    with raises("data.bad_manifest", *values) as caught:
        list(read_table("list.tsv", lines, "\t", lambda header: None))
    assert caught.value.where == "list.tsv:3"
    assert caught.value.hint


def test_objects_have_the_number_of_their_line() -> None:
    assert list(read_json_lines("list.jsonl", ['{"a": 1}\n', " \n", "[2]"])) == [(1, {"a": 1}), (3, [2])]


@pytest.mark.parametrize("line", ["{", "[" * 200_000, "nonsense", '{"a": 1} {"b": 2}'])
def test_a_line_that_is_not_json_is_refused_by_its_number(line: str) -> None:
    with raises("data.bad_manifest", "JSON") as caught:
        list(read_json_lines("list.jsonl", ["{}", line]))
    assert caught.value.where == "list.jsonl:2"
