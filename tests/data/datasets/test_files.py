from pathlib import Path

import pytest

from tests.data.trees import plant
from tests.errors import raises
from vitral.data.datasets.files import Files, is_image


@pytest.mark.parametrize("name", ["1.jpg", "a.b.JPEG", "1.Png", "x.npy", "é .TIF"])
def test_an_image_is_known_by_its_ending_in_any_case(name: str) -> None:
    assert is_image(name)


@pytest.mark.parametrize("name", ["jpg", "1.txt", "1.jpg.part", "1", ".jpg", "1.svg", "1.eps"])
def test_other_endings_are_not_images(name: str) -> None:
    assert not is_image(name)


def test_a_file_is_read_and_measured_by_its_path_from_the_root(tmp_path: Path) -> None:
    root = plant(tmp_path, ["cat/1.jpg"])
    files = Files(str(root))
    assert files.read("cat/1.jpg") == b"cat/1.jpg"
    assert files.size("cat/1.jpg") == 9
    for ask in (files.read, files.size):
        with raises("data.unreadable", root / "cat/2.jpg"):
            ask("cat/2.jpg")
