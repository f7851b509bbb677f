"""An export, as Python asks for it."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.errors import raises
from tests.inference.album import photos as pictures
from tests.inference.exports import bundled, loaded
from tests.runs.small import begin, photos
from vitral.core.config import Size, union_members
from vitral.data.datasets.named import CLASSES, open_sample
from vitral.data.samples import Samples
from vitral.exporters.targets import Target
from vitral.runs.export import (
    TARGETS,
    export,
    export_name,
    open_verification_data,
    parse_batch_size,
    parse_image_size,
    select_images,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of its own photos."""
    home = tmp_path_factory.mktemp("run")
    photos(home / "photos")
    return begin(home).folder.path


def test_a_run_is_judged_by_its_own_images_for_validation(run: Path) -> None:
    found = export(run, out=str(run.parent / "out"))
    assert found.folder == run.parent / "out"
    assert found.messages == ()
    assert repr(found).splitlines() == [f"ExportResult({str(found.folder)!r})", *filter(None, found.lines())]
    assert found.metadata.certificate.images == f"8 validation images of {run.parent / 'photos'}"
    assert found.metadata.certificate.accuracy is not None
    assert found.metadata.classes == ("bright", "dark")
    assert len(found.metadata.weights) == 64


def test_a_bundle_of_a_run_finds_the_same_images(run: Path) -> None:
    assert open_verification_data(run / "best", loaded().bundle, "", "")[0].where == str(run.parent / "photos")
    assert open_verification_data(run, loaded().bundle, "sample", "")[0].where == "sample"


def test_a_run_whose_images_are_gone_is_judged_by_the_bundled_ones_and_says_so(run: Path) -> None:
    (run.parent / "photos").rename(run.parent / "elsewhere")
    try:
        samples, message = open_verification_data(run, loaded().bundle, "", "")
    finally:
        (run.parent / "elsewhere").rename(run.parent / "photos")
    assert samples.where == "sample"
    assert message


def test_a_bundle_alone_is_judged_by_the_bundled_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = export(bundled(tmp_path), images=20)
    assert found.folder == Path("exports/tiny-onnx")
    assert found.metadata.certificate.images == ("20 test images of sample, 20 of them repeated with mixed channels")
    (told,) = found.messages
    assert "--data" in told


def test_a_model_without_classes_is_judged_by_images_without_any(tmp_path: Path) -> None:
    pictures(tmp_path, 6)
    bundle = loaded().bundle
    with raises("data.no_labels", tmp_path):
        open_verification_data(tmp_path / "model", bundle, str(tmp_path), "")
    backbone = bundle.model_copy(update={"task": "features", "classes": ()})
    assert len(open_verification_data(tmp_path / "model", backbone, str(tmp_path), "")[0].items) == 6


def test_images_judge_or_calibrate_never_both() -> None:
    samples, bundle = open_sample(), loaded().bundle
    some = select_images(samples, bundle, 30)
    assert (len(some.verification), len(some.calibration)) == (30, 128)
    assert {item.split for item in some.verification} == {"test"}
    assert {item.split for item in some.calibration} == {"train"}
    only = replace(samples, items=samples.of("train")[:50])
    alone = select_images(only, bundle, 30)
    assert (len(alone.verification), len(alone.calibration)) == (30, 20)
    assert not {*alone.verification} & {*alone.calibration}
    tests = select_images(replace(samples, items=samples.of("test")), bundle, 30)
    assert not {*tests.verification} & {*tests.calibration}
    assert len(tests.calibration) == 128


def test_labels_go_by_the_names_of_classes_and_strange_ones_have_none() -> None:
    samples = open_sample()
    turned: Samples = replace(samples, classes=CLASSES[::-1])
    bundle = loaded().bundle
    assert select_images(turned, bundle, 10).labels == tuple(
        9 - item.label for item in select_images(turned, bundle, 10).verification
    )
    strange = replace(samples, classes=tuple(f"thing {number}" for number in range(10)))
    assert select_images(strange, bundle, 10).labels == ()


def test_words_are_understood() -> None:
    assert (parse_batch_size("dynamic"), parse_batch_size("8"), parse_batch_size(8)) == ("dynamic", 8, 8)
    assert (parse_image_size(""), parse_image_size("dynamic"), parse_image_size("480x640")) == (
        "own",
        "dynamic",
        Size(480, 640),
    )
    assert list(TARGETS) == [target.model_fields["kind"].default for target in union_members(Target)]


def test_two_models_of_different_names_have_exports_of_different_names(tmp_path: Path) -> None:
    for folder in ("photos", "photos.v2", "photos.v2/best"):
        (tmp_path / folder).mkdir()
    (tmp_path / "B_16.safetensors").touch()
    names = ("photos", "photos.v2", "photos.v2/best", "B_16.safetensors")
    assert [export_name(tmp_path / name) for name in names] == ["photos", "photos.v2", "photos.v2", "B_16"]
    assert [export_name(f"hf:owner/vit-{version}") for version in ("1.0", "1.5")] == ["vit-1.0", "vit-1.5"]


@pytest.mark.parametrize("given", ["0", "-1", "many", "1.5", 0, -1, True])
def test_a_batch_that_is_none_is_refused(given: int | str) -> None:
    with raises("config.wrong_type", "--batch-size", repr(given)):
        parse_batch_size(given)


def test_a_batch_is_a_number_in_python(tmp_path: Path) -> None:
    found = export(bundled(tmp_path), "onnx", batch_size=2, images=6, out=str(tmp_path / "out"))
    assert found.metadata.input.shape[0] == 2


def test_wrong_words_are_refused(tmp_path: Path) -> None:
    with raises("config.wrong_type", "--image-size", "'large'"):
        parse_image_size("large")
    with raises("config.unknown_name", "--to", "'onx'", "'onnx'"):
        export(tmp_path, "onx")
    with raises("config.out_of_range", "--images", 0):
        select_images(open_sample(), loaded().bundle, 0)
