"""A process that is lost ends the others soon, and they say which and why."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.training.distributed.processes import ROOT, SECONDS, begin
from tests.training.distributed.race import images
from vitral.training.checkpoints.checkpoint import find_newest


@pytest.mark.slow
def test_a_killed_process_ends_the_job_within_30_seconds_and_it_can_be_resumed(tmp_path: Path) -> None:
    images(tmp_path / "photos")
    command = ["--nproc-per-node", "2", "-m", "tests.training.distributed.member", "killed", str(tmp_path)]
    job = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *command],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    saved = tmp_path / "checkpoints" / "step-00000003"
    while not saved.exists():
        assert job.poll() is None, job.communicate()[1]
        time.sleep(0.1)
    started = time.monotonic()
    _, said = job.communicate(timeout=SECONDS)
    assert time.monotonic() - started < 30
    assert job.returncode == 1
    assert "error[run.lost_process]: process 1 of 2 " in said
    assert "where: process 0" in said
    assert "vitral train --resume RUN" in said
    found = find_newest(tmp_path / "checkpoints").checkpoint
    assert found is not None
    assert found.step == 3
    assert len(found.load().tensors["task"]) > 10


@pytest.mark.slow
def test_the_cause_that_a_process_gives_is_told_by_the_others(tmp_path: Path) -> None:
    waiting, failing = begin("failed", tmp_path, 2)
    _, own = failing.communicate(timeout=SECONDS)
    _, told = waiting.communicate(timeout=SECONDS)
    assert (failing.returncode, waiting.returncode) == (3, 1)
    assert own.startswith("error[data.truncated_image]: ")
    assert "\nwhere: cat/07.jpg\n" in own
    first, *rest = (line for line in told.splitlines() if line.startswith(("error", "where", "hint")))
    assert first.startswith("error[run.lost_process]: process 1 of 2 ")
    assert "cat/07.jpg: truncated after 12 KB" in first
    assert "--resume" in rest[-1]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGSTOP")
def test_a_process_that_waits_for_a_silent_one_is_ended(tmp_path: Path) -> None:
    waiting, silent = begin("frozen", tmp_path, 2)
    try:
        _, told = waiting.communicate(timeout=SECONDS)
    finally:
        silent.send_signal(signal.SIGKILL)
        silent.communicate()
    assert waiting.returncode == 1
    assert "error[run.lost_process]: process 1 of 2 " in told
    assert "\nwhere: process 0" in told
