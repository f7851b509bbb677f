"""Fine-tuning in stages under torchrun: killed in each stage, it resumes to the bits of a run that was not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs.small import SETTINGS, begin, content, photos
from tests.training.distributed.processes import ROOT, SECONDS

STAGED = ("finetune=staged", "finetune.layers=1", "task.mixing=none", "average=polyak", "batch_size=6")
# A process that kills itself, and with it the others, after a step.
KILLED = """
import os, signal
from vitral.runs.session import Session
save, step = Session.save, int(os.environ["KILLED_AT"])
def killed(session, at):
    save(session, at)
    if at == step and session.group.is_main:
        session.writer.wait()
        os.kill(os.getpid(), signal.SIGKILL)
Session.save = killed
from vitral.cli.terminal.app import main
main()
"""


def launch(script: list[str], words: list[str], **variables: str) -> int:
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [*start, *script, *words],
        env=os.environ | {"OMP_NUM_THREADS": "1"} | variables,
        cwd=ROOT,
        check=False,
        capture_output=True,
        timeout=SECONDS,
    ).returncode


@pytest.mark.slow
def test_a_run_of_two_processes_killed_in_each_stage_resumes_to_the_same_bits(tmp_path: Path) -> None:
    photos(tmp_path / "photos")
    begin(tmp_path, "steps=1", out="first")
    settings = [*SETTINGS, *STAGED, "checkpoints.every_seconds=0", f"from={tmp_path / 'first'}"]
    words = ["train", str(tmp_path / "photos"), "--recipe", "small_hundreds"]
    words += [word for each in settings for word in ("--set", each)]
    assert launch(["-m", "vitral"], [*words, "--out", str(tmp_path / "unbroken")]) == 0
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    go_on = ["train", "--resume", str(tmp_path / "run")]
    assert launch([str(script)], [*words, "--out", str(tmp_path / "run")], KILLED_AT="2") != 0  # in the first stage
    assert launch([str(script)], go_on, KILLED_AT="6") != 0  # between the two
    assert launch([str(script)], go_on, KILLED_AT="9") != 0  # in the second
    assert launch(["-m", "vitral"], go_on) == 0
    assert content(tmp_path / "run") == content(tmp_path / "unbroken")
