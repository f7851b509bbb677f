"""`python -m benchmarks.feature_extraction`: the cost of features of a split beyond inference of the same batches.

The images are in memory. Bare inference has its batches scaled and ready, and keeps nothing of what it computes;
extraction shows every image through the loader and collects all vectors. `kept` hashes the weights and every image as
well, and writes the vectors to a new cache: what the first evaluation of a model costs.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from benchmarks.__main__ import machine, say
from benchmarks.compare import Case, Length, ratio, run_interleaved, throughput
from vitral.core.config import parse_settings
from vitral.core.machine import keep_freed_memory
from vitral.data.datasets.arrays import LabeledImages, open_arrays
from vitral.data.decoding.header import Decoding
from vitral.data.samples import Samples
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.evaluation.feature_cache import DiskCache, FeatureCache
from vitral.evaluation.subject import EvaluationContext, SubjectModel, no_progress
from vitral.models.base import Model
from vitral.models.registry import model_config
from vitral.weights.bundle import Bundle

BARE, EXTRACTION, KEPT = "bare inference", "extraction", "extraction, kept"
ENGINES = (EXTRACTION, KEPT, BARE)
GOAL = 1.05
BATCHES = 4  # in a turn
CLASSES = tuple("0123456789")
LARGE = Case("Ti/16 at 224, batch 32", BATCHES * 32, 1 / GOAL, ENGINES, (BARE,))
SMALL = Case("Ti/4 at 32, batch 128", BATCHES * 128, 1 / GOAL, ENGINES, (BARE,))
CASES = (LARGE, SMALL)
SETTINGS = {LARGE: ("image_size=224",), SMALL: ("image_size=32", "stem.patch=4")}


@dataclass(frozen=True)
class Noise:
    """The reader of so many square images."""

    images: int
    side: int

    def load(self, part: str) -> LabeledImages:
        pixels = np.random.default_rng(0).integers(256, size=(self.images, self.side, self.side, 3), dtype=np.uint8)
        return LabeledImages(pixels, (np.arange(self.images) % len(CLASSES)).astype(np.uint8))


def prepare(engine: str, case: Case) -> Callable[[], object]:
    """A turn of the case."""
    keep_freed_memory()
    config = model_config("Ti/16", settings=parse_settings([*SETTINGS[case], f"head.num_classes={len(CLASSES)}"]))
    needs = Preprocessing(image_size=config.image_size, decoding=Decoding(channels=config.channels))
    bundle = Bundle(model=config, task="classify", preprocessing=needs, classes=CLASSES)
    samples = open_arrays("noise", CLASSES, Noise(case.images, config.image_size.height))
    model = config.build().eval()
    if engine == BARE:
        return bare(model, bundle, samples)
    return partial(extract, model, bundle, samples, kept=engine == KEPT)


def bare(model: Model, bundle: Bundle, samples: Samples) -> Callable[[], object]:
    """The model on batches that are ready."""
    needs = bundle.preprocessing
    whole = torch.cat([needs.tensor(samples.read(item), item.name) for item in samples.of("test")])  # (images, C, H, W)
    batches = [batch.clone() for batch in whole.chunk(BATCHES)]

    @torch.inference_mode()
    def turn() -> None:
        for batch in batches:
            model.forward_pooled(batch)

    return turn


def extract(model: Model, bundle: Bundle, samples: Samples, kept: bool) -> None:
    """The features of the split, as an evaluation has them made."""
    with TemporaryDirectory() as home:
        cache: FeatureCache = DiskCache(Path(home)) if kept else FeatureCache()
        tools = EvaluationContext(torch.device("cpu"), len(samples.of("test")) // BATCHES, 0, 0, cache, no_progress)
        SubjectModel(model, bundle, samples, "test", tools).features("test")


def measure(case: Case, length: Length) -> str:
    """How many times the seconds of bare inference extraction takes, with the middle half of the rounds."""
    seconds = run_interleaved("benchmarks.feature_extraction", case, case.engines, length, say)
    lines = [f"{case.name}: bare inference {throughput(case, seconds[BARE]):.1f} images/s"]
    for engine in (EXTRACTION, KEPT):
        found = ratio(seconds[BARE], seconds[engine])
        verdict = "met" if found.median <= GOAL else "NOT met"
        lines.append(
            f"  {found.median:.3f} x its seconds with {engine:<16} ({found.low:.3f} to {found.high:.3f}; "
            f"{throughput(case, seconds[engine]):.1f}/s); goal: at most {GOAL}: {verdict}"
        )
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.feature_extraction",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="cases with this in their name")
    parser.add_argument("--heats", type=int, default=3, help="times that every process is started anew")
    parser.add_argument("--rounds", type=int, default=8, help="turns of each engine in a heat")
    given = parser.parse_args(words)
    print(machine(), flush=True)
    for case in CASES:
        if given.only in case.name:
            print(measure(case, Length(given.heats, given.rounds)), flush=True)


if __name__ == "__main__":
    main()
