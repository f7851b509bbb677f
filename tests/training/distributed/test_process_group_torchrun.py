"""A real run under torchrun of which one process is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.runs.small import SETTINGS, photos
from tests.training.distributed.processes import ROOT, SECONDS


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_the_processes_that_are_left_say_which_one_was_killed_and_how_to_resume(tmp_path: Path) -> None:
    photos(tmp_path / "photos")
    settings = [word for each in (*SETTINGS, "batch_size=6", "epochs=100000") for word in ("--set", each)]
    words = ["-m", "vitral", "train", str(tmp_path / "photos"), "--recipe", "small_hundreds", *settings]
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    job = subprocess.Popen(
        [*start, *words, "--out", str(tmp_path / "run")],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    deadline = time.monotonic() + SECONDS
    while not (tmp_path / "run/best").exists():
        assert job.poll() is None, job.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    environments = {int(pid): Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") for pid in children}
    second = next(pid for pid, variables in environments.items() if b"RANK=1" in variables)
    os.kill(second, signal.SIGKILL)
    _, said = job.communicate(timeout=SECONDS)
    assert job.returncode == 1
    assert "error[run.lost_process]: process 1 of 2 " in said
    assert f"hint: vitral train --resume {tmp_path / 'run'}" in said
