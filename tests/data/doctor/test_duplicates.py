"""Pictures that are there twice: in which splits and under which labels decides what they are."""

from pathlib import Path

import pytest

from tests.data.doctor.albums import diagnosed, found, names, pets, photo, scene
from tests.data.pictures import encoded
from vitral.data.doctor.duplicates import IDENTICAL, LOOKS_THE_SAME, first_of_each
from vitral.data.samples import Item

ORIGINAL = "train/cat/00.jpg"  # scene 0
RESAVED = photo(0, quality=40)
RESIZED = encoded(scene(0).resize((300, 230)), "PNG")

# Where a copy is, what it holds, and for each finding its severity and detail.
COPIES = {
    "the same file beside it": ("train/cat/x.jpg", photo(0), {"duplicates": ("warning", IDENTICAL)}),
    "the same file in val": ("val/cat/x.jpg", photo(0), {"leak": ("error", IDENTICAL)}),
    "the same file as a dog": ("train/dog/x.jpg", photo(0), {"contradiction": ("error", IDENTICAL)}),
    "the same file as a dog in val": (
        "val/dog/x.jpg",
        photo(0),
        {"contradiction": ("error", IDENTICAL), "leak": ("error", IDENTICAL)},
    ),
    "saved again beside it": ("train/cat/x.jpg", RESAVED, {"look-alikes": ("note", LOOKS_THE_SAME)}),
    "saved again in val": ("val/cat/x.jpg", RESAVED, {"look-alike leak": ("warning", LOOKS_THE_SAME)}),
    "saved again as a dog": ("train/dog/x.jpg", RESAVED, {"look-alike labels": ("warning", LOOKS_THE_SAME)}),
    "resized in val": ("val/cat/x.png", RESIZED, {"look-alike leak": ("warning", LOOKS_THE_SAME)}),
    "another picture": ("val/cat/x.jpg", photo(99), {}),
}


@pytest.mark.parametrize(("name", "content", "expected"), COPIES.values(), ids=COPIES)
def test_a_copy_is_told_by_where_it_is(
    tmp_path: Path, name: str, content: bytes, expected: dict[str, tuple[str, str]]
) -> None:
    findings = found(diagnosed(tmp_path, {**pets(), name: content}))
    assert {kind: (finding.severity, finding.examples[0].detail) for kind, finding in findings.items()} == expected
    for finding in findings.values():
        assert finding.count == 1
        assert [sorted(example) for example in names(finding)] == [sorted((ORIGINAL, name))]
        assert finding.hint


def test_many_copies_of_one_file_are_one_example(tmp_path: Path) -> None:
    copies = {f"train/cat/x{n}.jpg": photo(0) for n in range(5)}
    finding = found(diagnosed(tmp_path, {**pets(), **copies}))["duplicates"]
    assert finding.count == 5
    assert names(finding) == [(ORIGINAL, *copies)]


def test_copies_of_two_kinds_in_one_split_are_told_apart(tmp_path: Path) -> None:
    files = {**pets(), "train/cat/same.jpg": photo(0), "train/cat/saved.jpg": RESAVED}
    findings = found(diagnosed(tmp_path, files))
    assert names(findings["duplicates"]) == [(ORIGINAL, "train/cat/same.jpg")]
    assert names(findings["look-alikes"]) == [(ORIGINAL, "train/cat/saved.jpg")]


def test_the_very_same_file_is_shown_rather_than_a_look_alike(tmp_path: Path) -> None:
    files = {**pets(), "val/cat/a.jpg": RESAVED, "val/cat/b.jpg": photo(0)}
    finding = found(diagnosed(tmp_path, files))["leak"]
    assert names(finding) == [(ORIGINAL, "val/cat/b.jpg")]
    assert finding.examples[0].detail == IDENTICAL


def test_a_broken_file_is_no_copy_of_another(tmp_path: Path) -> None:
    files = {**pets(), "train/cat/x.jpg": b"<html>", "val/dog/x.jpg": b"<html>"}
    assert set(found(diagnosed(tmp_path, files))) == {"corrupt"}


def test_one_item_of_each_is_the_first() -> None:
    items = [Item("a", 0, "train"), Item("b", 1, "train"), Item("c", 0, "val")]
    assert first_of_each(items, "split") == (items[0], items[2])
    assert first_of_each(items, "label") == (items[0], items[1])
