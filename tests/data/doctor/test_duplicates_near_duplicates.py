"""Look-alikes: the search against brute force, and copies of every kind against different pictures."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from numpy.typing import NDArray
from PIL import Image
from scipy.fft import dctn

from tests.data.doctor.albums import scene
from vitral.data.doctor.duplicates import MAX_HASH_DISTANCE, correlation, near_duplicates, near_pairs, perceptual_hashes


def thumbnail(image: Image.Image) -> NDArray[np.uint8]:
    return np.asarray(image.resize((16, 16), Image.Resampling.BILINEAR)).reshape(-1)


def thumbnails(*seeds: int) -> NDArray[np.uint8]:
    return np.stack([thumbnail(scene(seed)) for seed in seeds])


def pairs(hashes: NDArray[np.uint64]) -> set[tuple[int, int]]:
    found: set[tuple[int, int]] = set()
    for first, second in near_pairs(hashes):
        found |= set(zip(np.minimum(first, second).tolist(), np.maximum(first, second).tolist(), strict=True))
    return found


def test_the_hash_is_the_low_frequencies_above_their_median() -> None:
    picture = thumbnails(5)
    gray = picture.reshape(16, 16, 3) @ np.array([0.299, 0.587, 0.114])
    low = dctn(gray, type=2)[:8, :8].ravel()[1:]
    bits = low > np.median(low)
    hashes, contrast = perceptual_hashes(picture)
    assert int(hashes[0]) == sum(2**place for place, bit in enumerate(bits) if bit)
    assert contrast[0] == pytest.approx(picture.std())


@given(
    centers=some.lists(some.integers(0, 2**63 - 1), min_size=1, max_size=4),
    flips=some.lists(some.tuples(some.integers(0, 3), some.sets(some.integers(0, 62), max_size=9)), max_size=24),
)
def test_every_pair_within_the_limit_is_found_and_no_other(
    centers: list[int], flips: list[tuple[int, set[int]]]
) -> None:
    values = centers + [centers[which % len(centers)] ^ sum(1 << bit for bit in bits) for which, bits in flips]
    hashes = np.array(values, dtype=np.uint64)
    truth = {
        (i, j)
        for i in range(len(values))
        for j in range(i + 1, len(values))
        if (values[i] ^ values[j]).bit_count() <= MAX_HASH_DISTANCE
    }
    assert pairs(hashes) == truth


def test_correlation_is_numpys_own() -> None:
    values = thumbnails(1, 2, 3)
    first, second = np.array([0, 0, 1]), np.array([1, 2, 2])
    truth = np.asarray(np.corrcoef(values))[first, second]
    assert correlation(values, first, second) == pytest.approx(truth, abs=1e-5)


@pytest.mark.parametrize(
    "copy",
    [
        lambda image: image.resize((160, 120), Image.Resampling.BICUBIC),
        lambda image: image.resize((224, 224), Image.Resampling.BICUBIC),
        lambda image: image.point(lambda level: int(level * 0.9)),
        lambda image: Image.blend(image, Image.effect_noise(image.size, 60).convert("RGB"), 0.05),
    ],
    ids=["halved", "squeezed", "darker", "noisy"],
)
def test_a_copy_is_alike_and_other_pictures_are_not(copy: object) -> None:
    assert callable(copy)
    values = np.stack([*(thumbnail(scene(seed)) for seed in range(40)), thumbnail(copy(scene(7)))])
    assert near_duplicates(values) == [[7, 40]]


@pytest.mark.parametrize("turned", [Image.Transpose.FLIP_LEFT_RIGHT, Image.Transpose.ROTATE_90])
def test_a_mirrored_or_turned_picture_is_another(turned: Image.Transpose) -> None:
    assert near_duplicates(np.stack([thumbnail(scene(1)), thumbnail(scene(1).transpose(turned))])) == []


def test_the_same_shapes_in_other_colors_are_another_picture() -> None:
    red, green, blue = scene(1).split()
    other = Image.merge("RGB", (blue, red, green))
    assert near_duplicates(np.stack([thumbnail(scene(1)), thumbnail(other)])) == []


def test_flat_pictures_are_alike_to_nobody() -> None:
    flat = np.random.default_rng(0).integers(127, 130, (50, 768)).astype(np.uint8)
    assert near_duplicates(flat) == []


def test_groups_join_through_a_common_member() -> None:
    values = thumbnails(1, 2, 1, 3, 2, 1)
    assert near_duplicates(values) == [[0, 2, 5], [1, 4]]


def test_thousands_of_stills_are_one_group() -> None:
    rng = np.random.default_rng(0)
    still = thumbnails(4)[0].astype(int)
    stills = np.clip(still + rng.integers(-3, 4, (5000, 768)), 0, 255).astype(np.uint8)
    values = np.concatenate([thumbnails(*range(10, 60)), stills])
    assert near_duplicates(values) == [list(range(50, 5050))]


def test_nothing_is_alike_among_no_pictures() -> None:
    assert near_duplicates(np.zeros((0, 768), dtype=np.uint8)) == []


def test_flat_pictures_are_alike_whatever_they_show_and_are_left_out() -> None:
    flat = (128 + np.arange(768) % 3).astype(np.uint8)
    assert near_duplicates(np.stack([flat, flat])) == []


def test_pictures_of_one_hash_are_told_apart_by_their_colors() -> None:
    gray = np.repeat(thumbnail(scene(5).convert("L").convert("RGB")).reshape(-1, 3)[:, :1], 3, axis=1) // 2 + 64
    blue = gray + np.array([0, 0, 1]) * (np.arange(256) % 2 * 90)[:, None]  # too fine for the hash
    values = np.stack([gray, blue, blue]).reshape(3, -1).astype(np.uint8)
    hashes, _ = perceptual_hashes(values)
    assert len(set(hashes.tolist())) == 1
    assert near_duplicates(values) == [[1, 2]]
