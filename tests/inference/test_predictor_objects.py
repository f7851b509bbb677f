"""A predictor is a function of images as Python has them: paths, bytes, PIL images, arrays, tensors, lists of these."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import vitral
from tests.errors import raises
from tests.inference import exports
from tests.inference.album import photos
from tests.inference.truth import loaded
from tests.models.variants import small
from vitral.exporters.export import ExportRequest, export
from vitral.exporters.targets import OnnxTarget
from vitral.inference.predictor import Predictor, predict
from vitral.inference.writers import Prediction
from vitral.weights.bundle import write_bundle
from vitral.weights.load import LoadedModel

SOURCE = loaded(small())


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return photos(tmp_path / "photos", 3)


def same(one: Prediction, other: Prediction, tolerance: float = 1e-5) -> bool:
    return one.labels == other.labels and one.scores == pytest.approx(other.scores, abs=tolerance)


def test_each_kind_of_image_has_the_prediction_of_its_file(files: list[Path]) -> None:
    predictor = Predictor(SOURCE, engine="eager")
    [expected] = predictor.predict(files[0])
    assert predictor(files[0]) == predictor(str(files[0])) == expected
    tensor = predictor.bundle.transform(files[0])
    with Image.open(files[0]) as opened:
        for image in (files[0].read_bytes(), opened):
            assert predictor(image)[1:3] == expected[1:3]
    pixels = np.asarray(Image.open(files[0]))
    assert predictor(pixels) == predictor(Image.fromarray(pixels))
    single = predictor(tensor)
    assert isinstance(single, Prediction)
    assert same(single, expected)


def test_a_list_has_a_list_of_predictions_in_its_order(files: list[Path]) -> None:
    predictor = Predictor(SOURCE, engine="eager")
    one, two, three = predictor.predict(files)
    transform = predictor.bundle.transform
    found = predictor([transform(files[2]), files[0], files[1].read_bytes(), transform(files[0])])
    assert all(same(mine, known) for mine, known in zip(found, (three, one, two, one), strict=True))
    assert predictor(tuple(files)) == [one, two, three]
    assert predictor([]) == []
    batch = predictor(torch.stack([transform(file) for file in files]))
    assert isinstance(batch, list)
    assert all(same(mine, known) for mine, known in zip(batch, (one, two, three), strict=True))
    assert len(predictor(files[0], top=2).labels) == len(predictor([transform(files[0])], top=2)[0].labels) == 2


def test_a_tensor_is_used_as_it_is() -> None:
    images = torch.randn(2, 3, 32, 64, generator=torch.Generator().manual_seed(0))  # of another size, not of 8 bits
    with torch.inference_mode():
        expected = SOURCE.model(images).softmax(dim=1)
    found = Predictor(SOURCE)(images)
    assert isinstance(found, list)
    for row, chances in zip(found, expected, strict=True):
        assert row.scores == pytest.approx(chances.sort(descending=True).values.tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("images", "code", "value"),
    [
        (torch.zeros(2, 32, 48, 3), "config.shape_mismatch", "permute(0, 3, 1, 2)"),
        (torch.zeros(3, 32, 48, dtype=torch.uint8), "config.wrong_type", "uint8"),
        (torch.zeros(32, 48), "config.shape_mismatch", ""),
        (None, "data.unsupported_image", "NoneType"),
        ([3], "data.unsupported_image", "int"),
        ("gone.jpg", "data.not_found", "gone.jpg"),
    ],
)
def test_what_is_no_image_is_refused(images: object, code: str, value: str) -> None:
    with raises(code, value):
        Predictor(SOURCE)(images)  # type: ignore[call-overload]
    with raises("config.out_of_range", "top"):
        Predictor(SOURCE)(torch.zeros(3, 32, 48), top=0)


def test_an_export_takes_what_its_model_takes(files: list[Path], tmp_path: Path) -> None:
    export(exports.source(), exports.export_images(), ExportRequest(OnnxTarget()), tmp_path / "exported")
    exported, model = Predictor(tmp_path / "exported"), Predictor(exports.loaded(), engine="eager")
    tensor = exported.bundle.transform(files[1])
    found, expected = exported([files[0], tensor]), model([files[0], tensor])
    assert all(same(mine, known, 1e-4) for mine, known in zip(found, expected, strict=True))
    with raises("config.unsupported", "images"):
        exported(torch.randn(3, 24, 32))


def test_a_predictor_is_made_of_a_model_and_its_bundle_or_of_a_run(files: list[Path], tmp_path: Path) -> None:
    model, bundle = SOURCE
    expected = Predictor(SOURCE)(files[0])
    assert Predictor(model, bundle)(files[0]) == expected
    write_bundle(tmp_path / "run", bundle, model.state_dict(), "a card")
    assert Predictor(SimpleNamespace(path=tmp_path / "run"))(files[0]) == expected
    with raises("config.wrong_type", "Predictor(model, bundle)"):
        Predictor(model)
    with raises("config.conflict", "bundle"):
        Predictor(tmp_path / "run", bundle)
    with raises("config.wrong_type", "int"):
        Predictor(3)  # type: ignore[arg-type]


def test_an_architecture_is_no_weights() -> None:
    for function in (Predictor, vitral.load):
        with raises("weights.not_found", "create_model('B/16')"):
            function("B/16")


def test_a_stream_is_the_lines_of_the_command(files: list[Path]) -> None:
    assert vitral.predict is predict
    found = list(vitral.predict(LoadedModel(*SOURCE), files[0].parent, engine="eager"))
    assert [row.path for row in found] == [str(file) for file in files]
    assert all(isinstance(row, vitral.Prediction) for row in found)


def test_a_prediction_is_shown_in_a_line() -> None:
    assert (
        repr(Prediction("cat.jpg", ("cat", "dog"), (0.971, 0.02), "eager"))
        == "Prediction(cat.jpg: cat 97.1%, dog 2.0%)"
    )
    assert repr(Prediction("a.jpg", (), (), error="truncated")) == "Prediction(a.jpg: truncated)"
