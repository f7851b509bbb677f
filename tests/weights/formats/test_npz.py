"""Reading and writing .npz files."""

import os
import pickle
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZIP64_LIMIT, ZIP_BZIP2, ZIP_DEFLATED, ZIP_STORED, ZipFile

import numpy as np
import pytest
import torch
from numpy.lib import format as npy
from torch import Tensor

from tests.errors import raises
from vitral.weights.formats import npz
from vitral.weights.formats.npz import read_npz, write_npz

ARRAYS: dict[str, Any] = {
    "a/kernel": np.arange(12, dtype=np.float32).reshape(3, 4),
    "columns first": np.asfortranarray(np.arange(24, dtype=np.float64).reshape(2, 3, 4)),
    "one number": np.int64(7),
    "nothing": np.zeros((0, 3), np.float32),
    "bytes": np.arange(7, dtype=np.uint8),
    "half": np.arange(5, dtype=np.float16),
    "other end first": np.arange(5, dtype=">f4"),
    "truth": np.array([True, False]),
}
SAVERS: dict[str, Callable[..., None]] = {"stored": np.savez, "compressed": np.savez_compressed}


def written(path: Path, tensors: dict[str, Tensor]) -> Path:
    path.write_bytes(b"".join(write_npz(tensors)))
    return path


def array(values: Any) -> bytes:
    """A .npy file."""
    file = BytesIO()
    np.save(file, values, allow_pickle=True)
    return file.getvalue()


def claiming(shape: tuple[int, ...], descr: str = "<f4", bytes_there: int = 40) -> bytes:
    """A .npy file that says it has an array of this shape."""
    file = BytesIO()
    npy.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue() + bytes(bytes_there)


def zipped(data: bytes, name: str = "w.npy", how: int = ZIP_STORED, times: int = 1) -> bytes:
    file = BytesIO()
    with ZipFile(file, "w", how) as archive:
        for number in range(times):
            archive.writestr(f"{number or ''}{name}", data)
    return file.getvalue()


def listed(data: bytes, field: int, value: int) -> bytes:
    """Change a field of four bytes in what the list of members says of the last one."""
    start = data.rfind(b"PK\1\2") + field
    return data[:start] + struct.pack("<I", value) + data[start + 4 :]


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 255]) + data[place + 1 :]


