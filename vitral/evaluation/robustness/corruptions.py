"""The 15 corruptions of ImageNet-C and CIFAR-10-C at 5 severities (arXiv 1903.12261), with their constants.

They agree with the package `imagecorruptions`, given the same random numbers, except for frost, whose texture is
generated. That package has no affine distortion in `elastic_transform`; here it is that of the original. Motion is in
whole pixels, as in that package: the original calls ImageMagick.

H rows, W columns, C channels; images are uint8 (H, W, C) of 1 or 3 channels. Lengths are in pixels of the images the
constants were made for: 224 wide (`imagenet`) or 32 (`cifar`).
"""

from collections.abc import Callable
from io import BytesIO
from typing import Literal

import numpy as np
from PIL import Image

from vitral.data.decoding.pixels import Pixels
from vitral.data.transforms.image_ops import from_pillow, to_pillow
from vitral.evaluation.robustness.filters import (
    Floats,
    clipped_zoom,
    correlate,
    disk,
    gaussian,
    mirror,
    mirror_inside,
    motion_blur,
    sample,
)
from vitral.evaluation.robustness.fractals import frost_texture, next_power_of_two, plasma

Constants = tuple[float, ...]
ConstantsName = Literal["imagenet", "cifar"]
Corruption = Callable[[Pixels, Constants, np.random.Generator], Floats | Pixels]
SEVERITIES = (1, 2, 3, 4, 5)
GRAY = np.array([0.299, 0.587, 0.114])  # brightness of red, green and blue


def corrupt(
    image: Pixels, name: str, severity: int, rng: np.random.Generator, constants: ConstantsName = "imagenet"
) -> Pixels:
    """A corrupted copy of an image (H, W, C)."""
    values = CONSTANTS[name][constants][severity - 1]
    return CORRUPTIONS[name](image, values, rng).astype(np.uint8)  # toward zero, as in the original


def _unit(image: Pixels) -> Floats:
    return image / 255.0


def _levels(image: Floats) -> Floats:
    found: Floats = np.clip(image, 0, 1) * 255
    return found


def gaussian_noise(image: Pixels, values: Constants, rng: np.random.Generator) -> Floats:
    """Noise of a normal distribution."""
    return _levels(_unit(image) + rng.normal(size=image.shape, scale=values[0]))


def shot_noise(image: Pixels, values: Constants, rng: np.random.Generator) -> Floats:
    """The noise of counting few photons."""
    return _levels(rng.poisson(_unit(image) * values[0]) / values[0])


def impulse_noise(image: Pixels, values: Constants, rng: np.random.Generator) -> Floats:
    """Salt and pepper: some levels become 0 or 255."""
    changed, salt = rng.random(image.shape) <= values[0], rng.random(image.shape) <= 0.5
    return np.where(changed, 255.0 * salt, image)


def defocus_blur(image: Pixels, values: Constants, rng: np.random.Generator) -> Floats:
    """A lens out of focus."""
    return _levels(correlate(_unit(image), disk(*values)))


def glass_blur(image: Pixels, values: Constants, rng: np.random.Generator) -> Floats:
    """Frosted glass: each pixel is replaced by one nearby, between two blurs.

    The original means to swap the two, but copies one onto the other.
    """
    (sigma, _, _), (_, reach, rounds) = values, map(int, values)
    blurred = (gaussian(_unit(image), sigma) * 255).astype(np.uint8)
    height, width = image.shape[:2]
    rows, columns = range(height - reach, reach, -1), range(width - reach, reach, -1)
    source = list(range(height * width))  # of each pixel
    for _ in range(rounds):
        moves = rng.integers(-reach, reach, size=(len(rows) * len(columns), 2))  # right, down
        steps = iter((moves[:, 1] * width + moves[:, 0]).tolist())
        for row in rows:
            for place in range(row * width + width - reach, row * width + reach, -1):
                source[place] = source[place + next(steps)]
    shuffled = blurred.reshape(-1, image.shape[2])[source].reshape(image.shape)
    return _levels(gaussian(_unit(shuffled), sigma))


def motion(image: Pixels, values: Constants, rng: np.random.Generator) -> Floats:
    """A camera that moves, at most 45 degrees from horizontally."""
    radius, sigma = values
    return np.clip(motion_blur(image.astype(np.float64), int(radius), sigma, rng.uniform(-45, 45)), 0, 255)


