"""Many processes: the same answers in the same order, and none of them left behind."""

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.data.decoding.hostile import breakable, breaking
from tests.data.doctor.albums import fill, photo
from tests.data.pictures import encoded, noise
from tests.errors import raises
from vitral.data.datasets.files import FileStore
from vitral.data.datasets.named import open_sample
from vitral.data.datasets.source import open_data
from vitral.data.decoding.isolation import Isolation
from vitral.data.doctor.diagnosis import diagnose_all
from vitral.data.doctor.examine import CHUNK, Unreadable, examine_all, examine_isolated
from vitral.data.doctor.report import render_page
from vitral.data.samples import Samples


@pytest.fixture
def samples(tmp_path: Path) -> Samples:
    """A few chunks of pictures, one of them damaged."""
    files = {f"{n % 2}/{n:03}.png": encoded(noise(16, 16, seed=n).astype("uint8"), "PNG") for n in range(3 * CHUNK + 5)}
    return open_data(str(fill(tmp_path, {**files, "1/101.png": photo(0)[:300]})))


def test_any_number_of_workers_gives_the_same(samples: Samples) -> None:
    alone = list(examine_all(samples, workers=0))
    assert [item for item, _ in alone] == list(samples.items)
    assert [item.name for item, result in alone if isinstance(result, Unreadable)] == ["1/101.png"]
    for workers in (1, 3):
        assert list(examine_all(samples, workers)) == alone


def test_isolated_decoders_give_the_same(samples: Samples) -> None:
    alone = list(examine_all(samples, workers=0))
    assert list(examine_isolated(samples, Isolation(processes=2))) == alone


def test_a_file_that_kills_its_decoder_is_a_finding(tmp_path: Path) -> None:
    files = {f"{n % 2}/{n}.png": encoded(noise(16, 16, seed=n).astype("uint8"), "PNG") for n in range(4)}
    samples = open_data(str(fill(tmp_path / "data", {**files, "1/bad.gif": breaking("crash")})))
    (tmp_path / "site").mkdir()
    with breakable(tmp_path / "site"):
        diagnosis = diagnose_all(samples, 0, isolation=Isolation(processes=2))
        page = render_page(diagnosis)
    (bad,) = [finding for finding in diagnosis.findings if finding.kind == "corrupt"]
    assert [item.name for example in bad.examples for item in example.items] == ["1/bad.gif"]
    assert diagnosis.examined == 5
    assert "1/bad.gif" in page


def test_who_stops_listening_leaves_no_process_behind(samples: Samples) -> None:
    before = set(_children(os.getpid()))  # such as the resource tracker of multiprocessing, which earlier tests started
    exams = examine_all(samples, workers=2)
    next(exams)
    workers = set(_children(os.getpid())) - before
    assert len(workers) >= 2
    exams.close()
    assert not workers & set(_children(os.getpid()))
    isolated = examine_isolated(samples, Isolation(processes=2))
    next(isolated)
    assert set(_children(os.getpid())) - before
    isolated.close()
    assert set(_children(os.getpid())) <= before


class Deadly(FileStore):
    """A store that ends the process which reads from it."""

    def read(self, name: str) -> bytes:
        os.kill(os.getpid(), signal.SIGKILL)
        return b""


def test_a_worker_that_was_killed_is_told(samples: Samples) -> None:
    deadly = Samples(samples.where, samples.classes, samples.items, Deadly(samples.where))
    with raises("run.lost_process", -9, "--workers 1") as caught:
        list(examine_all(deadly, workers=2))
    assert caught.value.where == str(Path(samples.where) / samples.items[0].name)


SLOW = """
import signal, sys, time
from vitral import cli
from vitral.data.datasets.files import FileStore

signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored where tests run in the background
whole = FileStore.read

def slowly(self, name):
    time.sleep(0.5)
    return whole(self, name)

FileStore.read = slowly
cli.main(["check", sys.argv[1], "--workers", "2", *sys.argv[2:]])
"""


@pytest.mark.parametrize(
    "send", [os.kill, os.killpg], ids=["to the parent alone", "to the whole group, as a terminal does"]
)
@pytest.mark.sampled(3)
def test_an_interrupt_ends_at_once_without_a_word(samples: Samples, send: object) -> None:
    assert callable(send)
    line = [sys.executable, "-c", SLOW, samples.where]
    with subprocess.Popen(line, stdout=-1, stderr=-1, text=True, start_new_session=True) as process:
        children: list[int] = []
        while len(children) < 2 and process.poll() is None:
            time.sleep(0.05)
            children = _children(process.pid)
        time.sleep(0.2)  # for the workers to become ready
        send(process.pid, signal.SIGINT)
        shown, talk = process.communicate(timeout=20)  # the chunks at hand would take half a minute
    assert process.returncode == 130
    assert (shown, talk) == ("", "")
    assert not any(Path(f"/proc/{child}").exists() for child in children)


@pytest.mark.parametrize(("options", "bar"), [([], True), (["--quiet"], False)])
@pytest.mark.sampled(4)
def test_a_terminal_sees_a_bar_unless_it_is_to_be_quiet(samples: Samples, options: list[str], bar: bool) -> None:
    ours, theirs = pty.openpty()
    line = [sys.executable, "-m", "vitral", "check", samples.where, *options]
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(line, stdout=-1, stderr=theirs, env=environment) as process:
        os.close(theirs)
        shown = b"".join(_read(ours))
        report, _ = process.communicate(timeout=60)
    os.close(ours)
    assert process.returncode == 3
    assert (b"examining" in shown) == bar
    assert b"examining" not in report


def test_a_set_without_files_is_examined_by_workers_too() -> None:
    whole = open_sample()
    part = Samples(whole.where, whole.classes, whole.items[: 2 * CHUNK], whole.store)
    assert list(examine_all(part, workers=2)) == list(examine_all(part, workers=0))


def _children(parent: int) -> list[int]:
    """Also those that its threads started."""
    found = []
    for listed in Path(f"/proc/{parent}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            found += [int(word) for word in listed.read_text().split()]
    return found


def _read(terminal: int) -> Iterator[bytes]:
    """What is written to a terminal, until nobody has it open any more."""
    with suppress(OSError):
        while block := os.read(terminal, 65_536):
            yield block
