"""B images, K classes."""

from math import exp, log

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from tests.errors import raises
from vitral.core.config import union_members
from vitral.data.transforms.mixup import one_hot
from vitral.tasks.classify import LossConfig, Sigmoid, Softmax

LABELS = torch.tensor([3, 0, 6, 3, 1])


def logits() -> Tensor:
    return torch.randn(5, 7, generator=torch.Generator().manual_seed(1)) * 3


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
def test_softmax_is_torchs_cross_entropy_with_its_smoothing(smoothing: float) -> None:
    loss = Softmax(smoothing=smoothing)
    found = loss.losses(logits(), loss.smooth(one_hot(LABELS, 7)))
    assert_close(found, F.cross_entropy(logits(), LABELS, label_smoothing=smoothing, reduction="none"))


def test_softened_targets_are_the_smoothed_labels_of_one_hot() -> None:
    assert_close(Softmax(smoothing=0.1).smooth(one_hot(LABELS, 7)), one_hot(LABELS, 7, smoothing=0.1))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_softmax_of_mixed_labels_is_the_mixed_cost_of_each(smoothing: float) -> None:
    loss = Softmax(smoothing=smoothing)
    first, second = one_hot(LABELS, 7), one_hot(LABELS.flip(0), 7)
    found = loss.losses(logits(), loss.smooth(0.7 * first + 0.3 * second))
    one, other = (
        F.cross_entropy(logits(), labels, label_smoothing=smoothing, reduction="none")
        for labels in (LABELS, LABELS.flip(0))
    )
    assert_close(found, 0.7 * one + 0.3 * other)


def test_sigmoid_is_the_sum_of_a_coin_for_each_class() -> None:
    targets = 0.7 * one_hot(LABELS, 7) + 0.3 * one_hot(LABELS.flip(0), 7)
    expected = []
    for row, answers in zip(targets.tolist(), logits().tolist(), strict=True):
        odds = [1 / (1 + exp(-answer)) for answer in answers]
        expected.append(-sum(t * log(p) + (1 - t) * log(1 - p) for t, p in zip(row, odds, strict=True)))
    assert_close(Sigmoid().losses(logits(), Sigmoid().smooth(targets)), torch.tensor(expected))


@pytest.mark.parametrize(("classes", "bias", "expected"), [(1000, -6.9, 7.907), (21843, -10.0, 10.992)])
def test_a_sigmoid_loss_starts_low_from_its_bias(classes: int, bias: float, expected: float) -> None:
    targets = one_hot(torch.tensor([5]), classes)
    losses = Sigmoid().losses(torch.full((1, classes), bias), targets)
    assert_close(losses, torch.tensor([expected]), rtol=0, atol=5e-4)


@pytest.mark.parametrize("member", union_members(LossConfig), ids=lambda member: member.__name__)
def test_no_images_cost_nothing_each(member: type[Softmax | Sigmoid]) -> None:
    assert member().losses(torch.zeros(0, 7), member().smooth(torch.zeros(0, 7))).shape == (0,)


@pytest.mark.parametrize("smoothing", [-0.1, 1.0])
def test_smoothing_beyond_reason_is_refused(smoothing: float) -> None:
    with raises("config.out_of_range", "smoothing", smoothing):
        Softmax(smoothing=smoothing)
