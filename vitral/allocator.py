"""Memory that is kept rather than given back: on Linux, half the noise and some of the cost of running on a CPU."""

import ctypes
import sys

# Parameters of glibc's mallopt(3).
TRIM_THRESHOLD, MMAP_MAX = -1, -4


def keep_freed_memory() -> bool:
    """From now on the process keeps the memory of freed tensors for the next ones, where the C library can do that.

    By default glibc returns large blocks to the kernel at once, and each step of a model then pays for thousands of
    page faults to get them back. The price is that the process stays as large as it has ever been, so this is for
    processes whose work is the model, and it is theirs to ask for.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    return mallopt is not None and bool(mallopt(MMAP_MAX, 0)) and bool(mallopt(TRIM_THRESHOLD, 2**31 - 1))
