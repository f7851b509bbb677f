"""Views: which part of a picture the model sees, and at what size.

A view looks at the size of a picture alone, before any pixel is decoded, so that a JPEG can be decoded at the smallest
scale that serves.
"""

from math import ceil, log
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from vitral.core.config import Config, Size
from vitral.core.errors import ConfigError

Filter = Literal["bilinear", "bicubic"]
Share = Annotated[float, Field(gt=0, le=1)]
ATTEMPTS = 10  # of drawing a crop that fits, before the largest one in the middle is taken


class Box(NamedTuple):
    """A rectangle of pixels."""

    top: int
    left: int
    height: int
    width: int

    def scaled(self, whole: Size, stored: Size) -> "Box":
        """The same part of a picture that was decoded at another scale, to the nearest pixel."""
        top = round(self.top * stored.height / whole.height)
        left = round(self.left * stored.width / whole.width)
        bottom = round((self.top + self.height) * stored.height / whole.height)
        right = round((self.left + self.width) * stored.width / whole.width)
        return Box(top, left, max(bottom - top, 1), max(right - left, 1))


class CropPlan(NamedTuple):
    """One look at a picture: cut out the part, resize it, keep the window, perhaps mirror it."""

    part: Box
    resized: Size
    window: Box
    mirrored: bool
    filter: Filter

    def need(self, whole: Size) -> Size:
        """The rows and columns of the whole picture from which the part need not be enlarged."""
        rows = ceil(whole.height * self.resized.height / self.part.height)
        columns = ceil(whole.width * self.resized.width / self.part.width)
        return Size(rows, columns)


class Crops(NamedTuple):
    """Parts of many pictures of one size, each to be resized to the model's image."""

    boxes: NDArray[np.int64]  # (pictures, 4), each a Box
    mirrored: NDArray[np.bool_]  # (pictures,)


class Resize(Config):
    """The whole picture, resized to the model's image whatever its shape: the paper's evaluation."""

    draws: ClassVar[int] = 0  # uniform numbers drawn for each image

    kind: Literal["resize"] = "resize"
    filter: Filter = "bilinear"

    def crops(self, whole: Size, uniforms: NDArray[np.float64]) -> Crops:
        """What is seen of as many pictures as there are rows of uniforms, (pictures, uniforms)."""
        boxes = np.tile(np.array(Box(0, 0, *whole)), (len(uniforms), 1))
        return Crops(boxes, np.zeros(len(uniforms), dtype=np.bool_))

    def outputs(self, image: Size) -> tuple[Size, ...]:
        return (image,)

    def glimpse(self, whole: Size, image: Size) -> CropPlan:
        return CropPlan(Box(0, 0, *whole), image, Box(0, 0, *image), False, self.filter)

    def glimpses(self, whole: Size, image: Size, rng: np.random.Generator) -> tuple[CropPlan, ...]:
        return (self.glimpse(whole, image),)


class CenterCrop(Config):
    """The picture resized until `fraction` of its shorter side fills the image, and the middle of it."""

    kind: Literal["center"] = "center"
    fraction: Share = 0.875
    filter: Filter = "bilinear"

    def outputs(self, image: Size) -> tuple[Size, ...]:
        return (image,)

    def glimpse(self, whole: Size, image: Size) -> CropPlan:
        height, width = (int(side / self.fraction) for side in image)  # 224 / 0.875 = 256; halves are cut off, as usual
        if whole.height * width <= whole.width * height:  # the height is what binds
            resized = Size(height, max(int(height * whole.width / whole.height), width))
        else:
            resized = Size(max(int(width * whole.height / whole.width), height), width)
        top, left = (round((had - kept) / 2) for had, kept in zip(resized, image, strict=True))
        return CropPlan(Box(0, 0, *whole), resized, Box(top, left, *image), False, self.filter)

    def glimpses(self, whole: Size, image: Size, rng: np.random.Generator) -> tuple[CropPlan, ...]:
        return (self.glimpse(whole, image),)


