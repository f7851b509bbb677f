"""Durable operations, and what is heard of them."""

import errno
import hashlib
import os
from pathlib import Path

import pytest

from tests.errors import raises
from vitral.core.jsonl import JsonlLog
from vitral.core.storage import (
    Storage,
    make_folders,
    new_file,
    open_atomically,
    refuse_link,
    write_file_atomically,
)


def test_a_file_is_written_piece_by_piece_and_its_digest_told(tmp_path: Path) -> None:
    told: list[str] = []
    parts = [b"", b"one", b"\0" * 5000, b"two"]
    digest = Storage(told.append).write_file(tmp_path / "a", map(memoryview, parts))
    assert (tmp_path / "a").read_bytes() == b"".join(parts)
    assert digest == (5006, hashlib.sha256(b"".join(parts)).hexdigest())
    assert told == [*(f"wrote {size} bytes of a" for size in (0, 3, 5003, 5006)), "flushed a"]


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(FileExistsError):
        Storage().write_file(tmp_path / "a", [memoryview(b"new")])
    assert (tmp_path / "a").read_bytes() == b"old"


def test_folders_are_made_and_renamed_and_their_parents_flushed(tmp_path: Path) -> None:
    told: list[str] = []
    disk = Storage(told.append)
    disk.make_folder(tmp_path / "a")
    disk.write_file(tmp_path / "a/x", [memoryview(b"x")])
    disk.rename(tmp_path / "a", tmp_path / "b")
    assert told[:2] == ["made a", f"flushed {tmp_path.name}"]
    assert told[-2:] == ["renamed a to b", f"flushed {tmp_path.name}"]
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["b", "b/x"]


def test_removing_takes_all_that_is_in_a_folder_and_nothing_that_it_points_to(tmp_path: Path) -> None:
    (tmp_path / "away").mkdir()
    (tmp_path / "away/precious").touch()
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/x").touch()
    (tmp_path / "a/link").symlink_to(tmp_path / "away")
    told: list[str] = []
    Storage(told.append).remove(tmp_path / "a")
    assert told == ["removed x", "removed b", "removed link", "removed a"]
    Storage(told.append).remove(tmp_path / "a")
    assert len(told) == 4
    assert (tmp_path / "away/precious").exists()
    assert not (tmp_path / "a").exists()


def test_an_error_names_the_file_even_when_the_system_does_not(tmp_path: Path) -> None:
    def full(done: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space left") as caught:
        Storage(full).write_file(tmp_path / "a", [memoryview(b"x")])
    assert caught.value.filename == str(tmp_path / "a")
    with pytest.raises(FileNotFoundError) as missing:
        Storage().fsync(tmp_path / "none")
    assert missing.value.filename in {tmp_path / "none", str(tmp_path / "none")}


def test_what_is_replaced_stands_aside_until_the_new_one_has_its_name(tmp_path: Path) -> None:
    told: list[str] = []
    for name in ("new", "b", "old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"of {name}").touch()
    Storage(told.append).replace_folder(tmp_path / "new", tmp_path / "b", backup=tmp_path / "old")
    assert [step for step in told if step.startswith("re")] == [
        *("removed of old", "removed old"),
        *("renamed b to old", "renamed new to b"),
        *("removed of b", "removed old"),
    ]
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["b", "b/of new"]


def test_what_cannot_be_replaced_comes_back(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    with pytest.raises(FileNotFoundError):
        Storage().replace_folder(tmp_path / "new", tmp_path / "b", backup=tmp_path / "old")
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_file_is_replaced_as_a_whole_once_the_new_one_is_on_the_disk(tmp_path: Path) -> None:
    told: list[str] = []
    (tmp_path / "a.tmp").write_bytes(b"left by a kill")
    for content in (b"old", b"new"):
        Storage(told.append).replace_file(tmp_path / "a", content)
        assert (tmp_path / "a").read_bytes() == content
    assert told[:2] == ["removed a.tmp", "wrote 3 bytes of a.tmp"]
    assert told[-4:] == ["wrote 3 bytes of a.tmp", "flushed a.tmp", "replaced a", f"flushed {tmp_path.name}"]
    assert os.listdir(tmp_path) == ["a"]


def test_a_replacement_that_fails_leaves_the_file_and_no_draft(tmp_path: Path) -> None:
    def full(done: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(OSError, match="No space left"):
        Storage(full).replace_file(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_writing_atomically_replaces_the_file_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("the one before, which was longer")
    write_file_atomically(path, "né")
    assert path.read_bytes() == "né".encode()
    assert os.listdir(tmp_path) == ["page.html"]


@pytest.mark.parametrize("name", ["nowhere/page.html", "folder"])
def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with raises("file.write_failed", name) as caught:
        write_file_atomically(tmp_path / name, "text")
    assert caught.value.where == str(tmp_path / name)
    assert caught.value.exit_code == 1
    assert os.listdir(tmp_path) == ["folder"]


def test_a_full_disk_leaves_the_file_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "page.html"
    path.write_text("the one before")
    monkeypatch.setattr(os, "fsync", full)
    with raises("file.write_failed", path, os.strerror(errno.ENOSPC).lower()):
        write_file_atomically(path, "text")
    with pytest.raises(OSError, match="No space left"), open_atomically(path) as file:
        file.write(b"text")
    with raises("file.write_failed", path), new_file(path) as file:
        file.write(b"text")
    assert path.read_text() == "the one before"
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_stream_replaces_the_file_when_it_ends_and_not_after_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for opener in (open_atomically, new_file):
        with opener(path) as file:
            file.write(b"old")
        with pytest.raises(ZeroDivisionError), opener(path) as file:
            file.write(b"new" * (1 // len(b"")))
        assert path.read_bytes() == b"old"
        assert os.listdir(tmp_path) == ["a"]


def test_a_draft_that_is_a_link_is_replaced_and_its_target_left_alone(tmp_path: Path) -> None:
    victim = tmp_path / "precious"
    victim.write_bytes(b"mine")
    (tmp_path / "a.tmp").symlink_to(victim)
    with open_atomically(tmp_path / "a") as file:
        file.write(b"new")
    (tmp_path / "b.tmp").symlink_to(victim)
    write_file_atomically(tmp_path / "b", b"new")
    (tmp_path / ".c.tmp-1").symlink_to(victim)
    with new_file(tmp_path / "c") as file:
        file.write(b"new")
    assert [(tmp_path / name).read_bytes() for name in "abc"] == [b"new"] * 3
    assert victim.read_bytes() == b"mine"


def test_a_file_that_is_a_link_is_replaced_and_its_target_left_alone(tmp_path: Path) -> None:
    victim = tmp_path / "precious"
    victim.write_bytes(b"mine")
    (tmp_path / "a").symlink_to(victim)
    write_file_atomically(tmp_path / "a", b"new")
    assert not (tmp_path / "a").is_symlink()
    assert victim.read_bytes() == b"mine"


def test_neither_a_link_nor_a_pipe_is_opened_to_write(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with raises("file.write_failed", tmp_path / name):
            JsonlLog(tmp_path / name)
    assert not (tmp_path / "precious").exists()
    with raises("file.is_link", tmp_path / "link"):
        refuse_link(tmp_path / "link")


def test_every_folder_that_lists_a_new_one_is_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[str] = []
    monkeypatch.setattr("vitral.core.storage.STORAGE", Storage(flushed.append))
    make_folders(tmp_path / "a/b/c")
    make_folders(tmp_path / "a/b/c")
    assert flushed == [f"flushed {tmp_path.name}", "flushed a", "flushed b"]
    assert (tmp_path / "a/b/c").is_dir()
