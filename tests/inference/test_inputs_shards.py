"""Images within tars."""

from pathlib import Path

import pytest

from tests.data.tars import sample, tar_bytes, write_tar
from tests.errors import raises
from vitral.data.datasets.pack import pack
from vitral.data.datasets.source import open_data
from vitral.inference.inputs import UnlistedImages, pack_images, remote_images, tar_images

JPEGS = [("cat/1.jpg", b"one"), ("notes.txt", b"no image"), ("cat/2.jpg", b"two"), (".hidden.jpg", b"litter")]


def test_images_need_no_labels_and_come_in_the_order_of_the_tar(tmp_path: Path) -> None:
    first = str(write_tar(tmp_path / "b.tar", JPEGS))
    second = str(write_tar(tmp_path / "a.tar", sample("3", "0")))
    found = list(tar_images([first, second]))
    assert [image.name for image in found] == [f"{first}/cat/1.jpg", f"{first}/cat/2.jpg", f"{second}/3.jpg"]
    assert [image.source.read() for image in found] == [b"one", b"two", b"3.jpg"]


@pytest.mark.parametrize(
    ("broken", "code"),
    [
        ("cut", "data.bad_archive"),
        ("compressed", "data.compressed_archive"),
        ("empty", "data.empty"),
        ("missing", "data.unreadable"),
    ],
)
def test_a_tar_that_is_broken_is_told_and_the_next_goes_on(tmp_path: Path, broken: str, code: str) -> None:
    path = tmp_path / "a.tar"
    content = {"cut": tar_bytes(JPEGS)[:3000], "compressed": b"\x1f\x8b" + bytes(600), "empty": tar_bytes([])}
    if broken in content:
        path.write_bytes(content[broken])
    found = list(tar_images([str(path), str(write_tar(tmp_path / "b.tar", sample("3", "0")))]))
    bad = [image for image in found if isinstance(image.source, UnlistedImages)]
    assert [image.name for image in bad] == [str(path)]
    with raises(code, path):
        bad[0].source.read()
    assert found[-1].source.read() == b"3.jpg"
    assert (len(found) > 2) == (broken == "cut")  # what comes before the cut is there


def test_a_pack_has_the_names_from_before_it_was_packed(tmp_path: Path) -> None:
    samples = open_data("sample")
    pack(samples, tmp_path / "pack", 2_000_000)
    found = list(pack_images(str(tmp_path / "pack")))
    assert sorted(image.name for image in found) == sorted(f"{tmp_path}/pack/{item.name}" for item in samples.items)
    by_name = {image.name: image for image in found}
    for item in samples.items[::1000]:
        assert by_name[f"{tmp_path}/pack/{item.name}"].source.read() == samples.read(item)


def test_a_pack_that_was_not_finished_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shards.unfinished.json").write_text("{}")
    with raises("data.unfinished_pack", tmp_path):
        list(pack_images(str(tmp_path)))


def test_tars_of_another_file_system_are_read_in_place(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", JPEGS)
    for address in (f"file://{tmp_path}/*.tar", f"file://{tmp_path}/a.tar", f"file://{tmp_path}"):
        found = list(remote_images(address))
        assert [image.source.read() for image in found] == [b"one", b"two"]
        assert [image.name.rpartition("/a.tar/")[2] for image in found] == ["cat/1.jpg", "cat/2.jpg"]


def test_addresses_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with raises("data.remote_address", "https://example.org/cat.jpg"):
        remote_images("https://example.org/cat.jpg")
    with raises("config.unknown_name", "ssss"):
        remote_images("ssss://bucket/a.tar")
    with raises("data.empty", tmp_path):
        remote_images(f"file://{tmp_path}")
