"""Crop and resize: antialiased, on uint8, with the bytes that torch's `interpolate` gives; Pillow's differ by a level.

A line of pixels is resized by whole numbers, 2 ** bits times the weights of the filter, and the sums are rounded, first
along the rows and then along the columns. There is one table of weights and three ways to apply it, which agree to the
bit: torch's own kernel for one image, NumPy where torch is not imported (an export predicts without it), and one matrix
product for a batch of small images of one size.  B images, H rows, W columns, C channels, T taps.
"""

from functools import cache, lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitral.core.config import Size
from vitral.core.imports import is_imported
from vitral.data.decoding.pixels import Pixels, bands
from vitral.data.transforms.crop import Box, CropBatch, CropPlan, Filter, PaddingMode, ShiftBatch

if TYPE_CHECKING:
    from torch import Tensor

RADIUS = {"bilinear": 1.0, "bicubic": 2.0}  # of the filters, in pixels
WEIGHT_LIMIT = 2**15  # a weight is less than this
MAX_BITS = 22


class Taps(NamedTuple):
    """New pixels as sums of old pixels by weights, divided by 2 ** bits and rounded."""

    indices: NDArray[np.int64]  # (T, new pixels), of old pixels
    weights: NDArray[np.int32]  # (T, new pixels)
    bits: int

    def matrix(self, old: int) -> NDArray[np.float64]:
        """The weights of every old pixel in every new one, (new pixels, old)."""
        matrix = np.zeros((self.weights.shape[1], old))
        np.add.at(matrix, (np.arange(len(matrix)), self.indices), self.weights)
        return matrix


@lru_cache(256)  # most images of a folder have the same few sizes
def resize_taps(old: int, new: int, filter: Filter) -> Taps:
    """The taps that resize a line of `old` pixels to `new`; every old pixel counts when it shrinks."""
    scale = old / new
    stretch = max(scale, 1.0)
    centers = (np.arange(new) + 0.5) * scale  # (new,)
    radius = stretch * RADIUS[filter]
    first = np.floor(centers - radius + 0.5).clip(0)
    last = np.floor(centers + radius + 0.5).clip(None, old)
    indices = first + np.arange((last - first).max())[:, None]  # (T, new)
    values = np.where(indices < last, _filter(np.abs(indices - centers + 0.5) * (1.0 / stretch), filter), 0.0)
    values /= values.sum(axis=0)
    bits = sum(np.floor(values.max() * 2.0**bits + 0.5) < WEIGHT_LIMIT for bits in range(1, MAX_BITS + 1))
    weights = np.sign(values) * np.floor(np.abs(values) * 2.0**bits + 0.5)
    return Taps(indices.clip(None, old - 1).astype(np.int64), weights.astype(np.int32), int(bits))


def _filter(x: NDArray[np.float64], filter: Filter) -> NDArray[np.float64]:
    """The weight of a pixel at a distance; bicubic with a = -0.5, as in Pillow."""
    if filter == "bilinear":
        return np.maximum(1.0 - x, 0.0)
    near = (x * 1.5 - 2.5) * x * x + 1.0
    far = (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))


def resize(pixels: Pixels, size: Size, filter: Filter) -> Pixels:
    """The image at another size, (H, W, C)."""
    if pixels.shape[:2] == size:
        return pixels
    if not is_imported("torch"):
        return resize_with_numpy(pixels, size, filter)
    from torch.nn.functional import interpolate

    # Bicubic overshoots; on uint8 torch clamps by itself, as Pillow does.
    return _to_pixels(interpolate(_to_tensor(pixels), size=tuple(size), mode=filter, antialias=True))


