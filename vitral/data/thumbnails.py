"""Thumbnails of images as data URLs, for HTML pages."""

from base64 import b64encode
from io import BytesIO
from typing import Literal

import numpy as np
from PIL import Image

from vitral.core.config import Size
from vitral.data.decoding.decode import ImageDecoder, decode_image
from vitral.data.decoding.header import Decoding, recognize
from vitral.data.decoding.pixels import Pixels, read_array_header
from vitral.data.samples import Item, Samples

THUMBNAIL_SIDE = 128  # pixels
JPEG_QUALITY = 85
DEFAULT = Decoding()


def thumbnail_url(
    samples: Samples,
    item: Item,
    side: int = THUMBNAIL_SIDE,
    decoding: Decoding = DEFAULT,
    decode: ImageDecoder = decode_image,
) -> str:
    """A data URL: a JPEG of at most `side` x `side` pixels, or a smaller image unchanged as PNG."""
    return encoded_thumbnail_url(samples.read(item), item.name, side, decoding, decode)


def encoded_thumbnail_url(
    data: bytes,
    name: str,
    side: int = THUMBNAIL_SIDE,
    decoding: Decoding = DEFAULT,
    decode: ImageDecoder = decode_image,
) -> str:
    """The same for an encoded image."""
    native = native_decoding(data, name, decoding).model_copy(update={"lenient": True})  # show what there is
    picture = to_rgb_image(decode(data, name, native, lambda _: Size(side, side)).pixels)
    is_small = max(picture.size) < side
    picture.thumbnail((side, side), Image.Resampling.BICUBIC)
    return encode_picture(picture, "png" if is_small else "jpeg")


def picture_url(pixels: Pixels) -> str:
    """A data URL of pixels (H, W, C): a JPEG, or a small image as PNG, which keeps each pixel."""
    picture = to_rgb_image(pixels)
    return encode_picture(picture, "png" if max(picture.size) < THUMBNAIL_SIDE else "jpeg")


def encode_picture(
    picture: Image.Image, kind: Literal["png", "jpeg"], quality: int = JPEG_QUALITY, optimize: bool = False
) -> str:
    """A data URL of a picture; `quality` is for a JPEG, `optimize` makes a PNG smaller."""
    stream = BytesIO()
    picture.save(stream, kind, quality=quality, optimize=optimize)
    return f"data:image/{kind};base64,{b64encode(stream.getvalue()).decode()}"


def native_decoding(data: bytes, name: str, decoding: Decoding = DEFAULT) -> Decoding:
    """How to decode a file without a model: an array keeps its channels."""
    channels = read_array_header(data, name).channels if recognize(data, name) == "NPY" else 3
    return decoding.model_copy(update={"channels": channels})


def to_rgb_image(pixels: Pixels) -> Image.Image:
    """Pixels of any number of channels as an RGB image; other than 1 and 3 channels become their mean."""
    channels = pixels.shape[2]
    if channels == 3:
        return Image.fromarray(pixels)
    gray = pixels[..., 0] if channels == 1 else pixels.mean(axis=2).astype(np.uint8)
    return Image.fromarray(gray).convert("RGB")
