import multiprocessing
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.data.tables import IMAGE, cell, picture, table, write_table
from tests.data.trees import refused_at
from tests.errors import raises
from vitral.data.datasets.huggingface import TableStore, read_column, read_schema
from vitral.data.datasets.source import open_data

NUMBERS = list(range(11))
ENDINGS = ["parquet", "arrow"]
both = pytest.mark.parametrize("ending", ENDINGS)


def written(folder: Path, ending: str, rows: int = 3) -> TableStore:
    write_table(folder / f"part.{ending}", table(NUMBERS, [number % 3 for number in NUMBERS]), rows)
    return TableStore(str(folder), "image")


def open_files() -> set[str]:
    return {os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}


@both
@pytest.mark.parametrize("rows", [1, 3, 100])
def test_every_row_is_read_in_any_order(tmp_path: Path, ending: str, rows: int) -> None:
    store = written(tmp_path, ending, rows)
    for number in [5, 0, 10, 3, 2, 5, 9, 1, 4, 8, 7, 6]:
        name = f"part.{ending}#{number:07}"
        assert store.read(name) == picture(number)
        assert store.size(name) == len(picture(number))


@both
def test_a_column_and_its_type_are_read(tmp_path: Path, ending: str) -> None:
    written(tmp_path, ending)
    path = str(tmp_path / f"part.{ending}")
    assert read_column(path, "label") == [number % 3 for number in NUMBERS]
    assert read_schema(path).field("image").type == IMAGE


@both
def test_no_file_stays_open(tmp_path: Path, ending: str) -> None:
    store = written(tmp_path, ending)
    store.read(f"part.{ending}#0000004")
    assert str(tmp_path / f"part.{ending}") not in open_files()


@both
def test_a_file_that_is_written_anew_is_read_anew(tmp_path: Path, ending: str) -> None:
    store = written(tmp_path, ending)
    assert store.read(f"part.{ending}#0000001") == picture(1)
    (tmp_path / f"part.{ending}").unlink()
    write_table(tmp_path / f"part.{ending}", table([20, 21], [0, 1]), rows=2)
    assert store.read(f"part.{ending}#0000001") == picture(21)


@both
def test_a_file_that_is_gone_is_named(tmp_path: Path, ending: str) -> None:
    with raises("data.unreadable") as caught:
        TableStore(str(tmp_path), "image").read(f"part.{ending}#0000001")
    assert refused_at(caught) == str(tmp_path / f"part.{ending}")


def read_all(store: TableStore, ending: str) -> list[bytes]:
    return [store.read(f"part.{ending}#{number:07}") for number in NUMBERS]


@pytest.mark.sampled(4)
@both
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_other_processes_read_the_same(tmp_path: Path, ending: str, start: str) -> None:
    store = written(tmp_path, ending)
    here = read_all(store, ending)
    with multiprocessing.get_context(start).Pool(2) as pool:
        assert pool.starmap(read_all, [(store, ending)] * 2) == [here, here]
    assert len(pickle.dumps(store)) < 300


def test_plain_bytes_are_read_as_they_are(tmp_path: Path) -> None:
    for kind in (pa.binary(), pa.large_binary()):
        path = write_table(tmp_path / f"{kind}.parquet", pa.table({"img": pa.array([b"one", b"two"], kind)}))
        assert TableStore(str(tmp_path), "img").read(f"{path.name}#0000001") == b"two"


@both
def test_an_image_that_is_only_a_path_is_read_from_its_file(tmp_path: Path, ending: str) -> None:
    rows = [{"bytes": None, "path": "photos/1.png"}, {"bytes": None, "path": "gone.png"}, cell(3), None]
    rows.append({"bytes": None, "path": None})
    write_table(tmp_path / f"part.{ending}", pa.table({"image": pa.array(rows, IMAGE)}))
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/1.png").write_bytes(picture(1))
    store = TableStore(str(tmp_path), "image")
    assert store.read(f"part.{ending}#0000000") == picture(1)
    assert store.size(f"part.{ending}#0000000") == len(picture(1))
    assert store.read(f"part.{ending}#0000002") == picture(3)
    for row, *error in ((1, "data.missing_file", "gone.png"), (3, "data.missing_image"), (4, "data.missing_image")):
        name = f"part.{ending}#{row:07}"
        with raises(*error) as caught:
            store.read(name)
        assert refused_at(caught) == str(tmp_path / name)


