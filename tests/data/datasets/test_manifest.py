"""Manifests: each gives the right samples, or an error that names the line and the remedy."""

import json
from pathlib import Path

import pytest

from tests.data.trees import labeled, plant, refused_at
from tests.errors import raises
from vitral.core.errors import DataError
from vitral.core.files import allow_outside
from vitral.data.datasets.manifest import open_manifest
from vitral.data.samples import Samples, StratifiedSplit

IMAGES = ["cat/1.jpg", "cat/2.jpg", "dog/1.jpg", "dog/2, left.jpg"]
LABELS = dict(zip(IMAGES, ["cat", "cat", "dog", "dog"], strict=True))
SPLITS = dict(zip(IMAGES, ["train", "val", "train", "test"], strict=True))
TABLE = 'path,label\ncat/1.jpg,cat\ncat/2.jpg,cat\ndog/1.jpg,dog\n"dog/2, left.jpg",dog\n'


def opened(root: Path, name: str, text: str | bytes) -> Samples:
    path = plant(root, IMAGES) / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return open_manifest(path, StratifiedSplit())


def lines(**more: dict[str, str]) -> str:
    """JSON Lines of the images, with more fields by name and image."""
    fields = ({"path": image, "label": LABELS[image]} | {name: more[name][image] for name in more} for image in IMAGES)
    return "".join(json.dumps(line) + "\n" for line in fields)


GOOD = {
    "csv": ("m.csv", TABLE),
    "csv in capitals": ("M.CSV", TABLE),
    "tsv": ("m.tsv", TABLE.replace('"dog/2, left.jpg"', "dog/2; left.jpg").replace(",", "\t").replace(";", ",")),
    "json lines": ("m.jsonl", lines()),
    "json lines with blank lines": ("m.ndjson", lines().replace("\n", "\n\n")),
    "a byte order mark": ("m.csv", b"\xef\xbb\xbf" + TABLE.encode()),
    "a byte order mark before json": ("m.jsonl", b"\xef\xbb\xbf" + lines().encode()),
    "carriage returns": ("m.csv", TABLE.replace("\n", "\r\n")),
    "carriage returns in json": ("m.jsonl", lines().replace("\n", "\r\n")),
    "no newline at the end": ("m.csv", TABLE.rstrip("\n")),
    "blank lines": ("m.csv", TABLE.replace("\n", "\n\n")),
    "spaces around labels": ("m.csv", TABLE.replace(",cat", ", cat ").replace("path,label", "Path, Label")),
    "columns in another order, and more": (
        "m.csv",
        "width,label,path\n1,cat,cat/1.jpg\n1,cat,cat/2.jpg\n1,dog,dog/1.jpg\n1,dog,'dog/2, left.jpg'\n".replace(
            "'", '"'
        ),
    ),
}


@pytest.mark.parametrize(("name", "text"), GOOD.values(), ids=GOOD)
def test_a_manifest_is_understood(tmp_path: Path, name: str, text: str | bytes) -> None:
    samples = opened(tmp_path, name, text)
    assert labeled(samples) == LABELS
    assert samples.classes == ("cat", "dog")
    assert samples.counts("val") == (1, 1)
    assert [samples.read(item) for item in samples.items] == [item.name.encode() for item in samples.items]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("m.csv", "path,label,split\ncat/1.jpg,cat,train\ncat/2.jpg,cat,valid\ndog/1.jpg,dog,TRAIN\n"),
        ("m.jsonl", lines(split=SPLITS)),
    ],
)
def test_given_splits_are_kept(tmp_path: Path, name: str, text: str) -> None:
    samples = opened(tmp_path, name, text)
    assert [item.name for item in samples.of("train")] == ["cat/1.jpg", "dog/1.jpg"]
    assert [item.name for item in samples.of("val")] == ["cat/2.jpg"]


def test_a_number_is_the_name_of_a_class(tmp_path: Path) -> None:
    text = (
        '{"path": "cat/1.jpg", "label": 7}\n{"path": "cat/2.jpg", "label": "7"}\n{"path": "dog/1.jpg", "label": 10}\n'
    )
    assert opened(tmp_path, "m.jsonl", text).classes == ("10", "7")


