"""Orders of an epoch."""

from collections import Counter

import numpy as np
import pytest

from vitral.core.config import union_members
from vitral.data.loading.sampler import Balanced, Order, Repeated, SamplingPlan, Sequential, Shuffled

LABELS = np.array([0] * 50 + [1] * 7 + [3] * 3)


@pytest.mark.parametrize("order", [Sequential(), Shuffled()])
def test_each_image_comes_once_an_epoch(order: Sequential | Shuffled) -> None:
    assert sorted(order.epoch(LABELS, 0, 5)) == list(range(60))


@pytest.mark.parametrize("order", union_members(Order))
def test_an_epoch_depends_on_its_seed_and_number_alone(order: type[Order]) -> None:
    first = order().epoch(LABELS, 1, 2)
    np.testing.assert_array_equal(first, order().epoch(LABELS, 1, 2))
    for seed, epoch in ((1, 3), (2, 2), (2, 1)):
        assert np.array_equal(first, order().epoch(LABELS, seed, epoch)) is (order is Sequential)


@pytest.mark.parametrize("images", [60, 61])
def test_repeated_shows_each_image_so_often_in_a_row_and_all_of_them_in_as_many_epochs(images: int) -> None:
    order, labels = Repeated(repeats=3), np.zeros(images, dtype=np.int64)
    epochs = [order.epoch(labels, 0, epoch) for epoch in range(6)]
    for shown in epochs:
        assert len(shown) == images
        assert set(Counter(shown[:60].tolist()).values()) == {3}
        np.testing.assert_array_equal(shown[0:60:3], shown[2:60:3])
    for part in (epochs[:3], epochs[3:]):
        assert set(np.concatenate(part).tolist()) == set(range(images))
    assert not np.array_equal(epochs[0], epochs[3])


def test_only_repetitions_in_a_row_are_drawn_by_other_numbers_than_the_epoch() -> None:
    plain, repeated = (SamplingPlan(LABELS, order, 6, 0) for order in (Shuffled(), Repeated(repeats=3)))
    for step in (0, 9, 10, 25):
        assert plain.views(step).tolist() == [step // 10] * 6
        assert (repeated.views(step) - step // 10).tolist() == [0, 2**32, 2**33] * 2


def test_every_place_is_equally_likely() -> None:
    where_first = Counter(
        int(Shuffled().epoch(LABELS[:6], seed, epoch)[0]) for seed in range(60) for epoch in range(100)
    )
    assert sorted(where_first) == list(range(6))
    assert all(abs(count - 1000) < 150 for count in where_first.values())  # five deviations


def test_balanced_shows_every_class_equally_often_and_in_any_stretch() -> None:
    order = Balanced().epoch(LABELS, 0, 0)
    shown = LABELS[order]
    assert len(order) == 60
    assert Counter(shown.tolist()) == {0: 20, 1: 20, 3: 20}
    for start in range(0, 60, 3):
        assert sorted(shown[start : start + 3]) == [0, 1, 3]


def test_balanced_does_not_keep_the_classes_in_one_sequence() -> None:
    shown = LABELS[Balanced().epoch(LABELS, 0, 0)].reshape(-1, 3)
    assert len({tuple(turn) for turn in shown.tolist()}) == 6


def test_balanced_follows_the_labels_wherever_the_images_stand() -> None:
    mixed = LABELS[np.random.default_rng(0).permutation(len(LABELS))]
    assert Counter(mixed[Balanced().epoch(mixed, 0, 0)].tolist()) == {0: 20, 1: 20, 3: 20}
    few = np.array([2, 0, 1])  # more classes than any batch has cache_bytes for
    assert sorted(Balanced().epoch(few, 0, 0)) == [0, 1, 2]


def test_balanced_repeats_no_image_before_all_of_its_class_were_shown() -> None:
    order = Balanced().epoch(LABELS, 0, 0)
    large, small = order[LABELS[order] == 0], order[LABELS[order] == 1]
    assert len(set(large.tolist())) == 20
    assert sorted(small[:7]) == sorted(small[7:14]) == list(range(50, 57))
    later = Balanced().epoch(LABELS, 0, 1)
    assert set(later[LABELS[later] == 0].tolist()) != set(large.tolist())


def test_what_does_not_fill_a_batch_is_kept_for_evaluation_and_dropped_for_training() -> None:
    assert [order().num_batches(10, 4) for order in (Sequential, Shuffled, Balanced)] == [3, 2, 2]
