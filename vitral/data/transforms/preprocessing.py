"""Preprocessing: what a model needs done to a file before it sees it, recorded with its weights."""

from typing import TYPE_CHECKING, Protocol

import numpy as np
from pydantic import model_validator

from vitral.config import Config, Size
from vitral.data.decoder.decode import opened
from vitral.data.decoder.depth import Pixels
from vitral.data.decoder.header import Decoding
from vitral.data.transforms.resize import see
from vitral.data.transforms.scaling import CENTRED, Scaling
from vitral.data.transforms.view import Glimpse, PlainResize, StillView

if TYPE_CHECKING:
    from torch import Tensor


class Preprocessing(Config):
    """The same for evaluation, prediction and serving; training differs in its view alone."""

    image: Size = Size(224, 224)
    decoding: Decoding = Decoding()
    view: StillView = PlainResize()
    scaling: Scaling = CENTRED

    @model_validator(mode="after")
    def _fit(self) -> "Preprocessing":
        numbers, channels = len(self.scaling.mean), self.decoding.channels
        if numbers not in {1, channels}:
            raise ValueError(f"scaling: expected 1 mean or one for each of {channels} channels, got {numbers}")
        return self

    def pixels(self, data: bytes, name: str) -> Pixels:
        """The image in the bytes of a file as the model sees it, (H, W, C)."""
        picture = opened(data, name, self.decoding)
        return sights(picture, (self.view.glimpse(picture.size, self.image),))[0]

    def tensor(self, data: bytes, name: str) -> "Tensor":
        """The image in the bytes of a file as numbers for the model, (1, C, H, W)."""
        import torch

        pixels = torch.from_numpy(np.ascontiguousarray(self.pixels(data, name)))
        return self.scaling.apply(pixels.permute(2, 0, 1)[None])


class Picture(Protocol):
    """A picture that has a size and, once decoded, pixels."""

    @property
    def size(self) -> Size:
        """Height and width at full scale."""
        ...

    def pixels(self, need: Size) -> Pixels:
        """The picture, (H, W, C), with no fewer rows and columns than needed if it has as many."""
        ...


def sights(picture: Picture, glimpses: tuple[Glimpse, ...]) -> list[Pixels]:
    """What each glimpse shows of the picture, which is decoded once, at a scale that serves them all."""
    needs = [glimpse.need(picture.size) for glimpse in glimpses]
    need = Size(max(need.height for need in needs), max(need.width for need in needs))
    pixels = picture.pixels(need)
    return [see(pixels, picture.size, glimpse) for glimpse in glimpses]
