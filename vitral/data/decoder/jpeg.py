"""JPEG by libjpeg-turbo without Pillow's copies: the same pixels in two thirds of the time.  H rows, W columns."""

import simplejpeg

from vitral.data.decoder.depth import Pixels
from vitral.data.decoder.header import Header

COLOURS = {"RGB": "RGB", "L": "GRAY"}  # Pillow's modes and the reader's words; the rest is Pillow's


def quick_jpeg(data: bytes, head: Header, stored: tuple[int, int], scale: int) -> Pixels | None:
    """Grey or colour as stored, (H, W, 1 or 3), at 1/scale; None for what only Pillow can judge.

    `stored` is the height and width in the file, before any turning. A file with the least flaw goes to Pillow, which
    tells the harmless ones, such as stray bytes between markers, from lost pixels.
    """
    if head.mode not in COLOURS:
        return None
    height, width = (-(-side // scale) for side in stored)
    try:
        pixels = simplejpeg.decode_jpeg(data, COLOURS[head.mode], min_height=height, min_width=width)
    except ValueError:
        return None
    return pixels if pixels.shape[:2] == (height, width) else None
