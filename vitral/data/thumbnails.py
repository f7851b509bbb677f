"""Files as small pictures that a page can hold in itself."""

from base64 import b64encode
from io import BytesIO

import numpy as np
from PIL import Image

from vitral.core.config import Size
from vitral.data.decoding.decode import decode
from vitral.data.decoding.header import Decoding, recognize
from vitral.data.decoding.pixels import Pixels, layout
from vitral.data.samples import Item, Samples

THUMBNAIL = 128  # pixels


def thumbnail(samples: Samples, item: Item) -> str:
    """The address of the picture in itself: a JPEG of at most 128 pixels, or a smaller picture as it is, as PNG."""
    data = samples.read(item)
    pixels = decode(data, item.name, decoding_of(data, item.name), Size(THUMBNAIL, THUMBNAIL))
    picture = viewable(pixels)
    kind = "png" if max(picture.size) < THUMBNAIL else "jpeg"
    picture.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.BICUBIC)
    stream = BytesIO()
    picture.save(stream, kind)
    return f"data:image/{kind};base64,{b64encode(stream.getvalue()).decode()}"


def decoding_of(data: bytes, name: str) -> Decoding:
    """How to decode a file by itself: an array has the channels that it has."""
    return Decoding(channels=layout(data, name).channels) if recognize(data, name) == "NPY" else Decoding()


def viewable(pixels: Pixels) -> Image.Image:
    """The pixels, of any number of channels, as a picture in color; what is neither gray nor RGB becomes its mean."""
    channels = pixels.shape[2]
    if channels == 3:
        return Image.fromarray(pixels)
    gray = pixels[..., 0] if channels == 1 else pixels.mean(axis=2).astype(np.uint8)
    return Image.fromarray(gray).convert("RGB")
