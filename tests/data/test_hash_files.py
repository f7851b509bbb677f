"""Hashes of files, and when they are computed again."""

import hashlib
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.processes import ROOT
from vitral.data import hash_files as hashing
from vitral.data.hash_files import HashCache, hash_file, hash_files


def truth(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[HashCache]:
    found = HashCache(tmp_path / "cache/hashes.sqlite")
    yield found
    found.close()


def old_file(path: Path, content: bytes) -> bytes:
    """A file that is old enough for the cache."""
    path.write_bytes(content)
    return os.fsencode(path)


def test_a_file_is_hashed_again_only_after_a_change(
    tmp_path: Path, cache: HashCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashing, "SETTLED_SECONDS", -1.0)
    first, second = tmp_path / "first", tmp_path / "second"
    paths = [old_file(first, b"one" * 1000), old_file(second, b"two" * 1000)]
    assert list(hash_files(paths, cache)) == [truth(first), truth(second)]
    opened: list[object] = []
    digest = hashlib.file_digest

    def counting(file: Any, kind: Any) -> Any:
        opened.append(file)
        return digest(file, kind)

    monkeypatch.setattr(hashlib, "file_digest", counting)
    assert list(hash_files(paths, cache)) == [truth(first), truth(second)]
    assert not opened
    first.rename(tmp_path / "swap")
    second.rename(first)
    (tmp_path / "swap").rename(second)
    assert list(hash_files(paths, cache)) == [truth(first), truth(second)]
    assert len(opened) == 2
    times = first.stat()
    with first.open("r+b") as file:
        file.write(b"X")
    os.utime(first, ns=(times.st_atime_ns, times.st_mtime_ns))  # the time of change cannot be set
    assert hash_file(paths[0], cache) == truth(first)


def test_hashes_that_are_not_used_are_removed_and_so_are_those_beyond_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "hashes.sqlite"

    def on_day(day: int, added: tuple[int, ...], used: tuple[int, ...] = ()) -> set[int]:
        """The files that the cache knows after a day on which some were added and some used."""
        monkeypatch.setattr(time, "time", lambda: (day + 0.5) * hashing.DAY)
        cache = HashCache(path)
        for number in used:
            assert cache.find(str(number).encode(), "state") == f"hash {number}"
        for number in added:
            cache.add(str(number).encode(), "state", f"hash {number}")
        cache.close()
        with closing(sqlite3.connect(path)) as database:
            return {int(name) for (name,) in database.execute("SELECT path FROM hashes")}

    assert on_day(1000, (1, 2, 3)) == {1, 2, 3}
    assert on_day(1000 + hashing.KEEP_DAYS, (), used=(2,)) == {1, 2, 3}
    assert on_day(1001 + hashing.KEEP_DAYS, (4,)) == {2, 4}
    monkeypatch.setattr(hashing, "MOST_FILES", 4)
    monkeypatch.setattr(hashing, "PRUNED_FILES", 3)
    assert on_day(1002 + hashing.KEEP_DAYS, (5,), used=(2,)) == {2, 4, 5}
    assert on_day(1003 + hashing.KEEP_DAYS, (6, 7), used=(2,)) == {2, 6, 7}


def test_a_file_that_was_just_written_is_not_cached(tmp_path: Path, cache: HashCache) -> None:
    path = old_file(tmp_path / "new", b"one")
    hash_file(path, cache)
    assert cache.find(path, hashing.file_state(os.stat(path))) == ""


def test_what_cannot_be_read_has_no_hash_and_a_broken_cache_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "hashes.sqlite").write_bytes(b"no database" * 1000)
    os.mkfifo(tmp_path / "pipe")
    good = old_file(tmp_path / "good", b"one")
    broken = HashCache(tmp_path / "hashes.sqlite")
    found = list(hash_files([good, os.fsencode(tmp_path / "gone"), os.fsencode(tmp_path / "pipe")], broken))
    broken.close()
    assert found == [truth(tmp_path / "good"), "", ""]


def test_the_process_hashes_what_stdin_names_and_ends_with_its_parent(tmp_path: Path) -> None:
    paths = [tmp_path / str(number) for number in range(3)]
    for path in paths:
        path.write_bytes(path.name.encode() * 5000)
    line = [sys.executable, "-m", "vitral.data.hash_files", str(tmp_path / "hashes.sqlite")]
    started = time.monotonic()
    done = subprocess.run(
        line, input=b"".join(os.fsencode(path) + b"\0" for path in paths), capture_output=True, cwd=ROOT, check=True
    )
    assert done.stdout.decode().split() == [truth(path) for path in paths]
    assert time.monotonic() - started < 10
