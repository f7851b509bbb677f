"""The way from files to answers, and that it is the way of evaluation."""

from pathlib import Path

import numpy as np
import torch

from tests.errors import raises
from tests.evaluation.subjects import SIDE, striped_model
from tests.inference.album import BAD, Itself, listed, photos, spoilt
from vitral.core.errors import VitralError
from vitral.data.datasets.files import Files
from vitral.data.loading.loader import ImagePipeline, Loader
from vitral.data.loading.sampler import Sequential
from vitral.data.samples import Item, Samples
from vitral.evaluation.outputs import predict as predict_dataset
from vitral.inference.batches import Batch, read_batches
from vitral.inference.engines.engine import FloatArray, PixelBatch
from vitral.inference.predictor import predict


class Kept:
    """A sink that keeps all."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.numbers: list[FloatArray] = []

    def write(self, batch: Batch, numbers: FloatArray) -> None:
        self.batches.append(batch)
        self.numbers.append(numbers)


def deaf(batch: Batch) -> None:
    """For tests that do not listen."""


def test_logits_are_bit_for_bit_those_of_vitral_evaluate(tmp_path: Path) -> None:
    paths = photos(tmp_path, 11, side=3 * SIDE)
    loaded = striped_model()
    needs = loaded.bundle.preprocessing
    samples = Samples(str(tmp_path), ("a",), tuple(Item(path.name, 0, "test") for path in paths), Files(str(tmp_path)))
    loader = Loader.of(
        samples, "test", ImagePipeline(needs.image_size, needs.decoding, needs.crop), Sequential(), batch=4
    )
    expected = predict_dataset(
        loaded.model, loader, needs.normalize, torch.device("cpu"), lambda rows: rows, lambda count: None
    ).logits
    kept = Kept()
    count = predict(Itself(loaded).run, read_batches(listed(paths), needs, 4), kept, deaf)
    assert count == (11, 0)
    assert (np.concatenate(kept.numbers) == expected.numpy()).all()


def test_bad_files_are_counted_heard_of_and_passed_by(tmp_path: Path) -> None:
    images = listed([*photos(tmp_path, 5), *spoilt(tmp_path)])
    loaded, kept = striped_model(), Kept()
    heard: list[VitralError] = []
    found = read_batches(images, loaded.bundle.preprocessing, 5)
    count = predict(Itself(loaded).run, found, kept, lambda batch: heard.extend(batch.failed.values()))
    assert count == (5, 4)
    assert [Path(error.where).name for error in heard] == list(BAD)
    assert [len(numbers) for numbers in kept.numbers] == [5, 0]
    assert [name for batch in kept.batches for name in batch.names] == [image.name for image in images]


def test_who_hears_of_a_bad_file_may_stop_it_all(tmp_path: Path) -> None:
    images = listed([*photos(tmp_path, 3), *spoilt(tmp_path)])
    loaded, kept = striped_model(), Kept()

    def stop(batch: Batch) -> None:
        for error in batch.failed.values():
            raise error

    with raises("data.truncated_image", "cut.jpg"):
        predict(Itself(loaded).run, read_batches(images, loaded.bundle.preprocessing, 2), kept, stop)
    assert [len(numbers) for numbers in kept.numbers] == [2]


def test_an_answer_that_is_no_number_is_refused_with_the_image(tmp_path: Path) -> None:
    images = listed(photos(tmp_path, 3))

    def broken(pixels: PixelBatch) -> FloatArray:
        rows = np.zeros((len(pixels), 4), dtype=np.float32)  # (B, K)
        rows[1, 2] = np.nan
        return rows

    with raises("weights.not_finite") as caught:
        predict(broken, read_batches(images, striped_model().bundle.preprocessing, 3), Kept(), deaf)
    assert caught.value.where == images[1].name
