"""Packs whose bytes changed after they were written: noticed when they are opened, read or checked."""

import json
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import vitral
from tests.data.pictures import color, encoded
from tests.errors import raises
from vitral.core.errors import DataError, VitralError
from vitral.core.manifest import file_policy
from vitral.core.signature import create_key
from vitral.data.datasets.pack import pack
from vitral.data.datasets.pack_index import DIGEST_BYTES
from vitral.data.datasets.source import open_data, verify_data
from vitral.inference.inputs import pack_images, tar_images

SIZE = 20_480


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for number in range(8):
        for label in ("ant", "bee"):
            path = tmp_path / f"data/{label}/{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encoded(color(), "PNG") + f"{label} {number}".encode())
    return tmp_path / "data"


@pytest.fixture
def packed(data: Path, tmp_path: Path) -> Path:
    pack(data, tmp_path / "out", SIZE)
    return tmp_path / "out"


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def faults(folder: Path) -> list[tuple[str, str]]:
    found: list[DataError] = []
    verify_data(str(folder), found.append)
    return [(fault.code, fault.where) for fault in found]


def test_the_manifest_covers_every_file_and_a_sound_pack_passes(packed: Path) -> None:
    listed = {entry["name"] for entry in json.loads((packed / "manifest.json").read_bytes())["files"]}
    assert listed == {path.name for path in packed.iterdir()} - {"manifest.json"}
    assert (packed / "hashes.bin").stat().st_size == 16 * DIGEST_BYTES
    samples = open_data(str(packed))
    assert all(samples.read(item) for item in samples.items)
    assert faults(packed) == []


def test_a_flipped_byte_in_an_image_is_noticed_when_it_is_read_and_by_a_check(packed: Path) -> None:
    samples = open_data(str(packed))
    at = 3
    shard, start = packed / Path(samples.store.paths[samples.store.shards[at]]).name, int(samples.store.starts[at])  # type: ignore[attr-defined]
    flip(shard, start + 5)
    name = samples.store.names[at]  # type: ignore[attr-defined]
    with raises("data.bad_archive", name):
        open_data(str(packed)).store.read(name)
    others = [item for item in samples.items if item.name != name]
    assert all(samples.read(item) for item in others)
    refused = [image for image in pack_images(str(packed)) if fails(image.source.read)]
    assert [image.name for image in refused] == [f"{packed}/{name}"]
    assert faults(packed) == [("data.bad_archive", str(shard))]
    found = vitral.check(packed, workers=0)
    assert {finding.code for finding in found.findings} >= {"data.bad_archive"}
    with file_policy(verify_files=False):
        assert open_data(str(packed)).store.read(name)
        assert faults(packed) == []


