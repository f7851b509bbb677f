"""The predictor: names for files, numbers for pixels, the same whoever asks."""

import json
import logging
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from tests.errors import raises
from tests.inference import exports
from tests.inference.truth import loaded, pixels, truth
from tests.models.variants import VARIANTS, small
from vitral.exporters.export import ExportRequest, export
from vitral.exporters.targets import OnnxTarget, OpenVinoTarget, Target
from vitral.inference.engines import auto
from vitral.inference.engines.onnxruntime import OnnxRuntime
from vitral.inference.graph.token_merging import TokenMerging
from vitral.inference.predictor import Predictor
from vitral.inference.writers import Prediction
from vitral.weights.bundle import write_bundle

SOURCE = loaded(small())


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Pictures of sizes of their own."""
    rng = np.random.default_rng(0)
    found = []
    for number in range(5):
        found.append(tmp_path / f"{number}.png")
        Image.fromarray(rng.integers(256, size=(40 + number, 50, 3), dtype=np.uint8)).save(found[-1])
    return found


def test_files_are_given_the_likeliest_classes_first(files: list[Path]) -> None:
    found = Predictor(SOURCE, engine="eager").predict(files, top=2)
    needs = SOURCE.bundle.preprocessing
    seen = np.stack([needs.pixels(file.read_bytes(), file.name) for file in files])
    chances = torch.from_numpy(truth(SOURCE, seen)).softmax(dim=1)
    assert [each.path for each in found] == [str(file) for file in files]
    for each, row in zip(found, chances, strict=True):
        expected = row.topk(2)
        assert each.labels == tuple("abcd"[place] for place in expected.indices)
        assert each.scores == pytest.approx(expected.values.tolist(), abs=1e-5)


def test_more_classes_than_there_are_is_all_of_them(files: list[Path]) -> None:
    [found] = Predictor(SOURCE, engine="eager").predict([str(files[0])], top=9)
    assert isinstance(found, Prediction)
    assert sorted(found.labels) == list("abcd")
    assert sum(found.scores) == pytest.approx(1)
    assert list(found.scores) == sorted(found.scores, reverse=True)


def test_a_path_by_itself_is_one_file(files: list[Path]) -> None:
    predictor = Predictor(SOURCE, engine="eager")
    listed = predictor.predict([files[0]])
    assert predictor.predict(files[0]) == predictor.predict(str(files[0])) == listed


def test_no_files_are_no_predictions() -> None:
    assert Predictor(SOURCE, engine="eager").predict([]) == []


def test_a_file_that_cannot_be_read_is_an_error(files: list[Path], tmp_path: Path) -> None:
    with raises("data.not_found", "gone.jpg"):
        Predictor(SOURCE, engine="eager").predict([*files, tmp_path / "gone.jpg"])
    with raises("config.out_of_range", "top", 0):
        Predictor(SOURCE, engine="eager").predict(files, top=0)


def test_a_run_on_the_disk_is_named_by_its_path(tmp_path: Path) -> None:
    home = tmp_path / "photos" / "best"
    home.parent.mkdir()
    write_bundle(home, SOURCE.bundle, SOURCE.model.state_dict(), "a card")
    images = pixels(SOURCE)
    found = Predictor(str(tmp_path / "photos"), engine="eager")
    assert np.array_equal(found.logits(images), Predictor(SOURCE, engine="eager").logits(images))
    with raises("weights.not_found", "nowhere"):
        Predictor(tmp_path / "nowhere")


@pytest.mark.parametrize("engine", ["eager", "onnxruntime", OnnxRuntime()], ids=["eager", "name", "config"])
def test_numbers_are_those_of_the_model(engine: str) -> None:
    predictor = Predictor(SOURCE, engine=engine)
    for count in (1, 33):
        images = pixels(SOURCE, count)
        logits = truth(SOURCE, images)
        assert abs(predictor.logits(images) - logits).max() < 1e-4
        assert abs(predictor.features(images) - truth(SOURCE, images, "features")).max() < 1e-4
        chances = torch.from_numpy(logits).softmax(dim=1).numpy()
        assert abs(predictor.probabilities(images) - chances).max() < 1e-5
    none = pixels(SOURCE, 0)
    assert predictor.logits(none).shape == predictor.probabilities(none).shape == (0, 4)


@pytest.fixture
def first_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> pytest.LogCaptureFixture:
    """What is told where nothing was measured yet, and measuring is short."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(auto, "ROUNDS", 1)
    caplog.set_level(logging.INFO, "vitral")
    return caplog


