"""What two processes did together, played once for all tests of this folder."""

import fcntl
from pathlib import Path

import pytest

from tests.training.distributed.processes import play
from tests.training.distributed.race import images


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The folder of the scenes that end well; the workers of a test run share it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if hasattr(request.config, "workerinput") else base) / "played"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            images(folder / "photos")
            play("talk+partings+races+exact+scales+full", folder)
            (folder / "done").touch()
    return folder
