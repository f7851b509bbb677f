"""One tar: every sample of it with the place of its bytes, or an error that names the shard and the member."""

import bz2
import gzip
import lzma
import tarfile
from io import BytesIO
from typing import Any

import pytest

from tests.data.tars import File, odd, sample, tar_bytes
from tests.data.trees import refused_at
from tests.errors import raises
from vitral.data.datasets.shards import TarSample, scan_tar

BOTH = [*sample("cat/07", "cat"), *sample("dog/07", "dog")]
DEEP = "/".join(["a folder with a long name"] * 12)


def scanned(data: bytes) -> list[TarSample]:
    """The samples; the first fault is raised."""
    samples, faults = scan_tar(BytesIO(data), "set/train-000.tar")
    for fault in faults:
        raise fault
    return samples


def found(files: list[Any]) -> list[tuple[str, str | int, str | None]]:
    return [(entry.member, entry.label, entry.split) for entry in scanned(tar_bytes(files))]


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_the_bytes_of_every_image_are_where_the_entry_says(form: int) -> None:
    names = ["plain", "cat/07", *([] if form == tarfile.USTAR_FORMAT else [f"{DEEP}/1", "Крот/ねこ é 1", "\udcff"])]
    data = tar_bytes([file for name in names for file in sample(name, "7")], form)
    entries = scanned(data)
    assert [entry.member for entry in entries] == [f"{name}.jpg" for name in names]
    for entry in entries:
        content = data[entry.start : entry.start + entry.length]
        assert content == entry.member.encode("utf-8", "surrogateescape")


GOOD: dict[str, tuple[list[Any], list[tuple[str, str | int, str | None]]]] = {
    "a class by name": (sample("1", "cat\n"), [("1.jpg", "cat", None)]),
    "a class by number": (sample("1", " 12\n"), [("1.jpg", 12, None)]),
    "the label first": (sample("1", "cat")[::-1], [("1.jpg", "cat", None)]),
    "a label in JSON": ([("1.png", b""), ("1.json", b'{"label": "cat"}')], [("1.png", "cat", None)]),
    "a number in JSON": ([("1.png", b""), ("1.json", b'{"label": 3}')], [("1.png", 3, None)]),
    "digits between quotes": ([("1.png", b""), ("1.json", b'{"label": "3"}')], [("1.png", "3", None)]),
    "a split in JSON": (
        [("1.png", b""), ("1.json", b'{"label": 3, "split": "Validation"}')],
        [("1.png", 3, "val")],
    ),
    "both, and .cls counts": (
        [*sample("1", "4"), ("1.json", b'{"label": 3, "split": "test"}')],
        [("1.jpg", 4, "test")],
    ),
    "JSON about other things": ([*sample("1", "4"), ("1.json", b'{"width": 30}')], [("1.jpg", 4, None)]),
    "a caption beside": ([*sample("1", "4"), ("1.txt", b"a cat")], [("1.jpg", 4, None)]),
    "a dot more": ([("1.large.jpg", b""), ("1.cls", b"4")], [("1.large.jpg", 4, None)]),
    "a dot in a folder": (sample("v1.0/1", "4"), [("v1.0/1.jpg", 4, None)]),
    "any case": ([("1.JPEG", b""), ("1.CLS", b"4")], [("1.JPEG", 4, None)]),
    "the folder it was made in": ([odd("./", tarfile.DIRTYPE), *sample("./1", "4")], [("1.jpg", 4, None)]),
    "one key in two folders": (
        [*sample("a/1", "4"), *sample("b/1", "5")],
        [("a/1.jpg", 4, None), ("b/1.jpg", 5, None)],
    ),
    "what systems leave behind": (
        [
            ("._1.jpg", b"x"),
            *sample("1", "4"),
            ("__MACOSX/1.jpg", b"x"),
            ("Thumbs.db", b"x"),
            ("README", b"x"),
            (".DS_Store", b""),
        ],
        [("1.jpg", 4, None)],
    ),
}


