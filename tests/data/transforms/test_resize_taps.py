"""Resizing in whole numbers: not one byte may differ from torch's."""

from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import interpolate

from vitral.core.config import Size
from vitral.data.decoding.pixels import Pixels
from vitral.data.transforms.crop import Filter
from vitral.data.transforms.resize import resize_taps, resize_with_numpy

SIDES = st.integers(min_value=1, max_value=300)


def by_torch(pixels: Pixels, size: Size, how: Filter) -> Pixels:
    image = torch.from_numpy(pixels)[None].permute(0, 3, 1, 2)
    return interpolate(image, size=tuple(size), mode=how, antialias=True)[0].permute(1, 2, 0).numpy()


@settings(max_examples=60)
@given(st.tuples(SIDES, SIDES), st.tuples(SIDES, SIDES), st.sampled_from([1, 3]), st.sampled_from(get_args(Filter)))
def test_pictures_become_the_very_bytes_of_torch(
    old: tuple[int, int], new: tuple[int, int], channels: int, how: Filter
) -> None:
    rng = np.random.default_rng((*old, *new))
    noise = rng.integers(256, size=(*old, channels), dtype=np.uint8)
    harsh = rng.integers(2, size=noise.shape, dtype=np.uint8) * np.uint8(255)  # by which bicubic overshoots most
    for pixels in (noise, harsh):
        assert np.array_equal(resize_with_numpy(pixels, Size(*new), how), by_torch(pixels, Size(*new), how))


@pytest.mark.parametrize("how", get_args(Filter))
def test_large_pictures_do_too(how: Filter) -> None:
    pixels = np.random.default_rng(0).integers(256, size=(1500, 2203, 3), dtype=np.uint8)
    part = pixels[3:1200, 5:2001]  # which does not lie in one piece
    assert np.array_equal(resize_with_numpy(part, Size(224, 224), how), by_torch(part, Size(224, 224), how))


@pytest.mark.parametrize("how", get_args(Filter))
def test_weights_are_whole_numbers_that_add_up_to_their_unit(how: Filter) -> None:
    indices, weights, bits = resize_taps(100, 24, how)
    assert indices.shape == weights.shape
    assert indices.min() == 0
    assert indices.max() == 99
    assert np.abs(weights.sum(axis=0) - 2**bits).max() <= len(weights) / 2 + 0.5  # each is rounded by half at most


@pytest.mark.parametrize("how", get_args(Filter))
def test_a_picture_of_that_size_is_left_as_it_is(how: Filter) -> None:
    indices, weights, bits = resize_taps(7, 7, how)
    counted = np.zeros((7, 7), dtype=np.int64)
    np.add.at(counted, (np.arange(7), indices), weights)
    assert np.array_equal(counted, 2**bits * np.eye(7, dtype=np.int64))
