"""The contents of datasets of all kinds as one hash."""

import shutil
from pathlib import Path

import pytest

from tests.errors import raises
from tests.runs.small import photos
from vitral.data import contents
from vitral.data.contents import ContentHash
from vitral.data.datasets.pack import pack
from vitral.data.datasets.source import open_data
from vitral.data.samples import Samples


def content(samples: Samples) -> str:
    found = ContentHash(samples)
    found.start()
    try:
        return found.wait()
    finally:
        found.close()


def swap(first: Path, second: Path) -> None:
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)


@pytest.mark.parametrize("small", [True, False])
def test_swapped_files_and_one_changed_byte_are_found_and_a_move_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: bool
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(contents, "FEW_FILES", 1000 if small else 0)
    home = photos(tmp_path / "photos")
    before = content(open_data(str(home)))
    shutil.copytree(home, tmp_path / "moved")
    assert content(open_data(str(tmp_path / "moved"))) == before
    swap(home / "train/dark/0.png", home / "train/dark/1.png")
    assert content(open_data(str(home))) != before
    swap(home / "train/dark/0.png", home / "train/dark/1.png")
    assert content(open_data(str(home))) == before
    file = home / "val/bright/2.png"
    file.write_bytes(file.read_bytes()[:-1] + b"\x00")
    assert content(open_data(str(home))) != before


def test_shards_are_hashed_whole(tmp_path: Path) -> None:
    home = photos(tmp_path / "photos")
    pack(open_data(str(home)), tmp_path / "shards")
    before = content(open_data(str(tmp_path / "shards")))
    shutil.copytree(tmp_path / "shards", tmp_path / "moved")
    assert content(open_data(str(tmp_path / "moved"))) == before
    shard = next((tmp_path / "shards").glob("*.tar"))
    data = bytearray(shard.read_bytes())
    data[700] ^= 1
    shard.write_bytes(data)
    assert content(open_data(str(tmp_path / "shards"))) != before


def test_images_in_memory_are_hashed_and_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    assert len(content(open_data("sample"))) == 32
    home = photos(tmp_path / "photos")
    samples = open_data(str(home))
    (home / "train/dark/0.png").unlink()
    with raises("data.unreadable", home / "train/dark/0.png"):
        content(samples)
