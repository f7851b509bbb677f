"""Uploads: the images of a request, read into memory while they are counted, and never written to disk."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from vitral.core.errors import ServeError
from vitral.serving.config import Limits
from vitral.serving.http.problems import BusyError

FIELD = "image"
MAX_HEADER = 4096  # bytes of the headers of a part
SEND = "send the image as the body with a Content-Type such as image/jpeg, or as multipart/form-data in a field image"
UNSAFE = re.compile(r"[^\w .()+-]")


class Upload(NamedTuple):
    """An image of a request."""

    name: str  # for messages; no file of that name is opened
    data: bytes


class UploadMemory:
    """Counts the bytes of all requests that are not answered yet."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.bytes = 0

    @contextmanager
    def request(self) -> "Iterator[UploadShare]":
        """The share of one request, freed when it is answered."""
        share = UploadShare(self)
        try:
            yield share
        finally:
            self.bytes -= share.bytes


class UploadShare:
    """The bytes of one request."""

    def __init__(self, memory: UploadMemory) -> None:
        self.memory = memory
        self.bytes = 0

    def grow(self, count: int) -> None:
        """Count bytes that have arrived; refuse the request if they are too many."""
        self.bytes += count
        self.memory.bytes += count
        limits = self.memory.limits
        if self.bytes > limits.upload:
            raise too_large(limits.upload)
        if self.memory.bytes > limits.uploads:
            message = "the server holds as many uploads as its memory allows"
            raise BusyError(message, code="serve.uploads_full", retry_after=1.0)


def too_large(limit: int) -> ServeError:
    """The error of a request that has more bytes than the limit."""
    message = f"the request has more than {limit:,} bytes"
    return ServeError(message, code="serve.too_large", where="body", hint="send a smaller image")


async def read_body(request: Request, share: UploadShare, limits: Limits) -> AsyncIterator[bytes]:
    """The chunks of a body, counted; it has to arrive within `body_seconds`."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limits.upload:
        raise too_large(limits.upload)
    chunks = request.stream()
    end = asyncio.get_running_loop().time() + limits.body_seconds
    while True:
        try:
            async with asyncio.timeout_at(end):
                chunk = await anext(chunks, None)
        except TimeoutError:
            message = f"the request did not arrive within {limits.body_seconds:g} s"
            hint = "send a smaller image, or use a faster connection"
            raise ServeError(message, code="serve.slow_upload", where="body", hint=hint) from None
        except ClientDisconnect:
            raise asyncio.CancelledError from None
        if chunk is None:
            return
        share.grow(len(chunk))
        yield chunk


async def read_bytes(request: Request, share: UploadShare, limits: Limits) -> bytes:
    """The whole body."""
    return b"".join([chunk async for chunk in read_body(request, share, limits)])


async def read_images(request: Request, share: UploadShare, limits: Limits) -> list[Upload]:
    """The images of a request: the body itself, or the parts named `image` of a form."""
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind == b"multipart/form-data":
        form = ImageForm(options.get(b"boundary", b""), limits.images)
        async for chunk in read_body(request, share, limits):
            form.write(chunk)
        return form.finish()
    if not kind.startswith(b"image/") and kind != b"application/octet-stream":
        shown = kind.decode("latin-1")[:60] or "none"
        message = f"expected multipart/form-data or an image type, got {shown!r}"
        raise ServeError(message, code="serve.wrong_type", where="Content-Type", hint=SEND)
    data = await read_bytes(request, share, limits)
    if not data:
        raise ServeError("the request has no image", code="serve.no_image", where=FIELD, hint=SEND)
    return [Upload(FIELD, data)]


class ImageForm:
    """Parses a form, and keeps its images in memory. Other fields are refused: none has a meaning."""

    def __init__(self, boundary: bytes, most: int) -> None:
        if not boundary:
            raise bad_form("its Content-Type has no boundary")
        self.most = most
        self.images: list[Upload] = []
        self.data = bytearray()
        self.name = b""  # of the header at hand
        self.value = b""
        self.disposition: dict[bytes, bytes] = {}
        self.is_complete = False
        try:
            self.parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin,
                    "on_part_data": self._data,
                    "on_part_end": self._end,
                    "on_header_field": self._header_field,
                    "on_header_value": self._header_value,
                    "on_header_end": self._header_end,
                    "on_headers_finished": self._headers_finished,
                    "on_end": self._finished,
                },
            )
        except FormParserError as error:
            raise bad_form(str(error)) from None

    def write(self, chunk: bytes) -> None:
        """Parse the next bytes of the body."""
        try:
            self.parser.write(chunk)
        except FormParserError as error:
            raise bad_form(str(error)) from None

    def finish(self) -> list[Upload]:
        """The images, once the body is complete."""
        if not self.is_complete:
            raise bad_form("it ends before its last boundary")
        if not self.images:
            message = "the form has no image"
            raise ServeError(message, code="serve.no_image", where=FIELD, hint=SEND)
        return self.images

    def _begin(self) -> None:
        self.data, self.disposition = bytearray(), {}

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self.name += data[start:end]
        self._check_header()

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self.value += data[start:end]
        self._check_header()

    def _check_header(self) -> None:
        if len(self.name) + len(self.value) > MAX_HEADER:
            raise bad_form("a part has too long a header")

    def _header_end(self) -> None:
        if self.name.lower() == b"content-disposition":
            self.disposition = parse_options_header(self.value)[1]
        self.name = self.value = b""

    def _headers_finished(self) -> None:
        field = self.disposition.get(b"name", b"")
        if field != FIELD.encode():
            shown = field.decode("utf-8", "replace")[:60]
            message, hint = f"expected fields named image, got {shown!r}", SEND
            raise ServeError(message, code="serve.no_image", where=FIELD, hint=hint)
        if len(self.images) == self.most:
            message, hint = f"a request may have {self.most} images", "send the rest in another request"
            raise ServeError(message, code="serve.too_many_images", where=FIELD, hint=hint)

    def _data(self, data: bytes, start: int, end: int) -> None:
        self.data += data[start:end]

    def _end(self) -> None:
        self.images.append(Upload(shown_name(self.disposition.get(b"filename", b"")), bytes(self.data)))
        self.data = bytearray()

    def _finished(self) -> None:
        self.is_complete = True


def shown_name(filename: bytes) -> str:
    """The name of an upload in answers and messages: the last part of a path, without control characters."""
    last = re.split(r"[/\\]", filename.decode("utf-8", "replace"))[-1]
    return UNSAFE.sub("_", last)[:200] or FIELD


def bad_form(reason: str) -> ServeError:
    """The error of a form that cannot be parsed."""
    message = f"the form cannot be read: {reason}"
    return ServeError(message, code="serve.bad_request", where="body", hint="use an HTTP library to build the form")
