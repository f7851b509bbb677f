"""Journals: no line is lost, and none is half."""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.errors import raises
from vitral.core.jsonl import JsonlLog, read_jsonl
from vitral.data.loading.shared_memory import FORK

ROOT = Path(__file__).parents[2]
ENDLESS = """
import sys
from pathlib import Path
from vitral.core.jsonl import JsonlLog
journal = JsonlLog(Path(sys.argv[1]))
for number in range(1, 10**9):
    journal.append({"number": number})
    print(number, flush=True)
"""


def journal(path: Path, *numbers: int) -> JsonlLog:
    found = JsonlLog(path)
    for number in numbers:
        found.append({"number": number})
    return found


def numbers(path: Path) -> list[int]:
    return [record["number"] for record in read_jsonl(path)]


def test_a_line_can_be_read_by_others_as_soon_as_it_is_added(tmp_path: Path) -> None:
    path = tmp_path / "a"
    assert read_jsonl(path) == []
    written = journal(path)
    for number in range(3):
        written.append({"number": number, "word": "ü\n"})
        assert [json.loads(line) for line in path.read_text().splitlines()][-1] == {"number": number, "word": "ü\n"}
    assert numbers(path) == [0, 1, 2]


def test_a_process_that_is_killed_has_lost_nothing_that_it_told(tmp_path: Path) -> None:
    path = tmp_path / "a"
    process = subprocess.Popen([sys.executable, "-c", ENDLESS, str(path)], stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    told = [int(process.stdout.readline()) for _ in range(50)][-1]
    process.send_signal(signal.SIGKILL)
    process.wait()
    told = max([told, *(int(line) for line in process.stdout.read().splitlines(keepends=True) if b"\n" in line)])
    process.stdout.close()
    journal(path).close()
    assert numbers(path) == list(range(1, len(numbers(path)) + 1))
    assert len(numbers(path)) in {told, told + 1}  # it may have written one that it had no time to tell of


@pytest.mark.parametrize("length", range(1, 13))
def test_half_a_line_at_the_end_is_dropped_wherever_it_broke(tmp_path: Path, length: int) -> None:
    path = tmp_path / "a"
    journal(path, 1, 2).close()
    whole = path.read_bytes()
    with path.open("ab") as file:
        file.write(b'{"number": 3}\n'[:length])
    assert numbers(path) == [1, 2]  # a reader leaves it as it is, since it may be growing
    assert len(path.read_bytes()) == len(whole) + length
    journal(path, 4)
    assert path.read_bytes() == whole + b'{"number": 4}\n'


def test_what_is_kept_keeps_its_bytes_and_the_journal_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b'{"number":1 }\n{"number": 2}\n{"number":  3}\n')
    found = journal(path)
    found.filter(lambda record: record["number"] != 2)
    found.append({"number": 4})
    found.flush()
    assert path.read_bytes() == b'{"number":1 }\n{"number":  3}\n{"number": 4}\n'
    assert os.listdir(tmp_path) == ["a"]


def test_keeping_everything_writes_nothing(tmp_path: Path) -> None:
    found = journal(tmp_path / "a", 1, 2)
    before = (tmp_path / "a").stat()
    found.filter(lambda record: True)
    assert (tmp_path / "a").stat() == before


@pytest.mark.parametrize("bad", [b"nonsense", b"[1]", b"3", b"", b"\xff"])
def test_a_line_that_is_no_object_is_named(tmp_path: Path, bad: bytes) -> None:
    (tmp_path / "a").write_bytes(b'{"number": 1}\n' + bad + b"\n")
    with raises("run.bad_log") as caught:
        read_jsonl(tmp_path / "a")
    assert caught.value.where == f"{tmp_path}/a:2"


def _limited(path: Path) -> None:
    found = journal(path, 1, 2, 3)
    size = path.stat().st_size + 5
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    with raises("file.write_failed", "ulimit -f") as caught:
        found.append({"number": 4})
    assert caught.value.where == str(path)


def test_a_disk_without_room_is_told_with_what_to_do_and_loses_no_earlier_line(tmp_path: Path) -> None:
    process = FORK.Process(target=_limited, args=(tmp_path / "a",))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert numbers(tmp_path / "a") == [1, 2, 3]
    journal(tmp_path / "a", 4)
    assert numbers(tmp_path / "a") == [1, 2, 3, 4]


def test_a_folder_that_is_gone_is_told_with_what_to_do(tmp_path: Path) -> None:
    with raises("file.write_failed") as caught:
        journal(tmp_path / "none/a")
    assert caught.value.where == f"{tmp_path}/none/a"
    assert caught.value.hint


def test_a_journal_that_the_system_does_not_hand_out_is_named(tmp_path: Path) -> None:
    assert read_jsonl(tmp_path / "none") == []
    with raises("file.read_failed", tmp_path):
        read_jsonl(tmp_path)  # a folder
