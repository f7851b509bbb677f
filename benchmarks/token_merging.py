"""`python -m benchmarks.token_merging MODEL DATA`: accuracy against images a second, of merged tokens and of int8.

Every engine answers all images of the split; its speed is measured in a process of its own, turn by turn with the
others. Layers in int8 have their ranges measured on training images. `python -m tools.draw_deploy` draws the curves.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.__main__ import say
from benchmarks.inference import log_progress
from vitral.core.config import Config
from vitral.core.machine import cpu_count
from vitral.data.datasets.source import open_data
from vitral.data.samples import Samples, Split
from vitral.evaluation.accuracy import Interval, wilson_interval
from vitral.inference.engines.engine import Engine, PixelBatch
from vitral.runs.bench import OWN_WORKER, BenchEngine, BenchPlan, Duration, Row, describe_machine, measure_cells
from vitral.runs.bench_worker import build_engine
from vitral.runs.evaluate import choose_split, split_config
from vitral.weights.bundle import Bundle
from vitral.weights.load import load

CALIBRATING = 32  # training images
PORTION = 64  # images at a time, while accuracy is measured
Precision = Literal["float32", "int8"]


class Point(Config):
    """One engine."""

    precision: Precision
    per_layer: int
    rate: float  # images a second
    low: float
    high: float
    top1: float
    interval: Interval


class Curves(Config):
    """What was measured of one model."""

    machine: str
    model: str
    data: str
    images: int
    engine: str
    batch: int
    points: tuple[Point, ...]


def pixels_of(bundle: Bundle, samples: Samples, split: Split, most: int) -> tuple[PixelBatch, NDArray[np.int64]]:
    """Images of a split as the model sees them (B, H, W, C), evenly chosen where they are many, and their labels."""
    items = samples.of(split)
    some = [items[place] for place in np.linspace(0, len(items) - 1, min(most, len(items))).round().astype(int)]
    numbers = {name: label for label, name in enumerate(bundle.classes)}
    seen = np.stack([bundle.preprocessing.pixels(samples.read(item), item.name) for item in some])
    return seen, np.array([numbers[samples.classes[item.label]] for item in some])


def right(engine: Engine, pixels: PixelBatch, labels: NDArray[np.int64]) -> int:
    """How many images are named rightly."""
    starts = range(0, len(pixels), PORTION)
    answers = np.concatenate([engine.run(pixels[start : start + PORTION]) for start in starts])  # (B, K)
    return int((answers.argmax(axis=1) == labels).sum())


class Setting(NamedTuple):
    """What an engine does beside answering."""

    precision: Precision
    per_layer: int

    def name(self, kind: str) -> str:
        """The contestant's."""
        merging = f" merging {self.per_layer}" if self.per_layer else ""
        return f"vitral {kind}{' int8' if self.precision == 'int8' else ''}{merging}"


class Wish(NamedTuple):
    """How much is measured."""

    kind: str  # of engine
    batch: int
    rounds: int
    images: int


def measure(model: str, samples: Samples, wish: Wish, settings: Sequence[Setting]) -> Curves:
    """A point for each setting of an engine."""
    threads, kind, batch = cpu_count(), wish.kind, wish.batch
    hits, images = answered(model, samples, wish, settings, threads)
    engines = [BenchEngine(setting.name(kind), OWN_WORKER) for setting in settings]
    (cell,) = measure_cells(BenchPlan([model], [batch], engines, threads, Duration(wish.rounds)), log_progress)
    rows = {row.engine: row for row in cell.rows}
    points = [point_of(setting, rows[setting.name(kind)], hits[setting], images) for setting in settings]
    facts = {"machine": describe_machine(threads), "model": model, "data": samples.where, "engine": kind}
    return Curves(images=images, batch=batch, points=tuple(points), **facts)


def answered(
    model: str, samples: Samples, wish: Wish, settings: Sequence[Setting], threads: int
) -> tuple[dict[Setting, int], int]:
    """How many images each engine names rightly, and how many there are."""
    loaded = load(model)
    pixels, labels = pixels_of(loaded.bundle, samples, choose_split(samples, ""), wish.images)
    calibrating, _ = pixels_of(loaded.bundle, samples, "train", most=CALIBRATING)
    hits = {}
    for setting in settings:
        hits[setting] = right(build_engine(setting.name(wish.kind), loaded, threads, calibrating), pixels, labels)
        say(f"{setting.name(wish.kind)}: {hits[setting]} of {len(labels)} right")
    return hits, len(labels)


def point_of(setting: Setting, row: Row, hits: int, images: int) -> Point:
    return Point(
        precision=setting.precision,
        per_layer=setting.per_layer,
        rate=row.rate,
        low=row.low,
        high=row.high,
        top1=hits / images,
        interval=wilson_interval(hits, images),
    )


def table(curves: Curves) -> str:
    """The curves in rows, each beside the engine that merges and quantizes nothing."""
    first = curves.points[0]
    lines = [f"{curves.model} on {curves.data}: {curves.images:,} images; {curves.engine}, batch {curves.batch}"]
    for point in curves.points:
        lines.append(
            f"{point.precision:<8} merging {point.per_layer:>3}: {point.rate:7.1f}/s ({point.low:.1f} to "
            f"{point.high:.1f})  {point.rate / first.rate:.2f} x  top-1 {point.top1:.2%} "
            f"({100 * (point.top1 - first.top1):+.2f} points)"
        )
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.token_merging", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", help="a run or a bundle that classifies")
    parser.add_argument("data", help="a set of its classes")
    parser.add_argument("--root", default="", help="where the files of a set known by name are")
    parser.add_argument("--counts", default="0,4,8,12,14,16,18,20", help="merged in every layer")
    parser.add_argument("--engine", default="openvino")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--images", type=int, default=10_000, help="that judge, at the most")
    parser.add_argument("--out", type=Path, default=Path("merging.json"))
    given = parser.parse_args(words)
    counts = [int(word) for word in given.counts.split(",")]
    kinds: tuple[Precision, ...] = ("float32", "int8")
    settings = [Setting(precision, count) for precision in kinds for count in counts]
    samples = open_data(given.data, split_config(given.model), given.root)
    wish = Wish(given.engine, given.batch, given.rounds, given.images)
    found = measure(given.model, samples, wish, settings)
    given.out.write_text(found.to_json(), encoding="utf-8")
    print(found.machine)
    print(table(found))


if __name__ == "__main__":
    main()
