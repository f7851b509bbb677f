"""The pixels of a bundle are those of the library's processor, for pictures of 40 odd sizes."""

import json

import numpy as np
import pytest
import torch

from tests.fixtures.make_processors import FILE, noise
from vitral.core.config import Size
from vitral.data.transforms.resize import crop_and_resize
from vitral.weights.formats.huggingface.config import Fields
from vitral.weights.formats.huggingface.processor import read_processor

MADE = json.loads(FILE.read_text())
LEVEL = 1 / 255 / 0.224  # of a pixel, normalized


@pytest.mark.parametrize("name", MADE["processors"])
def test_pictures_of_odd_sizes_become_the_very_pixels_of_the_library(name: str) -> None:
    made = MADE["processors"][name]
    read, _ = read_processor(Fields(made["fields"], "preprocessor_config.json", ""), 3, "ViT", Size(48, 48))
    tolerance = LEVEL if name == "dinov3" else 2e-5  # it does not round what it resizes
    for size, total, kept in zip(MADE["sizes"], made["sums"], made["pixels"], strict=True):
        own = Size(*size)
        pixels = crop_and_resize(noise(tuple(size)), own, read.crop.plan(own, read.image_size))
        found = read.normalize.apply(torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None])[0]  # (3, H, W)
        assert list(found.shape) == made["shape"]
        got = np.array([found[:, row, column].tolist() for row, column in MADE["kept"]])
        assert np.abs(got - np.array(kept)).max() <= tolerance, size
        assert abs(float(found.double().sum()) - total) <= (3000 * LEVEL if name == "dinov3" else 0.01), size
