"""What the system says, in our words."""

import errno
import os
from pathlib import Path

import pytest

from vitral.errors import WeightsError
from vitral.weights.refusal import failure, reading, reason, remedy


def test_a_refusal_is_told_with_its_remedy() -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert (reason(full), remedy(full)) == ("no space left on device", "make room on that disk")
    assert (reason(OSError("Odd")), remedy(OSError("Odd"))) == ("odd", "mend that")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="cannot be read: is a directory") as caught, reading(tmp_path):
        tmp_path.read_bytes()
    assert caught.value.where == str(tmp_path)
    with pytest.raises(WeightsError, match="no such file or directory; check the path, or copy"), reading(tmp_path):
        (tmp_path / "none").read_bytes()


def test_a_failure_names_file_reason_what_is_kept_and_remedy(tmp_path: Path) -> None:
    told = str(failure(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), tmp_path, "all else is whole"))
    start = f"{tmp_path}: cannot be written: no space left on device; all else is whole; "
    assert told == f"{start}make room on that disk, then resume the run"
