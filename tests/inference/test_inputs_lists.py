"""Paths from manifests and from stdin."""

import os
from io import BytesIO
from itertools import islice
from pathlib import Path

import pytest

from tests.errors import raises
from vitral.inference.inputs import manifest_paths, stream_paths


def written(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", 'path\n1.jpg\n"two, really.jpg"\n'),
        ("a.csv", '\ufeffLabel,Path\r\ncat,1.jpg\r\n\r\ndog,"two, really.jpg"\r\n'),
        ("a.tsv", "path\tlabel\n1.jpg\tcat\ntwo, really.jpg\tdog\n"),
        ("a.jsonl", '{"path": "1.jpg"}\n\n{"label": 3, "path": "two, really.jpg"}\n'),
        ("a.ndjson", '"1.jpg"\n"two, really.jpg"\n'),
    ],
)
def test_a_manifest_needs_paths_alone_and_they_are_relative_to_it(tmp_path: Path, name: str, text: str) -> None:
    found = manifest_paths(written(tmp_path / name, text))
    assert list(found) == [str(tmp_path / "1.jpg"), str(tmp_path / "two, really.jpg")]


def test_an_absolute_path_in_a_manifest_is_taken_as_it_is(tmp_path: Path) -> None:
    assert list(manifest_paths(written(tmp_path / "a.csv", "path\n/photos/1.jpg\n"))) == ["/photos/1.jpg"]


@pytest.mark.parametrize(
    ("name", "text", "where", "code", "values"),
    [
        ("a.csv", "file,label\n1.jpg,cat\n", "a.csv", "data.bad_manifest", ["'path'", "'file,label'"]),
        ("a.csv", "path,path\n1,2\n", "a.csv", "data.bad_manifest", ["'path,path'"]),
        ("a.csv", "path,label\n1.jpg,cat\n2.jpg\n", "a.csv:3", "data.bad_manifest", [2, "path, label", 1]),
        ("a.csv", 'path\n"1.jpg\n', "a.csv:2", "data.bad_manifest", []),
        ("a.csv", "path,label\n,cat\n", "a.csv:2", "data.bad_manifest", ["path", '""']),
        ("a.csv", "path\n", "a.csv", "data.empty", ["path"]),
        ("a.csv", "", "a.csv", "data.bad_manifest", ["'path'"]),
        ("a.jsonl", '{"path": "1.jpg"}\n{"file": "2.jpg"}\n', "a.jsonl:2", "data.bad_manifest", ["path", "null"]),
        ("a.jsonl", '{"path": 7}\n', "a.jsonl:1", "data.bad_manifest", ["path", 7]),
        ("a.jsonl", "1.jpg\n", "a.jsonl:1", "data.bad_manifest", ["JSON"]),
    ],
)
def test_a_manifest_that_is_wrong_is_told_by_line(
    tmp_path: Path, name: str, text: str, where: str, code: str, values: list[object]
) -> None:
    with raises(code, *values) as caught:
        list(manifest_paths(written(tmp_path / name, text)))
    assert caught.value.where == str(tmp_path / where)


def test_a_manifest_that_is_not_text_or_not_there_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"path\n\xff.jpg\n")
    with raises("data.bad_manifest", tmp_path / "a.csv", "UTF-8"):
        list(manifest_paths(str(tmp_path / "a.csv")))
    with raises("data.unreadable", tmp_path / "b.csv"):
        list(manifest_paths(str(tmp_path / "b.csv")))


def test_a_manifest_is_read_as_it_is_used(tmp_path: Path) -> None:
    """What is wrong far below does not keep the first paths back."""
    text = "path\n" + "".join(f"{number}.jpg\n" for number in range(100_000)) + "a,b\n"
    found = manifest_paths(written(tmp_path / "a.csv", text))
    assert list(islice(found, 2)) == [str(tmp_path / "0.jpg"), str(tmp_path / "1.jpg")]
    with raises("data.bad_manifest", f"{tmp_path / 'a.csv'}:100002", "path"):
        list(found)


def test_lines_of_a_stream_are_paths_to_the_letter() -> None:
    stream = BytesIO(b"a b.jpg\n\n caf\xe9.jpg\r\nlast.jpg")
    assert list(stream_paths(stream)) == ["a b.jpg", os.fsdecode(b" caf\xe9.jpg"), "last.jpg"]
