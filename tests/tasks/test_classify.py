"""Classification.  B images, K classes."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from tests.errors import raises
from tests.models.variants import small
from vitral.core.config import Config, union_members
from vitral.data.transforms.mixup import CutMix, Mixing, Mixup, mixup, one_hot
from vitral.data.transforms.preprocessing import CENTERED
from vitral.models import LinearHead, Model, NoHead
from vitral.tasks.classify import Classify, LossConfig, Sigmoid, Softmax, balanced_weights
from vitral.tasks.task import Task

COUNTS = (4, 1, 3, 8)


def awake(**fields: Any) -> Model:
    """A model whose answers differ from image to image."""
    model = small(**fields).build()
    torch.nn.init.normal_(model.get_parameter("head.linear.weight"), std=0.5)
    return model


def task(config: Classify, model: Model | None = None) -> Task:
    return config.build(model or awake(), 4, COUNTS, CENTERED)


def batch(size: int = 6) -> tuple[Tensor, Tensor]:
    return torch.rand(size, 3, 32, 48) * 2 - 1, torch.arange(size) % 4


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_the_loss_is_the_mean_over_the_images_and_accuracy_the_share_of_right_answers() -> None:
    model, (images, labels) = awake(), batch()
    logits = model(images)
    outcome = task(Classify(loss=Softmax(smoothing=0.1)), model)(images, labels, rng())
    assert_close(outcome.loss, F.cross_entropy(logits, labels, label_smoothing=0.1))
    labels = torch.cat([logits.argmax(1)[:5], (logits.argmax(1)[5:] + 1) % 4])
    assert_close(task(Classify(), model)(images, labels, rng()).metrics["accuracy"], torch.tensor(5 / 6))


@pytest.mark.parametrize("loss", [Softmax(smoothing=0.1), Sigmoid()], ids=["softmax", "sigmoid"])
def test_training_mixes_images_and_targets_alike(loss: LossConfig) -> None:
    model, (images, labels) = awake(), batch()
    share = rng(3).beta(0.4, 0.4)
    mixed = mixup(images, one_hot(labels, 4), max(share, 1 - share))
    outcome = task(Classify(loss=loss, mixing=Mixup(alpha=0.4)), model)(images, labels, rng(3))
    expected = loss.losses(model(mixed.images), loss.smooth(mixed.targets)).mean()
    assert_close(outcome.loss, expected)


def test_a_mixed_image_is_rightly_answered_by_the_class_with_the_greater_part() -> None:
    model, (images, labels) = awake(), batch()
    mixing = CutMix()
    both = set()
    for seed in range(20):
        targets = mixing.apply(images, one_hot(labels, 4), rng(seed)).targets
        heavier = labels if targets[0, labels[0]] > 0.5 else labels.roll(1)
        both.add(heavier is labels)
        answers = model(mixing.apply(images, targets, rng(seed)).images).argmax(1)
        found = task(Classify(mixing=mixing), model)(images, labels, rng(seed)).metrics["accuracy"]
        assert_close(found, (answers == heavier).float().mean())
    assert both == {True, False}


@pytest.mark.parametrize("mixing", union_members(Mixing), ids=lambda member: member.__name__)
def test_evaluation_neither_mixes_nor_smooths(mixing: type[Config]) -> None:
    model, (images, labels) = awake(), batch()
    config = Classify.parse({"loss": {"kind": "softmax", "smoothing": 0.3}, "mixing": mixing().model_dump()})
    outcome = task(config, model).eval()(images, labels, rng())
    assert_close(outcome.loss, F.cross_entropy(model(images), labels))


def test_balanced_weights_are_inverse_to_the_counts_with_mean_one_over_the_images() -> None:
    weights = balanced_weights(COUNTS)
    assert_close(weights, torch.tensor([1.0, 4.0, 4 / 3, 0.5]))
    assert_close((weights * torch.tensor(COUNTS)).sum() / sum(COUNTS), torch.tensor(1.0))


@pytest.mark.parametrize("training", [True, False])
def test_weighted_costs_are_torchs(training: bool) -> None:
    model, (images, labels) = awake(), batch()
    outcome = task(Classify(class_weights="balanced"), model).train(training)(images, labels, rng())
    expected = F.cross_entropy(model(images), labels, weight=balanced_weights(COUNTS), reduction="sum") / len(images)
    assert_close(outcome.loss, expected)


def test_a_mixed_image_weighs_as_much_as_what_is_in_it() -> None:
    model, (images, labels) = awake(), batch()
    mixed = Mixup(alpha=0.8).apply(images, one_hot(labels, 4), rng(5))
    losses = Sigmoid().losses(model(mixed.images), mixed.targets)
    weights = mixed.targets @ torch.tensor([1.0, 4.0, 4 / 3, 0.5])
    outcome = task(Classify(loss=Sigmoid(), mixing=Mixup(alpha=0.8), class_weights="balanced"), model)
    assert_close(outcome(images, labels, rng(5)).loss, (losses * weights).mean())


def test_a_class_without_images_cannot_be_balanced() -> None:
    with raises("config.empty_class", "weights", "1, 3", "weights=none"):
        Classify(class_weights="balanced").build(small().build(), 4, (2, 0, 1, 0), CENTERED)
    Classify().build(small().build(), 4, (2, 0, 1, 0), CENTERED)


@pytest.mark.parametrize(("head", "found"), [(LinearHead(num_classes=5), "5"), (NoHead(), "none")])
def test_a_head_of_other_classes_is_refused(head: LinearHead | NoHead, found: str) -> None:
    with raises("config.class_mismatch", "head.num_classes", 4, found):
        task(Classify(), small(head=head).build())


def test_the_bias_of_the_head_is_where_a_sigmoid_loss_starts() -> None:
    model = small(head=LinearHead(num_classes=4, bias=-6.9)).build()
    outcome = task(Classify(loss=Sigmoid()), model)(*batch(), rng())
    expected = F.softplus(torch.tensor(6.9)) + 3 * F.softplus(torch.tensor(-6.9))
    assert_close(outcome.loss, expected)


def test_weights_of_classes_are_no_part_of_the_state() -> None:
    built = task(Classify(class_weights="balanced"))
    assert all(name.startswith("model.") for name in built.state_dict())
