"""Histograms of gradients as SlowFast computes them."""

from math import atan2, floor, hypot, pi

import torch
import torch.nn.functional as F
from torch import Tensor

from vitral.tasks.selfsupervised.targets.hog import gradient_histograms


def by_pixels(image: Tensor, cell: int, bins: int) -> Tensor:
    """Oracle: brute force, pixel by pixel, from the formula of SlowFast's `HOGLayerC`."""
    channels, height, width = image.shape
    x = F.pad(image[None], (1, 1, 1, 1), mode="reflect")[0].tolist()
    result = torch.zeros(channels, bins, height // cell, width // cell, dtype=image.dtype)
    smooth = (1, 2, 1)
    for channel in range(channels):
        for row in range(height):
            for column in range(width):
                near = [x[channel][row + down][column : column + 3] for down in range(3)]
                dx = sum(weight * (line[0] - line[2]) for weight, line in zip(smooth, near, strict=True))
                dy = sum(smooth[each] * (near[0][each] - near[2][each]) for each in range(3))
                place = floor(atan2(dx, dy) / pi * bins) % bins
                result[channel, place, row // cell, column // cell] += hypot(dx, dy)
    length = result.square().sum(dim=1, keepdim=True).sqrt()
    return result / length.clamp(min=1e-12)


def test_histograms_equal_those_counted_pixel_by_pixel() -> None:
    torch.manual_seed(0)
    images = torch.randn(2, 3, 16, 24, dtype=torch.float64)
    found = gradient_histograms(images, 8, 9)
    assert found.shape == (2, 3, 9, 2, 3)
    for image, histograms in zip(images, found, strict=True):
        torch.testing.assert_close(histograms, by_pixels(image, 8, 9), rtol=0, atol=1e-12)


def test_flat_cells_have_no_histogram_and_others_have_length_1() -> None:
    images = torch.zeros(1, 1, 16, 16)
    images[:, :, 12:] = 1.0
    lengths = gradient_histograms(images, 8, 9).square().sum(dim=2)
    torch.testing.assert_close(lengths, torch.tensor([[[[0.0, 0.0], [1.0, 1.0]]]]))
