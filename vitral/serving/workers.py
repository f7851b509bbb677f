"""Several server processes on one socket: the weights are mapped from the disk, and the kernel shares their pages.

The parent starts a worker for each share of the threads, starts another where one is lost, and passes signals on. A
worker gets its settings on stdin, says on stdout when it is ready, and stops when its stdin closes.
"""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from vitral.core.custom import is_trusted, trust_from_now_on
from vitral.core.errors import ConfigError, VitralError
from vitral.core.machine import default_threads, keep_freed_memory
from vitral.core.manifest import current_policy, set_file_policy
from vitral.serving.config import ServeConfig

log = logging.getLogger("vitral")
SHARED_METRICS = "PROMETHEUS_MULTIPROC_DIR"
READY = b"ready\n"
POLL_SECONDS = 0.05
MAX_LOSSES = 5  # workers that may be lost within a minute
EXTRA_SECONDS = 5.0  # beyond draining, before a worker is killed


class Worker:
    """A server process."""

    def __init__(self, settings: bytes, own: socket.socket, environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "vitral.serving.workers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            pass_fds=[own.fileno()],
            start_new_session=True,  # so that Ctrl-C reaches only the parent
        )
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(settings)
            self.process.stdin.flush()
        self.ready = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        if self.process.stdout.readline() == READY:
            self.ready.set()

    def send(self, what: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        with suppress(ProcessLookupError):
            self.process.send_signal(what)


class Supervisor:
    """Keeps the workers running until it is told to stop."""

    def __init__(self, sources: Mapping[str, str], config: ServeConfig, own: socket.socket) -> None:
        self.config, self.own = config, own
        policy = current_policy()
        self.sources, self.stopping, self.reloading = sources, False, False
        self.losses: list[float] = []  # when workers were lost
        self.workers: list[Worker] = []
        self.fields: dict[str, Any] = {
            "config": json.loads(config.to_json()),
            "socket": own.fileno(),
            "trust": is_trusted(),
            "policy": [policy.verify, str(policy.public_key or "")],
            "level": log.getEffectiveLevel(),
        }

    def run(self, on_ready: Callable[[], None]) -> None:
        """Serve until SIGTERM or SIGINT; VitralError if workers keep getting lost."""
        handlers = {
            signal.SIGTERM: self._stop,
            signal.SIGINT: self._stop,
            signal.SIGHUP: self._reload,
        }
        before = {each: signal.signal(each, handler) for each, handler in handlers.items()}
        with (
            TemporaryDirectory(prefix="vitral-metrics-") as folder,
            TemporaryDirectory(prefix="vitral-models-") as copies,
        ):
            try:
                self.copy_models(Path(copies))
                self.workers = [self._start(folder) for _ in range(self.config.workers)]
                is_ready = False
                while not self.stopping:
                    time.sleep(POLL_SECONDS)
                    self._replace_lost(folder)
                    if self.reloading:
                        self.reloading = False
                        self._copy_again(Path(copies))
                    if not is_ready and all(each.ready.is_set() for each in self.workers):
                        is_ready = True
                        on_ready()
            finally:
                self._end()
                for each, handler in before.items():
                    signal.signal(each, handler)

    def _start(self, folder: str) -> Worker:
        threads = max(1, default_threads() // self.config.workers)
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), SHARED_METRICS: folder}
        return Worker(json.dumps(self.fields).encode() + b"\n", self.own, environment)

    def copy_models(self, copies: Path) -> None:
        """Copy the models to a private folder, from which the workers map them."""
        from vitral.serving.models.snapshot import copy_files

        private = [name for name, source in self.sources.items() if copy_files(source, copies / name)]
        paths = {name: str(copies / name) if name in private else source for name, source in self.sources.items()}
        self.fields |= {"sources": paths, "private": private}

    def _copy_again(self, copies: Path) -> None:
        try:
            self.copy_models(copies)
        except VitralError as error:
            log.error(f"the models were not reloaded: {error}")
        else:
            self._pass_on(signal.SIGHUP)

    def _reload(self, *_: object) -> None:
        self.reloading = True

    def _replace_lost(self, folder: str) -> None:
        for index, worker in enumerate(self.workers):
            code = worker.process.poll()
            if code is None or self.stopping:
                continue
            now = time.monotonic()
            self.losses = [each for each in self.losses if now - each < 60] + [now]
            if not worker.ready.is_set() or len(self.losses) > MAX_LOSSES:
                message, hint = f"a server process ended with code {code}", "see above for its error"
                raise VitralError(message, code="run.lost_process", hint=hint)
            log.error(f"a server process ended with code {code}; another is started")
            mark_lost(worker.process.pid)
            self.workers[index] = self._start(folder)

    def _stop(self, *_: object) -> None:
        self.stopping = True

    def _pass_on(self, what: signal.Signals) -> None:
        for worker in self.workers:
            worker.send(what)

    def _end(self) -> None:
        """Let the workers answer what they have accepted; kill those that take too long."""
        self._pass_on(signal.SIGTERM)
        end = time.monotonic() + self.config.limits.drain_seconds + EXTRA_SECONDS
        for worker in self.workers:
            try:
                worker.process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()


def mark_lost(process: int) -> None:
    """Forget the gauges of a process that has ended."""
    from prometheus_client.multiprocess import mark_process_dead

    with suppress(OSError, KeyError, TypeError):
        mark_process_dead(process)  # type: ignore[no-untyped-call]


def run_workers(
    sources: Mapping[str, object], config: ServeConfig, own: socket.socket, on_ready: Callable[[], None]
) -> None:
    """Serve with several processes until SIGTERM or SIGINT."""
    if not all(isinstance(source, str | Path) for source in sources.values()):
        message, hint = "several workers read their models from the disk", "save the model, and pass its path"
        raise ConfigError(message, code="config.unsupported", where="workers", hint=hint)
    Supervisor({name: str(source) for name, source in sources.items()}, config, own).run(on_ready)


def main() -> None:
    """A worker."""
    from vitral.serving.server import run_until_stopped
    from vitral.serving.service import Service

    keep_freed_memory()  # the process is the server's own
    given = json.loads(sys.stdin.buffer.readline())
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    log.setLevel(given["level"])
    trust_from_now_on(given["trust"])
    set_file_policy(*given["policy"])
    own = socket.socket(fileno=given["socket"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def ready() -> None:
        sys.stdout.buffer.write(READY)
        sys.stdout.buffer.flush()
        threading.Thread(target=stop_with_parent, daemon=True).start()

    service = Service(given["sources"], ServeConfig.parse(given["config"]), given["private"])
    run_until_stopped(service, own, ready)


def stop_with_parent() -> None:
    """Stop as by SIGTERM when the parent has ended."""
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
