"""A group of processes for the tests that divide a model."""

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A group of one process, as sharding wants it."""
    from torch import distributed

    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()
