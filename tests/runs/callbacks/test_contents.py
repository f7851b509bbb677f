"""Runs know their data by its contents: other bytes are refused, the same bytes elsewhere are taken."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.errors import raises
from tests.runs.small import StopAfterEachStep, begin, content, photos
from vitral.data import contents
from vitral.runs import train as start
from vitral.runs.callbacks.contents import UNKNOWN
from vitral.runs.train import resume
from vitral.training.checkpoints.checkpoint import find_newest


@pytest.fixture
def home(tmp_path: Path) -> Path:
    photos(tmp_path / "photos")
    return tmp_path


def saved_content(folder: Path) -> object:
    newest = find_newest(folder / "checkpoints").checkpoint
    assert newest is not None
    state = newest.state()
    assert isinstance(state, dict)
    return state["content"]


def same_size(home: Path) -> tuple[Path, Path]:
    """Two files of the data, made equally long."""
    first, second = home / "photos/train/dark/0.png", home / "photos/train/bright/0.png"
    longest = max(first.stat().st_size, second.stat().st_size)
    for path in (first, second):
        path.write_bytes(path.read_bytes().ljust(longest, b"\0"))
    return first, second


@pytest.mark.parametrize("in_process", [True, False])
def test_swapped_files_of_equal_size_are_refused(home: Path, monkeypatch: pytest.MonkeyPatch, in_process: bool) -> None:
    monkeypatch.setattr(contents, "FEW_FILES", 200 if in_process else 0)
    first, second = same_size(home)
    monkeypatch.setattr(start, "SignalHandler", StopAfterEachStep)
    monkeypatch.setattr(contents.ContentHash, "poll", contents.ContentHash.wait)  # complete after the first step
    begin(home)
    recorded = json.loads((home / "run/fingerprint.json").read_text())["content"]
    assert saved_content(home / "run") == recorded
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)
    with raises("data.changed", home / "photos"):
        resume(home / "run")
    (home / "run/fingerprint.json").unlink()  # the checkpoint knows it, too
    with raises("data.changed", home / "photos"):
        resume(home / "run")
    first.write_bytes(one)
    second.write_bytes(two)
    assert resume(home / "run").step > 0


def test_data_that_was_moved_is_resumed_to_the_same_bits(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(home, out="unbroken")
    with monkeypatch.context() as patch:
        patch.setattr(start, "SignalHandler", StopAfterEachStep)
        begin(home)
        (home / "photos").rename(home / "elsewhere")
        with raises("data.not_found"):
            resume(home / "run")
        stopped = resume(home / "run", data=home / "elsewhere")
        assert stopped.resume_command.endswith(f"--data {home / 'elsewhere'}")
    resume(home / "run", data=str(home / "elsewhere"))
    assert content(home / "run") == content(home / "unbroken")
    shutil.copytree(home / "elsewhere", home / "photos")
    file = home / "photos/train/dark/3.png"
    file.write_bytes(file.read_bytes()[:-1] + b"\x00")
    with raises("data.changed", home / "photos"):
        resume(home / "run")


def test_a_run_that_stopped_before_its_data_was_hashed_says_so(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "vitral")
    with monkeypatch.context() as patch:
        patch.setattr(contents.ContentHash, "poll", lambda self: "")
        patch.setattr(start, "SignalHandler", StopAfterEachStep)
        begin(home)
    assert saved_content(home / "run") == ""
    resume(home / "run")
    assert UNKNOWN in caplog.text
    assert (home / "run/fingerprint.json").exists()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("text", ["", "{}", '{"format": 1, "content": "0123"}'])
def test_a_damaged_fingerprint_is_refused(home: Path, text: str) -> None:
    begin(home)
    (home / "run/fingerprint.json").write_text(text)
    with raises("data.changed", home / "run/fingerprint.json"):
        resume(home / "run")
    assert os.path.getsize(home / "run/fingerprint.json") == len(text)
