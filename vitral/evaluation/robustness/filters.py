"""Filters of arrays with the borders and the interpolation of SciPy and OpenCV, computed in float64.

H rows, W columns, C channels; images are (H, W, C).
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Fold = Callable[[Indices, int], Indices]  # indices outside of so many pixels, as those of pixels inside


def nearest(index: Indices, size: int) -> Indices:
    """Beyond the border stands the last pixel: a a a|a b c d."""
    return np.clip(index, 0, size - 1)


def mirror(index: Indices, size: int) -> Indices:
    """Beyond the border the image is mirrored with its last pixel: c b a|a b c d (`reflect` of SciPy)."""
    folded = index % (2 * size)
    return np.minimum(folded, 2 * size - 1 - folded)


def mirror_inside(index: Indices, size: int) -> Indices:
    """Beyond the border the image is mirrored without its last pixel: d c b|a b c d (`reflect101` of OpenCV)."""
    if size == 1:
        return np.zeros_like(index)
    folded = index % (2 * size - 2)
    return np.minimum(folded, 2 * size - 2 - folded)


def gaussian(image: Floats, sigma: float, truncate: float = 4.0, fold: Fold = nearest) -> Floats:
    """Gaussian blur; the kernel ends at so many standard deviations."""
    rows, columns = (_gaussian_matrix(side, sigma, truncate, fold) for side in image.shape[:2])
    found: Floats = np.tensordot(rows, image, axes=1).transpose(0, 2, 1) @ columns.T
    return found.transpose(0, 2, 1)  # (H, W, C)


@lru_cache(maxsize=32)
def _gaussian_matrix(size: int, sigma: float, truncate: float, fold: Fold) -> Floats:
    """The blur of one axis as a matrix (size, size)."""
    radius = int(truncate * sigma + 0.5)
    offsets = np.arange(-radius, radius + 1)
    kernel = np.exp(-0.5 * (offsets / max(sigma, 1e-15)) ** 2)
    matrix = np.zeros((size, size))
    places = fold(np.arange(size)[:, None] + offsets, size)  # (size, taps)
    np.add.at(matrix, (np.arange(size)[:, None], places), kernel / kernel.sum())
    return matrix


def correlate(image: Floats, kernel: Floats) -> Floats:
    """Correlation of each channel with a kernel of odd sides, as `filter2D` of OpenCV."""
    height, width = image.shape[:2]
    down, right = (side // 2 for side in kernel.shape)
    rows = mirror_inside(np.arange(-down, height + down), height)
    columns = mirror_inside(np.arange(-right, width + right), width)
    padded = image[rows][:, columns]
    spectrum = np.fft.rfft2(padded, axes=(0, 1)) * np.fft.rfft2(kernel[::-1, ::-1], padded.shape[:2])[..., None]
    found: Floats = np.fft.irfft2(spectrum, padded.shape[:2], axes=(0, 1))[2 * down :, 2 * right :]
    return found  # (H, W, C)


def disk(radius: float, blur: float) -> Floats:
    """The kernel of a lens out of focus: a disk whose border is smoothed, (side, side)."""
    half, taps = (8, 3) if radius <= 8 else (int(radius), 5)
    places = np.arange(-half, half + 1)
    inside = (places[:, None] ** 2 + places**2 <= radius**2).astype(np.float64)
    smooth = np.exp(-0.5 * ((np.arange(taps) - taps // 2) / blur) ** 2)
    smooth /= smooth.sum()
    return correlate((inside / inside.sum())[..., None], np.outer(smooth, smooth))[..., 0]


def zoom(image: Floats, factor: float) -> Floats:
    """The image enlarged by linear interpolation, as `scipy.ndimage.zoom` with corners on corners."""
    wide = np.swapaxes(_zoom_rows(np.swapaxes(_zoom_rows(image, factor), 0, 1), factor), 0, 1)
    return wide


def _zoom_rows(image: Floats, factor: float) -> Floats:
    """The zoom of the first axis. Where rounding puts a coordinate beyond the last pixel, SciPy has 0."""
    size, count = len(image), round(len(image) * factor)
    places = np.arange(count) * ((size - 1) / max(count - 1, 1))
    first = np.minimum(np.floor(places).astype(np.int64), size - 1)
    share = (places - first)[:, None, None]
    found: Floats = image[first] * (1 - share) + image[np.minimum(first + 1, size - 1)] * share
    found[places > size - 1] = 0
    return found


def clipped_zoom(image: Floats, factor: float) -> Floats:
    """The middle of the image, enlarged to at least its size."""
    (top, rows), (left, columns) = (_middle(side, factor) for side in image.shape[:2])
    return zoom(image[top : top + rows, left : left + columns], factor)


def _middle(side: int, factor: float) -> tuple[int, int]:
    count = int(np.ceil(side / factor))
    return (side - count) // 2, count


def motion_blur(image: Floats, radius: int, sigma: float, degrees: float) -> Floats:
    """The image and its copies shifted along a line, weighted by half a Gaussian, in whole pixels."""
    (height, width), count = image.shape[:2], 2 * radius + 1
    weights = np.exp(-0.5 * (np.arange(count) / sigma) ** 2)
    weights /= weights.sum()
    down, right = np.sin(np.deg2rad(degrees)), np.cos(np.deg2rad(degrees))
    length = np.hypot(count * down, count * right)
    found = np.zeros(image.shape)
    for step, weight in enumerate(weights):
        dy, dx = (-int(np.ceil(step * (count * part) / length - 0.5)) for part in (down, right))
        if abs(dy) >= height or abs(dx) >= width:
            break  # the copy has left the image
        rows, columns = nearest(np.arange(height) - dy, height), nearest(np.arange(width) - dx, width)
        found += weight * image[rows][:, columns]
    return found


def sample(image: Floats, rows: Floats, columns: Floats, fold: Fold) -> Floats:
    """The image at these coordinates, each (H, W), by bilinear interpolation."""
    top, left = np.floor(rows), np.floor(columns)
    down, right = (rows - top)[..., None], (columns - left)[..., None]
    y0, y1 = (fold(top.astype(np.int64) + step, image.shape[0]) for step in (0, 1))
    x0, x1 = (fold(left.astype(np.int64) + step, image.shape[1]) for step in (0, 1))
    upper = image[y0, x0] * (1 - right) + image[y0, x1] * right
    lower = image[y1, x0] * (1 - right) + image[y1, x1] * right
    found: Floats = upper * (1 - down) + lower * down
    return found
