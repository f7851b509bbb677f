"""Many small pictures of one size, cut and resized at once: the bits that `see` gives for each.

A line of pixels is resized by a matrix of whole numbers, 2 ** bits times the weights, and the sums rounded, first along
the rows and then down the columns: what torch does with uint8. Whole numbers of this size are exact in floats, so that
two products of matrices do it for all pictures together.  B pictures, H rows, W columns, C channels.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitral.core.config import Size
from vitral.data.decoding.pixels import Pixels
from vitral.data.transforms.crop import Crops, Filter

REACH = {"bilinear": 1.0, "bicubic": 2.0}  # of the filters, in pixels
SHARPNESS = -0.5  # the free number of bicubic interpolation, as Pillow has it
LARGEST = 2**15  # a weight is less than this


class Resizing(NamedTuple):
    """How parts of every length up to `longest` are resized to one length."""

    weights: Tensor  # (longest + 1, length, longest): whole numbers
    units: Tensor  # (longest + 1, 1, 1, 1): what a whole number stands for, a power of two


def crop_and_resize_batch(pictures: Pixels, rows: NDArray[np.int64], crops: Crops, image: Size, how: Filter) -> Tensor:
    """What the crops, one of each picture that the rows name, show at the size of the image, (B, C, H, W), uint8.

    Pictures are (pictures, H, W, C).
    """
    high, wide, channels = pictures.shape[1:]
    tops, lefts, heights, widths = crops.boxes.T[:, :, None]  # each (B, 1)
    down = np.minimum(tops + np.arange(high), high - 1) + rows[:, None] * high  # (B, H): of all lines of all pictures
    along = np.minimum(lefts + np.arange(wide), wide - 1)  # (B, W); past the end of a part the weights are zero
    places = down[:, :, None] * wide + along[:, None, :]  # (B, H, W)
    flat = pictures.reshape(-1) if channels == 1 else pictures.reshape(-1, channels)  # NumPy is slow with sides of 1
    cut = torch.from_numpy(flat.take(places, axis=0).reshape(-1, high, wide, channels)).permute(0, 3, 1, 2)
    if bool((widths == image.width).all() and (heights == image.height).all() and not crops.mirrored.any()):
        return cut[:, :, : image.height, : image.width]  # as evaluation sees pictures of the model's own size
    across, upright = resizing(wide, image.width, how), resizing(high, image.height, how)
    levels = cut.to(across.weights.dtype, memory_format=torch.contiguous_format)  # (B, C, H, W)
    by_width, by_height = torch.from_numpy(widths[:, 0]), torch.from_numpy(heights[:, 0])
    levels = _rounded(levels @ across.weights[by_width].mT[:, None], across, by_width)  # (B, C, H, image.width)
    levels = levels.to(upright.weights.dtype)
    seen = _rounded(upright.weights[by_height][:, None] @ levels, upright, by_height).to(torch.uint8)  # (B, C, *image)
    mirrored = torch.from_numpy(crops.mirrored).nonzero()[:, 0]
    seen[mirrored] = seen[mirrored].flip(-1)
    return seen


def _rounded(sums: Tensor, resizing: Resizing, lengths: Tensor) -> Tensor:
    """The nearest level for each sum (B, C, H, W) of levels that counted as the matrices for these lengths (B,) say."""
    return sums.mul_(resizing.units[lengths]).add_(0.5).floor_().clamp_(0, 255)


@cache
def resizing(longest: int, length: int, how: Filter) -> Resizing:
    """The matrices for parts of lines of `longest` pixels."""
    weights, bits = np.zeros((longest + 1, length, longest)), np.zeros(longest + 1)
    for part in range(1, longest + 1):
        weights[part, :, :part], bits[part] = _whole(_weights(part, length, how))
    exact = torch.float32 if bits.max() <= 15 else torch.float64  # 255 x 2 ** 15 is below 2 ** 24, and a bit for signs
    return Resizing(torch.tensor(weights, dtype=exact), torch.tensor(2.0**-bits, dtype=exact)[:, None, None, None])


def _weights(part: int, length: int, how: Filter) -> NDArray[np.float64]:
    """What each pixel of a part counts in each of the new pixels, (length, part); every one counts when it shrinks."""
    scale = part / length
    stretch = max(scale, 1.0)
    centers = scale * (np.arange(length) + 0.5)
    firsts = np.maximum((centers - REACH[how] * stretch + 0.5).astype(np.int64), 0)
    ends = np.minimum((centers + REACH[how] * stretch + 0.5).astype(np.int64), part)
    pixels = np.arange(part)
    distances = np.abs(pixels - centers[:, None] + 0.5) * (1 / stretch)
    within = (pixels >= firsts[:, None]) & (pixels < ends[:, None])
    weights = np.where(within, FILTERS[how](distances), 0.0)
    return weights / weights.sum(axis=1, keepdims=True)


def _triangle(distances: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.maximum(1 - distances, 0.0)


def _cubic(x: NDArray[np.float64]) -> NDArray[np.float64]:
    near = ((SHARPNESS + 2) * x - (SHARPNESS + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * SHARPNESS
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


FILTERS = {"bilinear": _triangle, "bicubic": _cubic}


def _whole(weights: NDArray[np.float64]) -> tuple[NDArray[np.float64], int]:
    """The weights as whole numbers, with as many bits as the largest leaves room for."""
    bits = 0
    while bits < 22 and int(0.5 + weights.max() * 2 ** (bits + 1)) < LARGEST:
        bits += 1
    return np.trunc(weights * 2**bits + np.copysign(0.5, weights)), bits
