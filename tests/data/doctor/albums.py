"""Real folders of real pictures for the tests of the doctor."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from tests.data.pictures import encoded
from vitral.core.config import Size
from vitral.data.datasets.source import open_data
from vitral.data.doctor.checks import Finding
from vitral.data.doctor.diagnosis import Diagnosis, TrainingForecast, diagnose
from vitral.data.doctor.examine import examine_all

TRAINING = TrainingForecast(
    recipe="small_hundreds",
    reason="",
    task="classify",
    weights="",
    model="ViT, 4 layers of width 128",
    parameters=5_000,
    image_size=Size(224, 224),
    patch=Size(16, 16),
    patches=196,
    squeezes=True,
    epochs=60.0,
    steps=60,
    batch_size=24,
)


def scene(seed: int, height: int = 240, width: int = 320) -> Image.Image:
    """A picture with large shapes, unlike that of any other seed."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 6, 3)).astype(np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def photo(seed: int, quality: int = 90) -> bytes:
    return encoded(scene(seed), "JPEG", quality=quality)


def fill(root: Path, files: Mapping[str, bytes]) -> Path:
    """Make each file below the root."""
    for name, content in files.items():
        path = os.path.join(root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)
    return root


def pets(train: int = 12, val: int = 3) -> dict[str, bytes]:
    """Cats and dogs with nothing wrong: `train/cat/00.jpg` and so on."""
    places = [
        (split, pet, n)
        for split, count in (("train", train), ("val", val))
        for pet in ("cat", "dog")
        for n in range(count)
    ]
    return {f"{split}/{pet}/{n:02}.jpg": photo(seed) for seed, (split, pet, n) in enumerate(places)}


def diagnosed(root: Path, files: Mapping[str, bytes]) -> Diagnosis:
    """The diagnosis of the files, examined by this process, for a training at 224 pixels."""
    samples = open_data(str(fill(root, files)))
    examined = list(examine_all(samples, workers=0))
    return diagnose(samples, examined, training=TRAINING, arguments=shlex.quote(str(root)))


def found(diagnosis: Diagnosis) -> dict[str, Finding]:
    """The findings by kind."""
    return {finding.kind: finding for finding in diagnosis.findings}


def names(finding: Finding) -> list[tuple[str, ...]]:
    """The files of each example."""
    return [tuple(item.name for item in example.items) for example in finding.examples]
