"""A file becomes what the model sees of it and what people see of it.  H rows, W columns, C channels."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitral.config import Size
from vitral.data.decoder.decode import opened
from vitral.data.decoder.depth import Pixels
from vitral.data.decoder.header import Decoding
from vitral.data.sources.files import read_bytes
from vitral.data.sources.source import no_such_path
from vitral.data.thumbnail import decoding_of, viewable
from vitral.data.transforms.preprocessing import Preprocessing, sights
from vitral.data.transforms.resize import resize
from vitral.data.transforms.view import Glimpse
from vitral.errors import DataError
from vitral.explain.explanation import Photo

LONGEST = 1024  # pixels of a side, to look at


class Sighted(NamedTuple):
    """A picture as people see it, and as numbers for the model: the very numbers that it predicts from."""

    photo: Photo
    image: Tensor  # (1, C, H, W), scaled


def sighted(path: Path, needs: Preprocessing) -> Sighted:
    """The picture in a file, and what the model is given of it. DataError says what is wrong with a file."""
    data, name = read_bytes(existing(path)), str(path)
    picture = opened(data, name, needs.decoding)
    glimpse = needs.view.glimpse(picture.size, needs.image)
    seen = sights(picture, (glimpse,))[0]  # (H, W, C)
    pixels = torch.from_numpy(np.ascontiguousarray(seen))
    image = needs.scaling.apply(pixels.permute(2, 0, 1)[None])  # (1, C, H, W)
    own = needs.decoding.model_copy(update={"channels": decoding_of(data, name).channels})
    return Sighted(Photo(path.name, whole_picture(data, name, own), seen, *part_seen(glimpse, picture.size)), image)


def existing(path: Path) -> Path:
    """The path of a file that is there."""
    if path.is_dir():
        what = "expected an image, found a folder"
        raise DataError(what, code="data.not_a_file", where=str(path), remedy="name a file in it")
    if not path.exists():
        raise no_such_path(path)
    return path


def whole_picture(data: bytes, name: str, decoding: Decoding) -> Pixels:
    """All of the picture in its own colours, (h, w, 3), no larger than is good to look at."""
    picture = opened(data, name, decoding)
    scale = min(1.0, LONGEST / max(picture.size))
    size = Size(*(max(1, round(side * scale)) for side in picture.size))
    return np.asarray(viewable(resize(picture.pixels(size), size, "bilinear")))


def part_seen(glimpse: Glimpse, whole: Size) -> tuple[float, float, float, float]:
    """Top, left, height and width of what a glimpse keeps, as shares of the whole picture."""
    part, resized, window = glimpse.part, glimpse.resized, glimpse.window
    down, right = part.height / resized.height, part.width / resized.width  # pixels of the picture a resized one covers
    return (
        (part.top + window.top * down) / whole.height,
        (part.left + window.left * right) / whole.width,
        window.height * down / whole.height,
        window.width * right / whole.width,
    )
