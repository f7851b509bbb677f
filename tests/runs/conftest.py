from pathlib import Path

import pytest

from tests.runs.small import photos


@pytest.fixture
def home(tmp_path: Path) -> Path:
    photos(tmp_path / "photos")
    return tmp_path
