import sys
from pathlib import Path

import pytest

from tests.errors import raises
from tests.runs.small import begin, photos, recipe_and_samples
from vitral.core.storage import Lock
from vitral.recipes.recipe import TimeLimit
from vitral.runs import preflight
from vitral.runs.folder import RunFolder
from vitral.runs.preflight import command_line, create_run, forecast_training, reopen_run
from vitral.runs.request import RunRequest
from vitral.runs.train import resume


def test_what_is_prepared_opens_again(tmp_path: Path) -> None:
    recipe, samples = recipe_and_samples(photos(tmp_path / "photos"))
    folder = create_run(str(tmp_path / "run"), recipe, samples, [])
    assert reopen_run(folder) == (recipe, samples)
    assert folder.recipe.read_text().endswith("}\n")


def test_of_two_that_want_the_same_empty_folder_one_gets_it(tmp_path: Path) -> None:
    recipe, samples = recipe_and_samples(photos(tmp_path / "photos"))
    (tmp_path / "run").mkdir()
    with Lock(tmp_path / "run"), raises("config.run_locked", tmp_path / "run"):
        create_run(str(tmp_path / "run"), recipe, samples, [])
    assert not RunFolder(tmp_path / "run").recipe.exists()


def test_a_run_that_another_process_has_just_begun_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, samples = recipe_and_samples(photos(tmp_path / "photos"))
    folder = create_run(str(tmp_path / "run"), recipe, samples, [])
    monkeypatch.setattr(preflight, "create_folder", lambda out, data: folder)  # as if it had been empty a moment ago
    with raises("config.path_exists", tmp_path / "run", "--out"):
        create_run(str(tmp_path / "run"), recipe, samples, [])
    with Lock(tmp_path / "run"), raises("config.run_locked", tmp_path / "run"):
        create_run(str(tmp_path / "run"), recipe, samples, [])


def test_what_was_typed_is_a_command_or_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/vitral", "train", "my photos"])
    assert command_line(["'my photos'"]) == "vitral train 'my photos'"
    monkeypatch.setattr(sys, "argv", ["study.py", "7"])
    assert command_line(["'my photos'", "'epochs=3'"]) == "vitral.train('my photos', 'epochs=3')"


@pytest.mark.parametrize("name", ["recipe.json", "environment.json"])
def test_a_file_of_the_run_that_is_lost_or_broken_is_named(home: Path, name: str) -> None:
    begin(home)
    (home / "run" / name).write_text("{")
    with raises("config.bad_json", home / "run"):
        resume(str(home / "run"))
    (home / "run" / name).unlink()
    with raises("config.not_found" if name == "recipe.json" else "file.read_failed", name):
        resume(str(home / "run"))


def test_a_recipe_that_was_changed_by_hand_is_refused(home: Path) -> None:
    begin(home)
    path = home / "run/recipe.json"
    path.write_text(path.read_text().replace('"epochs": 3', '"epochs": 4'))
    with raises("config.recipe_changed", path):
        resume(str(home / "run"))


def test_a_changed_byte_in_the_record_of_a_run_is_refused(home: Path) -> None:
    begin(home)
    for name, old, new in (
        ("split.csv", b",train", b",trbin"),
        ("environment.json", b'"cores": ', b'"cores": 9'),
        ("manifest.json", b"  ", b" "),
        ("manifest.json", b'"run"', b'"pack"'),
    ):
        path = home / "run" / name
        whole = path.read_bytes()
        assert old in whole
        path.write_bytes(whole.replace(old, new, 1))
        with raises("run.record_changed", home / "run"):
            resume(str(home / "run"))
        path.write_bytes(whole)
    (home / "run/split.csv").unlink()
    with raises("run.record_changed", home / "run/split.csv"):
        resume(str(home / "run"))


def test_a_run_of_the_new_format_needs_its_manifest_and_an_older_one_has_none(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begin(home)
    (home / "run/manifest.json").unlink()
    with raises("run.record_changed", home / "run/manifest.json"):
        resume(str(home / "run"))
    path = home / "run/environment.json"
    path.write_bytes(path.read_bytes().replace(b'  "format": 2,\n', b""))
    with caplog.at_level("INFO", logger="vitral"):
        resume(str(home / "run"))
    assert "unverified" in caplog.text


def test_a_run_goes_on_from_any_directory(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    begin(home, data="photos")
    monkeypatch.chdir("/")
    assert resume(str(home / "run")).step == 12


@pytest.mark.parametrize(
    ("settings", "code", "values"),
    [
        (("batch_size=500",), "config.out_of_range", ("batch", 500, 24)),
        (("schedule.warmup=12",), "config.conflict", ("warmup", 12)),
        (("image_size=20",), "config.indivisible", ("model.image", 20)),
        (("finetune=lora", "finetune.rank=2"), "config.missing_value", ("finetune",)),
    ],
)
def test_what_cannot_run_leaves_no_folder(
    home: Path, settings: tuple[str, ...], code: str, values: tuple[object, ...]
) -> None:
    with raises(code, *values):
        begin(home, *settings)
    assert not (home / "run").exists()


def test_patience_without_images_for_validation_is_refused(tmp_path: Path) -> None:
    photos(tmp_path / "photos", {"train": 12, "test": 4})
    with raises("config.no_validation_images", "early_stopping=none"):
        begin(tmp_path, "early_stopping=patience")


def test_other_images_than_those_it_began_with_are_refused(home: Path) -> None:
    begin(home)
    extra = home / "photos/train/dark/extra.png"
    extra.write_bytes((home / "photos/train/dark/0.png").read_bytes())
    with raises("data.changed", home / "photos"):
        resume(str(home / "run"))


def test_a_file_that_cannot_be_read_is_found_before_the_run_begins(home: Path) -> None:
    (home / "photos/train/dark/0.png").write_bytes(b"not a picture")
    with raises("data.corrupt_image", home / "photos", "0.png"):
        begin(home)
    assert not (home / "run").exists()


def test_no_length_is_foretold_for_a_time_limit(home: Path) -> None:
    recipe, samples = recipe_and_samples(home / "photos")
    found = forecast_training(RunRequest(str(home / "photos"), recipe=recipe), samples)
    assert found is not None
    assert found.steps == 12
    timed = recipe.model_copy(update={"length": TimeLimit(seconds=60)})
    assert forecast_training(RunRequest(str(home / "photos"), recipe=timed), samples) is None
