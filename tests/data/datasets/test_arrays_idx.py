import gzip
from pathlib import Path

import numpy as np
import pytest

from tests.data.archives import idx, some, write_idx
from tests.data.trees import refused_at
from tests.errors import raises
from vitral.data.datasets.arrays import IdxReader, read_idx

TRAIN, TEST = some(20, 28, 28), some(5, 28, 28, seed=1)


@pytest.mark.parametrize("packed", [False, True])
def test_the_four_files_are_read_plain_and_packed(tmp_path: Path, packed: bool) -> None:
    write_idx(tmp_path, TRAIN, TEST, packed)
    reader = IdxReader.find(tmp_path)
    assert reader == IdxReader(str(tmp_path))
    for part, truth in (("train", TRAIN), ("test", TEST)):
        images, labels = reader.load(part)
        assert np.array_equal(images, truth.images)
        assert np.array_equal(labels, truth.labels)


def test_a_folder_without_the_files_has_no_loader(tmp_path: Path) -> None:
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx(TEST.images))
    assert IdxReader.find(tmp_path) is None
    assert IdxReader.find(tmp_path / "nowhere") is None


def test_the_bytes_of_the_format_are_those_of_its_description(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\0\0\x08\x03" + b"\0\0\0\x02" + b"\0\0\0\x01" + b"\0\0\0\x03" + bytes([1, 2, 3, 4, 5, 255]))
    assert read_idx(path, 3).tolist() == [[[1, 2, 3]], [[4, 5, 255]]]


WHOLE = idx(TRAIN.images)


@pytest.mark.parametrize(
    ("data", "values"),
    [
        (b"", ("3", "''")),
        (WHOLE[:9], ("'00 00 08 03'",)),
        (b"\0\0\x0d\x03" + WHOLE[4:], ("'00 00 0d 03'",)),
        (idx(TRAIN.labels), ("'00 00 08 01'",)),
        (b"<!DOCTYPE html>", ("'3c 21 44 4f'",)),
        (WHOLE[:-1], ("15696", "15695")),
        (WHOLE + b"\0", ("15696", "15697")),
        (b"\0\0\x08\x03" + b"\xff" * 12, ("79228162458924105385300197391", "16")),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, data: bytes, values: tuple[str, ...], packed: bool) -> None:
    write_idx(tmp_path, TRAIN, TEST, packed)
    path = tmp_path / ("train-images-idx3-ubyte.gz" if packed else "train-images-idx3-ubyte")
    path.write_bytes(gzip.compress(data) if packed else data)
    with raises("data.bad_archive", *values) as caught:
        IdxReader(str(tmp_path)).load("train")
    assert refused_at(caught) == str(path)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-9], lambda data: b"no" + data, lambda data: data[:40] + data[41:]]
)
def test_a_damaged_gzip_file_is_refused_by_name(tmp_path: Path, damage: object) -> None:
    write_idx(tmp_path, TRAIN, TEST, packed=True)
    path = tmp_path / "t10k-labels-idx1-ubyte.gz"
    assert callable(damage)
    path.write_bytes(damage(gzip.compress(idx(np.arange(2000) % 251))))
    with raises("data.bad_archive", "gzip") as caught:
        IdxReader(str(tmp_path)).load("test")
    assert refused_at(caught) == str(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    write_idx(tmp_path, TRAIN, TEST)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with raises("data.missing_file", "t10k-labels-idx1-ubyte", "t10k-labels-idx1-ubyte.gz") as caught:
        IdxReader(str(tmp_path)).load("test")
    assert refused_at(caught) == str(tmp_path)


def test_labels_of_other_images_are_refused(tmp_path: Path) -> None:
    write_idx(tmp_path, TRAIN, TEST)
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(TRAIN.labels))
    with raises("data.count_mismatch", 20, 5, "t10k-images-idx3-ubyte"):
        IdxReader(str(tmp_path)).load("test")
