"""Exports: whole folders, run again as strangers would, and none where something is wrong."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.core.test_storage_folders import left_behind
from tests.errors import raises
from tests.exporters.test_verify import swapped_channels, transposed_weight, wrong_mean
from tests.inference.exports import export_images, loaded, source, sure
from vitral.core.config import Size, union_members
from vitral.core.manifest import describe_files, read_manifest
from vitral.data.transforms.crop import CenterCrop, Resize
from vitral.exporters import export as module
from vitral.exporters import quantize
from vitral.exporters import targets as targets_module
from vitral.exporters.export import ExportRequest, ExportSource, export
from vitral.exporters.runner import run_script
from vitral.exporters.targets import OnnxTarget, OpenVinoTarget, Target, TorchTarget
from vitral.exporters.verify import ReferenceEngine
from vitral.inference.engines.engine import FloatArray, PixelBatch
from vitral.inference.engines.onnxruntime import WholeBatchEngine
from vitral.inference.exported import RESIZE_IN_GRAPH, RESIZE_IN_GRAPH_FIXED, RESIZE_IN_RUNNER, Export
from vitral.inference.graph.graph import Graph
from vitral.weights.load import LoadedModel

FILES = {"onnx": {"model.onnx"}, "openvino": {"model.xml", "model.bin"}, "torch": {"model.pt2"}}
BESIDE = {"run.py", "export.json", "manifest.json", "README.md"}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target", [target() for target in union_members(Target)], ids=lambda target: target.kind)
def test_the_folder_holds_the_model_the_runner_and_the_notes(target: Target, tmp_path: Path) -> None:
    out = tmp_path / target.kind
    notes = export(source(view=CenterCrop()), export_images(), ExportRequest(target), out)
    assert {path.name for path in out.iterdir()} == {*FILES[target.kind], *BESIDE}
    assert Export.from_json((out / "export.json").read_bytes()) == notes
    covered = {each.name for each in read_manifest(out).files}
    assert covered == {*FILES[target.kind], "run.py", "export.json"}
    assert {each.name: each for each in describe_files(out)}.items() >= {
        each.name: each for each in notes.files
    }.items()
    assert (notes.kind, notes.precision, notes.quantization) == (target.kind, "float32", None)
    assert notes.opset == (None if target.kind == "torch" else 20)
    assert (notes.input.name, notes.input.shape) == ("pixels", ("batch", 24, 32, 3))
    assert (notes.output.name, notes.output.shape) == ("logits", ("batch", 10))
    assert notes.classes == source().loaded.bundle.classes
    assert notes.preprocessing == source(view=CenterCrop()).loaded.bundle.preprocessing
    assert notes.resizing == RESIZE_IN_RUNNER
    assert notes.certificate.agreement == 1.0
    assert notes.certificate.difference <= 1e-4
    assert notes.runner is not None
    assert notes.runner.agreement == 1.0
    assert sorted(path.name for path in tmp_path.iterdir()) == [target.kind]  # no draft is left


@pytest.mark.parametrize(
    ("target", "input_size", "batch"),
    [(OnnxTarget(), "dynamic", "dynamic"), (OpenVinoTarget(), Size(50, 37), 4)],
    ids=["onnx", "openvino"],
)
def test_pictures_of_other_sizes_are_resized_in_the_graph(
    target: Target, input_size: Size | str, batch: int | str, tmp_path: Path
) -> None:
    wanted = ExportRequest(target, "float32", batch, input_size)  # type: ignore[arg-type]
    notes = export(source(view=CenterCrop()), export_images(), wanted, tmp_path / "out")
    assert notes.resizing == (RESIZE_IN_GRAPH if input_size == "dynamic" else RESIZE_IN_GRAPH_FIXED)
    sides = ("height", "width") if input_size == "dynamic" else input_size
    assert notes.input.shape == ("batch" if batch == "dynamic" else batch, *sides, 3)
    assert notes.certificate.difference <= 1e-4


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", [OnnxTarget(), OpenVinoTarget()], ids=lambda target: target.kind)
def test_int8_tells_how_it_came_to_be(target: Target, tmp_path: Path) -> None:
    found = loaded(channels=1)
    notes = export(ExportSource(found, ""), sure(found), ExportRequest(target, "int8"), tmp_path / "out")
    assert notes.precision == "int8"
    assert notes.quantization is not None
    assert notes.quantization.layers == 10
    assert (notes.certificate.agreement or 0) >= 0.99
    assert notes.certificate.bound == "int8: the same top-1 for 99%, at most 0.5 points of accuracy lost"
    plain = export(ExportSource(found, ""), sure(found), ExportRequest(target), tmp_path / "plain")
    size, plain_size = (sum(file.bytes for file in each.files if file.name != "model.xml") for each in (notes, plain))
    assert size < plain_size


@pytest.mark.parametrize("broken", [wrong_mean, swapped_channels, transposed_weight])
def test_a_broken_export_is_refused_and_leaves_nothing(
    broken: Callable[[LoadedModel], Graph], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "build_graph", lambda found, answer: broken(found))
    with raises("export.disagrees") as caught:
        export(source(), export_images(), ExportRequest(OnnxTarget()), tmp_path / "out")
    assert caught.value.exit_code == 1
    assert list(tmp_path.iterdir()) == []


def test_int8_that_does_not_hold_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = quantize.measure_ranges

    def measure_too_little(*given: Any) -> quantize.Ranges:
        return {name: (low / 1000, high / 1000) for name, (low, high) in measure(*given).items()}

    monkeypatch.setattr(quantize, "measure_ranges", measure_too_little)
    with raises("export.int8_inaccurate") as caught:
        export(source(), export_images(), ExportRequest(OpenVinoTarget(), "int8"), tmp_path / "out")
    assert caught.value.exit_code == 1
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_export_left_is_gone_after_the_next(tmp_path: Path) -> None:
    left_behind(tmp_path / "out")
    export(source(), export_images(), ExportRequest(OnnxTarget()), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_int8_on_trial_is_held_to_what_the_file_is_held_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that holds in large batches alone is a trial that fails, and no fault of the export."""

    @dataclass(frozen=True)
    class Fickle(WholeBatchEngine):
        def run(self, pixels: PixelBatch) -> FloatArray:
            answers = super().run(pixels)
            return answers[:, ::-1] if len(pixels) == 1 else answers

    monkeypatch.setattr(targets_module, "WholeBatchEngine", Fickle)
    found = loaded(channels=1)
    with raises("export.int8_inaccurate", "int8", "%"):
        export(ExportSource(found, ""), sure(found), ExportRequest(OnnxTarget(), "int8"), tmp_path / "out")


