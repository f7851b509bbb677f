"""What this machine has: cores, threads, the CPU's name, the cache folder, the allocator."""

import os
import platform
import sys
from pathlib import Path


def cpu_count() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_threads() -> int:
    """How many threads calculate at once: one for each core that this process has, or fewer by OMP_NUM_THREADS.

    Two processors that are one core share what multiplies, so two threads there are no quicker than one.
    """
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return min(_own_cores(), int(asked) if asked.isdecimal() and int(asked) else cpu_count())


def _own_cores() -> int:
    """Cores of which this process has a processor; as many as processors where the system does not tell."""
    if not hasattr(os, "sched_getaffinity"):
        return cpu_count()
    homes = (Path(f"/sys/devices/system/cpu/cpu{each}/topology/thread_siblings") for each in os.sched_getaffinity(0))
    try:
        return len({home.read_text() for home in homes})
    except OSError:
        return cpu_count()


def cpu_name() -> str:
    """The name of the processor, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def cache_folder(name: str) -> Path:
    """The user's: `$XDG_CACHE_HOME/vitral/NAME`, or in `~/.cache`."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(home) if os.path.isabs(home) else Path.home() / ".cache"  # the XDG rules ignore a relative one
    return base / "vitral" / name


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
    import ctypes  # 4 ms, which --help need not wait for

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    return mallopt is not None and bool(mallopt(MMAP_MAX, 0)) and bool(mallopt(TRIM_THRESHOLD, 2**31 - 1))
