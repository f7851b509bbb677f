"""A small run: a folder of little photos, and settings under which it is over in a second."""

import signal
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from vitral.core.config import parse_settings
from vitral.data.samples import Samples
from vitral.recipes.recipe import Recipe
from vitral.runs.callbacks.events import RunCallback, TrackerLike
from vitral.runs.options import TrainOptions
from vitral.runs.request import RunRequest, resolve
from vitral.runs.train import Run, train
from vitral.training.callbacks import SignalHandler

EACH = {"train": 12, "val": 4}  # images of each class
COMPARED = ("last/model.safetensors", "best/model.safetensors", "metrics.jsonl", "results.csv")
SETTINGS = (
    "image_size=16", "model.stem=patches", "model.stem.patch=8", "model.width=16", "model.depth=2",
    "model.mixer.heads=2", "batch_size=5", "epochs=3", "optimizer=adamw",
    "lr=3e-3", "eval_every=1", "workers=0", "checkpoints.every_seconds=1000",
)  # fmt: skip


def photos(folder: Path, each: dict[str, int] = EACH) -> Path:
    """Dark photos of one class, bright ones of another, not all of them easy to tell."""
    for split, count in each.items():
        for label, level in (("dark", 90), ("bright", 150)):
            home = folder / split / label
            home.mkdir(parents=True)
            for number in range(count):
                noise = np.random.default_rng([number, level]).integers(-80, 80, (20, 20, 3))
                Image.fromarray((level + noise).astype(np.uint8)).save(home / f"{number}.png")
    return folder


def wish(folder: Path, *settings: str) -> RunRequest:
    return RunRequest(str(folder), recipe="small_hundreds", settings=parse_settings([*SETTINGS, *settings]))


def recipe_and_samples(folder: Path, *settings: str) -> tuple[Recipe, Samples]:
    found = resolve(wish(folder, *settings))
    return found.recipe, found.samples


def begin(
    home: Path,
    *settings: str,
    data: str = "",
    out: str = "run",
    callbacks: Sequence[RunCallback] = (),
    tracker: TrackerLike = (),
) -> Run:
    complete = parse_settings([*SETTINGS, *settings])
    options: TrainOptions = {"settings": complete, "callbacks": callbacks, "tracker": tracker}
    return train(data or str(home / "photos"), recipe="small_hundreds", out=str(home / out), **options)


class StopAfterEachStep(SignalHandler):
    """A signal comes while the first step of every session is taken."""

    signal = signal.SIGTERM

    def __init__(self, message: str) -> None:
        self._previous = {}

    def __enter__(self) -> "StopAfterEachStep":
        return self


def content(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in COMPARED}