def test_what_is_there_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with raises("config.path_exists", tmp_path / "out"):
        export(source(), export_images(), ExportRequest(OnnxTarget()), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("found", "wanted", "code", "values"),
    [
        (source(), ExportRequest(TorchTarget(), "int8"), "config.conflict", ["--int8"]),
        (source(head=False), ExportRequest(OnnxTarget(), "int8"), "config.unsupported", ["--int8"]),
        (source(channels=2), ExportRequest(OnnxTarget()), "config.unsupported", ["model.channels", 2]),
        (source(), ExportRequest(OpenVinoTarget(), input_size="dynamic"), "config.conflict", ["--image-size"]),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(
    found: ExportSource, wanted: ExportRequest, code: str, values: list[object], tmp_path: Path
) -> None:
    with raises(code, *values):
        export(found, export_images(), wanted, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_int8_needs_images_that_do_not_judge(tmp_path: Path) -> None:
    with raises("data.too_few", "--images"):
        export(
            source(), export_images()._replace(calibration=()), ExportRequest(OnnxTarget(), "int8"), tmp_path / "out"
        )


def test_features_are_exported_where_there_is_no_head(tmp_path: Path) -> None:
    notes = export(source(head=False), export_images(), ExportRequest(OnnxTarget()), tmp_path / "out")
    assert (notes.task, notes.classes) == ("features", ())
    assert (notes.output.name, notes.output.shape) == ("features", ("batch", 32))
    assert (notes.certificate.agreement, notes.certificate.accuracy) == (None, None)


@pytest.mark.parametrize("target", [OnnxTarget(), OpenVinoTarget()], ids=lambda target: target.kind)
def test_the_runner_alone_gives_the_model_s_own_answers(target: Target, tmp_path: Path) -> None:
    """Files of the model's own size need no resizing, so the answers are the same to the last digit printed."""
    found = source(view=Resize())
    out = tmp_path / "out"
    export(found, export_images(), ExportRequest(target), out)
    pixels = np.random.default_rng(0).integers(0, 256, (4, 24, 32, 3), dtype=np.uint8)
    paths = [tmp_path / f"{number}.png" for number in range(len(pixels))]
    for path, each in zip(paths, pixels, strict=True):
        Image.fromarray(each).save(path)
    answers = ReferenceEngine(found.loaded).run(pixels)  # (B, K)
    chances = torch.from_numpy(answers).softmax(dim=1).numpy()
    for path, said, answer in zip(paths, run_script(out, target, paths), chances, strict=True):
        assert said["image"] == str(path)
        assert said["label"] == answer.argmax()
        assert said["class"] == found.loaded.bundle.classes[answer.argmax()]
        assert said["probability"] == pytest.approx(answer.max(), abs=2e-6)


def test_the_readme_and_the_notes_say_where_resizing_is_done(tmp_path: Path) -> None:
    export(source(), export_images(), ExportRequest(OnnxTarget()), tmp_path / "out")
    text = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "python run.py IMAGE..." in text
    assert RESIZE_IN_RUNNER in text
    assert json.loads((tmp_path / "out" / "export.json").read_text(encoding="utf-8"))["resizing"] == RESIZE_IN_RUNNER
