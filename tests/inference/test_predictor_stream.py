"""The way from files to answers, and that it is the way of evaluation."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.errors import raises
from tests.evaluation.subjects import SIDE, striped_model
from tests.inference.album import BAD, Itself, listed, photos, spoilt
from vitral.data.datasets.files import FileStore
from vitral.data.loading.loader import ImagePipeline, Loader
from vitral.data.loading.sampler import Sequential
from vitral.data.samples import Item, Samples
from vitral.evaluation.subject import predict as predict_dataset
from vitral.inference.engines.engine import FloatArray, Lazy, NamedEngine, OutputKind, PixelBatch
from vitral.inference.predictor import PredictionStream, Predictor, predict
from vitral.inference.writers import Shard
from vitral.weights.load import LoadedModel


class FakePredictor(Predictor):
    """A predictor with an engine of the test's."""

    def __init__(self, loaded: LoadedModel, run: Callable[[PixelBatch], FloatArray] | None = None) -> None:
        super().__init__(loaded, engine="eager")
        engine = Itself(loaded)
        if run:
            setattr(engine, "run", run)  # noqa: B010, mypy refuses to replace a method
        object.__setattr__(self, "_engines", {"logits": Lazy(lambda: engine)})


def test_logits_are_bit_for_bit_those_of_vitral_evaluate(tmp_path: Path) -> None:
    paths = photos(tmp_path, 11, side=3 * SIDE)
    loaded = striped_model()
    needs = loaded.bundle.preprocessing
    samples = Samples(
        str(tmp_path), ("a",), tuple(Item(path.name, 0, "test") for path in paths), FileStore(str(tmp_path))
    )
    loader = Loader.of(
        samples, "test", ImagePipeline(needs.image_size, needs.decoding, needs.crop), Sequential(), batch=4
    )
    expected = predict_dataset(
        loaded.model, loader, needs.normalize, torch.device("cpu"), lambda rows: rows, lambda count: None
    ).logits
    found = [logits for _, logits in PredictionStream(FakePredictor(loaded), listed(paths), 4).outputs("logits")]
    assert [len(logits) for logits in found] == [4, 4, 3]
    assert (np.concatenate(found) == expected.numpy()).all()


def test_unreadable_files_have_their_errors_and_no_outputs(tmp_path: Path) -> None:
    images = listed([*photos(tmp_path, 5), *spoilt(tmp_path)])
    stream = PredictionStream(FakePredictor(striped_model()), images, 5)
    batches, outputs = zip(*stream.outputs("logits"), strict=True)
    assert stream.engine == "eager"
    assert [Path(error.where).name for batch in batches for error in batch.failed.values()] == list(BAD)
    assert [len(logits) for logits in outputs] == [5, 0]
    assert [name for batch in batches for name in batch.names] == [image.name for image in images]


def test_predictions_name_the_unreadable_and_strict_raises(tmp_path: Path) -> None:
    photos(tmp_path, 3)
    spoilt(tmp_path)
    found = list(predict(striped_model(), tmp_path, top=2, batch_size=2, engine="eager"))
    assert [Path(each.path).name for each in found] == ["0.jpg", "1.jpg", "2.jpg", *BAD]
    assert [bool(each.error) for each in found] == [False] * 3 + [True] * 4
    assert [(len(each.labels), each.engine) for each in found[:3]] == [(2, "eager")] * 3
    stream = predict(striped_model(), [str(tmp_path)], batch_size=2, engine="eager", strict=True)
    assert [Path(next(stream).path).name for _ in range(2)] == ["0.jpg", "1.jpg"]
    with raises("data.truncated_image", "cut.jpg"):
        next(stream)


def test_a_shard_has_its_share_of_the_images(tmp_path: Path) -> None:
    names = {str(path) for path in photos(tmp_path, 9)}
    shares = [
        {each.path for each in predict(striped_model(), tmp_path, engine="eager", shard=Shard(number, 2))}
        for number in (1, 2)
    ]
    assert shares[0] | shares[1] == names
    assert not shares[0] & shares[1]


def test_an_output_that_is_no_number_is_refused_with_the_image(tmp_path: Path) -> None:
    images = listed(photos(tmp_path, 3))

    def broken(pixels: PixelBatch) -> FloatArray:
        rows = np.zeros((len(pixels), 4), dtype=np.float32)  # (B, K)
        rows[1, 2] = np.nan
        return rows

    with raises("weights.not_finite") as caught:
        list(PredictionStream(FakePredictor(striped_model(), broken), images, 3).outputs("logits"))
    assert caught.value.where == images[1].name


@pytest.mark.parametrize(("count", "expected"), [(3, 3), (31, 31), (32, None), (40, None)])
def test_the_engine_is_chosen_once_by_the_number_of_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, expected: int | None
) -> None:
    asked: list[tuple[int | None, int]] = []
    predictor = FakePredictor(striped_model())

    def select(self: Predictor, output: OutputKind, images: int | None, batch_size: int) -> NamedEngine:
        asked.append((images, batch_size))
        return NamedEngine("chosen", self._engines[output].get())

    monkeypatch.setattr(Predictor, "select_engine", select)
    (path,) = photos(tmp_path, 1)
    found = list(PredictionStream(predictor, listed([path] * count), 8).predictions(1))
    assert asked == [(expected, 8)]
    assert [each.engine for each in found] == ["chosen"] * count
