"""Models of the Hugging Face hub: `hf:owner/name`, or `hf:owner/name@revision`, or the short name of published weights.

Only names that begin with `hf:` and those in the table of `pretrained.py` are downloaded, so a misspelled path never
reaches the network. Only safetensors, npz and JSON files are downloaded, never a pickle.
`push_to_hub` uploads a folder.
"""

import logging
import os
import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from vitral.core.errors import ConfigError, WeightsError, did_you_mean
from vitral.weights.pretrained import PRETRAINED, published_weights

log = logging.getLogger("vitral")
PREFIX = "hf:"
FILE_PATTERNS = ["*.safetensors", "*.npz", "*.json", "manifest.sig"]
SECOND_COPIES = ["open_clip_*"]  # of the weights, in the names of another library
PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
NAME = re.compile(rf"(?P<id>{PART}/{PART})(?:@(?P<revision>[A-Za-z0-9][A-Za-z0-9._/-]*))?")
MISSING_PACKAGE = "the hub needs more packages: pip install 'vitral[hub]'"
WEIGHT_FILES = (".safetensors", ".npz")


class FetchedWeights(NamedTuple):
    """The local path of a model, and a description of its source if it was downloaded."""

    path: Path
    source: str


def fetch_weights(where: str, offline: bool) -> FetchedWeights:
    """The folder of a hub model, or the path itself; offline, a model in the cache."""
    check_not_empty(where)
    where = expand_short_name(where)
    if not where.startswith(PREFIX):
        path = Path(where).expanduser()
        if not path.exists() and (hint := _suggest_source(where, path)):
            raise WeightsError("no such file or folder", code="weights.not_found", where=where, hint=hint)
        return FetchedWeights(path, "")
    match = NAME.fullmatch(where.removeprefix(PREFIX))
    if match is None or ".." in where:
        message = "expected a model of the hub such as hf:owner/name or hf:owner/name@revision"
        raise ConfigError(message, code="config.invalid_name", where=where)
    folder = Path(_snapshot(match["id"], match["revision"], offline, where))
    return FetchedWeights(folder, f"the hub's {match['id']} at {folder.name}")  # a snapshot is named after its commit


def expand_short_name(where: str) -> str:
    """`hf:facebook/dinov2-small` for `dinov2-small`; any other name, and a local file or folder, as it is."""
    name, _, revision = where.partition("@")
    if name not in PRETRAINED or Path(where).exists():
        return where
    return PRETRAINED[name].source + (f"@{revision}" if revision else "")


def _suggest_source(where: str, path: Path) -> str:
    """A hint for a name that is no file: an architecture, a hub id, or a short name with a typing error."""
    from vitral.models.registry import parse_name  # imports torch, which exports run without

    try:
        parse_name(where)
    except ConfigError:
        if NAME.fullmatch(where) and not path.parent.exists():  # if the parent exists, it is a misspelled path
            return f"check the path; for a model of the hub, give {PREFIX}{where}"
        near = did_you_mean(where.lower(), PRETRAINED) if Path(where).name == where else ""
        return f"{near} vitral models --pretrained lists the published weights" if near else ""
    published = published_weights(where.removeprefix("ViT-"))
    weights = f"; load({published!r}) loads published weights" if published else ""
    return f"{where} is an architecture: create_model({where!r}) builds it with new weights{weights}"


def check_not_empty(where: str) -> None:
    """Reject an empty name, which as a path would be the current folder."""
    if not where:
        message, hint = "expected a model, got an empty name", "check the command; a shell variable may be empty"
        raise ConfigError(message, code="config.missing_value", where="MODEL", hint=hint)


def pinned_name(where: str) -> str:
    """The same model by a permanent name: an absolute path, or the commit on the hub."""
    where = expand_short_name(where)
    if not where.startswith(PREFIX):
        return os.path.abspath(Path(where).expanduser())
    match = NAME.fullmatch(where.removeprefix(PREFIX))
    assert match is not None, "it was fetched before"
    return f"{PREFIX}{match['id']}@{fetch_weights(where, offline=False).path.name}"


def push_to_hub(folder: str | Path, name: str, *, private: bool = False) -> str:
    """Upload a folder of weights to the hub, and return its address: `push_to_hub("photos-hf", "owner/name")`.

    The repository is created if it does not exist; an existing one keeps its visibility. Files of the same name are
    replaced, others stay. The folder itself is not changed.
    """
    repo_id, api = check_push(name)
    path = Path(folder).expanduser()
    if not path.is_dir() or not any(file.suffix in WEIGHT_FILES for file in path.iterdir()):
        message, hint = "expected a folder with weights", "give a bundle such as RUN/best, or what vitral convert wrote"
        raise WeightsError(message, code="weights.not_found", where=path, hint=hint)
    try:
        address = str(api.create_repo(repo_id, private=private, exist_ok=True))
        api.upload_folder(repo_id=repo_id, folder_path=str(path), commit_message=f"Upload {path.resolve().name}")
    except Exception as error:  # the library and its dependencies raise many kinds of errors
        again = shlex.join(["hf", "upload", repo_id, str(path), *(["--private"] if private else [])])
        message = f"upload to the hub failed: {_first_line(error)}"
        hint = f"the folder is complete; log in with hf auth login and check the network, then: {again}"
        raise WeightsError(message, code="weights.upload_failed", where=f"{PREFIX}{repo_id}", hint=hint) from None
    log.info(f"uploaded {path} to {address}")
    return address


def check_push(name: str) -> tuple[str, Any]:
    """The repository `owner/name` and the hub's client; rejects what an upload cannot do before anything is written."""
    match = NAME.fullmatch(name.removeprefix(PREFIX))
    if match is None or match["revision"] or ".." in name:
        message = "expected a repository of the hub such as owner/name or hf:owner/name"
        raise ConfigError(message, code="config.invalid_name", where=name)
    if os.environ.get("HF_HUB_OFFLINE"):
        message, hint = "an upload needs the network, and offline is on", "omit --offline, and unset HF_HUB_OFFLINE"
        raise ConfigError(message, code="config.conflict", where=name, hint=hint)
    return match["id"], _import_hub().HfApi()


def _import_hub() -> Any:
    try:
        return import_module("huggingface_hub")
    except ImportError:
        raise ConfigError(MISSING_PACKAGE, code="config.missing_package") from None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _snapshot(name: str, revision: str | None, offline: bool, where: str) -> str:
    hub = _import_hub()
    patterns = {"allow_patterns": FILE_PATTERNS, "ignore_patterns": SECOND_COPIES}
    options = {"revision": revision, "local_files_only": offline, **patterns}
    try:
        return str(hub.snapshot_download(name, **options))
    except Exception as error:  # the library and its dependencies raise many kinds of errors
        code, hint = _advice(hub, error, offline)
        message = f"download from the hub failed: {_first_line(error)}"
        raise WeightsError(message, code=code, where=where, hint=hint) from None


def _advice(hub: Any, error: Exception, offline: bool) -> tuple[str, str]:
    """The code of the error, and what to do about it."""
    errors = hub.errors
    if isinstance(error, errors.GatedRepoError):
        return "weights.access_denied", "accept its terms on the hub, and log in: hf auth login"
    if isinstance(error, errors.RepositoryNotFoundError | errors.RevisionNotFoundError):
        return "weights.not_found", "check owner, name and revision; if it is private, log in: hf auth login"
    if offline or os.environ.get("HF_HUB_OFFLINE"):
        return "weights.not_cached", "load it once while online"
    return "weights.download_failed", "check the network and the name; models in the cache load with offline"
