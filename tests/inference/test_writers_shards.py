"""Parts, written by real processes that are killed."""

import os
import random
import resource
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.errors import raises
from tests.processes import run_forked
from vitral.core.errors import VitralError
from vitral.inference.batches import Batch
from vitral.inference.writers import WHOLE, Shard, open_feature_writer, open_output, output_exists, parse_shard

# Writes the names of its share, a line at a time, and dies by SIGKILL after so many moments.
WRITER = """
import os, signal, sys
from pathlib import Path
from vitral.inference.writers import output_exists, parse_shard, open_output

folder, text, moments = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
shard, path = parse_shard(text), folder / f"{text.replace('/', '-of-')}.txt"
passed = 0

def moment():
    global passed
    passed += 1
    if passed > moments:
        os.kill(os.getpid(), signal.SIGKILL)

if not output_exists(path, "--out"):
    moment()
    with open_output(path, "--out") as file:
        for name in filter(shard.contains, (f"photos/{number}.jpg" for number in range(60))):
            moment()
            file.write(f"{name}\\n".encode())
            file.flush()
        moment()
    moment()
"""


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def left_behind(folder: Path, name: str) -> Path:
    """A draft as a process leaves it that dies in the midst of it."""
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom vitral.inference.writers import open_output\n"
        "with open_output(Path(sys.argv[1]), '--out') as file:\n    file.write(b'half')\n    file.flush()\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    assert run_forked(str(folder / name), code=script).returncode == -signal.SIGKILL
    (draft,) = (path for path in folder.iterdir() if path.name.startswith(f".{name}.tmp-"))
    return draft


def test_a_part_has_its_name_only_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "1.jsonl"
    with open_output(path, "--out") as file:
        file.write(b"first\n")
        file.flush()
        assert not path.exists()
        assert not list(path.parent.glob("*.jsonl"))  # nor is there anything that a pattern would take for a part
        file.write(b"second\n")
        inode = os.fstat(file.fileno()).st_ino
    assert path.read_bytes() == b"first\nsecond\n"
    assert path.stat().st_ino == inode  # renamed, which happens at once, and not copied
    assert files(path.parent) == ["1.jsonl"]
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask


