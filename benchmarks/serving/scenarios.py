"""The scenarios: each starts a server, puts a load on it, and gives the numbers of one cell."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from benchmarks.serving.load import (
    REFUSALS,
    SlowClients,
    Target,
    ask_once,
    closed_loop,
    open_loop,
    percentile,
    summarize,
)
from benchmarks.serving.process import ServeProcess, about, descendants, resident
from vitral.core.machine import private_bytes
from vitral.inference.predictor import Predictor

WARM_SECONDS = 3.0
ROUNDS = 2  # of turns with peers
RELOADS = 4
PEER_PORTS = iter(range(8123, 8999))  # a new one each time: a server that is stopping may still answer
START_SECONDS, STOP_SECONDS = 180.0, 60.0  # of a peer


class Setting(NamedTuple):
    """What all scenarios share."""

    bundle: Path
    photos: Sequence[bytes]
    seconds: float
    engine: str

    @contextmanager
    def server(self, *words: str) -> Iterator[ServeProcess]:
        """Our server, warmed up."""
        with ServeProcess(f"small={self.bundle}", "--engine", self.engine, *words) as running:
            closed_loop(Target(running.url), 4, WARM_SECONDS, self.photos)
            yield running


def with_engine(setting: Setting) -> Setting:
    """The setting with the engine that a server chooses, which another number of images or another process may not."""
    predictor = Predictor(setting.bundle, engine=setting.engine)
    return setting._replace(engine=predictor.select_engine("logits", None, 32).name)


def offline(setting: Setting) -> dict[str, Any]:
    """Images a second of the predictor on files, with the engine that the server has."""
    setting = with_engine(setting)
    predictor = Predictor(setting.bundle, engine=setting.engine)
    with TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.jpg" for number in range(max(64, int(setting.seconds * 4)))]
        for number, path in enumerate(paths):
            path.write_bytes(setting.photos[number % len(setting.photos)])
        predictor.predict(paths[:32])
        rates = []
        for _ in range(3):
            start = time.monotonic()
            predictor.predict(paths)
            rates.append(len(paths) / (time.monotonic() - start))
    return {
        "rate": round(median(rates), 2),
        "rates": [round(rate, 2) for rate in rates],
        "engine": setting.engine,
        **about(),
    }


def clients(setting: Setting, count: int) -> dict[str, Any]:
    """A closed loop of so many clients."""
    with setting.server() as server:
        found = summarize(closed_loop(Target(server.url), count, setting.seconds, setting.photos), setting.seconds)
        return {**found, "megabytes": round(server.megabytes()), **about()}


def half(setting: Setting, rate: float) -> dict[str, Any]:
    """One client alone, then arrivals at half of the rate."""
    with setting.server() as server:
        target = Target(server.url)
        alone = summarize(closed_loop(target, 1, setting.seconds / 2, setting.photos), setting.seconds / 2)
        found = {
            spread: summarize(open_loop(target, rate / 2, setting.seconds, setting.photos, spread), setting.seconds)
            for spread in ("even", "poisson")
        }
    ratios = {f"p99_{spread}_by_alone": ratio(each["p99_ms"], alone["p50_ms"]) for spread, each in found.items()}
    return {"alone": alone, **found, **ratios, **about()}


def ratio(one: float | None, other: float | None) -> float | None:
    """A quotient with two digits; none where one is missing."""
    return round(one / other, 2) if one and other else None


def overload(setting: Setting, rate: float) -> dict[str, Any]:
    """Arrivals at five times the rate, and how long it takes until one client is served as before."""
    with setting.server() as server:
        target = Target(server.url)
        alone = summarize(closed_loop(target, 1, 5.0, setting.photos), 5.0)
        samples = Sampler(server)
        with samples:
            found = summarize(open_loop(target, 5 * rate, setting.seconds, setting.photos), setting.seconds)
        start, recovered = time.monotonic(), None
        while time.monotonic() - start < 30:
            reply = ask_once(target, setting.photos[0])
            if reply.status == 200 and reply.seconds * 1000 < 2 * (alone["p50_ms"] or 1):
                recovered = round(time.monotonic() - start, 1)
                break
        within = percentile(sorted(each for status, each in server.milliseconds if status in REFUSALS), 99)
    return {
        **found,
        "refusal_p99_ms_within": within,  # the server, without the clients, which share its cores
        "alone_p50_ms": alone["p50_ms"],
        "recovered_s": recovered,
        **samples.summary(),
        **about(),
    }


def slow(setting: Setting) -> dict[str, Any]:
    """Eight clients, without and with 200 slow ones."""
    with setting.server() as server:
        target = Target(server.url)
        without = summarize(closed_loop(target, 8, setting.seconds, setting.photos), setting.seconds)
        before = server.megabytes()
        with SlowClients(server.url, 200):
            time.sleep(2)
            beside = summarize(closed_loop(target, 8, setting.seconds, setting.photos), setting.seconds)
            after = server.megabytes()
    return {
        "without": without,
        "beside": beside,
        "p99_ratio": ratio(beside["p99_ms"], without["p99_ms"]),
        "rate_ratio": ratio(beside["rate"], without["rate"]),
        "megabytes": [round(before), round(after)],
        **about(),
    }


class Sampler:
    """Memory and open files of a server, every few seconds while the `with` lasts."""

    def __init__(self, server: ServeProcess, every: float = 2.0) -> None:
        self.server, self.every = server, every
        self.ended = threading.Event()
        self.samples: list[tuple[float, float, int]] = []

    def __enter__(self) -> "Sampler":
        self.start = time.monotonic()
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.ended.set()
        self.thread.join()

    def _work(self) -> None:
        while not self.ended.wait(self.every):
            self.samples.append((time.monotonic() - self.start, self.server.megabytes(), self.server.open_files()))

    def summary(self) -> dict[str, Any]:
        """First, highest and last, and the slope of the later two thirds in MB a minute."""
        if len(self.samples) < 3:
            return {}
        later = self.samples[len(self.samples) // 3 :]
        times, sizes = [each[0] / 60 for each in later], [each[1] for each in later]
        mean = sum(times) / len(times)
        spread = sum((each - mean) ** 2 for each in times) or 1.0
        slope = sum((each - mean) * size for each, size in zip(times, sizes, strict=True)) / spread
        sizes = [each[1] for each in self.samples]
        return {
            "megabytes": [round(sizes[0]), round(max(sizes)), round(sizes[-1])],
            "slope_mb_a_minute": round(slope, 3),
            "open_files": [self.samples[0][2], self.samples[-1][2]],
        }


def soak(setting: Setting, rate: float, seconds: float) -> dict[str, Any]:
    """Arrivals at 70 % for a long time."""
    with setting.server() as server, Sampler(server, max(1.0, seconds / 300)) as samples:
        found = summarize(open_loop(Target(server.url), 0.7 * rate, seconds, setting.photos, "poisson"), seconds)
    return {**found, **samples.summary(), "seconds": seconds, **about()}


def shutdown(setting: Setting) -> dict[str, Any]:
    """SIGTERM with 50 requests in flight."""
    with setting.server() as server:
        found: list[Any] = []
        loader = threading.Thread(
            target=lambda: found.extend(closed_loop(Target(server.url), 50, 0.5, setting.photos)), daemon=True
        )
        loader.start()
        time.sleep(0.7)
        took = server.stop()
        loader.join(30)
        code = server.process.returncode
    return {**summarize(found, 1.0), "stopped_s": round(took, 2), "exit_code": code, **about()}


def reload(setting: Setting) -> dict[str, Any]:
    """SIGHUP while 8 clients ask."""
    with ServeProcess(f"small={setting.bundle}", "--engine", setting.engine) as server:
        closed_loop(Target(server.url), 4, WARM_SECONDS, setting.photos)
        sizes = [server.megabytes()]
        found: list[Any] = []
        loader = threading.Thread(
            target=lambda: found.extend(closed_loop(Target(server.url), 8, setting.seconds, setting.photos)),
            daemon=True,
        )
        loader.start()
        times = []
        for turn in range(1, RELOADS + 1):
            start = time.monotonic()
            server.process.send_signal(signal.SIGHUP)
            while sum("was reloaded" in line for line in server.lines) < turn and time.monotonic() - start < 60:
                time.sleep(0.05)
            times.append(round(time.monotonic() - start, 1))
            sizes.append(server.megabytes())
        loader.join()
    return {
        **summarize(found, setting.seconds),
        "reload_s": times,
        "megabytes": [round(each) for each in sizes],  # before, and after each
        **about(),
    }


def workers(setting: Setting) -> dict[str, Any]:
    """Memory and rate of one and of two processes."""
    found = {}
    for count in (1, 2):
        with setting.server("--workers", str(count)) as server:
            load = summarize(closed_loop(Target(server.url), 8, setting.seconds, setting.photos), setting.seconds)
            ours = [each for each in descendants(server.process.pid) if resident(each) > 150]
            found[str(count)] = {
                "rate": load["rate"],
                "p99_ms": load["p99_ms"],
                "resident_mb": [round(resident(each)) for each in ours],
                "private_mb": [round(private_bytes(each) / 1e6) for each in ours],
            }
    return {**found, **about()}


def peers(setting: Setting, python: str) -> dict[str, Any]:
    """32 clients against each server in turn: with our engine behind all of them, and out of the box."""
    setting = with_engine(setting)
    contenders: dict[str, Callable[[], Any]] = {"vitral": setting.server}
    for library in ("litserve", "ray"):
        for kind in ("engine", "torch"):
            contenders[f"{library}-{kind}"] = lambda library=library, kind=kind: PeerProcess(  # type: ignore[misc]
                python, library, kind, setting
            )
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    missing: dict[str, str] = {}
    for _ in range(ROUNDS):
        for name, start in contenders.items():
            if name in missing:
                continue
            try:
                with start() as server:
                    target = Target(server.url) if name == "vitral" else Target(server.url, "/predict", "request")
                    closed_loop(target, 4, WARM_SECONDS, setting.photos)
                    replies = closed_loop(target, 32, setting.seconds, setting.photos)
                    rounds[name].append(summarize(replies, setting.seconds))
            except RuntimeError as error:
                missing[name] = str(error)[-300:]
    means = {
        name: {"rate": median(each["rate"] for each in found), "p99_ms": median(each["p99_ms"] or 0 for each in found)}
        for name, found in rounds.items()
        if found
    }
    own = means["vitral"]["rate"]
    ratios = {name: ratio(own, each["rate"]) for name, each in means.items()}
    return {
        "engine": setting.engine,
        "means": means,
        "ours_by_theirs": ratios,
        "rounds": rounds,
        "missing": missing,
        **about(),
    }


class PeerProcess:
    """Another library's server with the same model, in a process of its own."""

    def __init__(self, python: str, library: str, kind: str, setting: Setting) -> None:
        self.command = [python, "-m", f"benchmarks.serving.peer_{library}", str(setting.bundle), kind, setting.engine]
        port = next(PEER_PORTS)
        self.command.append(str(port))
        self.url, self.photo = f"http://127.0.0.1:{port}", setting.photos[0]

    def __enter__(self) -> "PeerProcess":
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
        self.process = subprocess.Popen(
            self.command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )
        self.log = bytearray()
        threading.Thread(target=self._listen, daemon=True).start()
        end = time.monotonic() + START_SECONDS
        target = Target(self.url, "/predict", "request")
        while ask_once(target, self.photo).status != 200:
            if self.process.poll() is not None or time.monotonic() > end:
                self.__exit__()
                raise RuntimeError(self.log.decode(errors="replace"))
            time.sleep(0.5)
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


if __name__ == "__main__":
    sys.exit("run python -m benchmarks.serving")
