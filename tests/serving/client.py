"""A client over real HTTP, and models of a server that tests share."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from tests.data.pictures import encoded, noise
from tests.inference.truth import loaded
from tests.models.variants import small
from vitral.inference.engines.engine import FloatArray, PixelBatch
from vitral.serving.batching.batcher import Batcher
from vitral.serving.config import ServeConfig
from vitral.serving.server import Server

JPEG = {"Content-Type": "image/jpeg"}
SECONDS = 60.0


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: Mapping[str, str]  # by lower-case name
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        assert self.headers["content-type"] == "application/problem+json"
        assert set(self.json) == {"type", "title", "status", "detail", "code", "field", "hint", "request_id", "error"}
        assert self.json["status"] == self.status
        assert self.json["request_id"] == self.headers["x-request-id"]
        return str(self.json["code"])


def photo(seed: int = 0, rows: int = 40, columns: int = 48) -> bytes:
    return encoded(noise(rows, columns, 3, seed=seed).astype(np.uint8), "JPEG")


def ask(url: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = JPEG, method: str = "") -> Answer:
    parts = urlsplit(url)
    connection = HTTPConnection(parts.hostname or "", parts.port, timeout=SECONDS)
    try:
        given = {name: text for name, text in headers.items() if body is not None or name != "Content-Type"}
        connection.request(method or ("GET" if body is None else "POST"), path, body, given)
        answer = connection.getresponse()
        return Answer(answer.status, {name.lower(): text for name, text in answer.getheaders()}, answer.read())
    finally:
        connection.close()


def form(*parts: tuple[str, str, bytes], boundary: str = "cut") -> tuple[bytes, dict[str, str]]:
    """A form of fields, file names and contents, and its headers."""
    body = b""
    for field, name, data in parts:
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{field}"; filename="{name}"\r\n\r\n'
        body += head.encode() + data + b"\r\n"
    return body + f"--{boundary}--\r\n".encode(), {"Content-Type": f"multipart/form-data; boundary={boundary}"}


def connect(url: str) -> socket.socket:
    """A bare connection, for requests that no library would send."""
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname or "", parts.port or 0), timeout=SECONDS)


class Held:
    """An engine that waits until it is released, and counts the images that it was given."""

    def __init__(self, run: Callable[[PixelBatch], FloatArray]) -> None:
        self.run = run
        self.begun, self.released = threading.Event(), threading.Event()
        self.sizes: list[int] = []
        self.is_waiting = False

    def __call__(self, pixels: PixelBatch) -> FloatArray:
        self.sizes.append(len(pixels))
        self.is_waiting = True
        self.begun.set()
        try:
            assert self.released.wait(SECONDS)
        finally:
            self.is_waiting = False
        return self.run(pixels)


@contextmanager
def held(server: Server, model: str = "vit") -> Iterator[Held]:
    """Hold back the engine of a model inside the `with`, or until it is released."""
    batcher: Batcher = server.service.models[model].batchers["logits"]
    holder = Held(batcher.run)
    batcher.run = holder
    try:
        yield holder
    finally:
        batcher.run = holder.run
        holder.released.set()


def tiny_server(**fields: Any) -> Server:
    """A server of one small model, for what the shared one cannot have."""
    usual: dict[str, Any] = {"port": 0, "engine": "eager", "decoders": 1}
    return Server({"vit": loaded(small())}, ServeConfig(**usual | fields))


def wait_for(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)
