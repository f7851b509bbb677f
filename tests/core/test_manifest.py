"""Manifests: what they list, and what about them is refused."""

import hashlib
import os
from pathlib import Path

import pytest

from tests.errors import raises
from vitral.core.manifest import (
    FORMAT,
    MANIFEST,
    FileEntry,
    Manifest,
    check_files,
    describe_files,
    file_entries,
    file_policy,
    hash_files,
    hashed_early,
    is_artifact,
    read_manifest,
    verify_entries,
    write_manifest,
)
from vitral.core.storage import STORAGE

CONTENT = {"b.bin": b"beta" * 1000, "a.bin": b"", "code/c.py": b"pass\n"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    digests = {name: STORAGE.write_file(tmp_path / name, [memoryview(data)]) for name, data in CONTENT.items()}
    write_manifest(tmp_path, Manifest(kind="export", files=file_entries(digests)))
    return tmp_path


def test_a_manifest_lists_sizes_and_hashes_by_name(folder: Path) -> None:
    manifest = read_manifest(folder)
    assert manifest.format == FORMAT
    assert manifest.names == ["a.bin", "b.bin", "code/c.py"]
    assert [(entry.bytes, entry.sha256) for entry in manifest.files] == [
        (len(data), hashlib.sha256(data).hexdigest()) for _, data in sorted(CONTENT.items())
    ]
    assert describe_files(folder)[:2] == manifest.files[:2]
    assert is_artifact(folder, "export")
    assert not is_artifact(folder, "bundle")


@pytest.mark.parametrize("sizes", [(0,), (1,), (70_000,), (0, 5, 0, 9)])
def test_files_are_hashed_one_after_the_other(
    tmp_path: Path, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitral.core.manifest.CHUNK", 4096)
    paths = [tmp_path / str(number) for number in range(len(sizes))]
    for path, size in zip(paths, sizes, strict=True):
        path.write_bytes(os.urandom(size))
    assert hash_files(paths) == hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


@pytest.mark.parametrize("name", ["../a", "/a", "a/../../b", "", ".", "a//b", "./a"])
def test_a_manifest_lists_nothing_outside_its_folder(folder: Path, name: str) -> None:
    text = read_manifest(folder).to_json().replace('"name": "a.bin"', f'"name": "{name}"')
    (folder / MANIFEST).write_text(text)
    with raises("weights.corrupt", folder / MANIFEST):
        read_manifest(folder)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  ", " "),
        ('"kind"', '"kinds"'),
        ('"format": 2', '"format": 3'),
        ('"format": 2', '"format": 2.0'),
        ('"bytes": 0', '"bytes": -1'),
        ('"kind": "export"', '"kind": "export", "kind": "export"'),
        ("}", ""),
    ],
)
def test_a_manifest_is_exactly_what_vitral_writes(folder: Path, old: str, new: str) -> None:
    text = (folder / MANIFEST).read_text()
    (folder / MANIFEST).write_text(text.replace(old, new, 1))
    with raises("weights.corrupt", folder / MANIFEST):
        check_files(folder, "export", (), "", "")


@pytest.mark.parametrize("large", [True, False])
def test_the_check_names_the_damaged_file(folder: Path, large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitral.core.manifest.SMALL", 0 if large else 10**6)
    check = check_files(folder, "export", ("a.bin",), "code", "")
    check.wait()
    assert check.status == "verified"
    (folder / "b.bin").write_bytes(b"Beta" * 1000)
    with raises("weights.corrupt", folder / "b.bin"):
        check_files(folder, "export", (), "code", "").wait()
    (folder / "b.bin").write_bytes(b"beta")
    with raises("weights.corrupt", folder / "b.bin", 4, "4,000"):
        check_files(folder, "export", (), "code", "")
    (folder / "b.bin").unlink()
    with raises("weights.not_found", folder / "b.bin"):
        check_files(folder, "export", (), "code", "")


def test_only_optional_files_may_be_missing(folder: Path) -> None:
    (folder / "code/c.py").write_bytes(b"fail\n")
    with raises("weights.corrupt", folder / "code/c.py"):
        check_files(folder, "export", (), "code", "")
    (folder / "code/c.py").unlink()
    assert check_files(folder, "export", (), "code", "").status == "verified"
    with raises("weights.not_found", folder / "code/c.py"):
        check_files(folder, "export", (), "", "")


def test_a_pipe_in_place_of_a_file_is_not_waited_for(folder: Path) -> None:
    (folder / "a.bin").unlink()
    os.mkfifo(folder / "a.bin")
    with raises("weights.not_a_file", folder / "a.bin"):
        check_files(folder, "export", (), "", "")


def test_a_manifest_of_another_kind_or_without_a_needed_file_is_refused(folder: Path) -> None:
    with raises("weights.corrupt", folder / MANIFEST, "export"):
        check_files(folder, "bundle", (), "", "")
    with raises("weights.corrupt", folder / MANIFEST, "model.onnx"):
        check_files(folder, "export", ("model.onnx",), "", "")


def test_the_policy_decides_whether_files_are_checked(folder: Path) -> None:
    (folder / "a.bin").write_bytes(b"more")
    with file_policy(verify_files=False):
        assert check_files(folder, "export", (), "", "").status == "skipped"
        with file_policy():
            assert check_files(folder, "export", (), "", "").status == "skipped"
    with raises("weights.corrupt", folder / "a.bin"):
        check_files(folder, "export", (), "", "")
    with file_policy(verify_files=False), raises("weights.corrupt", folder / "a.bin"):
        verify_entries(folder, [FileEntry(name="a.bin", bytes=0, sha256="0" * 64)], "")


def test_a_hash_that_is_begun_early_is_used_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitral.core.manifest.SMALL", 0)
    (folder / "b.bin").write_bytes(b"Beta" * 1000)
    with hashed_early(folder.parent / "none"), hashed_early(folder):
        with raises("weights.corrupt", folder / "b.bin"):
            check_files(folder, "export", (), "", "").wait()
        (folder / "b.bin").write_bytes(CONTENT["b.bin"])
        check_files(folder, "export", (), "", "").wait()
    with hashed_early(folder):
        pass
    (folder / "b.bin").write_bytes(b"Beta" * 1000)
    with raises("weights.corrupt", folder / "b.bin"):
        check_files(folder, "export", (), "", "").wait()