def test_paths_are_relative_to_the_manifest_and_lead_out_of_its_folder_only_if_allowed(tmp_path: Path) -> None:
    plant(tmp_path, ["raw/1.jpg", "lists/2.jpg", "raw/3.jpg", "lists/4.jpg"])
    manifest = tmp_path / "lists/m.csv"
    lines = ["path,label", "../raw/1.jpg,a", "2.jpg,b", f"{tmp_path}/raw/3.jpg,b", f"{tmp_path}/lists/4.jpg,a"]
    manifest.write_text("\n".join(lines))
    faults: list[DataError] = []
    samples = open_manifest(manifest, StratifiedSplit(), faults.append)
    assert {samples.read(item) for item in samples.items} == {b"lists/2.jpg", b"lists/4.jpg"}
    assert [(fault.code, str(fault.where)) for fault in faults] == [
        ("data.outside", f"{manifest}:2"),
        ("data.outside", f"{manifest}:4"),
    ]
    manifest.write_text("\n".join(lines[:-1]))
    with allow_outside():
        samples = open_manifest(manifest, StratifiedSplit())
    assert {samples.read(item) for item in samples.items} == {b"raw/1.jpg", b"lists/2.jpg", b"raw/3.jpg"}


def with_line(line: str, header: str = "path,label") -> str:
    return f"{header}\n{line}\n"


BAD = {
    "no header": (
        "m.csv",
        with_line("cat/2.jpg,cat", "cat/1.jpg,cat"),
        "",
        ("data.bad_manifest", "path", "label", "cat/1.jpg,cat"),
    ),
    "a column missing": (
        "m.csv",
        with_line("cat/1.jpg,cat", "path,class"),
        "",
        ("data.bad_manifest", "label", "path,class"),
    ),
    "semicolons": ("m.csv", TABLE.replace(",", ";"), "", ("data.bad_manifest", "'path;label'")),
    "a column twice": ("m.csv", with_line("a,b,c", "path,label,label"), "", ("data.bad_manifest", "'label'")),
    "a misspelt split": (
        "m.csv",
        with_line("cat/1.jpg,cat,val", "path,label,splitt"),
        "",
        ("data.bad_manifest", "'splitt'", "'split'"),
    ),
    "a misspelt split in json": ("m.jsonl", lines(spilt=SPLITS), ":1", ("data.bad_manifest", "'spilt'", "'split'")),
    "too few fields": ("m.csv", with_line("cat/1.jpg"), ":2", ("data.bad_manifest", "2", "path, label", "1")),
    "too many fields": ("m.csv", with_line("dog/2, left.jpg,dog"), ":2", ("data.bad_manifest", "2", "3", "','")),
    "an unfinished quote": ("m.csv", with_line('"cat/1.jpg,cat'), ":2", ("data.bad_manifest",)),
    "an empty label": ("m.csv", with_line("cat/1.jpg, "), ":2", ("data.bad_manifest", "label")),
    "an empty path": ("m.csv", with_line(",cat"), ":2", ("data.bad_manifest", "path")),
    "an unknown split": (
        "m.csv",
        with_line("cat/1.jpg,cat,trian", "path,label,split"),
        ":2",
        ("data.bad_split", "'trian'", "'train'"),
    ),
    "a split for some": (
        "m.csv",
        with_line("cat/1.jpg,cat,train\ndog/1.jpg,dog,", "path,label,split"),
        ":3",
        ("data.bad_split", "''"),
    ),
    "a path twice": ("m.csv", TABLE + "cat/../cat/1.jpg,dog\n", ":6", ("data.bad_manifest", "cat/../cat/1.jpg", "2")),
    "a missing file": ("m.csv", TABLE + "cat/9.jpg,cat\n", "", ("data.missing_file", "1", "5", "cat/9.jpg")),
    "many missing files": (
        "m.csv",
        TABLE + "".join(f"cat/1{number}.jpg,cat\n" for number in range(7)),
        "",
        ("data.missing_file", "7", "11", "cat/10.jpg, cat/11.jpg, cat/12.jpg, cat/13.jpg, cat/14.jpg", "2"),
    ),
    "a folder for a file": ("m.csv", TABLE + "cat,cat\n", "", ("data.missing_file", "1", "5", "cat")),
    "a path with a zero byte": ("m.csv", TABLE + "cat/\0.jpg,cat\n", "", ("data.missing_file", "1", "5")),
    "the slashes of another system": (
        "m.csv",
        with_line("cat\\1.jpg,cat"),
        "",
        ("data.missing_file", "cat\\1.jpg", " / "),
    ),
    "no lines": ("m.csv", "path,label\n", "", ("data.empty",)),
    "nothing": ("m.csv", "", "", ("data.bad_manifest", "path", "label")),
    "nothing in json": ("m.jsonl", "\n", "", ("data.empty",)),
    "not utf-8": ("m.csv", "path,label\ncafé,x\n".encode("latin-1"), "", ("data.bad_manifest", "UTF-8", "0xe9")),
    "not json": ("m.jsonl", lines() + "cat/1.jpg\n", ":5", ("data.bad_manifest", "JSON")),
    "deep json": ("m.jsonl", "[" * 100_000, ":1", ("data.bad_manifest", "JSON")),
    "json without a label": ("m.jsonl", '{"path": "cat/1.jpg"}', ":1", ("data.bad_manifest", "path", "label")),
    "json that is a list": ("m.jsonl", '["cat/1.jpg", "cat"]', ":1", ("data.bad_manifest", "path", "label")),
    "a label that is a list": (
        "m.jsonl",
        '{"path": "cat/1.jpg", "label": ["cat"]}',
        ":1",
        ("data.bad_manifest", "label", '["cat"]'),
    ),
    "a label that is true": (
        "m.jsonl",
        '{"path": "cat/1.jpg", "label": true}',
        ":1",
        ("data.bad_manifest", "label", "true"),
    ),
    "one class": ("m.csv", with_line("cat/1.jpg,cat"), "", ("data.too_few", "'cat'")),
    "case": ("m.csv", with_line("cat/1.jpg,cat\ncat/2.jpg,Cat"), "", ("data.ambiguous_class", "'Cat'", "'cat'")),
    "a class only in val": (
        "m.csv",
        with_line("cat/1.jpg,cat,train\ndog/1.jpg,dog,val", "path,label,split"),
        "",
        ("data.class_not_in_train", "'dog'", "val", "dog/1.jpg"),
    ),
}


