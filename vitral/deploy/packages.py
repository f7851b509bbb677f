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
        before = sys.modules.get(TELLTALE)
        sys.modules[TELLTALE] = None  # type: ignore[assignment]  # to import it is an ImportError from here on
        try:
            return _loaded("openvino")
        finally:
            if before is None:
                del sys.modules[TELLTALE]
            else:  # somebody else's choice
                sys.modules[TELLTALE] = before


def _loaded(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        if error.name != name:  # it is there, but something that it needs is not
            raise ConfigError(f"{name} cannot be used: {error}", where="engine") from None
        raise ConfigError(f"{name} needs more packages: pip install 'vitral[deploy]'", where="engine") from None
