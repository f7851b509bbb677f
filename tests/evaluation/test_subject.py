"""The subject: its features and answers are those of the model by itself, made once, and cached by content."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.errors import raises
from tests.evaluation.subjects import Stripes, files_in, striped_model, stripes, subject, tools
from vitral.core.config import Size
from vitral.data.datasets.arrays import LabeledImages, open_arrays
from vitral.data.samples import Samples
from vitral.data.transforms.preprocessing import IMAGENET
from vitral.evaluation.feature_cache import DiskCache
from vitral.evaluation.subject import SubjectModel
from vitral.models import Tokens
from vitral.weights.load import LoadedModel


class Bars:
    """Progress that remembers what it was shown."""

    def __init__(self) -> None:
        self.done: dict[str, int] = {}

    @contextmanager
    def __call__(self, message: str, total: int) -> Iterator[Callable[[int], None]]:
        self.done[message] = 0

        def advance(count: int) -> None:
            self.done[message] += count

        yield advance
        assert self.done[message] == total


@pytest.mark.parametrize("batch", [1, 7, 100])
def test_the_features_are_what_the_model_pools_of_each_image(batch: int) -> None:
    loaded, samples = striped_model(), stripes()
    found = subject(loaded, samples, tools(batch)).features("train")
    needs = loaded.bundle.preprocessing
    with torch.no_grad():
        truth = [
            loaded.model.forward_pooled(needs.tensor(samples.read(item), item.name)) for item in samples.of("train")
        ]
    torch.testing.assert_close(found.values, torch.cat(truth))
    assert found.values.dtype == torch.float32
    assert found.values.std() > 0.01
    assert found.labels.tolist() == [item.label for item in samples.of("train")]


def test_the_answers_have_the_labels_of_the_model() -> None:
    samples = stripes()
    plain, turned = (subject(striped_model(names), samples) for names in (("ant", "bee", "cat"), ("cat", "ant", "bee")))
    image = Size(16, 16)
    torch.testing.assert_close(plain.predictions(image).logits, turned.predictions(image).logits)
    assert plain.predictions(image).labels.tolist() == [0] * 6 + [1] * 6 + [2] * 6
    assert turned.predictions(image).labels.tolist() == [1] * 6 + [2] * 6 + [0] * 6


def test_images_of_another_size_are_resized_as_the_bundle_says() -> None:
    loaded, samples = striped_model(), stripes()
    found = subject(loaded, samples).predictions(Size(32, 24))
    needs = loaded.bundle.preprocessing.model_copy(update={"image_size": Size(32, 24)})
    with torch.no_grad():
        truth = [loaded.model(needs.tensor(samples.read(item), item.name)) for item in samples.of("test")]
    torch.testing.assert_close(found.logits, torch.cat(truth))


def test_what_was_made_once_is_not_made_again() -> None:
    bars = Bars()
    whole = subject(means=tools(progress=bars))
    first = whole.features("train"), whole.predictions(Size(16, 16))
    assert bars.done == {"features of train": 36, "predicting at 16x16": 18}
    bars.done.clear()
    assert (whole.features("train"), whole.predictions(Size(16, 16)))[0] is first[0]
    assert bars.done == {}


def test_a_model_in_training_does_not_drop_anything_here_and_is_left_in_training() -> None:
    loaded = striped_model(tokens=Tokens(dropout=0.5))
    calm = subject(loaded).features("train").values
    loaded.model.train()
    torch.testing.assert_close(subject(loaded).features("train").values, calm)
    assert loaded.model.training


def cached(
    folder: Path, loaded: LoadedModel | None = None, samples: Samples | None = None
) -> tuple[torch.Tensor, bool]:
    """The features of the test images, and whether the model had to make them."""
    bars = Bars()
    means = tools(cache=DiskCache(folder), progress=bars)
    found = subject(loaded, samples, means).features("test").values
    return found, "features of test" in bars.done


def test_the_cache_knows_the_same_images_by_their_bytes(tmp_path: Path) -> None:
    made, new = cached(tmp_path)
    assert new
    named = stripes()
    renamed = replace(named, where="elsewhere", classes=("x", "y", "z"))
    for samples in (named, renamed):
        kept, new = cached(tmp_path, samples=samples)
        assert not new
        assert torch.equal(kept, made)
    assert len(files_in(tmp_path)) == 1


@dataclass(frozen=True)
class OnePixel:
    """The same pictures but for one pixel of one of them."""

    def load(self, part: str) -> LabeledImages:
        images, labels = Stripes().load(part)
        changed = np.array(images)
        changed[3, 5, 5, 0] ^= 1
        return LabeledImages(changed, labels)


def other_pixels() -> tuple[LoadedModel, Samples]:
    return striped_model(), open_arrays("stripes", ("ant", "bee", "cat"), OnePixel())


def other_order() -> tuple[LoadedModel, Samples]:
    samples = stripes()
    return striped_model(), replace(samples, items=samples.items[::-1])


def other_weights() -> tuple[LoadedModel, Samples]:
    loaded = striped_model()
    with torch.no_grad():
        next(iter(loaded.model.parameters())).view(-1)[0] += 1e-3
    return loaded, stripes()


def other_scaling() -> tuple[LoadedModel, Samples]:
    model, bundle = striped_model()
    needs = bundle.preprocessing.model_copy(update={"normalize": IMAGENET})
    return LoadedModel(model, bundle.model_copy(update={"preprocessing": needs})), stripes()


def other_model() -> tuple[LoadedModel, Samples]:
    return striped_model(eps=1e-3), stripes()


@pytest.mark.parametrize("other", [other_pixels, other_order, other_weights, other_scaling, other_model])
def test_whatever_changes_the_features_changes_the_key(
    tmp_path: Path, other: Callable[[], tuple[LoadedModel, Samples]]
) -> None:
    cached(tmp_path)
    assert cached(tmp_path, *other())[1]


def test_features_that_are_no_numbers_are_refused_and_not_kept(tmp_path: Path) -> None:
    loaded = striped_model()
    with torch.no_grad():
        loaded.model.get_parameter("norm.bias")[0] = float("nan")
    with raises("weights.not_finite", "features", "18 of 18"):
        cached(tmp_path, loaded)
    assert files_in(tmp_path) == []


def test_an_interrupt_while_features_are_made_leaves_no_file(tmp_path: Path) -> None:
    @contextmanager
    def interrupted(message: str, total: int) -> Iterator[Callable[[int], None]]:
        def advance(count: int) -> None:
            if message.startswith("features"):
                raise KeyboardInterrupt

        yield advance

    whole: SubjectModel = subject(means=tools(cache=DiskCache(tmp_path), progress=interrupted))
    with pytest.raises(KeyboardInterrupt):
        whole.features("test")
    assert files_in(tmp_path) == []