@pytest.mark.parametrize(("files", "entries"), GOOD.values(), ids=GOOD)
def test_a_sample_is_understood(files: list[Any], entries: list[tuple[str, str | int, str | None]]) -> None:
    assert found(files) == entries


def labeled(text: bytes, ending: str = "cls") -> list[File]:
    return [("1.jpg", b"x"), (f"1.{ending}", text)]


BAD: dict[str, tuple[list[Any], str, tuple[str, ...]]] = {
    "a name from the root": ([("/etc/1.jpg", b""), *BOTH], "", ("data.unsafe_archive", "'/etc/1.jpg'")),
    "a name that climbs": ([*BOTH, ("a/../../1.jpg", b"")], "", ("data.unsafe_archive", "'a/../../1.jpg'")),
    "a folder that climbs": ([*BOTH, odd("..", tarfile.DIRTYPE)], "", ("data.unsafe_archive", "'..'")),
    "a symbolic link": ([*BOTH, odd("1.jpg", tarfile.SYMTYPE, "/etc/passwd")], "", ("data.unsafe_archive", "1.jpg")),
    "a hard link": ([*BOTH, odd("1.jpg", tarfile.LNKTYPE, "cat/07.jpg")], "", ("data.unsafe_archive", "1.jpg")),
    "a device": ([*BOTH, odd("1.jpg", tarfile.CHRTYPE)], "", ("data.unsafe_archive", "1.jpg")),
    "a pipe": ([*BOTH, odd("1.jpg", tarfile.FIFOTYPE)], "", ("data.unsafe_archive", "1.jpg")),
    "a file with holes": ([*BOTH, odd("1.jpg", tarfile.GNUTYPE_SPARSE)], "", ("data.unsafe_archive", "1.jpg")),
    "no image": ([*BOTH, ("1.cls", b"4"), ("1.txt", b"x")], "/1", ("data.bad_sample", "1.cls, 1.txt")),
    "two images": ([*sample("1", "4"), ("1.png", b"")], "/1", ("data.bad_sample", "1.jpg, 1.png")),
    "one member twice": ([*sample("1", "4"), *sample("1", "4")], "/1", ("data.bad_sample", "1.jpg, 1.jpg")),
    "one key twice": ([*sample("1", "4"), *BOTH, *sample("1", "4")], "/1", ("data.bad_sample",)),
    "two labels": ([*sample("1", "4"), ("1.x.cls", b"4")], "/1", ("data.bad_sample", "1.x.cls")),
    "no label": ([*BOTH, ("1.jpg", b"")], "/1", ("data.bad_label",)),
    "a caption for a label": (labeled(b"cat", "txt"), "/1", ("data.bad_label",)),
    "an empty label": (labeled(b" \n"), "/1", ("data.bad_label", "''")),
    "a label below zero": (labeled(b"-1"), "/1", ("data.bad_label", "-1")),
    "a label in another alphabet": (labeled(b"\xff\xfe"), "/1", ("data.bad_label", "1.cls", "UTF-8")),
    "a picture for a label": (labeled(bytes(2_000_000)), "/1", ("data.bad_label", "1.cls", "2,000,000")),
    "JSON that is none": (labeled(b"{", "json"), "/1", ("data.bad_label", "1.json")),
    "JSON of another kind": (labeled(b"[4]", "json"), "/1", ("data.bad_label", "1.json")),
    "JSON with a list of labels": (
        labeled(b'{"label": [1, 2]}', "json"),
        "/1",
        ("data.bad_label", "label", "[1, 2]"),
    ),
    "JSON with a truth for a label": (labeled(b'{"label": true}', "json"), "/1", ("data.bad_label", "label", "true")),
    "JSON with an unknown split": (
        labeled(b'{"label": 1, "split": "dev"}', "json"),
        "/1",
        ("data.bad_split", "split", "'dev'"),
    ),
    "nothing": ([], "", ("data.empty",)),
    "nothing but notes": ([("README", b"x")], "", ("data.empty",)),
}


