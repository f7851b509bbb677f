"""`python -m benchmarks.transfer [--root FOLDER] [--seeds 0 1 2]`: what pre-training is worth on 1,000 other images.

CIFAR-10 is divided by its classes. A small ViT is pre-trained on 20,000 images of five of them. The other five, 200
images each, are then learned from scratch, by a linear probe of the frozen features, by fine-tuning with the recipe
that `--from` chooses, and by fine-tuning at a higher resolution, and tested on their 5,000 test images.
"""

import argparse
import logging
import time
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from statistics import mean, stdev
from tempfile import mkdtemp
from typing import NamedTuple

from PIL import Image

import vitral
from benchmarks.__main__ import machine, say
from vitral.core.config import parse_settings
from vitral.data.datasets.arrays import ArrayStore, load_once
from vitral.data.datasets.source import open_data
from vitral.evaluation.linear_probe import LinearResult

FIRST = {"airplane", "bird", "cat", "horse", "truck"}  # those that are pre-trained on
PRETRAINED, KNOWN = 4_000, 200  # images of each class
PATCH, LARGE = 8, 48  # pixels across, of a patch, and of an image that has 32
SCRATCH = 60  # epochs


class Sets(NamedTuple):
    """Two folders with a folder for each class, below train and test."""

    first: Path
    second: Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="", help="where CIFAR-10 is, if not in a usual place")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=12, help="of pre-training")
    given = parser.parse_args()
    logging.getLogger("vitral").setLevel(logging.ERROR)
    print(machine(), flush=True)
    found: dict[str, list[float]] = {}
    home = Path(mkdtemp(prefix="vitral-transfer-"))
    try:
        sets = written(home, given.root)
        start = str(home / "pretrained")
        timed("pre-trained, on its own classes", lambda: fresh(sets.first, start, 0, given.epochs))
        for seed in given.seeds:
            for name, right in judged(home / str(seed), sets.second, start, seed).items():
                found.setdefault(name, []).append(100 * right)
    finally:
        rmtree(home, ignore_errors=True)
    print(f"right on the 5,000 test images, %, seeds {', '.join(map(str, given.seeds))}:")
    for name, rights in found.items():
        spread = f" +- {stdev(rights):.2f}" if len(rights) > 1 else ""
        print(f"  {name:<26} {mean(rights):.2f}{spread}   ({', '.join(f'{right:.2f}' for right in rights)})")


def judged(home: Path, data: Path, start: str, seed: int) -> dict[str, float]:
    """The share of right answers of each way, for one seed."""
    ways: dict[str, Callable[[], float]] = {
        "from scratch": lambda: fresh(data, str(home / "scratch"), seed, SCRATCH),
        "linear probe": lambda: probed(start, data, seed),
        "fine-tuned": lambda: tuned(start, data, str(home / "tuned"), seed),
        f"fine-tuned at {LARGE} pixels": lambda: tuned(start, data, str(home / "large"), seed, f"image_size={LARGE}"),
    }
    return {name: timed(name, way) for name, way in ways.items()}


def timed(name: str, way: Callable[[], float]) -> float:
    began = time.perf_counter()
    right = way()
    say(f"{name}: {100 * right:.2f}% after {time.perf_counter() - began:.0f} s")
    return right


def fresh(data: Path, out: str, seed: int, epochs: int) -> float:
    """From fresh weights, by the recipe for CIFAR-10 with larger patches."""
    settings = (f"epochs={epochs}", "eval_every=1000", f"model.stem.patch={PATCH}", "batch_size=64", f"seed={seed}")
    return top1(vitral.train(str(data), settings=parse_settings([*settings]), recipe="cifar10", out=out))


def tuned(start: str, data: Path, out: str, seed: int, *settings: str) -> float:
    """From weights, by the recipe that is chosen for them."""
    return top1(
        vitral.train(
            str(data), settings=parse_settings([f"from={start}", f"seed={seed}", "eval_every=1000", *settings]), out=out
        )
    )


def probed(start: str, data: Path, seed: int) -> float:
    found = vitral.evaluate(start, str(data), seed=seed, with_=("linear",)).results[0]
    assert isinstance(found, LinearResult)
    return found.top1


def written(home: Path, root: str) -> Sets:
    """CIFAR-10 as two folders of PNG files."""
    samples = open_data("cifar10", root=root)
    assert isinstance(samples.store, ArrayStore)
    sets = Sets(home / "first", home / "second")
    for part, most in (("train", (PRETRAINED, KNOWN)), ("test", (1_000, 1_000))):
        images, labels = load_once(samples.store.reader, part)
        counts = [0] * len(samples.classes)
        for number, (pixels, label) in enumerate(zip(images, labels.tolist(), strict=True)):
            name = samples.classes[label]
            second = name not in FIRST
            if counts[label] < most[second]:
                counts[label] += 1
                folder = sets[second] / part / name
                folder.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(folder / f"{number:05}.png")
    return sets


def top1(run: vitral.Run) -> float:
    assert run.evaluation is not None
    return run.evaluation.accuracy.top1


if __name__ == "__main__":
    main()
