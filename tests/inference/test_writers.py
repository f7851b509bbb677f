"""Features in files, read back by NumPy and pyarrow."""

import os
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from tests.errors import raises
from vitral.core.errors import DataError
from vitral.inference import writers as module
from vitral.inference.batches import Batch
from vitral.inference.engines.engine import FloatArray
from vitral.inference.writers import check_features_path, open_feature_writer

WIDTH = 3
STRANGE = os.fsdecode(b"caf\xe9\n2.jpg")


def batch_of(names: tuple[str, ...], *failed: int) -> tuple[Batch, FloatArray]:
    pixels = np.zeros((len(names) - len(failed), 2, 2, 3), dtype=np.uint8)
    width = WIDTH if len(pixels) else 1  # without images the width is unknown
    numbers = np.random.default_rng(len(names)).normal(size=(len(pixels), width)).astype(np.float32)
    return Batch(names, {place: DataError("cut off", code="data.truncated_image") for place in failed}, pixels), numbers


BATCHES = [
    batch_of(("1.jpg", "bad.jpg", "a-much-longer-name.jpg"), 1),
    batch_of(("bad.jpg",), 0),
    batch_of(("3.jpg", STRANGE)),
]
NAMES = [name for batch, _ in BATCHES for name in batch.readable]
ROWS = np.concatenate([numbers for batch, numbers in BATCHES if batch.readable])


def written(path: Path, batches: list[tuple[Batch, FloatArray]]) -> Path:
    with path.open("wb") as file, open_feature_writer(file, path, WIDTH) as writer:
        for batch, numbers in batches:
            writer.write(batch, numbers)
    return path


@pytest.mark.parametrize("chunk", [1, 2, 4096])
def test_an_archive_for_numpy_has_names_and_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(module, "NAMES_AT_A_TIME", chunk)
    with np.load(written(tmp_path / "a.npz", BATCHES), allow_pickle=False) as found:
        assert sorted(found) == ["features", "names"]
        assert found["names"].tolist() == NAMES
        assert found["features"].dtype == np.float32
        assert (found["features"] == ROWS).all()
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


@pytest.mark.parametrize("numbers", [1, 7, 1 << 22])
def test_a_table_of_parquet_has_paths_and_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numbers: int
) -> None:
    monkeypatch.setattr(module, "ROW_GROUP_SIZE", numbers)
    found = pyarrow.parquet.read_table(written(tmp_path / "a.parquet", BATCHES))
    assert found.column_names == ["path", "features"]
    readable = [name.encode("utf-8", "backslashreplace").decode() for name in NAMES]
    assert found["path"].to_pylist() == readable
    assert (np.array(found["features"].to_pylist(), dtype=np.float32) == ROWS).all()


def test_rows_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROW_GROUP_SIZE", 2 * WIDTH)
    file = pyarrow.parquet.ParquetFile(written(tmp_path / "a.parquet", BATCHES))
    assert file.num_row_groups == 2


@pytest.mark.parametrize("name", ["a.npz", "a.parquet"])
def test_a_file_of_no_images_has_its_columns(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / name, BATCHES[1:2])
    if name == "a.npz":
        with np.load(path) as found:
            assert (found["names"].shape, found["features"].shape) == ((0,), (0, WIDTH))
    else:
        assert pyarrow.parquet.read_table(path).shape == (0, 2)


@pytest.mark.parametrize("name", ["a.npz", "a.parquet"])
def test_an_error_in_the_midst_of_it_goes_through_and_leaves_nothing_beside(tmp_path: Path, name: str) -> None:
    path = tmp_path / name

    def broken_off() -> None:
        with path.open("wb") as file, open_feature_writer(file, path, WIDTH) as writer:
            writer.write(*BATCHES[0])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken_off()
    assert [beside.name for beside in tmp_path.iterdir()] == [name]


def test_a_file_of_another_kind_is_refused() -> None:
    with raises("config.unknown_format", ".npz", ".parquet", "'x.csv'", "x.npz") as caught:
        check_features_path(Path("out/x.csv"))
    assert caught.value.where == "--features"
    check_features_path(Path("X.NPZ"))


def test_a_missing_package_is_told_before_anything_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with raises("config.missing_package", "--features", "vitral[hub]", ".npz"):
        check_features_path(Path("x.parquet"))
    check_features_path(Path("x.npz"))