def test_a_shard_that_is_named_by_itself_is_verified_as_its_pack_is(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = json.loads((packed / "shards.json").read_bytes())["shards"][0]
    shard, start = packed / index["file"], index["starts"][1]
    assert all(open_data(str(shard)).store.read(item.name) for item in open_data(str(shard)).items)
    flip(shard, start + 5)
    damaged = [image.name for image in tar_images([str(shard)]) if fails(image.source.read)]
    assert len(damaged) == 1
    monkeypatch.chdir(packed)
    for name in (str(shard), shard.name):  # a relative name without a folder too
        samples = open_data(name)
        refused = [item.name for item in samples.items if fails(partial(samples.read, item))]
        assert refused == [damaged[0].removeprefix(f"{packed}/")]
    with file_policy(verify_files=False):
        assert not any(fails(image.source.read) for image in tar_images([str(shard)]))


def test_a_label_that_changed_in_a_shard_is_refused_where_the_shard_is_named_by_itself(packed: Path) -> None:
    index = json.loads((packed / "shards.json").read_bytes())["shards"][0]
    shard = packed / index["file"]
    content = bytearray(shard.read_bytes())
    label = index["starts"][0] - 1024  # the block of the .cls, before the header of the image
    content[label] = ord("1") + ord("0") - content[label]
    shard.write_bytes(content)
    with raises("data.bad_archive", str(shard)):
        open_data(str(shard))


def test_an_image_that_was_removed_from_a_shard_is_missed_where_the_shard_is_named_by_itself(packed: Path) -> None:
    index = json.loads((packed / "shards.json").read_bytes())["shards"][0]
    shard = packed / index["file"]
    last = index["starts"][-1] - 1536  # the header of its .cls
    shard.write_bytes(shard.read_bytes()[:last] + bytes(10_240))
    with raises("data.bad_archive", str(shard)):
        open_data(str(shard))


def fails(read: Callable[[], object]) -> bool:
    try:
        read()
    except VitralError as error:
        return error.code == "data.bad_archive"
    return False


def test_a_flipped_byte_outside_the_images_is_noticed_by_a_check(packed: Path) -> None:
    shard = packed / "train-00000.tar"
    flip(shard, 0)
    assert faults(packed) == [("data.bad_archive", str(shard))]


@pytest.mark.parametrize("name", ["shards.json", "classes.txt", "hashes.bin"])
def test_every_flipped_byte_of_the_small_files_is_refused_when_it_is_opened(packed: Path, name: str) -> None:
    whole = (packed / name).read_bytes()
    for at in range(0, len(whole), max(1, len(whole) // 25)):
        flip(packed / name, at)
        with pytest.raises(DataError) as caught:
            open_data(str(packed))
        assert caught.value.code == "data.bad_index"
        (packed / name).write_bytes(whole)
    open_data(str(packed))


def test_every_flipped_byte_of_the_manifest_is_noticed_the_hash_of_a_shard_by_a_check(packed: Path) -> None:
    whole = (packed / "manifest.json").read_bytes()
    for at in range(0, len(whole), 31):
        flip(packed / "manifest.json", at)
        try:
            open_data(str(packed))
        except DataError as error:
            found = error.code
        else:
            found = faults(packed)[0][0]
        assert found in {"data.bad_index", "data.bad_archive"}
        (packed / "manifest.json").write_bytes(whole)


def test_a_pack_needs_its_manifest_and_its_index(packed: Path) -> None:
    manifest, index = (packed / "manifest.json").read_bytes(), (packed / "shards.json").read_bytes()
    (packed / "manifest.json").unlink()
    with raises("data.no_manifest", packed / "manifest.json", "--no-verify"):
        open_data(str(packed))
    with file_policy(verify_files=False):
        assert len(open_data(str(packed)).items) == 16
    (packed / "manifest.json").write_bytes(manifest)
    (packed / "shards.json").unlink()
    with raises("data.missing_file", packed / "shards.json"):
        open_data(str(packed))
    (packed / "shards.json").write_bytes(index)
    (packed / "hashes.bin").unlink()
    with raises("data.unreadable", packed / "hashes.bin"):
        open_data(str(packed))


def test_a_pack_of_the_first_format_opens_as_unverified(packed: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = (packed / "shards.json").read_bytes().replace(b'"format": 2', b'"format": 1')
    (packed / "shards.json").write_bytes(text)
    with raises("data.bad_index", packed / "shards.json"):  # a manifest is there
        open_data(str(packed))
    for name in ("manifest.json", "hashes.bin"):
        (packed / name).unlink()
    with caplog.at_level(logging.INFO):
        samples = open_data(str(packed))
    assert "unverified" in caplog.text
    assert all(samples.read(item) for item in samples.items)
    assert faults(packed) == []


def interrupt(count: int) -> None:
    raise KeyboardInterrupt


def test_packing_again_repairs_a_damaged_shard_of_a_finished_or_unfinished_pack(data: Path, packed: Path) -> None:
    whole = {path.name: path.read_bytes() for path in packed.iterdir()}
    shard, *others = sorted(packed.glob("*.tar"))
    kept = {path: path.stat().st_ino for path in others}
    flip(shard, 600)
    with pytest.raises(KeyboardInterrupt):
        pack(data, packed, SIZE, interrupt)
    assert not (packed / "shards.json").exists()
    flip(others[0], 600)
    pack(data, packed, SIZE)
    assert {path.name: path.read_bytes() for path in packed.iterdir()} == whole
    assert {path: path.stat().st_ino for path in others[1:]} == {path: kept[path] for path in others[1:]}
    assert others[0].stat().st_ino != kept[others[0]]


def test_a_pack_is_signed_and_its_check_may_require_that(packed: Path, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    own, other = (create_key(tmp_path / name) for name in ("own.key", "other.key"))
    with file_policy(require_signature=own), raises("weights.unsigned", packed):
        faults(packed)
    vitral.sign(packed, tmp_path / "own.key")
    with file_policy(require_signature=own):
        assert faults(packed) == []
    with file_policy(require_signature=other), raises("weights.bad_signature"):
        faults(packed)
    flip(next(packed.glob("*.tar")), 700)
    with raises("weights.corrupt"):
        vitral.sign(packed, tmp_path / "own.key")
