"""What this machine has, and where the user keeps what can be made again."""

import os
import platform
from pathlib import Path


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
