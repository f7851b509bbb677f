"""What is no image, or no longer a whole one, is told by its bytes."""

import pytest
from PIL import Image

from tests.data.pictures import color, encoded, npy, smooth, tiff
from tests.errors import raises
from vitral.core.errors import DataError
from vitral.data.decoding.decode import FULL_SIZE, decode, open_image
from vitral.data.decoding.header import Decoding, recognize

HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"
STRANGE = {
    "empty": (b"", "empty"),
    "text": (b"not an image at all", "'not an image at all'"),
    "accents": ("fotografía ".encode() * 40, "'fotografía"),
    "blanks": (b"  \n\n ", "''"),
    "html": (b"\n<!DOCTYPE html><html><body>404</body></html>", "HTML"),
    "svg": (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "SVG"),
    "xml": (b'\xef\xbb\xbf<?xml version="1.0"?><svg/>', "XML"),
    "eps": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "PostScript"),
    "eps-binary": (b"\xc5\xd0\xd3\xc6" + bytes(30), "EPS"),
    "pdf": (b"%PDF-1.7\n", "PDF"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "LFS"),
    "heic": (HEIC, "'heic'"),
    "ico": (b"\0\0\1\0\1\0", "icon"),
    "ppm": (encoded(color(), "PPM"), "50 36 0a"),
    "bytes": (bytes(range(128, 160)), "80 81"),
}
WHOLE = {
    "jpeg": encoded(smooth(), "JPEG"),
    "jpeg-progressive": encoded(smooth(), "JPEG", progressive=True),
    "png": encoded(color(), "PNG"),
    "webp": encoded(smooth(), "WEBP"),
    "webp-animated": encoded(smooth(), "WEBP", save_all=True, append_images=[Image.fromarray(color())]),
    "bmp": encoded(color()[:, :19], "BMP"),  # its rows end in bytes that are no pixels
    "gif": encoded(color(), "GIF"),
    "gif-animated": encoded(color(), "GIF", save_all=True, append_images=[Image.fromarray(smooth())]),
    "tiff": encoded(color(), "TIFF"),
    "tiff-lzw": encoded(color(), "TIFF", compression="tiff_lzw"),
    "tiff-strip-last": tiff(color(), 2),
    "tiff-zip-strip-last": tiff(color(), 2, compressed=True),
    "avif": encoded(smooth(), "AVIF"),
    "npy": npy(color()),
}


@pytest.mark.parametrize("name", STRANGE)
def test_what_is_no_image_is_refused_by_name_whatever_it_is_called(name: str) -> None:
    data, found = STRANGE[name]
    for attempt in (recognize, lambda data, name: decode(data, name, Decoding(), FULL_SIZE)):
        with raises("data.unknown_format") as caught:
            attempt(data, f"{name}.jpg")
        assert found in caught.value.message
        assert caught.value.where == f"{name}.jpg"
        assert caught.value.hint


@pytest.mark.filterwarnings("ignore")  # Pillow only warns of some; outside of tests that stops nothing
@pytest.mark.parametrize("lost", ["one byte", "half", "all but 30 bytes"])
@pytest.mark.parametrize("name", WHOLE)
def test_a_truncated_file_is_refused_and_a_whole_one_is_not(name: str, lost: str) -> None:
    data = WHOLE[name]
    assert decode(data, name, Decoding(), FULL_SIZE).shape[2] == 3
    kept = {"one byte": len(data) - 1, "half": len(data) // 2, "all but 30 bytes": 30}[lost]
    with pytest.raises(DataError) as caught:
        decode(data[:kept], name, Decoding(), FULL_SIZE)
    assert caught.value.where == name
    assert caught.value.code in {"data.truncated_image", "data.corrupt_image", "data.damaged_image"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["png", "gif", "bmp", "tiff-lzw", "jpeg"])
def test_a_file_that_lost_one_byte_is_called_truncated(name: str) -> None:
    with raises("data.truncated_image", name, len(WHOLE[name]) - 1):
        decode(WHOLE[name][:-1], name, Decoding(), FULL_SIZE)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", WHOLE)
def test_damaged_bytes_give_pixels_or_a_data_error_and_never_another(name: str) -> None:
    data = WHOLE[name]
    for place in range(0, len(data), max(1, len(data) // 97)):
        for flip in (0xFF, 0x01):
            broken = bytearray(data)
            broken[place] ^= flip
            try:
                pixels = decode(bytes(broken), name, Decoding(), FULL_SIZE)
            except DataError:
                continue
            assert pixels.shape[:2] == open_image(bytes(broken), name, Decoding()).header.size
