"""A small picture with what photos have: smooth light, edges, strong colors, dark and bright parts, some noise."""

import numpy as np
from numpy.typing import NDArray

ROWS, COLUMNS = 24, 32


def scene(rows: int = ROWS, columns: int = COLUMNS) -> NDArray[np.uint8]:
    """Color, (rows, columns, 3): a sky, a sun, a red house on a meadow. No channel reaches 0 or 255."""
    down, across = np.mgrid[0:rows, 0:columns] / np.array([rows, columns])[:, None, None]  # each (H, W), 0 to 1
    sky = np.stack([90 + 80 * down, 140 + 60 * down, 225 - 40 * down], axis=-1)
    meadow = np.stack([50 + 40 * across, 130 - 50 * across, 45 + 10 * down], axis=-1)
    picture = np.where((down > 0.6)[..., None], meadow, sky)  # (H, W, 3)
    picture[(down - 0.2) ** 2 + (across - 0.75) ** 2 < 0.02] = (240, 215, 70)
    picture[(abs(down - 0.6) < 0.2) & (abs(across - 0.3) < 0.18)] = (180, 40, 35)
    picture[(abs(down - 0.65) < 0.1) & (abs(across - 0.32) < 0.06)] = (25, 20, 30)
    noise = np.random.default_rng(0).integers(-6, 7, picture.shape)
    return (picture + noise).clip(0, 255).astype(np.uint8)


def gray_scene() -> NDArray[np.uint8]:
    """The green of the scene alone, (rows, columns, 1)."""
    return scene()[..., 1:2].copy()
