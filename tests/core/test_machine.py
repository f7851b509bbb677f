"""The machine and the user's cache; the processors are held against the system in the tests of environments."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vitral.core.machine import (
    SPIN_COUNT,
    THREADS,
    WAIT_VARIABLES,
    bound_spinning,
    cache_folder,
    cpu_count,
    default_threads,
    other_running_threads,
)


def test_the_cache_is_where_the_user_has_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder("engines") == tmp_path / "vitral" / "engines"
    for unset in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        assert cache_folder("engines") == tmp_path / "home" / ".cache" / "vitral" / "engines"


@pytest.mark.sampled(5)
@pytest.mark.parametrize("asked", ["", "1", "2,1", "none", "0"])
def test_as_many_threads_calculate_as_torch_would_use(asked: str) -> None:
    words = [sys.executable, "-c", "import torch; print(torch.get_num_threads())"]
    environment = {name: value for name, value in os.environ.items() if name not in THREADS}
    environment |= {"OMP_NUM_THREADS": asked} if asked else {}
    torch = subprocess.run(words, capture_output=True, text=True, check=True, env=environment, timeout=60)
    ours = [sys.executable, "-c", "from vitral.core.machine import default_threads; print(default_threads())"]
    assert subprocess.run(ours, capture_output=True, text=True, check=True, env=environment).stdout == torch.stdout


@pytest.mark.parametrize(
    ("mkl", "omp", "threads"), [("", "", 8), ("", "3", 3), ("2", "3", 2), ("3", "2", 3), ("0", "2", 2)]
)
def test_the_variable_of_mkl_comes_before_that_of_openmp(
    mkl: str, omp: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitral.core.machine._own_cores", lambda: 8)
    monkeypatch.setattr("vitral.core.machine.cpu_count", lambda: 8)
    monkeypatch.setenv("MKL_NUM_THREADS", mkl)
    monkeypatch.setenv("OMP_NUM_THREADS", omp)
    assert default_threads() == threads


def test_no_more_threads_calculate_than_there_are_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1000")
    assert 1 <= default_threads() <= cpu_count()


def test_where_cores_are_not_told_every_processor_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in THREADS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "read_text", lambda *_: (_ for _ in ()).throw(OSError()))
    assert default_threads() == cpu_count()


@pytest.mark.parametrize("given", ["", *WAIT_VARIABLES])
def test_threads_spin_for_a_short_time_unless_the_user_says_how_they_wait(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in WAIT_VARIABLES:
        monkeypatch.setenv(name, "")  # so that it is restored
        monkeypatch.delenv(name)
    if given:
        monkeypatch.setenv(given, "7")
    bound_spinning()
    assert {name: os.environ[name] for name in WAIT_VARIABLES if name in os.environ} == (
        {given: "7"} if given else {"GOMP_SPINCOUNT": SPIN_COUNT}
    )


def test_running_threads_are_counted_without_this_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("vitral.core.machine.PROC_ROOT", tmp_path)
    (tmp_path / "loadavg").write_text("0.10 0.20 0.30 3/512 99\n")
    assert other_running_threads(pause=0) == 2.0
    (tmp_path / "loadavg").unlink()
    monkeypatch.setattr(os, "getloadavg", lambda: (1.5, 9.0, 9.0))
    assert other_running_threads() == 1.5
