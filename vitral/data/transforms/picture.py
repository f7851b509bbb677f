"""Pixels as Pillow's images and back: Pillow is the engine of most operations.  H rows, W columns, C channels."""

import numpy as np
from PIL import Image

from vitral.data.decoder.depth import Pixels
from vitral.errors import ConfigError

MODES = {1: "L", 3: "RGB"}


def check_channels(pixels: Pixels) -> None:
    """Refuse what is neither grey nor colour: brightness, saturation and Pillow's modes mean nothing there."""
    channels = pixels.shape[-1]
    if channels not in MODES:
        what = f"expected images of 1 or 3 channels, found {channels}"
        remedy = "use random_erasing alone, or decode to grey or colour"
        raise ConfigError(what, code="config.unsupported", where="augment", remedy=remedy)


def picture(pixels: Pixels) -> Image.Image:
    """The same image for Pillow, which may share the memory and must not write to it."""
    check_channels(pixels)
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def pixels_of(image: Image.Image) -> Pixels:
    """The pixels of a grey or colour image in an array of their own, (H, W, C)."""
    pixels: Pixels = np.array(image)  # a copy: torch warns of arrays that cannot be written to
    return pixels[..., None] if pixels.ndim == 2 else pixels
