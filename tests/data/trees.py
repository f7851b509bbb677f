"""Real folders for the tests of the sources."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from vitral.core.errors import VitralError
from vitral.data.samples import Samples


def plant(root: Path, names: Iterable[str]) -> Path:
    """Make each file below the root with its own name as content; a name that ends in / is a folder."""
    for name in names:
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(name.encode())
    return root


def labeled(samples: Samples) -> dict[str, str]:
    """The class of every image by name."""
    return {row.name: row.label for row in samples.rows()}


def refused_at(caught: pytest.ExceptionInfo[VitralError]) -> str:
    """Where the error points, having a remedy and the exit code of bad data."""
    assert caught.value.exit_code == 3
    assert caught.value.hint
    return caught.value.where
