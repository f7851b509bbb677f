"""`manifest.json`: what the files of a folder must be, to the byte."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from vitral.config import Config
from vitral.errors import ConfigError, WeightsError
from vitral.weights.durable import Digest
from vitral.weights.refusal import reading

MANIFEST = "manifest.json"


class Entry(Config):
    """What a file must be."""

    size: int
    sha256: str


class Manifest(Config):
    """What a checkpoint must hold; files that it does not name are nobody's."""

    format: Literal[1] = 1
    step: int
    files: dict[Annotated[str, Field(pattern=r"^\w[\w.-]*$")], Entry]


def manifest_of(step: int, digests: Mapping[str, Digest]) -> Manifest:
    """The manifest of files that were just written."""
    return Manifest(step=step, files={name: Entry(**digest._asdict()) for name, digest in digests.items()})


def verify(folder: Path) -> Manifest:
    """The manifest in a folder, once every byte of the files that it names is found to be right; else WeightsError."""
    manifest = _read(folder / MANIFEST)
    for name, entry in manifest.files.items():
        path = folder / name
        with reading(path):
            size = path.stat().st_size
            if size != entry.size:
                what = f"has {size:,} bytes, and {entry.size:,} were written"
                raise WeightsError(what, code="weights.corrupt", where=str(path))
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:
                    what = "its bytes are not those that were written"
                    raise WeightsError(what, code="weights.corrupt", where=str(path))
    return manifest


def _read(path: Path) -> Manifest:
    with reading(path):
        text = path.read_bytes()
    try:
        manifest = Manifest.from_json(text)
    except ConfigError as error:
        what = f"not a manifest that this vitral can read: {error}"
        raise WeightsError(what, code="weights.corrupt", where=str(path)) from None
    # Nothing vouches for the manifest but its form, so that must be right to the byte.
    if manifest.to_json().encode() != text:
        raise WeightsError("not as vitral writes a manifest", code="weights.corrupt", where=str(path))
    return manifest
