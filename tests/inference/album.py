"""Small pictures on the disk, good and bad, and an engine that is the model itself."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from tests.data.pictures import encoded, noise
from vitral.inference.engines.engine import FloatArray, PixelBatch
from vitral.inference.inputs import FileSource, ImageRef
from vitral.weights.load import LoadedModel

BAD = ("cut.jpg", "empty.jpg", "gone.jpg", "text.jpg")


def photos(folder: Path, count: int, side: int = 40) -> list[Path]:
    """So many JPEGs of noise, each different, called 0.jpg and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number}.jpg" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_bytes(encoded(noise(side, side + 8, 3, seed=number).astype(np.uint8), "JPEG"))
    return paths


def spoilt(folder: Path) -> list[Path]:
    """A file for each way to be no image: cut off, empty, a link that leads nowhere, text."""
    (folder / "cut.jpg").write_bytes(encoded(noise(64, 64, 3).astype(np.uint8), "JPEG")[:900])
    (folder / "empty.jpg").write_bytes(b"")
    (folder / "gone.jpg").symlink_to("nowhere.jpg")
    (folder / "text.jpg").write_text("a picture, or so they said")
    return [folder / name for name in BAD]


def listed(paths: Sequence[Path]) -> list[ImageRef]:
    return [ImageRef(os.fspath(path), FileSource(os.fspath(path))) for path in paths]


class Itself:
    """An engine that runs the model as evaluation does."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded

    def run(self, pixels: PixelBatch) -> FloatArray:
        assert len(pixels), "of no images there is nothing to ask"
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2)  # (B, C, H, W)
        with torch.no_grad():
            return self.loaded.model(self.loaded.bundle.preprocessing.normalize.apply(images)).numpy()  # (B, K)
