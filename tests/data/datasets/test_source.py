import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.data.trees import plant, refused_at
from tests.errors import raises
from vitral.data.datasets.source import no_such_path, open_data, open_images
from vitral.data.samples import StratifiedSplit

BOTH = ["photos/cat/1.jpg", "photos/cat/2.jpg", "photos/dog/1.jpg", "photos/dog/2.jpg", "archive.zip", "photos/m.csv"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with photos and a few other things in it."""
    plant(tmp_path, BOTH)
    (tmp_path / "list.csv").write_text("path,label\nphotos/cat/1.jpg,cat\nphotos/dog/1.jpg,dog\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("where", "images"), [("sample", 6000), ("photos", 4), ("./photos/", 4), ("~/photos", 4), ("list.csv", 2)]
)
def test_data_is_opened_by_what_it_is(here: Path, where: str, images: int) -> None:
    assert len(open_data(where).items) == images


def test_a_folder_called_sample_is_opened_by_its_path(here: Path) -> None:
    plant(here, ["sample/cat/1.jpg", "sample/dog/1.jpg"])
    assert open_data("sample").classes[0] == "T-shirt/top"
    assert open_data("./sample").classes == ("cat", "dog")


def test_a_folder_called_as_a_known_set_is_opened_by_its_path(here: Path) -> None:
    plant(here, ["cifar10/cat/1.jpg", "cifar10/dog/1.jpg"])
    assert open_data("./cifar10").classes == ("cat", "dog")
    with raises("data.not_found", "cifar10", "./cifar10"):
        open_data("cifar10")


def test_a_root_for_what_has_no_name_is_refused(here: Path) -> None:
    with raises("config.conflict", "root", "'photos'") as caught:
        open_data("photos", root=str(here))
    assert caught.value.exit_code == 2


def test_the_division_is_as_asked(here: Path) -> None:
    names = {
        tuple(item.name for item in open_data("photos", StratifiedSplit(seed=seed)).of("val")) for seed in range(9)
    }
    assert len(names) > 1


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("phtos", ("data.not_found", "phtos", "'photos'")),
        ("Photos", ("data.not_found", "'photos'")),
        ("phtos/cat", ("data.not_found", "'photos/cat'")),
        ("phtos/gnu", ("data.not_found", "'photos'")),
        ("photos/cta", ("data.not_found", "'photos/cat'")),
        ("list.cvs", ("data.not_found", "'list.csv'")),
        ("smaple", ("data.not_found", "'sample'")),
        ("cifar-10", ("data.not_found", "'cifar10'")),
        ("CIFAR100", ("data.not_found", "'cifar100'")),
        ("fashionmnist", ("data.not_found", "'fashion-mnist'")),
        ("MNIST", ("data.not_found", "'mnist'")),
        ("photos/cifar-10", ("data.not_found", "{here}/photos", "'cifar-10'")),
        ("zebra", ("data.not_found", "{here}", "'zebra'")),
        ("archive.zip", ("data.unknown_format", "archive.zip")),
        ("photos/cat/1.jpg", ("data.unknown_format", "photos/cat/1.jpg", ".csv")),
        ("https://example.com/photos", ("data.remote_address", "https://example.com/photos", ".tar")),
        ("", ("data.not_given", ".csv", "sample")),
        ("a" * 300, ("data.unreadable", "a" * 300)),
    ],
)
def test_what_cannot_be_opened_is_refused_with_advice(here: Path, where: str, error: tuple[str, ...]) -> None:
    with raises(*(part.format(here=here) for part in error)) as caught:
        open_data(where)
    assert caught.value.exit_code == 3


def test_a_dataset_is_not_told_to_use_its_own_name_where_a_path_is_needed(here: Path) -> None:
    assert "'sample'" in str(no_such_path(Path("sampel")).hint)
    assert "did you mean" not in str(no_such_path(Path("sample")).hint)


def test_a_path_from_the_root_is_mended_the_same_way(here: Path) -> None:
    with raises("data.not_found", f"'{here / 'photos'}'") as caught:
        open_data(str(here / "phtos"))
    assert refused_at(caught) == str(here / "phtos")


def test_a_path_in_a_folder_that_may_not_be_listed_is_not_found(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))

    monkeypatch.setattr(Path, "iterdir", refuse)
    with raises("data.not_found", os.strerror(errno.EACCES).lower()) as caught:
        open_data("photos/gnu")
    assert refused_at(caught) == "photos/gnu"


def test_opening_data_does_not_wait_for_torch() -> None:
    code = "import sys; from vitral import open_data; open_data('sample'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_use_without_labels_takes_loose_images_and_every_set_that_has_labels(tmp_path: Path) -> None:
    loose = open_images(str(plant(tmp_path, ["a.jpg", "b.jpg"])))
    assert loose.classes == ("",)
    assert len(open_images("sample").classes) == 10
