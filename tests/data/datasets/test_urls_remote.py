"""The same reading everywhere: a path, and what fsspec reaches in memory and by `file://`."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from tests.data.trees import refused_at
from tests.errors import raises
from vitral.data.datasets.urls import exists, file_sizes, glob_paths, join, open_file, read_range, read_whole

FILES = {"b.tar": b"0123456789", "a.tar": b"abc", "notes.txt": b"", ".hidden": b"x"}
SHOWN = {"a.tar": 3, "b.tar": 10, "notes.txt": 0}


@pytest.fixture(params=["", "file://", "memory://"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A folder with the files, in each of the places."""
    address = f"{request.param}{tmp_path}"
    system, root = fsspec.core.url_to_fs(address)
    system.makedirs(f"{root}/inner")
    for name, data in FILES.items():
        system.pipe_file(f"{root}/{name}", data)
    yield address
    system.rm(root, recursive=True)


def test_a_range_is_read_to_the_byte(folder: str) -> None:
    path = join(folder, "b.tar")
    assert [read_range(path, start, length) for start, length in ((0, 10), (3, 4), (9, 1), (5, 0))] == [
        b"0123456789",
        b"3456",
        b"9",
        b"",
    ]


def test_a_whole_file_is_read_and_can_be_moved_about_in(folder: str) -> None:
    path = join(folder, "b.tar")
    assert read_whole(path) == b"0123456789"
    with open_file(path) as file:
        file.seek(7)
        assert file.read(2) == b"78"


def test_a_folder_tells_the_sizes_of_its_files(folder: str) -> None:
    assert file_sizes(folder) == SHOWN
    assert list(file_sizes(folder)) == sorted(SHOWN)


def test_a_pattern_is_matched_in_the_order_of_names(folder: str) -> None:
    found = glob_paths(join(folder, "*.tar"))
    assert [path.rsplit("/", 1)[1] for path in found] == ["a.tar", "b.tar"]
    assert [read_whole(path) for path in found] == [b"abc", b"0123456789"]


def test_a_file_is_there_or_not(folder: str) -> None:
    assert exists(join(folder, "a.tar"))
    assert not exists(join(folder, "z.tar"))


def test_a_range_beyond_the_end_is_refused(folder: str) -> None:
    with raises("data.changed", 4, 8, 2) as caught:
        read_range(join(folder, "b.tar"), 8, 4)
    assert refused_at(caught) == join(folder, "b.tar")


def test_a_file_that_is_gone_is_named(folder: str) -> None:
    path = join(folder, "gone.tar")
    for reading in (lambda: read_range(path, 0, 1), lambda: read_whole(path), lambda: file_sizes(path)):
        with raises("data.unreadable") as caught:
            reading()
        assert refused_at(caught) == path


@pytest.mark.parametrize(
    ("address", "package"),
    [("s3://bucket/a.tar", "s3fs"), ("gs://bucket/a.tar", "gcsfs"), ("https://example.com/a.tar", "aiohttp")],
)
def test_a_protocol_whose_package_is_missing_names_the_package(address: str, package: str) -> None:
    if importlib.util.find_spec(package):
        pytest.skip(f"{package} is installed")
    with raises("config.missing_package") as caught:
        read_whole(address)
    assert caught.value.exit_code == 2
    assert caught.value.where == address
    assert caught.value.hint.startswith(f"pip install {package}")


def test_a_protocol_nobody_knows_is_answered_with_the_nearest() -> None:
    with raises("config.unknown_name", "memry://", "'memory'"):
        read_whole("memry://set/a.tar")
