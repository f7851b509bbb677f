"""Headers are read without pixels, and held to the limits."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.ImageFile import ImageFile

from tests.data.pictures import ORDERS, chunk, color, deep_png, empty_png, encoded, exif, noise, npy, png, tiff
from tests.errors import raises
from vitral.core.config import Size
from vitral.data.decoding.decode import FULL_SIZE, decode, open_image
from vitral.data.decoding.header import Decoding, Header, exif_orientation

TALL = noise(30, 20, 3).astype(np.uint8)
BOMBS: dict[str, Callable[[], bytes]] = {
    "18 KB of 144 megapixels": lambda: empty_png(12_000, 12_000),
    "400 megapixels declared": lambda: png([b"\0"], (20_000, 20_000), 8, 2),
    "webp": lambda: encoded(Image.new("RGB", (9_000, 9_000)), "WEBP", lossless=True, method=0),
    "npy of a shape": lambda: npy(color()).replace(b"(24, 20, 3), }      ", b"(9999999, 999, 3), }"),
}
MEASURE = """
import resource, sys, time
from pathlib import Path
from vitral.data.decoding.decode import FULL_SIZE, decode
from vitral.data.decoding.header import Decoding
from vitral.core.errors import DataError
data = Path(sys.argv[1]).read_bytes()
before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
try:
    decode(data, "bomb", Decoding(), FULL_SIZE)
    found = "decoded"
except DataError as error:
    found = error.code
print(time.process_time() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, found, sep="\\t")
"""


def measured(data: bytes, folder: Path) -> tuple[float, float, str]:
    """Seconds and megabytes that a process of its own needs to decode or refuse the file, and the code it gives."""
    (folder / "bomb").write_bytes(data)
    command = [sys.executable, "-c", MEASURE, str(folder / "bomb")]
    run = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    seconds, kilobytes, found = run.stdout.strip().split("\t")
    return float(seconds), int(kilobytes) / 1024, found


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_at_once_and_in_little_memory(name: str, tmp_path: Path) -> None:
    seconds, megabytes, found = measured(BOMBS[name](), tmp_path)
    assert found == ("data.truncated_image" if name == "npy of a shape" else "data.image_too_large")
    assert seconds < 0.1
    assert megabytes < 100


def test_of_a_gif_of_a_thousand_frames_only_the_first_is_read(tmp_path: Path) -> None:
    frames = [Image.fromarray(noise(16, 16, seed=seed).astype(np.uint8)) for seed in range(1000)]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert len(data) > 200_000
    seconds, megabytes, found = measured(data, tmp_path)
    assert found == "decoded"
    assert seconds < 0.1
    assert megabytes < 100


def test_a_header_is_read_without_loading_a_pixel(monkeypatch: pytest.MonkeyPatch) -> None:
    late = encoded(TALL, "PNG").replace(chunk(b"IEND", b""), chunk(b"eXIf", exif(6)[6:]) + chunk(b"IEND", b""))
    files = {kind: encoded(TALL, kind) for kind in ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "AVIF")}
    monkeypatch.setattr(ImageFile, "load", lambda image: pytest.fail("a pixel was loaded"))
    for kind, data in files.items():
        head = open_image(data, kind, Decoding()).header
        assert head == Header(head.format, Size(30, 20), "P" if kind == "GIF" else "RGB", 1)
        assert head.format == kind
    assert open_image(late, "late.png", Decoding()).header == Header("PNG", Size(20, 30), "RGB", 6)
    assert open_image(npy(noise(30, 20, 5).astype(np.uint8)), "a.npy", Decoding(channels=5)).header.mode == "uint8 x 5"
    assert open_image(deep_png(noise(30, 20, 3), 2), "a.png", Decoding()).header.mode == "RGB;16"


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_size_is_that_of_the_upright_image(orientation: int) -> None:
    upright = Size(20, 30) if orientation >= 5 else Size(30, 20)
    for kind in ("JPEG", "PNG", "WEBP", "AVIF"):
        assert open_image(encoded(TALL, kind, exif=exif(orientation)), kind, Decoding()).header[1:] == (
            upright,
            "RGB",
            orientation,
        )
    for order in ORDERS:
        assert open_image(tiff(TALL, 2, order, t274=[orientation]), "tiff", Decoding()).header.size == upright
        assert exif_orientation(exif(orientation, order)) == orientation


@pytest.mark.parametrize("block", [b"", b"Exif\0\0", b"Exif\0\0II*\0", exif(6)[:-8], exif(0), exif(9), b"x" * 40])
def test_exif_that_cannot_be_read_turns_nothing(block: bytes) -> None:
    assert exif_orientation(block) == 1


@pytest.mark.parametrize(
    ("height", "width", "code", "values"),
    [
        (1, 1, "data.image_too_small", ("1x1", 8, "shortest_side")),
        (1, 20_000, "data.image_too_small", ("1x20000", 8, "shortest_side")),
        (8, 401, "data.extreme_aspect", ("8x401", 50, "longest_aspect")),
        (401, 8, "data.extreme_aspect", ("401x8", 50, "longest_aspect")),
        (7072, 7072, "data.image_too_large", ("7072x7072", "50,013,184", "50,000,000", "--max-pixels 50013184")),
    ],
)
def test_sizes_beyond_the_limits_are_refused(height: int, width: int, code: str, values: tuple[object, ...]) -> None:
    files = [empty_png(height, width)]
    if height * width < 50_000:
        files.append(npy(np.zeros((height, width), np.uint8)))
    for data in files:
        with raises(code, "a.png", *values):
            decode(data, "a.png", Decoding(), FULL_SIZE)


def test_limits_can_be_moved() -> None:
    lenient = Decoding(shortest_side=1, longest_aspect=20_000)
    assert decode(empty_png(1, 20_000), "a.png", lenient, FULL_SIZE).shape == (1, 20_000, 3)
    assert decode(empty_png(8, 400), "a.png", Decoding(), FULL_SIZE).shape == (8, 400, 3)
    with raises("data.image_too_large", "a.png", 480, 479):
        open_image(encoded(color(), "PNG"), "a.png", Decoding(pixel_limit=479))
    for wrong in ({"channels": 0}, {"pixel_limit": 10**10}, {"background": (0, 0, 256)}, {"longest_aspect": 0.5}):
        with raises("config.out_of_range", *wrong):
            Decoding(**wrong)
    assert Decoding.from_json(Decoding(background=(1, 2, 3)).to_json()).background == (1, 2, 3)


def test_a_picture_does_not_become_five_channels() -> None:
    with raises("data.channel_mismatch", "a.png", 5, 3, ".npy"):
        open_image(encoded(color(), "PNG"), "a.png", Decoding(channels=5))
