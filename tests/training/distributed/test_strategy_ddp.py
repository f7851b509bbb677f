"""Copies of a task stay alike to the bit, whether or not the run stops."""

from pathlib import Path

import pytest

from tests.training.distributed.processes import play
from tests.training.distributed.race import images


@pytest.mark.slow
def test_a_stop_changes_no_bit_with_more_than_two_processes(tmp_path: Path) -> None:
    images(tmp_path / "photos")
    play("three", tmp_path, 3)
    through, stopped = ((tmp_path / f"{name}.safetensors").read_bytes() for name in ("through", "stopped"))
    assert through == stopped
