"""The page: whole, safe, small, and true to its pictures."""

import base64
import re
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.doctor.albums import diagnosed, fill, pets, photo, scene
from tests.data.pictures import encoded, noise, npy
from vitral.data.doctor.page import MOST_BYTES, MOST_EXAMPLES, page, thumbnail, write_page
from vitral.data.samples import Item, Samples
from vitral.data.sources.files import Files
from vitral.errors import DataError

# Tags that HTML leaves open.
VOID = {"meta", "img", "br"}


class Reader(HTMLParser):
    """What is on a page; a tag that is not closed in its turn is an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def images(self) -> list[dict[str, str]]:
        return [attributes for tag, attributes in self.tags if tag == "img"]


def test_a_leak_is_shown_side_by_side(tmp_path: Path) -> None:
    read = Reader(page(diagnosed(tmp_path, {**pets(), "val/cat/x.jpg": photo(0)})))
    assert "1 file is in two splits" in read.text
    first, second = read.images()
    assert first["alt"] == "train/cat/00.jpg, labelled cat, in train"
    assert second["alt"] == "val/cat/x.jpg, labelled cat, in val"
    assert first["src"] == second["src"]


def test_a_corrupt_file_is_told_without_a_picture(tmp_path: Path) -> None:
    read = Reader(page(diagnosed(tmp_path, {**pets(), "val/cat/x.jpg": b"<html>"})))
    assert "val/cat/x.jpg: expected an image, found an HTML page" in read.text
    assert read.images() == []


def test_a_page_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    text = page(diagnosed(tmp_path, {**pets(), "val/cat/x.jpg": photo(0)}))
    assert not re.search(r"https?://|<script|<link|@import|url\(", text)
    assert text.isascii() or 'charset="utf-8"' in text


ODD = '<b>"x"&\'\n\u202e'


def test_names_cannot_become_part_of_the_page(tmp_path: Path) -> None:
    files = {**pets(), f"val/cat/{ODD}.jpg": photo(0), f"train/{ODD}/1.jpg": photo(50), "val/cat/\udcff.jpg": b"no"}
    text = page(diagnosed(tmp_path, files))
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
    text = page(diagnosed(tmp_path, files))
    assert MOST_BYTES / 2 < len(text.encode()) < 3_000_000
    assert len(Reader(text).images()) <= 3 * MOST_EXAMPLES * 4
    assert "not shown" in text
    assert "and 8 more: vitral check --json lists them all" in Reader(text).text


def shown(folder: Path, content: bytes) -> Image.Image:
    fill(folder, {"it": content})
    item = Item("it", 0, "train")
    address = thumbnail(Samples("", ("a", "b"), (item,), Files(str(folder))), item)
    kind, _, data = address.removeprefix("data:image/").partition(";base64,")
    image = Image.open(BytesIO(base64.b64decode(data)))
    assert image.format == kind.upper()
    return image


def test_a_thumbnail_is_the_picture_made_small(tmp_path: Path) -> None:
    image = shown(tmp_path, photo(3))
    assert image.size == (128, 96)
    truth = np.asarray(scene(3).resize((128, 96), Image.Resampling.BICUBIC)).astype(int)
    assert np.abs(np.asarray(image) - truth).mean() < 6


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_a_small_picture_of_any_channels_keeps_its_pixels(tmp_path: Path, channels: int) -> None:
    pixels = noise(28, 20, channels).astype(np.uint8)
    truth = pixels if channels == 3 else pixels.mean(axis=2, keepdims=True).astype(np.uint8).repeat(3, axis=2)
    assert np.array_equal(np.asarray(shown(tmp_path, npy(pixels))), truth)


def test_a_set_of_which_nothing_decodes_has_a_page(tmp_path: Path) -> None:
    text = page(diagnosed(tmp_path, {"a/1.jpg": b"no", "a/2.jpg": b"no", "b/1.jpg": b"no", "b/2.jpg": b"no"}))
    assert "4 files cannot be used" in Reader(text).text


def test_writing_leaves_one_whole_file(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path / "pets", pets())
    path = tmp_path / "page.html"
    path.write_text("the one before")
    write_page(path, diagnosis)
    assert path.read_text(encoding="utf-8") == page(diagnosis)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["page.html", "pets"]


@pytest.mark.parametrize("name", ["nowhere/page.html", "folder"])
def test_a_page_that_cannot_be_written_is_told(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    diagnosis = diagnosed(tmp_path / "pets", pets())
    with pytest.raises(DataError, match="cannot be written") as caught:
        write_page(tmp_path / name, diagnosis)
    assert caught.value.where == str(tmp_path / name)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["folder", "pets"]
