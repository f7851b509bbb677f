"""What changes levels and colours and leaves every pixel where it is.  H rows, W columns, C channels, 1 or 3.

Each takes and gives (H, W, C); the result may be the input itself where nothing changes, and the input is never
written to. A factor of 1 changes nothing, 0 takes all the brightness, contrast, colour or sharpness away, and more
than 1 exaggerates it.
"""

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from vitral.data.decoder.depth import Pixels
from vitral.data.transforms.picture import picture, pixels_of

LEVELS = np.arange(256, dtype=np.int64)


def autocontrast(pixels: Pixels) -> Pixels:
    """Each channel stretched so that its darkest level is 0 and its brightest 255."""
    return pixels_of(ImageOps.autocontrast(picture(pixels)))


def equalize(pixels: Pixels) -> Pixels:
    """Each channel with its levels spread so that all are about equally frequent."""
    return pixels_of(ImageOps.equalize(picture(pixels)))


def invert(pixels: Pixels) -> Pixels:
    """The negative."""
    return 255 - pixels


def posterize(pixels: Pixels, bits: int) -> Pixels:
    """Each level with only its upper bits kept."""
    return pixels & np.uint8(256 - 2 ** (8 - bits))


def solarize(pixels: Pixels, threshold: int) -> Pixels:
    """The negative of every level from the threshold on."""
    return _looked_up(pixels, np.where(threshold > LEVELS, LEVELS, 255 - LEVELS))


def solarize_add(pixels: Pixels, addition: int) -> Pixels:
    """The dark half of the levels, below 128, brightened."""
    return _looked_up(pixels, np.where(LEVELS < 128, (LEVELS + addition).clip(0, 255), LEVELS))


def saturation(pixels: Pixels, factor: float) -> Pixels:
    """Colours paler or stronger; grey images have none."""
    return pixels if pixels.shape[-1] == 1 else pixels_of(ImageEnhance.Color(picture(pixels)).enhance(factor))


def contrast(pixels: Pixels, factor: float) -> Pixels:
    """Levels drawn to or pushed from the mean brightness of the image."""
    return pixels_of(ImageEnhance.Contrast(picture(pixels)).enhance(factor))


def contrast_about(pixels: Pixels, factor: float, level: int) -> Pixels:
    """Levels drawn to or pushed from one level, whatever the image."""
    image = picture(pixels)
    flat = Image.new(image.mode, image.size, (level,) * pixels.shape[-1])
    return pixels_of(Image.blend(flat, image, factor))


def brightness(pixels: Pixels, factor: float) -> Pixels:
    """Levels times the factor."""
    return pixels_of(ImageEnhance.Brightness(picture(pixels)).enhance(factor))


def sharpness(pixels: Pixels, factor: float) -> Pixels:
    """Edges softer or harder, by the difference from a slightly smoothed image; the outermost pixels stay."""
    return pixels_of(ImageEnhance.Sharpness(picture(pixels)).enhance(factor))


def hue(pixels: Pixels, turn: float) -> Pixels:
    """Colours moved round the colour wheel, by -0.5 to 0.5 of a turn; grey images have none."""
    if pixels.shape[-1] == 1:
        return pixels
    hsv = np.array(picture(pixels).convert("HSV"))  # (H, W, 3)
    hsv[..., 0] += np.uint8(int(turn * 255) % 256)  # goes round at 256, as the wheel does
    return pixels_of(Image.fromarray(hsv, "HSV").convert("RGB"))


def greyscale(pixels: Pixels) -> Pixels:
    """Brightness alone, in as many channels as before."""
    return pixels if pixels.shape[-1] == 1 else pixels_of(picture(pixels).convert("L").convert("RGB"))


def blur(pixels: Pixels, radius: float) -> Pixels:
    """Pillow's Gaussian blur; the radius is the standard deviation in pixels."""
    return pixels_of(picture(pixels).filter(ImageFilter.GaussianBlur(radius)))


def _looked_up(pixels: Pixels, table: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Pixels:
    return table.astype(np.uint8)[pixels]