@pytest.mark.parametrize(("files", "place", "error"), BAD.values(), ids=BAD)
def test_a_member_that_cannot_be_right_is_refused(files: list[Any], place: str, error: tuple[str, ...]) -> None:
    with raises(*error) as caught:
        found(files)
    assert refused_at(caught) == f"set/train-000.tar{place}"


WHOLE = tar_bytes(BOTH)
END = 8 * 512  # four headers and four blocks of content


def negative() -> bytes:
    """A tar whose second header claims a size below zero, so that its own end lies before it."""
    info = tarfile.TarInfo("2.jpg")
    info.size = -1024
    return tar_bytes(sample("1", "4"))[: 4 * 512] + info.tobuf(tarfile.GNU_FORMAT) + bytes(10240)


FILES: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "an empty file": (b"", ("data.bad_archive",)),
    "text": (b"<html>" * 200, ("data.bad_archive",)),
    "less than a header": (WHOLE[:100], ("data.bad_archive",)),
    "cut within an image": (WHOLE[: 512 + 3], ("data.bad_archive",)),
    "cut between samples": (WHOLE[: 4 * 512], ("data.bad_archive", "2048")),
    "cut within a header": (WHOLE[: 4 * 512 + 100], ("data.bad_archive", "2048")),
    "without an end": (WHOLE[:END], ("data.bad_archive", f"{END}")),
    "damaged in the middle": (WHOLE[: 4 * 512] + b"\1" * 512 + WHOLE[5 * 512 :], ("data.bad_archive", "2048")),
    "a size below zero": (negative(), ("data.unsafe_archive", "2.jpg")),
    "gzip": (gzip.compress(WHOLE), ("data.compressed_archive", "gzip")),
    "bzip2": (bz2.compress(WHOLE), ("data.compressed_archive", "bzip2")),
    "xz": (lzma.compress(WHOLE), ("data.compressed_archive", "xz")),
}


@pytest.mark.parametrize(("data", "error"), FILES.values(), ids=FILES)
def test_a_file_that_is_no_whole_tar_is_refused(data: bytes, error: tuple[str, ...]) -> None:
    with raises(*error) as caught:
        scanned(data)
    assert refused_at(caught) == "set/train-000.tar"


def test_all_faults_of_a_tar_are_found_and_the_other_samples_are_kept() -> None:
    files: list[Any] = [
        *sample("1", "cat"),
        ("../2.jpg", b""),
        *[("3.jpg", b""), ("3.png", b""), ("3.cls", b"cat")],
        odd("link", tarfile.SYMTYPE, "1.jpg"),
        ("4.jpg", b""),
        *sample("1", "dog"),
        *[("5.jpg", b""), ("5.json", b"{")],
        *sample("6", "dog"),
    ]
    samples, faults = scan_tar(BytesIO(tar_bytes(files)), "t.tar")
    assert sorted((fault.code, fault.where) for fault in faults) == [
        ("data.bad_label", "t.tar/4"),
        ("data.bad_label", "t.tar/5"),
        ("data.bad_sample", "t.tar/1"),
        ("data.bad_sample", "t.tar/3"),
        ("data.unsafe_archive", "t.tar"),
        ("data.unsafe_archive", "t.tar"),
    ]
    assert [entry.member for entry in samples] == ["1.jpg", "6.jpg"]


def test_a_cut_tar_has_one_fault_and_the_samples_before_the_cut() -> None:
    samples, faults = scan_tar(BytesIO(WHOLE[: 5 * 512 + 100]), "t.tar")
    assert [fault.code for fault in faults] == ["data.bad_archive"]
    assert len(samples) == 1


def test_a_tar_cut_anywhere_is_refused() -> None:
    for end in range(0, END + 512, 64):
        with raises("data.bad_archive", "set/train-000.tar"):
            scanned(WHOLE[:end])
    assert len(scanned(WHOLE[: END + 512])) == 2
