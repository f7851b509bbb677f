"""Drafts of folders, made by real processes that are killed."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from vitral.deploy.drafts import drafting

KILLED = """
import os, sys
from pathlib import Path
from vitral.deploy.drafts import drafting
with drafting(Path(sys.argv[1])) as draft:
    draft.mkdir()
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
    with drafting(tmp_path / "out") as draft:
        draft.mkdir()
        (draft / "model.onnx").touch()
        assert draft.parent.parent == tmp_path  # on the same disk, where renaming happens at once
        draft.rename(tmp_path / "out")
    assert names(tmp_path) == ["out"]
    assert names(tmp_path / "out") == ["model.onnx"]


def test_after_an_error_there_is_nothing(tmp_path: Path) -> None:
    def broken_off() -> None:
        with drafting(tmp_path / "out") as draft:
            draft.mkdir()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken_off()
    assert names(tmp_path) == []


def test_what_a_killed_process_left_is_swept_and_what_others_write_is_not(tmp_path: Path) -> None:
    leftover, other = left_behind(tmp_path / "out"), left_behind(tmp_path / "out-int8")
    (tmp_path / "out.tmp-by-hand").mkdir()
    with drafting(tmp_path / "out") as draft, drafting(tmp_path / "out"):
        assert not leftover.exists()
        draft.mkdir()  # it is still there, though another began after it
    assert names(tmp_path) == sorted([other.name, "out.tmp-by-hand"])


def test_many_that_begin_the_same_at_once_do_not_sweep_each_other(tmp_path: Path) -> None:
    troubles: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(30):
                with drafting(tmp_path / "out") as draft:
                    draft.mkdir()
                    (draft / "file").touch()
        except BaseException as error:
            troubles.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert troubles == []
    assert names(tmp_path) == []
