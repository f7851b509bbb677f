"""Decoding in child processes with limits on memory and time: a file that breaks its decoder costs only itself.

The parent reads a file and sends its bytes. A child answers with the header, waits until the parent has reserved the
memory, and answers with the pixels: those of `decode_image`, whose code it runs. Answers are JSON and raw pixels, and
are checked; nothing is unpickled. A child that dies, hangs or breaks the rules is replaced, and its file is an error.

This holds back crashes and costs of a decoder. It is no sandbox: a child may do what its user may, except write files.
"""

import json
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar, get_args
from weakref import finalize

import numpy as np
from PIL import AvifImagePlugin
from pydantic import Field

from vitral.core.config import Config, Size
from vitral.core.errors import ConfigError, DataError, VitralError
from vitral.data.decoding.budget import memory_limit
from vitral.data.decoding.decode import Decoded, EncodedImage, OnDamage, log_damage, open_image
from vitral.data.decoding.header import MAX_PIXELS, OUT_OF_MEMORY, Decoding, Header, ImageFormat
from vitral.data.decoding.memory import PATIENCE, process_budget

IMPORT_ROOT = Path(__file__).resolve().parents[3]  # the folder that this vitral was imported from
MESSAGE_BYTES = 2**20  # of JSON
START_SECONDS = 60.0
SPARE_BYTES = 64_000_000  # that the interpreter of a child may take beyond an image
LENGTH = struct.Struct(">Q")
HINT = "remove it, or save it again as PNG or JPEG"
BUG = "this is a bug in vitral: please report it"
T = TypeVar("T")


class Isolation(Config):
    """Decode files in child processes. The memory of one is limited as `docs/data.md` says, plus 64 MB."""

    processes: int = Field(default=4, ge=1)  # at most; they are started when they are needed
    cpu_seconds: float = Field(default=20.0, gt=0)  # for a file; in proportion more for a limit above 50 million pixels
    wall_seconds: float = Field(default=120.0, gt=0)  # for a file, from sending it to its pixels

    def build(self) -> "IsolatedDecoder":
        """A decoder with processes of its own."""
        if sys.platform == "win32":
            message, hint = "isolated decoding is not available on Windows", "leave it out"
            raise ConfigError(message, code="config.unsupported", where="isolation", hint=hint)
        return IsolatedDecoder(self)


