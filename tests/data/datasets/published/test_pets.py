from pathlib import Path

from tests.data.datasets.published.downloads import write_pets
from tests.data.trees import labeled
from tests.errors import raises
from vitral.data.datasets.source import open_data


def test_the_lists_give_splits_and_breeds(tmp_path: Path) -> None:
    samples = open_data("oxford-pets", root=str(write_pets(tmp_path)))
    assert samples.classes == ("Abyssinian", "american_bulldog")
    assert (samples.counts("train"), samples.counts("test")) == ((1, 1), (0, 1))
    assert labeled(samples)["images/american_bulldog_9.jpg"] == "american_bulldog"
    assert samples.read(samples.items[0])[:2] == b"\xff\xd8"


def test_missing_lists_images_and_wrong_lines_are_named(tmp_path: Path) -> None:
    root = write_pets(tmp_path)
    (root / "images/Abyssinian_1.jpg").unlink()
    with raises("data.partial_download", "1 of the 3 images", "images/Abyssinian_1.jpg"):
        open_data("oxford-pets", root=str(root))
    (root / "annotations/test.txt").write_text("Abyssinian_2 2 1 1\n")
    with raises("data.bad_label", f"{root / 'annotations/test.txt'}:1"):
        open_data("oxford-pets", root=str(root))
    (root / "annotations/test.txt").unlink()
    with raises("data.partial_download", "annotations/test.txt", "annotations.tar.gz"):
        open_data("oxford-pets", root=str(root))
