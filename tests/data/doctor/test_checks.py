"""Findings about single files: one spoilt among good ones, and only what is wrong is told."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.doctor.albums import diagnosed, fill, found, names, pets, photo, scene
from tests.data.pictures import deep_png, encoded, exif, noise, npy
from tests.data.tables import table, write_table
from vitral.core.config import Size
from vitral.data.datasets.source import open_data
from vitral.data.doctor.checks import ModelInput, enlargement, file_findings, mode_name
from vitral.data.doctor.examine import examine_all

GRAY = noise(240, 320).astype(np.uint8)

# What is spoilt, how severe that is, the kind of the finding, and a word of its title or its detail.
SPOILT = {
    "truncated": ("x.jpg", photo(90)[:-300], "error", "corrupt", "JPEG"),
    "a page called jpg": ("x.jpg", b"<!doctype html><p>404", "error", "corrupt", "HTML"),
    "more channels": ("x.npy", npy(noise(240, 320, 5).astype(np.uint8)), "error", "channels", "5 channels"),
    "white": ("x.jpg", encoded(Image.new("RGB", (300, 300), "white"), "JPEG"), "warning", "blank", "1"),
    "small": ("x.png", encoded(scene(90, 50, 60), "PNG"), "warning", "enlarged", "50x60"),
    "long": ("x.png", encoded(scene(90, 240, 900), "PNG"), "warning", "aspect", "240x900"),
    "large": ("x.jpg", encoded(scene(90, 3001, 4000), "JPEG"), "note", "large", "3001x4000"),
    "misnamed": ("x.png", photo(90), "note", "misnamed", "is JPEG"),
    "gray": ("x.png", encoded(GRAY, "PNG"), "note", "modes", "gray"),
    "16-bit": ("x.png", deep_png(noise(240, 320, highest=65_535), 0), "note", "modes", "16-bit gray"),
    "CMYK": ("x.jpg", encoded(scene(90).convert("CMYK"), "JPEG"), "note", "modes", "CMYK"),
    "alpha": ("x.png", encoded(scene(90).convert("RGBA"), "PNG"), "note", "modes", "color with alpha"),
    "turned": ("x.jpg", encoded(scene(90), "JPEG", exif=exif(8)), "note", "rotated", "EXIF 8"),
}


@pytest.mark.parametrize(("name", "content", "severity", "kind", "word"), SPOILT.values(), ids=SPOILT)
def test_one_spoilt_file_is_one_finding(
    tmp_path: Path, name: str, content: bytes, severity: str, kind: str, word: str
) -> None:
    spoilt = f"train/cat/{name}"
    findings = found(diagnosed(tmp_path, {**pets(), spoilt: content}))
    assert set(findings) - {"modes"} == {kind} - {"modes"}
    finding = findings[kind]
    assert (finding.severity, finding.count, names(finding)) == (severity, 1, [(spoilt,)])
    assert word in finding.title + finding.examples[0].detail
    assert finding.hint


def test_a_sound_set_gives_no_finding(tmp_path: Path) -> None:
    assert diagnosed(tmp_path, pets()).findings == ()


def test_rows_of_tables_are_not_misnamed(tmp_path: Path) -> None:
    samples = open_data(str(write_table(tmp_path / "photos.parquet", table(range(9), [0, 1, 2] * 3))))
    findings = file_findings(list(examine_all(samples, 0)), ModelInput(Size(16, 16), Size(8, 8)))
    assert "misnamed" not in {finding.kind for finding in findings}


def test_arrays_that_all_have_five_channels_are_well(tmp_path: Path) -> None:
    files = {
        f"{part}/{n:02}.npy": npy(noise(240, 320, 5, seed=n).astype(np.uint8)) for n in range(12) for part in ("a", "b")
    }
    assert "channels" not in found(diagnosed(tmp_path, files))


def test_small_images_are_reported_with_a_size_to_train_at(tmp_path: Path) -> None:
    files = {
        f"{part}/{n:02}.png": encoded(noise(28, 28, seed=n + 50 * (part == "b")).astype(np.uint8), "PNG")
        for n in range(12)
        for part in "ab"
    }
    finding = found(diagnosed(tmp_path, files))["enlarged"]
    assert (finding.severity, finding.count) == ("note", 24)
    assert finding.hint.endswith("--image-size 32")


@pytest.mark.parametrize(("patch", "size"), [(Size(7, 7), "28"), (Size(16, 16), "32"), (Size(16, 12), "32x36")])
def test_the_suggested_size_is_a_multiple_of_the_patch(patch: Size, size: str, tmp_path: Path) -> None:
    files = {f"{part}/1.png": encoded(noise(28, 28, seed=n).astype(np.uint8), "PNG") for n, part in enumerate("ab")}
    samples = open_data(str(fill(tmp_path, files)))
    findings = file_findings(list(examine_all(samples, 0)), ModelInput(Size(224, 224), patch))
    assert next(finding for finding in findings if finding.kind == "enlarged").hint.endswith(f"--image-size {size}")


def test_without_an_input_size_nothing_is_said_of_sizes(tmp_path: Path) -> None:
    files = {f"{part}/1.png": encoded(noise(28, 28, seed=n).astype(np.uint8), "PNG") for n, part in enumerate("ab")}
    samples = open_data(str(fill(tmp_path, files)))
    assert file_findings(list(examine_all(samples, 0)), None) == []


@pytest.mark.parametrize(
    ("size", "times"), [(Size(224, 224), 1), (Size(112, 224), 2), (Size(224, 56), 4), (Size(448, 448), 0.5)]
)
def test_enlargement_is_of_the_side_that_grows_most(size: Size, times: float) -> None:
    assert enlargement(size, Size(224, 224)) == times


@pytest.mark.parametrize(
    ("mode", "name"),
    [
        ("RGB", "color"),
        ("I;16B", "16-bit gray"),
        ("uint8 x 3", "color"),
        ("float32 x 1", "gray"),
        ("uint8 x 5", "5 channels"),
    ],
)
def test_modes_have_names_for_readers(mode: str, name: str) -> None:
    assert mode_name(mode) == name


def test_gray_and_color_arrays_go_together(tmp_path: Path) -> None:
    arrays = {f"train/cat/{n}.npy": npy(noise(240, 320, n).astype(np.uint8)) for n in (1, 3)}
    assert "channels" not in found(diagnosed(tmp_path, {**pets(), **arrays}))


def test_of_two_modes_that_are_as_many_the_first_is_the_usual_one(tmp_path: Path) -> None:
    modes = ("L", "RGB", "RGBA", "P", "1")
    files = {f"train/{'ab'[n > 2]}/{n}.png": encoded(scene(n).convert(mode), "PNG") for n, mode in enumerate(modes)}
    finding = found(diagnosed(tmp_path, {**files, "val/a/x.png": encoded(scene(9).convert("CMYK"), "TIFF")}))["modes"]
    assert re.findall("gray|color|palette|1-bit|CMYK", finding.title)[0] == "gray"
