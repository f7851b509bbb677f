"""`python -m benchmarks.loader_memory`: the memory of a loader with two workers over 10,000 batches."""

import multiprocessing
import os
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.__main__ import machine
from benchmarks.photos import jpeg
from vitral.core.config import Size
from vitral.data.datasets.source import open_data
from vitral.data.decoding.header import Decoding
from vitral.data.loading.loader import ImagePipeline, Loader
from vitral.data.loading.sampler import Shuffled
from vitral.data.transforms.crop import RandomResizedCrop

BATCHES, EVERY = 10_000, 100


def resident() -> float:
    """Megabytes of this process and its workers, pages that they share counted once."""
    processes = [os.getpid(), *(worker.pid or 0 for worker in multiprocessing.active_children())]
    lines = (line for number in processes for line in Path(f"/proc/{number}/smaps_rollup").read_text().splitlines())
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def main() -> None:
    with TemporaryDirectory() as root:
        for number in range(2000):
            path = Path(root) / "train" / str(number % 10) / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(jpeg(64, 64, number))
        sight = ImagePipeline(Size(32, 32), Decoding(), RandomResizedCrop())
        samples = open_data(root)
        loader = Loader.of(samples, "train", sight, Shuffled(), batch=16, workers=2)
        seen = []
        stream = loader.batches(0, 2 * BATCHES)  # more than are taken, or the workers would have gone home at the end
        for step, _ in zip(range(BATCHES), stream, strict=False):
            if step % EVERY == EVERY - 1:
                seen.append(resident())
                print(f"\r{step + 1} batches, {seen[-1]:.1f} MB ", end="", file=sys.stderr, flush=True)
    print(machine())
    tenth = len(seen) // 10
    parts = [median(seen[part * tenth : (part + 1) * tenth]) for part in range(10)]
    print("MB in each tenth of 10,000 batches:", *(f"{part:.1f}" for part in parts))


if __name__ == "__main__":
    main()
