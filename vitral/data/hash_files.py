"""Hashes of files, in a process of low priority: `python -m vitral.data.hash_files CACHE < paths > hashes`.

Paths end with a NUL byte, hashes with a line break; the hash of a file that cannot be read is empty. It needs only the
standard library, so that the process starts at once.

A hash is kept in the cache with the size, the two times and the inode of its file, and is used again while none of them
has changed. Writing to a file or renaming one changes its time of change, which no program can set. Hashes that were
not used for a while are removed, and the least recently used beyond a limit.
"""

import errno
import hashlib
import os
import sqlite3
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path

DIGEST_BYTES = 16
SETTLED_SECONDS = 2.0  # a file that was changed more recently may change again without another time
COMMIT_EVERY = 1_000  # files
CHECK_EVERY = 100  # files between two checks that the parent lives
KEEP_DAYS = 90  # of a hash that is not used
MOST_FILES = 4_000_000  # whose hashes are kept: about 1 GB
PRUNED_FILES = 3_500_000  # that stay once there are more
DAY = 24 * 3600.0
TABLE = (
    "CREATE TABLE IF NOT EXISTS hashes (path BLOB PRIMARY KEY, state TEXT, hash TEXT, day INTEGER) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS days ON hashes (day)",
    "DROP TABLE IF EXISTS files",  # of earlier versions, which removed nothing
)


class HashCache:
    """The hashes of files by path. Where it cannot be read or written, nothing is cached."""

    def __init__(self, path: Path) -> None:
        self._database: sqlite3.Connection | None = None
        self._changed = 0
        self._today = int(time.time() / DAY)
        with suppress(OSError, sqlite3.Error):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(path, timeout=1.0)
            self._database.execute("PRAGMA auto_vacuum = FULL")  # of a new database: what is removed frees space
            for statement in TABLE:
                self._database.execute(statement)

    def find(self, path: bytes, state: str) -> str:
        """The hash of a file in this state; empty if it is not known."""
        if self._database is None:
            return ""
        with suppress(sqlite3.Error):
            query = "SELECT hash, day FROM hashes WHERE path = ? AND state = ?"
            found, day = self._database.execute(query, (path, state)).fetchone() or ("", self._today)
            if day != self._today:  # in use
                self._change("UPDATE hashes SET day = ? WHERE path = ?", self._today, path)
            return str(found)
        return ""

    def add(self, path: bytes, state: str, found: str) -> None:
        """Keep the hash of a file."""
        with suppress(sqlite3.Error):
            self._change("REPLACE INTO hashes VALUES (?, ?, ?, ?)", path, state, found, self._today)

    def _change(self, statement: str, *values: object) -> None:
        if self._database is None:
            return
        self._database.execute(statement, values)
        self._changed += 1
        if self._changed % COMMIT_EVERY == 0:
            self._database.commit()

    def _prune(self) -> None:
        """Remove hashes that were not used for long, and the least recently used beyond the limit."""
        assert self._database is not None
        self._database.execute("DELETE FROM hashes WHERE day < ?", (self._today - KEEP_DAYS,))
        count = int(self._database.execute("SELECT count(*) FROM hashes").fetchone()[0])
        if count > MOST_FILES:
            oldest = "SELECT path FROM hashes ORDER BY day LIMIT ?"
            self._database.execute(f"DELETE FROM hashes WHERE path IN ({oldest})", (count - PRUNED_FILES,))

    def close(self) -> None:
        """Write what was added, and remove what is too old or too much."""
        if self._database is not None:
            with suppress(sqlite3.Error):
                if self._changed:
                    self._prune()
                self._database.commit()
            self._database.close()


def hash_files(paths: Iterable[bytes], cache: HashCache) -> Iterator[str]:
    """The hash of each file; empty if it cannot be read."""
    for path in paths:
        try:
            yield hash_file(path, cache)
        except OSError:
            yield ""


def hash_file(path: bytes, cache: HashCache) -> str:
    """The hash of a file, from the cache if it has not changed."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    with open(path, "rb") as file:
        before = os.fstat(file.fileno())
        state = file_state(before)
        if found := cache.find(path, state):
            return found
        found = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=DIGEST_BYTES)).hexdigest()
        settled = time.time() - max(before.st_mtime, before.st_ctime) > SETTLED_SECONDS
        if settled and file_state(os.fstat(file.fileno())) == state:
            cache.add(path, state, found)
    return found


def file_state(found: os.stat_result) -> str:
    """What changes whenever a file does."""
    return f"{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns} {found.st_ino} {found.st_dev}"


def main(cache_path: str) -> None:
    """Hash the files that stdin names."""
    if hasattr(os, "nice"):
        os.nice(19)
    parent = os.getppid()
    paths = sys.stdin.buffer.read().split(b"\0")[:-1]
    with closing(HashCache(Path(cache_path))) as cache:
        for number, found in enumerate(hash_files(paths, cache)):
            print(found)
            if number % CHECK_EVERY == 0 and os.getppid() != parent:  # killed: nobody waits for the rest
                return


if __name__ == "__main__":
    main(sys.argv[1])
