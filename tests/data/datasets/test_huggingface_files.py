import json
from pathlib import Path

import pytest

from tests.data.tables import save_splits_to_disk, save_to_disk, table
from tests.data.trees import plant, refused_at
from tests.errors import raises
from vitral.data.datasets.huggingface import find_tables, holds_tables

ONE = table([0, 1], [0, 1])


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"], ["train", "train"]),
        (["train-00000-of-00001-b42f7f2ff5d5c8bf.parquet", "validation-00000-of-00001-0a.parquet"], ["train", "val"]),
        (["plain_text/test-00000-of-00001.parquet", "plain_text/train-00000-of-00001.parquet"], ["test", "train"]),
        (["default/test/0000.parquet", "default/train/0000.parquet"], ["test", "train"]),
        (["train/0000.parquet", "train/0001.parquet", "valid/0000.parquet"], ["train", "train", "val"]),
        (
            ["mnist-test.arrow", "mnist-train-00000-of-00002.arrow", "mnist-train-00001-of-00002.arrow"],
            ["test", "train", "train"],
        ),
        (["0000.parquet", "0001.parquet"], ["train", "train"]),
        (["photos.parquet"], ["train"]),
        (["TRAIN.PARQUET", "Test.Parquet"], ["train", "test"]),
        (["data/test.parquet"], ["test"]),
        (["constrain.parquet"], ["train"]),
    ],
)
def test_the_split_is_told_by_the_names_of_files_and_folders(
    tmp_path: Path, names: list[str], splits: list[str]
) -> None:
    plant(tmp_path, [*names, "README.md", ".cache/huggingface/train.parquet"])
    assert holds_tables(tmp_path)
    found = find_tables(tmp_path)
    assert {file.name: file.split for file in found.files} == dict(zip(names, splits, strict=True))
    assert found.notes == []


@pytest.mark.parametrize(
    "names",
    [
        ["cat/1.jpg", "dog/1.jpg"],
        ["train/cat/1.jpg", "train/dog/1.jpg", "metadata.parquet"],
        ["train/cat/1.jpg", "train/cat/a.parquet"],
        [".cache/a.parquet"],
        ["one/two/three/a.parquet"],
        ["list.csv"],
        [],
    ],
)
def test_a_folder_of_images_is_not_taken_for_one_of_tables(tmp_path: Path, names: list[str]) -> None:
    assert not holds_tables(plant(tmp_path, names))


def test_a_file_is_told_by_its_name(tmp_path: Path) -> None:
    plant(tmp_path, ["a.parquet", "b.ARROW", "c.csv", "folder.parquet/1.jpg"])
    assert [
        holds_tables(tmp_path / name) for name in ("a.parquet", "b.ARROW", "c.csv", "folder.parquet", "gone.arrow")
    ] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_what_has_no_split_is_left_out_with_a_note(tmp_path: Path) -> None:
    plant(tmp_path, ["train-00000-of-00001.parquet", "unlabeled-00000-of-00001.parquet"])
    found = find_tables(tmp_path)
    assert [file.name for file in found.files] == ["train-00000-of-00001.parquet"]
    (note,) = found.notes
    assert note.endswith(": unlabeled-00000-of-00001.parquet")


def test_only_the_files_that_were_saved_are_used(tmp_path: Path) -> None:
    """`map` and `filter` leave files of their own in the folder."""
    save_to_disk(tmp_path, ONE, ONE)
    plant(tmp_path, ["cache-1f2e3d4c5b6a7980.arrow"])
    assert holds_tables(tmp_path)
    assert [tuple(file) for file in find_tables(tmp_path).files] == [
        ("data-00000-of-00002.arrow", "train"),
        ("data-00001-of-00002.arrow", "train"),
    ]


def test_saved_splits_are_named_by_their_folders(tmp_path: Path) -> None:
    save_splits_to_disk(tmp_path, train=[ONE, ONE], validation=[ONE], extra=[ONE])
    assert holds_tables(tmp_path)
    found = find_tables(tmp_path)
    assert [tuple(file) for file in found.files] == [
        ("train/data-00000-of-00002.arrow", "train"),
        ("train/data-00001-of-00002.arrow", "train"),
        ("validation/data-00000-of-00001.arrow", "val"),
    ]
    (note,) = found.notes
    assert note.endswith(": extra/data-00000-of-00001.arrow")


@pytest.mark.parametrize(
    ("names", "error"),
    [
        (["train-00000-of-00003.parquet"], ("data.missing_file", "train", "2", "3", "00001, 00002")),
        (["d/train-00001-of-00002.parquet", "d/test.parquet"], ("data.missing_file", "d/train", "00000")),
        (["a/train.parquet", "b/train.parquet"], ("data.several_sets", "a, b")),
        (["a/train/0.parquet", "b/train/0.parquet"], ("data.several_sets", "a, b")),
        (["val.parquet", "validation.parquet", "train.parquet"], ("data.ambiguous_split", "val, validation")),
    ],
)
def test_files_that_make_no_whole_set_are_refused(tmp_path: Path, names: list[str], error: tuple[str, ...]) -> None:
    with raises(*error) as caught:
        find_tables(plant(tmp_path, names))
    assert refused_at(caught) == str(tmp_path)


def test_splits_with_no_word_for_training_are_refused(tmp_path: Path) -> None:
    save_splits_to_disk(tmp_path, cats=[ONE], dogs=[ONE])
    with raises("data.no_train_split", "cats, dogs"):
        find_tables(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "error"),
    [
        ("train/state.json", "{", ("data.bad_index", "JSON")),
        ("train/state.json", "[]", ("data.bad_index", "_data_files")),
        ("train/state.json", '{"_data_files": 7}', ("data.bad_index", "_data_files")),
        ("train/state.json", '{"_data_files": []}', ("data.bad_index", "_data_files")),
        (
            "train/state.json",
            '{"_data_files": [{"filename": "gone.arrow"}]}',
            ("data.missing_file", "train/gone.arrow"),
        ),
        (
            "train/state.json",
            '{"_indices_data_files": [{"filename": "i.arrow"}]}',
            ("data.unsupported_table", "flatten_indices()"),
        ),
        ("dataset_dict.json", '{"splits": "train"}', ("data.bad_index", "splits")),
        ("dataset_dict.json", "[" * 100_000, ("data.bad_index", "JSON")),
    ],
)
def test_a_damaged_description_is_refused_by_name(
    tmp_path: Path, file: str, content: str, error: tuple[str, ...]
) -> None:
    save_splits_to_disk(tmp_path, train=[ONE])
    (tmp_path / file).write_text(content)
    with raises(*error) as caught:
        find_tables(tmp_path)
    assert refused_at(caught) == str(tmp_path / file)


@pytest.mark.parametrize("word", ["../secrets", "/etc", "..", 7])
def test_a_description_does_not_lead_out_of_its_folder(tmp_path: Path, word: object) -> None:
    save_splits_to_disk(tmp_path / "set", train=[ONE])
    save_to_disk(tmp_path / "secrets", ONE)
    (tmp_path / "set/dataset_dict.json").write_text(json.dumps({"splits": [word]}))
    with raises("data.bad_index", "splits"):
        find_tables(tmp_path / "set")
    (tmp_path / "set/dataset_dict.json").write_text(json.dumps({"splits": ["train"]}))
    (tmp_path / "set/train/state.json").write_text(json.dumps({"_data_files": [{"filename": word}]}))
    with raises("data.bad_index", "_data_files"):
        find_tables(tmp_path / "set")