def resize_with_numpy(pixels: Pixels, size: Size, filter: Filter) -> Pixels:
    """What `resize` gives, without torch."""
    if pixels.shape[1] != size.width:
        taps = resize_taps(pixels.shape[1], size.width, filter)
        narrow = np.empty((pixels.shape[0], size.width, pixels.shape[2]), dtype=np.uint8)
        for rows in bands(*pixels.shape[:2]):  # the whole of a large image would be copied
            narrow[rows] = _resize_lines(pixels[rows].swapaxes(0, 1), taps).swapaxes(0, 1)
        pixels = narrow
    if pixels.shape[0] != size.height:
        pixels = _resize_lines(pixels, resize_taps(pixels.shape[0], size.height, filter))
    return np.ascontiguousarray(pixels)


def _resize_lines(lines: Pixels, taps: Taps) -> Pixels:
    """New lines from old ones, along the first axis."""
    old = np.ascontiguousarray(lines).reshape(len(lines), -1)
    sums = np.full((taps.weights.shape[1], old.shape[1]), 1 << (taps.bits - 1), dtype=np.int32)  # a half, to round
    product = np.empty_like(sums)
    for indices, weights in zip(taps.indices, taps.weights, strict=True):
        np.multiply(old[indices], weights[:, None], out=product)
        sums += product
    sums >>= taps.bits
    return sums.clip(0, 255).astype(np.uint8).reshape(-1, *lines.shape[1:])


def crop_and_resize(pixels: Pixels, size: Size, plan: CropPlan) -> Pixels:
    """The planned crop of an image that has this size at full scale and may have been decoded at a smaller one."""
    box = plan.box.scaled(size, Size(*pixels.shape[:2]))
    window = cut_window(resize(pixels[box.slices], plan.resize_to, plan.filter), plan.window, plan.padding_mode)
    # NumPy's reversed view is slow to copy, pixel by pixel.
    return _to_pixels(_to_tensor(window).flip(-1)) if plan.flip else window


def cut_window(pixels: Pixels, window: Box, mode: PaddingMode) -> Pixels:
    """The part of an image in a window, which may reach out of it."""
    if window == window.clip(*pixels.shape[:2]):
        return pixels[window.slices]
    assert Size(*pixels.shape[:2]) == window[2:]
    shift = ShiftBatch(np.array([window[:2]]), np.zeros(1, dtype=np.bool_), mode)
    return shift_batch(pixels[None], np.zeros(1, dtype=np.int64), shift)[0]


def shift_batch(images: Pixels, rows: NDArray[np.int64], shifts: ShiftBatch) -> Pixels:
    """The images (images, H, W, C) that the rows name, each shifted and flipped: (B, H, W, C)."""
    height, width, channels = images.shape[1:]
    lines = shifts.corners[:, :1] + np.arange(height)  # (B, H)
    columns = shifts.corners[:, 1:] + np.arange(width)  # (B, W)
    columns[shifts.flips] = columns[shifts.flips, ::-1]
    if shifts.padding_mode == "reflect":
        lines, columns = (last - abs(last - abs(each)) for each, last in ((lines, height - 1), (columns, width - 1)))
    inside = [(each >= 0) & (each < side) for each, side in ((lines, height), (columns, width))]
    lines, columns = lines.clip(0, height - 1) + rows[:, None] * height, columns.clip(0, width - 1)
    indices = lines[:, :, None] * width + columns[:, None, :]  # (B, H, W)
    flat = images.reshape(-1) if channels == 1 else images.reshape(-1, channels)  # NumPy is slow with sides of 1
    cut = flat.take(indices, axis=0).reshape(-1, height, width, channels)
    if shifts.padding_mode == "constant":
        cut *= (inside[0][:, :, None] & inside[1][:, None, :])[..., None]
    return cut


def _to_tensor(pixels: Pixels) -> "Tensor":
    """(1, C, H, W) with channels last in memory, for which torch has fast kernels."""
    import torch

    return torch.from_numpy(pixels)[None].permute(0, 3, 1, 2)


def _to_pixels(image: "Tensor") -> Pixels:
    return image[0].permute(1, 2, 0).numpy()


