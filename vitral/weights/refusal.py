"""What the system refuses to do with a file, told so that a person can mend it."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vitral.errors import VitralError, WeightsError

REMEDIES = {
    errno.ENOSPC: "make room on that disk",
    errno.EDQUOT: "make room within your quota",
    errno.EFBIG: "raise the limit on the size of files: ulimit -f",
    errno.EACCES: "give yourself the right to write there: chmod u+rwX",
    errno.EPERM: "give yourself the right to write there: chmod u+rwX",
    errno.EROFS: "make that disk writable",
    errno.ENOENT: "put the folder back",
    errno.ENOTDIR: "put the folder back",
}

TO_READ = {
    errno.ENOENT: "check the path, or copy the folder again",
    errno.EACCES: "give yourself the right to read it: chmod u+rX",
    errno.EPERM: "give yourself the right to read it: chmod u+rX",
}


def reason(error: OSError) -> str:
    """What the system says, as a part of a sentence."""
    return (error.strerror or str(error)).lower()


def remedy(error: OSError) -> str:
    """What to do so that writing succeeds."""
    return REMEDIES.get(error.errno or 0, "mend that")


def failure(error: OSError, path: Path, kept: str) -> VitralError:
    """What to tell of a write that failed: the file or `path`, the reason, what is kept all the same, the remedy."""
    what = f"cannot be written: {reason(error)}; {kept}"
    where, advice = str(error.filename or path), f"{remedy(error)}, then resume the run"
    return VitralError(what, code="file.write_failed", where=where, remedy=advice)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """What the system does not hand out is a WeightsError that names the file."""
    try:
        yield
    except OSError as error:
        advice = TO_READ.get(error.errno or 0, "")
        code = "weights.not_found" if isinstance(error, FileNotFoundError) else "weights.unreadable"
        raise WeightsError(f"cannot be read: {reason(error)}", code=code, where=str(path), remedy=advice) from None
