"""What two processes did together, played once for all tests of this folder."""

import fcntl
from pathlib import Path

import pytest

from tests.training.distributed.processes import play
from tests.training.distributed.race import images


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The folder of the scenes that end well."""
    return play_once("talk+shares+partings+races+scales+some_methods+full", tmp_path_factory, request)


@pytest.fixture(scope="session")
def played_exactly(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The folder of the runs in float64, which take longer than all other scenes."""
    return play_once("exact", tmp_path_factory, request)


@pytest.fixture(scope="session")
def played_all_methods(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The folder of the runs of every self-supervised method."""
    return play_once("all_methods", tmp_path_factory, request)


def play_once(scene: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The folder of a scene, which the workers of a test run share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if hasattr(request.config, "workerinput") else base) / scene
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            images(folder / "photos")
            play(scene, folder)
            (folder / "done").touch()
    return folder
