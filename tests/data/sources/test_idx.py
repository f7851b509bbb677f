import gzip
from pathlib import Path

import numpy as np
import pytest

from tests.data.archives import idx, some, write_idx
from tests.data.trees import refusal
from vitral.data.sources.idx import Idx, read_idx
from vitral.errors import DataError

TRAIN, TEST = some(20, 28, 28), some(5, 28, 28, seed=1)


@pytest.mark.parametrize("packed", [False, True])
def test_the_four_files_are_read_plain_and_packed(tmp_path: Path, packed: bool) -> None:
    write_idx(tmp_path, TRAIN, TEST, packed)
    reader = Idx.find(tmp_path)
    assert reader == Idx(str(tmp_path))
    for part, truth in (("train", TRAIN), ("test", TEST)):
        images, labels = reader.load(part)
        assert np.array_equal(images, truth.images)
        assert np.array_equal(labels, truth.labels)


def test_a_folder_without_the_files_has_no_loader(tmp_path: Path) -> None:
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx(TEST.images))
    assert Idx.find(tmp_path) is None
    assert Idx.find(tmp_path / "nowhere") is None


def test_the_bytes_of_the_format_are_those_of_its_description(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\0\0\x08\x03" + b"\0\0\0\x02" + b"\0\0\0\x01" + b"\0\0\0\x03" + bytes([1, 2, 3, 4, 5, 255]))
    assert read_idx(path, 3).tolist() == [[[1, 2, 3]], [[4, 5, 255]]]


WHOLE = idx(TRAIN.images)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "expected an idx file of bytes with 3 sides, found one that begins ''"),
        (WHOLE[:9], "found one that begins '00 00 08 03'"),
        (b"\0\0\x0d\x03" + WHOLE[4:], "found one that begins '00 00 0d 03'"),
        (idx(TRAIN.labels), "found one that begins '00 00 08 01'"),
        (b"<!DOCTYPE html>", "found one that begins '3c 21 44 4f'"),
        (WHOLE[:-1], "its header promises 15696 bytes, found 15695"),
        (WHOLE + b"\0", "its header promises 15696 bytes, found 15697"),
        (b"\0\0\x08\x03" + b"\xff" * 12, "its header promises 79228162458924105385300197391 bytes, found 16"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, data: bytes, what: str, packed: bool) -> None:
    write_idx(tmp_path, TRAIN, TEST, packed)
    path = tmp_path / ("train-images-idx3-ubyte.gz" if packed else "train-images-idx3-ubyte")
    path.write_bytes(gzip.compress(data) if packed else data)
    with pytest.raises(DataError) as caught:
        Idx(str(tmp_path)).load("train")
    where, message = refusal(caught)
    assert where == str(path)
    assert what in message


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-9], lambda data: b"no" + data, lambda data: data[:40] + data[41:]]
)
def test_a_damaged_gzip_file_is_refused_by_name(tmp_path: Path, damage: object) -> None:
    write_idx(tmp_path, TRAIN, TEST, packed=True)
    path = tmp_path / "t10k-labels-idx1-ubyte.gz"
    assert callable(damage)
    path.write_bytes(damage(gzip.compress(idx(np.arange(2000) % 251))))
    with pytest.raises(DataError) as caught:
        Idx(str(tmp_path)).load("test")
    assert refusal(caught)[0] == str(path)
    assert "not a whole gzip file" in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    write_idx(tmp_path, TRAIN, TEST)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError) as caught:
        Idx(str(tmp_path)).load("test")
    assert refusal(caught) == (str(tmp_path), str(caught.value))
    assert "t10k-labels-idx1-ubyte (or t10k-labels-idx1-ubyte.gz) is missing" in str(caught.value)


def test_labels_of_other_images_are_refused(tmp_path: Path) -> None:
    write_idx(tmp_path, TRAIN, TEST)
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(TRAIN.labels))
    with pytest.raises(DataError, match=r"20 labels for the 5 images in .*t10k-images-idx3-ubyte"):
        Idx(str(tmp_path)).load("test")
