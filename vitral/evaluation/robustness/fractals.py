"""Random textures for fog and frost."""

import numpy as np

from vitral.evaluation.robustness.filters import Floats, gaussian

FROST_MEAN, FROST_STD = np.array([146.0, 167.0, 179.0]), 27.0  # of red, green and blue; and of each of them


def plasma(side: int, decay: float, rng: np.random.Generator) -> Floats:
    """A height map of the diamond-square algorithm from 0 to 1, (side, side); the side is a power of two.

    Every halving of the distance divides the noise by `decay`: the larger it is, the smoother the map.
    """
    height, step, noise = np.zeros((side, side)), side, 100.0

    def middle(total: Floats) -> Floats:
        return total / 4 + noise * rng.uniform(-noise, noise, total.shape)

    while step >= 2:
        half, corners = step // 2, height[::step, ::step]
        sums = corners + np.roll(corners, -1, axis=0)
        height[half::step, half::step] = middle(sums + np.roll(sums, -1, axis=1))
        centers = height[half::step, half::step]
        above = centers + np.roll(centers, 1, axis=0) + corners + np.roll(corners, -1, axis=1)
        height[::step, half::step] = middle(above)
        beside = centers + np.roll(centers, 1, axis=1) + corners + np.roll(corners, -1, axis=0)
        height[half::step, ::step] = middle(beside)
        step, noise = half, noise / decay
    height -= height.min()
    found: Floats = height / max(float(height.max()), 1e-300)  # a single pixel is flat
    return found


def next_power_of_two(side: int) -> int:
    """The smallest power of two that is at least this."""
    return 1 << (side - 1).bit_length()


def frost_texture(height: int, width: int, rng: np.random.Generator) -> Floats:
    """Ice on glass, bluish, 0 to 255, (height, width, 3): the ridges of height maps.

    ImageNet-C has photos of frost instead. The mean of each channel and its spread are about those of the photos.
    """
    side = next_power_of_two(max(height, width, 2))
    maps = [plasma(side, decay, rng)[:height, :width] for decay in (1.45, 1.2, 2.2)]
    ridges = [1 - np.abs(2 * each - 1) for each in maps]
    ice = (0.35 + 0.65 * maps[2]) * (ridges[0] ** 6 + 0.8 * ridges[1] ** 3)
    ice = gaussian(ice[..., None], 0.5)[..., 0]
    ice = (ice - ice.mean()) / max(float(ice.std()), 1e-9)
    return np.clip(FROST_MEAN + FROST_STD * ice[..., None], 0, 255)
