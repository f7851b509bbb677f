"""The machine: cores, threads, its load, the cache folder, the allocator, and memory (total, available, peak)."""

import os
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch


def cpu_count() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


THREADS = ("MKL_NUM_THREADS", "OMP_NUM_THREADS")  # as torch heeds them: the first that is a number


def default_threads() -> int:
    """The default number of threads: one for each core of this process, or fewer by the variables of `THREADS`.

    Two processors of one core share its multipliers, so two threads there are no faster than one.
    """
    given = (os.environ.get(name, "").partition(",")[0].strip() for name in THREADS)
    asked = next((int(each) for each in given if each.isdecimal() and int(each)), cpu_count())
    return min(_own_cores(), asked)


def _own_cores() -> int:
    """The number of cores that this process may use; that of processors where the system does not report cores."""
    if not hasattr(os, "sched_getaffinity"):
        return cpu_count()
    homes = (Path(f"/sys/devices/system/cpu/cpu{each}/topology/thread_siblings") for each in os.sched_getaffinity(0))
    try:
        return len({home.read_text() for home in homes})
    except OSError:
        return cpu_count()


WAIT_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
SPIN_COUNT = "10000"  # tenths of a millisecond; by default several, which measures no faster on a quiet machine


def bound_spinning() -> None:
    """Let threads of OpenMP that wait for each other sleep soon; to be called before torch is imported.

    They spin for milliseconds otherwise. If other processes need the cores, a thread spins while the one that it waits
    for cannot run, and a step of training takes several times as long (`benchmarks.busy`). Read by libgomp, which torch
    has on Linux. What the user has set is left alone.
    """
    if not any(name in os.environ for name in WAIT_VARIABLES):
        os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT


def other_running_threads(looks: int = 5, pause: float = 0.01) -> float:
    """How many threads run or wait for a processor besides this one: the mean of a few looks.

    The load average of the last minute where the system does not count them.
    """
    counts = []
    try:
        for _ in range(looks):
            time.sleep(pause)
            counts.append(int((PROC_ROOT / "loadavg").read_text().split()[3].partition("/")[0]) - 1)
    except (OSError, ValueError, IndexError):
        return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return sum(counts) / looks


def cpu_name() -> str:
    """The name of the processor, as the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def cache_folder(name: str) -> Path:
    """A folder in the user's cache: `$XDG_CACHE_HOME/vitral/NAME`, or in `~/.cache`."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(home) if os.path.isabs(home) else Path.home() / ".cache"  # by the XDG rules a relative one is ignored
    return base / "vitral" / name


# Parameters of glibc's mallopt(3).
TRIM_THRESHOLD, MMAP_MAX = -1, -4


def keep_freed_memory() -> bool:
    """Keep the memory of freed tensors in the process for later ones; False if the C library cannot do that.

    By default glibc returns large blocks to the kernel at once, and each step of a model then causes thousands of page
    faults to get them back. The process stays as large as its peak, so this is for processes that mainly run a model,
    and they must call it themselves.
    """
    if not sys.platform.startswith("linux"):
        return False
    import ctypes  # 4 ms, which --help need not wait for

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    return mallopt is not None and bool(mallopt(MMAP_MAX, 0)) and bool(mallopt(TRIM_THRESHOLD, 2**31 - 1))


CGROUP_ROOT = Path("/sys/fs/cgroup")
PROC_ROOT = Path("/proc")
UNLIMITED = 2**60  # bytes; version 1 of control groups writes a number above this


class CgroupFiles(NamedTuple):
    """The files with the memory limit and usage, by version of control groups."""

    limit: str
    used: str
    reclaimable: str  # entry of memory.stat: cached files that the kernel frees on demand


CGROUP_V1 = CgroupFiles("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
CGROUP_V2 = CgroupFiles("memory.max", "memory.current", "inactive_file")


def available_memory(device: "torch.device") -> int:
    """Bytes that this process can still allocate on a device."""
    if device.type == "cuda":
        import torch

        return torch.cuda.mem_get_info(device)[0]
    try:
        free = 1024 * int(_entries(PROC_ROOT / "meminfo", ":")["MemAvailable"].split()[0])
    except (OSError, KeyError):  # not Linux: what is free is unknown
        return total_memory() or UNLIMITED
    return min([free, *cgroup_available(_memberships(), CGROUP_ROOT)])


def total_memory() -> int:
    """Bytes of memory that this process may use at most; 0 if unknown."""
    if sys.platform == "win32":
        return 0
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([installed, *(limit for _, _, limit in cgroup_limits(_memberships(), CGROUP_ROOT))])


def peak_memory(device: "torch.device") -> int:
    """The peak memory of a run so far, in bytes: of the GPU, or else of this process and its workers.

    Workers count with their private memory at this moment: shared memory would be counted twice.
    """
    from multiprocessing import active_children  # not needed for --help

    if device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        return 0
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    own = unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return own + sum(private_bytes(worker.pid) for worker in active_children() if worker.pid is not None)


def private_bytes(process: int) -> int:
    """Bytes that a process shares with no other; 0 if unknown, or if it has ended."""
    try:
        entries = _entries(PROC_ROOT / str(process) / "smaps_rollup", ":")
    except OSError:
        return 0
    return 1024 * sum(int(entries[name].split()[0]) for name in ("Private_Clean", "Private_Dirty") if name in entries)


def cgroup_available(memberships: str, root: Path) -> list[int]:
    """Bytes left under each limit of the control groups of a process, which are listed as in /proc/self/cgroup."""
    found = []
    for folder, group, limit in cgroup_limits(memberships, root):
        used = int((folder / group.used).read_text())
        reclaimable = int(_entries(folder / "memory.stat", " ").get(group.reclaimable, "0"))
        found.append(max(0, limit - used + reclaimable))
    return found


def cgroup_limits(memberships: str, root: Path) -> Iterator[tuple[Path, CgroupFiles, int]]:
    """The folders of the control groups that limit memory, with the limit in bytes; outer groups limit inner ones."""
    for line in memberships.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        group, base = (CGROUP_V1, root / "memory") if controllers else (CGROUP_V2, root)
        inner = base / path.lstrip("/")
        for folder in (inner, *(parent for parent in inner.parents if parent.is_relative_to(base))):
            try:
                text = (folder / group.limit).read_text().strip()
            except OSError:  # no such group here: a container may see its own as the root
                continue
            if text != "max" and int(text) < UNLIMITED:
                yield folder, group, int(text)


def _memberships() -> str:
    try:
        return (PROC_ROOT / "self/cgroup").read_text()
    except OSError:
        return ""


def _entries(path: Path, separator: str) -> dict[str, str]:
    pairs = (line.partition(separator) for line in path.read_text().splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
