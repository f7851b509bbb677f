"""Optional packages, imported on first use and without telemetry; and faster imports of torch.

`import openvino` sends an event to its makers and writes a client number into `~/intel`, unless the package
openvino_telemetry cannot be imported; so here it cannot. `import onnxruntime` writes a device number and an event
about the process into the user's cache, on Linux too, unless an environment variable forbids it; so here it does.
"""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any

from vitral.core.errors import ConfigError, WeightsError


@contextmanager
def pause_gc() -> Iterator[None]:
    """Pause the garbage collector during imports, which saves about 0.1 s.

    What modules create stays alive; afterwards it counts as old, which the collector visits last.
    """
    working = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if working:
            if not gc.get_freeze_count():  # else somebody has frozen what is to stay so
                gc.freeze()
                gc.unfreeze()  # to the oldest generation
            gc.enable()


def is_imported(name: str) -> bool:
    """Whether a module is there, and whole: another thread may be in the midst of importing it."""
    module = sys.modules.get(name)
    return module is not None and not getattr(module.__spec__, "_initializing", False)


OPENVINO_TELEMETRY = "openvino_telemetry"
ORT_TELEMETRY_SWITCH = "ORT_DISABLE_TELEMETRY"  # which onnxruntime reads when it is imported
OPENVINO_IMPORT_LOCK = Lock()


def load_onnx() -> Any:
    """The package onnx."""
    return _loaded("onnx")


def load_onnxruntime() -> Any:
    """The package onnxruntime, its telemetry off."""
    os.environ[ORT_TELEMETRY_SWITCH] = "1"
    package = _loaded("onnxruntime")
    package.disable_telemetry_events()  # if somebody else had it imported before
    return package


def load_openvino() -> Any:
    """The package openvino, its telemetry never imported."""
    with OPENVINO_IMPORT_LOCK:
        ours = OPENVINO_TELEMETRY not in sys.modules
        before = sys.modules.get(OPENVINO_TELEMETRY)
        sys.modules[OPENVINO_TELEMETRY] = None  # type: ignore[assignment]  # to import it is an ImportError from here on
        try:
            return _loaded("openvino")
        finally:
            if ours:
                del sys.modules[OPENVINO_TELEMETRY]
            else:  # somebody else's choice, which may be that it cannot be imported either
                sys.modules[OPENVINO_TELEMETRY] = before  # type: ignore[assignment]


@contextmanager
def model_file_errors(model: bytes | Path) -> Iterator[None]:
    """Turn an error of a package about a model file into a WeightsError that names the file."""
    try:
        yield
    except Exception as error:  # each package has errors of its own
        if isinstance(model, bytes):
            raise
        told = " ".join(str(error).split())
        raise WeightsError(
            f"cannot be opened: {told}", code="weights.corrupt", where=model, hint="export the model again"
        ) from error


def _loaded(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        if error.name != name:  # it is there, but something that it needs is not
            raise ConfigError(f"{name} cannot be used: {error}", code="config.broken_package") from None
        raise ConfigError(
            f"{name} is not installed", code="config.missing_package", hint="pip install 'vitral[deploy]'"
        ) from None