@both
def test_a_path_outside_of_the_folder_of_the_table_is_refused_unless_allowed(tmp_path: Path, ending: str) -> None:
    (tmp_path / "photo.png").write_bytes(picture(1))
    (tmp_path / "set").mkdir()
    rows = [{"bytes": None, "path": "../photo.png"}, {"bytes": None, "path": str(tmp_path / "photo.png")}]
    write_table(tmp_path / f"set/part.{ending}", pa.table({"image": pa.array(rows, IMAGE)}))
    for row in range(2):
        with raises("data.outside", "photo.png"):
            TableStore(str(tmp_path / "set"), "image").read(f"part.{ending}#{row:07}")
        assert TableStore(str(tmp_path / "set"), "image", True).read(f"part.{ending}#{row:07}") == picture(1)


@both
@pytest.mark.parametrize("keep", [0, 1, 7, 0.5, 0.9])
def test_a_file_that_is_cut_off_is_refused_by_name(tmp_path: Path, ending: str, keep: float) -> None:
    written(tmp_path, ending)
    path = tmp_path / f"part.{ending}"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole) if keep < 1 else keep)])
    with raises("data.bad_table") as caught:
        read_schema(str(path))
    assert refused_at(caught) == str(path)


def test_a_wrong_offset_is_refused_and_not_followed(tmp_path: Path) -> None:
    """The lengths of the images in a stream of Arrow, made far too long."""
    path = tmp_path / "part.arrow"
    write_table(path, pa.table({"image": pa.array([b"a" * 5, b"b" * 7, b"c" * 9], pa.binary())}), rows=3)
    offsets = b"".join(offset.to_bytes(4, "little") for offset in (0, 5, 12, 21))
    data = path.read_bytes()
    assert data.count(offsets) == 1
    path.write_bytes(data.replace(offsets, offsets[:8] + (1 << 30).to_bytes(4, "little") + offsets[12:]))
    with raises("data.bad_table", path):
        TableStore(str(tmp_path), "image").read("part.arrow#0000001")


@both
def test_a_name_that_is_no_text_is_refused(tmp_path: Path, ending: str) -> None:
    written(tmp_path, ending)
    path = tmp_path / f"part.{ending}"
    path.write_bytes(path.read_bytes().replace(b"label", b"\xfflabe"))
    with raises("data.bad_table") as caught:
        read_schema(str(path))
    assert refused_at(caught) == str(path)


@both
def test_a_row_that_is_not_there_is_refused(tmp_path: Path, ending: str) -> None:
    store = written(tmp_path, ending)
    with raises("data.bad_table", f"part.{ending}"):
        store.read(f"part.{ending}#0000011")


@both
def test_a_missing_package_is_named(tmp_path: Path, ending: str) -> None:
    """In a process where pyarrow cannot be imported."""
    written(tmp_path, ending)
    (tmp_path / "pyarrow.py").write_text("raise ImportError")
    code = f"""
import sys
sys.path.insert(0, '.')
from vitral import open_data
from vitral.core.errors import ConfigError
try:
    open_data('part.{ending}')
except ConfigError as error:
    print(error.code, error.where, error.hint)
"""
    root = Path(__file__).parents[3]
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stdout == f"config.missing_package part.{ending} pip install 'vitral[hub]'\n"


def test_a_table_that_unpacks_to_far_more_than_its_size_is_refused(tmp_path: Path) -> None:
    pictures = pa.array([bytes(2**20)] * 200, pa.large_binary())
    rows = pa.table({"image": pictures, "label": ["a", "b"] * 100})
    parquet.write_table(rows, tmp_path / "train.parquet", compression="zstd")
    samples = open_data(str(tmp_path / "train.parquet"))
    with raises("data.table_too_large", "train.parquet"):
        samples.read(samples.items[0])


def test_rows_that_take_no_bytes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitral.data.datasets.huggingface.MAX_ROWS", 0)
    rows = pa.table({"image": [b"x"] * 100_000, "label": ["a", "b"] * 50_000})
    parquet.write_table(rows, tmp_path / "train.parquet", compression="zstd")
    with raises("data.table_too_large", "100,000"):
        open_data(str(tmp_path / "train.parquet"))
