"""`vitral serve`."""

import logging
import os
import re
import sys
from pathlib import Path
from threading import Thread
from typing import Annotated
from urllib.parse import quote

import typer

from vitral.cli.terminal.app import verb
from vitral.cli.terminal.completion import ENGINES, complete_from, complete_weights
from vitral.cli.terminal.options import option
from vitral.core.errors import ConfigError, format_choices

log = logging.getLogger("vitral")

MODEL_HELP = (
    "The model: a run, a bundle, weights of another library, or a folder that vitral export wrote. "
    "NAME=MODEL names it; one server can have several models."
)
HOST_HELP = "The address to listen on. An address that other machines can reach needs --token or --insecure."
PORT_HELP = "The port to listen on; 0 chooses a free one."
TOKEN_HELP = (
    "A token that clients must send as Authorization: Bearer TOKEN. The environment variable VITRAL_TOKEN "
    "sets it without showing it in the list of processes."
)
INSECURE_HELP = "Listen on a network without a token: anyone who can reach the server may use it."
ALLOW_HELP = "An additional host name of the server, such as that of a proxy; repeatable."
CORS_HELP = "An origin whose pages may use the API, such as https://example.org; repeatable."
CERT_HELP = "The TLS certificate, a PEM file. Phones allow the live camera only over TLS."
KEY_HELP = "The private key of the TLS certificate, a PEM file."
WORKERS_HELP = "Number of server processes, which share the threads."
ENGINES_OR_AUTO = ("auto", *ENGINES)
ENGINE_HELP = f"The engine: {format_choices(ENGINES_OR_AUTO)}. auto measures which one is the fastest."
UPLOAD_HELP = "Maximum size of a request, in bytes."
QUEUE_HELP = "Maximum number of waiting images; more are refused with status 429."
DEADLINE_HELP = "Maximum time for a request, in seconds; then it is answered with status 503."
TOKEN_VARIABLE = "VITRAL_TOKEN"
NAMED = re.compile(r"([A-Za-z0-9_.-]+)=(.+)", re.DOTALL)


@verb(
    "vitral serve runs/photos",
    "vitral serve cats=runs/cats dogs=runs/dogs --port 9000",
    "vitral serve runs/photos --host 0.0.0.0 --token SECRET",
)
def serve(  # noqa: PLR0913, PLR0917, one parameter per option
    model: Annotated[list[str], typer.Argument(metavar="MODEL", help=MODEL_HELP, autocompletion=complete_weights)],
    allow_host: Annotated[list[str], option("NAME", ALLOW_HELP, "none", default_factory=list)],
    cors: Annotated[list[str], option("ORIGIN", CORS_HELP, "none", default_factory=list)],
    host: Annotated[str, option("ADDRESS", HOST_HELP)] = "127.0.0.1",
    port: Annotated[int, option("N", PORT_HELP, min=0, max=65535)] = 8000,
    token: Annotated[str, option("TOKEN", TOKEN_HELP, "VITRAL_TOKEN, else none")] = "",
    insecure: Annotated[bool, typer.Option("--insecure", help=INSECURE_HELP)] = False,
    tls_cert: Annotated[str, option("FILE", CERT_HELP, "no TLS")] = "",
    tls_key: Annotated[str, option("FILE", KEY_HELP, "no TLS")] = "",
    workers: Annotated[int, option("N", WORKERS_HELP, min=1)] = 1,
    engine: Annotated[str, option("NAME", ENGINE_HELP, complete=complete_from(ENGINES_OR_AUTO))] = "auto",
    max_upload: Annotated[int, option("BYTES", UPLOAD_HELP, min=1)] = 10_000_000,
    queue: Annotated[int, option("N", QUEUE_HELP, min=1)] = 64,
    deadline: Annotated[float, option("SECONDS", DEADLINE_HELP, min=0.1)] = 30.0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open the page in a browser.")] = False,
) -> None:
    """Serve models: an HTTP API, and a page to drop photos on.

    After SIGTERM or Ctrl-C, the server answers the accepted requests and exits. SIGHUP reloads the models.
    """
    from vitral.core.machine import keep_freed_memory
    from vitral.serving.config import Limits
    from vitral.serving.serve import serve as serve_models

    token = token or os.environ.get(TOKEN_VARIABLE, "")

    def on_ready(url: str) -> None:
        page = page_address(url, token)
        _announce(page, host)
        if not no_browser and _has_browser():
            import webbrowser

            Thread(target=webbrowser.open, args=(page,), daemon=True).start()  # a slow start of it holds nobody up

    keep_freed_memory()
    serve_models(
        parse_models(model),
        on_ready=on_ready,
        host=host,
        port=port,
        token=token,
        insecure=insecure,
        hosts=tuple(allow_host),
        cors=tuple(cors),
        tls_cert=tls_cert,
        tls_key=tls_key,
        workers=workers,
        engine=engine,
        limits=Limits(upload=max_upload, queue=queue, deadline=deadline),
    )


def parse_models(models: list[str]) -> dict[str, str]:
    """The models by name, from `runs/cats` or `cats=runs/cats`."""
    from vitral.serving.serve import clean_name
    from vitral.weights.hub import check_not_empty

    found: dict[str, str] = {}
    for text in models:
        check_not_empty(text)
        named = None if Path(text).expanduser().exists() else NAMED.fullmatch(text)
        name, path = (named[1], named[2]) if named else (clean_name(_last_name(text)), text)
        if name in found:
            message, hint = f"two models are named {name!r}", "give each a name: NAME=MODEL"
            raise ConfigError(message, code="config.conflict", where=text, hint=hint)
        found[name] = path
    return found


def _last_name(text: str) -> str:
    from vitral.explanation.explain import model_name

    return model_name(text)


def page_address(url: str, token: str) -> str:
    """The address of the page, with the token in the fragment, which browsers send to no server."""
    return f"{url}/#token={quote(token, safe='')}" if token else f"{url}/"


def _announce(page: str, host: str) -> None:
    """Print where the page is, and on a network a code for the camera of a phone."""
    from vitral.serving.config import is_loopback

    log.info(f"the page: {page}\nstop with Ctrl-C")
    if not is_loopback(host) and log.isEnabledFor(logging.INFO) and sys.stderr.isatty():
        import segno

        segno.make(page, error="l").terminal(out=sys.stderr, compact=True)


def _has_browser() -> bool:
    """Whether a window can be opened: a browser in text mode would take over the terminal."""
    if not sys.stderr.isatty():
        return False
    return sys.platform != "linux" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
