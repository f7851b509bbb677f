"""Duplicates: their splits and labels decide which finding reports them, and only one does."""

from itertools import combinations
from pathlib import Path

import pytest

from tests.data.doctor.albums import diagnosed, fill, found, names, pets, photo, scene
from tests.data.pictures import encoded
from vitral.data.datasets.source import open_images
from vitral.data.doctor.checks import readable_items
from vitral.data.doctor.duplicates import IDENTICAL, LOOKS_THE_SAME, duplicate_findings, first_of_each
from vitral.data.doctor.examine import examine_all
from vitral.data.samples import Item

ORIGINAL = "train/cat/00.jpg"  # scene 0
RESAVED = photo(0, quality=40)
RESIZED = encoded(scene(0).resize((300, 230)), "PNG")

# Where a copy is, what it holds, and for each finding its severity and detail.
COPIES = {
    "the same file beside it": ("train/cat/x.jpg", photo(0), {"duplicates": ("warning", IDENTICAL)}),
    "the same file in val": ("val/cat/x.jpg", photo(0), {"leak": ("error", IDENTICAL)}),
    "the same file as a dog": ("train/dog/x.jpg", photo(0), {"contradiction": ("error", IDENTICAL)}),
    "the same file as a dog in val": ("val/dog/x.jpg", photo(0), {"contradiction": ("error", IDENTICAL)}),
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


def test_exact_and_near_duplicates_of_one_image_are_reported_once(tmp_path: Path) -> None:
    files = {**pets(), "train/cat/same.jpg": photo(0), "train/cat/saved.jpg": RESAVED}
    (finding,) = diagnosed(tmp_path, files).findings
    assert (finding.kind, finding.count) == ("duplicates", 1)
    assert names(finding) == [(ORIGINAL, "train/cat/same.jpg", "train/cat/saved.jpg")]
    assert finding.examples[0].detail == f"{IDENTICAL}, and 1 file that looks the same"


def test_the_same_file_comes_before_one_that_looks_the_same(tmp_path: Path) -> None:
    files = {**pets(), "val/cat/a.jpg": RESAVED, "val/cat/b.jpg": photo(0)}
    (finding,) = diagnosed(tmp_path, files).findings
    assert finding.kind == "leak"
    assert names(finding) == [(ORIGINAL, "val/cat/b.jpg", "val/cat/a.jpg")]


EVERYWHERE = ("train/cat/x.jpg", "train/dog/x.jpg", "val/cat/x.jpg", "val/dog/x.jpg")


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("content", [photo(0), RESAVED], ids=["exact", "near"])
def test_every_file_is_in_one_example_at_most(tmp_path: Path, count: int, content: bytes) -> None:
    for places in combinations(EVERYWHERE, count):
        folder = tmp_path / "-".join(place.replace("/", "_") for place in places)
        findings = diagnosed(folder, {**pets(2, 1), **dict.fromkeys(places, content)}).findings
        files = [name for finding in findings for example in names(finding) for name in example]
        assert sorted(files) == sorted([ORIGINAL, *places])


def test_without_labels_the_split_does_not_matter(tmp_path: Path) -> None:
    samples = open_images(str(fill(tmp_path, {f"{n}.jpg": photo(n % 5) for n in range(10)})))
    (finding,) = duplicate_findings(readable_items(examine_all(samples, 0)), labeled=False)
    assert (finding.kind, finding.severity, finding.count) == ("duplicates", "warning", 5)


def test_a_broken_file_is_no_copy_of_another(tmp_path: Path) -> None:
    files = {**pets(), "train/cat/x.jpg": b"<html>", "val/dog/x.jpg": b"<html>"}
    assert set(found(diagnosed(tmp_path, files))) == {"corrupt"}


def test_one_item_of_each_is_the_first() -> None:
    items = [Item("a", 0, "train"), Item("b", 1, "train"), Item("c", 0, "val")]
    assert first_of_each(items, "split") == (items[0], items[2])
    assert first_of_each(items, "label") == (items[0], items[1])