def test_all_of_a_part_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real, flushed = tmp_path / "1.jsonl", os.fsync, []

    def watched(handle: int) -> None:
        flushed.append((os.fstat(handle).st_size if not path.exists() else "folder", path.exists()))
        real(handle)

    monkeypatch.setattr(os, "fsync", watched)
    with open_output(path, "--out") as file:
        file.write(b"all of it")
    assert flushed == [(9, False), ("folder", True)]


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(1), VitralError("a bad file", code="data.empty"), OSError(28, "Full")]
)
def test_after_an_error_there_is_nothing(tmp_path: Path, error: BaseException) -> None:
    def broken_off() -> None:
        with open_output(tmp_path / "1.jsonl", "--out") as file:
            file.write(b"half")
            raise error

    with pytest.raises(type(error)) as caught:
        broken_off()
    assert caught.value is error
    assert files(tmp_path) == []


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """The system refuses to write more, as it does where a disk is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [4097, 100_000])  # refused at the end, and in the midst of it
def test_what_the_disk_refuses_is_told_with_the_part(tmp_path: Path, size: int) -> None:
    path = tmp_path / "1.jsonl"
    with (
        raises("file.write_failed", path) as caught,
        no_file_larger_than(4096),
        open_output(path, "--out") as file,
    ):
        file.write(bytes(size))
    assert "ulimit -f" in caught.value.hint
    assert (caught.value.where, caught.value.exit_code) == (str(path), 1)
    assert files(tmp_path) == []


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_what_the_disk_refuses_at_the_end_is_told_with_the_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def refusing(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, refusing)
    path = tmp_path / "1.jsonl"
    with raises("file.write_failed") as caught, open_output(path, "--out"):
        pass
    assert caught.value.where == str(path)
    assert files(tmp_path) == []


@pytest.mark.parametrize("name", ["1.npz", "1.parquet"])
def test_features_that_the_disk_refuses_are_told_with_the_part(tmp_path: Path, name: str) -> None:
    path, width = tmp_path / name, 50_000
    batch = Batch(("a.jpg",), {}, np.zeros((1, 2, 2, 3), dtype=np.uint8))
    numbers = np.random.default_rng(0).normal(size=(1, width)).astype(np.float32)  # no packing makes these small
    with (
        raises("file.write_failed") as caught,
        no_file_larger_than(4096),
        open_output(path, "--features") as file,
        open_feature_writer(file, path, width) as writer,
    ):
        writer.write(batch, numbers)
    assert caught.value.where == str(path)
    assert files(tmp_path) == []


def test_what_a_killed_process_left_is_swept_and_what_others_write_is_not(tmp_path: Path) -> None:
    leftover, other = left_behind(tmp_path, "1.jsonl"), left_behind(tmp_path, "10.jsonl")
    assert leftover.read_bytes() == b"half"
    with open_output(tmp_path / "1.jsonl", "--out") as file, open_output(tmp_path / "1.jsonl", "--out") as second:
        assert not leftover.exists()
        file.write(b"whole")
        second.write(b"whole")  # the same part, made by two at once: whoever is last has it
    assert (tmp_path / "1.jsonl").read_bytes() == b"whole"
    assert files(tmp_path) == sorted(["1.jsonl", other.name])


def test_many_that_begin_the_same_part_at_once_do_not_sweep_each_other(tmp_path: Path) -> None:
    def work(_: int) -> None:
        with open_output(tmp_path / "1.jsonl", "--out") as file:
            file.write(b"whole")

    with ThreadPoolExecutor(4) as crowd:
        list(crowd.map(work, range(200)))
    assert files(tmp_path) == ["1.jsonl"]


@pytest.mark.parametrize("count", [1, 3])
def test_whatever_is_killed_the_parts_hold_every_image_once(tmp_path: Path, count: int) -> None:
    rng = random.Random(count)
    shards = [f"{number}/{count}" for number in range(1, count + 1)]
    kills = 0
    for attempt in range(3):
        for shard in shards:
            moments = rng.randrange(0, 60 // count + 4) if attempt < 2 else 1000
            done = run_forked(str(tmp_path), shard, str(moments), code=WRITER)
            kills += done.returncode == -signal.SIGKILL
    assert kills
    assert files(tmp_path) == [f"{number}-of-{count}.txt" for number in range(1, count + 1)]
    held = Counter(line for path in tmp_path.iterdir() for line in path.read_text().splitlines())
    assert held == Counter(f"photos/{number}.jpg" for number in range(60))


def test_something_that_is_no_file_is_never_taken_for_a_part(tmp_path: Path) -> None:
    assert not output_exists(tmp_path / "1.jsonl", "--out")
    (tmp_path / "1.jsonl").touch()
    assert output_exists(tmp_path / "1.jsonl", "--out")
    with raises("config.path_exists", tmp_path) as caught:
        output_exists(tmp_path, "--features")
    assert caught.value.where == "--features"
    with raises("config.path_exists", os.devnull, "--out"):
        output_exists(Path(os.devnull), "--out")
    (tmp_path / "link").symlink_to("nowhere")
    with raises("config.path_exists", tmp_path / "link", "--out"):
        output_exists(tmp_path / "link", "--out")


@pytest.mark.parametrize("place", ["file/1.jsonl", "file/deeper/1.jsonl"])
def test_an_out_that_cannot_be_written_is_refused_at_once(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / place
    with raises("config.not_writable", path) as caught, open_output(path, "--out"):
        raise AssertionError("it must not come to this")
    assert (caught.value.where, caught.value.exit_code) == ("--out", 2)


@pytest.mark.parametrize("text", ["0/4", "5/4", "1/0", "-1/4", "1", "1/", "a/b", "1/4/2", "1.0/4", "", "²/4"])
def test_a_share_that_is_none_is_refused(text: str) -> None:
    with raises("config.bad_shard", repr(text)) as caught:
        parse_shard(text)
    assert caught.value.where == "--shard"


def test_shares_are_counted_from_one() -> None:
    assert parse_shard("1/4") == Shard(1, 4)
    assert parse_shard("04/04") == Shard(4, 4)


@given(st.text(), st.integers(1, 40))
def test_every_name_is_in_exactly_one_share(name: str, of: int) -> None:
    assert sum(Shard(number, of).contains(name) for number in range(1, of + 1)) == 1
    assert WHOLE.contains(name)


def test_shares_are_about_equal() -> None:
    names = [f"photos/cat/IMG_{number}.jpg" for number in range(8000)]
    sizes = [sum(map(Shard(number, 8).contains, names)) for number in range(1, 9)]
    assert sum(sizes) == 8000
    assert all(abs(size - 1000) < 5 * (8000 * 1 / 8 * 7 / 8) ** 0.5 for size in sizes)  # five deviations


def test_a_name_that_is_no_unicode_has_a_share() -> None:
    assert sum(Shard(number, 3).contains(os.fsdecode(b"caf\xe9.jpg")) for number in (1, 2, 3)) == 1


def test_shares_are_the_same_tomorrow() -> None:
    """A share that moved would double some images of a job that goes on, and lose others."""
    assert [letter for letter in "abcdefgh" if Shard(1, 2).contains(f"{letter}.jpg")] == list("bceg")
