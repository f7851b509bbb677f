"""Sharded tensors: assembled from any number of files, and readable by torch's own reader."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.errors import raises
from vitral.training.checkpoints.checkpoint import assemble_tensors, offsets_metadata

FULL = {
    "even": torch.arange(24.0).view(4, 6),
    "odd": torch.arange(15, dtype=torch.bfloat16).view(5, 3),
    "single": torch.tensor([7]),
    "count": torch.tensor(3.0),
}


def write(path: Path, tensors: dict[str, Tensor], offsets: dict[str, tuple[int, ...]]) -> Path:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, offsets_metadata(offsets))
    return path


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Rows in two files; of the even tensor also the columns in two, in the second and third."""
    first = {"even": FULL["even"][:2], "odd": FULL["odd"][:3], "single": FULL["single"]}
    second = {"even": FULL["even"][2:, :2], "odd": FULL["odd"][3:], "count": FULL["count"]}
    third = {"even": FULL["even"][2:, 2:]}
    return [
        write(tmp_path / "1.safetensors", first, {"even": (0, 0), "odd": (0, 0), "single": (0,)}),
        write(tmp_path / "2.safetensors", second, {"even": (2, 0), "odd": (3, 0), "count": ()}),
        write(tmp_path / "3.safetensors", third, {"even": (2, 2)}),
    ]


def same(found: dict[str, Tensor]) -> bool:
    return set(found) == set(FULL) and all(
        torch.equal(found[name], FULL[name]) and found[name].dtype == FULL[name].dtype for name in FULL
    )


def test_chunks_are_assembled_in_any_order_of_files(files: list[Path]) -> None:
    for order in (files, files[::-1]):
        assert same(dict(assemble_tensors(order)))


def test_a_file_without_offsets_holds_full_tensors(tmp_path: Path) -> None:
    save_file(FULL, tmp_path / "a.safetensors")
    assert same(dict(assemble_tensors([tmp_path / "a.safetensors"])))


def test_no_files_hold_no_tensors() -> None:
    assert dict(assemble_tensors([])) == {}


def test_the_offsets_are_no_tensor_to_other_readers(files: list[Path]) -> None:
    assert set(load_file(files[0])) == {"even", "odd", "single"}


def test_a_missing_chunk_is_an_error(files: list[Path]) -> None:
    with raises("weights.missing_tensor", "even", files[0].parent):
        dict(assemble_tensors([files[0], write(files[2], {"even": FULL["even"][3:, 5:]}, {"even": (3, 5)})]))


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"\x08")
    with raises("weights.corrupt", "a.safetensors"):
        dict(assemble_tensors([tmp_path / "a.safetensors"]))
