"""Images whose shapes stay and whose texture goes.  H rows, W columns, C channels; images are uint8 (H, W, C)."""

import numpy as np

from vitral.data.decoding.pixels import Pixels
from vitral.evaluation.robustness.corruptions import GRAY
from vitral.evaluation.robustness.filters import correlate

SOBEL = np.array([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]])


def stylize(image: Pixels, style: Pixels, strength: float) -> Pixels:
    """The image with the amplitudes of the Fourier transform of another; the phases, which hold the shapes, stay.

    A local stand-in for Stylized-ImageNet (arXiv 1811.12231), which needs paintings and a network.
    """
    own, other = np.fft.fft2(image, axes=(0, 1)), np.fft.fft2(style, axes=(0, 1))
    amplitudes = (1 - strength) * np.abs(own) + strength * np.abs(other)
    found = np.fft.ifft2(amplitudes * np.exp(1j * np.angle(own)), axes=(0, 1)).real
    return np.clip(np.round(found), 0, 255).astype(np.uint8)


def edges(image: Pixels) -> Pixels:
    """The edges alone, by Sobel's filters: white on black, the strongest of the image white."""
    gray = image @ GRAY[:, None] if image.shape[2] == 3 else image.astype(np.float64)
    strength = np.hypot(correlate(gray, SOBEL), correlate(gray, SOBEL.T))
    found = np.round(255 * strength / max(float(strength.max()), 1.0)).astype(np.uint8)
    return np.repeat(found, image.shape[2], axis=2)
