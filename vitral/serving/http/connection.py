"""Connections: uvicorn's protocol with limits on their number, on the time they take, and on tiny chunks.

A request with two lengths (Content-Length and Transfer-Encoding) is refused: a proxy in front may have read the other.
"""

import asyncio
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from vitral.core.errors import ServeError
from vitral.serving.config import Limits
from vitral.serving.http.problems import MEDIA_TYPE, BusyError, problem

MANY_PIECES, TINY_PIECE = 1000, 256  # of a body: so many, with fewer bytes on average, take seconds to parse
LINGER_SECONDS = 1.0  # in which a client that was refused may finish what it sends
LENGTHS = {b"content-length", b"transfer-encoding"}


def limited_protocol(limits: Limits) -> "type[LimitedProtocol]":
    """The protocol of a server with these limits, for uvicorn to make an object of for each connection."""
    return type("LimitedProtocol", (LimitedProtocol,), {"limits": limits})


class EventCheck:
    """The events of a connection; what no client should send is a protocol error, and `fault` says which."""

    def __init__(self, connection: h11.Connection) -> None:
        self._next_event = connection.next_event
        self._pieces = self._bytes = 0  # of the body at hand
        self.fault = ""

    def next_event(self) -> Any:
        """The next event; uvicorn handles all that has arrived before anything else runs."""
        event = self._next_event()
        if isinstance(event, h11.Request):
            self._pieces = self._bytes = 0
            if {name for name, _ in event.headers} >= LENGTHS:
                self._refuse("the request has both Content-Length and Transfer-Encoding")
        elif isinstance(event, h11.Data):
            self._pieces, self._bytes = self._pieces + 1, self._bytes + len(event.data)
            if self._pieces > MANY_PIECES and self._bytes < self._pieces * TINY_PIECE:
                self._refuse("the body is cut into tiny chunks")
        return event

    def _refuse(self, fault: str) -> None:
        self.fault = fault
        raise h11.RemoteProtocolError(fault)


class LimitedProtocol(H11Protocol):
    """Closes connections that are too many, too slow to send headers or to take answers, or cut bodies into crumbs."""

    limits: ClassVar[Limits]
    waiting: asyncio.TimerHandle | None = None  # for the headers of the next request
    unread: asyncio.TimerHandle | None = None  # for the client to take what was sent

    def __init__(self, *parts: Any, **options: Any) -> None:
        super().__init__(*parts, **options)
        self._check = EventCheck(self.conn)
        self.conn.next_event = self._check.next_event  # type: ignore[method-assign]
        self._is_ending = False

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=1, low=0)  # whatever the client has not taken pauses writing
        if len(self.connections) > self.limits.connections:
            message = f"the server has {self.limits.connections} connections"
            self._end(BusyError(message, code="serve.queue_full", retry_after=1.0), 429)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        super().connection_lost(exc)
        for timer in (self.waiting, self.unread):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of the headers, or no longer once they are there."""
        if not self._is_ending:
            super().data_received(data)
            self._watch()

    def pause_writing(self) -> None:
        """Let the client go if it does not take what was sent, which stays in memory until then."""
        super().pause_writing()
        self.unread = self.loop.call_later(self.limits.deadline, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has taken it all."""
        super().resume_writing()
        if self.unread is not None:
            self.unread.cancel()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP as any other error."""
        hint = "use an HTTP library to build the request"
        self._end(ServeError(self._check.fault or msg, code="serve.bad_request", where="request", hint=hint), 400)

    def _watch(self) -> None:
        if self._is_ending:
            return
        is_idle = self.cycle is None or self.cycle.response_complete
        if is_idle and self.waiting is None:
            self.waiting = self.loop.call_later(self.limits.body_seconds, self._give_up)
        elif not is_idle and self.waiting is not None:
            self.waiting.cancel()
            self.waiting = None

    def _give_up(self) -> None:
        self.waiting = None
        if (self.cycle is None or self.cycle.response_complete) and self.timeout_keep_alive_task is None:
            message, hint = "the headers of the request did not arrive", "send them at once"
            self._end(ServeError(message, code="serve.slow_upload", where="headers", hint=hint), 408)

    def _end(self, error: ServeError, status: int) -> None:
        """Answer with an error without a request, and close the connection."""
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE} and not self.transport.is_closing():
            answer = problem(error, "")
            body = bytes(answer.body)
            headers = [("content-type", MEDIA_TYPE), ("content-length", str(len(body))), ("connection", "close")]
            if isinstance(error, BusyError):
                headers.append(("retry-after", answer.headers["retry-after"]))
            events = (h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage())
            self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
        self._is_ending = True
        if isinstance(error, BusyError) or not self.transport.can_write_eof() or self.transport.is_closing():
            self.transport.close()
            return
        # What is not read when a connection closes resets it, and the client would lose the answer.
        self.transport.write_eof()
        self.flow.resume_reading()
        if self.waiting is not None:
            self.waiting.cancel()
        self.waiting = self.loop.call_later(LINGER_SECONDS, self.transport.close)
