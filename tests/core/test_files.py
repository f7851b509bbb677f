"""Only regular files are read, and within a budget."""

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from vitral.core.files import (
    FileTooLarge,
    NotRegularFile,
    allow_outside,
    check_file,
    leaves_folder,
    open_file,
    outside_is_allowed,
    read_file,
)

READERS: list[Callable[[Path], object]] = [check_file, open_file, read_file]
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no such files")


def make_pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def make_socket(path: Path) -> Path:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.close()  # the file stays
    return path


def make_link(target: str) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        path.symlink_to(target)
        return path

    return make


SPECIAL = {
    "pipe": make_pipe,
    "socket": make_socket,
    "zero": make_link("/dev/zero"),
    "terminal": make_link("/dev/tty"),
    "random": make_link("/dev/random"),
}
if sys.platform == "linux":
    SPECIAL |= {"environ": make_link("/proc/self/environ"), "kernel": make_link("/sys/kernel/notes")}


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("kind", SPECIAL)
def test_what_is_no_regular_file_is_refused_at_once(
    kind: str, read: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    path = SPECIAL[kind](Path("cat.jpg"))
    if not path.exists():
        pytest.skip(f"no {path.readlink()} on this machine")
    with pytest.raises(NotRegularFile):
        read(path)


def test_a_pipe_that_takes_the_place_of_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_pipe(tmp_path / "cat.jpg")
    plain = tmp_path / "plain.jpg"
    plain.touch()
    monkeypatch.setattr("vitral.core.files.os.stat", lambda path, stat=os.stat: stat(plain))
    with pytest.raises(NotRegularFile):
        read_file(path)
    with pytest.raises(NotRegularFile):
        open_file(path)


def test_the_content_is_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 300)
    link = tmp_path / "link"
    link.symlink_to(path)
    for each in (path, link, str(path)):
        assert read_file(each) == path.read_bytes()
        with open_file(each) as file:
            assert file.read() == path.read_bytes()
            assert not os.get_inheritable(file.fileno())


def test_an_empty_file_is_empty(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert read_file(tmp_path / "empty") == b""


def test_a_file_is_read_in_as_many_pieces_as_the_system_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    monkeypatch.setattr("vitral.core.files.os.read", lambda handle, size, read=os.read: read(handle, min(size, 3)))
    assert read_file(path) == b"0123456789"


@pytest.mark.parametrize("read", READERS)
def test_a_sparse_file_above_its_budget_is_refused_unread(read: Callable[..., object], tmp_path: Path) -> None:
    path = tmp_path / "sparse.jpg"
    with path.open("wb") as file:
        file.truncate(6 * 2**30)
    with pytest.raises(FileTooLarge):
        read(path, 2**20)
    with path.open("wb") as file:
        file.truncate(2**20)
    if read is open_file:
        open_file(path, 2**20).close()
    else:
        read(path, 2**20)


@pytest.mark.parametrize("read", READERS)
def test_other_errors_are_those_of_the_system(read: Callable[[Path], object], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "gone")
    with pytest.raises(IsADirectoryError):
        read(tmp_path)


@pytest.mark.parametrize(
    ("path", "leaves"),
    [
        ("a.jpg", False),
        ("sub/a.jpg", False),
        ("sub/../a..b.jpg", False),
        ("..hidden/a.jpg", False),
        ("../a.jpg", True),
        ("sub/../../a.jpg", True),
        ("/etc/passwd", True),
    ],
)
def test_a_path_is_outside_of_a_folder_as_it_is_written(path: str, leaves: bool, tmp_path: Path) -> None:
    assert leaves_folder(path, str(tmp_path)) == leaves


def test_an_absolute_path_may_be_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert not leaves_folder(str(tmp_path / "a.jpg"), ".")
    assert leaves_folder(f"{tmp_path}x/a.jpg", str(tmp_path))
    assert not leaves_folder("/etc/passwd", "/")


def test_leaving_is_allowed_inside_the_context_only() -> None:
    assert not outside_is_allowed()
    with allow_outside(), allow_outside(False):
        assert outside_is_allowed()
    assert not outside_is_allowed()
