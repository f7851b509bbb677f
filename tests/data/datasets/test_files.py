"""Image files: known by their names, listed and read."""

import os
import sys
from pathlib import Path

import pytest

from tests.data.trees import plant
from tests.errors import raises
from vitral.core.errors import DataError
from vitral.data.datasets.files import FileStore, ancestors_of, is_image, list_folder
from vitral.data.datasets.source import open_data
from vitral.data.decoding.image_objects import image_bytes
from vitral.inference.inputs import find_images


@pytest.mark.parametrize("name", ["1.jpg", "a.b.JPEG", "1.Png", "x.npy", "é .TIF"])
def test_an_image_is_known_by_its_ending_in_any_case(name: str) -> None:
    assert is_image(name)


@pytest.mark.parametrize("name", ["jpg", "1.txt", "1.jpg.part", "1", ".jpg", "1.svg", "1.eps"])
def test_other_endings_are_not_images(name: str) -> None:
    assert not is_image(name)


def test_a_file_is_read_and_measured_by_its_path_from_the_root(tmp_path: Path) -> None:
    root = plant(tmp_path, ["cat/1.jpg"])
    files = FileStore(str(root))
    assert files.read("cat/1.jpg") == b"cat/1.jpg"
    assert files.size("cat/1.jpg") == 9
    for ask in (files.read, files.size):
        with raises("data.unreadable", root / "cat/2.jpg"):
            ask("cat/2.jpg")


def test_a_folder_is_listed_without_litter_and_with_its_broken_links(tmp_path: Path) -> None:
    root = plant(tmp_path, ["10.jpg", "2.JPG", "a/1.jpg", "notes.txt", ".hidden.jpg", "__MACOSX/1.jpg", "Thumbs.db"])
    (root / "gone.jpg").symlink_to("nowhere")
    (root / "again.jpg").symlink_to("again.jpg")
    folder = list_folder(str(root), ancestors_of(root), key=len)
    assert folder.images == ["2.JPG", "10.jpg"]
    assert (folder.folders, folder.others, folder.broken_links) == (["a"], ["notes.txt"], ["gone.jpg", "again.jpg"])
    with raises("data.link_loop", root / "a/.."):
        list_folder(f"{root}/a/..", folder.ancestors)


@pytest.mark.skipif(sys.platform == "win32", reason="no such files")
def test_a_pipe_or_a_device_named_as_an_image_is_an_error_for_itself(tmp_path: Path) -> None:
    root = plant(tmp_path, ["cat/1.jpg", "dog/1.jpg"])
    os.mkfifo(root / "cat/2.jpg")
    (root / "dog/2.jpg").symlink_to("/dev/zero")
    files = FileStore(str(root))
    for name in ("cat/2.jpg", "dog/2.jpg"):
        with raises("data.not_a_file", root / name):
            files.read(name)
    faults: list[DataError] = []
    samples = open_data(str(root), on_fault=faults.append)
    assert [item.name for item in samples.items] == ["cat/1.jpg", "dog/1.jpg"]
    assert {(fault.code, fault.where) for fault in faults} == {
        ("data.not_a_file", str(root / name)) for name in ("cat/2.jpg", "dog/2.jpg")
    }
    refs = {ref.name: ref for ref in find_images([str(root)], None)}
    with raises("data.not_a_file", root / "cat/2.jpg"):
        refs[str(root / "cat/2.jpg")].source.read()


def test_a_sparse_file_named_as_an_image_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "1.jpg").open("wb") as file:
        file.truncate(6 * 2**30)
    with raises("data.file_too_large", tmp_path / "1.jpg"):
        FileStore(str(tmp_path)).read("1.jpg")
    with raises("data.file_too_large", tmp_path / "1.jpg"):
        image_bytes(tmp_path / "1.jpg")


def test_a_line_without_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_bytes(b"path,label\n" + b"a" * 2**21)
    with raises("data.bad_manifest", "list.csv:2"):
        open_data(str(tmp_path / "list.csv"))
