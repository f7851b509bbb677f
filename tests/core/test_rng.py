"""Dice: the same for the same numbers, unrelated for others, and the same tomorrow."""

from itertools import product

import numpy as np
import pytest

from vitral.core.rng import BatchRng, Purpose, batch_rng, image_rngs, image_uniforms, rng_for, uniform_for


def test_the_same_numbers_throw_the_same_and_no_others_do() -> None:
    drawn = {key: rng_for(*key).integers(2**63) for key in product((0, 1, -1), Purpose, (0, 1, 7), (0, 1, 2**40))}
    assert len(set(drawn.values())) == len(drawn)
    assert all(rng_for(*key).integers(2**63) == value for key, value in drawn.items())


def test_neighbors_are_not_alike() -> None:
    drawn = np.array([rng_for(0, Purpose.VIEW, 3, index).random(4) for index in range(2000)])
    assert np.abs(np.corrcoef(drawn[:-1].T, drawn[1:].T) - np.eye(8)).max() < 0.11
    assert np.abs(drawn.mean(0) - 0.5).max() < 0.03


def test_the_numbers_are_those_of_the_first_release() -> None:
    assert rng_for(0, Purpose.ORDER, 0).permutation(10).tolist() == [9, 4, 2, 1, 0, 7, 8, 5, 3, 6]
    assert rng_for(7, Purpose.VIEW, 2, 5).random() == 0.8824360023822759


@pytest.mark.parametrize("seed", [0, 7, -1, 2**63 + 5])
@pytest.mark.parametrize("count", [0, 1, 4, 41])
def test_many_throws_at_once_are_those_that_each_dice_give(seed: int, count: int) -> None:
    firsts, seconds = np.array([3, 0, 3, 2**33 + 3, 7]), np.array([0, 1, 5, 59_999, 2**40])
    found = uniform_for(seed, Purpose.VIEW, firsts, seconds, count)
    pairs = zip(firsts.tolist(), seconds.tolist(), strict=True)
    expected = [rng_for(seed, Purpose.VIEW, first, second).random(count) for first, second in pairs]
    assert found.tolist() == np.array(expected).tolist()


def test_a_third_count_gives_other_numbers_and_0_the_same() -> None:
    first, second = np.array([2, 3]), np.array([5, 6])
    found = [uniform_for(7, Purpose.VIEW, first, second, 6, third).tolist() for third in range(3)]
    assert found[0] == uniform_for(7, Purpose.VIEW, first, second, 6).tolist()
    assert [found[1][1], found[2][0]] == [
        rng_for(7, Purpose.VIEW, 3, 6, 1).random(6).tolist(),
        rng_for(7, Purpose.VIEW, 2, 5, 2).random(6).tolist(),
    ]
    assert len({number for rows in found for row in rows for number in row}) == 36


def test_draws_for_images_are_the_same_however_a_batch_is_split() -> None:
    whole = BatchRng(7, 3, 0, np.arange(6))
    halves = [BatchRng(7, 3, rank, np.arange(6)[rank::2]) for rank in range(2)]
    numbers = image_uniforms(whole, 6, 5)
    assert [image_uniforms(half, 3, 5).tolist() for half in halves] == [numbers[rank::2].tolist() for rank in range(2)]
    assert [each.random(5).tolist() for each in image_rngs(whole, 6)] == numbers.tolist()
    assert [each.random(5).tolist() for each in image_rngs(halves[1], 3)] == numbers[1::2].tolist()
    assert len({batch_rng(each).random() for each in (whole, *halves)}) == 1
    assert len({each.random() for each in (whole, *halves)}) == 2  # its own draws are those of a microbatch
    assert whole.random() != BatchRng(7, 4, 0, np.arange(6)).random()
    assert not np.intersect1d(numbers, image_uniforms(BatchRng(7, 4, 0, np.arange(6)), 6, 5)).size


def test_a_microbatch_draws_as_it_did_before_it_could_draw_for_images() -> None:
    assert BatchRng(7, 3, 2, np.arange(1)).random(4).tolist() == rng_for(7, Purpose.MIXING, 3, 2).random(4).tolist()


def test_a_plain_generator_serves_as_well() -> None:
    assert image_uniforms(np.random.default_rng(1), 2, 3).tolist() == np.random.default_rng(1).random((2, 3)).tolist()
    rng = np.random.default_rng(1)
    assert batch_rng(rng) is rng
    assert image_rngs(rng, 2) == [rng, rng]
