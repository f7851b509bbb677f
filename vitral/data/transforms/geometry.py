"""What moves pixels, and what covers a part of them.  H rows, W columns, C channels, 1 or 3.

Each pixel of the result is the nearest one of the input, or FILL where that lies outside. Sizes never change.
Coordinates count from the centre of the first pixel, as TensorFlow's do.
"""

from typing import NamedTuple

from PIL import Image

from vitral.data.decoder.depth import Pixels
from vitral.data.transforms.picture import picture, pixels_of

FILL = 128
TIE = 0.002  # halves go up as in TensorFlow: Pillow's slopes are off by up to 1/131072, so by this over 262 pixels


class Edges(NamedTuple):
    """A part of an image: rows from `top` to before `bottom`, columns from `left` to before `right`."""

    top: int
    bottom: int
    left: int
    right: int

    @property
    def area(self) -> int:
        return (self.bottom - self.top) * (self.right - self.left)

    def within(self, height: int, width: int) -> "Edges":
        """The part of it that lies inside an image."""
        rows = (min(max(edge, 0), height) for edge in (self.top, self.bottom))
        columns = (min(max(edge, 0), width) for edge in (self.left, self.right))
        return Edges(*rows, *columns)


def rotate(pixels: Pixels, degrees: float) -> Pixels:
    """The image turned counterclockwise about its centre."""
    turned = picture(pixels).rotate(degrees, Image.Resampling.NEAREST, fillcolor=_fill(pixels))
    return pixels_of(turned)


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
    """The image with a square of twice the reach covered, as much of it as lies inside."""
    height, width = pixels.shape[:2]
    box = Edges(row - reach, row + reach, column - reach, column + reach).within(height, width)
    covered = pixels.copy()
    covered[box.top : box.bottom, box.left : box.right] = FILL
    return covered


def _affine(pixels: Pixels, across: tuple[float, float, float], down: tuple[float, float, float]) -> Pixels:
    """Each pixel (x, y) taken from x' = ax + by + c, with a row (a, b, c) for x' and one for y'."""
    image = picture(pixels)
    # Pillow counts from the corner of the first pixel: half a pixel in at the input, half a pixel out at the result.
    matrix = [term for a, b, c in (across, down) for term in (a, b, c + 0.5 - (a + b) / 2 + TIE)]
    moved = image.transform(
        image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST, fillcolor=_fill(pixels)
    )
    return pixels_of(moved)


def _fill(pixels: Pixels) -> tuple[int, ...]:
    return (FILL,) * pixels.shape[-1]
