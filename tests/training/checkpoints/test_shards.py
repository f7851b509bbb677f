"""Tensors in parts: whole again, box by box, and as the peer reads them."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.errors import raises
from vitral.training.checkpoints.shards import Chunk, assembled, chunks, note, part, shape_of
from vitral.weights.tensors import pieces

WHOLE = {
    "even": torch.arange(24.0).view(4, 6),
    "odd": torch.arange(15, dtype=torch.bfloat16).view(5, 3),
    "single": torch.tensor([7]),
    "count": torch.tensor(3.0),
}


def write(path: Path, tensors: dict[str, Tensor], offsets: dict[str, tuple[int, ...]]) -> Path:
    path.write_bytes(b"".join(pieces(tensors, note(offsets))))
    return path


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Rows in two files; of the even ones also the columns in two, in the second."""
    first = {"even": WHOLE["even"][:2], "odd": WHOLE["odd"][:3], "single": WHOLE["single"]}
    second = {"even": WHOLE["even"][2:, :2], "odd": WHOLE["odd"][3:], "count": WHOLE["count"]}
    third = {"even": WHOLE["even"][2:, 2:]}
    return [
        write(tmp_path / "1.safetensors", first, {"even": (0, 0), "odd": (0, 0), "single": (0,)}),
        write(tmp_path / "2.safetensors", second, {"even": (2, 0), "odd": (3, 0), "count": ()}),
        write(tmp_path / "3.safetensors", third, {"even": (2, 2)}),
    ]


def test_parts_are_put_together_in_any_order_of_files(files: list[Path]) -> None:
    for order in (files, files[::-1]):
        found = assembled(order)
        assert set(found) == set(WHOLE)
        assert all(torch.equal(found[name], WHOLE[name]) and found[name].dtype == WHOLE[name].dtype for name in WHOLE)


def test_a_file_without_a_note_holds_whole_tensors(tmp_path: Path) -> None:
    save_file(WHOLE, tmp_path / "a.safetensors")
    assert all(not any(chunk.offsets) for chunk in chunks(tmp_path / "a.safetensors"))
    found = assembled([tmp_path / "a.safetensors"])
    assert all(torch.equal(found[name], WHOLE[name]) for name in WHOLE)


def test_a_box_of_a_part_is_read_by_itself(files: list[Path]) -> None:
    odd = next(chunk for chunk in chunks(files[1]) if chunk.name == "odd")
    assert (odd.offsets, odd.shape, odd.end, odd.dtype) == ((3, 0), (2, 3), (5, 3), torch.bfloat16)
    assert torch.equal(part(odd, (1, 1), (1, 2)), WHOLE["odd"][4:, 1:])
    count = next(chunk for chunk in chunks(files[1]) if chunk.name == "count")
    assert part(count, (), ()).item() == 3


def test_the_shape_is_that_of_all_parts(files: list[Path]) -> None:
    even = [chunk for path in files for chunk in chunks(path) if chunk.name == "even"]
    assert shape_of(even) == (4, 6)
    assert shape_of([Chunk("count", (), (), torch.float32, files[0])]) == ()


def test_the_note_is_no_tensor_to_others(files: list[Path]) -> None:
    assert set(load_file(files[0])) == {"even", "odd", "single"}


def test_a_part_that_no_file_has_is_missed(files: list[Path]) -> None:
    with raises("weights.missing_tensor", "3.safetensors", "even", "13 of 24"):
        assembled([files[0], write(files[2], {"even": WHOLE["even"][3:, 5:]}, {"even": (3, 5)})])


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"\x08")
    with raises("weights.corrupt", "a.safetensors"):
        assembled([tmp_path / "a.safetensors"])
