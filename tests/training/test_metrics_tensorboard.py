"""Scalars for TensorBoard: written where it is installed, and nothing where it is not."""

import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from vitral.training.metrics import TensorBoardWriter

ROOT = Path(__file__).parents[2]


def test_files_are_written_only_where_tensorboard_is_installed(tmp_path: Path) -> None:
    board = TensorBoardWriter(tmp_path, 0)
    board.add(1, {"loss/train": 2.0})
    board.close()
    assert (tmp_path / "tensorboard").exists() == (find_spec("tensorboard") is not None)


def test_nothing_is_imported_before_the_first_scalar(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from vitral.training.metrics import TensorBoardWriter; "
    code += "TensorBoardWriter(Path(), 0).close(); "
    code += "assert 'torch.utils.tensorboard' not in sys.modules; assert 'tensorboard' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_steps_after_a_cut_replace_those_before_it(tmp_path: Path) -> None:
    reader = import_module("tensorboard.backend.event_processing.event_accumulator")
    board = TensorBoardWriter(tmp_path, 0)
    for step in (1, 2, 3):
        board.add(step, {"loss/train": float(step)})
    board.truncate(1)
    board.add(2, {"loss/train": 20.0})
    board.close()
    found = reader.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in found.Scalars("loss/train")] == [(1, 1.0), (2, 20.0)]
