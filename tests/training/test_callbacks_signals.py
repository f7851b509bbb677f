import signal
import threading
from collections.abc import Iterator

import pytest

from tests.processes import run_forked
from vitral.training.callbacks import SignalHandler
from vitral.training.loop import STOP_SIGNALS


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """Tests may run under nohup, which has them ignore a signal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_the_first_signal_is_noted_and_ends_nothing(number: int) -> None:
    # In a process of its own: a signal that is not noted would end the process of the tests.
    code = (
        "import signal\nfrom vitral.training.callbacks import SignalHandler\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        f"with SignalHandler() as stop:\n    signal.raise_signal({int(number)})\nprint(int(stop.signal))"
    )
    found = run_forked(code=code)
    assert (found.returncode, found.stdout) == (0, f"{int(number)}\n")


def test_the_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    with SignalHandler():
        assert [signal.getsignal(number) for number in STOP_SIGNALS] != before
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_the_second_signal_ends_the_process_at_once(number: int) -> None:
    code = (
        "import os, time\nfrom vitral.training.callbacks import SignalHandler\n"
        "with SignalHandler():\n    os.kill(os.getpid(), 15)\n"
        f"    os.kill(os.getpid(), {int(number)})\n    time.sleep(60)"
    )
    assert run_forked(code=code).returncode == -number


def test_outside_the_main_thread_no_handler_is_touched() -> None:
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    seen: list[object] = []

    def inside() -> None:
        with SignalHandler():
            seen.extend(signal.getsignal(number) for number in STOP_SIGNALS)

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert seen == before
