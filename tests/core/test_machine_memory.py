"""Memory: what is free within every limit, and the most that was had."""

import mmap
import resource
import subprocess
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
import torch

from vitral.core.machine import (
    available_memory,
    cgroup_available,
    cgroup_limits,
    peak_memory,
    private_bytes,
    total_memory,
)
from vitral.data.loading.shared_memory import FORK

CPU = torch.device("cpu")
GB = 10**9


def group(folder: Path, files: dict[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(f"{content}\n")


def second(folder: Path, limit: object, used: int, cached: int) -> None:
    stat = f"anon 5\ninactive_file {cached}\nactive_file 7"
    group(folder, {"memory.max": limit, "memory.current": used, "memory.stat": stat})


def first(folder: Path, limit: int, used: int, cached: int) -> None:
    stat = f"inactive_file 3\ntotal_inactive_file {cached}"
    group(folder, {"memory.limit_in_bytes": limit, "memory.usage_in_bytes": used, "memory.stat": stat})


def test_a_limit_of_version_2_counts_what_is_used_but_not_what_can_be_given_back(tmp_path: Path) -> None:
    second(tmp_path / "jobs/mine", 8 * GB, 3 * GB, GB)
    assert cgroup_available("0::/jobs/mine\n", tmp_path) == [6 * GB]


def test_the_limits_of_all_groups_around_hold(tmp_path: Path) -> None:
    second(tmp_path / "jobs/mine", "max", GB, 0)
    second(tmp_path / "jobs", 4 * GB, 3 * GB, 0)
    second(tmp_path, 9 * GB, 5 * GB, 0)
    assert cgroup_available("0::/jobs/mine\n", tmp_path) == [GB, 4 * GB]


def test_a_limit_of_version_1_is_that_of_the_memory_controller(tmp_path: Path) -> None:
    first(tmp_path / "memory/mine", 6 * GB, 2 * GB, GB)
    first(tmp_path / "memory", 9223372036854771712, 2 * GB, 0)
    memberships = "9:name=systemd:/x\n4:hugetlb,memory:/mine\n1:cpu:/mine\n0::/\n"
    assert cgroup_available(memberships, tmp_path) == [5 * GB]
    assert [limit for _, _, limit in cgroup_limits(memberships, tmp_path)] == [6 * GB]


def test_a_container_that_sees_its_own_group_as_the_root_finds_its_limit(tmp_path: Path) -> None:
    first(tmp_path / "memory", 2 * GB, GB, 0)
    assert cgroup_available("4:memory:/docker/0123abc\n", tmp_path) == [GB]


def test_a_group_that_has_used_too_much_has_nothing_left(tmp_path: Path) -> None:
    second(tmp_path, GB, 2 * GB, 0)
    assert cgroup_available("0::/\n", tmp_path) == [0]


@pytest.mark.parametrize("memberships", ["", "0::/\n", "3:cpu:/\n"])
def test_without_groups_there_is_no_limit(tmp_path: Path, memberships: str) -> None:
    assert cgroup_available(memberships, tmp_path) == []


def test_what_is_available_is_less_than_there_is() -> None:
    assert 10**8 < available_memory(CPU) <= total_memory()
    pages = resource.getpagesize() * int(subprocess.check_output(["getconf", "_PHYS_PAGES"]))
    assert total_memory() <= pages


def _grow(tell: Connection) -> None:
    before = peak_memory(CPU)
    with mmap.mmap(-1, 200_000_000) as fresh:  # not from the heap, which may keep what was freed
        for _ in range(200):
            fresh.write(bytes(range(1, 101)) * 10_000)
    tell.send(peak_memory(CPU) - before)


def test_the_peak_remembers_what_was_freed() -> None:
    hear, tell = FORK.Pipe()
    process = FORK.Process(target=_grow, args=(tell,))
    process.start()
    assert 150e6 < hear.recv() < 250e6
    process.join()


def _hold(ready: Connection, done: Connection) -> None:
    held = np.ones(5_000_000)
    ready.send(len(held))
    done.recv()


def test_the_peak_counts_what_workers_have_to_themselves() -> None:
    shared = np.ones(20_000_000)
    before = peak_memory(CPU)
    ready, tell = FORK.Pipe()
    wait, done = FORK.Pipe()
    worker = FORK.Process(target=_hold, args=(tell, wait))
    worker.start()
    ready.recv()
    with_worker = peak_memory(CPU)
    done.send(True)
    worker.join()
    assert 40e6 < with_worker - before < 100e6, "what is shared by the fork is not counted again"
    assert len(shared) == 20_000_000
    assert private_bytes(worker.pid or 0) == 0
