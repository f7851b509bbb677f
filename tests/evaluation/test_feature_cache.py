"""The cache of features: made once, whole or not at all, never larger than it may be."""

import os
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.evaluation.subjects import Counted, files_in
from vitral.core.storage import Storage
from vitral.evaluation import feature_cache
from vitral.evaluation.feature_cache import DiskCache, FeatureCache, cache_key, default_cache

VECTORS = torch.arange(12.0).reshape(4, 3)
BYTES = 8 + 4 * 256  # about what a file of one row of 256 takes, without its header


def made() -> Counted:
    return Counted(VECTORS.clone)


def test_what_was_made_once_is_read_the_next_time(tmp_path: Path) -> None:
    make = made()
    for _ in range(3):
        assert torch.equal(DiskCache(tmp_path / "new" / "folder").features(lambda: "key", 4, make), VECTORS)
    assert make.times == 1
    assert files_in(tmp_path / "new" / "folder") == ["key.safetensors"]


def test_another_key_is_made_anew(tmp_path: Path) -> None:
    make = made()
    for key in ("a", "b"):
        DiskCache(tmp_path).features(lambda key=key: key, 4, make)  # type: ignore[misc]
    assert make.times == 2


def test_without_a_cache_nothing_is_hashed_or_written() -> None:
    make = made()
    for _ in range(2):
        assert torch.equal(FeatureCache().features(lambda: pytest.fail("hashed"), 4, make), VECTORS)
    assert make.times == 2


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def flip(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    whole[-3] ^= 1
    path.write_bytes(whole)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def foreign(path: Path) -> None:
    save_file({"vectors": VECTORS}, path)


def other_names(path: Path) -> None:
    save_file({"weight": VECTORS}, path)


def of_another_key(path: Path) -> None:
    DiskCache(path.parent).features(lambda: "other", 4, lambda: VECTORS + 1)
    (path.parent / "other.safetensors").replace(path)


def of_fewer_images(path: Path) -> None:
    path.unlink()
    DiskCache(path.parent).features(lambda: "key", 3, lambda: VECTORS[:3])


@pytest.mark.parametrize("damage", [cut, flip, empty, foreign, other_names, of_another_key, of_fewer_images])
def test_a_damaged_or_foreign_file_is_made_again(tmp_path: Path, damage: object) -> None:
    make, folder = made(), DiskCache(tmp_path)
    folder.features(lambda: "key", 4, make)
    assert callable(damage)
    damage(tmp_path / "key.safetensors")
    assert torch.equal(folder.features(lambda: "key", 4, make), VECTORS)
    assert make.times == 2
    assert torch.equal(folder.features(lambda: "key", 4, make), VECTORS)
    assert make.times == 2, "and is whole again"


def test_an_interrupt_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(done: str) -> None:
        assert list(tmp_path.iterdir()), "the draft is there when the interrupt comes"
        raise KeyboardInterrupt

    monkeypatch.setattr(feature_cache, "STORAGE", Storage(on_event=interrupt))
    with pytest.raises(KeyboardInterrupt):
        DiskCache(tmp_path).features(lambda: "key", 4, made())
    assert files_in(tmp_path) == []


def test_what_was_used_longest_ago_makes_room(tmp_path: Path) -> None:
    folder = DiskCache(tmp_path, max_bytes=4 * BYTES)
    for age, key in enumerate("abc"):
        folder.features(lambda key=key: key, 1, lambda: torch.ones(1, 256))  # type: ignore[misc]
        os.utime(tmp_path / f"{key}.safetensors", (1000 + age, 1000 + age))
    folder.features(lambda: "a", 1, lambda: pytest.fail("made again"))  # so `b` is now the oldest
    folder.features(lambda: "d", 1, lambda: torch.ones(1, 256))
    assert files_in(tmp_path) == ["a.safetensors", "c.safetensors", "d.safetensors"]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= folder.max_bytes


def test_what_is_larger_than_the_room_is_not_kept(tmp_path: Path) -> None:
    found = DiskCache(tmp_path, max_bytes=100).features(lambda: "key", 1, lambda: torch.ones(1, 256))
    assert found.shape == (1, 256)
    assert files_in(tmp_path) == []


def test_what_a_killed_process_left_is_swept_up_and_what_another_writes_is_not(tmp_path: Path) -> None:
    old, new = tmp_path / "x.tmp-1", tmp_path / "y.tmp-2"
    for draft in (old, new):
        draft.write_bytes(b"half")
    os.utime(old, (time.time() - 2 * feature_cache.STALE_SECONDS,) * 2)
    DiskCache(tmp_path).features(lambda: "key", 4, made())
    assert files_in(tmp_path) == ["key.safetensors", "y.tmp-2"]


def test_a_folder_that_cannot_be_written_costs_no_more_than_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    make = made()
    for _ in range(2):
        assert torch.equal(DiskCache(tmp_path / "file" / "features").features(lambda: "key", 4, make), VECTORS)
    assert make.times == 2


def test_the_folder_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache().path == tmp_path / "vitral" / "features"


def test_every_part_and_image_and_their_order_is_in_the_key() -> None:
    keys = [
        cache_key(["ab", "c"], [b"12", b"3"]),
        cache_key(["a", "bc"], [b"12", b"3"]),
        cache_key(["ab", "c"], [b"1", b"23"]),
        cache_key(["ab", "c"], [b"3", b"12"]),
        cache_key(["ab", "c", "12"], [b"3"]),
        cache_key(["ab"], [b"c", b"12", b"3"]),
    ]
    assert len(set(keys)) == len(keys)
    assert cache_key(["ab", "c"], iter([b"12", b"3"])) == keys[0]
