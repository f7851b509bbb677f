"""Augmentations of one training image, each a config with `apply(pixels, rng)`.  H rows, W columns.

RandAugment (arXiv 1909.13719) is as big_vision ran it for AugReg (arXiv 2106.10270), oddities included. timm and
torchvision have the same 16 names but not the same numbers; each difference is noted where it occurs. All that depends
on the size of the image (distances, the level of `contrast`) is as in AugReg's images of 224x224 and scales from there,
so that small images are not moved out of view.
"""

from collections.abc import Callable
from math import exp, log, sqrt
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from vitral.core.config import Config, OpenUnion
from vitral.data.decoding.pixels import Pixels
from vitral.data.transforms import image_ops
from vitral.data.transforms.crop import Box
from vitral.data.transforms.image_ops import check_channels

SIDE = 224  # of AugReg's images
TRANSLATE, CUTOUT = 100, 40  # pixels of SIDE at level 1; timm translates by 0.45 of the side
PALE = SIDE * SIDE // 256  # big_vision takes the number of pixels / 256 for the mean; timm takes the mean

Operation = Callable[[Pixels, float, np.random.Generator], Pixels]  # of the level: the magnitude / 10


def enhance_factor(level: float) -> float:
    """The factor of color, contrast, brightness and sharpness: 0.1 at level 0, so every level changes the image.

    timm's `increasing` variants and torchvision take 1 +- 0.9 x level instead.
    """
    return 1.8 * level + 0.1


def posterize_bits(level: float) -> int:
    """How many bits `posterize` keeps: more at higher levels, all 8 from 2 on.

    TensorFlow shifts out at most 7 bits, so level 0 keeps one (Pillow, thus timm, none); beyond level 2 the shift is
    negative, wraps around in 8 bits, and one bit is kept again.
    """
    return 8 - min((8 - int(4 * level)) % 256, 7)


def solarize_threshold(level: float) -> int:
    """From which level of gray `solarize` inverts: it wraps around in 8 bits, so whole levels invert everything.

    timm stops at 256, where nothing is inverted (google-research/big_vision, issue 110).
    """
    return int(256 * level) % 256


def _sign(rng: np.random.Generator) -> int:
    return 1 if rng.random() < 0.5 else -1


def _translate_x(pixels: Pixels, level: float, rng: np.random.Generator) -> Pixels:
    return image_ops.translate_x(pixels, _sign(rng) * level * TRANSLATE * (pixels.shape[1] / SIDE))


def _translate_y(pixels: Pixels, level: float, rng: np.random.Generator) -> Pixels:
    return image_ops.translate_y(pixels, _sign(rng) * level * TRANSLATE * (pixels.shape[0] / SIDE))


def _cutout(pixels: Pixels, level: float, rng: np.random.Generator) -> Pixels:
    """timm and torchvision have no cutout among these."""
    height, width = pixels.shape[:2]
    reach = int(level * CUTOUT * (min(height, width) / SIDE))
    return image_ops.cutout(pixels, reach, int(rng.integers(height)), int(rng.integers(width)))


# In big_vision's order. Where timm and torchvision interpolate by choice, all of these take the nearest pixel.
OPERATIONS: dict[str, Operation] = {
    "AutoContrast": lambda pixels, level, rng: image_ops.autocontrast(pixels),
    "Equalize": lambda pixels, level, rng: image_ops.equalize(pixels),
    "Invert": lambda pixels, level, rng: image_ops.invert(pixels),
    "Rotate": lambda pixels, level, rng: image_ops.rotate(pixels, _sign(rng) * 30 * level),
    "Posterize": lambda pixels, level, rng: image_ops.posterize(pixels, posterize_bits(level)),
    "Solarize": lambda pixels, level, rng: image_ops.solarize(pixels, solarize_threshold(level)),
    "Color": lambda pixels, level, rng: image_ops.saturation(pixels, enhance_factor(level)),
    "Contrast": lambda pixels, level, rng: image_ops.contrast_about(pixels, enhance_factor(level), PALE),
    "Brightness": lambda pixels, level, rng: image_ops.brightness(pixels, enhance_factor(level)),
    "Sharpness": lambda pixels, level, rng: image_ops.sharpness(pixels, enhance_factor(level)),
    "ShearX": lambda pixels, level, rng: image_ops.shear_x(pixels, _sign(rng) * 0.3 * level),
    "ShearY": lambda pixels, level, rng: image_ops.shear_y(pixels, _sign(rng) * 0.3 * level),
    "TranslateX": _translate_x,
    "TranslateY": _translate_y,
    "Cutout": _cutout,
    "SolarizeAdd": lambda pixels, level, rng: image_ops.solarize_add(pixels, int(110 * level)),  # timm: at most 128
}


