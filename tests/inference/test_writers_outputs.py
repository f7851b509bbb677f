"""Predictions as text, read back by other readers."""

import csv
import json
import os
import shutil
import subprocess
from io import BytesIO, StringIO

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.errors import raises
from vitral.core.errors import DataError
from vitral.inference.batches import Batch
from vitral.inference.engines.engine import FloatArray
from vitral.inference.writers import (
    FORMATS,
    Format,
    Prediction,
    make_formatter,
    make_predictions,
    open_prediction_writer,
    parse_format,
)

CLASSES = ("cat", 'a "dog", barking', "Gürtel\nand tail")
STRANGE = os.fsdecode(b'caf\xe9, "the" \n2.jpg')


def batch_of(names: tuple[str, ...], *failed: int) -> Batch:
    errors = {
        place: DataError("cut off", code="data.truncated_image", where=names[place], hint="fetch it")
        for place in failed
    }
    return Batch(names, dict(errors), np.zeros((len(names) - len(failed), 2, 2, 3), dtype=np.uint8))


def logits(*rows: list[float]) -> FloatArray:
    return np.array(rows, dtype=np.float32).reshape(len(rows), -1)


def written(format: Format, top: int = 2) -> bytes:
    """Two batches: the second of the first is bad, the last has a name that is no Unicode."""
    file = BytesIO()
    with open_prediction_writer(file, format, CLASSES, top, engine="eager") as writer:
        writer.write(batch_of(("1.jpg", "2.jpg", "3.jpg"), 1), logits([0, 1, 3], [2, 2, 0]))
        writer.write(batch_of((STRANGE,)), logits([-1, -2, -3]))
    return file.getvalue()


def chances(*row: float) -> list[float]:
    return torch.tensor(row, dtype=torch.float64).softmax(dim=0).tolist()


def test_a_row_has_the_likeliest_classes_and_their_softmax() -> None:
    (row,) = make_predictions(batch_of(("1.jpg",)), logits([0, 1, 3]), CLASSES, 3)
    assert row.labels == (CLASSES[2], CLASSES[1], CLASSES[0])
    expected = sorted(chances(0, 1, 3), reverse=True)
    assert list(row.scores) == pytest.approx(expected, rel=1e-5)


def test_of_equal_classes_the_first_comes_first_and_huge_logits_are_no_trouble() -> None:
    first, second = make_predictions(batch_of(("1.jpg", "2.jpg")), logits([2, 2, 2], [1e30, 0, -1e30]), CLASSES, 3)
    assert first.labels == CLASSES
    assert second.scores == (1.0, 0.0, 0.0)


def test_a_tiny_probability_keeps_its_digits() -> None:
    rows = make_predictions(batch_of(("1.jpg",)), logits([0, 0, 30]), CLASSES, 3)
    found = json.loads(make_formatter("jsonl", 3).rows(rows))["answers"][1]["probability"]
    assert found == pytest.approx(chances(0, 0, 30)[0], rel=1e-5)
    assert len(repr(found)) <= 12


def test_bad_files_keep_their_place_among_the_rows() -> None:
    found = make_predictions(batch_of(("1.jpg", "2.jpg", "3.jpg"), 0, 2), logits([0, 1, 3]), CLASSES, 1)
    assert [(row.path, row.error) for row in found] == [("1.jpg", "cut off"), ("2.jpg", ""), ("3.jpg", "cut off")]
    assert [len(row.labels) for row in found] == [0, 1, 0]


@pytest.mark.parametrize("format", ["json", "jsonl"])
def test_json_is_read_back(format: Format) -> None:
    text = written(format).decode()
    found = json.loads(text) if format == "json" else [json.loads(line) for line in text.splitlines()]
    assert [each["path"] for each in found] == ["1.jpg", "2.jpg", "3.jpg", STRANGE]
    assert found[1] == {"path": "2.jpg", "error": "cut off"}
    assert [answer["class"] for answer in found[0]["answers"]] == [CLASSES[2], CLASSES[1]]
    assert found[0]["answers"][0]["probability"] == pytest.approx(chances(0, 1, 3)[2], rel=1e-5)
    assert "error" not in found[0]
    assert found[0]["engine"] == "eager"


