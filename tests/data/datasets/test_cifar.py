from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data import archives
from tests.data.archives import Truth, planes, python2_pickle, some
from tests.data.trees import refused_at
from tests.errors import raises
from vitral.data.datasets.cifar import CifarReader, find_cifar

Write = Callable[[Path, Truth, Truth], None]
FORMS: list[tuple[str, int, Write]] = [
    ("", 10, archives.write_cifar10_pickles),
    (".bin", 10, archives.write_cifar10_records),
    (".png", 10, archives.write_cifar10_pngs),
    ("", 100, archives.write_cifar100_pickles),
    (".bin", 100, archives.write_cifar100_records),
]
every_form = pytest.mark.parametrize(("form", "classes", "write"), FORMS)


def test_a_batch_that_is_cut_between_two_images_is_noticed(tmp_path: Path) -> None:
    archives.write_cifar10_records(tmp_path, *truths(10))
    path = tmp_path / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[: 3 * 3073])
    with raises("data.count_mismatch", "4, 4, 3, 4, 4") as caught:
        CifarReader(str(tmp_path), 10, ".bin").load("train")
    assert refused_at(caught) == str(tmp_path)


def truths(classes: int) -> tuple[Truth, Truth]:
    return some(20, 32, 32, 3, classes=classes), some(5, 32, 32, 3, classes=classes, seed=1)


def load_all(reader: CifarReader) -> None:
    for part in ("train", "test"):
        reader.load(part)


@every_form
def test_every_form_gives_the_images_and_labels_that_went_in(
    tmp_path: Path, form: str, classes: int, write: Write
) -> None:
    write(tmp_path, *truths(classes))
    reader = find_cifar(tmp_path, classes)
    assert reader == CifarReader(str(tmp_path), classes, form)
    for part, truth in zip(("train", "test"), truths(classes), strict=True):
        images, labels = reader.load(part)
        assert images.flags.c_contiguous
        assert np.array_equal(images, truth.images)
        assert np.array_equal(labels, truth.labels)


@every_form
def test_one_set_is_not_taken_for_the_other(tmp_path: Path, form: str, classes: int, write: Write) -> None:
    write(tmp_path, *truths(classes))
    assert find_cifar(tmp_path, 110 - classes) is None
    assert find_cifar(tmp_path / "elsewhere", classes) is None


@every_form
def test_a_missing_file_is_named(tmp_path: Path, form: str, classes: int, write: Write) -> None:
    write(tmp_path, *truths(classes))
    for path in sorted(tmp_path.iterdir()):
        moved = path.rename(tmp_path.parent / "moved")
        with raises("data.missing_file", path.name) as caught:
            load_all(CifarReader(str(tmp_path), classes, form))
        assert refused_at(caught) == str(tmp_path)
        moved.rename(path)


@every_form
def test_half_a_file_is_refused_by_name(tmp_path: Path, form: str, classes: int, write: Write) -> None:
    write(tmp_path, *truths(classes))
    for path in sorted(tmp_path.iterdir()):
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2 - 1])
        with raises("data.truncated_image" if path.suffix == ".png" else "data.bad_archive") as caught:
            load_all(CifarReader(str(tmp_path), classes, form))
        assert refused_at(caught) == str(path)
        path.write_bytes(whole)


@every_form
def test_a_label_beyond_the_classes_is_refused_by_name(tmp_path: Path, form: str, classes: int, write: Write) -> None:
    train, test = truths(classes)
    test.labels[3] = classes
    write(tmp_path, train, test)
    with raises("data.bad_label", classes, 3) as caught:
        CifarReader(str(tmp_path), classes, form).load("test")
    assert Path(refused_at(caught)).parent == tmp_path


ROWS = planes(some(2, 32, 32, 3).images)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ({"data": ROWS}, ("data.bad_label",)),
        ({"data": ROWS, "labels": "no"}, ("data.bad_label",)),
        ({"data": ROWS, "labels": [1, "2"]}, ("data.bad_label",)),
        ({"data": ROWS, "labels": [1, -2]}, ("data.bad_label",)),
        ({"data": ROWS, "labels": [1, 257]}, ("data.bad_label",)),
        ({"data": ROWS, "labels": [True, False]}, ("data.bad_label",)),
        ({"data": ROWS, "labels": [1]}, ("data.count_mismatch", "1", "2")),
        ({"data": ROWS, "labels": []}, ("data.count_mismatch", "0", "2")),
        ({"labels": [1, 2]}, ("data.bad_archive", "3072", "data")),
        ({"data": [1, 2], "labels": [1, 2]}, ("data.bad_archive", "3072", "data")),
        ({"data": ROWS[:, :-1], "labels": [1, 2]}, ("data.bad_archive", "3072", "data")),
        ({"data": ROWS[0], "labels": [1, 2]}, ("data.bad_archive", "3072", "data")),
        ({"data": ROWS[:0], "labels": []}, ("data.count_mismatch", "0")),
    ],
)
def test_a_pickle_of_something_else_is_refused_by_name(tmp_path: Path, content: object, error: tuple[str, ...]) -> None:
    path = tmp_path / "test_batch"
    path.write_bytes(python2_pickle(content))
    with raises(*error) as caught:
        CifarReader(str(tmp_path), 10, "").load("test")
    assert refused_at(caught) == str(path)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "data.bad_archive"),
        ("[1, 2", "data.bad_archive"),
        ("[" * 100_000, "data.bad_archive"),
        ("{}", "data.bad_label"),
        ("[1.5, 2, 3, 4, 5]", "data.bad_label"),
        ('"12345"', "data.bad_label"),
        ("[1, 2]", "data.count_mismatch"),
    ],
)
def test_labels_in_json_that_are_no_labels_are_refused_by_name(tmp_path: Path, text: str, code: str) -> None:
    archives.write_cifar10_pngs(tmp_path, *truths(10))
    path = tmp_path / "test_lables.json"
    path.write_text(text)
    with raises(code) as caught:
        CifarReader(str(tmp_path), 10, ".png").load("test")
    assert refused_at(caught) == str(path)


def test_a_png_with_rows_of_another_length_is_refused_by_name(tmp_path: Path) -> None:
    archives.write_cifar10_pngs(tmp_path, *truths(10))
    Image.fromarray(truths(10)[1].images.reshape(-1, 512, 3)).save(tmp_path / "test_batch.png")
    with raises("data.bad_archive", 1024, 512) as caught:
        CifarReader(str(tmp_path), 10, ".png").load("test")
    assert refused_at(caught) == str(tmp_path / "test_batch.png")
