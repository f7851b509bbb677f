"""Stopping a run from outside: the first signal asks for it after the step at hand, the second ends the process."""

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

SIGHUP = getattr(signal, "SIGHUP", 0)  # not on Windows
SIGNALS = tuple(filter(None, (signal.SIGINT, signal.SIGTERM, SIGHUP)))


class Stop:
    """While this context lasts, an interrupt, a signal to end and a closed terminal are noted.

    Outside the main thread nothing is changed, and what `nohup` has the process ignore stays ignored.
    """

    def __init__(self, words: str = "") -> None:
        self.words = words  # for the user, once the first has come
        self.signal = 0  # the number of the first that came
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            heard = [number for number in SIGNALS if number != SIGHUP or signal.getsignal(number) != signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._note) for number in heard}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal:  # whoever asks twice does not want to wait
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.signal = number
        os.write(2, self.words.encode())  # not by print: the signal may have come in the midst of one
