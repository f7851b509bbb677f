"""Every test runs in one thread, from the same seeds."""

import gc
import logging
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import settings

# Torch and BLAS read this when they are first imported, so a test without torch does not wait for it.
os.environ["OMP_NUM_THREADS"] = "1"

# Hundreds of processes import vitral: each would compile it anew where this is set.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# The same examples on every machine and no deadline: no test may need a second run to pass.
settings.register_profile("vitral", derandomize=True, deadline=None)
settings.load_profile("vitral")


# What is imported and collected stays: to look through it again and again took an eighth of the time of the tests.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    """Let `make test` not wait for the disk: nothing that survives a process depends on it. `make test-all` does."""
    if config.option.markexpr == "not slow":
        os.fsync = lambda fd: None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what `sampled` leaves out: all cases of a test but every step-th."""
    counts: Counter[str] = Counter()
    for item in items:
        if sampled := item.get_closest_marker("sampled"):
            name = item.nodeid.partition("[")[0]
            if counts[name] % sampled.args[0]:
                item.add_marker("slow")
            counts[name] += 1


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """Restore the level that a command line sets, so that the next test captures the same messages in any order."""
    log = logging.getLogger("vitral")
    level = log.level
    yield
    log.setLevel(level)


@pytest.fixture(autouse=True)
def seeds() -> None:
    seed()


def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> None:
    """Seed for what several tests share too: it is made before their own seeds, after whichever tests came first."""
    if fixturedef.scope != "function":
        seed()


def seed() -> None:
    """Seed every generator that has been imported."""
    random.seed(0)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(0)  # no test uses a GPU, for which manual_seed formats the whole stack
        torch.set_warn_always(True)  # else a warning fails the first test that causes it, and hides from the others
