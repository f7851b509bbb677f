"""The two ways to see the doctor: every file, or as much as seconds allow."""

import random
from collections.abc import Iterator

from vitral.data.doctor.diagnosis import Diagnosis, diagnose
from vitral.data.doctor.examine import Examined, examine
from vitral.data.doctor.workers import examined, watched
from vitral.data.samples import Samples
from vitral.errors import DataError

FEW_FILES = 200
FEW_BYTES = 64_000_000  # of encoded images: some seconds of decoding, whatever their size


def check(samples: Samples, workers: int) -> Diagnosis:
    """Every file examined, by so many processes, with a bar on a terminal."""
    return diagnose(samples, list(watched(examined(samples, workers), len(samples.items))))


def quick(samples: Samples) -> Diagnosis:
    """All that can be told without reading every file, and a few files drawn at random, the same ones every time."""
    return diagnose(samples, list(_drawn(samples)))


def _drawn(samples: Samples) -> Iterator[Examined]:
    count = min(FEW_FILES, len(samples.items))
    left = FEW_BYTES
    for item in random.Random(0).sample(samples.items, count):
        yield Examined(item, examine(samples.store, item))
        left -= _size(samples, item.name)
        if left < 0:
            return


def _size(samples: Samples, name: str) -> int:
    try:
        return samples.store.size(name)
    except DataError:  # it vanished, and its exam says so
        return 0
