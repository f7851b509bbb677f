"""The pixels of a bundle are those of the library's processor, for pictures of 40 odd sizes."""

import json
from collections.abc import Container

import numpy as np
import pytest
import torch

from tests.fixtures.make_processors import FILE, noise
from vitral.core.config import Size
from vitral.data.transforms.crop import CenterCrop
from vitral.data.transforms.resize import crop_and_resize
from vitral.weights.convert import missing_preprocessing
from vitral.weights.formats.huggingface.config import Fields
from vitral.weights.formats.huggingface.processor import processor_fields, read_processor

MADE = json.loads(FILE.read_text())
ROUNDED = "half of an odd margin of the center crop is rounded to the even number; read back, down: a pixel off for"
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


@pytest.mark.parametrize(
    ("name", "counts"),
    [("bit", {40}), ("deit", {40}), ("deit_old", {0}), ("clip", range(1, 40)), ("clip_larger", range(1, 40))],
)
def test_a_crop_of_timm_that_the_library_cannot_give_is_named_with_the_sizes_that_are_off(
    name: str, counts: Container[int]
) -> None:
    """What is written for a crop that rounds to even: the library's own pixels differ just where it is said."""
    made = MADE["processors"][name]
    there, _ = read_processor(Fields(made["fields"], "preprocessor_config.json", ""), 3, "ViT", Size(48, 48))
    assert isinstance(there.crop, CenterCrop)
    here = there.model_copy(update={"crop": there.crop.model_copy(update={"rounding": "even"})})
    written = processor_fields(here)
    again, _ = read_processor(Fields(written, "preprocessor_config.json", ""), 3, "ViT", Size(48, 48))
    assert again.crop == there.crop  # the library reads what is written as it reads the fixture
    off = 0
    for size, kept in zip(MADE["sizes"], made["pixels"], strict=True):
        own = Size(*size)
        pixels = crop_and_resize(noise(tuple(size)), own, here.crop.plan(own, here.image_size))
        found = here.normalize.apply(torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None])[0]  # (3, H, W)
        got = np.array([found[:, row, column].tolist() for row, column in MADE["kept"]])
        off += bool(np.abs(got - np.array(kept)).max() > 0.01)
    assert off in counts  # of the sizes, those whose pixels are not the library's
    assert missing_preprocessing(here, there) == (f"{ROUNDED} {off} of 40 image sizes" if off else "")
