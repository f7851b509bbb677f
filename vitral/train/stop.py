"""Stopping a run from outside: the first signal asks for it after the step at hand, the second ends the process."""

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """While this context lasts, SIGINT and SIGTERM are noted. Outside the main thread nothing is changed."""

    def __init__(self) -> None:
        self.signal = 0  # the number of the first that came
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
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
