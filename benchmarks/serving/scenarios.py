"""The scenarios: each starts a server, puts a load on it, and gives the numbers of one cell."""

import re
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from urllib.request import urlopen

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
RELOADS = 4
RELOAD_SECONDS, RECOVER_SECONDS = 60.0, 30.0  # at most
IN_FLIGHT = 50


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


def choose_engine(bundle: Path, engine: str) -> str:
    """The engine that a server chooses; every cell has the same one, so that their figures can be compared."""
    return Predictor(bundle, engine=engine).select_engine("logits", None, 32).name


def offline(setting: Setting) -> dict[str, Any]:
    """Images a second of the predictor on files."""
    predictor = Predictor(setting.bundle, engine=setting.engine)
    with TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.jpg" for number in range(64)]
        for number, path in enumerate(paths):
            path.write_bytes(setting.photos[number % len(setting.photos)])
        predictor.predict(paths[:32])
        rates, end = list[float](), time.monotonic() + setting.seconds / 2
        while len(rates) < 3 or time.monotonic() < end:
            start = time.monotonic()
            predictor.predict(paths)
            rates.append(len(paths) / (time.monotonic() - start))
    return {"rate": round(median(rates), 2), "rates": [round(rate, 2) for rate in rates], **about()}


def clients(setting: Setting, count: int) -> dict[str, Any]:
    """A closed loop of so many clients."""
    with setting.server() as server:
        found = summarize(closed_loop(Target(server.url), count, setting.seconds, setting.photos), setting.seconds)
        return {**found, "megabytes": round(server.megabytes()), **about()}


def half(setting: Setting, rate: float) -> dict[str, Any]:
    """One client alone, then arrivals at half of the rate."""
    with setting.server() as server:
        target = Target(server.url)
        alone = summarize(closed_loop(target, 1, setting.seconds / 4, setting.photos), setting.seconds / 4)
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
        while time.monotonic() - start < RECOVER_SECONDS:
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
    with setting.server() as server, ThreadPoolExecutor(IN_FLIGHT) as pool:
        target = Target(server.url)
        asked = [pool.submit(ask_once, target, setting.photos[0]) for _ in range(IN_FLIGHT)]
        end = time.monotonic() + 30
        while (waiting := queued(server)) + sum(each.done() for each in asked) < IN_FLIGHT and time.monotonic() < end:
            time.sleep(0.01)  # until all of them are accepted
        took = server.stop()
        found = [each.result() for each in asked]
    return {
        **summarize(found, took),
        "in_flight": waiting,
        "stopped_s": round(took, 2),
        "exit_code": server.process.returncode,
        **about(),
    }


def queued(server: ServeProcess) -> int:
    """The images that a server has accepted and not answered yet."""
    with urlopen(f"{server.url}/metrics", timeout=30) as answer:
        found = re.search(rb"^vitral_queue_images ([0-9.]+)$", answer.read(), re.MULTILINE)
    return int(float(found[1])) if found else 0


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
            while (
                sum("was reloaded" in line for line in server.lines) < turn
                and time.monotonic() - start < RELOAD_SECONDS
            ):
                time.sleep(0.05)
            times.append(round(time.monotonic() - start, 1))
            sizes.append(server.megabytes())
        under_load = loader.is_alive()
        loader.join()
    return {
        **summarize(found, setting.seconds),
        "reload_s": times,
        "under_load": under_load,  # to the last reload
        "megabytes": [round(each) for each in sizes],  # before, and after each
        **about(),
    }


def workers(setting: Setting) -> dict[str, Any]:
    """Memory and rate of one and of two processes."""
    found = {}
    for count in (1, 2):
        with setting.server("--workers", str(count)) as server:
            load = summarize(
                closed_loop(Target(server.url), 8, setting.seconds / 3, setting.photos), setting.seconds / 3
            )
            ours = [each for each in descendants(server.process.pid) if resident(each) > 150]
            found[str(count)] = {
                "rate": load["rate"],
                "p99_ms": load["p99_ms"],
                "resident_mb": [round(resident(each)) for each in ours],
                "private_mb": [round(private_bytes(each) / 1e6) for each in ours],
            }
    return {**found, **about()}
