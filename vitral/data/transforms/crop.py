"""Crops: which part of an image the model sees, and at what size.

A crop is planned from the size of an image alone, before any pixel is decoded, so that a JPEG can be decoded at the
smallest sufficient scale.  N images.
"""

from math import ceil, log
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from vitral.core.config import Config, OpenUnion, Size
from vitral.core.errors import ConfigError

Filter = Literal["bilinear", "bicubic"]
PaddingMode = Literal["constant", "reflect"]  # of pixels outside of an image: black, or mirrored at the edge
Rounding = Literal["even", "down"]  # of half an odd margin: as torchvision and timm, or as Hugging Face's processors
Fraction = Annotated[float, Field(gt=0, le=1)]
ATTEMPTS = 10  # at drawing a crop that fits, before the largest center crop is taken


class Box(NamedTuple):
    """A rectangle of pixels."""

    top: int
    left: int
    height: int
    width: int

    @property
    def slices(self) -> tuple[slice, slice]:
        """The rows and columns, as an index."""
        return slice(self.top, self.top + self.height), slice(self.left, self.left + self.width)

    def clip(self, height: int, width: int) -> "Box":
        """The part that lies inside an image."""
        top, bottom = (min(max(edge, 0), height) for edge in (self.top, self.top + self.height))
        left, right = (min(max(edge, 0), width) for edge in (self.left, self.left + self.width))
        return Box(top, left, bottom - top, right - left)

    def scaled(self, size: Size, decoded: Size) -> "Box":
        """The same part of an image of this size that was decoded at another scale, to the nearest pixel."""
        top = round(self.top * decoded.height / size.height)
        left = round(self.left * decoded.width / size.width)
        bottom = round((self.top + self.height) * decoded.height / size.height)
        right = round((self.left + self.width) * decoded.width / size.width)
        return Box(top, left, max(bottom - top, 1), max(right - left, 1))


class CropPlan(NamedTuple):
    """How one image becomes the model's input: cut out the box, resize it, keep the window, flip it."""

    box: Box  # of the image at full scale
    resize_to: Size
    window: Box  # of the resized box
    flip: bool
    filter: Filter
    padding_mode: PaddingMode = "constant"  # of a window that reaches out of the resized box

    def min_size(self, size: Size) -> Size:
        """The smallest decoded size of the whole image from which the box need not be enlarged."""
        rows = ceil(size.height * self.resize_to.height / self.box.height)
        columns = ceil(size.width * self.resize_to.width / self.box.width)
        return Size(rows, columns)


class CropBatch(NamedTuple):
    """Crops of many images of one size, each to be resized to the model's input size."""

    boxes: NDArray[np.int64]  # (N, 4), each a Box
    flips: NDArray[np.bool_]  # (N,)

    def part(self, start: int, stop: int) -> "CropBatch":
        """The crops of some of the images."""
        return CropBatch(self.boxes[start:stop], self.flips[start:stop])


class ShiftBatch(NamedTuple):
    """Shifts of many images of the model's input size."""

    corners: NDArray[np.int64]  # (N, 2): the pixel that becomes the first one, which may lie outside of the image
    flips: NDArray[np.bool_]  # (N,)
    padding_mode: PaddingMode

    def part(self, start: int, stop: int) -> "ShiftBatch":
        """The shifts of some of the images."""
        return ShiftBatch(self.corners[start:stop], self.flips[start:stop], self.padding_mode)


class Resize(Config):
    """Resize the whole image to the model's input size, ignoring its aspect ratio: the paper's evaluation."""

    draws: ClassVar[int] = 0  # uniform numbers for each image

    kind: Literal["resize"] = "resize"
    filter: Filter = "bilinear"

    def plan(self, size: Size, image_size: Size, rng: np.random.Generator | None = None) -> CropPlan:
        """The crop of an image of this size; nothing is drawn."""
        return CropPlan(Box(0, 0, *size), image_size, Box(0, 0, *image_size), False, self.filter)

    def plan_batch(self, size: Size, uniforms: NDArray[np.float64]) -> CropBatch:
        """The crops of N images of one size, by uniform numbers (N, draws)."""
        boxes = np.tile(np.array(Box(0, 0, *size)), (len(uniforms), 1))
        return CropBatch(boxes, np.zeros(len(uniforms), dtype=np.bool_))


