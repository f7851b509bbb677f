import time
from itertools import count
from pathlib import Path

import pytest

from tests.runs.small import photos


@pytest.fixture
def home(tmp_path: Path) -> Path:
    photos(tmp_path / "photos")
    return tmp_path


@pytest.fixture
def counted_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by 20 ms whenever it is read: what has a time limit takes as many steps on any machine."""
    readings = count()
    monkeypatch.setattr(time, "monotonic", lambda: 0.02 * next(readings))
