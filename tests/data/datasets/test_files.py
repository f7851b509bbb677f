"""Image files: known by their names, listed and read."""

from pathlib import Path

import pytest

from tests.data.trees import plant
from tests.errors import raises
from vitral.data.datasets.files import FileStore, ancestors_of, is_image, list_folder


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
