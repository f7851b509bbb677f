"""Saving in the background: what is written, when, and how it fails."""

import threading
from pathlib import Path

import pytest
import torch

from tests.errors import raises
from tests.training.states import identical, names, state_of, surviving
from vitral.core.storage import Storage
from vitral.training.checkpoints.checkpoint import AsyncCheckpointWriter, find_newest


class Gate:
    """Holds the disk back at its first operation until it is opened."""

    def __init__(self) -> None:
        self.opened, self.reached = threading.Event(), threading.Event()

    def __call__(self, done: str) -> None:
        self.reached.set()
        assert self.opened.wait(60)


def test_what_is_written_is_the_state_at_the_call(tmp_path: Path) -> None:
    gate = Gate()
    saver = AsyncCheckpointWriter(tmp_path / "c", 2, Storage(gate))
    tensors, state = state_of(7)
    assert isinstance(state, dict)
    saver.save(7, tensors, state, None)
    assert gate.reached.wait(60)
    assert surviving(tmp_path / "c") is None  # the call came back, and the disk has not
    for tensor in tensors["model"].values():
        tensor.zero_()
    state["step"] = 8
    state["dice"].append(9)  # type: ignore[union-attr]
    gate.opened.set()
    saver.wait()
    assert surviving(tmp_path / "c") == 7
    saver.close()


def test_a_second_save_waits_for_the_first(tmp_path: Path) -> None:
    gate = Gate()
    saver = AsyncCheckpointWriter(tmp_path, 2, Storage(gate))
    saver.save(1, *state_of(1), None)
    second = threading.Thread(target=saver.save, args=(2, *state_of(2), None))
    second.start()
    second.join(0.2)
    assert second.is_alive()
    gate.opened.set()
    second.join()
    assert (tmp_path / "step-00000001").exists()
    saver.close()
    assert surviving(tmp_path) == 2


def test_keep_and_best_are_handed_on(tmp_path: Path) -> None:
    saver = AsyncCheckpointWriter(tmp_path, 2)
    for step in range(1, 6):
        saver.save(step, *state_of(step), best=2)
    saver.close()
    assert names(tmp_path) == [f"step-0000000{step}" for step in (2, 4, 5)]


def test_parameters_that_train_and_views_are_copied(tmp_path: Path) -> None:
    layer = torch.nn.Linear(3, 2)
    tied = {"weight": layer.weight, "again": layer.weight, "turned": layer.weight.T}
    saver = AsyncCheckpointWriter(tmp_path, 1)
    saver.save(1, {"model": tied}, None, None)
    saver.close()
    checkpoint = find_newest(tmp_path).checkpoint
    assert checkpoint is not None
    assert identical(checkpoint.load().tensors, {"model": tied})


@pytest.mark.parametrize("call", ["save", "wait", "close"])
def test_an_error_in_writing_is_raised_by_the_next_call_and_once(tmp_path: Path, call: str) -> None:
    (tmp_path / "c").touch()
    saver = AsyncCheckpointWriter(tmp_path / "c", 2)
    saver.save(1, *state_of(1), None)
    calls = {"save": lambda: saver.save(2, *state_of(2), None), "wait": saver.wait, "close": saver.close}
    with raises("file.write_failed", tmp_path / "c"):
        calls[call]()
    saver.close()


def test_saving_goes_on_after_an_error_was_mended(tmp_path: Path) -> None:
    (tmp_path / "c").touch()
    saver = AsyncCheckpointWriter(tmp_path / "c", 2)
    saver.save(1, *state_of(1), None)
    with raises("file.write_failed"):
        saver.wait()
    (tmp_path / "c").unlink()
    saver.save(2, *state_of(2), None)
    saver.close()
    assert surviving(tmp_path / "c") == 2


def test_closing_leaves_no_thread_and_may_be_done_twice(tmp_path: Path) -> None:
    before = threading.active_count()
    saver = AsyncCheckpointWriter(tmp_path, 2)
    saver.save(1, *state_of(1), None)
    saver.close()
    saver.close()
    assert threading.active_count() == before
