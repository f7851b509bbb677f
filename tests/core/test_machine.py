"""The machine and the user's cache; the processors are held against the system in the tests of environments."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vitral.core.machine import cache_folder, cpu_count, default_threads


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
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment |= {"OMP_NUM_THREADS": asked} if asked else {}
    torch = subprocess.run(words, capture_output=True, text=True, check=True, env=environment, timeout=60)
    ours = [sys.executable, "-c", "from vitral.core.machine import default_threads; print(default_threads())"]
    assert subprocess.run(ours, capture_output=True, text=True, check=True, env=environment).stdout == torch.stdout


def test_no_more_threads_calculate_than_there_are_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1000")
    assert 1 <= default_threads() <= cpu_count()


def test_where_cores_are_not_told_every_processor_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(Path, "read_text", lambda *_: (_ for _ in ()).throw(OSError()))
    assert default_threads() == cpu_count()
