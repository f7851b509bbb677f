"""What two processes did together, played once for all tests of this folder."""

from pathlib import Path

import pytest

from tests.train.distributed.processes import play
from tests.train.distributed.race import images


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the scenes that end well."""
    folder = tmp_path_factory.mktemp("played")
    images(folder / "photos")
    play("talk+races+scales+full", folder)
    return folder
