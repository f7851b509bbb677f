"""Every kind of image against pixels computed another way, or against the code of its refusal."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from PIL import Image

from tests.data.pictures import (
    COLUMNS,
    ORDERS,
    ROWS,
    Array,
    chunk,
    color,
    deep_png,
    encoded,
    exif,
    noise,
    npy,
    png,
    smooth,
    tiff,
)
from tests.errors import raises
from vitral.core.config import Size
from vitral.data.decoding.decode import (
    FULL_SIZE,
    apply_orientation,
    composite_alpha,
    convert_channels,
    decode,
    jpeg_scale,
    open_image,
)
from vitral.data.decoding.header import Decoding

RGB = Decoding()
SHOT = smooth()
SHARP = color()
GRAY = noise(ROWS, COLUMNS).astype(np.uint8)
BITS = noise(ROWS, COLUMNS, highest=1)
ALPHA = noise(ROWS, COLUMNS, 4, seed=1).astype(np.uint8)
GRAY_ALPHA = noise(ROWS, COLUMNS, 2, seed=2).astype(np.uint8)
DEEP = noise(ROWS, COLUMNS, highest=65_535)
DEEP_COLOR = noise(ROWS, COLUMNS, 3, highest=65_535)
DEEP_ALPHA = noise(ROWS, COLUMNS, 4, highest=65_535)
DEEP_GRAY_ALPHA = noise(ROWS, COLUMNS, 2, highest=65_535)
UNIT = np.random.default_rng(0).random((ROWS, COLUMNS), dtype=np.float32)
INK = noise(ROWS, COLUMNS, 4, seed=3).astype(np.uint8)
FRAMES = [Image.fromarray(color()[::-1]), Image.fromarray(255 - color())]


def gray(values: Array) -> Array:
    return np.stack([values] * 3, axis=-1)


def on_white(colors: Array, alpha: Array) -> Array:
    share = alpha[..., None] / 255
    return np.rint(colors * share + 255 * (1 - share))


def to_8(values: Array) -> Array:
    return np.rint(values / 257)


def from_ink(ink: Array) -> Array:
    """RGB of CMYK in which 255 is full ink."""
    return np.rint((255.0 - ink[..., :3]) * (255.0 - ink[..., 3:]) / 255)


def palette() -> tuple[Image.Image, Array]:
    """An image of 16 colors, and its indices."""
    indices = noise(ROWS, COLUMNS, highest=15).astype(np.uint8)
    image = Image.fromarray(indices)
    image.putpalette(noise(16, 3, seed=4).astype(np.uint8).tobytes())
    return image, indices


def palette_colors() -> Array:
    return noise(16, 3, seed=4)[palette()[1]]


def adobe(data: bytes) -> bytes:
    """The file, with the marker by which inverted CMYK is known."""
    assert b"Adobe" in data
    return data


def plain(data: bytes) -> bytes:
    """The same CMYK without Adobe's marker: inverted all the same, as writers leave it and viewers read it."""
    start = data.index(b"\xff\xee")
    return data[:start] + data[start + 2 + int.from_bytes(data[start + 2 : start + 4], "big") :]


