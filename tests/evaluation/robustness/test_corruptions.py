"""The corruptions of ImageNet-C and CIFAR-10-C, against the packages that defined them (`make_corruptions.py`)."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from safetensors.numpy import load_file

from vitral.evaluation.robustness.corruptions import (
    CONSTANTS,
    CORRUPTIONS,
    SEVERITIES,
    ConstantsName,
    corrupt,
    mix_frost,
)
from vitral.evaluation.robustness.fractals import FROST_MEAN, FROST_STD, frost_texture

FOUND = load_file(Path(__file__).parents[2] / "fixtures" / "corruptions.safetensors")
SEED = 5


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corruption_is_that_of_the_original_to_a_level(name: str) -> None:
    keys = [key for key in FOUND if f"/{name}/" in key]
    assert len(keys) == 4
    for key in keys:
        kind, severity = key.split("/")[0], int(key.split("/")[2])
        constants: ConstantsName = "cifar" if kind == "cifar" else "imagenet"
        image = FOUND["small" if kind == "cifar" else "image"]
        if name == "frost":  # only how it is mixed: the original has photos
            found = mix_frost(image, CONSTANTS[name][constants][severity - 1], FOUND["frost"]).astype(np.uint8)
        else:
            found = corrupt(image, name, severity, np.random.default_rng(SEED), constants)
        assert int(np.abs(found.astype(int) - FOUND[key]).max()) <= 1, key


def test_every_corruption_has_constants_of_five_severities() -> None:
    assert list(CONSTANTS) == list(CORRUPTIONS)
    assert len(CORRUPTIONS) == 15
    for sets in CONSTANTS.values():
        assert set(sets) == set(get_args(ConstantsName))
        assert all(len(each) == len(SEVERITIES) for each in sets.values())


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_gray_and_tiny_images_keep_their_size_and_the_seed_decides_the_result(name: str) -> None:
    for shape in ((28, 28, 1), (5, 7, 3), (1, 1, 3)):
        image = np.random.default_rng(1).integers(0, 256, shape).astype(np.uint8)
        first, again = (corrupt(image, name, 3, np.random.default_rng(2), "cifar") for _ in range(2))
        assert first.shape == shape
        assert first.dtype == np.uint8
        assert np.array_equal(first, again)


def test_the_generated_frost_is_as_bright_and_as_varied_as_the_photos() -> None:
    ice = frost_texture(224, 200, np.random.default_rng(3))
    assert ice.shape == (224, 200, 3)
    assert np.abs(ice.mean(axis=(0, 1)) - FROST_MEAN).max() < 5
    assert np.abs(ice.std(axis=(0, 1)) - FROST_STD).max() < 8