@pytest.mark.skipif(not shutil.which("jq"), reason="jq is not installed")
@pytest.mark.parametrize("format", ["json", "jsonl"])
def test_jq_reads_it(format: Format) -> None:
    query = ".[].path" if format == "json" else ".path"
    done = subprocess.run(["jq", "-r", query], input=written(format), capture_output=True, timeout=60, check=True)
    assert done.stdout.startswith(b"1.jpg\n2.jpg\n3.jpg\ncaf")


def test_csv_is_read_back_with_a_column_for_each_rank() -> None:
    found = list(csv.DictReader(StringIO(written("csv").decode(), newline="")))
    assert list(found[0]) == ["path", "class", "probability", "class_2", "probability_2", "error"]
    assert [row["path"] for row in found[:3]] == ["1.jpg", "2.jpg", "3.jpg"]
    assert found[3]["path"] == STRANGE.encode("utf-8", "backslashreplace").decode()
    assert (found[0]["class"], found[0]["class_2"]) == (CLASSES[2], CLASSES[1])
    assert float(found[0]["probability_2"]) == pytest.approx(chances(0, 1, 3)[1], rel=1e-5)
    assert list(found[1].values()) == ["2.jpg", "", "", "", "", "cut off"]
    assert found[0]["error"] == ""


def test_a_table_is_in_columns_and_has_no_bad_files() -> None:
    lines = written("table").decode().splitlines()
    assert lines[0].split() == ["1.jpg", "Gürtel\\nand", "tail", "84.4%", "a", '"dog",', "barking", "11.4%"]
    assert lines[1].startswith("3.jpg  cat               46.8%  ")
    assert lines[2].startswith('caf\\udce9, "the" \\n2.jpg  cat')
    assert len(lines) == 3


def test_columns_only_grow() -> None:
    table = make_formatter("table", 1)
    rows = [Prediction(name, ("cat",), (0.5,)) for name in ("a.jpg", "much-longer.jpg", "b.jpg")]
    text = "".join(table.rows([row]) for row in rows)
    assert [line.index("cat") for line in text.splitlines()] == [7, 17, 17]


@pytest.mark.parametrize("format", FORMATS)
def test_no_images_and_more_ranks_than_classes_are_fine(format: Format) -> None:
    file = BytesIO()
    with open_prediction_writer(file, format, CLASSES, 50):
        pass
    text = file.getvalue().decode()
    header = "path,class,probability,class_2,probability_2,class_3,probability_3,error\n"
    expected = {"table": "", "jsonl": "", "json": "[\n]\n", "csv": header}
    assert text == expected[format]
    assert written(format, top=50) == written(format, top=3)


def test_json_is_whole_even_where_a_bad_file_ended_it() -> None:
    file = BytesIO()

    def broken_off() -> None:
        with open_prediction_writer(file, "json", CLASSES, 1) as writer:
            writer.write(batch_of(("1.jpg",)), logits([0, 1, 3]))
            raise DataError("cut off", code="data.truncated_image")

    with pytest.raises(DataError):
        broken_off()
    assert [each["path"] for each in json.loads(file.getvalue())] == ["1.jpg"]


def test_rows_are_there_as_soon_as_they_are_written() -> None:
    reader, pipe = os.pipe()
    os.set_blocking(reader, False)  # where nothing is there yet, it is an error
    with open(pipe, "wb") as here, open_prediction_writer(here, "jsonl", CLASSES, 1) as writer:
        writer.write(batch_of(("1.jpg",)), logits([0, 1, 3]))
        assert json.loads(os.read(reader, 1000))["path"] == "1.jpg"
    os.close(reader)


@given(st.lists(st.text(), min_size=1, max_size=5), st.text(min_size=1))
def test_any_name_comes_back_from_json_and_csv(names: list[str], trouble: str) -> None:
    rows = [Prediction(name, (name,), (0.5,)) for name in names] + [Prediction("bad", (), (), error=trouble)]
    lines = make_formatter("jsonl", 1).rows(rows).split("\n")[:-1]
    assert [json.loads(line)["path"] for line in lines] == [row.path for row in rows]
    back = list(csv.reader(StringIO(make_formatter("csv", 1).rows(rows), newline="")))
    assert [(line[0], line[3]) for line in back] == [(row.path, row.error) for row in rows]


def test_a_format_that_is_none_is_answered_with_the_nearest() -> None:
    assert [parse_format(name) for name in FORMATS] == list(FORMATS)
    with raises("config.unknown_name", "--format", *FORMATS, "'cvs'", "'csv'"):
        parse_format("cvs")
