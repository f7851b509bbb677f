import pickle
from dataclasses import dataclass
from io import BytesIO

import numpy as np
import pytest

from tests.data.archives import some
from tests.data.trees import refused_at
from tests.errors import raises
from vitral.data.datasets.arrays import Array, ArrayStore, LabeledImages, check_labels, load_once, open_arrays


@dataclass(frozen=True)
class Made:
    """A reader of noise, the same for the same seed."""

    seed: int
    shape: tuple[int, ...] = (9, 8)

    def load(self, part: str) -> LabeledImages:
        return LabeledImages(*some(12 if part == "train" else 5, *self.shape, classes=3, seed=self.seed))


@pytest.mark.parametrize("shape", [(9, 8), (9, 8, 3)])
def test_an_image_is_read_as_numpy_itself_would_have_saved_it(shape: tuple[int, ...]) -> None:
    store = ArrayStore("made", Made(1, shape))
    file = BytesIO()
    np.save(file, Made(1, shape).load("train").images[11])
    assert store.read("train/0011.npy") == file.getvalue()
    assert store.size("train/0011.npy") == len(file.getvalue())


def test_the_samples_are_in_the_order_of_the_arrays() -> None:
    samples = open_arrays("made", ("a", "b", "c"), Made(2), ("a note",))
    assert [item.label for item in samples.of("train")] == Made(2).load("train").labels.tolist()
    assert [item.name for item in samples.of("test")] == [f"test/{number:04}.npy" for number in range(5)]
    assert samples.of("val") == ()
    assert (samples.where, samples.classes, samples.notes) == ("made", ("a", "b", "c"), ("a note",))


def test_a_part_is_loaded_once_for_equal_loaders_and_cannot_be_written_to() -> None:
    assert load_once(Made(3), "train") is load_once(Made(3), "train")
    assert load_once(Made(3), "train") is not load_once(Made(4), "train")
    with pytest.raises(ValueError, match="read-only"):
        load_once(Made(3), "train").images[0] = 0


def test_a_store_goes_to_another_process_without_its_images() -> None:
    store = ArrayStore("made", Made(5, (200, 200)))
    read = store.read("test/0004.npy")
    packed = pickle.dumps(store)
    assert len(packed) < 500
    assert pickle.loads(packed).read("test/0004.npy") == read


@pytest.mark.parametrize(
    ("images", "labels", "error"),
    [
        (np.zeros((3, 8, 8)), np.array([0, 1]), ("data.count_mismatch", "2", "3", "photos.bin")),
        (np.zeros((0, 8, 8)), np.array([]), ("data.count_mismatch", "0", "photos.bin")),
        (np.zeros((3, 8, 8)), np.array([0, 1, 2]), ("data.bad_label", "2")),
        (np.zeros((3, 8, 8)), np.array([0, -1, 0]), ("data.bad_label", "-1", "1", "2")),
    ],
)
def test_labels_that_do_not_fit_the_images_are_refused(images: Array, labels: Array, error: tuple[str, ...]) -> None:
    with raises(*error) as caught:
        check_labels(images, labels, 2, "photos.bin", "labels.bin")
    assert refused_at(caught) == "labels.bin"