class RandomResizedCrop(Config):
    """A part of random area and shape, half of the time mirrored: the paper's training."""

    draws: ClassVar[int] = 1 + 4 * ATTEMPTS  # uniform numbers drawn for each image

    kind: Literal["random_resized_crop"] = "random_resized_crop"
    area: tuple[Share, Share] = (0.05, 1.0)
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

    def outputs(self, image: Size) -> tuple[Size, ...]:
        return (image,)

    def crops(self, whole: Size, uniforms: NDArray[np.float64]) -> Crops:
        """What is seen of as many pictures as there are rows of uniforms, (pictures, uniforms)."""
        boxes = random_parts(whole, self.area, self.aspect, uniforms[:, 1:])
        return Crops(boxes, (uniforms[:, 0] < 0.5) & self.flip)

    def glimpses(self, whole: Size, image: Size, rng: np.random.Generator) -> tuple[CropPlan, ...]:
        boxes, mirrored = self.crops(whole, rng.random((1, self.draws)))
        return (CropPlan(Box(*boxes[0].tolist()), image, Box(0, 0, *image), bool(mirrored[0]), self.filter),)


class MultiCrop(Config):
    """Several large and small crops of one picture, for objectives that compare them (arXiv 2006.09882)."""

    kind: Literal["multi"] = "multi"
    large: int = Field(default=2, ge=1)
    small: int = Field(default=6, ge=0)
    small_image: Size = Size(96, 96)
    border: Share = 0.32  # small crops have less than this area, large ones more
    filter: Filter = "bicubic"

    def outputs(self, image: Size) -> tuple[Size, ...]:
        return (image,) * self.large + (self.small_image,) * self.small

    def glimpses(self, whole: Size, image: Size, rng: np.random.Generator) -> tuple[CropPlan, ...]:
        large = RandomResizedCrop(area=(self.border, 1.0), filter=self.filter)
        small = RandomResizedCrop(area=(0.05, self.border), filter=self.filter)
        crops = [(large, image)] * self.large + [(small, self.small_image)] * self.small
        return tuple(view.glimpses(whole, size, rng)[0] for view, size in crops)


CropConfig = Annotated[Resize | CenterCrop | RandomResizedCrop | MultiCrop, Field(discriminator="kind")]
EvalCropConfig = Annotated[Resize | CenterCrop, Field(discriminator="kind")]  # without chance: for evaluation


def random_parts(
    whole: Size, area: tuple[float, float], aspect: tuple[float, float], uniforms: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Boxes of uniform area and log-uniform shape, (pictures, 4), by four uniforms for each of the attempts.

    The first attempt that fits counts; where none does, the largest box of allowed shape in the middle.
    """
    sizes, shapes, tops, lefts = uniforms.reshape(len(uniforms), -1, 4).transpose(2, 0, 1)  # each (pictures, attempts)
    pixels = whole.height * whole.width * (area[0] + (area[1] - area[0]) * sizes)
    ratios = np.exp(log(aspect[0]) + log(aspect[1] / aspect[0]) * shapes)  # width by height
    heights, widths = np.rint(np.sqrt(pixels / ratios)), np.rint(np.sqrt(pixels * ratios))
    boxes = (tops * (whole.height - heights + 1), lefts * (whole.width - widths + 1), heights, widths)
    fits = (heights > 0) & (heights <= whole.height) & (widths > 0) & (widths <= whole.width)
    first = fits.argmax(axis=1)[:, None]
    found = np.stack([np.take_along_axis(side, first, axis=1)[:, 0] for side in boxes], axis=1).astype(np.int64)
    fitting: NDArray[np.bool_] = np.take_along_axis(fits, first, axis=1)  # (pictures, 1)
    return np.where(fitting, found, np.array(_middle(whole, aspect)))


def _middle(whole: Size, aspect: tuple[float, float]) -> Box:
    ratio = min(max(whole.width / whole.height, aspect[0]), aspect[1])
    height = min(whole.height, round(whole.width / ratio))
    width = min(whole.width, round(whole.height * ratio))
    return Box((whole.height - height) // 2, (whole.width - width) // 2, height, width)
