from pathlib import Path

import pyarrow as pa
import pytest

from tests.data.tables import (
    CLASSES,
    IMAGE,
    cell,
    features,
    noted,
    picture,
    save_splits_to_disk,
    save_to_disk,
    table,
    write_table,
)
from tests.data.trees import refused_at
from tests.errors import raises
from vitral.core.config import Size
from vitral.core.errors import DataError
from vitral.data.datasets.source import open_data
from vitral.data.decoding.decode import decode
from vitral.data.decoding.header import Decoding
from vitral.data.samples import SPLITS, Samples, StratifiedSplit

TRAIN = [table(range(5), [0, 1, 2, 0, 1]), table(range(5, 9), [2, 0, 1, 2])]
TEST = table(range(9, 12), [2, 1, 0])
LABELS = [0, 1, 2, 0, 1, 2, 0, 1, 2]


def parquet(root: Path) -> None:
    for number, part in enumerate(TRAIN):
        write_table(root / f"data/train-{number:05}-of-00002.parquet", part)
    write_table(root / "data/test-00000-of-00001.parquet", TEST)


def arrow(root: Path) -> None:
    save_splits_to_disk(root, train=TRAIN, test=[TEST])


def cache(root: Path) -> None:
    """As `load_dataset` leaves what it has prepared."""
    for number, part in enumerate(TRAIN):
        write_table(root / f"parquet-train-{number:05}-of-00002.arrow", part)
    write_table(root / "parquet-test.arrow", TEST)


def contents(samples: Samples, split: str) -> list[tuple[bytes, str]]:
    """The image and the class of each item."""
    return [(samples.read(item), samples.classes[item.label]) for item in samples.items if item.split == split]


@pytest.mark.parametrize("write", [parquet, arrow, cache])
def test_a_set_with_splits_is_opened_with_its_classes_in_their_order(tmp_path: Path, write: object) -> None:
    assert callable(write)
    write(tmp_path)
    samples = open_data(str(tmp_path))
    assert samples.classes == ("cat", "ant", "bee")
    assert [item.label for item in samples.of("train")] == LABELS
    assert contents(samples, "train") == [(picture(n), samples.classes[label]) for n, label in enumerate(LABELS)]
    assert contents(samples, "test") == [(picture(9), "bee"), (picture(10), "ant"), (picture(11), "cat")]
    assert samples.of("val") == ()
    assert samples.notes == ()
    item = samples.items[0]
    assert decode(samples.read(item), item.name, Decoding(), Size(8, 8)).shape == (9, 8, 3)


@pytest.mark.parametrize("name", ["photos.parquet", "test-00000-of-00004.parquet", "photos.arrow"])
def test_one_table_is_divided_whatever_it_is_called(tmp_path: Path, name: str) -> None:
    write_table(tmp_path / name, table(range(12), [0, 1, 2] * 4))
    samples = open_data(str(tmp_path / name), StratifiedSplit(fraction=0.25))
    assert samples.counts("train") == (3, 3, 3)
    assert samples.counts("val") == (1, 1, 1)
    read = {item.name: samples.read(item) for item in samples.items}
    assert read == {f"{name}#{number:07}": picture(number) for number in range(12)}


def test_a_set_saved_without_splits_is_divided(tmp_path: Path) -> None:
    save_to_disk(tmp_path, *TRAIN)
    samples = open_data(str(tmp_path))
    assert samples.counts("train") == (2, 2, 2)
    assert samples.counts("val") == (1, 1, 1)


def plain(labels: pa.Array) -> pa.Table:
    return pa.table({"image": pa.array(map(cell, range(len(labels))), IMAGE), "label": labels})


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (pa.array([10, 2, 10, 2, -1, -1]), ("-1", "2", "10")),
        (pa.array(["dog", "cat", "dog", "cat", "b", "b"]), ("b", "cat", "dog")),
        (pa.array(["dog", "cat"] * 3).dictionary_encode(), ("cat", "dog")),
        (pa.array(["10", "2"] * 3), ("10", "2")),
    ],
)
def test_labels_without_names_name_themselves(tmp_path: Path, labels: pa.Array, classes: tuple[str, ...]) -> None:
    path = write_table(tmp_path / "photos.parquet", plain(labels))
    samples = open_data(str(path))
    assert samples.classes == classes
    assert {item.name[-1]: samples.classes[item.label] for item in samples.items} == {
        str(row): str(label) for row, label in enumerate(labels.to_pylist())
    }


def test_a_class_without_images_is_noted(tmp_path: Path) -> None:
    path = write_table(tmp_path / "photos.parquet", table(range(4), [2, 0, 2, 0]))
    samples = open_data(str(path))
    assert samples.classes == ("cat", "bee")
    assert samples.counts("train") == (1, 1)
    assert any("ant" in note for note in samples.notes)


