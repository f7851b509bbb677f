"""`vitral serve` in a separate process."""

import re
import subprocess
import sys
import threading

from tests.serving.client import wait_for


class Process:
    """`vitral serve` in a separate process, with its address and what it says on stderr."""

    def __init__(self, *words: str, engine: str = "eager") -> None:
        command = [sys.executable, "-m", "vitral", "serve", "--port", "0", "--engine", engine, *words]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self.thread = threading.Thread(target=self._listen, daemon=True)
        self.thread.start()
        wait_for(lambda: self.process.poll() is not None or any("the page: " in line for line in self.lines))
        assert self.process.poll() is None, self.lines
        found = re.search(r"the page: (http://[\d.:]+)/", "".join(self.lines))
        assert found
        self.url = found[1]

    def _listen(self) -> None:
        assert self.process.stderr is not None
        self.lines.extend(iter(self.process.stderr.readline, ""))

    def said(self, text: str) -> bool:
        return any(text in line for line in self.lines)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.thread.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
