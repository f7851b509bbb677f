"""A bundle with a fitted temperature: a new folder, and the same scores wherever it is used."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import softmax

import vitral
from tests.errors import raises
from tests.evaluation.subjects import CLASSES, striped_model, stripes
from vitral.core.errors import WeightsError
from vitral.data.samples import Samples
from vitral.evaluation.calibration import CalibrationResult
from vitral.runs.evaluate import evaluate
from vitral.runs.request import RunRequest, resolve
from vitral.weights.bundle import write_bundle


def with_val() -> Samples:
    plain = stripes()
    items = tuple(item._replace(split="val") if item.split == "train" else item for item in plain.items)
    return replace(plain, items=items)


@pytest.fixture
def bundles(tmp_path: Path) -> tuple[Path, Path, float]:
    """A bundle, its calibrated copy, and the temperature."""
    model, bundle = striped_model(seed=2)
    before, after = tmp_path / "before", tmp_path / "new" / "after"
    write_bundle(before, bundle, model.state_dict(), "a card")
    files = {path.name: path.read_bytes() for path in before.iterdir()}
    found = evaluate(before, with_val(), with_="calibration", calibrated=str(after)).results[0]
    assert {path.name: path.read_bytes() for path in before.iterdir()} == files
    assert isinstance(found, CalibrationResult)
    assert found.temperature is not None
    return before, after, found.temperature


def test_every_engine_and_model_divides_by_the_temperature(bundles: tuple[Path, Path, float]) -> None:
    before, after, temperature = bundles
    pixels = np.random.default_rng(0).integers(0, 256, (5, 16, 16, 3), dtype=np.uint8)
    logits = vitral.Predictor(before, engine="eager").logits(pixels)
    expected = softmax(logits.astype(np.float64) / temperature, axis=1)
    for engine in ("eager", "onnxruntime", "openvino"):
        assert vitral.Predictor(after, engine=engine).probabilities(pixels) == pytest.approx(expected, abs=1e-5), engine
    model, bundle = vitral.load(after)
    assert bundle.model.head.temperature == temperature  # type: ignore[union-attr]
    images = bundle.preprocessing.normalize.prepare(torch.from_numpy(pixels).permute(0, 3, 1, 2))
    assert model(images).softmax(dim=1).detach().numpy() == pytest.approx(expected, abs=1e-5)


def test_calibrating_again_changes_next_to_nothing(bundles: tuple[Path, Path, float]) -> None:
    _, after, temperature = bundles
    again = evaluate(after, with_val(), with_="calibration").results[0]
    assert isinstance(again, CalibrationResult)
    assert again.stored_temperature == temperature
    assert again.temperature == pytest.approx(1, abs=1e-4)


def test_training_from_it_starts_without_a_temperature(bundles: tuple[Path, Path, float]) -> None:
    request = RunRequest("sample", settings={"weights": str(bundles[1])})
    assert resolve(request).recipe.model.head.temperature == 1  # type: ignore[union-attr]


def test_a_library_that_cannot_hold_the_temperature_is_refused(bundles: tuple[Path, Path, float]) -> None:
    with pytest.raises(WeightsError, match=r"head\.temperature"):
        vitral.convert(bundles[1], bundles[1].parent / "timm.safetensors", to="timm")


def test_nothing_is_written_without_a_fit_or_over_what_is_there(tmp_path: Path) -> None:
    with raises("config.conflict", "--calibrated", "--with calibration"):
        evaluate(striped_model(), stripes(), calibrated=str(tmp_path / "new"))
    with raises("config.path_exists", tmp_path):
        evaluate(striped_model(), stripes(), with_="calibration", calibrated=str(tmp_path))
    with raises("data.too_few", "there are 0"):
        evaluate(striped_model(CLASSES), stripes(), with_="calibration", calibrated=str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()
