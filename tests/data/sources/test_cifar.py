from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data import archives
from tests.data.archives import Truth, planes, python2_pickle, some
from tests.data.trees import refusal
from vitral.data.sources.cifar import Form, Pickles, Pngs, Records, find_cifar
from vitral.errors import DataError

Write = Callable[[Path, Truth, Truth], None]
FORMS: list[tuple[type[Form], int, Write]] = [
    (Pickles, 10, archives.write_cifar10_pickles),
    (Records, 10, archives.write_cifar10_records),
    (Pngs, 10, archives.write_cifar10_pngs),
    (Pickles, 100, archives.write_cifar100_pickles),
    (Records, 100, archives.write_cifar100_records),
]
every_form = pytest.mark.parametrize(("form", "classes", "write"), FORMS)


def test_a_batch_that_is_cut_between_two_images_is_noticed(tmp_path: Path) -> None:
    archives.write_cifar10_records(tmp_path, *truths(10))
    path = tmp_path / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[: 3 * 3073])
    with pytest.raises(DataError, match="its batches hold 4, 4, 3, 4, 4 images") as caught:
        Records(str(tmp_path), 10).load("train")
    assert refusal(caught)[0] == str(tmp_path)


def truths(classes: int) -> tuple[Truth, Truth]:
    return some(20, 32, 32, 3, classes=classes), some(5, 32, 32, 3, classes=classes, seed=1)


def load_all(reader: Form) -> None:
    for part in ("train", "test"):
        reader.load(part)


@every_form
def test_every_form_gives_the_images_and_labels_that_went_in(
    tmp_path: Path, form: type[Form], classes: int, write: Write
) -> None:
    write(tmp_path, *truths(classes))
    reader = find_cifar(tmp_path, classes)
    assert reader == form(str(tmp_path), classes)
    for part, truth in zip(("train", "test"), truths(classes), strict=True):
        images, labels = reader.load(part)
        assert images.flags.c_contiguous
        assert np.array_equal(images, truth.images)
        assert np.array_equal(labels, truth.labels)


@every_form
def test_one_set_is_not_taken_for_the_other(tmp_path: Path, form: type[Form], classes: int, write: Write) -> None:
    write(tmp_path, *truths(classes))
    assert find_cifar(tmp_path, 110 - classes) is None
    assert find_cifar(tmp_path / "elsewhere", classes) is None


@every_form
def test_a_missing_file_is_named(tmp_path: Path, form: type[Form], classes: int, write: Write) -> None:
    write(tmp_path, *truths(classes))
    for path in sorted(tmp_path.iterdir()):
        moved = path.rename(tmp_path.parent / "moved")
        with pytest.raises(DataError) as caught:
            load_all(form(str(tmp_path), classes))
        assert refusal(caught)[0] == str(tmp_path)
        assert f"{path.name} is missing beside the other files" in str(caught.value)
        moved.rename(path)


@every_form
def test_half_a_file_is_refused_by_name(tmp_path: Path, form: type[Form], classes: int, write: Write) -> None:
    write(tmp_path, *truths(classes))
    for path in sorted(tmp_path.iterdir()):
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2 - 1])
        with pytest.raises(DataError) as caught:
            load_all(form(str(tmp_path), classes))
        assert refusal(caught)[0] == str(path)
        path.write_bytes(whole)


@every_form
def test_a_label_beyond_the_classes_is_refused_by_name(
    tmp_path: Path, form: type[Form], classes: int, write: Write
) -> None:
    train, test = truths(classes)
    test.labels[3] = classes
    write(tmp_path, train, test)
    with pytest.raises(DataError, match=f"label {classes} of image 3 is not below {classes}") as caught:
        form(str(tmp_path), classes).load("test")
    assert Path(refusal(caught)[0]).parent == tmp_path


ROWS = planes(some(2, 32, 32, 3).images)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ({"data": ROWS}, "expected a list of labels"),
        ({"data": ROWS, "labels": "no"}, "expected a list of labels"),
        ({"data": ROWS, "labels": [1, "2"]}, "expected a list of labels"),
        ({"data": ROWS, "labels": [1, -2]}, "expected a list of labels"),
        ({"data": ROWS, "labels": [1, 257]}, "expected a list of labels"),
        ({"data": ROWS, "labels": [True, False]}, "expected a list of labels"),
        ({"data": ROWS, "labels": [1]}, "1 labels for the 2 images"),
        ({"data": ROWS, "labels": []}, "0 labels for the 2 images"),
        ({"labels": [1, 2]}, "no array of 3072 columns called data"),
        ({"data": [1, 2], "labels": [1, 2]}, "no array of 3072 columns called data"),
        ({"data": ROWS[:, :-1], "labels": [1, 2]}, "no array of 3072 columns called data"),
        ({"data": ROWS[0], "labels": [1, 2]}, "no array of 3072 columns called data"),
        ({"data": ROWS[:0], "labels": []}, "0 labels for the 0 images"),
    ],
)
def test_a_pickle_of_something_else_is_refused_by_name(tmp_path: Path, content: object, what: str) -> None:
    path = tmp_path / "test_batch"
    path.write_bytes(python2_pickle(content))
    with pytest.raises(DataError) as caught:
        Pickles(str(tmp_path), 10).load("test")
    assert refusal(caught)[0] == str(path)
    assert what in str(caught.value)


@pytest.mark.parametrize("text", ["", "{}", "[1, 2", "[1.5, 2, 3, 4, 5]", "[" * 100_000, "[1, 2]", '"12345"'])
def test_labels_in_json_that_are_no_labels_are_refused_by_name(tmp_path: Path, text: str) -> None:
    archives.write_cifar10_pngs(tmp_path, *truths(10))
    path = tmp_path / "test_lables.json"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        Pngs(str(tmp_path), 10).load("test")
    assert refusal(caught)[0] == str(path)


def test_a_png_with_rows_of_another_length_is_refused_by_name(tmp_path: Path) -> None:
    archives.write_cifar10_pngs(tmp_path, *truths(10))
    Image.fromarray(truths(10)[1].images.reshape(-1, 512, 3)).save(tmp_path / "test_batch.png")
    with pytest.raises(DataError, match="expected rows of 1024 pixels, found 512") as caught:
        Pngs(str(tmp_path), 10).load("test")
    assert refusal(caught)[0] == str(tmp_path / "test_batch.png")
