"""What this machine has, and where the user keeps what can be made again."""

import os
import platform
from pathlib import Path


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads() -> int:
    """How many threads calculate at once: one for each core that this process has, or fewer by OMP_NUM_THREADS.

    Two processors that are one core share what multiplies, so two threads there are no quicker than one.
    """
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return min(_own_cores(), int(asked) if asked.isdecimal() and int(asked) else cores())


def _own_cores() -> int:
    """Cores of which this process has a processor; as many as processors where the system does not tell."""
    if not hasattr(os, "sched_getaffinity"):
        return cores()
    homes = (Path(f"/sys/devices/system/cpu/cpu{each}/topology/thread_siblings") for each in os.sched_getaffinity(0))
    try:
        return len({home.read_text() for home in homes})
    except OSError:
        return cores()


def processor() -> str:
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