class IsolatedDecoder:
    """Decodes as `decode_image` does, in child processes. Threads may share it."""

    def __init__(self, limits: Isolation) -> None:
        self.limits = limits
        self._free = threading.Semaphore(limits.processes)
        self._idle: list[_Child] = []
        self._busy: set[_Child] = set()
        self._closings = 0  # how often all children were ended
        finalize(self, _stop_all, self._idle, self._busy)

    def __call__(
        self,
        data: bytes,
        name: str,
        decoding: Decoding,
        min_size: Callable[[Size], Size],
        on_damage: OnDamage = log_damage,
    ) -> Decoded:
        """The image in the bytes of a file; DataError also where a child did not survive it."""
        with self._free:
            closings = self._closings
            try:
                child = self._idle.pop()
            except IndexError:
                child = _Child()
            self._busy.add(child)
            try:
                if self._closings != closings:  # while the child started
                    raise DataError(
                        "decoding was stopped", code="data.decoder_killed", where=name, hint="read it again"
                    )
                answer = child.decode(data, name, decoding, min_size, self.limits)
            except BaseException:
                child.stop()
                raise
            else:
                self._idle.append(child)
            finally:
                self._busy.discard(child)
        if isinstance(answer, VitralError):
            raise answer
        decoded, damages = answer
        for damage in damages:
            on_damage(name, damage)
        return decoded

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End all children. Files that are being decoded are errors; later ones start new children."""
        self._closings += 1
        _stop_all(self._idle, self._busy)


def _stop_all(idle: "list[_Child]", busy: "set[_Child]") -> None:
    for child in list(busy):
        child.process.kill()  # the thread that waits for it does the rest
    while idle:
        idle.pop().stop()


class _Child:
    """A child process and the socket to it."""

    def __init__(self) -> None:
        here, there = socket.socketpair()
        path = [str(IMPORT_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # whose stacks count as memory
        with there:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "vitral.data.decoding.isolation", str(there.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=os.environ | threads | {"PYTHONPATH": os.pathsep.join(path)},
                pass_fds=[there.fileno()],
                start_new_session=True,  # so that Ctrl-C reaches only the parent
            )
        self.socket = here
        try:
            _receive_json(here, time.monotonic() + START_SECONDS)
        except (OSError, EOFError, ValueError):
            self.stop()
            message = f"a process for decoding did not start: exit code {self.process.returncode}"
            raise VitralError(message, code="run.lost_process", hint="leave out --isolate, or see above") from None

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.socket.close()

    def decode(
        self, data: bytes, name: str, decoding: Decoding, min_size: Callable[[Size], Size], limits: Isolation
    ) -> tuple[Decoded, list[str]] | VitralError:
        """The image and its damage, or the error that the child reports; DataError if the child is lost."""
        cpu_seconds = limits.cpu_seconds * max(decoding.pixel_limit / MAX_PIXELS, 1.0)
        request = {"name": name, "decoding": json.loads(decoding.to_json()), "cpu_seconds": cpu_seconds}
        request["seconds"] = 2 * limits.wall_seconds + PATIENCE
        try:
            end = time.monotonic() + limits.wall_seconds
            _send_json(self.socket, request, end)
            _send(self.socket, data, end)
            answer = _receive_json(self.socket, end)
            if "error" in answer:
                return _error(answer["error"], name)
            header, memory = _parse_header(answer, decoding)
            with process_budget().reserve(memory):
                end = time.monotonic() + limits.wall_seconds
                _send_json(self.socket, list(min_size(header.size)), end)
                answer = _receive_json(self.socket, end)
                if "error" in answer:
                    return _error(answer["error"], name)
                pixels = np.empty(_parse_shape(answer, header, decoding), dtype=np.uint8)
                _receive_into(self.socket, pixels.data.cast("B"), end)
            return Decoded(header, pixels), [str(each)[:1_000] for each in answer["damages"]]
        except VitralError:  # of `min_size`
            raise
        except TimeoutError:
            message = f"decoding it did not end within {limits.wall_seconds:g} s"
            raise DataError(message, code="data.decode_timeout", where=name, hint=HINT) from None
        except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
            raise self._lost(name, cpu_seconds, error) from None

    def _lost(self, name: str, cpu_seconds: float, error: Exception) -> DataError:
        if isinstance(error, OSError | EOFError):  # the socket is closed, so the child has ended
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=1.0)
        code = self.process.poll()
        if code == -signal.SIGXCPU:
            message = f"decoding it took more than {cpu_seconds:g} s of CPU"
            return DataError(message, code="data.decode_timeout", where=name, hint=HINT)
        if code is None:
            how = f"gave a wrong answer: {type(error).__name__}: {error}"
        else:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        message = f"the process that decoded it {how}"
        return DataError(message, code="data.decoder_killed", where=name, hint=HINT)


def _error(fields: dict[str, str], name: str) -> VitralError:
    """The error that a child reports."""
    code = str(fields["code"])
    kind = VitralError if code.startswith("internal.") else DataError
    return kind(str(fields["message"])[:1_000], code=code, where=name, hint=str(fields["hint"])[:1_000])


def _parse_header(answer: dict[str, Any], decoding: Decoding) -> tuple[Header, int]:
    """The header in an answer, and the bytes that decoding takes; ValueError for one that no decoder gives."""
    height, width, memory, orientation = (int(answer[name]) for name in ("height", "width", "memory", "orientation"))
    format, mode = answer["format"], str(answer["mode"])[:40]
    if format not in get_args(ImageFormat) or min(height, width, memory) < 1 or height * width > decoding.pixel_limit:
        raise ValueError("its header is impossible")
    return Header(format, Size(height, width), mode, orientation), memory


def _parse_shape(answer: dict[str, Any], header: Header, decoding: Decoding) -> tuple[int, int, int]:
    height, width, channels = map(int, answer["shape"])
    if channels != decoding.channels or not (0 < height <= header.size.height and 0 < width <= header.size.width):
        raise ValueError("its shape is impossible")
    return height, width, channels


def _send(to: socket.socket, content: bytes | memoryview, end: float | None) -> None:
    """Send a message, its length first; TimeoutError after the end, a time of `time.monotonic`."""
    to.settimeout(None if end is None else max(end - time.monotonic(), 1e-3))
    to.sendall(LENGTH.pack(len(content)))
    to.sendall(content)


def _send_json(to: socket.socket, content: object, end: float | None) -> None:
    _send(to, json.dumps(content).encode(), end)


def _receive_into(source: socket.socket, buffer: memoryview, end: float | None) -> None:
    """Receive a message of exactly this length."""
    (length,) = LENGTH.unpack(_read(source, bytearray(LENGTH.size), end))
    if length != len(buffer):
        raise ValueError(f"a message of {length} bytes instead of {len(buffer)}")
    _read(source, buffer, end)


def _receive_json(source: socket.socket, end: float | None) -> Any:
    (length,) = LENGTH.unpack(_read(source, bytearray(LENGTH.size), end))
    if length > MESSAGE_BYTES:
        raise ValueError(f"a message of {length} bytes")
    return json.loads(bytes(_read(source, bytearray(length), end)))


def _read(source: socket.socket, buffer: bytearray | memoryview, end: float | None) -> bytearray | memoryview:
    rest = memoryview(buffer)
    while rest:
        source.settimeout(None if end is None else max(end - time.monotonic(), 1e-3))
        count = source.recv_into(rest)
        if not count:
            raise EOFError("the socket was closed")
        rest = rest[count:]
    return buffer


def run_child(handle: int) -> None:
    """The main function of a child: decodes files until the parent closes the socket."""
    import resource

    for what in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):  # it writes no files
        resource.setrlimit(what, (0, 0))
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # the stacks of threads count as memory
    parent = socket.socket(fileno=handle)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        _send_json(parent, "ready", None)
        while True:
            _decode_next(parent)
            signal.setitimer(signal.ITIMER_REAL, 0)  # it may wait for long


def _decode_next(parent: socket.socket) -> None:
    """Receive one file, and send its header and its pixels, or the error."""
    request = _receive_json(parent, None)
    (length,) = LENGTH.unpack(_read(parent, bytearray(LENGTH.size), None))
    data = bytes(_read(parent, bytearray(length), None))
    damages: list[str] = []

    def open_file() -> EncodedImage:
        decoding = Decoding.parse(request["decoding"])
        signal.setitimer(signal.ITIMER_REAL, request["seconds"])  # ends the child, should its parent have been killed
        limit_resources(data, decoding, request["cpu_seconds"])
        return open_image(data, request["name"], decoding, lambda _, damage: damages.append(damage))

    image = _try(parent, open_file)
    if image is None:
        return
    format, size, mode, orientation = image.header
    header = {"format": format, "mode": mode, "orientation": orientation, "memory": max(image.memory, 1)}
    _send_json(parent, header | {"height": size.height, "width": size.width}, None)
    min_size = Size(*_receive_json(parent, None))
    pixels = _try(parent, lambda: image.pixels(min_size))
    if pixels is not None:
        _send_json(parent, {"shape": pixels.shape, "damages": damages}, None)
        _send(parent, pixels.data.cast("B"), None)


def _try(parent: socket.socket, action: Callable[[], T]) -> T | None:
    """The result of an action; if it fails, the error is sent and the result is None."""
    try:
        return action()
    except VitralError as error:
        failure = {"code": error.code, "message": error.message, "hint": error.hint}
    except MemoryError:
        failure = {"code": "data.out_of_memory", "message": OUT_OF_MEMORY, "hint": HINT}
    except Exception as error:  # a bug, which must not end the child
        failure = {"code": "internal.unexpected", "message": f"{type(error).__name__}: {error}", "hint": BUG}
    _send_json(parent, {"error": failure}, None)
    return None


def limit_resources(data: bytes, decoding: Decoding, cpu_seconds: float) -> None:
    """Limit what this process may take from now on, for one file."""
    import resource

    cpu = math.ceil(time.process_time() + cpu_seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, resource.RLIM_INFINITY))
    if sys.platform == "linux":  # elsewhere the limit is not enforced
        used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        limit = used + memory_limit(data, decoding.pixel_limit / MAX_PIXELS) + SPARE_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))


if __name__ == "__main__":
    run_child(int(sys.argv[1]))
