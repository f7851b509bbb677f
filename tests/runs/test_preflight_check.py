"""`check` as a whole: the forecast is the training that runs, all faults are found, the printed command works."""

import json
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import Dataset

from tests.data.archives import some, write_idx
from tests.errors import raises
from tests.runs.small import SETTINGS, begin, photos
from vitral import cli
from vitral.core.config import Size, parse_settings
from vitral.data.doctor.diagnosis import Diagnosis, next_command
from vitral.data.doctor.report import format_report
from vitral.runs.preflight import check
from vitral.runs.request import RunRequest, resolve


def codes(diagnosis: Diagnosis) -> list[str]:
    return [finding.code for finding in diagnosis.findings if finding.code]


def run_command(command: str) -> None:
    """Run a printed command line in this process."""
    program, *arguments = shlex.split(command)
    assert program == "vitral"
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    assert left.value.code == 0


def test_the_forecast_is_the_training_that_runs(home: Path) -> None:
    forecast = check(
        str(home / "photos"), settings=parse_settings(SETTINGS), recipe="small_hundreds", workers=0
    ).training
    assert forecast is not None
    run = begin(home)
    assert (forecast.recipe, forecast.steps, forecast.batch_size) == (run.recipe.name, run.steps, 5)
    assert (forecast.image_size, forecast.patch, forecast.patches) == (Size(16, 16), Size(8, 8), 4)
    assert forecast.epochs == 3
    assert forecast.image_size == run.recipe.model.image_size


def test_without_settings_the_recipe_is_the_one_that_train_chooses(tmp_path: Path) -> None:
    data = str(photos(tmp_path))
    diagnosis, chosen = check(data, workers=0), resolve(RunRequest(data))
    assert diagnosis.training is not None
    assert diagnosis.training.reason == chosen.reason
    assert diagnosis.training.image_size == chosen.recipe.model.image_size == Size(64, 64)
    assert "224" not in format_report(diagnosis)
    larger = check(data, image_size=96, workers=0)
    assert larger.training is not None
    assert (larger.training.image_size, larger.training.patches) == (Size(96, 96), 144)
    assert [finding.kind for finding in larger.findings if finding.kind == "enlarged"] == ["enlarged"]


def test_settings_that_cannot_train_are_refused_as_by_train(tmp_path: Path) -> None:
    with raises("config.out_of_range", "batch_size"):
        check(str(photos(tmp_path)), batch_size=1000, workers=0)


def test_the_last_line_trains_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    photos(tmp_path / "my photos", {"train": 12})
    diagnosis = check("my photos", settings=parse_settings(SETTINGS), recipe="small_hundreds", workers=0)
    command = next_command(diagnosis)
    assert command.startswith("vitral train 'my photos' --recipe small_hundreds --image-size 16 --set ")
    assert format_report(diagnosis).endswith(f": train with: {command}")
    run_command(command)
    recipe = json.loads((tmp_path / "runs/my photos/recipe.json").read_text())
    assert recipe["model"]["image_size"] == [16, 16]


class Pairs(Dataset[tuple[Image.Image, int]]):
    """Images and labels in memory."""

    def __init__(self, pairs: list[tuple[Image.Image, int]]) -> None:
        self.pairs = pairs

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return self.pairs[index]


def test_a_dataset_object_is_checked_too() -> None:
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)) for _ in range(24)]
    pairs = [(image, number % 2) for number, image in enumerate([*images, images[0], images[1]])]
    diagnosis = check(Pairs(pairs), workers=0)
    assert diagnosis.training is not None
    assert (diagnosis.training.image_size, diagnosis.examined) == (Size(64, 64), 26)
    assert {"leak", "duplicates"} & {finding.kind for finding in diagnosis.findings}
    assert next_command(diagnosis) in {"vitral.check(...)", "vitral.train(...)"}


def test_a_folder_whose_name_begins_with_a_dash_is_not_an_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    photos(tmp_path / "-x", {"train": 12})
    assert next_command(check("-x", workers=0)) == "vitral train ./-x"


def test_the_root_is_part_of_the_command(tmp_path: Path) -> None:
    root = tmp_path / "my data"
    root.mkdir()
    write_idx(root, some(60, 28, 28), some(20, 28, 28, seed=1))
    diagnosis = check("mnist", root=str(root), workers=0)
    assert (
        next_command(diagnosis).removeprefix("vitral check").removeprefix("vitral train") == f" mnist --root '{root}'"
    )


def test_all_faults_are_in_one_report_with_hints(tmp_path: Path) -> None:
    data = photos(tmp_path / "photos")
    (data / "train/empty").mkdir()
    shutil.copytree(data / "train/dark", data / "train/Dark")
    shutil.copytree(data / "val/dark", data / "val/only")
    shutil.copytree(data / "val/dark", data / "train/bright/nested")
    (data / "val/bright/broken.png").write_bytes(b"<html>")
    diagnosis = check(str(data), workers=0)
    assert sorted(codes(diagnosis)) == [
        *["data.ambiguous_class", "data.bad_layout", "data.class_not_in_train", "data.empty_class"]
    ]
    assert {"corrupt", "contradiction"} <= {finding.kind for finding in diagnosis.findings}
    assert all(finding.hint for finding in diagnosis.findings if finding.severity == "error")
    assert next_command(diagnosis) == f"vitral check {data}"


def test_faults_name_paths_as_the_user_wrote_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = photos(tmp_path / "photos")
    (data / "train/empty").mkdir()
    diagnosis = check("photos/", workers=0)
    assert diagnosis.findings[0].title.startswith("photos/train/empty: ")
    assert diagnosis.samples.where == "photos/"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("parts", [("",), ("train", "val")])
def test_images_without_labels_are_checked_and_train_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    for number, part in enumerate(parts):
        shutil.copytree(photos(tmp_path / f"source{number}") / "train/dark", tmp_path / "flat" / part)
    (tmp_path / "flat" / "broken.png").write_bytes(b"<html>")
    assert {finding.kind for finding in check("flat", workers=0).findings} >= {"unlabeled", "corrupt"}
    (tmp_path / "flat" / "broken.png").unlink()
    diagnosis = check("flat", epochs=1, workers=0)
    assert diagnosis.training is not None
    assert diagnosis.training.task == "masked_patches"
    assert next_command(diagnosis) == "vitral train flat --set epochs=1 --task masked_patches"
    run_command(next_command(diagnosis))


def test_an_empty_folder_is_an_error_in_the_report(tmp_path: Path) -> None:
    diagnosis = check(str(tmp_path), workers=0)
    assert (codes(diagnosis), diagnosis.training, diagnosis.count("error")) == (["data.empty"], None, 1)


def test_data_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with raises("data.not_found", tmp_path / "gone"):
        check(str(tmp_path / "gone"), workers=0)
