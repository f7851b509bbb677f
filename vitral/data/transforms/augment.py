"""Augmentations of one training image, each a config with `apply(pixels, rng)`.  H rows, W columns."""

from collections.abc import Callable
from math import exp, log, sqrt
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from vitral.core.config import Config
from vitral.data.decoding.pixels import Pixels
from vitral.data.transforms import image_ops
from vitral.data.transforms.image_ops import Edges, check_channels
from vitral.data.transforms.randaugment import RandAugment

ERASED_AREA, ERASED_ASPECT = (0.02, 0.33), (0.3, 3.3)  # torchvision's; timm goes to 1/3 and 1/0.3
TRIES = 10

Change = Callable[[Pixels, float], Pixels]


class ColorJitter(Config):
    """Brightness, contrast, saturation and hue changed in random order, as torchvision's ColorJitter does.

    A factor is drawn from 1 - strength to 1 + strength, never below 0; a turn of hue from -strength to strength.
    """

    kind: Literal["color_jitter"] = "color_jitter"
    brightness: float = Field(default=0.3, ge=0)
    contrast: float = Field(default=0.3, ge=0)
    saturation: float = Field(default=0.3, ge=0)
    hue: float = Field(default=0.0, ge=0, le=0.5)

    def apply(self, pixels: Pixels, rng: np.random.Generator) -> Pixels:
        """The image, augmented."""
        check_channels(pixels)
        strengths: list[tuple[Change, float]] = [
            (image_ops.brightness, self.brightness),
            (image_ops.contrast, self.contrast),
            (image_ops.saturation, self.saturation),
        ]
        steps = [(change, max(1 - strength, 0.0), 1 + strength) for change, strength in strengths if strength]
        if self.hue:  # a turn by 0 is left out: going to HSV and back costs a level here and there
            steps.append((image_ops.hue, -self.hue, self.hue))
        for index in rng.permutation(len(steps)):
            change, low, high = steps[index]
            pixels = change(pixels, rng.uniform(low, high))
        return pixels


class ThreeAugment(Config):
    """DeiT III's three-augment (arXiv 2204.07118): grayscale, solarize or blur, then a color jitter of 0.3."""

    kind: Literal["three_augment"] = "three_augment"

    def apply(self, pixels: Pixels, rng: np.random.Generator) -> Pixels:
        """The image, augmented."""
        check_channels(pixels)
        match rng.integers(3):
            case 0:
                pixels = image_ops.grayscale(pixels)
            case 1:
                pixels = image_ops.solarize(pixels, 128)
            case _:
                pixels = image_ops.blur(pixels, rng.uniform(0.1, 2.0))
        return ColorJitter(brightness=0.3, contrast=0.3, saturation=0.3).apply(pixels, rng)


class Noise(Config):
    """Uniform noise from 0 to 255, as in the paper; timm draws normalized pixels from a normal distribution."""

    kind: Literal["noise"] = "noise"

    def draw(self, shape: tuple[int, int, int], rng: np.random.Generator) -> Pixels:
        return rng.integers(0, 256, shape, dtype=np.uint8)


class Level(Config):
    """One level in the whole box; 128 becomes zero when pixels are normalized to [-1, 1]."""

    kind: Literal["level"] = "level"
    level: int = Field(default=128, ge=0, le=255)

    def draw(self, shape: tuple[int, int, int], rng: np.random.Generator) -> Pixels:
        return np.full(shape, self.level, dtype=np.uint8)


Fill = Annotated[Noise | Level, Field(discriminator="kind")]


class RandomErasing(Config):
    """A random box of the image covered (arXiv 1708.04896), for images of any number of channels."""

    kind: Literal["random_erasing"] = "random_erasing"
    probability: float = Field(default=0.25, ge=0, le=1)
    fill: Fill = Noise()

    def apply(self, pixels: Pixels, rng: np.random.Generator) -> Pixels:
        """The image, augmented."""
        if rng.random() >= self.probability:
            return pixels
        height, width, channels = pixels.shape
        box = draw_erased_box(height, width, rng)
        erased = pixels.copy()
        shape = (box.bottom - box.top, box.right - box.left, channels)
        erased[box.top : box.bottom, box.left : box.right] = self.fill.draw(shape, rng)
        return erased


def draw_erased_box(height: int, width: int, rng: np.random.Generator) -> Edges:
    """A box of random area and aspect somewhere in the image; an empty one where ten draws were all too long."""
    for _ in range(TRIES):
        area = rng.uniform(*ERASED_AREA) * height * width
        aspect = exp(rng.uniform(log(ERASED_ASPECT[0]), log(ERASED_ASPECT[1])))
        rows, columns = round(sqrt(area * aspect)), round(sqrt(area / aspect))
        if rows < height and columns < width:
            top, left = int(rng.integers(height - rows + 1)), int(rng.integers(width - columns + 1))
            return Edges(top, top + rows, left, left + columns)
    return Edges(0, 0, 0, 0)


Augment = Annotated[RandAugment | ThreeAugment | ColorJitter | RandomErasing, Field(discriminator="kind")]
