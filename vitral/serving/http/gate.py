"""The gate that every request passes: its id, access, deadline, the client that may leave, errors, metrics and logs."""

import asyncio
import json
import logging
import re
import time
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitral.core.errors import VitralError
from vitral.serving.config import ServeConfig
from vitral.serving.http.access import SECURITY_HEADERS, check_access
from vitral.serving.http.metrics import METRICS
from vitral.serving.http.problems import BusyError, problem
from vitral.serving.http.uploads import UploadMemory

log = logging.getLogger("vitral")
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
UNLOGGED = ("/healthz", "/readyz", "/metrics", "/page/", "/docs")
LEFT = 499  # the status in logs and metrics of a request whose client left


class Gate:
    """Wraps the application. Whatever happens inside, the client gets an answer with its request id."""

    def __init__(self, app: ASGIApp, config: ServeConfig, memory: UploadMemory) -> None:
        self.app, self.config, self.memory = app, config, memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})
        elif scope["type"] == "http":
            await Passage(self, scope, receive, send).run()
        else:
            await self.app(scope, receive, send)


class Passage:
    """One request on its way through the gate."""

    def __init__(self, gate: Gate, scope: Scope, receive: Receive, send: Send) -> None:
        self.gate, self.scope = gate, scope
        self._receive, self._send = receive, send
        self.headers = Headers(scope=scope)
        given = self.headers.get("x-request-id", "")
        self.id = given if REQUEST_ID.fullmatch(given) else uuid4().hex
        self.status = 0  # of the answer, once it began
        self.code = ""  # of an error
        self._is_read = asyncio.Event()  # the body has been read, so the next message says that the client left
        self._left = asyncio.Event()

    async def run(self) -> None:
        """Answer the request, or let it go if the client left."""
        start = time.perf_counter()
        with self.gate.memory.request() as share:
            self.scope.setdefault("state", {}).update(request_id=self.id, upload=share, passage=self)
            try:
                check_access(self.gate.config, self.scope["path"], self.headers, self.scope["method"])
                await self._answer()
            except VitralError as error:
                await self.refuse(error)
            except asyncio.CancelledError:  # the server stops, or the body was cut off
                if not self.status:
                    self.status = LEFT
                raise
            finally:
                self._report(time.perf_counter() - start, share.bytes)

    async def _answer(self) -> None:
        """Run the application until it ends, the client leaves, or the deadline passes."""
        answering = asyncio.ensure_future(self.gate.app(self.scope, self.receive, self.send))
        watching = asyncio.ensure_future(self._watch())
        deadline = self.gate.config.limits.deadline
        try:
            await asyncio.wait({answering, watching}, timeout=deadline, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() and not self._left.is_set():
                answering.cancel()
                message = f"no answer within {deadline:g} s"
                raise BusyError(message, code="serve.deadline", retry_after=deadline)
        finally:
            for task in (answering, watching):
                task.cancel()
            await asyncio.wait({answering, watching})
        if self._left.is_set() and not self.status:
            self.status = LEFT
            METRICS.abandoned()
        elif not answering.cancelled() and (error := answering.exception()) is not None:
            log.error(f"request {self.id} failed", exc_info=error)  # the client has been told by now
            if not self.status:
                raise VitralError(str(error), code="internal.unexpected") from error

    async def _watch(self) -> None:
        await self._is_read.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._left.set()

    async def receive(self) -> Message:
        """A message for the application; once the body has been read, only that the client left."""
        if self._is_read.is_set():
            await self._left.wait()
            return {"type": "http.disconnect"}
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._left.set()
            self._is_read.set()
        elif not message.get("more_body", False):
            self._is_read.set()
        return message

    async def send(self, message: Message) -> None:
        """A message of the application to the client; the first one gets the headers that all answers have."""
        if message["type"] == "http.response.start":
            if self.status:
                return
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = self.id
            for name, value in SECURITY_HEADERS.items():
                headers.setdefault(name, value)
            if not self.scope["path"].startswith(("/page/", "/docs")):
                headers.setdefault("cache-control", "no-store")
        await self._send(message)

    async def refuse(self, error: VitralError) -> None:
        """Answer with an error, unless an answer has begun."""
        self.code = error.code
        if not self.status:
            with suppress(OSError):
                await problem(error, self.id)(self.scope, self.receive, self.send)

    def _report(self, seconds: float, received: int) -> None:
        route = self.scope.get("route")
        path = getattr(route, "path", "") or "other"
        METRICS.request(path, self.status, seconds)
        if self.code:
            METRICS.error(self.code)
        if not self.scope["path"].startswith(UNLOGGED) and self.scope["path"] != "/":
            log.info(json.dumps(self._line(path, seconds, received)))

    def _line(self, path: str, seconds: float, received: int) -> MutableMapping[str, Any]:
        """What the log says: nothing of what the request contains."""
        client = self.scope.get("client")
        line = {
            "event": "request",
            "id": self.id,
            "client": client[0] if client else "",
            "method": self.scope["method"],
            "route": path,
            "status": self.status,
            "ms": round(1000 * seconds, 1),
            "bytes": received,
        }
        return line | ({"code": self.code} if self.code else {})
