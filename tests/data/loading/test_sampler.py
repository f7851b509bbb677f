"""Nested subsets."""

from itertools import pairwise

import pytest

from tests.errors import raises
from vitral.data.datasets.files import FileStore
from vitral.data.loading.sampler import hold_out, subset
from vitral.data.samples import Item, Samples, Split, StratifiedSplit


def some(counts: dict[Split, tuple[int, ...]]) -> Samples:
    items = [
        Item(f"{split}/{label}/{number}.jpg", label, split)
        for split, sizes in counts.items()
        for label, size in enumerate(sizes)
        for number in range(size)
    ]
    return Samples("here", ("a", "b", "c"), tuple(items), FileStore("here"))


SOME = some({"train": (100, 40, 3), "val": (5, 5, 5)})


def test_the_smaller_lies_within_the_larger() -> None:
    sets = [set(subset(SOME, fraction).of("train")) for fraction in (0.1, 0.3, 0.5, 1.0)]
    assert sets == sorted(sets, key=len)
    for smaller, larger in pairwise(sets):
        assert smaller < larger
    assert sets[-1] == set(SOME.of("train"))


def test_every_class_gives_its_share_and_other_splits_stay() -> None:
    tenth = subset(SOME, 0.1)
    assert tenth.counts("train") == (10, 4, 1)
    assert subset(SOME, 0.07).counts("train") == (7, 3, 1)  # 100 * 0.07 is a little more than 7
    assert tenth.of("val") == SOME.of("val")
    assert tenth.notes == ("0.1 of the training images of every class (seed 0)",)


def test_another_seed_draws_others_and_new_images_move_none() -> None:
    assert set(subset(SOME, 0.3, seed=1).items) != set(subset(SOME, 0.3).items)
    grown = subset(some({"train": (100, 60, 3), "val": (5, 5, 5)}), 0.3)
    assert [item for item in grown.items if item.label != 1] == [
        item for item in subset(SOME, 0.3).items if item.label != 1
    ]


@pytest.mark.parametrize("fraction", [0.0, -0.5, 1.01])
def test_an_impossible_share_is_refused(fraction: float) -> None:
    with raises("config.out_of_range", "fraction", fraction):
        subset(SOME, fraction)


def test_held_out_images_are_validation_images_of_every_class() -> None:
    both = some({"train": (40, 20, 10), "test": (5, 5, 5)})
    held = hold_out(both, StratifiedSplit(fraction=0.1))
    assert (held.counts("train"), held.counts("val")) == ((36, 18, 9), (4, 2, 1))
    assert held.of("test") == both.of("test")
    assert {item.name for item in held.items} == {item.name for item in both.items}
    with raises("config.conflict", "hold_out"):
        hold_out(held, StratifiedSplit(fraction=0.1))