@pytest.mark.parametrize(
    ("content", "where", "error"),
    [
        (table(range(3), [0, 1, 3]), "photos.parquet#2", ("data.bad_label", "3")),
        (table(range(3), [0, -1, 2]), "photos.parquet#1", ("data.bad_label", "-1", "3")),
        (plain(pa.array([0, 1, None])), "photos.parquet#2", ("data.bad_label",)),
        (plain(pa.array(["a", "", "b"])), "photos.parquet#1", ("data.bad_label",)),
        (
            noted(plain(pa.array(["cat", "ant"])), features()),
            "photos.parquet#0",
            ("data.bad_label", "'cat'", "3"),
        ),
        (table([], []), "photos.parquet", ("data.empty",)),
        (table([0, 1], [1, 1]), "photos.parquet", ("data.too_few", "'ant'")),
    ],
)
def test_rows_without_a_sound_label_are_refused(
    tmp_path: Path, content: pa.Table, where: str, error: tuple[str, ...]
) -> None:
    path = write_table(tmp_path / "photos.parquet", content)
    with raises(*error) as caught:
        open_data(str(path))
    assert refused_at(caught) == str(tmp_path / where)


def test_files_that_disagree_about_the_classes_are_refused(tmp_path: Path) -> None:
    write_table(tmp_path / "train.parquet", TRAIN[0])
    write_table(tmp_path / "test.parquet", table([9], [0], classes=("ant", "bee", "cat")))
    with raises("data.schema_mismatch", "train.parquet") as caught:
        open_data(str(tmp_path))
    assert refused_at(caught) == str(tmp_path / "test.parquet")


def faults_of(root: Path) -> tuple[Samples, list[tuple[str, str]]]:
    """The samples, and the code and place of every fault."""
    found: list[DataError] = []
    samples = open_data(str(root), on_fault=found.append)
    return samples, [(fault.code, fault.where.removeprefix(str(root)).lstrip("/")) for fault in found]


def test_all_faults_of_the_tables_are_collected(tmp_path: Path) -> None:
    write_table(tmp_path / "train-00000-of-00006.parquet", table(range(4), [0, 1, 2, 7]))
    write_table(tmp_path / "train-00001-of-00006.parquet", pa.table({"label": [1, 2]}))
    write_table(tmp_path / "train-00002-of-00006.parquet", table([4], [0], classes=("ant", "bee", "cat")))
    (tmp_path / "train-00003-of-00006.parquet").write_bytes(b"<html>")
    write_table(tmp_path / "train-00004-of-00006.parquet", table([5, 6], [-1, 2]))
    write_table(tmp_path / "test.parquet", TEST)
    samples, faults = faults_of(tmp_path)
    assert faults == [
        ("data.missing_file", ""),
        ("data.missing_column", "train-00001-of-00006.parquet"),
        ("data.schema_mismatch", "train-00002-of-00006.parquet"),
        ("data.bad_table", "train-00003-of-00006.parquet"),
        ("data.bad_label", "train-00000-of-00006.parquet#3"),
        ("data.bad_label", "train-00004-of-00006.parquet#0"),
    ]
    assert contents(samples, "train") == [
        (picture(n), name) for n, name in zip([0, 1, 2, 6], [*CLASSES, "bee"], strict=True)
    ]


def test_all_faults_of_saved_splits_are_collected(tmp_path: Path) -> None:
    save_splits_to_disk(tmp_path, train=TRAIN, validation=[TEST], valid=[TEST], test=[TEST])
    (tmp_path / "train/data-00000-of-00002.arrow").unlink()
    (tmp_path / "test/state.json").write_text("{")
    samples, faults = faults_of(tmp_path)
    assert faults == [
        ("data.missing_file", "train/state.json"),
        ("data.bad_index", "test/state.json"),
        ("data.ambiguous_split", ""),
    ]
    assert [len(samples.of(split)) for split in SPLITS] == [4, 6, 0]


def test_of_several_datasets_in_a_folder_the_first_is_read(tmp_path: Path) -> None:
    for name in ("small", "large"):
        write_table(tmp_path / name / "train.parquet", TRAIN[0])
    samples, faults = faults_of(tmp_path)
    assert faults == [("data.several_sets", "")]
    assert len(samples.items) == 5


def test_splits_of_unknown_names_are_read_as_one(tmp_path: Path) -> None:
    save_splits_to_disk(tmp_path, one=[TRAIN[0]], two=[TRAIN[1]])
    samples, faults = faults_of(tmp_path)
    assert faults == [("data.no_train_split", "")]
    assert len(samples.items) == 9


def test_tables_without_a_sound_file_have_faults_and_no_images(tmp_path: Path) -> None:
    for name in ("train.parquet", "test.parquet"):
        (tmp_path / name).write_bytes(b"<html>")
    samples, faults = faults_of(tmp_path)
    assert faults == [("data.bad_table", "train.parquet"), ("data.bad_table", "test.parquet")]
    assert not samples.items


def test_the_same_set_has_the_same_fingerprint_wherever_it_lies(tmp_path: Path) -> None:
    for place in ("here", "there"):
        parquet(tmp_path / place)
    here, there = (open_data(str(tmp_path / place)) for place in ("here", "there"))
    assert here.fingerprint() == there.fingerprint()
    write_table(tmp_path / "there/data/test-00000-of-00001.parquet", table([9, 10, 99], [2, 1, 1]))
    assert open_data(str(tmp_path / "there")).fingerprint() != here.fingerprint()
