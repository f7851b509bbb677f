"""32 clients against ours, LitServe and Ray Serve in turn: with our engine behind all of them, and out of the box."""

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, Self

from benchmarks.serving.load import Target, ask_once, closed_loop, summarize
from benchmarks.serving.process import ServeProcess, about
from benchmarks.serving.scenarios import WARM_SECONDS, Setting, ratio

ROUNDS = 2  # the second in the opposite order, so that a machine that becomes slower slows all of them
CLIENTS = 32
LIBRARIES = {"litserve": "LitServe", "ray": "Ray Serve"}
DISTRIBUTIONS = "import importlib.metadata as m; print(*(f'{n} {m.version(n)}' for n in ('litserve', 'ray')), sep=', ')"
START_SECONDS, STOP_SECONDS = 120.0, 30.0


def peers(setting: Setting, python: str, turn: int) -> dict[str, Any]:
    """One turn of all servers: what each of them reached, and those that did not start."""
    contenders: dict[str, Callable[[], AbstractContextManager[ServeProcess | PeerProcess]]] = {"vitral": setting.server}
    for library in LIBRARIES:
        for kind in ("engine", "torch"):
            contenders[f"{library}-{kind}"] = partial(PeerProcess, python, library, kind, setting)
    reached: dict[str, dict[str, Any]] = {}
    missing: dict[str, str] = {}
    for name in reversed(contenders) if turn % 2 else contenders:
        try:
            with contenders[name]() as server:
                path, field = ("/v1/predict", "image") if name == "vitral" else ("/predict", "request")
                target = Target(server.url, path, field)  # the same form for all
                closed_loop(target, 4, WARM_SECONDS, setting.photos)
                seconds = setting.seconds / ROUNDS
                reached[name] = summarize(closed_loop(target, CLIENTS, seconds, setting.photos), seconds)
        except RuntimeError as error:
            missing[name] = str(error).strip()[-300:]
    return {"reached": reached, "missing": missing, "peers": versions(python), **about()}


def versions(python: str) -> str:
    """The versions of the peers in that environment; empty if one is not there."""
    done = subprocess.run([python, "-c", DISTRIBUTIONS], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def compare(turns: list[dict[str, Any]], kind: str) -> dict[str, dict[str, float | None]]:
    """Our means over all turns by those of each library with an engine or a torch model: throughput and p99."""

    def means(name: str) -> tuple[float, float] | None:
        found = [turn["reached"][name] for turn in turns if name in turn["reached"]]
        if len(found) < len(turns) or not all(each["answered"] for each in found):
            return None
        return mean(each["rate"] for each in found), mean(each["p99_ms"] for each in found)

    ours, result = means("vitral"), {}
    for library in LIBRARIES:
        theirs = means(f"{library}-{kind}")
        if ours and theirs:
            result[library] = {
                "rate": theirs[0], "p99_ms": theirs[1], "our_rate": ours[0], "our_p99_ms": ours[1],
                "rate_ratio": ratio(ours[0], theirs[0]), "p99_ratio": ratio(ours[1], theirs[1]),
            }  # fmt: skip
    return result


class PeerProcess:
    """Another library's server with the same model, in a process of its own."""

    def __init__(self, python: str, library: str, kind: str, setting: Setting) -> None:
        port = free_port()
        words = [str(setting.bundle), kind, setting.engine, str(port)]
        self.command = [python, "-m", f"benchmarks.serving.peer_{library}", *words]
        self.url, self.photo = f"http://127.0.0.1:{port}", setting.photos[0]

    def __enter__(self) -> Self:
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "RAY_USAGE_STATS_ENABLED": "0"}
        self.process = subprocess.Popen(
            self.command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )
        self.log = bytearray()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        end = time.monotonic() + START_SECONDS
        target = Target(self.url, "/predict", "request")
        try:
            while (status := ask_once(target, self.photo).status) != 200:
                if status == 500 or self.process.poll() is not None or time.monotonic() > end:
                    said = self.log.decode(errors="replace")
                    raise RuntimeError(f"{said} did not answer: status {status}".strip())
                time.sleep(0.5)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log += line
            del self.log[:-4000]

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)  # it ends its own processes
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # what it has left behind
        self.process.wait()
        time.sleep(1)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        return int(own.getsockname()[1])
