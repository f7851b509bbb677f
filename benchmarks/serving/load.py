"""Clients: closed loops, arrivals at a fixed rate, and clients that are slow; and what they saw."""

import math
import socket
import threading
import time
from collections import Counter
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException
from io import BytesIO
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

TIMEOUT = 60.0
MOST_CLIENTS = 512
REFUSALS = (429, 503)
PAUSE, MOST_PAUSE = 0.05, 2.0  # seconds after a refusal: without Retry-After, and at most


class Reply(NamedTuple):
    """One answer, as the client saw it."""

    at: float  # seconds since the start of the load
    seconds: float
    status: int  # 0 for none
    retry_after: str
    late: float = 0.0  # seconds between the time at which it was to be sent and the time at which it was


def photos(count: int = 16) -> list[bytes]:
    """JPEGs of 500 x 375 pixels, as smooth and as noisy as photos."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(count):
        coarse = Image.fromarray(rng.integers(256, size=(12, 16, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((500, 375), Image.Resampling.BICUBIC), dtype=np.int16)
        noisy = smooth + rng.normal(0, 6, smooth.shape).astype(np.int16)
        file = BytesIO()
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=88)
        found.append(file.getvalue())
    return found


class Target(NamedTuple):
    """Where images are sent, and how: as the body, or as a form."""

    url: str
    path: str = "/v1/predict"
    field: str = ""  # of a form; empty for the body itself

    def encode(self, photo: bytes) -> tuple[bytes, dict[str, str]]:
        """The body and the headers of a request."""
        if not self.field:
            return photo, {"Content-Type": "image/jpeg"}
        head = f'--cut\r\nContent-Disposition: form-data; name="{self.field}"; filename="a.jpg"\r\n'
        body = head.encode() + b"Content-Type: image/jpeg\r\n\r\n" + photo + b"\r\n--cut--\r\n"
        return body, {"Content-Type": "multipart/form-data; boundary=cut"}


class Client:
    """A client with one connection, which it keeps."""

    def __init__(self, target: Target, start: float) -> None:
        parts = urlsplit(target.url)
        self.target, self.start = target, start
        self.place = parts.hostname or "", parts.port
        self.connection: HTTPConnection | None = None

    def ask(self, photo: bytes) -> Reply:
        """Send one image and wait for its answer."""
        body, headers = self.target.encode(photo)
        begin = time.monotonic()
        try:
            if self.connection is None:
                self.connection = HTTPConnection(*self.place, timeout=TIMEOUT)
            self.connection.request("POST", self.target.path, body, headers)
            answer = self.connection.getresponse()
            answer.read()
            status, retry_after = answer.status, answer.getheader("retry-after", "")
        except (OSError, HTTPException):
            self.close()
            status, retry_after = 0, ""
        end = time.monotonic()
        return Reply(end - self.start, end - begin, status, retry_after)

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.connection = None


def ask_once(target: Target, photo: bytes) -> Reply:
    """One request over a connection of its own."""
    client = Client(target, time.monotonic())
    try:
        return client.ask(photo)
    finally:
        client.close()


def closed_loop(target: Target, clients: int, seconds: float, images: Sequence[bytes]) -> list[Reply]:
    """So many clients, each of which sends its next image when it has the last answer, or when a refusal says."""
    assert clients <= MOST_CLIENTS
    start = time.monotonic()
    replies: list[list[Reply]] = [[] for _ in range(clients)]

    def work(number: int) -> None:
        client, turn = Client(target, start), number
        while time.monotonic() - start < seconds:
            reply = client.ask(images[turn % len(images)])
            replies[number].append(reply)
            turn += 1
            if reply.status in REFUSALS or not reply.status:
                time.sleep(min(float(reply.retry_after or PAUSE), MOST_PAUSE))
        client.close()

    run_threads(clients, work)
    return [reply for own in replies for reply in own]


def open_loop(
    target: Target, rate: float, seconds: float, images: Sequence[bytes], spread: str = "even"
) -> list[Reply]:
    """Arrivals at a fixed rate, evenly spaced or at random (`poisson`), whether or not earlier ones are answered."""
    rng, start = np.random.default_rng(0), time.monotonic()
    gaps = (
        rng.exponential(1 / rate, int(rate * seconds))
        if spread == "poisson"
        else np.full(int(rate * seconds), 1 / rate)
    )
    arrivals = np.cumsum(gaps)
    clients = min(MOST_CLIENTS, max(8, math.ceil(rate * 8)))
    replies: list[list[Reply]] = [[] for _ in range(clients)]

    def work(number: int) -> None:
        client = Client(target, start)
        for turn in range(number, len(arrivals), clients):
            delay = start + arrivals[turn] - time.monotonic()
            if delay > 0:
                time.sleep(delay)
            reply = client.ask(images[turn % len(images)])
            replies[number].append(reply._replace(late=reply.at - reply.seconds - arrivals[turn]))
        client.close()

    run_threads(clients, work)
    return [reply for own in replies for reply in own]


class SlowClients:
    """Clients that send a byte of their request now and then, while the `with` lasts."""

    def __init__(self, url: str, count: int) -> None:
        assert count <= MOST_CLIENTS
        self.place, self.count = urlsplit(url), count
        self.ended = threading.Event()

    def __enter__(self) -> "SlowClients":
        self.threads = [
            threading.Thread(target=self._work, args=(number,), daemon=True) for number in range(self.count)
        ]
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.ended.set()
        for thread in self.threads:
            thread.join(5)

    def _work(self, number: int) -> None:
        head = (
            b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\nContent-Length: 60000\r\n\r\n"
        )
        first = head[:20] if number % 2 else head + b"\xff\xd8\xff"
        while not self.ended.wait(0.1):
            try:
                with socket.create_connection((self.place.hostname or "", self.place.port or 0), timeout=20) as client:
                    client.sendall(first)
                    while not self.ended.wait(1.0):
                        client.sendall(b"x")
            except OSError:
                continue


def run_threads(count: int, work: Any) -> None:
    """Run the same work in so many threads."""
    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def summarize(replies: Sequence[Reply], seconds: float) -> dict[str, Any]:
    """Rates, latencies in ms, refusals, and how late the clients were, of a load that took so long."""
    good = sorted(1000 * each.seconds for each in replies if each.status == 200)
    refused = sorted(1000 * each.seconds for each in replies if each.status in REFUSALS)
    statuses = Counter(each.status for each in replies)
    span = max([seconds, *(each.at for each in replies)])
    return {
        "answered": len(good),
        "rate": round(len(good) / span, 2),
        "p50_ms": percentile(good, 50),
        "p99_ms": percentile(good, 99),
        "max_ms": percentile(good, 100),
        "refused": len(refused),
        "refusal_p99_ms": percentile(refused, 99),
        "retry_after": all(each.retry_after for each in replies if each.status in REFUSALS),
        "late_p99_ms": percentile(sorted(1000 * each.late for each in replies), 99),
        "statuses": {str(status): count for status, count in sorted(statuses.items())},
    }


def percentile(values: Sequence[float], share: float) -> float | None:
    """A percentile of sorted values; none of no values."""
    return round(float(np.percentile(values, share)), 1) if values else None
