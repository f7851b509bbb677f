"""Accuracy against the size of images."""

import pytest
import torch

from tests.errors import raises
from tests.evaluation.subjects import striped_model, subject
from tests.models.variants import small
from vitral.core.config import Size
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.evaluation.accuracy import compute_accuracy
from vitral.evaluation.resolution import ResolutionEvaluator, candidate_sizes, stable_range
from vitral.models import Patches, TokenMlp
from vitral.weights.bundle import Bundle
from vitral.weights.load import LoadedModel


def test_the_sizes_are_whole_patches_around_the_trained_one() -> None:
    config = small()  # 32x48 in patches of 8
    bundle = Bundle(
        model=config, task="classify", preprocessing=Preprocessing(image_size=Size(32, 48)), classes=tuple("abcd")
    )
    found = candidate_sizes(subject(LoadedModel(config.build(), bundle)))
    assert found == [Size(16, 24), Size(24, 32), Size(32, 48), Size(40, 64), Size(48, 72), Size(64, 96)]


def test_sizes_that_come_to_the_same_are_tried_once() -> None:
    assert candidate_sizes(subject(striped_model(stem=Patches(patch=Size(16, 16))))) == [Size(16, 16), Size(32, 32)]


def test_the_accuracy_at_each_size_is_that_of_the_answers_there() -> None:
    whole = subject()
    found = ResolutionEvaluator().evaluate(whole)
    assert [row.image_size for row in found.rows] == candidate_sizes(whole)
    for row in found.rows:
        truth = compute_accuracy(whole.predictions(row.image_size), ("ant", "bee", "cat"))
        assert (row.top1, row.ci95) == (truth.top1, truth.ci95)
        assert row.grid == Size(row.image_size.height // 8, row.image_size.width // 8)
    assert [row.image_size for row in found.rows if row.is_train_size] == [Size(16, 16)]
    assert found.images == 18
    shares = [row.top1 for row in found.rows]
    held = stable_range(shares, candidate_sizes(whole).index(Size(16, 16)))
    assert (found.min_size, found.max_size) == (found.rows[held[0]].image_size, found.rows[held[-1]].image_size)


@pytest.mark.parametrize(
    ("shares", "own", "held"),
    [
        ([0.5, 0.79, 0.8, 0.79, 0.6, 0.9], 2, range(1, 4)),
        ([0.8, 0.8, 0.8], 1, range(3)),
        ([0.2, 0.8, 0.2], 1, range(1, 2)),
        ([0.9, 0.8, 0.95], 1, range(3)),
        ([0.9, 0.1, 0.8], 2, range(2, 3)),
        ([0.1, 0.9, 0.1, 0.8], 3, range(3, 4)),
        ([0.8, 0.1, 0.9, 0.1], 0, range(1)),
        ([0.5], 0, range(1)),
    ],
)
def test_accuracy_holds_up_to_the_first_fall_on_either_side(shares: list[float], own: int, held: range) -> None:
    assert stable_range(shares, own) == held


def test_a_model_of_one_size_is_refused_before_any_work() -> None:
    ResolutionEvaluator().check(subject())
    for loaded in (striped_model(any_size=False), striped_model(mixer=TokenMlp(hidden=24), position={"kind": "none"})):
        with raises("config.size_mismatch", "--with resolution"):
            ResolutionEvaluator().check(subject(loaded))


def test_other_classes_are_refused() -> None:
    with raises("data.unknown_class", "cat"):
        ResolutionEvaluator().check(subject(striped_model(("ant", "bee", "dog"))))


def test_the_check_leaves_the_mode_of_the_model() -> None:
    loaded = striped_model()
    loaded.model.train()
    ResolutionEvaluator().check(subject(loaded))
    assert loaded.model.training
    assert torch.is_grad_enabled()
