"""What the system says, in our words."""

import errno
import os
from pathlib import Path

from tests.errors import raises
from vitral.core.storage import WRITE_HINTS, os_error_message, wrap_read_errors, write_error, write_hint


def test_a_refusal_is_told_with_its_remedy() -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert (os_error_message(full), write_hint(full)) == ("no space left on device", WRITE_HINTS[errno.ENOSPC])
    assert os_error_message(OSError("Odd")) == "odd"
    assert write_hint(OSError("Odd"))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with raises("weights.unreadable") as caught, wrap_read_errors(tmp_path):
        tmp_path.read_bytes()
    assert caught.value.where == str(tmp_path)
    with raises("weights.not_found", tmp_path), wrap_read_errors(tmp_path):
        (tmp_path / "none").read_bytes()


def test_a_failure_names_file_reason_what_is_kept_and_remedy(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with raises("file.write_failed", os_error_message(full), "all else is whole", write_hint(full)) as caught:
        raise write_error(full, tmp_path, "all else is whole")
    assert caught.value.where == str(tmp_path)