def test_by_itself_it_takes_the_quickest_engine(first_time: pytest.LogCaptureFixture) -> None:
    images = pixels(SOURCE, 40)
    predictor = Predictor(SOURCE)
    assert predictor.engine == "auto"
    assert abs(predictor.logits(images) - truth(SOURCE, images)).max() < 1e-4
    assert predictor.engine in {"eager", "onnxruntime", "openvino"}
    assert sum("measuring" in record.message for record in first_time.records) == 1
    first_time.clear()
    Predictor(SOURCE).features(images)  # as fast as logits
    [message] = (record.message for record in first_time.records)
    assert "measured before" in message


def test_by_itself_it_predicts_a_few_files_at_once(first_time: pytest.LogCaptureFixture, files: list[Path]) -> None:
    predictor = Predictor(SOURCE)
    assert predictor.predict(files) == Predictor(SOURCE, engine="eager").predict(files)
    assert first_time.messages == []
    predictor.warm_up(2)  # for an unknown number of images
    assert any("measuring" in message for message in first_time.messages)
    assert {each.engine for each in predictor.predict(files * 7)} == {predictor.engine}


def test_many_threads_are_given_the_same_bytes() -> None:
    predictor = Predictor(SOURCE, engine="eager")  # which is made by whoever comes first
    images = pixels(SOURCE, 5)
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: predictor.logits(images).tobytes(), range(64)))
    assert len(found) == 1


def test_a_predictor_never_changes() -> None:
    predictor = Predictor(SOURCE, engine="eager")
    for name in ("bundle", "new"):
        with pytest.raises(FrozenInstanceError):
            setattr(predictor, name, 1)
    with pytest.raises(FrozenInstanceError):
        del predictor.bundle
    assert predictor.bundle is SOURCE.bundle


def test_a_model_that_is_trained_on_changes_no_predictor() -> None:
    source = loaded(small())
    images = pixels(source)
    expected = truth(source, images)
    predictor = Predictor(source, engine="eager")
    with torch.no_grad():
        for weight in source.model.parameters():
            weight.zero_()
    assert abs(predictor.logits(images) - expected).max() < 1e-4


def test_warming_up_has_the_engine_made(monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = Predictor(SOURCE, engine="eager")
    predictor.warm_up()
    predictor.warm_up(1, 4)
    predictor.warm_up(2, output="features")
    monkeypatch.setattr("vitral.inference.engines.auto.build_engine", None)
    assert predictor.logits(pixels(SOURCE)).shape == (3, 4)
    assert predictor.features(pixels(SOURCE)).shape == (3, 32)


def test_tokens_may_be_merged() -> None:
    images = pixels(SOURCE)
    whole = Predictor(SOURCE, engine="eager").logits(images)
    none, some = (
        Predictor(SOURCE, engine="eager", merging=TokenMerging(per_layer=count)).logits(images) for count in (0, 4)
    )
    assert np.allclose(whole, none, atol=1e-5)
    assert not np.allclose(whole, some, atol=1e-3)


def test_a_model_that_names_no_classes_gives_features_alone() -> None:
    source = loaded(VARIANTS["head-none"])
    predictor = Predictor(source, engine="eager")
    predictor.warm_up()
    assert predictor.features(pixels(source)).shape == (3, 32)
    with raises("config.unsupported", "model", "features"):
        predictor.logits(pixels(source))


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((2, 32, 48, 3), dtype=np.float32),
        np.zeros((32, 48, 3), dtype=np.uint8),
        np.zeros((2, 48, 32, 3), dtype=np.uint8),
        np.zeros((2, 3, 32, 48), dtype=np.uint8),
    ],
    ids=["floats", "one image", "another size", "channels first"],
)
def test_pixels_of_another_shape_are_refused(wrong: NDArray[Any]) -> None:
    with raises("config.wrong_type", "pixels", "uint8 (B, 32, 48, 3)", wrong.dtype, wrong.shape):
        Predictor(SOURCE, engine="eager").logits(wrong)


