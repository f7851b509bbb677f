"""Drafts of folders, made by real processes that are killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.errors import raises
from vitral.core.storage import new_folder

KILLED = """
import os, sys
from pathlib import Path
from vitral.core.storage import new_folder
with new_folder(Path(sys.argv[1])) as draft:
    (draft / "model.onnx").write_bytes(b"half")
    os.kill(os.getpid(), 9)
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def left_behind(out: Path) -> Path:
    """The folder of a draft as a process leaves it that dies in the midst of it."""
    before = set(out.parent.iterdir())
    done = subprocess.run([sys.executable, "-c", KILLED, str(out)], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    (home,) = set(out.parent.iterdir()) - before
    assert (home / "new" / "model.onnx").read_bytes() == b"half"
    return home


def test_a_draft_becomes_the_folder_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    with new_folder(tmp_path / "out") as draft:
        (draft / "model.onnx").touch()
        assert draft.parent.parent == tmp_path  # on the same disk, where renaming happens at once
        assert not (tmp_path / "out").exists()
    assert names(tmp_path) == ["out"]
    assert names(tmp_path / "out") == ["model.onnx"]


def broken_off(out: Path, meanwhile: Callable[[], object]) -> None:
    """A draft that is begun, and given up after something else has happened."""
    try:
        with new_folder(out) as draft:
            (draft / "model.onnx").touch()
            meanwhile()
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert not draft.parent.exists()


def test_after_an_error_there_is_nothing(tmp_path: Path) -> None:
    broken_off(tmp_path / "out", lambda: None)
    assert names(tmp_path) == []


def test_what_a_killed_process_left_is_swept_and_what_others_write_is_not(tmp_path: Path) -> None:
    leftover, other = left_behind(tmp_path / "out"), left_behind(tmp_path / "out-int8")
    (tmp_path / "out.tmp-by-hand").mkdir()
    with new_folder(tmp_path / "out") as draft:
        assert not leftover.exists()
        broken_off(tmp_path / "out", (draft / "file").touch)  # which works only where the first draft still is
    assert names(tmp_path) == sorted(["out", other.name, "out.tmp-by-hand"])
    assert names(tmp_path / "out") == ["file"]


def test_many_that_begin_the_same_at_once_do_not_sweep_each_other(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as crowd:
        list(crowd.map(lambda _: broken_off(tmp_path / "out", lambda: None), range(120)))
    assert names(tmp_path) == []


def test_a_folder_that_came_meanwhile_is_left_as_it_is(tmp_path: Path) -> None:
    def late() -> None:
        with new_folder(tmp_path / "out"):
            (tmp_path / "out").mkdir()
            (tmp_path / "out" / "theirs").touch()

    with raises("file.write_failed", tmp_path / "out"):
        late()
    assert names(tmp_path) == ["out"]
    assert names(tmp_path / "out") == ["theirs"]


@pytest.mark.skipif(sys.platform in {"darwin", "win32"}, reason="names are text there")
@pytest.mark.parametrize("name", [b"ou\xe9t", b"p\xe9/out"])
def test_a_name_that_is_no_text_is_refused_before_anything_is_made(tmp_path: Path, name: bytes) -> None:
    out = tmp_path / os.fsdecode(name)
    with raises("config.invalid_name", "out" if name.endswith(b"out") else "udce9"), new_folder(out):
        pass
    assert not list(tmp_path.iterdir())
