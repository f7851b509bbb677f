"""Photos to measure with: made up, but as hard to compress as real ones (500x375 at quality 90 takes about 50 KB)."""

from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def photo(height: int, width: int, seed: int) -> NDArray[np.uint8]:
    """Noise whose amplitude falls with frequency as in photographs, in colors that mostly agree, and an edge."""
    rng = np.random.default_rng(seed)
    down, across = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None]
    fall = 1 / np.maximum(np.hypot(down, across), 1 / max(height, width)) ** 1.5
    layers = []
    for strength in (1.0, 0.25, 0.25):  # one of light, two of color
        waves = rng.normal(size=fall.shape) + 1j * rng.normal(size=fall.shape)
        layer = np.fft.irfft2(waves * fall, s=(height, width))
        layers.append(strength * layer / layer.std())
    light, red, blue = layers
    light[: height // 2] += rng.normal()
    colors = np.stack([light + red, light - (red + blue) / 2, light + blue], axis=-1)
    return np.clip(128 + 48 * colors, 0, 255).astype(np.uint8)


def jpeg(height: int, width: int, seed: int, quality: int = 90) -> bytes:
    stream = BytesIO()
    Image.fromarray(photo(height, width, seed)).save(stream, "JPEG", quality=quality)
    return stream.getvalue()