def test_pixels_may_lie_in_any_order() -> None:
    images = pixels(SOURCE)
    turned = np.asfortranarray(images)
    for engine in ("eager", "onnxruntime", "openvino"):
        predictor = Predictor(SOURCE, engine=engine)
        assert np.array_equal(predictor.logits(turned), predictor.logits(images))


def test_an_engine_that_there_is_not_is_refused_before_anything_is_read() -> None:
    with raises("config.unknown_name", "engine", "auto", "eager", "openvino", "'steam'"):
        Predictor("nowhere", engine="steam")
    with raises("config.unknown_name", "'openvina'", "'openvino'"):
        Predictor(SOURCE, engine="openvina")


WITHOUT_TORCH = """
import json, sys
from vitral import Predictor
found = Predictor(sys.argv[1]).predict(sys.argv[2:])
print(json.dumps([each._asdict() for each in found]))
assert "torch" not in sys.modules
"""


@pytest.mark.parametrize("target", [OnnxTarget(), OpenVinoTarget()], ids=lambda target: target.kind)
@pytest.mark.sampled(2)
def test_an_export_names_what_its_model_names_without_torch(target: Target, files: list[Path], tmp_path: Path) -> None:
    export(exports.source(), exports.export_images(), ExportRequest(target), tmp_path / "exported")
    expected = Predictor(exports.loaded(), engine="eager").predict(files)
    words = [sys.executable, "-c", WITHOUT_TORCH, str(tmp_path / "exported"), *map(str, files)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    for told, each in zip(json.loads(done.stdout), expected, strict=True):
        assert (told["path"], tuple(told["labels"])) == each[:2]
        assert told["scores"] == pytest.approx(each.scores, abs=1e-4)


def test_an_export_is_as_it_was_made(tmp_path: Path) -> None:
    export(exports.source(), exports.export_images(), ExportRequest(OnnxTarget()), tmp_path / "exported")
    Predictor(tmp_path / "exported", engine=OnnxRuntime())
    predictor = Predictor(tmp_path / "exported", engine="onnxruntime")
    predictor.warm_up(1, 2)
    assert predictor.logits(np.zeros((3, 24, 32, 3), dtype=np.uint8)).shape == (3, 10)
    for ask in (predictor.features, lambda _: predictor.width):
        with raises("config.unsupported", "model", "features"):
            ask(np.zeros((1, 24, 32, 3), dtype=np.uint8))
    with raises("config.conflict", "engine", "onnxruntime"):
        Predictor(tmp_path / "exported", engine="openvino")
    with raises("config.conflict", "merging"):
        Predictor(tmp_path / "exported", merging=TokenMerging(per_layer=2))


def test_an_export_of_features_gives_them(tmp_path: Path) -> None:
    export(exports.source(head=False), exports.export_images(), ExportRequest(OnnxTarget()), tmp_path / "exported")
    predictor, images = Predictor(tmp_path / "exported"), np.zeros((3, 24, 32, 3), dtype=np.uint8)
    own = Predictor(exports.loaded(head=False), engine="eager")
    assert predictor.width == own.width == 32
    np.testing.assert_allclose(predictor.features(images), own.features(images), atol=1e-4)
    with raises("config.unsupported", "model", "features"):
        predictor.logits(images)
