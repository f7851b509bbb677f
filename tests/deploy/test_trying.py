"""The runner, tried before an export gets its name."""

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.deploy.exports import album, loaded, plan
from vitral.config import Size
from vitral.data.transforms.view import CentreCrop
from vitral.deploy.engine import Bytes, Engine, Numbers
from vitral.deploy.runner import FILE, script
from vitral.deploy.targets import OnnxTarget, Plan
from vitral.deploy.trying import FILES, as_file, taken, tried
from vitral.errors import VitralError


def written(folder: Path, found: Plan) -> Engine:
    OnnxTarget().write(found, folder)
    classes = "[" + ", ".join(f'"{number}"' for number in range(10)) + "]"
    (folder / "export.json").write_text(f'{{"classes": {classes}}}', encoding="utf-8")
    (folder / FILE).write_text(script(OnnxTarget(), found), encoding="utf-8")
    return OnnxTarget().open(folder)


def png(pixels: Bytes) -> bytes:
    file = BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return file.getvalue()


@pytest.mark.parametrize("head", [True, False], ids=["classes", "features"])
def test_the_runner_of_a_sound_export_says_what_the_export_says(head: bool, tmp_path: Path) -> None:
    found = plan(loaded(view=CentreCrop(), head=head))
    told = tried(tmp_path, OnnxTarget(), found, written(tmp_path, found), album())
    assert (told.files, told.agreement) == (FILES, 1.0)
    assert told.difference < 0.1  # Pillow rounds otherwise than torch


def test_it_fills_the_batch_that_the_file_is_for(tmp_path: Path) -> None:
    found = plan(loaded(), batch=3)
    assert tried(tmp_path, OnnxTarget(), found, written(tmp_path, found), album()).agreement == 1.0


def test_a_runner_that_says_something_else_is_refused(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Reversed:
        own: Engine

        def run(self, pixels: Bytes) -> Numbers:
            return self.own.run(pixels)[:, ::-1]

    found = plan(loaded())
    with pytest.raises(VitralError, match=r"the runner answers otherwise than the export for \d+ of 16 files"):
        tried(tmp_path, OnnxTarget(), found, Reversed(written(tmp_path, found)), album())


def test_a_file_is_taken_as_it_is_if_the_runner_reads_its_kind() -> None:
    needs = loaded().bundle.preprocessing
    colour = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    assert as_file(png(colour), "a", needs) == png(colour)
    deep = as_file(png(np.full((20, 30), 65_535, dtype=np.uint16)), "deep", needs)
    assert np.array_equal(np.asarray(Image.open(BytesIO(deep))), np.full((20, 30, 3), 255))


def test_a_picture_is_taken_as_the_export_takes_it() -> None:
    data = png(np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8))
    found = loaded(view=CentreCrop())
    assert np.array_equal(taken(data, "a", plan(found)), found.bundle.preprocessing.pixels(data, "a"))
    assert taken(data, "a", plan(found, incoming="dynamic")).shape == (50, 70, 3)
    assert taken(data, "a", plan(found, incoming=Size(40, 30))).shape == (40, 30, 3)
