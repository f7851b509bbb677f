"""The crew: real processes that fill, fail, die and go home."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from multiprocessing.synchronize import Lock
from pathlib import Path

import pytest

from tests.errors import raises
from tests.processes import run_forked
from vitral.core.errors import DataError, VitralError
from vitral.data.loading import workers
from vitral.data.loading.shared_memory import FORK, SPAWN, Context, SharedArray, create_shared
from vitral.data.loading.workers import PREFETCH, WorkerPool


@dataclass(frozen=True)
class Counting:
    """Writes 100 step + row; what happens at the row of trouble is chosen."""

    ring: SharedArray
    trouble: str = ""
    at: tuple[int, int] = (3, 2)

    def rows(self, step: int) -> int:
        return 5

    def name(self, step: int, row: int) -> str:
        return f"image {step}.{row}"

    def write_row(self, step: int, row: int, slot: int) -> None:
        if (step, row) == self.at:
            match self.trouble:
                case "refuse":
                    raise DataError(
                        "truncated", code="data.truncated_image", where=self.name(step, row), hint="remove it"
                    )
                case "fault":
                    raise ZeroDivisionError("of ours")
                case "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "exit":
                    os._exit(0)
                case "hang":
                    time.sleep(1000)
        self.ring.array[slot, row] = 100 * step + row


def start_pool(
    workers: int, trouble: str = "", steps: range = range(9), context: Context = FORK
) -> tuple[WorkerPool, Counting]:
    work = Counting(create_shared((PREFETCH, 5), "int64", context), trouble)
    return WorkerPool(work, steps, workers, context), work


@pytest.mark.parametrize(("workers", "context"), [(1, FORK), (2, FORK), (3, FORK), (7, FORK), (1, SPAWN)])
@pytest.mark.sampled(3)
def test_every_row_of_every_step_is_filled_in_turn(workers: int, context: Context) -> None:
    pool, work = start_pool(workers, steps=range(4, 14), context=context)
    filled = [work.ring.array[slot].tolist() for slot in pool.slots()]
    assert filled == [[100 * step + row for row in range(5)] for step in range(4, 14)]
    assert pool.close()


def test_no_worker_runs_further_ahead_than_the_ring() -> None:
    pool, work = start_pool(2)
    for step, slot in enumerate(pool.slots()):
        time.sleep(0.02)  # a worker that overran would write over what is looked at
        assert work.ring.array[slot].tolist() == [100 * step + row for row in range(5)]
    assert pool.close()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("trouble", "kind", "code", "found"),
    [
        ("refuse", DataError, "data.truncated_image", ""),
        ("fault", VitralError, "internal.unexpected", "ZeroDivisionError: of ours"),
        ("kill", DataError, "data.lost_process", "SIGKILL"),
        ("exit", DataError, "data.lost_process", "exit code 0"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_trouble_names_the_image_after_all_batches_before_it(
    workers: int, trouble: str, kind: type[VitralError], code: str, found: str
) -> None:
    pool, _ = start_pool(workers, trouble)
    filled: list[int] = []
    with raises(code, found) as caught:
        filled.extend(pool.slots())
    assert filled == [0, 1, 2] or trouble in {"kill", "exit"}  # after a death, nothing more is awaited
    assert type(caught.value) is kind
    assert caught.value.where == "image 3.2"
    assert caught.value.hint
    assert pool.close() is (trouble != "kill")


def test_going_home_early_leaves_no_process() -> None:
    pool, _ = start_pool(3, steps=range(10**9))
    next(pool.slots())
    numbers = [process.pid for process in pool.processes]
    assert pool.close()
    for number in numbers:
        with pytest.raises(ProcessLookupError):
            os.kill(number or 0, 0)


def test_a_worker_that_dies_while_it_waits_is_not_laid_to_an_image() -> None:
    pool, _ = start_pool(2, steps=range(10**6))
    slots = pool.slots()
    next(slots)
    while pool.current.array[1].tolist() != [PREFETCH - 1, -1]:  # the ring is full
        time.sleep(0.01)
    os.kill(pool.processes[1].pid or 0, signal.SIGKILL)
    with raises("run.lost_process", "SIGKILL") as caught:
        list(slots)
    assert caught.value.where == ""
    assert not pool.close()


def test_a_fault_of_ours_tells_where_it_happened() -> None:
    pool, _ = start_pool(2, "fault")
    with raises("internal.unexpected") as caught:
        list(pool.slots())
    assert 'raise ZeroDivisionError("of ours")' in "".join(caught.value.__notes__)
    assert pool.close()


class Clinging(Counting):
    """Work that travels to one worker and no further."""

    def __getstate__(self) -> dict[str, object]:
        if multiprocessing.active_children():
            raise OSError("no more processes")
        return vars(self)


def test_when_one_worker_cannot_be_started_the_others_go_home() -> None:
    with pytest.raises(OSError, match="no more processes"):
        WorkerPool(Clinging(create_shared((PREFETCH, 5), "int64", SPAWN)), range(9), 2, SPAWN)
    assert not multiprocessing.active_children()


@dataclass(frozen=True)
class Locking(Counting):
    """One worker dies with the lock that the other waits for."""

    lock: Lock = field(default_factory=FORK.Lock)

    def write_row(self, step: int, row: int, slot: int) -> None:
        if row == 0:
            time.sleep(0.2)
        self.lock.acquire()
        super().write_row(step, row, slot)
        self.lock.release()


@pytest.mark.parametrize("late", [False, True], ids=["while it is waited for", "before that"])
def test_a_death_is_heard_of_while_the_others_wait_for_ever(monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    monkeypatch.setattr("vitral.data.loading.workers.SHUTDOWN_TIMEOUT", 0.1)
    pool = WorkerPool(Locking(create_shared((PREFETCH, 5), "int64", FORK), "kill", (0, 1)), range(9), 2, FORK)
    if late:
        pool.processes[1].join()
    with raises("data.lost_process", "SIGKILL") as caught:
        list(pool.slots())
    assert caught.value.where == "image 0.1"
    assert not pool.close()


INTERRUPTED = """
import signal
from tests.data.loading.test_workers import start_pool
signal.signal(signal.SIGINT, signal.default_int_handler)
pool, _ = start_pool(2, steps=range(10**9))
try:
    for step, slot in enumerate(pool.slots()):
        if not step:
            print("begun", flush=True)