class CenterCrop(Config):
    """Resize the image until `fraction` of its shorter side fills the input size, and keep the center."""

    kind: Literal["center"] = "center"
    fraction: Fraction = 0.875
    filter: Filter = "bilinear"
    aspect: Literal["keep", "squash"] = "keep"  # squash: resize both sides to input size / fraction
    rounding: Rounding = "even"

    def filled(self, image_size: Size) -> Size:
        """The size from which the input size is cropped; the aspect ratio of the image makes it larger."""
        return Size(*(int(side / self.fraction) for side in image_size))  # 224 / 0.875 = 256; truncated, as usual

    def plan(self, size: Size, image_size: Size, rng: np.random.Generator | None = None) -> CropPlan:
        """The crop of an image of this size; nothing is drawn."""
        height, width = resized = self.filled(image_size)
        if self.aspect == "keep" and size.height * width <= size.width * height:  # the height is what binds
            resized = Size(height, max(int(height * size.width / size.height), width))
        elif self.aspect == "keep":
            resized = Size(max(int(width * size.height / size.width), height), width)
        margins = (had - kept for had, kept in zip(resized, image_size, strict=True))
        top, left = (margin // 2 if self.rounding == "down" else round(margin / 2) for margin in margins)
        return CropPlan(Box(0, 0, *size), resized, Box(top, left, *image_size), False, self.filter)


class RandomResizedCrop(Config):
    """Crop a random area and aspect ratio, and flip half of the images: the paper's training ("Inception crop")."""

    draws: ClassVar[int] = 1 + 4 * ATTEMPTS  # uniform numbers for each image

    kind: Literal["random_resized_crop"] = "random_resized_crop"
    area: tuple[Fraction, Fraction] = (0.05, 1.0)
    aspect: tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]] = (3 / 4, 4 / 3)
    flip: bool = True
    filter: Filter = "bilinear"

    @model_validator(mode="after")
    def _rising(self) -> Self:
        for name, (low, high) in (("area", self.area), ("aspect", self.aspect)):
            if low > high:
                message = f"expected the smaller number first, got {low:g} and {high:g}"
                raise ConfigError(message, code="config.wrong_order", where=name)
        return self

    def plan(self, size: Size, image_size: Size, rng: np.random.Generator) -> CropPlan:
        """A random crop of an image of this size."""
        boxes, flips = self.plan_batch(size, rng.random((1, self.draws)))
        return CropPlan(Box(*boxes[0].tolist()), image_size, Box(0, 0, *image_size), bool(flips[0]), self.filter)

    def plan_batch(self, size: Size, uniforms: NDArray[np.float64]) -> CropBatch:
        """The crops of N images of one size, by uniform numbers (N, draws)."""
        boxes = random_boxes(size, self.area, self.aspect, uniforms[:, 1:])
        return CropBatch(boxes, (uniforms[:, 0] < 0.5) & self.flip)


class RandomCrop(Config):
    """Resize the whole image to the input size, pad it, crop the input size anywhere, and flip half of the images.

    The usual augmentation of images of 32x32 pixels. The padding is in pixels of the input size.
    """

    draws: ClassVar[int] = 3  # uniform numbers for each image

    kind: Literal["random_crop"] = "random_crop"
    padding: int = Field(default=4, ge=0)  # on each side; less than a side
    padding_mode: PaddingMode = "constant"
    flip: bool = True
    filter: Filter = "bilinear"

    def plan(self, size: Size, image_size: Size, rng: np.random.Generator) -> CropPlan:
        """A random crop of an image of this size."""
        self.check(image_size)
        corners, flips, mode = self.plan_batch(size, rng.random((1, self.draws)))
        top, left = corners[0].tolist()
        return CropPlan(Box(0, 0, *size), image_size, Box(top, left, *image_size), bool(flips[0]), self.filter, mode)

    def plan_batch(self, size: Size, uniforms: NDArray[np.float64]) -> ShiftBatch:
        """The shifts of N images, by uniform numbers (N, draws)."""
        corners = np.floor(uniforms[:, 1:] * (2 * self.padding + 1)).astype(np.int64) - self.padding  # (N, 2)
        return ShiftBatch(corners, (uniforms[:, 0] < 0.5) & self.flip, self.padding_mode)

    def check(self, image_size: Size) -> None:
        """Raise ConfigError if a crop could lie outside of the image."""
        if self.padding >= min(image_size):
            message = f"a padding of {self.padding} pixels is not less than the side of {image_size} images"
            raise ConfigError(message, code="config.out_of_range", where="padding", hint="use an eighth of the side")


CropConfig = Annotated[Resize | CenterCrop | RandomResizedCrop | RandomCrop, OpenUnion()]
EvalCropConfig = Annotated[Resize | CenterCrop, OpenUnion()]  # deterministic


def random_boxes(
    size: Size, area: tuple[float, float], aspect: tuple[float, float], uniforms: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Boxes of uniform area and log-uniform aspect ratio, (N, 4), by four uniform numbers for each attempt.

    The first attempt that fits counts; where none does, the largest center crop of an allowed aspect ratio.
    """
    areas, ratios, tops, lefts = uniforms.reshape(len(uniforms), -1, 4).transpose(2, 0, 1)  # each (N, ATTEMPTS)
    pixels = size.height * size.width * (area[0] + (area[1] - area[0]) * areas)
    ratios = np.exp(log(aspect[0]) + log(aspect[1] / aspect[0]) * ratios)  # width by height
    heights, widths = np.rint(np.sqrt(pixels / ratios)), np.rint(np.sqrt(pixels * ratios))
    boxes = (tops * (size.height - heights + 1), lefts * (size.width - widths + 1), heights, widths)
    fits = (heights > 0) & (heights <= size.height) & (widths > 0) & (widths <= size.width)
    first = fits.argmax(axis=1)[:, None]  # (N, 1)
    drawn = np.stack([np.take_along_axis(side, first, axis=1)[:, 0] for side in boxes], axis=1).astype(np.int64)
    fitting: NDArray[np.bool_] = np.take_along_axis(fits, first, axis=1)  # (N, 1)
    ratio = min(max(size.width / size.height, aspect[0]), aspect[1])
    height, width = min(size.height, round(size.width / ratio)), min(size.width, round(size.height * ratio))
    center = Box((size.height - height) // 2, (size.width - width) // 2, height, width)
    return np.where(fitting, drawn, np.array(center))
