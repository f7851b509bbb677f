"""The packages of engines, which Vitral does without until they are asked for. None of them may tell tales.

`import openvino` sends an event to its makers and writes a client number into `~/intel`, unless the package
openvino_telemetry cannot be imported; so here it cannot. `import onnxruntime` writes a number for the device and an
event about the process into the user's cache, on Linux too, unless the environment forbids it; so here it does.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any

from vitral.errors import ConfigError, WeightsError

TELLTALE = "openvino_telemetry"
FORBIDDING = "ORT_DISABLE_TELEMETRY"  # which onnxruntime reads when it is imported
QUIET = Lock()


def load_onnx() -> Any:
    """The package onnx."""
    return _loaded("onnx")


def load_onnxruntime() -> Any:
    """The package onnxruntime, its telemetry off."""
    os.environ[FORBIDDING] = "1"
    package = _loaded("onnxruntime")
    package.disable_telemetry_events()  # if somebody else had it imported before
    return package


def load_openvino() -> Any:
    """The package openvino, its telemetry never imported."""
    with QUIET:
        ours = TELLTALE not in sys.modules
        before = sys.modules.get(TELLTALE)
        sys.modules[TELLTALE] = None  # type: ignore[assignment]  # to import it is an ImportError from here on
        try:
            return _loaded("openvino")
        finally:
            if ours:
                del sys.modules[TELLTALE]
            else:  # somebody else's choice, which may be that it cannot be imported either
                sys.modules[TELLTALE] = before  # type: ignore[assignment]


@contextmanager
def telling_of(model: bytes | Path) -> Iterator[None]:
    """What a package has against a file is told with the name of that file."""
    try:
        yield
    except Exception as error:  # each package has errors of its own
        if isinstance(model, bytes):
            raise
        told = " ".join(str(error).split())
        raise WeightsError(
            f"cannot be opened: {told}", code="weights.corrupt", where=str(model), remedy="export the model again"
        ) from error


def _loaded(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        if error.name != name:  # it is there, but something that it needs is not
            raise ConfigError(f"{name} cannot be used: {error}", code="config.broken_package") from None
        raise ConfigError(
            f"{name} is not installed", code="config.missing_package", remedy="pip install 'vitral[deploy]'"
        ) from None
