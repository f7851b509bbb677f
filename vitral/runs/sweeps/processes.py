"""Running trials: each is `vitral train` in a separate process, some of them at once."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack

from vitral.core.custom import is_trusted
from vitral.core.errors import ConfigError
from vitral.core.files import outside_is_allowed
from vitral.core.storage import (
    Lock,
    make_folders,
    open_no_follow,
    refuse_link,
    wrap_write_errors,
    write_file_atomically,
)
from vitral.runs.folder import is_run
from vitral.runs.sweeps.folder import Trial
from vitral.training.callbacks import SignalHandler

POLL_SECONDS = 0.1
LINE_SECONDS = 30.0  # between two lines about trials that run
STOP_MESSAGE = "saving the trials that run; interrupt again to stop at once\n"


class StopSweep(Exception):
    """A signal stopped the sweep; the trials that ran are saved."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by signal {number}")
        self.signal = number


def run_trials(
    trials: Iterable[Trial], jobs: int, on_end: Callable[[Trial], None], on_wait: Callable[[Sequence[Trial]], None]
) -> None:
    """Train or resume every trial, `jobs` at a time; `on_end` is called as each ends, `on_wait` now and then.

    SIGINT or SIGTERM lets the running trials save, and raises StopSweep.
    """
    waiting = list(trials)
    running: list[tuple[Trial, subprocess.Popen[bytes]]] = []
    told = time.monotonic()
    with ExitStack() as stack:
        stack.callback(lambda: _kill([process for _, process in running]))  # an error here leaves none behind
        stop = stack.enter_context(SignalHandler(STOP_MESSAGE))
        while running or waiting:
            if stop.signal:
                _end(running)
                raise StopSweep(stop.signal)
            while waiting and len(running) < jobs:
                trial = next((each for each in waiting if not _is_locked(each)), None)
                if trial is None:  # all are still trained by the processes of a killed sweep
                    break
                waiting.remove(trial)
                running.append((trial, _start(trial)))
            time.sleep(POLL_SECONDS)
            for trial, process in [each for each in running if each[1].poll() is not None]:
                running.remove((trial, process))
                on_end(trial)
                told = time.monotonic()
            if time.monotonic() - told > LINE_SECONDS:
                told = time.monotonic()
                on_wait([trial for trial, _ in running])


def _start(trial: Trial) -> "subprocess.Popen[bytes]":
    """The process of a trial; it has its own process group, so that Ctrl-C reaches it once, through the sweep."""
    refuse_link(trial.folder.path.parent)
    make_folders(trial.folder.path.parent)
    write_file_atomically(trial.recipe_file, trial.recipe.to_json() + "\n")
    command = [sys.executable, "-m", "vitral", "train", "--recipe", str(trial.recipe_file)]
    command += ["--out", str(trial.folder.path), "--auto-resume"]
    command += [*(["--trust"] if is_trusted() else []), *(["--allow-outside"] if outside_is_allowed() else [])]
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with (
        wrap_write_errors(trial.log_file, "resume the sweep"),
        open(open_no_follow(trial.log_file, flags), "wb") as log,
    ):
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
        )


def _is_locked(trial: Trial) -> bool:
    """Whether another process is training this trial."""
    if not is_run(str(trial.folder.path)):
        return False
    try:
        with Lock(trial.folder.path):
            return False
    except ConfigError as error:
        if error.code != "config.run_locked":
            raise
        return True


def _end(running: Sequence[tuple[Trial, "subprocess.Popen[bytes]"]]) -> None:
    for process in _alive(running):
        process.send_signal(signal.SIGTERM)
    for process in _alive(running):
        process.wait()


def _alive(running: Sequence[tuple[Trial, "subprocess.Popen[bytes]"]]) -> Iterator["subprocess.Popen[bytes]"]:
    return (process for _, process in running if process.poll() is None)


def _kill(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.wait()
