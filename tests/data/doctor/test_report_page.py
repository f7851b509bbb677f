"""The page: whole, safe, small, and true to its pictures."""

import re
from pathlib import Path

import numpy as np

from tests.data.doctor.albums import diagnosed, pets, photo
from tests.data.pictures import encoded
from tests.data.reader import Reader
from vitral.data.doctor.report import MAX_BYTES, MAX_EXAMPLES, render_page, write_page


def test_a_leak_is_shown_side_by_side(tmp_path: Path) -> None:
    read = Reader(render_page(diagnosed(tmp_path, {**pets(), "val/cat/x.jpg": photo(0)})))
    first, second = read.images()
    assert first["alt"] == "train/cat/00.jpg, labeled cat, in train"
    assert second["alt"] == "val/cat/x.jpg, labeled cat, in val"
    assert first["src"] == second["src"]


def test_a_corrupt_file_is_told_without_a_picture(tmp_path: Path) -> None:
    read = Reader(render_page(diagnosed(tmp_path, {**pets(), "val/cat/x.jpg": b"<html>"})))
    assert re.search("val/cat/x.jpg: .*HTML", read.text)
    assert read.images() == []


def test_a_page_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    text = render_page(diagnosed(tmp_path, {**pets(), "val/cat/x.jpg": photo(0)}))
    assert not re.search(r"https?://|<script|<link|@import|url\(", text)
    assert text.isascii() or 'charset="utf-8"' in text


ODD = '<b>"x"&\'\n\u202e'


def test_names_cannot_become_part_of_the_page(tmp_path: Path) -> None:
    files = {**pets(), f"val/cat/{ODD}.jpg": photo(0), f"train/{ODD}/1.jpg": photo(50), "val/cat/\udcff.jpg": b"no"}
    text = render_page(diagnosed(tmp_path, files))
    text.encode()  # no broken unicode
    read = Reader(text)
    assert not any(tag == "b" and attributes for tag, attributes in read.tags)
    assert any(image["alt"].startswith('val/cat/<b>"x"&\'\\n\\u202e.jpg, ') for image in read.images())
    assert "val/cat/\\udcff.jpg" in read.text


def test_a_hundred_findings_stay_small(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    noisy = [encoded(rng.integers(0, 256, (127, 127, 3)).astype(np.uint8), "PNG") for _ in range(20)]
    files = {
        f"{split}/{pet}/{n}.png": noisy[n] for split in ("train", "val") for pet in ("cat", "dog") for n in range(20)
    }
    text = render_page(diagnosed(tmp_path, files))
    assert MAX_BYTES / 2 < len(text.encode()) < 3_000_000
    assert len(Reader(text).images()) <= 3 * MAX_EXAMPLES * 4
    assert re.search(r"\b8\b.*vitral check --json", Reader(text).text)


def test_a_set_of_which_nothing_decodes_has_a_page(tmp_path: Path) -> None:
    text = render_page(diagnosed(tmp_path, {"a/1.jpg": b"no", "a/2.jpg": b"no", "b/1.jpg": b"no", "b/2.jpg": b"no"}))
    assert [f"{place}.jpg" in Reader(text).text for place in ("a/1", "a/2", "b/1", "b/2")] == [True] * 4


def test_writing_leaves_one_whole_file(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path / "pets", pets())
    path = tmp_path / "page.html"
    path.write_text("the one before")
    write_page(path, diagnosis)
    assert path.read_text(encoding="utf-8") == render_page(diagnosis)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["page.html", "pets"]
