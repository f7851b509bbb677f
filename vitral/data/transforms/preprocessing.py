"""Preprocessing: from the bytes of a file to the numbers a model was trained on, recorded with its weights.

B images, C channels, H rows, W columns.
"""

import os
from typing import TYPE_CHECKING, Annotated, Protocol, Self

import numpy as np
from pydantic import Field, model_validator

from vitral.core.config import Config, Size
from vitral.core.errors import ConfigError
from vitral.data.decoding.decode import ImageDecoder, decode_image
from vitral.data.decoding.header import Decoding
from vitral.data.decoding.image_objects import ImageLike, image_bytes
from vitral.data.decoding.pixels import Pixels
from vitral.data.transforms.crop import CropPlan, EvalCropConfig, Resize
from vitral.data.transforms.resize import crop_and_resize

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Normalize(Config):
    """(x / 255 - mean) / std, with one number for all channels or one for each. The default is the paper's [-1, 1]."""

    mean: tuple[float, ...] = (0.5,)
    std: tuple[Annotated[float, Field(gt=0)], ...] = (0.5,)

    @model_validator(mode="after")
    def _agree(self) -> "Normalize":
        if not self.mean or len(self.mean) != len(self.std):
            raise ValueError(f"expected as many values of std as of mean, got {len(self.std)} and {len(self.mean)}")
        return self

    def per_channel(self, channels: int) -> "Normalize":
        """The same with one number for each channel."""
        if len(self.mean) > 1:
            return self
        return Normalize(mean=self.mean * channels, std=self.std * channels)

    def apply(self, images: "Tensor") -> "Tensor":
        """uint8 images as float32, (B, C, H, W)."""
        import torch

        assert images.dtype == torch.uint8, "floats would be changed in place"
        numbers = images.to(torch.float32, memory_format=torch.contiguous_format)
        mean, std = _for_bytes(self.mean, images.device), _for_bytes(self.std, images.device)
        return numbers.sub_(mean).div_(std)  # (B, C, H, W)

    def prepare(self, images: "Tensor") -> "Tensor":
        """Images of a batch as the model's input: uint8 normalized, floats as they are."""
        return images if images.is_floating_point() else self.apply(images)

    def restore(self, images: "Tensor") -> "Tensor":
        """Undo `apply`: the levels of float32 images (..., C, H, W), rounded, as float32."""
        mean, std = _for_bytes(self.mean, images.device), _for_bytes(self.std, images.device)
        return (images * std + mean).round()


def _for_bytes(numbers: tuple[float, ...], device: "torch.device") -> "Tensor":
    """Numbers in units of 1/255, (C, 1, 1) or (1, 1, 1)."""
    import torch

    return torch.tensor([255 * number for number in numbers], device=device).view(-1, 1, 1)


CENTERED = Normalize()
IMAGENET = Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


class Preprocessing(Config):
    """What evaluation, prediction and serving do to an image; training differs only in its crop and augmentation.

    It is a function of an image, and the transform of any torch `Dataset`: `tensor = preprocessing("cat.jpg")`.
    """

    image_size: Size = Size(224, 224)
    decoding: Decoding = Decoding()
    crop: EvalCropConfig = Resize()
    normalize: Normalize = CENTERED
    external: bool = False  # the model was trained on tensors of a user's own transform, so files cannot be read

    @model_validator(mode="after")
    def _fit(self) -> "Preprocessing":
        numbers, channels = len(self.normalize.mean), self.decoding.channels
        if numbers not in {1, channels}:
            raise ValueError(f"normalize.mean: expected 1 number or one for each of {channels} channels, got {numbers}")
        return self

    def with_decoding(self, **changes: object) -> Self:
        """The same with other fields of the decoding."""
        return self.model_copy(update={"decoding": self.decoding.model_copy(update=changes)})

    def __call__(self, image: ImageLike) -> "Tensor":
        """The model's input (C, H, W), float32, for a path, the bytes of a file, a PIL image or an array (H, W, C)."""
        name = image_name(image)
        return self.tensor(image_bytes(image, name, self.decoding.channels), name)[0]

    def pixels(self, data: bytes, name: str, decode: ImageDecoder = decode_image) -> Pixels:
        """The image in the bytes of a file at the model's input size, (H, W, C)."""
        self.check_readable(name)
        decoded = decode(data, name, self.decoding, lambda size: self._plan(size).min_size(size))
        return crop_and_resize(decoded.pixels, decoded.header.size, self._plan(decoded.header.size))

    def check_readable(self, name: str) -> None:
        """Raise ConfigError if files cannot be read as the model's input."""
        if self.external:
            message = "the model was trained on tensors of your own transform, so it cannot read image files"
            hint = "pass tensors, or save it with a transform: vitral.save(model, OUT, classes=..., transform=...)"
            raise ConfigError(message, code="config.external_transform", where=name, hint=hint)

    def _plan(self, size: Size) -> CropPlan:
        return self.crop.plan(size, self.image_size)

    def tensor(self, data: bytes, name: str) -> "Tensor":
        """The image in the bytes of a file as the model's input, (1, C, H, W)."""
        import torch

        pixels = torch.from_numpy(np.ascontiguousarray(self.pixels(data, name)))
        return self.normalize.apply(pixels.permute(2, 0, 1)[None])


def image_name(image: object) -> str:
    """What messages and predictions call an image: its path, or `image`."""
    return os.fspath(image) if isinstance(image, str | os.PathLike) else "image"


class Decodable(Protocol):
    """An image with a known size that is decoded on demand."""

    @property
    def size(self) -> Size:
        """Height and width at full scale."""
        ...

    def pixels(self, min_size: Size) -> Pixels:
        """The image, (H, W, C), at a scale of at least `min_size` if it is that large."""
        ...


def decode_and_crop(image: Decodable, plan: CropPlan) -> Pixels:
    """The planned crop of an image, which is decoded at the smallest sufficient scale, (H, W, C)."""
    return crop_and_resize(image.pixels(plan.min_size(image.size)), image.size, plan)