SMOOTH_INK = np.dstack([SHOT, SHOT[..., :1] // 3])
P16, P16_ALPHA = palette()[0], bytes(range(0, 256, 16))
SHALLOW = noise(ROWS, COLUMNS, highest=3)
SHALLOW_ROWS = [bytes(sum(int(v) << (6 - 2 * i) for i, v in enumerate(row[j : j + 4])) for j in range(0, COLUMNS, 4))
                for row in SHALLOW]  # fmt: skip
KEY = tuple(int(value) for value in DEEP_COLOR[0, 0])


def keyed(values: Array, key: Array, colors: Array) -> Array:
    same = (values == key).all(axis=-1) if values.ndim == 3 else values == key
    return np.where(same[..., None], 255, colors)


def trns(body: bytes) -> bytes:
    return chunk(b"tRNS", body)


# Name: the file, the pixels it stands for, by how many levels a lossy format may miss them.
EXACT: dict[str, tuple[bytes, Array, int]] = {
    "jpeg": (encoded(SHOT, "JPEG", quality=95, subsampling=0), SHOT, 5),
    "jpeg-progressive": (encoded(SHOT, "JPEG", quality=95, subsampling=0, progressive=True), SHOT, 5),
    "jpeg-gray": (encoded(SHOT[..., 0], "JPEG", quality=95), gray(SHOT[..., 0]), 4),
    "jpeg-cmyk-adobe": (
        adobe(encoded(Image.fromarray(SMOOTH_INK, "CMYK"), "JPEG", quality=98)), from_ink(SMOOTH_INK), 6),
    "jpeg-cmyk-plain": (
        plain(encoded(Image.fromarray(SMOOTH_INK, "CMYK"), "JPEG", quality=98)), from_ink(SMOOTH_INK), 6),
    "webp": (encoded(SHOT, "WEBP", quality=95), SHOT, 12),
    "webp-lossless": (encoded(SHARP, "WEBP", lossless=True), SHARP, 0),
    "webp-alpha": (encoded(ALPHA, "WEBP", lossless=True, exact=True), on_white(ALPHA[..., :3], ALPHA[..., 3]), 0),
    "webp-animated": (
        encoded(SHARP, "WEBP", lossless=True, save_all=True, append_images=FRAMES, duration=50), SHARP, 0),
    "avif": (encoded(SHOT, "AVIF", quality=95), SHOT, 8),
    "bmp": (encoded(SHARP, "BMP"), SHARP, 0),
    "bmp-1-bit": (encoded(Image.fromarray(BITS.astype(bool)), "BMP"), gray(BITS * 255), 0),
    "gif": (encoded(P16, "GIF"), palette_colors(), 0),
    "gif-animated": (encoded(P16, "GIF", save_all=True, append_images=FRAMES), palette_colors(), 0),
    "gif-transparent": (
        encoded(P16, "GIF", transparency=3), keyed(palette()[1], np.array(3), palette_colors()), 0),
    "png": (encoded(SHARP, "PNG"), SHARP, 0),
    "png-gray": (encoded(GRAY, "PNG"), gray(GRAY), 0),
    "png-1-bit": (encoded(Image.fromarray(BITS.astype(bool)), "PNG"), gray(BITS * 255), 0),
    "png-la": (encoded(Image.fromarray(GRAY_ALPHA, "LA"), "PNG"),
               on_white(gray(GRAY_ALPHA[..., 0]), GRAY_ALPHA[..., 1]), 0),
    "png-rgba": (encoded(ALPHA, "PNG"), on_white(ALPHA[..., :3], ALPHA[..., 3]), 0),
    "png-palette": (encoded(P16, "PNG"), palette_colors(), 0),
    "png-palette-transparent": (
        encoded(P16, "PNG", transparency=P16_ALPHA),
        on_white(palette_colors(), np.frombuffer(P16_ALPHA, np.uint8)[palette()[1]]), 0),
    "png-gray-key": (encoded(GRAY, "PNG", transparency=int(GRAY[0, 0])), keyed(GRAY, GRAY[0, 0], gray(GRAY)), 0),
    "png-color-key": (encoded(SHARP, "PNG", transparency=tuple(map(int, SHARP[0, 0]))),
                       keyed(SHARP, SHARP[0, 0], SHARP), 0),
    "png-2-bit-key": (png(SHALLOW_ROWS, (ROWS, COLUMNS), 2, 0, trns(b"\0\x02")),
                      keyed(SHALLOW, np.array(2), gray(SHALLOW * 85)), 0),
    "png-16-gray": (deep_png(DEEP, 0), gray(to_8(DEEP)), 0),
    "png-16-gray-key": (deep_png(DEEP, 0, trns(int(DEEP[0, 0]).to_bytes(2, "big"))),
                        keyed(DEEP, DEEP[0, 0], gray(to_8(DEEP))), 0),
    "png-16-color": (deep_png(DEEP_COLOR, 2), to_8(DEEP_COLOR), 0),
    "png-16-color-key": (deep_png(DEEP_COLOR, 2, trns(b"".join(v.to_bytes(2, "big") for v in KEY))),
                          keyed(DEEP_COLOR, DEEP_COLOR[0, 0], to_8(DEEP_COLOR)), 0),
    "png-16-gray-alpha": (deep_png(DEEP_GRAY_ALPHA, 4),
                          on_white(gray(to_8(DEEP_GRAY_ALPHA[..., 0])), to_8(DEEP_GRAY_ALPHA[..., 1])), 0),
    "png-16-color-alpha": (deep_png(DEEP_ALPHA, 6),
                            on_white(to_8(DEEP_ALPHA[..., :3]), to_8(DEEP_ALPHA[..., 3])), 0),
    "tiff": (encoded(SHARP, "TIFF"), SHARP, 0),
    "tiff-pages": (encoded(SHARP, "TIFF", save_all=True, append_images=FRAMES), SHARP, 0),
    "tiff-palette": (encoded(P16, "TIFF"), palette_colors(), 0),
    "tiff-cmyk": (encoded(Image.fromarray(INK, "CMYK"), "TIFF", compression="tiff_lzw"), from_ink(INK), 1),
    "tiff-dark-is-high": (tiff(DEEP.astype(np.uint16), 0), gray(to_8(65_535 - DEEP)), 0),
    "tiff-float-dark-is-high": (tiff(UNIT, 0), gray(255 - np.rint(UNIT.astype(np.float64) * 255)), 0),
    **{
        f"tiff-{order}{'z' if packed else ''}-{kind}": (
            tiff(values.astype(dtype), photometric, order, packed, **tags), truth, slack)
        for order, packed in product(ORDERS, (False, True))
        for kind, values, dtype, photometric, tags, truth, slack in (
            ("16-gray", DEEP, np.uint16, 1, {}, gray(to_8(DEEP)), 0),
            ("16-color", DEEP_COLOR, np.uint16, 2, {}, to_8(DEEP_COLOR), 0),
            ("16-alpha", DEEP_ALPHA, np.uint16, 2, {"t338": [2]},
             on_white(to_8(DEEP_ALPHA[..., :3]), to_8(DEEP_ALPHA[..., 3])), 0),
            ("16-cmyk", DEEP_ALPHA, np.uint16, 5, {}, from_ink(to_8(DEEP_ALPHA)), 1),
            ("float", UNIT, np.float32, 1, {}, gray(np.rint(UNIT.astype(np.float64) * 255)), 0),
        )
    },
    "npy": (npy(SHARP), SHARP, 0),
    "npy-gray": (npy(GRAY), gray(GRAY), 0),
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_every_kind_of_image_gives_its_pixels(name: str) -> None:
    data, truth, slack = EXACT[name]
    pixels = decode(data, name, RGB, FULL_SIZE)
    assert pixels.dtype == np.uint8
    assert pixels.shape == (ROWS, COLUMNS, 3)
    assert pixels.flags.c_contiguous
    assert pixels.flags.writeable
    assert np.abs(pixels - truth.astype(np.int64)).max() <= slack


def turned(image: Array, orientation: int) -> Array:
    """What EXIF 2.3 says: where the stored first row and first column are to be seen."""
    rows, columns = image.shape[:2]
    places = {
        1: lambda r, c: (r, c),
        2: lambda r, c: (r, columns - 1 - c),
        3: lambda r, c: (rows - 1 - r, columns - 1 - c),
        4: lambda r, c: (rows - 1 - r, c),
        5: lambda r, c: (c, r),
        6: lambda r, c: (c, rows - 1 - r),
        7: lambda r, c: (columns - 1 - c, rows - 1 - r),
        8: lambda r, c: (columns - 1 - c, r),
    }
    seen = np.empty((columns, rows, 3) if orientation >= 5 else image.shape, dtype=image.dtype)
    for row, column in np.ndindex(rows, columns):
        seen[places[orientation](row, column)] = image[row, column]
    return seen


@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_is_turned_as_its_exif_says(orientation: int) -> None:
    exact = turned(SHARP, orientation)
    assert (apply_orientation(SHARP, orientation) == exact).all()
    for kind, options in (("PNG", {}), ("WEBP", {"lossless": True})):
        assert (decode(encoded(SHARP, kind, exif=exif(orientation), **options), kind, RGB, FULL_SIZE) == exact).all()
    for values in (SHARP, DEEP_COLOR.astype(np.uint16)):
        truth = exact if values is SHARP else turned(to_8(DEEP_COLOR).astype(np.uint8), orientation)
        assert (decode(tiff(values, 2, t274=[orientation]), "tiff", RGB, FULL_SIZE) == truth).all()
    for lossy in ("JPEG", "AVIF"):
        pixels = decode(encoded(SHOT, lossy, quality=95, exif=exif(orientation)), lossy, RGB, FULL_SIZE)
        assert np.abs(pixels - turned(SHOT, orientation).astype(np.int64)).max() <= 8


def test_alpha_is_composited_on_the_stated_background() -> None:
    ground = (10, 200, 77)
    share = ALPHA[..., 3:] / 255
    truth = np.rint(ALPHA[..., :3] * share + np.array(ground) * (1 - share))
    assert (decode(encoded(ALPHA, "PNG"), "a.png", Decoding(background=ground), FULL_SIZE) == truth).all()
    assert (composite_alpha(ALPHA, ground) == truth).all()


def test_the_part_of_a_gif_that_its_first_frame_leaves_open_shows_the_background() -> None:
    data = bytearray(encoded(P16, "GIF"))
    data[6:10] = (COLUMNS + 5).to_bytes(2, "little") + (ROWS + 3).to_bytes(2, "little")
    truth = np.full((ROWS + 3, COLUMNS + 5, 3), 255)
    truth[:ROWS, :COLUMNS] = palette_colors()
    assert (decode(bytes(data), "a.gif", RGB, FULL_SIZE) == truth).all()


def test_color_becomes_luma_and_gray_is_repeated() -> None:
    one = Decoding(channels=1)
    luma = SHARP.astype(np.float64) @ np.array([0.299, 0.587, 0.114])
    pixels = decode(encoded(SHARP, "PNG"), "a.png", one, FULL_SIZE)
    assert pixels.shape == (ROWS, COLUMNS, 1)
    assert np.abs(pixels[..., 0] - luma).max() < 0.51
    assert (decode(encoded(GRAY, "PNG"), "a.png", one, FULL_SIZE)[..., 0] == GRAY).all()
    assert (convert_channels(GRAY[..., None], 3) == gray(GRAY)).all()
    assert (decode(npy(SHARP), "a.npy", one, FULL_SIZE) == pixels).all()


@pytest.mark.parametrize(("side", "need", "scale"), [
    (224, 224, 1), (447, 224, 1), (448, 224, 2), (895, 224, 2), (896, 224, 4), (1791, 224, 4), (1792, 224, 8),
    (9000, 224, 8), (7, 1, 4), (100, 200, 1),
])  # fmt: skip
def test_a_jpeg_is_reduced_as_far_as_the_need_allows(side: int, need: int, scale: int) -> None:
    assert jpeg_scale(Size(side, side), Size(need, need), "smallest") == scale
    assert jpeg_scale(Size(side, 9000), Size(need, 1), "smallest") == scale
    assert jpeg_scale(Size(9000, side), Size(1, need), "smallest") == scale
    assert jpeg_scale(Size(side, side), FULL_SIZE, "smallest") == 1


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("scale", [1, 2, 4, 8])
@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_a_reduced_jpeg_is_the_average_of_its_blocks(mode: str, scale: int, orientation: int) -> None:
    rows, columns = 163, 242
    shot = smooth(rows, columns)
    stored = {"L": shot[..., 0], "RGB": shot, "CMYK": np.dstack([shot, shot[..., :1] // 3])}[mode]
    data = encoded(Image.fromarray(stored, mode), "JPEG", quality=98, exif=exif(orientation))
    need = Size(rows // scale, columns // scale)
    pixels = decode(data, "a.jpg", RGB, Size(*need[::-1]) if orientation == 6 else need)
    truth = from_ink(stored) if mode == "CMYK" else gray(stored) if mode == "L" else stored
    whole = truth[: need.height * scale, : need.width * scale].astype(np.float64)
    blocks = whole.reshape(need.height, scale, need.width, scale, 3).mean(axis=(1, 3))
    seen = np.rot90(pixels) if orientation == 6 else pixels
    assert seen.shape == (-(-rows // scale), -(-columns // scale), 3)
    assert np.abs(seen[: need.height, : need.width] - blocks).max() < 6


def test_a_picture_that_holds_another_size_than_it_declares_is_refused() -> None:
    picture = open_image(encoded(SHARP, "PNG"), "a.png", RGB)
    with raises("data.corrupt_image", "a.png", Size(ROWS + 1, COLUMNS), Size(ROWS, COLUMNS)):
        replace(picture, header=picture.header._replace(size=Size(ROWS + 1, COLUMNS))).pixels(FULL_SIZE)
