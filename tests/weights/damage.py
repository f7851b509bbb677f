"""What can be wrong with the files of a bundle: the damage, the file that is to be named, and what is to be said."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def rewrite(**changes: Any) -> Callable[[Path], None]:
    """Change fields of config.json; None removes one."""

    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_bytes()) | changes
        (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))

    return change


def replace(name: str, data: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(data)


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


DAMAGE: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "a missing config": (lambda folder: (folder / "config.json").unlink(), "config.json", "no such file"),
    "missing weights": (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors", "No such file"),
    "cut weights": (cut, "model.safetensors", "not a readable safetensors file"),
    "a pickle": (replace("model.safetensors", b"\x80\x04K\x01."), "model.safetensors", "not a readable safetensors"),
    "an empty config": (replace("config.json", b""), "config.json", "not JSON"),
    "a config that is no text": (replace("config.json", b"\xff\xfe{"), "config.json", "not JSON"),
    "a config without end": (replace("config.json", b"[" * 100_000), "config.json", "not JSON: recursion limit"),
    "a config that is a list": (replace("config.json", b"[1]"), "config.json", "its format is None"),
    "another library's config": (replace("config.json", b'{"hidden_size": 8}'), "config.json", "its format is None"),
    "a format that is true": (rewrite(format=True), "config.json", "its format is True"),
    "a format of old": (rewrite(format=0), "config.json", "format: expected 1 or 2, got 0"),
    "an unknown field": (rewrite(labels=[]), "config.json", "labels: unknown field"),
    "a missing field": (rewrite(classes=None), "config.json", "classes: "),
    "too few classes": (rewrite(classes=["cat"]), "config.json", "classes: expected 4 names of classes, got 1"),
    "no model": (rewrite(model={"kind": "vat"}), "config.json", "model: expected vit or resnet, got 'vat'"),
    "a field of the model": (rewrite(model={"kind": "vit", "width": "8"}), "config.json", "model.width: expected"),
}
