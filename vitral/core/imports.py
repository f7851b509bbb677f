"""Optional packages, imported on first use and without telemetry; and faster imports of torch.

`import openvino` sends an event to Intel and writes a client id into `~/intel`, unless the package openvino_telemetry
cannot be imported; so its import is blocked here. `import onnxruntime` writes a device id and an event about the
process into the user's cache, on Linux too, unless an environment variable disables it; so it is set here. So are
those of wandb, which reports its errors, and of mlflow, which reports its use, unless the user has set them.
"""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any

from vitral.core.errors import ConfigError, WeightsError


@contextmanager
def pause_gc() -> Iterator[None]:
    """Pause the garbage collector during imports, which saves about 0.1 s.

    Objects that modules create stay alive; afterwards they are in the oldest generation, which is collected last.
    Where nothing is imported, no objects are moved, and those that are frozen need not be counted.
    """
    working, modules = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if working:
            # What the caller has frozen must stay frozen.
            if len(sys.modules) > modules and not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()  # to the oldest generation
            gc.enable()


def is_imported(name: str) -> bool:
    """Whether a module is imported completely: another thread may still be importing it."""
    module = sys.modules.get(name)
    return module is not None and not getattr(module.__spec__, "_initializing", False)


OPENVINO_TELEMETRY = "openvino_telemetry"
ORT_TELEMETRY_SWITCH = "ORT_DISABLE_TELEMETRY"  # which onnxruntime reads when it is imported
OPENVINO_IMPORT_LOCK = Lock()


def load_onnx() -> Any:
    """The package onnx."""
    return _loaded("onnx")


def load_onnxruntime() -> Any:
    """The package onnxruntime, with telemetry disabled."""
    os.environ[ORT_TELEMETRY_SWITCH] = "1"
    package = _loaded("onnxruntime")
    package.disable_telemetry_events()  # in case it was imported before
    return package


def load_openvino() -> Any:
    """The package openvino, without its telemetry."""
    with OPENVINO_IMPORT_LOCK:
        ours = OPENVINO_TELEMETRY not in sys.modules
        before = sys.modules.get(OPENVINO_TELEMETRY)
        sys.modules[OPENVINO_TELEMETRY] = None  # type: ignore[assignment]  # its import now raises ImportError
        try:
            return _loaded("openvino")
        finally:
            if ours:
                del sys.modules[OPENVINO_TELEMETRY]
            else:  # as before, which may be blocked too
                sys.modules[OPENVINO_TELEMETRY] = before  # type: ignore[assignment]


def load_tensorboard() -> Any:
    """The part of torch that writes files for TensorBoard, which needs the package tensorboard."""
    return _loaded("torch.utils.tensorboard", "pip install 'vitral[tracking]'")


def load_wandb() -> Any:
    """The package wandb, which then reports none of its own errors to its makers."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    return _loaded("wandb", "pip install wandb")


def load_mlflow() -> Any:
    """The package mlflow, without telemetry; folders may be stores, and a server that is lost is given up in 15 s."""
    defaults = {"DISABLE_TELEMETRY": "true", "ALLOW_FILE_STORE": "true", "HTTP_REQUEST_MAX_RETRIES": "3"}
    for name, value in defaults.items():
        os.environ.setdefault(f"MLFLOW_{name}", value)
    return _loaded("mlflow", "pip install mlflow")


def load_faiss() -> Any:
    """The package faiss."""
    return _loaded("faiss", "pip install 'vitral[search]'")


def load_cryptography() -> Any:
    """The parts of the package cryptography that sign: ed25519, serialization and exceptions."""
    hint = "pip install 'vitral[sign]'"
    _loaded("cryptography", hint)
    primitives = "cryptography.hazmat.primitives"
    return SimpleNamespace(
        ed25519=_loaded(f"{primitives}.asymmetric.ed25519", hint),
        serialization=_loaded(f"{primitives}.serialization", hint),
        exceptions=_loaded("cryptography.exceptions", hint),
    )


def load_serving() -> None:
    """Check that the packages of the server are installed."""
    for name in ("fastapi", "uvicorn", "python_multipart", "prometheus_client", "swagger_ui_bundle", "segno"):
        _loaded(name, "pip install 'vitral[serve]'")


@contextmanager
def model_file_errors(model: bytes | Path) -> Iterator[None]:
    """Turn an error of a package about a model file into a WeightsError that names the file."""
    try:
        yield
    except Exception as error:  # each package has its own error classes
        if isinstance(model, bytes):
            raise
        message = f"cannot be opened: {' '.join(str(error).split())}"
        raise WeightsError(message, code="weights.corrupt", where=model, hint="export the model again") from error


def _loaded(name: str, hint: str = "pip install 'vitral[deploy]'") -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        if error.name != name:  # it is installed, but one of its dependencies is not
            raise ConfigError(f"{name} cannot be used: {error}", code="config.broken_package") from None
        raise ConfigError(f"{name} is not installed", code="config.missing_package", hint=hint) from None
