"""Real processes that meet each other, for the tests."""

import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
SECONDS = 300  # in which a scene must be over
LONG = 900  # the scene of every method


def begin(scene: str, folder: Path, size: int) -> list[subprocess.Popen[str]]:
    """The processes of a scene, each with one thread."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.training.distributed.member", scene, str(folder)]
    return [
        subprocess.Popen(
            command, env=os.environ | place | {"RANK": str(rank)}, cwd=ROOT, stderr=subprocess.PIPE, text=True
        )
        for rank in range(size)
    ]


def play(scene: str, folder: Path, size: int = 2) -> None:
    """See a scene through."""
    processes = begin(scene, folder, size)
    try:
        for process in processes:
            _, said = process.communicate(timeout=LONG if scene == "all_methods" else SECONDS)
            assert process.returncode == 0, said
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