def zoom_blur(image: Pixels, values: Constants, rng: np.random.Generator) -> Floats:
    """A camera that moves toward the scene: the mean of the image and enlarged copies."""
    (height, width), factors = image.shape[:2], np.arange(*values)
    plain = _unit(image).astype(np.float32).astype(np.float64)
    layers = [clipped_zoom(plain, float(factor))[:height, :width] for factor in factors]
    return _levels((plain + sum(layers)) / (len(factors) + 1))


def snow(image: Pixels, values: Constants, rng: np.random.Generator) -> Floats:
    """Snowflakes that fall, over a paler image."""
    mean, std, zoom, threshold, radius, sigma, mix = values
    (height, width), plain = image.shape[:2], _unit(image)
    flakes = clipped_zoom(rng.normal(size=(height, width), loc=mean, scale=std)[..., None], zoom)
    flakes = np.clip(np.where(flakes < threshold, 0, flakes), 0, 1)
    flakes = motion_blur(flakes, int(radius), sigma, rng.uniform(-135, -45))
    flakes = np.round(flakes * 255).astype(np.uint8)[:height, :width] / 255.0
    gray = plain @ GRAY[:, None] if image.shape[2] == 3 else plain
    paler = mix * plain + (1 - mix) * np.maximum(plain, gray * 1.5 + 0.5)
    return _levels(paler + flakes + np.rot90(flakes, 2))


def frost(image: Pixels, values: Constants, rng: np.random.Generator) -> Floats:
    """Ice on the glass before the camera."""
    height, width, channels = image.shape
    ice = frost_texture(height, width, rng)
    return mix_frost(image, values, ice if channels == 3 else ice @ GRAY[:, None])


def mix_frost(image: Pixels, values: Constants, ice: Floats) -> Floats:
    """A weighted sum of the image and the texture of frost."""
    return np.clip(values[0] * image + values[1] * ice, 0, 255)


def fog(image: Pixels, values: Constants, rng: np.random.Generator) -> Floats:
    """Fog of varying density."""
    (thickness, decay), (height, width), plain = values, image.shape[:2], _unit(image)
    cloud = plasma(next_power_of_two(max(height, width)), decay, rng)[:height, :width, None]
    brightest = plain.max()
    return _levels((plain + thickness * cloud) * brightest / (brightest + thickness))


def brightness(image: Pixels, values: Constants, rng: np.random.Generator) -> Floats:
    """The largest channel of each pixel is raised, and the others in proportion: the value of HSV."""
    plain = _unit(image)
    value = plain.max(axis=2, keepdims=True)
    raised = np.clip(value + values[0], 0, 1)
    return _levels(np.where(value > 0, plain * raised / np.where(value > 0, value, 1), raised))


def contrast(image: Pixels, values: Constants, rng: np.random.Generator) -> Floats:
    """Levels closer to the mean of their channel."""
    plain = _unit(image)
    mean = plain.mean(axis=(0, 1), keepdims=True)
    return _levels((plain - mean) * values[0] + mean)


def elastic_transform(image: Pixels, values: Constants, rng: np.random.Generator) -> Floats:
    """A random affine distortion, then smooth random displacements."""
    strength, sigma, shift = values
    warped = affine(_unit(image), rng.uniform(-shift, shift, size=(3, 2)))
    return displace(warped, *(_displacement(image, sigma, strength, rng) for _ in range(2)))


def _displacement(image: Pixels, sigma: float, strength: float, rng: np.random.Generator) -> Floats:
    noise = rng.uniform(-1, 1, size=image.shape[:2])[..., None]
    return gaussian(noise, sigma, truncate=3, fold=mirror)[..., 0] * strength


