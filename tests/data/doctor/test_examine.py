"""One file: what is told of it, against values computed here."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.doctor.albums import fill, photo, scene
from tests.data.pictures import deep_png, encoded, exif, noise, npy, smooth
from vitral.core.config import Size
from vitral.data.datasets.files import FileStore
from vitral.data.decoding.header import Decoding, Header
from vitral.data.doctor.examine import ExamResult, ImageInfo, Unreadable, examine
from vitral.data.samples import Item


def exam_of(folder: Path, content: bytes) -> ExamResult:
    fill(folder, {"it": content})
    return examine(FileStore(str(folder)), Item("it", 0, "train"))


def sound(folder: Path, content: bytes) -> ImageInfo:
    result = exam_of(folder, content)
    assert isinstance(result, ImageInfo)
    return result


GRAY = noise(40, 30).astype(np.uint8)


@pytest.mark.parametrize(
    ("content", "header"),
    [
        (photo(0), Header("JPEG", Size(240, 320), "RGB", 1)),
        (encoded(scene(0), "JPEG", exif=exif(6)), Header("JPEG", Size(320, 240), "RGB", 6)),
        (encoded(GRAY, "PNG"), Header("PNG", Size(40, 30), "L", 1)),
        (deep_png(noise(40, 30, highest=65_535), color=0), Header("PNG", Size(40, 30), "I;16", 1)),
        (npy(GRAY), Header("NPY", Size(40, 30), "uint8 x 1", 1)),
        (npy(noise(40, 30, 5).astype(np.uint8)), Header("NPY", Size(40, 30), "uint8 x 5", 1)),
    ],
)
def test_a_sound_file_is_described(tmp_path: Path, content: bytes, header: Header) -> None:
    result = sound(tmp_path, content)
    assert result.header == header
    assert result.digest == hashlib.blake2b(content, digest_size=16).digest()
    assert len(result.thumbnail) == 16 * 16 * 3


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (photo(0)[:-200], "data.truncated_image"),
        (photo(0)[:700], "data.truncated_image"),
        (encoded(GRAY, "PNG")[:-20], "data.truncated_image"),
        (npy(GRAY)[:-1], "data.truncated_image"),
        (b"<html>404</html>", "data.unknown_format"),
        (b"", "data.unknown_format"),
        (encoded(scene(0, height=4), "PNG"), "data.image_too_small"),
    ],
)
def test_a_file_that_does_not_decode_is_an_answer(tmp_path: Path, content: bytes, code: str) -> None:
    result = exam_of(tmp_path, content)
    assert isinstance(result, Unreadable)
    assert result.code == code
    assert result.message
    assert result.hint


def test_a_file_that_vanished_is_an_answer(tmp_path: Path) -> None:
    result = examine(FileStore(str(tmp_path)), Item("gone.jpg", 0, "train"))
    assert isinstance(result, Unreadable)
    assert result.code == "data.unreadable"


def test_a_sketch_is_the_picture_averaged(tmp_path: Path) -> None:
    image = np.zeros((64, 64, 3), dtype=np.uint8)
    image[:, 32:] = (200, 100, 50)
    thumbnail = np.frombuffer(sound(tmp_path, encoded(image, "PNG")).thumbnail, dtype=np.uint8).reshape(16, 16, 3)
    assert (thumbnail[:, :7] == 0).all()
    assert (thumbnail[:, 9:] == (200, 100, 50)).all()


@pytest.mark.parametrize("levels", [0, 1, 90])
def test_the_spread_is_from_the_darkest_to_the_brightest(tmp_path: Path, levels: int) -> None:
    image = np.full((40, 40, 3), 100, dtype=np.uint8)
    image[5, 5, 2] += levels
    assert sound(tmp_path, encoded(image, "PNG")).contrast == levels


def test_a_png_copy_of_a_jpeg_has_nearly_the_same_sketch(tmp_path: Path) -> None:
    jpeg = photo(3)
    (tmp_path / "a.jpg").write_bytes(jpeg)
    with Image.open(tmp_path / "a.jpg") as image:
        png = encoded(image, "PNG")
    one, other = (np.frombuffer(sound(tmp_path, data).thumbnail, dtype=np.uint8).astype(int) for data in (jpeg, png))
    assert np.abs(one - other).mean() < 3


def test_the_scale_of_a_training_does_not_slow_the_examination_down(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(encoded(smooth(600, 800), "JPEG"))
    item, store = Item("a.jpg", 0, "train"), FileStore(str(tmp_path))
    least, whole = (examine(store, item, Decoding(jpeg_scale=scale)) for scale in ("smallest", "full"))
    assert isinstance(least, ImageInfo)
    assert least == whole
