"""The head's first answers and its formula."""

import pytest
import torch
from torch import Tensor, nn

from tests.errors import raises
from tests.models.variants import small
from vitral.models import LinearHead, NoHead, TanhHead
from vitral.models.init import Original, initialize

HEADS = pytest.mark.parametrize("kind", [LinearHead, TanhHead])


def fresh(config: LinearHead | TanhHead | NoHead, width: int = 12) -> nn.Module:
    head = config.build(width)
    initialize(head, Original())
    return head


@HEADS
def test_the_first_logits_are_zero(kind: type[LinearHead | TanhHead]) -> None:
    assert fresh(kind(num_classes=7))(torch.randn(3, 12)).equal(torch.zeros(3, 7))


@HEADS
def test_the_first_logits_are_the_bias_that_was_asked_for(kind: type[LinearHead | TanhHead]) -> None:
    """-10 makes each of 21k classes rare from the start, as the sigmoid loss wants it."""
    assert fresh(kind(num_classes=7, bias=-10.0))(torch.randn(3, 12)).equal(torch.full((3, 7), -10.0))
    model = small(head=kind(num_classes=7, bias=-10.0)).build()
    assert model(torch.randn(2, 3, 32, 48)).equal(torch.full((2, 7), -10.0))


def random(config: LinearHead | TanhHead) -> nn.Module:
    head = config.build(12).double()
    with torch.no_grad():
        for weight in head.parameters():
            weight.normal_()
    return head


def linear(head: nn.Module, name: str, x: Tensor) -> Tensor:
    return x @ head.get_parameter(f"{name}.weight").T + head.get_parameter(f"{name}.bias")


def test_the_linear_head_is_one_linear_map() -> None:
    head, x = random(LinearHead(num_classes=7)), torch.randn(3, 12, dtype=torch.float64)
    assert {tuple(weight.shape) for weight in head.parameters()} == {(7, 12), (7,)}
    torch.testing.assert_close(head(x), linear(head, "linear", x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("config", [TanhHead(num_classes=7), TanhHead(num_classes=7, hidden=5)])
def test_the_pre_training_head_has_a_hidden_layer_with_tanh(config: TanhHead) -> None:
    head, x = random(config), torch.randn(3, 12, dtype=torch.float64)
    hidden = 12 if config.hidden == "width" else config.hidden
    assert head.get_parameter("hidden.weight").shape == (hidden, 12)
    expected = linear(head, "classifier.linear", linear(head, "hidden", x).tanh())
    torch.testing.assert_close(head(x), expected, rtol=0, atol=1e-12)


def test_the_hidden_layer_of_a_fresh_head_is_not_zero() -> None:
    head = fresh(TanhHead(num_classes=7))
    assert head.get_parameter("hidden.weight").std() > 0.1
    head(torch.randn(64, 12)).square().sum().backward()
    assert head.get_parameter("classifier.linear.weight").grad is not None


def test_without_a_head_the_vector_is_the_answer() -> None:
    x = torch.randn(3, 12)
    assert fresh(NoHead())(x) is x
    model, images = small(head=NoHead()).build(), torch.randn(2, 3, 32, 48)
    assert model(images).equal(model.forward_pooled(images))


@HEADS
def test_a_head_without_classes_is_refused(kind: type[LinearHead | TanhHead]) -> None:
    with raises("config.out_of_range", "classes", 0):
        kind(num_classes=0)
