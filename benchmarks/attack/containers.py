"""Hostile containers: archives, arrays, weights and manifests that lie about what they hold, or hold too much."""

import gzip
import io
import json
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import vitral
from benchmarks.attack.case import Case
from benchmarks.attack.images import check, encoded, written


def load(path: Path) -> object:
    return vitral.load(path)


def safetensors(header: bytes, body: bytes = b"", length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + body


def many_tensors(count: int) -> bytes:
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    return safetensors(json.dumps({f"t{number}": entry for number in range(count)}).encode())


def npz(megabytes: int) -> bytes:
    """Zeros that compress a thousandfold."""
    out = io.BytesIO()
    with (
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("a.npy", "w", force_zip64=True) as file,
    ):
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f4", "fortran_order": False, "shape": (megabytes << 18,)}
        )
        for _ in range(megabytes):
            file.write(bytes(1 << 20))
    return out.getvalue()


def npy(header: str, body: bytes = b"") -> bytes:
    text = header.encode() + b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body


def array_header(shape: str, kind: str = "<f4") -> str:
    return f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}"


def tar(members: list[tuple[str, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def tar_of_size(size: int) -> bytes:
    """A member that declares a size it does not have."""
    entry = tarfile.TarInfo("train/one/0.jpg")
    entry.size = size
    return entry.tobuf(tarfile.GNU_FORMAT) + bytes(1024)


def long_names(count: int) -> bytes:
    """Headers of long names, one after the other."""
    entry = tarfile.TarInfo("././@LongLink")
    entry.type, entry.size = tarfile.GNUTYPE_LONGNAME, 512
    return (entry.tobuf(tarfile.GNU_FORMAT) + b"a" * 512) * count


def parquet(rows: int) -> bytes:
    """A row repeated many times, which Parquet stores once."""
    import pyarrow as arrow
    import pyarrow.parquet as tables

    image = encoded("jpeg", 0)
    column = arrow.DictionaryArray.from_arrays(arrow.array(np.zeros(rows, np.int32)), arrow.array([image]))
    out = io.BytesIO()
    tables.write_table(arrow.table({"image": column, "label": arrow.array(np.zeros(rows, np.int64))}), out)
    return out.getvalue()


def deep(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def weights_cases() -> Iterator[Case]:
    """Files that `vitral.load` must refuse at little cost."""
    big = {"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}
    one = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    overlap = {name: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} for name in "ab"}
    files = {
        "safetensors: header of 2^62 bytes": ("a.safetensors", safetensors(b"{}", length=1 << 62)),
        "safetensors: header of 90 MB": ("a.safetensors", safetensors(b" " * 90_000_000 + b"{}")),
        "safetensors: 600,000 tensors": ("a.safetensors", many_tensors(600_000)),
        "safetensors: 4 TB declared": ("a.safetensors", safetensors(json.dumps(big).encode(), bytes(64))),
        "safetensors: overlapping tensors": ("a.safetensors", safetensors(json.dumps(overlap).encode(), bytes(8))),
        "safetensors: JSON 100,000 deep": ("a.safetensors", safetensors(deep(100_000))),
        "safetensors: a name of 5,000 digits": (
            "a.safetensors",
            safetensors(
                json.dumps({f"blocks.{'9' * 5000}.norm1.weight": one}).encode(),
                bytes(4),
            ),
        ),
        "safetensors: empty": ("a.safetensors", b""),
        "npz: 2 GB of zeros in 2 MB": ("a.npz", npz(2048)),
        "npz: no archive": ("a.npz", b"PK\x03\x04" + bytes(100)),
        "pickle": ("a.pth", b"\x80\x04cos\nsystem\n(S'true'\ntR."),
        "gzip bomb": ("a.npz", gzip.compress(bytes(50_000_000))),
    }  # fmt: skip
    for name, (file, data) in files.items():
        yield Case("hostile containers", name, written(data, file), load)
    for name, text in {
        "deep": deep(200_000),
        "many lists": b'{"format": [' + b"[]," * 20_000_000 + b"[]]}",
        "NaN": b'{"format": NaN}',
        "digits": b'{"format": ' + b"9" * 10_000 + b"}",
    }.items():
        yield Case("hostile containers", f"config.json: {name}", bundle_with(text), load)


def bundle_with(config: bytes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "config.json").write_bytes(config)
        (folder / "model.safetensors").write_bytes(safetensors(b"{}"))
        return folder

    return make


def data_cases() -> Iterator[Case]:
    """Sets that must be refused, or cost little."""
    good = encoded("jpeg", 0)
    files: dict[str, tuple[str, Any]] = {
        "npy: nested header": ("a.npy", npy(array_header("(" * 3000 + ")" * 3000))),
        "npy: a shape of 10^18": ("a.npy", npy(array_header(f"({10**18},)"))),
        "npy: objects": ("a.npy", npy(array_header("(1,)", "|O"), b"\x80\x04N.")),
        "tar: a member of 2^62 bytes": ("a.tar", tar_of_size(1 << 62)),
        "tar: 20,000 chained long names": ("a.tar", long_names(20_000)),
        "tar: names out of the folder": ("a.tar", tar([("../../x/one/0.jpg", good), ("/etc/one/1.jpg", good)])),
        "tar: cut": ("a.tar", tar([("train/one/0.jpg", good), ("train/two/1.jpg", good)])[:700]),
        "parquet: 10^7 equal rows": ("a.parquet", parquet(10_000_000)),
        "parquet: cut": ("a.parquet", parquet(10)[:200]),
        "csv: a line of 50 MB": ("a.csv", b"path,label\n" + b"a" * 50_000_000),
        "csv: NUL": ("a.csv", b"path,label\na\0.jpg,one\n"),
        "csv: a path out of its folder": ("a.csv", b"path,label\n../../../../etc/passwd,one\n"),
        "jsonl: deep": ("a.jsonl", deep(100_000) + b"\n"),
        "jsonl: many lists": ("a.jsonl", b"[" + b"[]," * 300_000 + b"[]]\n"),
    }  # fmt: skip
    for name, (file, data) in files.items():
        yield Case("hostile containers", name, written(data, file), check)


def mutated(count: int, seed: int) -> Iterator[Case]:
    """Small good containers with random bytes replaced: an error or an answer, never a crash."""
    from safetensors.numpy import save

    from benchmarks.before import timm_weights

    arrays = {name: tensor.numpy()[..., :1].copy() for name, tensor in timm_weights(8, depth=1, classes=2).items()}
    images = [
        (f"train/{label}/{number}.jpg", encoded("jpeg", number)) for label in ("one", "two") for number in range(2)
    ]
    out = io.BytesIO()
    np.savez(out, **arrays)
    sources: list[tuple[str, bytes, Callable[[Path], object]]] = [
        ("a.safetensors", save(arrays), load),
        ("a.npz", out.getvalue(), load),
        ("a.tar", tar(images), check),
        ("a.parquet", parquet(4), check),
        ("a.csv", b"path,label\na.jpg,one\nb.jpg,two\n", check),
    ]
    draw = np.random.default_rng([seed, 4])
    for number in range(count):
        file, data, use = sources[number % len(sources)]
        changed = bytearray(data)
        for place in draw.integers(0, min(len(data), 4096), int(draw.integers(1, 8))):
            changed[place] = int(draw.integers(256))
        yield Case("mutated containers", f"{file} {number}", written(bytes(changed), file), use, "either")


def cases(seed: int, share: float) -> Iterator[Case]:
    yield from weights_cases()
    yield from data_cases()
    yield from mutated(int(800 * share), seed)
