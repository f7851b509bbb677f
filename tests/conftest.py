"""Every test runs in one thread, from the same seeds."""

import os
import random
import sys

import pytest
from hypothesis import settings

# Torch and BLAS read this when they are first imported, so a test without torch does not wait for it.
os.environ["OMP_NUM_THREADS"] = "1"

# The same examples on every machine and no deadline: no test may need a second run to pass.
settings.register_profile("vitral", derandomize=True, deadline=None)
settings.load_profile("vitral")


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
        torch.manual_seed(0)
