"""Corruption.  B images, N patches, M of them corrupted, D width."""

from math import sqrt

import numpy as np
import pytest
import torch

from vitral.tasks.selfsupervised.masked_patches import Corruption, corrupt, draw_corruption, gather_patches


def drawn(images: int, patches: int, seed: int = 0) -> Corruption:
    return draw_corruption(images, patches, np.random.default_rng(seed))


def at(values: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return values.gather(1, places)


@pytest.mark.parametrize(("patches", "count"), [(2, 1), (3, 2), (24, 12), (25, 13), (196, 98)])
def test_every_image_has_half_of_its_patches_corrupted_each_once(patches: int, count: int) -> None:
    places = drawn(50, patches).indices
    assert places.shape == (50, count)
    assert all(len(set(row)) == count for row in places.tolist())
    assert int(places.min()) >= 0
    assert int(places.max()) == patches - 1


def test_what_is_not_corrupted_is_left_alone() -> None:
    places, sources, masked = drawn(50, 24)
    untouched = torch.ones(50, 24, dtype=torch.bool).scatter(1, places, False)
    assert not masked[untouched].any()
    assert (sources == torch.arange(24))[untouched].all()


@pytest.mark.parametrize("patches", [2, 196])  # of two, a patch swapped for itself would often be met
def test_eight_in_ten_are_masked_one_swapped_for_another_and_one_kept(patches: int) -> None:
    places, sources, masked = drawn(80_000 // patches, patches)
    of_corrupted = at(masked, places)
    swapped = at(sources, places) != places
    assert not (of_corrupted & swapped).any()
    kept = ~of_corrupted & ~swapped
    count = places.numel()
    for found, share in ((of_corrupted, 0.8), (swapped, 0.1), (kept, 0.1)):
        deviation = sqrt(count * share * (1 - share))
        assert abs(int(found.sum()) - count * share) < 4 * deviation


def test_places_and_sources_are_anywhere_alike() -> None:
    places, sources, _ = drawn(20_000, 6)
    expected = 20_000 / 2
    assert all(abs(int(count) - expected) < 4 * sqrt(expected / 2) for count in places.flatten().bincount())
    distances = (at(sources, places) - places)[at(sources, places) != places] % 6
    counts = distances.bincount(minlength=6)
    assert counts[0] == 0
    assert all(abs(int(count) - counts.sum() / 5) < 4 * sqrt(counts.sum() / 5) for count in counts[1:])


def test_images_of_a_batch_are_corrupted_each_in_its_own_way() -> None:
    places = drawn(20, 24).indices
    assert len({tuple(sorted(row)) for row in places.tolist()}) == 20


def test_the_dice_decide_all_of_it() -> None:
    assert all(torch.equal(one, other) for one, other in zip(drawn(5, 24), drawn(5, 24), strict=True))
    assert not torch.equal(drawn(5, 24).indices, drawn(5, 24, seed=1).indices)


def test_no_images_are_corrupted_too() -> None:
    assert [tuple(part.shape) for part in drawn(0, 24)] == [(0, 12), (0, 24), (0, 24)]


def test_patches_are_replaced_as_the_corruption_says() -> None:
    patches = torch.arange(8.0).view(1, 4, 2)
    corruption = Corruption(
        indices=torch.tensor([[3, 0, 1]]),
        sources=torch.tensor([[0, 2, 2, 3]]),
        masked=torch.tensor([[False, False, False, True]]),
    )
    found = corrupt(patches, corruption, torch.tensor([-1.0, -2.0]))
    assert found.tolist() == [[[0, 1], [4, 5], [4, 5], [-1, -2]]]
    assert gather_patches(patches, corruption.indices).tolist() == [[[6, 7], [0, 1], [2, 3]]]


def test_the_kind_of_number_stays() -> None:
    found = corrupt(torch.zeros(2, 4, 3, dtype=torch.bfloat16), drawn(2, 4), torch.ones(3))
    assert found.dtype == torch.bfloat16
