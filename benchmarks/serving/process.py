"""A server in a process of its own, and the memory that it and its children take."""

import json
import os
import platform
import re
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import torch

import vitral
from vitral.core.config import Size
from vitral.core.machine import cpu_name
from vitral.data.transforms.preprocessing import Preprocessing

START_SECONDS = 300.0
PACKAGES = ("torch", "openvino", "onnxruntime", "fastapi", "uvicorn")


def about() -> dict[str, Any]:
    """What numbers were measured with, and on."""
    return {
        "commit": commit(),
        "machine": f"{os.cpu_count()} x {cpu_name()}",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES if find_spec(name.replace("-", "_"))},
        "load": round(os.getloadavg()[0], 2),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def commit() -> str:
    """The commit of this repository, marked where files differ from it; empty outside of one."""
    words = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def tiny_bundle(folder: Path) -> Path:
    """A small model with random weights, for what does not depend on the model."""
    torch.manual_seed(0)
    model = vitral.create_model("Ti/16", num_classes=5, image_size=32)
    torch.nn.init.normal_(model.get_parameter("head.linear.weight"))
    vitral.save(model, folder, classes=list("abcde"), transform=Preprocessing(image_size=Size(32, 32)))
    return folder


def small_bundle(folder: Path) -> Path:
    """An S/16 at 224 with random weights: the model that is measured."""
    torch.manual_seed(0)
    model = vitral.create_model("S/16", num_classes=1000, image_size=224)
    torch.nn.init.normal_(model.get_parameter("head.linear.weight"))
    vitral.save(model, folder, classes=[f"class {number}" for number in range(1000)], transform=Preprocessing())
    return folder


class ServeProcess:
    """`vitral serve` with these words, until the end of the `with`."""

    def __init__(self, *words: str) -> None:
        self.words = words
        self.url = ""
        self.lines: list[str] = []
        self.milliseconds: list[tuple[int, float]] = []  # of each request, by its own log: status, and milliseconds

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "vitral", "serve", "--port", "0", "--no-browser", *self.words]
        # A session of its own, as peers have: Linux may share out the processors by session.
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        end = time.monotonic() + START_SECONDS
        try:
            while not self.url:
                if self.process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError("".join(self.lines[-20:]))
                time.sleep(0.05)
        except BaseException:  # a time limit, or Ctrl-C: no server may stay beside the next cell
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> float:
        """Stop it by SIGTERM, and return the seconds that it took."""
        start = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self._thread.join(5)
        return time.monotonic() - start

    def said(self, text: str) -> bool:
        """Whether it has written this to stderr."""
        return any(text in line for line in self.lines)

    def megabytes(self) -> float:
        """The resident memory of the server and its children."""
        return sum(resident(process) for process in descendants(self.process.pid))

    def open_files(self) -> int:
        """The open files and sockets of the server."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if line.startswith('{"event": "request"'):
                said = json.loads(line)
                self.milliseconds.append((said["status"], said["ms"]))
            else:
                self.lines.append(line)
            if found := re.search(r"the page: (https?://[^/]+)/", line):
                self.url = found[1]


def descendants(process: int) -> list[int]:
    """A process and all below it."""
    try:
        tasks = Path(f"/proc/{process}/task").iterdir()
        children = [int(each) for task in tasks for each in (task / "children").read_text().split()]
    except OSError:
        return []
    return [process, *(below for child in children for below in descendants(child))]


def resident(process: int) -> float:
    """The resident memory of a process in MB; 0 if it has ended."""
    try:
        text = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0.0
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    return int(found[1]) / 1000 if found else 0.0
