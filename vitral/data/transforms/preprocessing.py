"""Preprocessing: what a model needs done to a file before it sees it, recorded with its weights.

From bytes to the numbers a model was trained on.  B images, C channels, H rows, W columns.
"""

from typing import TYPE_CHECKING, Annotated, Protocol

import numpy as np
from pydantic import Field, model_validator

from vitral.core.config import Config, Size
from vitral.data.decoding.decode import opened
from vitral.data.decoding.header import Decoding
from vitral.data.decoding.pixels import Pixels
from vitral.data.transforms.crop import CropPlan, EvalCropConfig, Resize
from vitral.data.transforms.resize import crop_and_resize

if TYPE_CHECKING:
    import torch
    from torch import Tensor


Positive = Annotated[float, Field(gt=0)]


class Normalize(Config):
    """(x / 255 - mean) / deviation; one number for all channels or one for each. The default is the paper's [-1, 1]."""

    mean: tuple[float, ...] = (0.5,)
    std: tuple[Positive, ...] = (0.5,)

    @model_validator(mode="after")
    def _agree(self) -> "Normalize":
        if not self.mean or len(self.mean) != len(self.std):
            raise ValueError(f"expected as many means as deviations, got {len(self.mean)} and {len(self.std)}")
        return self

    def over(self, channels: int) -> "Normalize":
        """The same, told with a number for each of so many channels."""
        if len(self.mean) > 1:
            return self
        return Normalize(mean=self.mean * channels, std=self.std * channels)

    def apply(self, images: "Tensor") -> "Tensor":
        """uint8 images as float32, (B, C, H, W)."""
        import torch

        assert images.dtype == torch.uint8, "numbers that are scaled already would be changed in place"
        numbers = images.to(torch.float32, memory_format=torch.contiguous_format)
        mean, deviation = of_bytes(self.mean, images.device), of_bytes(self.std, images.device)
        return numbers.sub_(mean).div_(deviation)  # (B, C, H, W)

    def restore(self, images: "Tensor") -> "Tensor":
        """The whole numbers that `apply` made these float32 images (..., C, H, W) from, as float32."""
        mean, deviation = of_bytes(self.mean, images.device), of_bytes(self.std, images.device)
        return (images * deviation + mean).round()


def of_bytes(numbers: tuple[float, ...], device: "torch.device") -> "Tensor":
    """Numbers for bytes rather than for parts of 255, (C, 1, 1) or (1, 1, 1)."""
    import torch

    return torch.tensor([255 * number for number in numbers], device=device).view(-1, 1, 1)


CENTERED = Normalize()
IMAGENET = Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


class Preprocessing(Config):
    """The same for evaluation, prediction and serving; training differs in its view alone."""

    image_size: Size = Size(224, 224)
    decoding: Decoding = Decoding()
    crop: EvalCropConfig = Resize()
    normalize: Normalize = CENTERED

    @model_validator(mode="after")
    def _fit(self) -> "Preprocessing":
        numbers, channels = len(self.normalize.mean), self.decoding.channels
        if numbers not in {1, channels}:
            raise ValueError(f"scaling: expected 1 mean or one for each of {channels} channels, got {numbers}")
        return self

    def pixels(self, data: bytes, name: str) -> Pixels:
        """The image in the bytes of a file as the model sees it, (H, W, C)."""
        picture = opened(data, name, self.decoding)
        return sights(picture, (self.crop.glimpse(picture.size, self.image_size),))[0]

    def tensor(self, data: bytes, name: str) -> "Tensor":
        """The image in the bytes of a file as numbers for the model, (1, C, H, W)."""
        import torch

        pixels = torch.from_numpy(np.ascontiguousarray(self.pixels(data, name)))
        return self.normalize.apply(pixels.permute(2, 0, 1)[None])


class Picture(Protocol):
    """A picture that has a size and, once decoded, pixels."""

    @property
    def size(self) -> Size:
        """Height and width at full scale."""
        ...

    def pixels(self, need: Size) -> Pixels:
        """The picture, (H, W, C), with no fewer rows and columns than needed if it has as many."""
        ...


def sights(picture: Picture, glimpses: tuple[CropPlan, ...]) -> list[Pixels]:
    """What each glimpse shows of the picture, which is decoded once, at a scale that serves them all."""
    needs = [glimpse.need(picture.size) for glimpse in glimpses]
    need = Size(max(need.height for need in needs), max(need.width for need in needs))
    pixels = picture.pixels(need)
    return [crop_and_resize(pixels, picture.size, glimpse) for glimpse in glimpses]
