import pickle
import random
from pathlib import Path

import pytest

from tests.data.trees import refused_at
from tests.errors import raises
from vitral.data.datasets.shards import ShardStore, build_store

NAMES = ["b", "", "a", "ab", "a/b.jpg", "é", "ねこ/1.jpg", "\udcff", "z" * 300, "a\nb", "B"]


@pytest.fixture
def store(tmp_path: Path) -> tuple[ShardStore, dict[str, bytes]]:
    """A store over two files of random bytes, and what it should give for every name."""
    chance = random.Random(0)
    contents = [chance.randbytes(5000), chance.randbytes(3000)]
    paths = [tmp_path / "0.tar", tmp_path / "1.tar"]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    places = [(number % 2, 17 * number, number * number) for number in range(len(NAMES))]
    truth = {
        name: contents[shard][start : start + length]
        for name, (shard, start, length) in zip(NAMES, places, strict=True)
    }
    shards, starts, lengths = zip(*places, strict=True)
    return build_store([str(path) for path in paths], NAMES, shards, starts, lengths), truth


def test_every_name_finds_its_own_bytes(store: tuple[ShardStore, dict[str, bytes]]) -> None:
    shards, truth = store
    assert {name: shards.read(name) for name in reversed(NAMES)} == truth
    assert {name: shards.size(name) for name in NAMES} == {name: len(data) for name, data in truth.items()}


@pytest.mark.parametrize("name", ["c", "aa", "zz", "A"])
def test_a_name_that_is_not_there_finds_nothing(store: tuple[ShardStore, dict[str, bytes]], name: str) -> None:
    with pytest.raises(AssertionError):
        store[0].read(name)


def test_the_store_is_small_and_goes_to_another_process() -> None:
    count = 20_000
    names = [f"train/{number:06}.jpg" for number in range(count)]
    packed = pickle.dumps(build_store(["a.tar"], names, [0] * count, range(count), range(count)))
    assert len(packed) < count * (len(names[0]) + 4 * 8) + 1000
    assert pickle.loads(packed).size(names[777]) == 777


def test_a_shard_that_was_cut_or_removed_later_is_named(store: tuple[ShardStore, dict[str, bytes]]) -> None:
    shards, _ = store
    path = Path(shards.paths[0])
    path.write_bytes(b"short")
    with raises("data.changed") as caught:
        shards.read("z" * 300)
    assert refused_at(caught) == str(path)
    path.unlink()
    with raises("data.unreadable", path):
        shards.read("z" * 300)