class ResizeMatrices(NamedTuple):
    """The weights that resize lines of every length up to `longest` to one length, exact in floats."""

    weights: "Tensor"  # (longest + 1, new, longest): whole numbers
    units: "Tensor"  # (longest + 1, 1, 1, 1): 2 ** -bits


@cache
def resize_matrices(longest: int, new: int, filter: Filter) -> ResizeMatrices:
    """The matrices for crops of lines of `longest` pixels."""
    import torch

    weights, bits = np.zeros((longest + 1, new, longest)), np.zeros(longest + 1)
    for old in range(1, longest + 1):
        taps = resize_taps(old, new, filter)
        weights[old, :, :old], bits[old] = taps.matrix(old), taps.bits
    exact = torch.float32 if bits.max() <= 15 else torch.float64  # 255 x 2 ** 15 is below 2 ** 24, and a bit for signs
    units = torch.tensor(2.0**-bits, dtype=exact)[:, None, None, None]
    return ResizeMatrices(torch.tensor(weights, dtype=exact), units)


def crop_and_resize_batch(
    images: Pixels, rows: NDArray[np.int64], crops: CropBatch | ShiftBatch, image_size: Size, filter: Filter
) -> "Tensor":
    """The crops, one of each image (images, H, W, C) that the rows name, resized: (B, C, *image_size), uint8."""
    import torch

    height, width, channels = images.shape[1:]
    if isinstance(crops, ShiftBatch):
        if (height, width) != image_size:
            whole = CropBatch(np.tile(np.array((0, 0, height, width)), (len(rows), 1)), np.zeros(len(rows), np.bool_))
            resized = crop_and_resize_batch(images, rows, whole, image_size, filter)
            images, rows = resized.permute(0, 2, 3, 1).contiguous().numpy(), np.arange(len(rows))
        return torch.from_numpy(shift_batch(images, rows, crops)).permute(0, 3, 1, 2)
    tops, lefts, heights, widths = crops.boxes.T[:, :, None]  # each (B, 1)
    lines = np.minimum(tops + np.arange(height), height - 1) + rows[:, None] * height  # (B, H), of all images
    columns = np.minimum(lefts + np.arange(width), width - 1)  # (B, W); past the end of a crop the weights are zero
    indices = lines[:, :, None] * width + columns[:, None, :]  # (B, H, W)
    flat = images.reshape(-1) if channels == 1 else images.reshape(-1, channels)  # NumPy is slow with sides of 1
    cut = torch.from_numpy(flat.take(indices, axis=0).reshape(-1, height, width, channels)).permute(0, 3, 1, 2)
    if bool((widths == image_size.width).all() and (heights == image_size.height).all() and not crops.flips.any()):
        return cut[:, :, : image_size.height, : image_size.width]  # as in evaluation on images of the model's own size
    across, down = resize_matrices(width, image_size.width, filter), resize_matrices(height, image_size.height, filter)
    by_width, by_height = torch.from_numpy(widths[:, 0]), torch.from_numpy(heights[:, 0])
    levels = cut.to(across.weights.dtype, memory_format=torch.contiguous_format)  # (B, C, H, W)
    levels = _round_levels(levels @ across.weights[by_width].mT[:, None], across.units[by_width])
    levels = levels.to(down.weights.dtype)  # (B, C, H, image_size.width)
    levels = _round_levels(down.weights[by_height][:, None] @ levels, down.units[by_height])
    resized = levels.to(torch.uint8)  # (B, C, *image_size)
    flips = torch.from_numpy(crops.flips).nonzero()[:, 0]
    resized[flips] = resized[flips].flip(-1)
    return resized


def _round_levels(sums: "Tensor", units: "Tensor") -> "Tensor":
    """Sums (B, C, H, W) in these units (B, 1, 1, 1) as the nearest bytes, in place."""
    return sums.mul_(units).add_(0.5).floor_().clamp_(0, 255)
