"""Generated images: always the same, and their label is what is drawn."""

import numpy as np
import pytest

from vitral.data.datasets.shapes import CLASSES, IMAGES, SIDE, ShapesReader, count, ellipse, location
from vitral.data.datasets.source import open_data


@pytest.mark.parametrize("task", CLASSES)
def test_a_task_has_a_thousand_images_of_each_part_and_is_always_the_same(task: str) -> None:
    samples = open_data(task)
    assert [len(samples.of(part)) for part in ("train", "test")] == [IMAGES, IMAGES]
    train, again, test = (ShapesReader(task).load(part) for part in ("train", "train", "test"))
    assert np.array_equal(train.images, again.images)
    assert not np.array_equal(train.images, test.images)
    assert set(train.labels.tolist()) == set(range(len(CLASSES[task])))


def test_as_many_discs_are_drawn_as_the_class_says() -> None:
    for label in range(6):
        drawn = count(label, np.random.default_rng(label)) > 0.3
        parts = 0
        while drawn.any():  # each turn removes the pixels that are joined to the first
            parts, found = parts + 1, np.zeros_like(drawn)
            found[tuple(np.argwhere(drawn)[0])] = True
            before = 0
            while found.sum() > before:
                before, wide = found.sum(), np.pad(found, 1)
                found = drawn & np.any(
                    [np.roll(wide, (r, c), (0, 1))[1:-1, 1:-1] for r in (-1, 0, 1) for c in (-1, 0, 1)], axis=0
                )
            drawn = drawn & ~found
        assert parts == label + 1


def test_the_disc_is_in_its_column_and_the_ellipse_at_its_angle() -> None:
    columns = np.arange(SIDE) + 0.5
    for label in range(1, 7):  # whose discs are not cut off
        plane = location(label, np.random.default_rng(label))
        assert label * 4 <= (plane.sum(axis=0) * columns).sum() / plane.sum() <= label * 4 + 4
    rows, across = np.nonzero(ellipse(16, 16, 9, 2, np.pi / 4) > 0.5)
    assert np.corrcoef(rows, across)[0, 1] > 0.9  # down to the right
