"""Image operations of augmentation: color operations first, then geometric ones, most of them by Pillow.

Sizes never change. A geometric operation takes the nearest pixel of the input, or FILL where that lies outside;
coordinates count from the center of the first pixel, as in TensorFlow.  H rows, W columns, C channels, 1 or 3.
"""

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from vitral.core.errors import ConfigError
from vitral.data.decoding.pixels import Pixels
from vitral.data.transforms.crop import Box


def check_channels(pixels: Pixels) -> None:
    """Raise a ConfigError unless the image is gray or color: brightness and saturation need one of them."""
    channels = pixels.shape[-1]
    if channels not in {1, 3}:
        message = f"expected images of 1 or 3 channels, found {channels}"
        hint = "use random_erasing alone, or decode to gray or color"
        raise ConfigError(message, code="config.unsupported", where="augment", hint=hint)


def to_pillow(pixels: Pixels) -> Image.Image:
    """The image for Pillow, which may share the memory and must not write to it."""
    check_channels(pixels)
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def from_pillow(image: Image.Image) -> Pixels:
    """The pixels of a gray or color image in an array of their own, (H, W, C)."""
    pixels: Pixels = np.array(image)  # a copy: torch warns of arrays that cannot be written to
    return pixels[..., None] if pixels.ndim == 2 else pixels


def autocontrast(pixels: Pixels) -> Pixels:
    """Each channel stretched so that its darkest level is 0 and its brightest 255."""
    return from_pillow(ImageOps.autocontrast(to_pillow(pixels)))


def equalize(pixels: Pixels) -> Pixels:
    """Each channel with its levels spread so that all are about equally frequent."""
    return from_pillow(ImageOps.equalize(to_pillow(pixels)))


def invert(pixels: Pixels) -> Pixels:
    """The negative."""
    return 255 - pixels


def posterize(pixels: Pixels, bits: int) -> Pixels:
    """Each level with only its upper bits kept."""
    return pixels & np.uint8(256 - 2 ** (8 - bits))


def solarize(pixels: Pixels, threshold: int) -> Pixels:
    """Invert all levels from the threshold on."""
    return from_pillow(ImageOps.solarize(to_pillow(pixels), threshold))


def solarize_add(pixels: Pixels, addition: int) -> Pixels:
    """Brighten the levels below 128."""
    levels = np.arange(256)
    return np.where(levels < 128, (levels + addition).clip(0, 255), levels).astype(np.uint8)[pixels]


def saturation(pixels: Pixels, factor: float) -> Pixels:
    """Paler or stronger colors; gray images stay unchanged."""
    return pixels if pixels.shape[-1] == 1 else from_pillow(ImageEnhance.Color(to_pillow(pixels)).enhance(factor))


def contrast(pixels: Pixels, factor: float) -> Pixels:
    """Scale the distance of each level from the mean brightness of the image."""
    return from_pillow(ImageEnhance.Contrast(to_pillow(pixels)).enhance(factor))


def contrast_about(pixels: Pixels, factor: float, level: int) -> Pixels:
    """Scale the distance of each level from a fixed level."""
    image = to_pillow(pixels)
    flat = Image.new(image.mode, image.size, (level,) * pixels.shape[-1])
    return from_pillow(Image.blend(flat, image, factor))


def brightness(pixels: Pixels, factor: float) -> Pixels:
    """Levels times the factor."""
    return from_pillow(ImageEnhance.Brightness(to_pillow(pixels)).enhance(factor))


def sharpness(pixels: Pixels, factor: float) -> Pixels:
    """Soften or sharpen edges, by the difference from a slightly smoothed image; border pixels stay unchanged."""
    return from_pillow(ImageEnhance.Sharpness(to_pillow(pixels)).enhance(factor))


def hue(pixels: Pixels, turn: float) -> Pixels:
    """Shift the hue by -0.5 to 0.5 of the color wheel; gray images stay unchanged."""
    if pixels.shape[-1] == 1:
        return pixels
    hsv = np.array(to_pillow(pixels).convert("HSV"))  # (H, W, 3)
    hsv[..., 0] += np.uint8(int(turn * 255) % 256)  # wraps around at 256, as the wheel does
    return from_pillow(Image.fromarray(hsv, "HSV").convert("RGB"))


def grayscale(pixels: Pixels) -> Pixels:
    """Brightness alone, in as many channels as before."""
    return pixels if pixels.shape[-1] == 1 else from_pillow(to_pillow(pixels).convert("L").convert("RGB"))


def blur(pixels: Pixels, radius: float) -> Pixels:
    """Pillow's Gaussian blur; the radius is the standard deviation in pixels."""
    return from_pillow(to_pillow(pixels).filter(ImageFilter.GaussianBlur(radius)))


FILL = 128
TIE = 0.002  # halves go up as in TensorFlow: Pillow's slopes are off by up to 1/131072, so by this over 262 pixels


def rotate(pixels: Pixels, degrees: float) -> Pixels:
    """Rotate the image counterclockwise about its center."""
    return from_pillow(to_pillow(pixels).rotate(degrees, Image.Resampling.NEAREST, fillcolor=_fill(pixels)))


def shear_x(pixels: Pixels, slope: float) -> Pixels:
    """Each row moved left by its number times the slope."""
    return _affine(pixels, (1.0, slope, 0.0), (0.0, 1.0, 0.0))


def shear_y(pixels: Pixels, slope: float) -> Pixels:
    """Each column moved up by its number times the slope."""
    return _affine(pixels, (1.0, 0.0, 0.0), (slope, 1.0, 0.0))


def translate_x(pixels: Pixels, distance: float) -> Pixels:
    """The image moved left."""
    return _affine(pixels, (1.0, 0.0, distance), (0.0, 1.0, 0.0))


def translate_y(pixels: Pixels, distance: float) -> Pixels:
    """The image moved up."""
    return _affine(pixels, (1.0, 0.0, 0.0), (0.0, 1.0, distance))


def cutout(pixels: Pixels, reach: int, row: int, column: int) -> Pixels:
    """Cover a square with sides of twice the reach, clipped to the image."""
    covered = pixels.copy()
    covered[Box(row - reach, column - reach, 2 * reach, 2 * reach).clip(*pixels.shape[:2]).slices] = FILL
    return covered


def _affine(pixels: Pixels, across: tuple[float, float, float], down: tuple[float, float, float]) -> Pixels:
    """Each pixel (x, y) taken from x' = ax + by + c, with a row (a, b, c) for x' and one for y'."""
    image = to_pillow(pixels)
    # Pillow counts from the corner of the first pixel: half a pixel in at the input, half a pixel out at the result.
    matrix = [term for a, b, c in (across, down) for term in (a, b, c + 0.5 - (a + b) / 2 + TIE)]
    nearest, affine = Image.Resampling.NEAREST, Image.Transform.AFFINE
    return from_pillow(image.transform(image.size, affine, matrix, nearest, fillcolor=_fill(pixels)))


def _fill(pixels: Pixels) -> tuple[int, ...]:
    return (FILL,) * pixels.shape[-1]
