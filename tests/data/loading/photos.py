"""A small set of photos of several formats and sizes, as files."""

from pathlib import Path

import numpy as np
from PIL import Image

from tests.data.pictures import encoded, noise
from vitral.data.datasets.source import open_data
from vitral.data.samples import Samples

FORMATS = (("JPEG", "jpg"), ("PNG", "png"), ("WEBP", "webp"), ("JPEG", "JPG"))


def photo(seed: int) -> Image.Image:
    """A picture of its own size, smooth enough for JPEG."""
    blobs = Image.fromarray(noise(5, 6, 3, seed=seed).astype(np.uint8))
    return blobs.resize((60 + 9 * seed % 71, 50 + 13 * seed % 57), Image.Resampling.BICUBIC)


def photos(root: Path, train: int = 11, val: int = 5) -> Samples:
    """Two classes in two splits."""
    for split, count in (("train", train), ("val", val)):
        for number in range(count):
            kind, ending = FORMATS[number % len(FORMATS)]
            path = root / split / f"class {number % 2}" / f"{number}.{ending}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encoded(photo(number if split == "train" else 100 + number), kind))
    return open_data(str(root))
