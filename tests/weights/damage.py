"""What can be wrong with the files of a bundle: the damage, the file that is to be named, the code, and a value."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vitral.core.manifest import (
    Manifest,
    add_to_manifest,
    describe_files,
    hash_files,
    read_manifest,
    read_manifest_as,
    write_manifest,
)
from vitral.core.storage import FileDigest


def rewrite(**changes: Any) -> Callable[[Path], None]:
    """Change fields of config.json; None removes one."""

    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_bytes()) | changes
        (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))

    return change


def replace(name: str, data: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(data)


def reseal_as(form: type[Manifest], folder: Path) -> None:
    """The same for a manifest with more fields."""
    found = {entry.name: entry for entry in describe_files(folder)}
    manifest = read_manifest_as(form, folder)
    files = tuple(found[name] for name in manifest.names)
    write_manifest(folder, manifest.model_copy(update={"files": files}))


def reseal(folder: Path) -> None:
    """Write the manifest of what is in the folder now, as if it had been written so."""
    paths = {name: folder / name for name in read_manifest(folder).names if (folder / name).exists()}
    add_to_manifest(folder, {name: FileDigest(path.stat().st_size, hash_files([path])) for name, path in paths.items()})


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


BAD, UNKNOWN = "weights.bad_config", "weights.unknown_format"
DAMAGE: dict[str, tuple[Callable[[Path], object], str, str, object]] = {
    "a missing config": (lambda folder: (folder / "config.json").unlink(), "config.json", "weights.not_found", ""),
    "missing weights": (
        lambda folder: (folder / "model.safetensors").unlink(),
        "model.safetensors",
        "weights.not_found",
        "",
    ),
    "cut weights": (cut, "model.safetensors", "weights.corrupt", ""),
    "a pickle": (replace("model.safetensors", b"\x80\x04K\x01."), "model.safetensors", "weights.corrupt", ""),
    "an empty config": (replace("config.json", b""), "config.json", BAD, ""),
    "a config that is no text": (replace("config.json", b"\xff\xfe{"), "config.json", BAD, ""),
    "a config without end": (replace("config.json", b"[" * 100_000), "config.json", BAD, ""),
    "a config that is a list": (replace("config.json", b"[1]"), "config.json", UNKNOWN, None),
    "another library's config": (replace("config.json", b'{"hidden_size": 8}'), "config.json", UNKNOWN, None),
    "a format that is true": (rewrite(format=True), "config.json", UNKNOWN, True),
    "a format of old": (rewrite(format=0), "config.json", BAD, "format"),
    "an unknown field": (rewrite(labels=[]), "config.json", BAD, "labels"),
    "a missing field": (rewrite(classes=None), "config.json", BAD, "classes"),
    "too few classes": (rewrite(classes=["cat"]), "config.json", BAD, "classes"),
    "no model": (rewrite(model={"kind": "vat"}), "config.json", BAD, "vat"),
    "a field of the model": (rewrite(model={"kind": "vit", "width": "8"}), "config.json", BAD, "model.width"),
}
