"""`vitral.serve`: an HTTP API and a page for one or more models."""

import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from vitral.core.errors import ConfigError
from vitral.core.imports import load_serving
from vitral.serving.config import Batching, Limits, ServeConfig

if TYPE_CHECKING:
    from vitral.inference.predictor import TrainedRun
    from vitral.weights.load import LoadedModel

log = logging.getLogger("vitral")
DEFAULT_NAME = "model"


class ServeOptions(TypedDict, total=False):
    """Keywords of `vitral.serve`: the fields of `ServeConfig`."""

    host: str
    port: int
    token: str
    insecure: bool
    hosts: tuple[str, ...]
    cors: tuple[str, ...]
    tls_cert: str
    tls_key: str
    workers: int
    engine: str
    decoders: int
    limits: Limits
    batching: Batching


def serve(
    model: "str | Path | LoadedModel | TrainedRun | Mapping[str, str | Path | LoadedModel]",
    *,
    on_ready: Callable[[str], None] | None = None,
    **options: Unpack[ServeOptions],
) -> None:
    """Serve a model, or several by name, until SIGTERM or Ctrl-C: `vitral.serve("runs/photos", port=8000)`.

    `on_ready` is called with the server's address once it answers. The options are those of `vitral serve`.
    """
    load_serving()
    config = ServeConfig(**options)
    from vitral.serving.server import address, bind, run_until_stopped
    from vitral.serving.service import Service
    from vitral.serving.workers import run_workers

    sources = name_models(model)
    own = bind(config)
    url = address(config, own)

    def ready() -> None:
        log.info(f"serving {', '.join(sources)} at {url}")
        if on_ready is not None:
            on_ready(url)

    with own:
        if config.workers > 1:
            run_workers(sources, config, own, ready)
        else:
            run_until_stopped(Service(sources, config), own, ready)


def name_models(
    model: "str | Path | LoadedModel | TrainedRun | Mapping[str, str | Path | LoadedModel]",
) -> "dict[str, str | Path | LoadedModel]":
    """The models by name. A single one has the name of its folder."""
    from vitral.explanation.explain import model_name
    from vitral.weights.load import LoadedModel

    if isinstance(model, Mapping):
        for name in model:
            check_name(name)
        if not model:
            raise ConfigError("there is no model", code="config.missing_value", where="model", hint="pass at least one")
        return dict(model)
    if isinstance(model, LoadedModel):
        return {DEFAULT_NAME: model}
    path = model if isinstance(model, str | Path) else model.path
    return {clean_name(model_name(path)): path}


def clean_name(name: str) -> str:
    """A name of a file as the name of a model in an address."""
    return re.sub(r"[^\w.-]", "-", name).strip(".-") or DEFAULT_NAME


def check_name(name: str) -> None:
    """Raise ConfigError for a name that does not fit into an address."""
    if not name or name != clean_name(name) or len(name) > 100:
        message, hint = f"{name!r} cannot name a model", "use letters, digits, -, _ and ."
        raise ConfigError(message, code="config.bad_name", where="model", hint=hint)
