"""Processes that work when asked to."""

import os
import signal
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from vitral.runs.bench import TimingProcess, mean_seconds

METRONOME = "tests.inference.metronome"


@pytest.fixture
def runner() -> TimingProcess:
    return TimingProcess("metronome", [METRONOME, "2"])


def test_a_turn_is_a_line_and_its_answer(runner: TimingProcess) -> None:
    assert [runner.measure("8 0.5"), runner.measure("1 0")] == [0.016, 0.002]
    runner.stop()
    assert runner._process.returncode == 0


def test_what_is_refused_is_the_answer_to_every_line() -> None:
    runner = TimingProcess("metronome", [METRONOME, "broken"])
    assert runner.measure() == runner.measure() == {"refused": "metronome: it is broken"}
    runner.stop()


def test_an_interrupt_is_left_to_the_process_that_asks(runner: TimingProcess) -> None:
    assert os.getpgid(runner._process.pid) != os.getpgid(0)  # a terminal interrupts all of a group
    runner.stop()


def test_a_process_that_fell_is_named_with_its_exit_code(capfd: pytest.CaptureFixture[str]) -> None:
    runner = TimingProcess("the third", [METRONOME, "not a number"])
    with pytest.raises(RuntimeError, match="the third ended with exit code 1"):
        runner.measure()
    runner.stop()
    assert "could not convert string to float" in capfd.readouterr().err


def test_a_process_in_the_midst_of_a_turn_is_killed() -> None:
    words = ["timeit", "-n", "1", "-r", "1", "import time; time.sleep(60)"]
    runner = TimingProcess("sleeper", words)
    started = time.perf_counter()
    runner.stop(patience=0.1)
    assert time.perf_counter() - started < 30
    assert runner._process.returncode == -signal.SIGKILL


def test_calls_are_repeated_until_the_time_is_filled_and_the_first_only_wakes_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("vitral.runs.bench.time.perf_counter", lambda: clock.now)

    def taking(*seconds: float) -> Callable[[], None]:
        left = iter(seconds)
        return lambda: setattr(clock, "now", clock.now + next(left))

    assert mean_seconds(taking(9.0, 1.0), 5.0) == 9.0
    assert mean_seconds(taking(4.0, 1.0, 3.0, 2.0), 5.0) == 2.0
    assert mean_seconds(taking(0.5), 0.0) == 0.5
