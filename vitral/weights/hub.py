"""Models of the Hugging Face hub: `hf:owner/name`, or `hf:owner/name@revision`.

Nothing is fetched unless the name begins with `hf:`, so a path with a slip in it never reaches the network. Only
safetensors, npz and JSON files are fetched, never a pickle.
"""

import os
import re
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from vitral.core.errors import ConfigError, WeightsError

PREFIX = "hf:"
FILE_PATTERNS = ["*.safetensors", "*.npz", "*.json"]
PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
NAME = re.compile(rf"(?P<id>{PART}/{PART})(?:@(?P<revision>[A-Za-z0-9][A-Za-z0-9._/-]*))?")
MISSING_PACKAGE = "loading from the hub needs more packages: pip install 'vitral[hub]'"


class FetchedWeights(NamedTuple):
    """Where a model is on this machine, and where it came from, in words, if that was elsewhere."""

    path: Path
    source: str


def fetch_weights(where: str, offline: bool) -> FetchedWeights:
    """The folder of a model of the hub, or the path itself; offline, a model that was fetched before."""
    check_not_empty(where)
    if not where.startswith(PREFIX):
        path = Path(where).expanduser()
        if NAME.fullmatch(where) and not path.parent.exists():  # where the folder is there, it is a slip in a path
            message, hint = "there is no such file or folder", f"check the path; a model of the hub is {PREFIX}{where}"
            raise WeightsError(message, code="weights.not_found", where=where, hint=hint)
        return FetchedWeights(path, "")
    match = NAME.fullmatch(where.removeprefix(PREFIX))
    if match is None or ".." in where:
        message = "expected a model of the hub such as hf:owner/name or hf:owner/name@revision"
        raise ConfigError(message, code="config.invalid_name", where=where)
    folder = Path(_snapshot(match["id"], match["revision"], offline, where))
    return FetchedWeights(folder, f"the hub's {match['id']} at {folder.name}")  # a snapshot is named after its commit


def check_not_empty(where: str) -> None:
    """Refuse a name of nothing, which as a path would mean the folder at hand."""
    if not where:
        message, hint = "expected a model, got an empty name", "check the command; a variable of the shell may be empty"
        raise ConfigError(message, code="config.missing_value", where="MODEL", hint=hint)


def pinned_name(where: str) -> str:
    """The same model by a name that will mean it tomorrow and from elsewhere: a whole path, or the hub's commit."""
    if not where.startswith(PREFIX):
        return os.path.abspath(Path(where).expanduser())
    match = NAME.fullmatch(where.removeprefix(PREFIX))
    assert match is not None, "it was fetched before"
    return f"{PREFIX}{match['id']}@{fetch_weights(where, offline=False).path.name}"


def _snapshot(name: str, revision: str | None, offline: bool, where: str) -> str:
    hub = _library()
    try:
        return str(
            hub.snapshot_download(name, revision=revision, allow_patterns=FILE_PATTERNS, local_files_only=offline)
        )
    except Exception as error:  # the library, and what it stands on, tell of trouble in many ways
        code, hint = _advice(hub, error, offline)
        raise WeightsError(_reason(error), code=code, where=where, hint=hint) from None


def _library() -> Any:
    try:
        return import_module("huggingface_hub")
    except ImportError:
        raise ConfigError(MISSING_PACKAGE, code="config.missing_package") from None


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"cannot be had from the hub: {lines[0] if lines else type(error).__name__}"


def _advice(hub: Any, error: Exception, offline: bool) -> tuple[str, str]:
    """The code of the error, and what to do about it."""
    errors = hub.errors
    if isinstance(error, errors.GatedRepoError):
        return "weights.access_denied", "accept its terms on the hub, and log in: hf auth login"
    if isinstance(error, errors.RepositoryNotFoundError | errors.RevisionNotFoundError):
        advice = "check the owner, the name and the revision; log in if it is private: hf auth login"
        return "weights.not_found", advice
    if offline or os.environ.get("HF_HUB_OFFLINE"):
        return "weights.not_cached", "fetch it once while online"
    return "weights.download_failed", "check the network and the name; what was fetched before is read with offline"
