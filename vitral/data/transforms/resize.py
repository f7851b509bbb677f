"""Resizing: antialiased, on uint8, as torch does it, whose results are Pillow's to a level.

Where torch was not imported NumPy gives the same bytes: to answer for a picture, an export needs no more.
H rows, W columns, C channels.

Which old pixels make a new one, and what each counts: torch's antialiased resizing of bytes in whole numbers.
"""

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitral.core.config import Size
from vitral.core.imports import is_imported
from vitral.data.decoding.pixels import Pixels
from vitral.data.transforms.crop import Box, CropPlan, Filter

if TYPE_CHECKING:
    from torch import Tensor


REACH = {"bilinear": 1.0, "bicubic": 2.0}  # of the filters, in pixels
LARGEST = 2**15  # a weight is less than this
MOST_BITS = 22
REMEMBERED = 256  # lengths; most pictures of a folder have the same few


class Taps(NamedTuple):
    """How lines of pixels become others: the sum of pixels by weights, divided by 2 ** bits and rounded."""

    places: NDArray[np.int64]  # (T, new pixels), of old pixels
    weights: NDArray[np.int32]  # (T, new pixels), whole numbers
    bits: int


@lru_cache(REMEMBERED)
def taps(part: int, length: int, how: Filter) -> Taps:
    """The taps with which `part` pixels become `length`."""
    scale = part / length
    stretch = max(scale, 1.0)
    centers = (np.arange(length) + 0.5) * scale  # (new,)
    reach = stretch * REACH[how]
    first = np.floor(centers - reach + 0.5).clip(0)
    last = np.floor(centers + reach + 0.5).clip(None, part)
    places = first + np.arange((last - first).max())[:, None]  # (T, new)
    counts = np.where(places < last, _counts(np.abs(places - centers + 0.5) * (1.0 / stretch), how), 0.0)
    share = counts / counts.sum(axis=0)
    bits = sum(np.floor(share.max() * 2.0**bits + 0.5) < LARGEST for bits in range(1, MOST_BITS + 1))
    weights = np.sign(share) * np.floor(np.abs(share) * 2.0**bits + 0.5)
    return Taps(places.clip(None, part - 1).astype(np.int64), weights.astype(np.int32), int(bits))


def resized(pixels: Pixels, size: Size, how: Filter) -> Pixels:
    """The picture at another size, (H, W, C): first along the rows, then down the columns."""
    if pixels.shape[1] != size.width:
        pixels = _combined(pixels.swapaxes(0, 1), taps(pixels.shape[1], size.width, how)).swapaxes(0, 1)
    if pixels.shape[0] != size.height:
        pixels = _combined(pixels, taps(pixels.shape[0], size.height, how))
    return np.ascontiguousarray(pixels)


def _combined(lines: Pixels, found: Taps) -> Pixels:
    """New lines from old ones, along the first axis."""
    old = np.ascontiguousarray(lines).reshape(len(lines), -1)
    sums = np.full((found.weights.shape[1], old.shape[1]), 1 << (found.bits - 1), dtype=np.int32)  # a half, to round
    product = np.empty_like(sums)
    for places, weights in zip(found.places, found.weights, strict=True):
        np.multiply(old[places], weights[:, None], out=product)
        sums += product
    sums >>= found.bits
    return sums.clip(0, 255).astype(np.uint8).reshape(-1, *lines.shape[1:])


def _counts(x: NDArray[np.float64], how: Filter) -> NDArray[np.float64]:
    """What a pixel at a distance counts."""
    if how == "bilinear":
        return np.maximum(1.0 - x, 0.0)
    near = (x * 1.5 - 2.5) * x * x + 1.0
    far = (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))


def resize(pixels: Pixels, size: Size, how: Filter) -> Pixels:
    """The picture at another size, (H, W, C); every pixel counts when it shrinks."""
    if pixels.shape[:2] == size:
        return pixels
    if not is_imported("torch"):
        return resized(pixels, size, how)
    from torch.nn.functional import interpolate

    # Bicubic overshoots; on uint8 torch clamps by itself, as Pillow does.
    return _pixels(interpolate(_image(pixels), size=tuple(size), mode=how, antialias=True))


def mirror(pixels: Pixels) -> Pixels:
    """Left and right exchanged. NumPy's reversed view is slow to copy, pixel by pixel."""
    return _pixels(_image(pixels).flip(-1))


def cut(pixels: Pixels, box: Box) -> Pixels:
    """The pixels within the box."""
    return pixels[box.top : box.top + box.height, box.left : box.left + box.width]


def crop_and_resize(pixels: Pixels, whole: Size, glimpse: CropPlan) -> Pixels:
    """What the glimpse shows of a picture that is `whole` at full scale and may have been decoded at a smaller one."""
    part = glimpse.part.scaled(whole, Size(*pixels.shape[:2]))
    resized = resize(cut(pixels, part), glimpse.resized, glimpse.filter)
    window = cut(resized, glimpse.window)
    return mirror(window) if glimpse.mirrored else window


def _image(pixels: Pixels) -> "Tensor":
    """As torch wants images, (1, C, H, W), with channels last in memory, which its quick kernels ask for."""
    import torch

    return torch.from_numpy(pixels)[None].permute(0, 3, 1, 2)


def _pixels(image: "Tensor") -> Pixels:
    """As everything else wants them, (H, W, C)."""
    return image[0].permute(1, 2, 0).numpy()
