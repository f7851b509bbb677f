"""An export, as Python asks for it."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.errors import raises
from tests.inference.album import photos as pictures
from tests.inference.exports import bundled, loaded
from tests.runs.small import begin, photos
from vitral.core.config import Size, members
from vitral.data.datasets.named import CLASSES, open_sample
from vitral.data.samples import Samples
from vitral.exporters.targets import Target
from vitral.runs.export import KINDS, album_of, batch_of, export, incoming_of, judges_of, name_of


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of its own photos."""
    home = tmp_path_factory.mktemp("run")
    photos(home / "photos")
    return begin(home).folder.path


def test_a_run_is_judged_by_its_own_images_for_validation(run: Path) -> None:
    found = export(run, out=str(run.parent / "out"))
    assert found.folder == run.parent / "out"
    assert found.told == ()
    assert found.notes.certificate.images == f"8 images for validation of {run.parent / 'photos'}"
    assert found.notes.certificate.accuracy is not None
    assert found.notes.classes == ("bright", "dark")
    assert len(found.notes.weights) == 64


def test_a_bundle_of_a_run_finds_the_same_images(run: Path) -> None:
    assert judges_of(run / "best", loaded().bundle, "", "").samples.where == str(run.parent / "photos")
    assert judges_of(run, loaded().bundle, "sample", "").samples.where == "sample"


def test_a_run_whose_images_are_gone_is_judged_by_the_bundled_ones_and_says_so(run: Path) -> None:
    (run.parent / "photos").rename(run.parent / "elsewhere")
    try:
        found = judges_of(run, loaded().bundle, "", "")
    finally:
        (run.parent / "elsewhere").rename(run.parent / "photos")
    assert found.samples.where == "sample"
    assert len(found.told) == 1


def test_a_bundle_alone_is_judged_by_the_bundled_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = export(bundled(tmp_path), images=20)
    assert found.folder == Path("exports/tiny-onnx")
    assert found.notes.certificate.images == ("20 images for testing of sample, 20 of them once more in mixed colors")
    (told,) = found.told
    assert "--data" in told


def test_a_model_without_classes_is_judged_by_images_without_any(tmp_path: Path) -> None:
    pictures(tmp_path, 6)
    bundle = loaded().bundle
    with raises("data.no_labels", tmp_path):
        judges_of(tmp_path / "model", bundle, str(tmp_path), "")
    backbone = bundle.model_copy(update={"task": "features", "classes": ()})
    assert len(judges_of(tmp_path / "model", backbone, str(tmp_path), "").samples.items) == 6


def test_images_judge_or_calibrate_never_both() -> None:
    samples, bundle = open_sample(), loaded().bundle
    some = album_of(samples, bundle, 30)
    assert (len(some.judging), len(some.calibrating)) == (30, 128)
    assert {item.split for item in some.judging} == {"test"}
    assert {item.split for item in some.calibrating} == {"train"}
    only = replace(samples, items=samples.of("train")[:50])
    alone = album_of(only, bundle, 30)
    assert (len(alone.judging), len(alone.calibrating)) == (30, 20)
    assert not {*alone.judging} & {*alone.calibrating}
    tests = album_of(replace(samples, items=samples.of("test")), bundle, 30)
    assert not {*tests.judging} & {*tests.calibrating}
    assert len(tests.calibrating) == 128


def test_labels_go_by_the_names_of_classes_and_strange_ones_have_none() -> None:
    samples = open_sample()
    turned: Samples = replace(samples, classes=CLASSES[::-1])
    bundle = loaded().bundle
    assert album_of(turned, bundle, 10).labels == tuple(9 - item.label for item in album_of(turned, bundle, 10).judging)
    strange = replace(samples, classes=tuple(f"thing {number}" for number in range(10)))
    assert album_of(strange, bundle, 10).labels == ()


def test_words_are_understood() -> None:
    assert (batch_of("dynamic"), batch_of("8"), batch_of(8)) == ("dynamic", 8, 8)
    assert (incoming_of(""), incoming_of("dynamic"), incoming_of("480x640")) == ("own", "dynamic", Size(480, 640))
    assert list(KINDS) == [target.model_fields["kind"].default for target in members(Target)]


def test_two_models_of_different_names_have_exports_of_different_names(tmp_path: Path) -> None:
    for folder in ("photos", "photos.v2", "photos.v2/best"):
        (tmp_path / folder).mkdir()
    (tmp_path / "B_16.safetensors").touch()
    names = ("photos", "photos.v2", "photos.v2/best", "B_16.safetensors")
    assert [name_of(tmp_path / name) for name in names] == ["photos", "photos.v2", "photos.v2", "B_16"]
    assert [name_of(f"hf:owner/vit-{version}") for version in ("1.0", "1.5")] == ["vit-1.0", "vit-1.5"]


@pytest.mark.parametrize("given", ["0", "-1", "many", "1.5", 0, -1, True])
def test_a_batch_that_is_none_is_refused(given: int | str) -> None:
    with raises("config.wrong_type", "--batch-size", repr(given)):
        batch_of(given)


def test_a_batch_is_a_number_in_python(tmp_path: Path) -> None:
    found = export(bundled(tmp_path), "torch", batch_size=2, images=6, out=str(tmp_path / "out"))
    assert found.notes.input.shape[0] == 2


def test_wrong_words_are_refused(tmp_path: Path) -> None:
    with raises("config.wrong_type", "--image-size", "'large'"):
        incoming_of("large")
    with raises("config.unknown_name", "--to", "'onx'", "'onnx'"):
        export(tmp_path, "onx")
    with raises("config.out_of_range", "--images", 0):
        album_of(open_sample(), loaded().bundle, 0)
