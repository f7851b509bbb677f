"""The runner, tried before an export gets its name."""

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.errors import raises
from tests.inference.exports import export_images, loaded, plan
from vitral.core.config import Size
from vitral.data.transforms.crop import CenterCrop, EvalCropConfig, Resize
from vitral.data.transforms.resize import crop_and_resize
from vitral.exporters.runner import CHECKED_FILES, FILE, check_runner, export_input, runner_file, runner_script
from vitral.exporters.targets import ExportPlan, OnnxTarget
from vitral.inference.engines.engine import Engine, FloatArray, PixelBatch


def written(folder: Path, found: ExportPlan) -> Engine:
    OnnxTarget().write(found, folder)
    classes = "[" + ", ".join(f'"{number}"' for number in range(10)) + "]"
    (folder / "export.json").write_text(f'{{"classes": {classes}}}', encoding="utf-8")
    (folder / FILE).write_text(runner_script(OnnxTarget(), found), encoding="utf-8")
    return OnnxTarget().open(folder)


def png(pixels: PixelBatch) -> bytes:
    file = BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return file.getvalue()


@pytest.mark.parametrize("head", [True, False], ids=["classes", "features"])
def test_the_runner_of_a_sound_export_says_what_the_export_says(head: bool, tmp_path: Path) -> None:
    found = plan(loaded(view=CenterCrop(), head=head))
    told = check_runner(tmp_path, OnnxTarget(), found, written(tmp_path, found), export_images())
    assert (told.files, told.agreement) == (CHECKED_FILES, 1.0)
    assert told.difference < 0.1  # Pillow rounds otherwise than torch


def test_it_fills_the_batch_that_the_file_is_for(tmp_path: Path) -> None:
    found = plan(loaded(), batch_size=3)
    assert check_runner(tmp_path, OnnxTarget(), found, written(tmp_path, found), export_images()).agreement == 1.0


def test_a_runner_that_says_something_else_is_refused(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Reversed:
        own: Engine

        def run(self, pixels: PixelBatch) -> FloatArray:
            return self.own.run(pixels)[:, ::-1]

    found = plan(loaded())
    with raises("export.runner_disagrees", tmp_path.name, CHECKED_FILES):
        check_runner(tmp_path, OnnxTarget(), found, Reversed(written(tmp_path, found)), export_images())


@pytest.mark.parametrize(("ahead", "sound"), [(0.015, True), (0.025, False)])
def test_another_class_counts_only_where_the_export_is_sure(ahead: float, sound: bool, tmp_path: Path) -> None:
    """The runner says 2, and the export that 1 is likelier by so much."""
    chances = np.array([0.1, 0.45 + ahead / 2, 0.45 - ahead / 2], dtype=np.float32)

    @dataclass(frozen=True)
    class Unsure:
        def run(self, pixels: PixelBatch) -> FloatArray:
            return np.log(chances)[None].repeat(len(pixels), axis=0)

    (tmp_path / FILE).write_text(
        "import json, sys\nfor path in sys.argv[2:]:\n    print(json.dumps({'label': 2, 'probability': 0.46}))\n"
    )
    if sound:
        told = check_runner(tmp_path, OnnxTarget(), plan(loaded()), Unsure(), export_images())
        assert (told.files, told.agreement) == (CHECKED_FILES, 0.0)  # what is told is the truth
        assert told.difference == pytest.approx(0.46 - chances[2], abs=1e-6)
    else:
        with raises("export.runner_disagrees", tmp_path.name, f"{CHECKED_FILES} of {CHECKED_FILES}"):
            check_runner(tmp_path, OnnxTarget(), plan(loaded()), Unsure(), export_images())


def test_a_file_is_taken_as_it_is_if_the_runner_reads_its_kind() -> None:
    needs = loaded().bundle.preprocessing
    color = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    assert runner_file(png(color), "a", needs) == png(color)
    deep = runner_file(png(np.full((20, 30), 65_535, dtype=np.uint16)), "deep", needs)
    assert np.array_equal(np.asarray(Image.open(BytesIO(deep))), np.full((20, 30, 3), 255))


def test_a_picture_is_taken_as_the_export_takes_it() -> None:
    data = png(np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8))
    found = loaded(view=CenterCrop())
    assert np.array_equal(export_input(data, "a", plan(found)), found.bundle.preprocessing.pixels(data, "a"))
    assert export_input(data, "a", plan(found, input_size="dynamic")).shape == (50, 70, 3)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("view", [CenterCrop(), CenterCrop(fraction=1.0), Resize()], ids=repr)
@pytest.mark.parametrize("input_size", [Size(96, 128), Size(128, 96), Size(70, 200)], ids=str)
@pytest.mark.parametrize("size", [(300, 400), (400, 300), (120, 500), (20, 20)], ids=str)
def test_what_comes_in_at_another_size_shows_the_model_what_vitral_shows(
    view: EvalCropConfig, input_size: Size, size: tuple[int, int]
) -> None:
    y, x = np.mgrid[: size[0], : size[1]] / np.array(size).reshape(2, 1, 1)
    data = png((255 * np.stack([x, y, x * y], axis=-1)).astype(np.uint8))
    found = loaded(view=view)
    needs, came = found.bundle.preprocessing, export_input(data, "a", plan(found, input_size=input_size))
    assert came.shape == (*input_size, 3)
    shown = crop_and_resize(came, input_size, view.plan(input_size, needs.image_size))
    off = np.abs(shown.astype(int) - needs.pixels(data, "a"))
    assert off.mean() < 4  # half a pixel of the 24x32; of a squashed picture it is 12 and more


def test_a_runner_that_squashes_is_refused(tmp_path: Path) -> None:
    """The bundled images are square, and this export takes pictures that are not."""
    found = plan(loaded(view=CenterCrop()), input_size=Size(48, 256))
    engine = written(tmp_path, found)
    assert check_runner(tmp_path, OnnxTarget(), found, engine, export_images()).files == CHECKED_FILES
    squashing = found._replace(preprocessing=found.preprocessing.model_copy(update={"crop": Resize()}))
    (tmp_path / FILE).write_text(runner_script(OnnxTarget(), squashing), encoding="utf-8")
    with raises("export.runner_disagrees", tmp_path.name):
        check_runner(tmp_path, OnnxTarget(), found, engine, export_images())