class RandAugment(Config):
    """Apply `layers` operations in turn, each drawn from all 16, all at one magnitude.

    big_vision also draws a probability for each operation, and does not use it; timm applies each with 0.5.
    """

    kind: Literal["rand_augment"] = "rand_augment"
    layers: int = Field(default=2, ge=1)
    magnitude: int = Field(default=10, ge=0, le=30)

    def apply(self, pixels: Pixels, rng: np.random.Generator) -> Pixels:
        """The image, augmented."""
        check_channels(pixels)  # at once, not when the first color operation happens to be drawn
        operations = tuple(OPERATIONS.values())
        for _ in range(self.layers):
            operation = operations[rng.integers(len(operations))]
            pixels = operation(pixels, self.magnitude / 10, rng)
        return pixels


class ColorJitter(Config):
    """Change brightness, contrast, saturation and hue in random order, as torchvision's ColorJitter does.

    A factor is drawn from 1 - strength to 1 + strength, at least 0; a shift of hue from -strength to strength.
    """

    kind: Literal["color_jitter"] = "color_jitter"
    brightness: float = Field(default=0.3, ge=0)
    contrast: float = Field(default=0.3, ge=0)
    saturation: float = Field(default=0.3, ge=0)
    hue: float = Field(default=0.0, ge=0, le=0.5)

    def apply(self, pixels: Pixels, rng: np.random.Generator) -> Pixels:
        """The image, augmented."""
        check_channels(pixels)
        strengths: list[tuple[Callable[[Pixels, float], Pixels], float]] = [
            (image_ops.brightness, self.brightness),
            (image_ops.contrast, self.contrast),
            (image_ops.saturation, self.saturation),
        ]
        steps = [(operation, max(1 - strength, 0.0), 1 + strength) for operation, strength in strengths if strength]
        if self.hue:  # a shift by 0 is left out: converting to HSV and back changes some levels
            steps.append((image_ops.hue, -self.hue, self.hue))
        for index in rng.permutation(len(steps)):
            operation, low, high = steps[index]
            pixels = operation(pixels, rng.uniform(low, high))
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


Fill = Annotated[Noise | Level, OpenUnion()]


ERASED_AREA, ERASED_ASPECT = (0.02, 0.33), (0.3, 3.3)  # torchvision's; timm goes to 1/3 and 1/0.3
TRIES = 10


class RandomErasing(Config):
    """Cover a random box of the image (arXiv 1708.04896), which may have any number of channels."""

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
        erased[box.slices] = self.fill.draw((box.height, box.width, channels), rng)
        return erased


def draw_erased_box(height: int, width: int, rng: np.random.Generator) -> Box:
    """A box of random area and aspect somewhere in the image; an empty one if it does not fit in ten attempts."""
    for _ in range(TRIES):
        area = rng.uniform(*ERASED_AREA) * height * width
        aspect = exp(rng.uniform(log(ERASED_ASPECT[0]), log(ERASED_ASPECT[1])))
        rows, columns = round(sqrt(area * aspect)), round(sqrt(area / aspect))
        if rows < height and columns < width:
            top, left = int(rng.integers(height - rows + 1)), int(rng.integers(width - columns + 1))
            return Box(top, left, rows, columns)
    return Box(0, 0, 0, 0)


Uniforms = NDArray[np.float64]