@pytest.mark.parametrize(("name", "text", "place", "error"), BAD.values(), ids=BAD)
def test_a_manifest_that_cannot_be_right_is_refused(
    tmp_path: Path, name: str, text: str | bytes, place: str, error: tuple[str, ...]
) -> None:
    with raises(*error) as caught:
        opened(tmp_path, name, text)
    assert refused_at(caught) == f"{tmp_path / name}{place}"


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_all_faults_of_a_manifest_are_collected(tmp_path: Path, kind: str) -> None:
    plant(tmp_path, [f"{pet}/{n}.jpg" for pet in ("cat", "dog") for n in (1, 2)])
    rows = [
        *[("cat/1.jpg", "cat", "train"), ("dog/1.jpg", "dog", "train"), ("cat/1.jpg", "cat", "train")],
        *[("cat/2.jpg", "", "train"), ("cat/2.jpg", "cat", "trian"), ("gone.jpg", "cat", "val")],
        ("dog/2.jpg", "Dog", "val"),
    ]
    if kind == "csv":
        text = "".join(f"{','.join(row)}\n" for row in [("path", "label", "split"), *rows, ("too", "few")])
    else:
        text = "".join(f"{json.dumps(dict(zip(('path', 'label', 'split'), row, strict=True)))}\n" for row in rows) + "{"
    path = tmp_path / f"m.{kind}"
    path.write_text(text)
    found: list[DataError] = []
    samples = open_manifest(path, StratifiedSplit(), found.append)
    first = 2 if kind == "csv" else 1
    assert sorted((fault.code, fault.where.removeprefix(str(path))) for fault in found) == [
        ("data.ambiguous_class", ""),
        ("data.bad_manifest", f":{first + 2}"),
        ("data.bad_manifest", f":{first + 3}"),
        ("data.bad_manifest", f":{first + 7}"),
        ("data.bad_split", f":{first + 4}"),
        ("data.class_not_in_train", ""),
        ("data.missing_file", ""),
    ]
    assert [item.name for item in samples.items] == ["cat/1.jpg", "dog/1.jpg", "dog/2.jpg"]


def test_a_manifest_without_good_lines_is_empty_samples(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("path,label\n,\n")
    found: list[DataError] = []
    samples = open_manifest(tmp_path / "m.csv", StratifiedSplit(), found.append)
    assert [fault.code for fault in found] == ["data.bad_manifest", "data.bad_manifest", "data.empty"]
    assert (samples.classes, samples.items) == ((), ())
