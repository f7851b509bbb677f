"""The decoder: bytes of a file to uint8 pixels.  H rows, W columns, C channels.

No color profile is applied, alpha is not gamma-corrected, and the first frame of an animation is the image. JPEG is
decoded by libjpeg-turbo through simplejpeg: the pixels of Pillow in two thirds of the time.
"""

from dataclasses import dataclass

import numpy as np
import simplejpeg
from PIL import Image
from PIL.ImageFile import ImageFile

from vitral.core.config import Size
from vitral.core.errors import DataError
from vitral.data.decoding.header import Decoding, Header, open_with_pillow, read_header, recognize
from vitral.data.decoding.modes import read_samples
from vitral.data.decoding.pixels import Pixels, read_array

COLORS = {"RGB": "RGB", "L": "GRAY"}  # Pillow's modes in the words of simplejpeg; Pillow decodes the rest


def decode_jpeg(data: bytes, header: Header, stored: tuple[int, int], scale: int) -> Pixels | None:
    """Gray or color as stored, (H, W, 1 or 3), at 1/scale; None for what Pillow must decode.

    `stored` is the height and width in the file, before EXIF orientation. A damaged file goes to Pillow, which tells
    harmless damage, such as stray bytes between markers, from lost pixels.
    """
    if header.mode not in COLORS:
        return None
    height, width = (-(-side // scale) for side in stored)
    try:
        pixels = simplejpeg.decode_jpeg(data, COLORS[header.mode], min_height=height, min_width=width)
    except ValueError:
        return None
    return pixels if pixels.shape[:2] == (height, width) else None


FULL_SIZE = Size(65_535, 65_535)  # the largest JPEG: as a minimum size it means full scale


def jpeg_scale(size: Size, min_size: Size) -> int:
    """The denominator that a JPEG is decoded at: the largest of 8, 4, 2, 1 that leaves the minimum size.

    A last row or column that covers less than a whole one does not count. The scale depends on the two sizes alone, so
    that training, evaluation and serving see the same pixels.
    """
    fits = [
        scale
        for scale in (8, 4, 2)
        if size.height // scale >= min_size.height and size.width // scale >= min_size.width
    ]
    return fits[0] if fits else 1


@dataclass(frozen=True)
class EncodedImage:
    """An opened image within the limits, not yet decoded."""

    data: bytes
    name: str
    decoding: Decoding
    header: Header
    image: ImageFile | None  # none for an .npy file

    @property
    def size(self) -> Size:
        """Height and width once upright, at full scale."""
        return self.header.size

    def scale(self, min_size: Size) -> int:
        """The denominator that `pixels` would decode at."""
        return jpeg_scale(self.size, min_size) if self.header.format == "JPEG" else 1

    def pixels(self, min_size: Size) -> Pixels:
        """The image, upright, (H, W, C). A JPEG is reduced by `scale_for`, to no less than `min_size`."""
        if self.image is None:
            return convert_channels(read_array(self.data, self.name), self.decoding.channels)
        scale = self.scale(min_size)
        pixels = _flat(self._samples(self.image, scale), self.decoding.background)  # (H, W, 1 or 3)
        if self.header.format != "TIFF":  # Pillow has turned a TIFF already
            pixels = apply_orientation(pixels, self.header.orientation)
        declared = Size(-(-self.size.height // scale), -(-self.size.width // scale))
        if pixels.shape[:2] != declared:
            message = f"declares {declared}, holds {Size(*pixels.shape[:2])}"
            raise DataError(message, code="data.corrupt_image", where=self.name, hint="save it anew as PNG or JPEG")
        return convert_channels(pixels, self.decoding.channels)

    def _samples(self, image: ImageFile, scale: int) -> Pixels:
        """As stored, with or without alpha: (H, W, 1 to 4)."""
        if self.header.format == "JPEG":
            quick = decode_jpeg(self.data, self.header, (image.height, image.width), scale)
            if quick is not None:
                return quick
        if scale > 1:
            image.draft("", (image.width // scale, image.height // scale))
        return read_samples(image, self.header, self.data, self.name)


def open_image(data: bytes, name: str, decoding: Decoding) -> EncodedImage:
    """Open an image by its header; a DataError if it is no image or exceeds a limit."""
    kind = recognize(data, name)
    if kind == "NPY":
        return EncodedImage(data, name, decoding, read_header(data, name, decoding), None)
    image, header = open_with_pillow(data, name, kind, decoding)
    return EncodedImage(data, name, decoding, header, image)


def decode(data: bytes, name: str, decoding: Decoding, min_size: Size) -> Pixels:
    """The image in the bytes of a file, upright, (H, W, C): see `Encoded.pixels`."""
    return open_image(data, name, decoding).pixels(min_size)


def convert_channels(pixels: Pixels, channels: int) -> Pixels:
    """Gray repeated or color as ITU-R 601 luma where the counts differ."""
    if pixels.shape[2] == channels:
        return np.ascontiguousarray(pixels)
    if channels == 3:
        return np.repeat(pixels, 3, axis=2)
    return np.array(Image.fromarray(pixels).convert("L"))[..., None]


def apply_orientation(pixels: Pixels, orientation: int) -> Pixels:
    """The image rotated and mirrored as the EXIF orientation says."""
    turned = pixels.swapaxes(0, 1) if orientation >= 5 else pixels
    rows = slice(None, None, -1) if orientation in {3, 4, 7, 8} else slice(None)
    columns = slice(None, None, -1) if orientation in {2, 3, 6, 7} else slice(None)
    return turned[rows, columns]


def composite_alpha(pixels: Pixels, background: tuple[int, int, int]) -> Pixels:
    """Color and straight alpha, (H, W, 4), on a background: c a + b (1 - a), to the nearest level."""
    alpha = pixels[..., 3:].astype(np.uint16)
    ground = np.array(background, dtype=np.uint16)
    return ((pixels[..., :3] * alpha + ground * (255 - alpha) + 127) // 255).astype(np.uint8)  # (H, W, 3)


def _flat(samples: Pixels, background: tuple[int, int, int]) -> Pixels:
    """Without alpha: (H, W, 2 or 4) becomes (H, W, 3)."""
    match samples.shape[2]:
        case 2:
            return composite_alpha(samples[..., [0, 0, 0, 1]], background)
        case 4:
            return composite_alpha(samples, background)
        case _:
            return samples
