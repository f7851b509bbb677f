import subprocess
import sys
from pathlib import Path

import pytest

from tests.data.trees import plant, refusal
from vitral.data.sources.source import open_data, open_images
from vitral.data.sources.split import Stratified
from vitral.errors import ConfigError, DataError

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
    with pytest.raises(DataError, match=r"not found .* the folder of that name here is ./cifar10"):
        open_data("cifar10")


def test_a_root_for_what_has_no_name_is_refused(here: Path) -> None:
    with pytest.raises(ConfigError, match="root: a root is for data sets known by name, got 'photos'") as caught:
        open_data("photos", root=str(here))
    assert caught.value.exit_code == 2


def test_the_division_is_as_asked(here: Path) -> None:
    names = {tuple(item.name for item in open_data("photos", Stratified(seed=seed)).of("val")) for seed in range(9)}
    assert len(names) > 1


@pytest.mark.parametrize(
    ("where", "what"),
    [
        ("phtos", "phtos: no such file or folder; did you mean 'photos'?"),
        ("Photos", "did you mean 'photos'?"),
        ("phtos/cat", "did you mean 'photos/cat'?"),
        ("phtos/gnu", "did you mean 'photos'?"),
        ("photos/cta", "did you mean 'photos/cat'?"),
        ("list.cvs", "did you mean 'list.csv'?"),
        ("smaple", "did you mean 'sample'?"),
        ("cifar-10", "did you mean 'cifar10'?"),
        ("CIFAR100", "did you mean 'cifar100'?"),
        ("fashionmnist", "did you mean 'fashion-mnist'?"),
        ("MNIST", "did you mean 'mnist'?"),
        ("photos/cifar-10", "nothing in {here}/photos has a name like 'cifar-10'"),
        ("zebra", "nothing in {here} has a name like 'zebra'"),
        ("archive.zip", "archive.zip: neither a folder nor a manifest; unpack it and give the folder"),
        ("photos/cat/1.jpg", "neither a folder nor a manifest"),
        ("https://example.com/photos", "vitral downloads nothing; fetch it"),
        ("", "no data is named; give a folder"),
        ("a" * 300, "cannot be read: file name too long"),
    ],
)
def test_what_cannot_be_opened_is_refused_with_advice(here: Path, where: str, what: str) -> None:
    with pytest.raises(DataError) as caught:
        open_data(where)
    assert caught.value.exit_code == 3
    assert what.format(here=here) in str(caught.value)


def test_a_path_from_the_root_is_mended_the_same_way(here: Path) -> None:
    with pytest.raises(DataError) as caught:
        open_data(str(here / "phtos"))
    assert refusal(caught)[1].endswith(f"did you mean '{here / 'photos'}'?")


def test_opening_data_does_not_wait_for_torch() -> None:
    code = "import sys; from vitral import open_data; open_data('sample'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_use_without_labels_takes_loose_images_and_every_set_that_has_labels(tmp_path: Path) -> None:
    loose = open_images(str(plant(tmp_path, ["a.jpg", "b.jpg"])))
    assert loose.classes == ("",)
    assert len(open_images("sample").classes) == 10