class DrawnAugment(Config):
    """An augmentation that takes a fixed number of uniform numbers from the generator, and applies with a probability.

    The first number decides whether it applies. A batch of images in memory gets the numbers of all images at once.
    """

    draws: ClassVar[int] = 1
    probability: float = Field(default=0.5, ge=0, le=1)

    def apply(self, pixels: Pixels, rng: np.random.Generator) -> Pixels:
        """The image, augmented or not."""
        check_channels(pixels)
        numbers = rng.random(self.draws)
        return self.change(pixels, numbers[1:]) if numbers[0] < self.probability else pixels

    def change(self, pixels: Pixels, numbers: Uniforms) -> Pixels:
        """The image, augmented by these uniform numbers (draws - 1,)."""
        raise NotImplementedError

    def apply_batch(self, images: Pixels, numbers: Uniforms) -> None:
        """Augment images (B, H, W, C) in place by uniform numbers (B, draws), to the bits of `apply`."""
        check_channels(images)
        for row in (numbers[:, 0] < self.probability).nonzero()[0].tolist():
            images[row] = self.change(images[row], numbers[row, 1:])


class RandomColorJitter(DrawnAugment):
    """ColorJitter with a probability, by default as in BYOL, DINO and MoCo v3 (arXiv 2006.07733)."""

    kind: Literal["random_color_jitter"] = "random_color_jitter"
    draws: ClassVar[int] = 9  # whether, four for the order, four for the strengths
    probability: float = Field(default=0.8, ge=0, le=1)
    brightness: float = Field(default=0.4, ge=0)
    contrast: float = Field(default=0.4, ge=0)
    saturation: float = Field(default=0.2, ge=0)
    hue: float = Field(default=0.1, ge=0, le=0.5)

    def ranges(self) -> list[tuple[float, float]]:
        """The smallest and largest brightness, contrast, saturation and shift of hue."""
        factors = [(max(1 - each, 0.0), 1 + each) for each in (self.brightness, self.contrast, self.saturation)]
        return [*factors, (-self.hue, self.hue)]

    def change(self, pixels: Pixels, numbers: Uniforms) -> Pixels:
        operations = (image_ops.brightness, image_ops.contrast, image_ops.saturation, image_ops.hue)
        strengths = (self.brightness, self.contrast, self.saturation, self.hue)
        ranges = self.ranges()
        for index in np.argsort(numbers[:4], kind="stable").tolist():
            low, high = ranges[index]
            if strengths[index]:
                pixels = operations[index](pixels, low + (high - low) * float(numbers[4 + index]))
        return pixels


class RandomGrayscale(DrawnAugment):
    """Remove the colors of some images."""

    kind: Literal["random_grayscale"] = "random_grayscale"
    probability: float = Field(default=0.2, ge=0, le=1)

    def change(self, pixels: Pixels, numbers: Uniforms) -> Pixels:
        return image_ops.grayscale(pixels)


class RandomSolarize(DrawnAugment):
    """Invert the bright levels of some images."""

    kind: Literal["random_solarize"] = "random_solarize"
    probability: float = Field(default=0.2, ge=0, le=1)
    threshold: int = Field(default=128, ge=0, le=256)

    def change(self, pixels: Pixels, numbers: Uniforms) -> Pixels:
        return image_ops.solarize(pixels, self.threshold)


class RandomBlur(DrawnAugment):
    """Blur some images by a Gaussian, whose standard deviation is drawn from a range, in pixels."""

    kind: Literal["random_blur"] = "random_blur"
    draws: ClassVar[int] = 2
    radius: tuple[Annotated[float, Field(ge=0)], Annotated[float, Field(ge=0)]] = (0.1, 2.0)

    def change(self, pixels: Pixels, numbers: Uniforms) -> Pixels:
        low, high = self.radius
        return image_ops.blur(pixels, low + (high - low) * float(numbers[0]))


Augment = Annotated[
    RandAugment
    | ThreeAugment
    | ColorJitter
    | RandomErasing
    | RandomColorJitter
    | RandomGrayscale
    | RandomSolarize
    | RandomBlur,
    OpenUnion(),
]
