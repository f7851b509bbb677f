"""A start that is killed before its run exists: the folder that it leaves is taken over by the next start."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.errors import raises
from tests.processes import ROOT, run_forked
from tests.runs.small import SETTINGS, begin, content, recipe_and_samples
from vitral.core.storage import Lock
from vitral.runs.folder import is_finished, is_run, refuse_existing
from vitral.runs.preflight import create_run

# Runs `vitral ARGUMENTS`, and kills the process before it changes the folder once more than so many times.
KILLED = """
import os, signal, sys

home, left = sys.argv[1], int(sys.argv[2])
CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate"}

def on_event(event, arguments):
    global left
    written = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if (event in CHANGES or written) and str(arguments[0]).startswith(home):
        if not left and os.environ.get("RANK", "0") == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

sys.addaudithook(on_event)
from vitral import cli

cli.main(sys.argv[3:])
"""
SETUP_CHANGES = 9  # at least so many changes before the folder is a run


def arguments(home: Path) -> list[str]:
    settings = [word for setting in (*SETTINGS, "batch_size=6") for word in ("--set", setting)]
    data = [str(home / "photos"), "--recipe", "small_hundreds", *settings]
    return ["train", *data, "--out", str(home / "job"), "--auto-resume"]


def test_a_start_that_is_killed_at_any_instant_of_its_setup_can_be_started_again(home: Path) -> None:
    begin(home, "batch_size=6")
    for changes in range(100):
        died = run_forked(str(home / "job"), str(changes), *arguments(home), code=KILLED)
        assert died.returncode == -signal.SIGKILL, died.stderr
        if is_run(str(home / "job")):
            break
    assert changes >= SETUP_CHANGES
    done = run_forked(*arguments(home))
    assert done.returncode == 0, done.stderr
    assert content(home / "job") == content(home / "run")
    assert is_finished(str(home / "job"))
    times = [path.stat().st_mtime_ns for path in sorted((home / "job").rglob("*"))]
    again = run_forked(*arguments(home))
    assert (again.returncode, again.stdout) == (0, f"{home / 'job'}\n")
    assert [path.stat().st_mtime_ns for path in sorted((home / "job").rglob("*"))] == times


@pytest.mark.slow
@pytest.mark.parametrize("changes", range(0, SETUP_CHANGES + 8, 4))
def test_each_kill_during_setup_resumes_to_the_same_bits(home: Path, changes: int) -> None:
    begin(home, "batch_size=6")
    died = run_forked(str(home / "job"), str(changes), *arguments(home), code=KILLED)
    assert died.returncode == -signal.SIGKILL, died.stderr
    done = run_forked(*arguments(home))
    assert done.returncode == 0, done.stderr
    assert content(home / "job") == content(home / "run")


def two_processes(home: Path, words: list[str]) -> list[tuple[int, str]]:
    """The exit codes and the errors of two processes of one run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, *words], env=os.environ | place | {"RANK": str(rank)}, cwd=ROOT, stderr=-1, text=True
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=120)[1] for process in started]
    return [(process.returncode, text) for process, text in zip(started, said, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("changes", [2, 9])
def test_two_processes_start_again_after_a_kill_during_setup(home: Path, changes: int) -> None:
    (first, own), (second, said) = two_processes(
        home, ["-c", KILLED, str(home / "job"), str(changes), *arguments(home)]
    )
    assert first == -signal.SIGKILL, own
    assert second == 1, said
    assert "error[run.lost_process]: process 0 of 2 " in said
    for code, text in two_processes(home, ["-m", "vitral", *arguments(home)]):
        assert code == 0, text
    assert is_finished(str(home / "job"))


def test_only_a_folder_of_our_own_is_taken_over(home: Path) -> None:
    recipe, samples = recipe_and_samples(home / "photos")
    folder = home / "new"
    folder.mkdir()
    (folder / "split.csv").write_text("somebody's own")
    with raises("config.path_exists", folder):  # without our lock
        refuse_existing(str(folder))
    (folder / ".lock").touch()
    refuse_existing(str(folder))
    (folder / "notes.txt").touch()
    with raises("config.path_exists", folder):
        refuse_existing(str(folder))
    (folder / "notes.txt").unlink()
    (folder / "environment.json").symlink_to(home / "elsewhere")
    with raises("config.path_exists", folder):
        refuse_existing(str(folder))
    (folder / "environment.json").unlink()
    (folder / "recipe.json.tmp").write_text("{")
    with Lock(folder), raises("config.run_locked", folder):  # its process still lives
        create_run(str(folder), recipe, samples, [])
    create_run(str(folder), recipe, samples, [])
    assert {path.name for path in folder.iterdir()} == {
        ".lock", "environment.json", "manifest.json", "split.csv", "recipe.json",
    }  # fmt: skip
