"""The answer at each depth, against models that end there."""

import pytest
import torch

from tests.errors import raises
from tests.explanation.by_hand import awake, images_for
from tests.models.variants import VARIANTS, VITS, small
from vitral.explanation.trace import logit_lens
from vitral.models import Attention, MeanPool, NoHead, Tokens

HEADED = [name for name, config in VITS.items() if not isinstance(config.head, NoHead)]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", HEADED)
@torch.no_grad()
def test_the_last_depth_is_the_answer_of_the_model(name: str) -> None:
    model, images = awake(VITS[name]), images_for(VITS[name])
    found = logit_lens(model, images)
    assert found.shape == (model.config.depth, 2, 4)
    torch.testing.assert_close(found[-1], model(images).softmax(dim=1))
    torch.testing.assert_close(found.sum(dim=2), torch.ones(model.config.depth, 2))


@pytest.mark.parametrize("pool", [{}, {"pool": MeanPool(), "tokens": Tokens(registers=2)}])
@torch.no_grad()
def test_each_depth_is_the_answer_of_a_model_that_ends_there(pool: dict[str, object]) -> None:
    model, images = awake(small(depth=3, **pool)), images_for(small())
    found = logit_lens(model, images)
    for depth in (1, 2, 3):
        shorter = small(depth=depth, **pool).build()
        shorter.load_weights({name: model.state_dict()[name] for name in shorter.state_dict()})
        torch.testing.assert_close(found[depth - 1], shorter.eval()(images).softmax(dim=1))


def test_a_model_without_a_head_has_no_classes() -> None:
    assert logit_lens(small(head=NoHead()).build(), images_for(small())).shape == (2, 2, 0)


@pytest.mark.parametrize(
    ("weights", "answers"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)],
)
def test_probabilities_are_exact_whatever_the_weights(weights: torch.dtype, answers: torch.dtype) -> None:
    found = logit_lens(awake(small()).to(weights), images_for(small()).to(weights))
    assert found.dtype == answers
    torch.testing.assert_close(found.sum(dim=2), torch.ones(2, 2, dtype=answers))


def test_dropout_is_off_and_training_goes_on_afterwards() -> None:
    model, images = awake(small(mixer=Attention(heads=2, dropout=0.5))).train(), images_for(small())
    assert logit_lens(model, images).equal(logit_lens(model, images))
    assert all(part.training for part in model.modules())


def test_a_model_without_layers_is_refused() -> None:
    with raises("config.unsupported", "model"):
        logit_lens(VARIANTS["resnet"].build(), torch.randn(1, 3, 32, 48))
