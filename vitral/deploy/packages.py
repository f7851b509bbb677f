"""The packages of engines, which Vitral does without until they are asked for. None of them may tell tales.

`import openvino` sends an event to its makers and writes a client number into `~/intel`, unless the package
openvino_telemetry cannot be imported; so here it cannot.
"""

import sys
from importlib import import_module
from threading import Lock
from typing import Any

from vitral.errors import ConfigError

TELLTALE = "openvino_telemetry"
QUIET = Lock()


def load_onnx() -> Any:
    """The package onnx."""
    return _loaded("onnx")


def load_onnxruntime() -> Any:
    """The package onnxruntime, its telemetry off: that of Windows has some."""
    package = _loaded("onnxruntime")
    package.disable_telemetry_events()
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


def _loaded(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        if error.name != name:  # it is there, but something that it needs is not
            raise ConfigError(f"{name} cannot be used: {error}") from None
        raise ConfigError(f"{name} is not installed", remedy="pip install 'vitral[deploy]'") from None
