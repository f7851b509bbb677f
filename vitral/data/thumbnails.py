"""Thumbnails of images as data URLs, for HTML pages."""

from base64 import b64encode
from io import BytesIO

import numpy as np
from PIL import Image

from vitral.core.config import Size
from vitral.data.decoding.decode import decode
from vitral.data.decoding.header import Decoding, recognize
from vitral.data.decoding.pixels import Pixels, read_array_header
from vitral.data.samples import Item, Samples

THUMBNAIL_SIDE = 128  # pixels


def thumbnail_url(samples: Samples, item: Item) -> str:
    """A data URL: a JPEG of at most 128 x 128 pixels, or a smaller image unchanged as PNG."""
    data = samples.read(item)
    pixels = decode(data, item.name, native_decoding(data, item.name), Size(THUMBNAIL_SIDE, THUMBNAIL_SIDE))
    picture = to_rgb_image(pixels)
    kind = "png" if max(picture.size) < THUMBNAIL_SIDE else "jpeg"
    picture.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.BICUBIC)
    stream = BytesIO()
    picture.save(stream, kind)
    return f"data:image/{kind};base64,{b64encode(stream.getvalue()).decode()}"


def native_decoding(data: bytes, name: str) -> Decoding:
    """How to decode a file without a model: an array keeps its channels."""
    return Decoding(channels=read_array_header(data, name).channels) if recognize(data, name) == "NPY" else Decoding()


def to_rgb_image(pixels: Pixels) -> Image.Image:
    """Pixels of any number of channels as an RGB image; other than 1 and 3 channels become their mean."""
    channels = pixels.shape[2]
    if channels == 3:
        return Image.fromarray(pixels)
    gray = pixels[..., 0] if channels == 1 else pixels.mean(axis=2).astype(np.uint8)
    return Image.fromarray(gray).convert("RGB")
