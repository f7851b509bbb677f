"""Exports that are opened again: the answers they were certified with, and nothing of what is damaged."""

import json
import logging
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest

import vitral
from tests.errors import raises
from tests.flips import files_of, flipped, flips
from tests.inference.exports import export_images, loaded, source
from tests.weights.damage import reseal
from vitral.core.config import Size
from vitral.core.errors import VitralError
from vitral.core.manifest import MANIFEST
from vitral.core.signature import create_key
from vitral.exporters.export import ExportRequest, export
from vitral.exporters.targets import BatchSize, OnnxTarget, OpenVinoTarget, Target, TorchTarget
from vitral.exporters.verify import ReferenceEngine
from vitral.inference.engines.engine import PixelBatch
from vitral.inference.exported import is_export, load_engine, read_export

FIXTURES = Path(__file__).parents[1] / "fixtures"
TARGETS = [OnnxTarget(), OpenVinoTarget()]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the exports of these tests are."""
    return tmp_path_factory.mktemp("exports")


def made(home: Path, target: Target, batch: BatchSize = "dynamic") -> Path:
    """An export, made when it is first asked for."""
    out = home / f"{target.kind}-{batch}"
    if not out.exists():
        export(source(), export_images(), ExportRequest(target, batch_size=batch), out)
    return out


@pytest.fixture
def copied(home: Path, tmp_path: Path) -> Path:
    """An export to be spoilt."""
    return Path(copytree(made(home, OnnxTarget()), tmp_path / "copied"))


def pixels(count: int) -> PixelBatch:
    return np.random.default_rng(count).integers(256, size=(count, 24, 32, 3), dtype=np.uint8)


@pytest.mark.parametrize("batch", ["dynamic", 1, 4])
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.kind)
@pytest.mark.sampled(2)
def test_it_answers_any_number_of_images_as_its_model_does(home: Path, target: Target, batch: BatchSize) -> None:
    folder = made(home, target, batch)
    opened = read_export(folder)
    assert is_export(folder)
    assert opened.check.status == "verified"
    assert (opened.notes.answer, opened.notes.width) == ("logits", 10)
    engine, model = load_engine(folder, opened, threads=2), ReferenceEngine(loaded())
    for count in (1, 3, 4, 9):
        np.testing.assert_allclose(engine.run(pixels(count)), model.run(pixels(count)), atol=1e-4)
    assert engine.run(pixels(0)).shape == (0, 10)


def test_a_folder_without_notes_is_none(tmp_path: Path) -> None:
    assert not is_export(tmp_path)
    assert not is_export(tmp_path / "nowhere")
    assert not is_export(Path("a" * 5000))


def noted(folder: Path, **fields: object) -> None:
    path = folder / "export.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    reseal(folder)


def test_a_file_that_is_missing_or_cut_is_named(copied: Path) -> None:
    file = copied / "model.onnx"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    with raises("weights.corrupt", file, f"{len(whole) - 1:,}", f"{len(whole):,}"):
        read_export(copied)
    file.unlink()
    with raises("weights.not_found", file):
        read_export(copied)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.kind)
def test_a_file_that_its_engine_cannot_open_is_named(home: Path, tmp_path: Path, target: Target) -> None:
    folder = Path(copytree(made(home, target), tmp_path / "copied"))
    file = folder / target.file
    file.write_bytes(bytes(file.stat().st_size))
    reseal(folder)
    with raises("weights.corrupt", file):
        load_engine(folder, read_export(folder)).run(pixels(1))


def test_notes_that_are_not_what_vitral_writes_are_refused(copied: Path) -> None:
    noted(copied, format=4, vitral="9.1")
    with raises("weights.newer_version", copied / "export.json", 4, "'vitral>=9.1'"):
        read_export(copied)
    noted(copied, format=None)
    with raises("weights.unknown_format", copied / "export.json", None):
        read_export(copied)
    noted(copied, format=3, classes=["a", "b"])
    with raises("weights.bad_config", copied / "export.json", 10, "2 classes"):
        read_export(copied)
    noted(copied, classes=3)
    with raises("weights.bad_config", copied / "export.json", "classes"):
        read_export(copied)
    (copied / "export.json").write_text("{")
    reseal(copied)
    with raises("weights.bad_config", copied / "export.json", "JSON"):
        read_export(copied)


RUNNER_ALONE = {
    "one size": (ExportRequest(OnnxTarget(), input_size=Size(40, 50)), "--image-size"),
    "any size": (ExportRequest(OnnxTarget(), input_size="dynamic"), "--image-size"),
    "torch": (ExportRequest(TorchTarget()), "run.py"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("wish", "hint"), RUNNER_ALONE.values(), ids=RUNNER_ALONE)
def test_what_is_for_the_runner_alone_is_refused(tmp_path: Path, wish: ExportRequest, hint: str) -> None:
    export(source(), export_images(), wish, tmp_path / "out")
    with raises("weights.unsupported", tmp_path / "out", hint):
        read_export(tmp_path / "out")


def assert_damage_is_noticed(folder: Path, count: int) -> None:
    for path in files_of(folder):
        for place, bit in flips(path.stat().st_size, count):
            with flipped(path, place, bit), pytest.raises(VitralError) as caught:
                load_engine(folder, read_export(folder))
            assert caught.value.code in {"weights.corrupt", "weights.not_found"}
            assert path.name == MANIFEST or caught.value.where == str(path), (path.name, place, bit)


def test_a_flipped_bit_anywhere_names_its_file(copied: Path) -> None:
    assert_damage_is_noticed(copied, 8)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.kind)
def test_a_flipped_bit_in_any_of_many_bytes_names_its_file(home: Path, tmp_path: Path, target: Target) -> None:
    assert_damage_is_noticed(Path(copytree(made(home, target), tmp_path / "copied")), 500)


def test_classes_in_another_order_are_refused(copied: Path) -> None:
    path = copied / "export.json"
    notes = json.loads(path.read_text())
    path.write_text(json.dumps(notes | {"classes": notes["classes"][::-1]}, indent=2))
    with raises("weights.corrupt", path):
        vitral.Predictor(copied)
    assert vitral.Predictor(copied, verify_files=False).bundle.classes[-1] == notes["classes"][0]


def test_a_large_model_is_hashed_before_its_first_answer_and_every_time(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitral.core.manifest.SMALL", 0)
    path = copied / "model.onnx"
    with flipped(path, path.stat().st_size // 2, 0):
        predictor = vitral.Predictor(copied)
        for _ in range(2):
            with raises("weights.corrupt", path):
                predictor.logits(pixels(1))


def test_an_export_without_its_manifest_is_refused(copied: Path) -> None:
    (copied / MANIFEST).unlink()
    with raises("weights.no_manifest", copied / MANIFEST):
        read_export(copied)


@pytest.mark.parametrize("name", ["onnx", "openvino"])
def test_an_older_export_is_unverified_but_for_its_model(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "vitral")
    folder = Path(copytree(FIXTURES / "before/exports" / name, tmp_path / name))
    vitral.Predictor(folder)
    assert caplog.text.count("unverified") == 1
    path = folder / ("model.bin" if name == "openvino" else "model.onnx")
    with flipped(path, path.stat().st_size // 2, 3), raises("weights.corrupt", path):
        load_engine(folder, read_export(folder))


def test_an_export_is_signed_as_a_bundle_is(copied: Path, tmp_path: Path) -> None:
    public = create_key(tmp_path / "me.key")
    with raises("weights.unsigned", copied):
        vitral.Predictor(copied, require_signature=public)
    vitral.sign(copied, tmp_path / "me.key")
    vitral.Predictor(copied, require_signature=public)
