"""A timing worker that always answers a thousandth of a second an image."""

import sys
from collections.abc import Callable

from vitral.core.errors import ConfigError
from vitral.runs.bench import serve_timings


def prepare() -> Callable[[str], float]:
    if sys.argv[1] == "broken":
        raise ConfigError("it is broken", code="config.unsupported", where="metronome")
    factor = float(sys.argv[1])
    return lambda words: factor * int(words.split()[0]) / 1000


if __name__ == "__main__":
    serve_timings(prepare)