except KeyboardInterrupt:
    print("peaceful" if pool.close() else "killed")
"""


def test_an_interrupt_at_the_terminal_is_answered_by_one_process_alone() -> None:
    root = Path(__file__).parents[3]
    words = [sys.executable, "-c", INTERRUPTED]
    with subprocess.Popen(words, stdout=-1, stderr=-1, text=True, cwd=root, start_new_session=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "begun\n"
        os.killpg(process.pid, signal.SIGINT)
        assert process.communicate(timeout=60) == ("peaceful\n", "")


def test_a_signal_to_end_that_reaches_the_workers_too_is_left_to_who_started_them() -> None:
    pool, _ = start_pool(2, steps=range(200))
    slots = pool.slots()
    next(slots)
    for process in pool.processes:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGTERM)  # as torchrun does
    assert len(list(slots)) == 199
    assert pool.close()


def test_a_worker_that_hangs_is_killed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitral.data.loading.workers.SHUTDOWN_TIMEOUT", 0.1)
    pool, _ = start_pool(2, "hang")
    next(pool.slots())
    assert not pool.close()


ORPHAN = """
import os, signal
from tests.data.loading.test_workers import start_pool
pool, _ = start_pool(2, steps=range(10**9))
next(pool.slots())
print(*[process.pid for process in pool.processes], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_workers_end_soon_after_their_parent_was_killed() -> None:
    run = run_forked(code=ORPHAN, cwd=Path(__file__).parents[3])
    assert run.returncode == -signal.SIGKILL
    numbers = [int(word) for word in run.stdout.split()]
    assert len(numbers) == 2
    deadline = time.monotonic() + 20
    while any(_runs(number) for number in numbers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_runs(number) for number in numbers)


def _runs(number: int) -> bool:
    try:
        state = Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"  # an ended process that nobody has asked after


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_a_worker_that_is_stopped_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "STOPPED_CHECK_SECONDS", 0.1)
    monkeypatch.setattr(workers, "STOPPED_TIMEOUT", 0.3)
    pool, _ = start_pool(2, steps=range(1000))
    pid = pool.processes[1].pid or 0
    os.kill(pid, signal.SIGSTOP)
    with raises("run.lost_process", pid, "SIGSTOP", f"kill -CONT {pid}"):
        for _ in pool.slots():
            pass
    monkeypatch.setattr(workers, "SHUTDOWN_TIMEOUT", 0.5)
    assert not pool.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_a_worker_that_is_stopped_for_a_moment_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "STOPPED_CHECK_SECONDS", 0.1)
    pool, _ = start_pool(2)
    pid = pool.processes[1].pid or 0
    os.kill(pid, signal.SIGSTOP)
    timer = threading.Timer(0.5, os.kill, (pid, signal.SIGCONT))
    timer.start()
    assert len(list(pool.slots())) == 9
    timer.join()
    assert pool.close()