def affine(image: Floats, moved: Floats) -> Floats:
    """Three points around the middle are moved by (right, down), (3, 2), and the image with them."""
    height, width = image.shape[:2]
    middle, reach = np.array([height // 2, width // 2]), min(height, width) // 3
    before = middle + np.array([[reach, reach], [reach, -reach], [-reach, -reach]])  # (3, 2)
    after = np.hstack([before + moved, np.ones((3, 1))])
    back = np.linalg.solve(after, before)  # (3, 2): from places in the result to those in the image
    rows, columns = np.mgrid[:height, :width].astype(np.float64)
    x, y = (columns * back[0, axis] + rows * back[1, axis] + back[2, axis] for axis in (0, 1))
    return sample(image, y, x, mirror_inside)


def displace(image: Floats, right: Floats, down: Floats) -> Floats:
    """Each pixel from the place that is so far to the right and down, each (H, W)."""
    rows, columns = np.mgrid[: image.shape[0], : image.shape[1]]
    return _levels(sample(image, rows + down, columns + right, mirror))


def pixelate(image: Pixels, values: Constants, rng: np.random.Generator) -> Pixels:
    """Fewer and larger pixels."""
    height, width = image.shape[:2]
    small = to_pillow(image).resize([max(1, int(side * values[0])) for side in (width, height)], Image.Resampling.BOX)
    return from_pillow(small.resize((width, height), Image.Resampling.NEAREST))


def jpeg_compression(image: Pixels, values: Constants, rng: np.random.Generator) -> Pixels:
    """The image as a JPEG of low quality; a gray one too is compressed in color."""
    stream, picture = BytesIO(), to_pillow(image)
    picture.convert("RGB").save(stream, "JPEG", quality=int(values[0]))
    return from_pillow(Image.open(stream).convert(picture.mode))


CORRUPTIONS: dict[str, Corruption] = {
    "gaussian_noise": gaussian_noise,
    "shot_noise": shot_noise,
    "impulse_noise": impulse_noise,
    "defocus_blur": defocus_blur,
    "glass_blur": glass_blur,
    "motion_blur": motion,
    "zoom_blur": zoom_blur,
    "snow": snow,
    "frost": frost,
    "fog": fog,
    "brightness": brightness,
    "contrast": contrast,
    "elastic_transform": elastic_transform,
    "pixelate": pixelate,
    "jpeg_compression": jpeg_compression,
}


def _single(*values: float) -> tuple[Constants, ...]:
    return tuple((value,) for value in values)


def _times(side: int, *values: Constants) -> tuple[Constants, ...]:
    return tuple(tuple(side * value for value in each) for each in values)


# Of each corruption the constants of the severities 1 to 5, for ImageNet-C and for CIFAR-10-C.
CONSTANTS: dict[str, dict[ConstantsName, tuple[Constants, ...]]] = {
    "gaussian_noise": {
        "imagenet": _single(0.08, 0.12, 0.18, 0.26, 0.38),
        "cifar": _single(0.04, 0.06, 0.08, 0.09, 0.10),
    },
    "shot_noise": {"imagenet": _single(60, 25, 12, 5, 3), "cifar": _single(500, 250, 100, 75, 50)},
    "impulse_noise": {
        "imagenet": _single(0.03, 0.06, 0.09, 0.17, 0.27),
        "cifar": _single(0.01, 0.02, 0.03, 0.05, 0.07),
    },
    "defocus_blur": {  # radius, blur of the disk
        "imagenet": ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
        "cifar": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    },
    "glass_blur": {  # sigma, reach, rounds
        "imagenet": ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
        "cifar": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    },
    "motion_blur": {  # radius, sigma
        "imagenet": ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
        "cifar": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    },
    "zoom_blur": {  # first factor, end, step
        "imagenet": ((1, 1.11, 0.01), (1, 1.16, 0.01), (1, 1.21, 0.02), (1, 1.26, 0.02), (1, 1.31, 0.03)),
        "cifar": ((1, 1.06, 0.01), (1, 1.11, 0.01), (1, 1.16, 0.01), (1, 1.21, 0.01), (1, 1.26, 0.01)),
    },
    "snow": {  # mean, std, zoom, threshold, radius, sigma, mix
        "imagenet": (
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ),
        "cifar": (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
    },
    "frost": {  # weight of the image, of the frost
        "imagenet": ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
        "cifar": ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    },
    "fog": {  # thickness, decay
        "imagenet": ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
        "cifar": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    },
    "brightness": {"imagenet": _single(0.1, 0.2, 0.3, 0.4, 0.5), "cifar": _single(0.05, 0.1, 0.15, 0.2, 0.3)},
    "contrast": {"imagenet": _single(0.4, 0.3, 0.2, 0.1, 0.05), "cifar": _single(0.75, 0.5, 0.4, 0.3, 0.15)},
    "elastic_transform": {  # strength, sigma, affine, of 244 or 32 pixels
        "imagenet": _times(
            244, (2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)
        ),
        "cifar": _times(32, (0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    },
    "pixelate": {"imagenet": _single(0.6, 0.5, 0.4, 0.3, 0.25), "cifar": _single(0.95, 0.9, 0.85, 0.75, 0.65)},
    "jpeg_compression": {"imagenet": _single(25, 18, 15, 10, 7), "cifar": _single(80, 65, 58, 50, 40)},
}
