import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from tests.data.pictures import color, encoded
from tests.data.tars import tar_bytes
from tests.data.trees import plant
from tests.errors import raises
from vitral.data.datasets.pack import parse_size, plan_shards, shard_members
from vitral.data.datasets.source import open_data
from vitral.data.samples import Samples

SIZE = 40_960  # four records of a tar


def opened(root: Path, each: int = 40) -> Samples:
    return open_data(str(plant(root, [f"{name}/{number}.jpg" for name in ("ant", "bee") for number in range(each)])))


def ignore(count: int) -> None:
    pass


def test_the_plan_foresees_every_byte_of_a_tar(tmp_path: Path) -> None:
    for number, length in enumerate([0, 1, 511, 512, 513, 3000]):
        plant(tmp_path, ["ant/x.jpg"])
        (tmp_path / f"ant/{'n' * 40 * number}.jpg").write_bytes(b"x" * length)
    samples = opened(tmp_path)
    for shard in plan_shards(samples, SIZE).shards:
        data = tar_bytes(list(shard_members(samples, shard, 0, ignore)), tarfile.GNU_FORMAT)
        assert len(data) == shard.bytes <= SIZE
        with tarfile.open(fileobj=BytesIO(data)) as tar:
            images = [(info.offset_data, info.size) for info in tar if info.name.endswith(".jpg")]
        assert images == list(zip(shard.starts, shard.lengths, strict=True))


def test_every_image_is_in_one_shard_of_its_split(tmp_path: Path) -> None:
    samples = opened(tmp_path)
    index = plan_shards(samples, SIZE)
    found = [
        (name, label, shard.split)
        for shard in index.shards
        for name, label in zip(shard.names, shard.labels, strict=True)
    ]
    assert sorted(found) == sorted(samples.items)
    assert [shard.file for shard in index.shards] == [
        "train-00000.tar",
        "train-00001.tar",
        "train-00002.tar",
        "train-00003.tar",
        "train-00004.tar",
        "val-00000.tar",
        "val-00001.tar",
    ]


def test_classes_are_mixed_and_mixed_the_same_way_again(tmp_path: Path) -> None:
    index = plan_shards(opened(tmp_path), SIZE)
    assert all(set(shard.labels) == {0, 1} for shard in index.shards if len(shard.names) > 8)
    assert plan_shards(open_data(str(tmp_path)), SIZE) == index


def test_an_image_larger_than_a_shard_has_one_to_itself(tmp_path: Path) -> None:
    plant(tmp_path, ["ant/large.jpg"])
    (tmp_path / "ant/large.jpg").write_bytes(bytes(100_000))
    large = [shard for shard in plan_shards(opened(tmp_path), SIZE).shards if shard.bytes > SIZE]
    assert [shard.names for shard in large] == [("ant/large.jpg",)]


def test_keys_are_numbered_on_and_progress_is_told(tmp_path: Path) -> None:
    samples = opened(tmp_path)
    shard = plan_shards(samples, SIZE).shards[1]
    told: list[int] = []
    keys = [name.split(".")[0] for name, _ in shard_members(samples, shard, 70, told.append)]
    assert keys[::3] == keys[1::3] == keys[2::3] == [f"{number:08}" for number in range(70, 70 + len(shard.names))]
    assert told == [1] * len(shard.names)


@pytest.mark.parametrize(
    ("name", "ending"), [("2.JPeG", ".jpeg"), ("2.a.tif", ".tif"), ("2.dat", ".png"), ("2", ".png")]
)
def test_an_image_is_called_by_its_name_or_else_by_its_bytes(tmp_path: Path, name: str, ending: str) -> None:
    (tmp_path / "1.png").write_bytes(b"")
    (tmp_path / name).write_bytes(encoded(color(), "PNG"))
    (tmp_path / "list.csv").write_text(f"path,label,split\n1.png,a,train\n{name},b,train\n")
    samples = open_data(str(tmp_path / "list.csv"))
    found = [
        member for shard in plan_shards(samples, SIZE).shards for member, _ in shard_members(samples, shard, 0, ignore)
    ]
    assert sorted(Path(member).suffix for member in found) == sorted([".cls", ".cls", ".json", ".json", ".png", ending])


def test_what_has_neither_the_name_nor_the_bytes_of_an_image_is_refused(tmp_path: Path) -> None:
    plant(tmp_path, ["1.jpg", "2.dat"])
    (tmp_path / "list.csv").write_text("path,label\n1.jpg,a\n2.dat,b\n")
    samples = open_data(str(tmp_path / "list.csv"))
    with raises("data.unknown_format", "2.dat"):
        [*shard_members(samples, plan_shards(samples, SIZE).shards[0], 0, ignore)]


def test_a_class_with_a_line_break_is_refused(tmp_path: Path) -> None:
    with raises("data.bad_class_name", tmp_path):
        plan_shards(open_data(str(plant(tmp_path, ["a\nb/1.jpg", "c/1.jpg"]))), SIZE)


@pytest.mark.parametrize(
    ("text", "count"), [("256MB", 256_000_000), ("1 gb", 10**9), ("512", 512), ("7B", 7), (" 3kb ", 3000)]
)
def test_a_size_is_read_with_its_unit(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize("text", ["", "MB", "0", "-1MB", "1.5GB", "1PB", "1e3"])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with raises("config.wrong_type", repr(text)):
        parse_size(text)
