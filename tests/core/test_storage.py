"""The lock, between real processes."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.errors import raises
from vitral.core.storage import Lock
from vitral.data.loading.shared_memory import FORK

ROOT = Path(__file__).parents[2]
HOLDER = """
import sys, time
from pathlib import Path
from vitral.core.storage import Lock
with Lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def holder(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until it is told to go, or killed."""
    line = [sys.executable, "-c", HOLDER, str(folder)]
    with subprocess.Popen(line, stdin=-1, stdout=-1, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_second_writer_is_told_who_the_first_is_and_what_to_do(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        with raises("config.run_locked", f"process {process.pid} on {socket.gethostname()}") as caught, Lock(tmp_path):
            pass
        assert caught.value.where == str(tmp_path)
        assert caught.value.hint
        assert caught.value.exit_code == 2
        process.communicate()
        with Lock(tmp_path):
            pass


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        process.kill()
        process.wait()
        with Lock(tmp_path):
            assert str(os.getpid()) in (tmp_path / ".lock").read_text()


def test_one_process_cannot_hold_it_twice_but_again(tmp_path: Path) -> None:
    for _ in range(2):
        with Lock(tmp_path), raises("config.run_locked", f"process {os.getpid()} "), Lock(tmp_path):
            pass


def test_an_error_frees_it(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Lock(tmp_path):
        raise ZeroDivisionError
    with Lock(tmp_path):
        pass


def _hold_and_fork(folder: Path, orphan: "int") -> None:
    with Lock(folder):
        child = os.fork()
        if child == 0:
            os.write(orphan, b"%d" % os.getpid())
            time.sleep(60)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_outlives_its_killed_parent_does_not_hold_it(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    process = FORK.Process(target=_hold_and_fork, args=(tmp_path, writer))
    process.start()
    worker = int(os.read(reader, 20))
    process.join()
    try:
        os.kill(worker, 0)  # it lives
        with Lock(tmp_path):
            assert str(os.getpid()) in (tmp_path / ".lock").read_text()
    finally:
        os.kill(worker, signal.SIGKILL)
        os.close(reader)
        os.close(writer)


def _leave(lock: Lock) -> None:
    lock.__exit__(None, None, None)


def test_a_forked_process_cannot_free_what_its_parent_holds(tmp_path: Path) -> None:
    with Lock(tmp_path) as lock:
        process = FORK.Process(target=_leave, args=(lock,))
        process.start()
        process.join()
        assert process.exitcode == 0
        with raises("config.run_locked"), Lock(tmp_path):
            pass


def test_a_folder_that_cannot_be_locked_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "none", tmp_path / "file"):
        with raises("file.lock_failed") as caught, Lock(folder):
            pass
        assert caught.value.where == str(folder)
        assert caught.value.exit_code == 1


def test_a_lock_with_no_name_in_it_is_held_by_another_process(tmp_path: Path) -> None:
    with Lock(tmp_path):
        (tmp_path / ".lock").write_bytes(b"")  # as in the instant before the holder has signed
        with raises("config.run_locked", tmp_path) as caught, Lock(tmp_path):
            pass
        assert str(os.getpid()) not in caught.value.message
