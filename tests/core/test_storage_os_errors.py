"""What the system says, in our words."""

import errno
import os
from pathlib import Path

from tests.errors import raises
from vitral.core.storage import REMEDIES, failure, hint, reading, reason


def test_a_refusal_is_told_with_its_remedy() -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert (reason(full), hint(full)) == ("no space left on device", REMEDIES[errno.ENOSPC])
    assert reason(OSError("Odd")) == "odd"
    assert hint(OSError("Odd"))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with raises("weights.unreadable") as caught, reading(tmp_path):
        tmp_path.read_bytes()
    assert caught.value.where == str(tmp_path)
    with raises("weights.not_found", tmp_path), reading(tmp_path):
        (tmp_path / "none").read_bytes()


def test_a_failure_names_file_reason_what_is_kept_and_remedy(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with raises("file.write_failed", reason(full), "all else is whole", hint(full)) as caught:
        raise failure(full, tmp_path, "all else is whole")
    assert caught.value.where == str(tmp_path)
