"""Manifests of a collection: the path of each image, relative to the manifest, and columns of values."""

import csv
import os
import shlex
from collections.abc import Sequence
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from vitral.core.errors import ConfigError, VitralError
from vitral.core.storage import write_file_atomically
from vitral.data.datasets.source import open_data
from vitral.inference.inputs import ImageRef
from vitral.runs.folder import data_name
from vitral.runs.similarity.collection import Inputs, file_paths

SUFFIX = ".csv"


class ManifestColumn(NamedTuple):
    """A name for the header, and the value of each image."""

    name: str
    values: Sequence[str]


def output_path(out: str | Path, inputs: Inputs, ending: str) -> Path:
    """The manifest to write: `out`, or one in the working directory with the name of the images. It must not exist."""
    words = [inputs] if isinstance(inputs, str | Path) else list(inputs)
    path = Path(out).expanduser() if str(out) else Path(data_name(str(words[0]) if words else "") + ending)
    if path.suffix.lower() != SUFFIX:
        message, hint = f"expected a FILE that ends in {SUFFIX}, got {str(out)!r}", f"use {out}{SUFFIX}"
        raise ConfigError(message, code="config.unknown_format", where="out", hint=hint)
    if os.path.lexists(path):
        message, hint = "already exists, and is not overwritten", "remove it, or name another file: --out FILE"
        raise ConfigError(message, code="config.path_exists", where=path, hint=hint)
    if not path.absolute().parent.is_dir():
        hint = "create it, or name another file: --out FILE"
        raise ConfigError("no such folder", code="config.not_found", where=path.parent, hint=hint)
    return path


def write_manifest(path: Path, inputs: Inputs, images: Sequence[ImageRef], columns: Sequence[ManifestColumn]) -> None:
    """Write the manifest atomically. Labels and splits that the images have are in it, so that they are not lost."""
    known = known_labels(inputs)
    files = file_paths(images)
    labels = [known.get(os.path.abspath(file), KnownLabel("", "")) for file in files]
    found = [ManifestColumn("path", [relative_path(file, path) for file in files])]
    if all(each.label for each in labels):
        found.append(ManifestColumn("label", [each.label for each in labels]))
    if all(each.split for each in labels):
        found.append(ManifestColumn("split", [each.split for each in labels]))
    text = StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow([column.name for column in (*found, *columns)])
    table.writerows(zip(*(column.values for column in (*found, *columns)), strict=True))
    write_file_atomically(path, text.getvalue().encode("utf-8", "surrogateescape"))


def relative_path(file: str, manifest: Path) -> str:
    """The path of a file below the folder of the manifest; the whole path of any other file."""
    folder = str(manifest.absolute().parent)
    inside = os.path.relpath(os.path.abspath(file), folder)
    return os.path.abspath(file) if inside.startswith("..") else inside


def train_command(manifest: Path, images: Sequence[ImageRef]) -> str:
    """The command that trains on the manifest without labels."""
    outside = any(os.path.isabs(relative_path(file, manifest)) for file in file_paths(images))
    return f"vitral train {shlex.quote(str(manifest))} --task dino{' --allow-outside' if outside else ''}"


class KnownLabel(NamedTuple):
    """What a dataset says of an image; the split is empty if the dataset has none of its own."""

    label: str
    split: str


def known_labels(inputs: Inputs) -> dict[str, KnownLabel]:
    """The label and split of each file by its path, where the inputs are one dataset with labels; else nothing."""
    words = [inputs] if isinstance(inputs, str | Path) else list(inputs)
    with suppress(VitralError):
        if len(words) == 1:
            samples = open_data(str(words[0]))
            paths = (os.path.abspath(samples.store.address(item.name)) for item in samples.items)
            return {
                path: KnownLabel(row.label, "" if samples.divided else row.split)
                for path, row in zip(paths, samples.rows(), strict=True)
            }
    return {}
