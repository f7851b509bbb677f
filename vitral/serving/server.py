"""A server's life: bind, load, listen, reload on SIGHUP, and stop on SIGTERM once all that was accepted is answered."""

import asyncio
import logging
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

import uvicorn

from vitral.core.errors import ConfigError
from vitral.core.storage import os_error_message
from vitral.serving.api.app import create_app
from vitral.serving.config import ServeConfig
from vitral.serving.http.connection import limited_protocol
from vitral.serving.service import Service

if TYPE_CHECKING:
    from vitral.weights.load import LoadedModel

log = logging.getLogger("vitral")
KEEP_ALIVE = 15  # seconds that an idle connection stays open
NOTICE = 0.3  # seconds in which a stopping server still listens, so that probes see that it is not ready
ANY_PORT = ServeConfig(port=0)
READY_SECONDS = 600.0  # for a server in a thread


class HttpServer(uvicorn.Server):
    """Uvicorn without its own handling of signals, which would end the process by the signal."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to `run_service`."""
        yield


def check_certificate(config: ServeConfig) -> None:
    """Raise ConfigError for files of which no TLS server can be made."""
    if not config.tls_cert:
        return
    for field, path in (("tls_cert", config.tls_cert), ("tls_key", config.tls_key)):
        try:
            Path(path).read_bytes()
        except OSError as error:
            message, hint = f"cannot read {path}: {os_error_message(error)}", "pass the path of a PEM file"
            raise ConfigError(message, code="config.bad_certificate", where=field, hint=hint) from None
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(config.tls_cert, config.tls_key, lambda: b"")
    except ssl.SSLError as error:
        message = f"{config.tls_cert} and {config.tls_key} are not a certificate and its key: {error.reason or error}"
        hint = "pass PEM files that belong together; the key must have no password"
        raise ConfigError(message, code="config.bad_certificate", where="tls_cert", hint=hint) from None


def bind(config: ServeConfig) -> socket.socket:
    """A socket at the address of a server; ConfigError if it is taken or not this machine's."""
    check_certificate(config)
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    own = socket.socket(family, socket.SOCK_STREAM)
    try:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        own.bind((config.host, config.port))
    except (OSError, UnicodeError) as error:
        own.close()
        message = f"cannot listen on {config.host}:{config.port}: {error}"
        hint = "choose another --port, or 0 for any that is free, or another --host"
        raise ConfigError(message, code="config.address", where="port", hint=hint) from None
    own.set_inheritable(True)
    return own


def address(config: ServeConfig, own: socket.socket) -> str:
    """The URL of a bound server; a server of all addresses is called by the one of this machine."""
    host, port = own.getsockname()[:2]
    if host in {"0.0.0.0", "::"}:
        host = own_address()
    return f"{config.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def own_address() -> str:
    """The address by which this machine reaches others; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # of no machine (RFC 5737); UDP sends nothing to connect
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


async def run_service(
    service: Service, own: socket.socket, on_ready: Callable[[], None], stop: asyncio.Event, hangup: asyncio.Event
) -> None:
    """Load the models, then serve until `stop` is set; `hangup` reloads the models."""
    await service.start()
    config = service.config
    server = HttpServer(
        uvicorn.Config(
            create_app(service),
            log_config=None,
            log_level=logging.ERROR,
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
            http=limited_protocol(config.limits),
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=int(config.limits.drain_seconds),
            ssl_certfile=config.tls_cert or None,
            ssl_keyfile=config.tls_key or None,
            proxy_headers=False,
        )
    )
    serving = asyncio.ensure_future(server.serve(sockets=[own]))
    reloading = asyncio.ensure_future(reload_on(hangup, service))
    try:
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        if not serving.done():
            on_ready()
        await asyncio.wait({serving, asyncio.ensure_future(stop.wait())}, return_when=asyncio.FIRST_COMPLETED)
        service.admission.stopping = True
        if not serving.done():
            await asyncio.sleep(NOTICE)
        server.should_exit = True
        await serving
    finally:
        reloading.cancel()
        service.close()


async def reload_on(hangup: asyncio.Event, service: Service) -> None:
    """Reload the models whenever the event is set."""
    while True:
        await hangup.wait()
        hangup.clear()
        await service.reload()


def run_until_stopped(service: Service, own: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serve in this thread until SIGTERM or SIGINT; a second one ends it at once."""

    async def main() -> None:
        stop, hangup = asyncio.Event(), asyncio.Event()
        loop, signals = asyncio.get_running_loop(), 0

        def on_stop() -> None:
            nonlocal signals
            signals += 1
            stop.set()
            if signals > 1:
                raise SystemExit(130)

        if threading.current_thread() is threading.main_thread() and sys.platform != "win32":
            loop.add_signal_handler(signal.SIGTERM, on_stop)
            loop.add_signal_handler(signal.SIGINT, on_stop)
            loop.add_signal_handler(signal.SIGHUP, hangup.set)
        await run_service(service, own, on_ready, stop, hangup)

    asyncio.run(main())


class Server:
    """A server in a separate thread, for tests and notebooks: `with Server({"cats": "runs/cats"}) as server: ...`."""

    def __init__(self, models: "Mapping[str, str | Path | LoadedModel]", config: ServeConfig = ANY_PORT) -> None:
        self.config = config
        self.service = Service(models, config)
        self._socket = bind(config)
        self.url = address(config, self._socket)
        self._ready, self._failed = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="serve", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait(READY_SECONDS)
        if self._error is not None:
            raise self._error
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Answer what was accepted, and end."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def reload(self) -> None:
        """Load the models again, as SIGHUP does, and return when that is done."""
        asyncio.run_coroutine_threadsafe(self.service.reload(), self._loop).result()

    def _run(self) -> None:
        async def main() -> None:
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            await run_service(self.service, self._socket, self._ready.set, self._stop, asyncio.Event())

        try:
            asyncio.run(main())
        except BaseException as error:
            self._error = error
        finally:
            self._socket.close()
            self._ready.set()
