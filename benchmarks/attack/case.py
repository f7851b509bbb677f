"""A case: files that are made, what a user would do with them, and what must come of it."""

import ctypes
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Literal, NamedTuple

from vitral.core.errors import VitralError

CPU_SECONDS = 1.0  # that a hostile file may take
MEGABYTES = 300  # that it may take beyond the baseline
PATIENCE = 30  # seconds of CPU, after which a case is ended; ten times that for what must work, and for waiting
MEMORY = 8 << 30  # bytes of address space beyond the baseline, four times that for what must work
CASES_A_CHILD = 40

Expected = Literal["error", "works", "either"]  # "either": an error or an answer, but never a crash and never dear


class Case(NamedTuple):
    """`make` writes files into an empty folder and returns what `use` opens."""

    family: str
    name: str
    make: Callable[[Path], Any]
    use: Callable[[Any], object]
    expected: Expected = "error"
    cpu_seconds: float = CPU_SECONDS


class Result(NamedTuple):
    """What came of a case; `fault` is empty where the door held."""

    family: str
    name: str
    fault: str
    outcome: str  # the code of the error, or `answered`
    seconds: float  # of CPU
    megabytes: float  # beyond the baseline


def run_case(case: Case) -> Result:
    """Run one case in this process."""
    folder = mkdtemp(prefix="attack-")
    made = case.make(Path(folder))
    before, started = reset_peak(), time.process_time()
    try:
        case.use(made)
    except VitralError as error:
        outcome = error.code
        fault = "internal error" if outcome.startswith("internal.") else ""
        if case.expected == "works":
            fault = f"refused: {error}"
    except Exception as error:
        outcome, fault = type(error).__name__, f"{type(error).__name__}: {error}"[:200]
    else:
        outcome, fault = "answered", "accepted" if case.expected == "error" else ""
    seconds, megabytes = time.process_time() - started, peak() - before
    subprocess.run(["rm", "-rf", folder], check=True)  # Python's own removal recurses, and some folders are deep
    if not fault and case.expected != "works":
        fault = cost_fault(seconds, megabytes, case.cpu_seconds)
    return Result(case.family, case.name, fault, outcome, round(seconds, 2), round(megabytes))


def cost_fault(seconds: float, megabytes: float, cpu_seconds: float) -> str:
    if seconds > cpu_seconds:
        return f"{seconds:.1f} s of CPU"
    return f"{megabytes:.0f} MB" if megabytes > MEGABYTES else ""


def reset_peak() -> float:
    """Reset the peak of this process's memory, and return what it has, in MB, without what was freed."""
    with suppress(AttributeError):  # not of glibc
        ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def peak() -> float:
    return memory("VmHWM")


def memory(field: str) -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


def run_cases(cases: Iterable[Case], warm_up: Callable[[], object] = lambda: None) -> Iterator[Result]:
    """Run cases in children of this process, some dozens each; one that dies or hangs names its case.

    A child warms up before its first case: what is imported on first use belongs to the baseline.
    """
    waiting = list(cases)
    while waiting:
        batch = waiting[:CASES_A_CHILD]
        done = 0
        for result in run_child(batch, warm_up):
            yield result
            done += 1
        if done < len(batch):  # the child died in the next one
            dead = batch[done]
            yield Result(dead.family, dead.name, "the process died or hung", "died", 0.0, 0.0)
            done += 1
        waiting = waiting[done:]


def run_child(batch: list[Case], warm_up: Callable[[], object]) -> Iterator[Result]:
    """The results of a forked child, as it gives them."""
    import json

    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        limit = used + MEMORY * (4 if any(case.expected == "works" for case in batch) else 1)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        with os.fdopen(write, "w") as out, open(os.devnull, "w") as null:
            os.dup2(null.fileno(), 1)
            os.dup2(null.fileno(), 2)
            warm_up()
            for case in batch:
                patience = PATIENCE * (10 if case.expected == "works" else 1)
                signal.setitimer(signal.ITIMER_PROF, patience)  # whose default action ends the process
                signal.alarm(10 * PATIENCE)
                out.write(json.dumps(run_case(case)) + "\n")
                out.flush()
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answers:
        for line in answers:
            yield Result(*json.loads(line))
    os.waitpid(child, 0)
