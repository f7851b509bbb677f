"""A model that was trained with a sigmoid loss is reported with sigmoid probabilities everywhere."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import vitral
from tests.processes import run_forked
from tests.runs.small import begin, photos
from vitral.explanation.perturbation import class_probabilities
from vitral.explanation.trace import logit_lens
from vitral.runs.train import Run

TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    home = tmp_path_factory.mktemp("sigmoid")
    photos(home / "photos")
    return begin(home, "task.loss=sigmoid")


@pytest.fixture(scope="module")
def image(run: Run) -> Path:
    return next((run.folder.path.parent / "photos/val/dark").iterdir())


def sigmoid(logits: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-logits.astype(np.float64)))


def test_the_bundle_has_the_activation_of_the_loss(run: Run) -> None:
    model, bundle = vitral.load(run.folder.path)
    assert bundle.activation == model.activation == "sigmoid"
    assert json.loads((run.folder.path / "best/config.json").read_text())["activation"] == "sigmoid"


def test_predictions_are_sigmoids_of_the_logits(run: Run, image: Path) -> None:
    predictor = vitral.Predictor(run.folder.path, engine="eager")
    pixels = predictor.bundle.preprocessing.pixels(image.read_bytes(), image.name)[None]
    expected = sigmoid(predictor.logits(pixels)[0])
    np.testing.assert_allclose(predictor.probabilities(pixels)[0], expected, atol=TOLERANCE)
    (found,) = predictor.predict(image)
    np.testing.assert_allclose(found.scores, sorted(expected, reverse=True), atol=TOLERANCE)
    shown = run_forked("predict", str(run.folder.path), str(image), "--format", "jsonl").stdout
    line = json.loads(shown.splitlines()[0])
    printed = [value for value in _floats(line) if 0 < value < 1]
    np.testing.assert_allclose(sorted(printed, reverse=True), sorted(expected, reverse=True), atol=1e-5)


def _floats(value: object) -> list[float]:
    if isinstance(value, dict):
        return [number for each in value.values() for number in _floats(each)]
    if isinstance(value, list):
        return [number for each in value for number in _floats(each)]
    return [value] if isinstance(value, float) else []


def test_evaluation_and_the_report_use_the_same_probabilities(run: Run) -> None:
    assert run.evaluation is not None
    predictions = run.evaluation.predictions
    expected = sigmoid(predictions.logits.numpy()).max(axis=1)
    np.testing.assert_allclose(predictions.confidence.numpy(), expected, atol=TOLERANCE)
    assert run.evaluation.calibration.mean_confidence == pytest.approx(expected.mean())
    (found,) = vitral.evaluate(run.folder.path, str(run.folder.path.parent / "photos"), workers=0).results
    assert found.kind == "accuracy"
    assert found.calibration.mean_confidence == pytest.approx(expected.mean(), abs=1e-5)
    targets = np.eye(2)[predictions.labels]
    probability = sigmoid(predictions.logits.numpy())
    loss = -(targets * np.log(probability) + (1 - targets) * np.log(1 - probability)).sum(axis=1).mean()
    assert found.accuracy.loss == pytest.approx(loss, rel=1e-4)
    assert found.calibration.brier == pytest.approx(((probability - targets) ** 2).sum(axis=1).mean(), rel=1e-4)


def test_explanations_use_the_same_probabilities(run: Run, image: Path) -> None:
    model, bundle = vitral.load(run.folder.path)
    pixels = torch.from_numpy(bundle.preprocessing.pixels(image.read_bytes(), image.name)).permute(2, 0, 1)
    images = bundle.preprocessing.normalize.apply(pixels[None])  # (1, C, H, W)
    with torch.no_grad():
        expected = model(images)[0].double().sigmoid()
    for target in range(2):
        assert class_probabilities(model, images, target)[0] == pytest.approx(expected[target].item(), abs=TOLERANCE)
    torch.testing.assert_close(logit_lens(model, images)[-1, 0].double(), expected, atol=1e-5, rtol=0)


def test_an_export_and_its_runner_use_the_same_probabilities(run: Run, image: Path, tmp_path: Path) -> None:
    found = vitral.export(run.folder.path, to="onnx", out=str(tmp_path / "out"))
    assert found.metadata.activation == "sigmoid"
    predictor = vitral.Predictor(tmp_path / "out")
    pixels = predictor.bundle.preprocessing.pixels(image.read_bytes(), image.name)[None]
    expected = sigmoid(predictor.logits(pixels)[0])
    np.testing.assert_allclose(predictor.probabilities(pixels)[0], expected, atol=TOLERANCE)
    command = [sys.executable, str(tmp_path / "out/run.py"), str(image)]
    line = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout.splitlines()[0])
    assert line["probability"] == pytest.approx(expected.max(), abs=0.02)  # Pillow resizes a little differently
