"""Manifests: no damage to a checkpoint goes unseen."""

import json
from pathlib import Path

import pytest

from tests.errors import raises
from tests.training.states import passed_over, surviving, two
from vitral.core.errors import WeightsError
from vitral.core.manifest import FileEntry
from vitral.training.checkpoints.checkpoint import CheckpointManifest, open_checkpoint, verify

HASH = "0" * 64
FILES = ("manifest.json", "model.safetensors", "optimizer.safetensors", "state.json")
CODES = {file: {"weights.corrupt"} for file in FILES} | {"manifest.json": {"weights.corrupt", "weights.not_found"}}


def test_a_manifest_is_json_with_what_was_written() -> None:
    manifest = CheckpointManifest(step=5, files=(FileEntry(name="state.json", bytes=3, sha256=HASH),))
    entry = {"name": "state.json", "bytes": 3, "sha256": HASH}
    assert json.loads(manifest.to_json()) == {"format": 2, "kind": "checkpoint", "files": [entry], "step": 5}
    assert CheckpointManifest.from_json(manifest.to_json()) == manifest


def test_a_manifest_of_the_first_format_is_read_for_ever(tmp_path: Path) -> None:
    path = two(tmp_path) / "manifest.json"
    manifest = verify(path.parent)
    files = {entry.name: {"size": entry.bytes, "sha256": entry.sha256} for entry in manifest.files}
    good = json.dumps({"format": 1, "step": 2, "files": files}, indent=2).encode()
    path.write_bytes(good)
    assert verify(path.parent) == manifest
    for at, byte in enumerate(good):
        path.write_bytes(good[:at] + bytes([byte ^ 1 << at % 8]) + good[at + 1 :])
        with pytest.raises(WeightsError, match=path.parent.name):
            open_checkpoint(path.parent)


@pytest.mark.parametrize("file", FILES)
def test_every_flipped_byte_is_found(tmp_path: Path, file: str) -> None:
    path = two(tmp_path) / file
    good = path.read_bytes()
    for at, byte in enumerate(good):
        path.write_bytes(good[:at] + bytes([byte ^ 1 << at % 8]) + good[at + 1 :])
        with pytest.raises(WeightsError, match=path.parent.name) as caught:
            open_checkpoint(path.parent)
        assert caught.value.code in CODES[file]
    assert passed_over(tmp_path).startswith(str(path.parent))
    path.write_bytes(good)
    assert surviving(tmp_path) == 2


@pytest.mark.parametrize("file", FILES)
def test_every_truncation_is_found(tmp_path: Path, file: str) -> None:
    path = two(tmp_path) / file
    good = path.read_bytes()
    for other in [good[:length] for length in range(len(good))] + [good + b"\n"]:
        path.write_bytes(other)
        with raises("weights.corrupt", file):
            open_checkpoint(path.parent)
    assert passed_over(tmp_path).startswith(str(path))


@pytest.mark.parametrize("file", FILES)
def test_a_missing_file_is_found_and_one_more_is_nobodys(tmp_path: Path, file: str) -> None:
    path = two(tmp_path) / file
    (path.parent / f"{file}.more").write_bytes(b"more")
    assert surviving(tmp_path) == 2
    path.unlink()
    assert passed_over(tmp_path).startswith(f"{path}: ")
    with raises("weights.not_found", path):
        open_checkpoint(path.parent)
    path.mkdir()
    assert passed_over(tmp_path).startswith(str(path))


def test_a_damaged_file_is_named_with_what_is_wrong(tmp_path: Path) -> None:
    path = two(tmp_path) / "state.json"
    size = path.stat().st_size
    path.write_bytes(b"x" * size)
    with raises("weights.corrupt", path):
        verify(path.parent)
    path.write_bytes(b"x" * 7)
    with raises("weights.corrupt", path, 7, size):
        verify(path.parent)
    assert passed_over(tmp_path).startswith(f"{path}: ")


@pytest.mark.parametrize("change", [(b" ", b"\t"), (b"\n", b" "), (b": ", b":"), (b'"format": 2,', b"")])
def test_the_same_manifest_in_other_letters_is_found(tmp_path: Path, change: tuple[bytes, bytes]) -> None:
    path = two(tmp_path) / "manifest.json"
    manifest = verify(path.parent)
    path.write_bytes(path.read_bytes().replace(*change, 1))
    assert CheckpointManifest.from_json(path.read_bytes()) == manifest
    with raises("weights.corrupt", path):
        verify(path.parent)
    assert passed_over(tmp_path).startswith(f"{path}: ")


WRONG = {
    "a format to come": ({"format": 3, "kind": "checkpoint", "files": [], "step": 2}, "format"),
    "no state": ({"format": 1, "step": 2, "files": {}}, "state.json"),
    "a file elsewhere": ({"format": 1, "step": 2, "files": {"../s": {"size": 1, "sha256": HASH}}}, "files"),
    "a size in words": ({"format": 1, "step": 2, "files": {"state.json": {"size": "1", "sha256": HASH}}}, "bytes"),
    "another kind": ({"format": 2, "kind": "bundle", "files": [], "step": 2}, "kind"),
    "a list": ([], "manifest.json"),
}


@pytest.mark.parametrize(("manifest", "why"), WRONG.values(), ids=WRONG)
def test_a_manifest_of_another_kind_is_found(tmp_path: Path, manifest: object, why: str) -> None:
    path = two(tmp_path) / "manifest.json"
    path.write_text(json.dumps(manifest, indent=2))
    with raises("weights.corrupt", path, why):
        open_checkpoint(path.parent)
    assert passed_over(tmp_path).startswith(f"{path}: ")
