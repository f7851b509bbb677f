"""One tar: every sample of it with the place of its bytes, or an error that names the shard and the member."""

import bz2
import gzip
import lzma
import tarfile
from io import BytesIO
from typing import Any

import pytest

from tests.data.tars import File, odd, sample, tar_bytes
from tests.data.trees import refusal
from vitral.data.sources.shards.tar import Entry, scan
from vitral.errors import DataError

BOTH = [*sample("cat/07", "cat"), *sample("dog/07", "dog")]
DEEP = "/".join(["a folder with a long name"] * 12)


def scanned(data: bytes) -> list[Entry]:
    return scan(BytesIO(data), "set/train-000.tar")


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


def labelled(text: bytes, ending: str = "cls") -> list[File]:
    return [("1.jpg", b"x"), (f"1.{ending}", text)]


BAD: dict[str, tuple[list[Any], str, str]] = {
    "a name from the root": ([("/etc/1.jpg", b""), *BOTH], "", "'/etc/1.jpg' leads out of the tar"),
    "a name that climbs": ([*BOTH, ("a/../../1.jpg", b"")], "", "'a/../../1.jpg' leads out of the tar"),
    "a folder that climbs": ([*BOTH, odd("..", tarfile.DIRTYPE)], "", "'..' leads out of the tar"),
    "a symbolic link": ([*BOTH, odd("1.jpg", tarfile.SYMTYPE, "/etc/passwd")], "", "1.jpg is neither a plain file"),
    "a hard link": ([*BOTH, odd("1.jpg", tarfile.LNKTYPE, "cat/07.jpg")], "", "1.jpg is neither a plain file"),
    "a device": ([*BOTH, odd("1.jpg", tarfile.CHRTYPE)], "", "1.jpg is neither a plain file"),
    "a pipe": ([*BOTH, odd("1.jpg", tarfile.FIFOTYPE)], "", "1.jpg is neither a plain file"),
    "a file with holes": ([*BOTH, odd("1.jpg", tarfile.GNUTYPE_SPARSE)], "", "1.jpg is neither a plain file"),
    "no image": ([*BOTH, ("1.cls", b"4"), ("1.txt", b"x")], "/1", "no image among 1.cls, 1.txt"),
    "two images": ([*sample("1", "4"), ("1.png", b"")], "/1", "several images: 1.jpg, 1.png"),
    "one member twice": ([*sample("1", "4"), *sample("1", "4")], "/1", "several images: 1.jpg, 1.jpg"),
    "one key twice": ([*sample("1", "4"), *BOTH, *sample("1", "4")], "/1", "a second sample with the same key"),
    "two labels": ([*sample("1", "4"), ("1.x.cls", b"4")], "/1", "two files of labels: 1.x.cls"),
    "no label": ([*BOTH, ("1.jpg", b"")], "/1", "no label"),
    "a caption for a label": (labelled(b"cat", "txt"), "/1", "no label"),
    "an empty label": (labelled(b" \n"), "/1", "the label ''"),
    "a label below zero": (labelled(b"-1"), "/1", "the label -1"),
    "a label in another alphabet": (labelled(b"\xff\xfe"), "/1", "1.cls is not UTF-8"),
    "a picture for a label": (labelled(bytes(2_000_000)), "/1", "1.cls has 2,000,000 bytes"),
    "JSON that is none": (labelled(b"{", "json"), "/1", "1.json is not JSON"),
    "JSON of another kind": (labelled(b"[4]", "json"), "/1", "1.json is JSON of another kind"),
    "JSON with a list of labels": (
        labelled(b'{"label": [1, 2]}', "json"),
        "/1",
        "expected text or a number, got [1, 2]",
    ),
    "JSON with a truth for a label": (labelled(b'{"label": true}', "json"), "/1", "got true"),
    "JSON with an unknown split": (labelled(b'{"label": 1, "split": "dev"}', "json"), "/1", "got 'dev'"),
    "nothing": ([], "", "no images in it"),
    "nothing but notes": ([("README", b"x")], "", "no images in it"),
}


@pytest.mark.parametrize(("files", "place", "what"), BAD.values(), ids=BAD)
def test_a_member_that_cannot_be_right_is_refused(files: list[Any], place: str, what: str) -> None:
    with pytest.raises(DataError) as caught:
        found(files)
    where, message = refusal(caught)
    assert where == f"set/train-000.tar{place}"
    assert what in message


WHOLE = tar_bytes(BOTH)
END = 8 * 512  # four headers and four blocks of content


def negative() -> bytes:
    """A tar whose second header claims a size below zero, so that its own end lies before it."""
    info = tarfile.TarInfo("2.jpg")
    info.size = -1024
    return tar_bytes(sample("1", "4"))[: 4 * 512] + info.tobuf(tarfile.GNU_FORMAT) + bytes(10240)


FILES = {
    "an empty file": (b"", "not a whole tar file: empty file"),
    "text": (b"<html>" * 200, "not a whole tar file"),
    "less than a header": (WHOLE[:100], "not a whole tar file"),
    "cut within an image": (WHOLE[: 512 + 3], "not a whole tar file: unexpected end of data"),
    "cut between samples": (WHOLE[: 4 * 512], "broken or cut off at byte 2048"),
    "cut within a header": (WHOLE[: 4 * 512 + 100], "broken or cut off at byte 2048"),
    "without an end": (WHOLE[:END], f"broken or cut off at byte {END}"),
    "damaged in the middle": (WHOLE[: 4 * 512] + b"\1" * 512 + WHOLE[5 * 512 :], "broken or cut off at byte 2048"),
    "a size below zero": (negative(), "2.jpg is neither a plain file"),
    "gzip": (gzip.compress(WHOLE), "compressed with gzip; decompress it"),
    "bzip2": (bz2.compress(WHOLE), "compressed with bzip2; decompress it"),
    "xz": (lzma.compress(WHOLE), "compressed with xz; decompress it"),
}


@pytest.mark.parametrize(("data", "what"), FILES.values(), ids=FILES)
def test_a_file_that_is_no_whole_tar_is_refused(data: bytes, what: str) -> None:
    with pytest.raises(DataError) as caught:
        scanned(data)
    where, message = refusal(caught)
    assert where == "set/train-000.tar"
    assert what in message


def test_a_tar_cut_anywhere_is_refused() -> None:
    for end in range(0, END + 512, 64):
        with pytest.raises(DataError):
            scanned(WHOLE[:end])
    assert len(scanned(WHOLE[: END + 512])) == 2
