"""Tensors to a file and back, judged by the library of the format."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from tests.errors import raises
from tests.training.states import identical
from vitral.weights.tensors import CHUNK_BYTES, DTYPE_NAMES, read_safetensors, safetensors_chunks, tensor_names


def file_of(tensors: dict[str, Tensor]) -> bytes:
    return b"".join(safetensors_chunks(tensors))


def every_kind() -> dict[str, Tensor]:
    kinds = {str(kind): torch.randint(0, 2, (3, 5)).to(kind) for kind in DTYPE_NAMES}
    bits = torch.randint(-(2**15), 2**15, (999,), dtype=torch.int16)
    odd = {
        "number": torch.tensor(2.5),
        "flag": torch.tensor(True),
        "empty": torch.empty(0, 3),
        "bits": bits.view(torch.bfloat16),  # not a number, infinities and subnormals among them
        "turned": torch.randn(4, 5).T,
        "spread": torch.randn(3, 1).expand(3, 4),
        "parameter": torch.nn.Parameter(torch.randn(2)),
        "é \"quoted\" 'name'": torch.ones(1),
    }
    return kinds | odd


def test_the_library_reads_what_was_written() -> None:
    tensors = every_kind()
    assert identical({"": load(file_of(tensors))}, {"": tensors})


def test_all_is_as_the_library_would_write_it() -> None:
    tensors = {"b": torch.randn(3), "a": torch.randn(2, 2), "half": torch.randn(1).half(), "count": torch.tensor(3)}
    assert file_of(tensors) == save(tensors)


def test_the_order_of_the_names_changes_no_byte() -> None:
    tensors = every_kind()
    assert file_of(tensors) == file_of(dict(reversed(tensors.items())))


def test_every_tensor_begins_at_a_multiple_of_its_width() -> None:
    data = file_of(every_kind())
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    for name, entry in json.loads(data[8 : 8 + length]).items():
        assert entry["data_offsets"][0] % every_kind()[name].element_size() == 0


def test_a_million_numbers_come_in_pieces_and_back_to_the_bit(tmp_path: Path) -> None:
    tensors = {"large": torch.randn(CHUNK_BYTES // 4 + 1_000_000), "small": torch.randn(7)}
    parts = list(safetensors_chunks(tensors))
    assert [part.nbytes for part in parts[1:]] == [CHUNK_BYTES, 4_000_000, 28]
    (tmp_path / "t").write_bytes(b"".join(parts))
    assert identical({"": read_safetensors(tmp_path / "t", "")}, {"": tensors})


def test_what_was_read_can_be_changed_and_the_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(file_of({"a": torch.arange(100_000.0)}))
    before = path.read_bytes()
    tensor = read_safetensors(path, "copy it again")["a"]
    tensor.mul_(2)
    path.unlink()  # what is mapped stays
    assert tensor[99_999] == 199_998
    path.write_bytes(before)
    assert read_safetensors(path, "copy it again")["a"][99_999] == 99_999


def damaged(header: bytes, body: bytes = b"", length: int | None = None) -> bytes:
    return (len(header) if length is None else length).to_bytes(8, "little") + header + body


BAD = {
    "nothing": b"",
    "half a length": b"\x08\0\0",
    "a length beyond the file": damaged(b"{}", length=2**20),
    "a length of 2**63": damaged(b"{}", length=2**63),
    "the greatest length": damaged(b"{}", length=2**64 - 1),
    "no JSON": damaged(b"weights!"),
    "half of the header": file_of({"a": torch.ones(3)})[:30],
    "half of the body": file_of({"a": torch.ones(3)})[:-5],
    "too much body": file_of({"a": torch.ones(3)}) + b"\0",
    "an unknown type": damaged(b'{"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}}', b"\0" * 4),
    "another type": damaged(b'{"a":{"dtype":"F64","shape":[1],"data_offsets":[0,4]}}', b"\0" * 4),
    "offsets that overlap": damaged(
        b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}',
        b"\0" * 3,
    ),
    "a shape that overflows": damaged(
        b'{"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}}',
    ),
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_a_file_that_is_wrong_is_refused_by_name(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with raises("weights.corrupt", path, "copy it again"):
        read_safetensors(path, "copy it again")
    with raises("weights.corrupt", path):
        tensor_names(path)


def test_a_file_that_is_missing_is_refused_by_name(tmp_path: Path) -> None:
    with raises("weights.not_found", "none.safetensors"):
        read_safetensors(tmp_path / "none.safetensors", "")


def test_a_folder_in_its_place_is_refused_by_name(tmp_path: Path) -> None:
    with raises("weights.unreadable", tmp_path):
        read_safetensors(tmp_path, "")


def test_a_header_that_takes_long_to_parse_is_refused(tmp_path: Path) -> None:
    header = b"{" + b" " * (5 * 2**20) + b"}"
    (tmp_path / "long.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    for read in (tensor_names, lambda path: read_safetensors(path, "")):
        with raises("weights.too_large", "long.safetensors"):
            read(tmp_path / "long.safetensors")