class Hostile:
    """A pickle of this makes a folder where it is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("saver", SAVERS.values(), ids=SAVERS)
def test_what_numpy_saved_is_read(tmp_path: Path, saver: Callable[..., None]) -> None:
    saver(tmp_path / "a.npz", **ARRAYS)
    found = read_npz(tmp_path / "a.npz")
    assert found.keys() == ARRAYS.keys()
    for name, expected in ARRAYS.items():
        assert found[name].numpy().dtype == expected.dtype.newbyteorder("=")
        assert np.array_equal(found[name].numpy(), expected)


@pytest.mark.parametrize("saver", SAVERS.values(), ids=SAVERS)
def test_two_bytes_without_a_meaning_are_bfloat16(tmp_path: Path, saver: Callable[..., None]) -> None:
    expected = torch.randn(3, 5).bfloat16()
    saver(tmp_path / "a.npz", w=expected.view(torch.int16).numpy().view("V2"))
    found = read_npz(tmp_path / "a.npz")["w"]
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, expected)


@pytest.mark.parametrize("saver", SAVERS.values(), ids=SAVERS)
def test_changing_a_tensor_changes_no_file(tmp_path: Path, saver: Callable[..., None]) -> None:
    path = tmp_path / "a.npz"
    saver(path, **{f"{'x' * number}": np.ones(3, np.float32) for number in range(1, 9)})  # aligned and not
    before = path.read_bytes()
    for tensor in read_npz(path).values():
        tensor.fill_(5)
        assert tensor.sum() == 15
    assert path.read_bytes() == before


def test_what_is_written_is_mapped_where_it_lies(tmp_path: Path) -> None:
    path = written(tmp_path / "a.npz", {"a": torch.zeros(5), "longer": torch.ones(7, dtype=torch.float64)})
    found, data = read_npz(path), path.read_bytes()
    apart = data.index(torch.ones(7, dtype=torch.float64).numpy().tobytes()) - (data.index(b"\n") + 1)
    assert found["longer"].data_ptr() - found["a"].data_ptr() == apart
    assert all(tensor.data_ptr() % npz.ALIGNMENT == 0 for tensor in found.values())


def test_an_array_that_torch_may_not_compute_on_is_copied(tmp_path: Path) -> None:
    for name in ("a", "ab", "abc", "abcd"):
        SAVERS["stored"](tmp_path / "a.npz", **{name: np.arange(5.0)})
        found = read_npz(tmp_path / "a.npz")[name]
        assert found.data_ptr() % 8 == 0
        assert found.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("limit", [ZIP64_LIMIT, 100], ids=["short", "long"])
def test_numpy_reads_what_is_written(tmp_path: Path, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zipfile.ZIP64_LIMIT", limit)
    monkeypatch.setattr(npz, "ZIP64_LIMIT", limit)
    native = {name: values.astype(values.dtype.newbyteorder("=")) for name, values in ARRAYS.items()}
    tensors = {name: torch.from_numpy(np.array(values)) for name, values in native.items()}
    path = written(tmp_path / "a.npz", tensors)
    with np.load(path) as found:
        assert sorted(found) == sorted(tensors)
        assert all(np.array_equal(found[name], tensor.numpy()) for name, tensor in tensors.items())
    with ZipFile(path) as archive:
        assert archive.testzip() is None
    again = read_npz(path)
    assert all(
        again[name].dtype == tensor.dtype and torch.equal(again[name], tensor) for name, tensor in tensors.items()
    )
    assert all(tensor.data_ptr() % npz.ALIGNMENT == 0 for tensor in again.values() if tensor.numel())


def test_the_same_tensors_are_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {"b": torch.randn(3, 4).mT, "a": torch.randn(2).bfloat16(), "ü": torch.tensor(1.0, requires_grad=True)}
    first = b"".join(write_npz(tensors))
    monkeypatch.setattr(npz, "CHUNK_BYTES", 7)
    assert b"".join(write_npz(dict(reversed(tensors.items())))) == first


CORRUPT, BAD = "weights.corrupt", "weights.bad_archive"
REFUSED: dict[str, tuple[bytes, str, str]] = {
    "nothing": (b"", CORRUPT, ""),
    "a pickle": (pickle.dumps({"w": [1.0]}), CORRUPT, ""),
    "cut": (zipped(array(np.ones(100)))[:-30], CORRUPT, ""),
    "cut in the middle": (zipped(array(np.ones(100)))[:300], CORRUPT, ""),
    "objects": (zipped(array(np.array([{}, 1], dtype=object))), BAD, "object"),
    "text": (zipped(array(np.array(["a", "b"]))), BAD, "<U1"),
    "fields": (zipped(array(np.zeros(2, [("a", "i1"), ("b", "i1")]))), BAD, "w "),
    "wide numbers": (zipped(array(np.zeros(2, np.longdouble))), BAD, "float128"),
    "no array": (zipped(b"print(1)", "code.py"), BAD, "code.py"),
    "no header": (zipped(b"nothing of numpy"), BAD, "w "),
    "a header of code": (
        zipped(b"\x93NUMPY\1\0" + struct.pack("<H", 20) + b"__import__('os')    "),
        BAD,
        "w ",
    ),
    "a header of 4 GB": (zipped(b"\x93NUMPY\2\0\xff\xff\xff\xff{}"), BAD, "w "),
    "too much claimed": (zipped(claiming((11,))), BAD, "(11,)"),
    "too little claimed": (zipped(claiming((9,))), BAD, "(9,)"),
    "2^63 bytes": (zipped(claiming((2**61,))), BAD, "9,223,372,036,854,775,808"),
    "2^64 numbers": (zipped(claiming((2**32, 2**32))), BAD, "73,786,976,294,838,206,464"),
    "less than nothing": (zipped(claiming((-2, -5))), BAD, "(-2, -5)"),
    "2^63 compressed": (zipped(claiming((2**61,)), how=ZIP_DEFLATED), BAD, "9,223,372,036,854,775,808"),
    "more than the file": (listed(listed(zipped(array(np.ones(9))), 20, 2**31), 24, 2**31), CORRUPT, "w "),
    "two sizes": (listed(zipped(array(np.ones(9))), 24, 2**31), BAD, "2,147,483,648"),
    "overlapping": (listed(zipped(array(np.ones(9)), times=2), 42, 0), CORRUPT, "w "),
    "elsewhere": (listed(zipped(array(np.ones(9)), times=2), 42, 100), CORRUPT, "w "),
    "beyond": (listed(zipped(array(np.ones(9))), 42, 2**31), CORRUPT, "w "),
    "a bomb": (zipped(bytes(npz.UNPACKED // 2), how=ZIP_DEFLATED, times=3), "weights.too_large", "100,663,296"),
    "a liar": (listed(zipped(array(np.ones(9)), how=ZIP_DEFLATED), 24, 150), CORRUPT, "CRC-32"),
    "other bits": (flipped(zipped(array(np.arange(90)), how=ZIP_DEFLATED), 150), CORRUPT, "w "),
    "another compression": (zipped(array(np.ones(9)), how=ZIP_BZIP2), BAD, "w "),
    "a way out": (zipped(array(np.ones(9)), "../../w.npy"), BAD, "../../w"),
    "from the root": (zipped(array(np.ones(9)), "/w.npy"), BAD, "/w"),
    "encrypted": (listed(zipped(array(np.ones(9))), 8, 1), BAD, "w "),
}


@pytest.mark.parametrize(("data", "code", "value"), REFUSED.values(), ids=REFUSED)
def test_a_damaged_or_hostile_file_is_refused_by_name(tmp_path: Path, data: bytes, code: str, value: str) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(data)
    with raises(code, f"{path}: {value}" if value[:1] in {"w", "c", "/", "."} else value) as refused:
        read_npz(path)
    assert refused.value.where == str(path)
    assert refused.value.hint


def test_a_name_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    data = zipped(array(np.ones(9)), times=2).replace(b"1w.npy", b"xw.npy")
    (tmp_path / "a.npz").write_bytes(data.replace(b"xw.npy", b"w.npy\0"))
    with raises("weights.duplicate_tensor", "a.npz: w "):
        read_npz(tmp_path / "a.npz")


@pytest.mark.parametrize("cut", range(0, 700, 23))
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, cut: int) -> None:
    whole = b"".join(write_npz({"a": torch.ones(20), "b": torch.ones(30)}))
    (tmp_path / "a.npz").write_bytes(whole[:cut])
    with raises("weights.corrupt", tmp_path / "a.npz"):
        read_npz(tmp_path / "a.npz")


@pytest.mark.parametrize("saver", SAVERS.values(), ids=SAVERS)
def test_no_pickle_in_a_file_is_run(tmp_path: Path, saver: Callable[..., None]) -> None:
    saver(tmp_path / "a.npz", w=np.array([Hostile(tmp_path / "made")], dtype=object))
    with raises("weights.bad_archive", "w ", "object"):
        read_npz(tmp_path / "a.npz")
    assert not (tmp_path / "made").exists()


def test_a_checkpoint_of_torch_by_another_name_is_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(3)}, tmp_path / "a.npz")
    with raises("weights.bad_archive", tmp_path / "a.npz"):
        read_npz(tmp_path / "a.npz")


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with raises("weights.not_found", tmp_path / "none.npz"):
        read_npz(tmp_path / "none.npz")


def test_a_member_that_unpacks_to_more_than_it_claims_is_read_as_far_as_it_claims(tmp_path: Path) -> None:
    buffer = BytesIO()
    np.save(buffer, np.arange(10, dtype=np.float32))
    good, path = buffer.getvalue(), tmp_path / "lie.npz"
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", good + bytes(2**26))
    data = bytearray(path.read_bytes())
    for mark, size, checksum in ((b"PK\3\4", 22, 14), (b"PK\1\2", 24, 16)):
        at = data.index(mark)
        data[at + size : at + size + 4] = len(good).to_bytes(4, "little")
        data[at + checksum : at + checksum + 4] = zlib.crc32(good).to_bytes(4, "little")
    path.write_bytes(data)
    tracemalloc.start()
    assert read_npz(path)["a"].tolist() == list(range(10))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**24


def test_too_many_members_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitral.weights.formats.npz.MAX_MEMBERS", 2)
    np.savez(tmp_path / "many.npz", a=np.zeros(1), b=np.zeros(1), c=np.zeros(1))
    with raises("weights.too_large", "many.npz", 3):
        read_npz(tmp_path / "many.npz")
