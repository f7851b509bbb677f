"""A model layer by layer: the same tokens as in one go, and the attention that was used."""

import copy
import weakref

import pytest
import torch
from torch import nn

from tests.errors import raises
from tests.explanation.by_hand import attention_by_hand, awake, images_for
from tests.models.variants import VARIANTS, VITS, small
from vitral.explanation.trace import has_attention, iterate_layers, require_vit
from vitral.models import Identity, MeanPool, Tokens
from vitral.models.attention import BaseAttention

ATTENDING = [name for name, config in VITS.items() if isinstance(config.mixer, BaseAttention)]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ATTENDING)
@torch.no_grad()
def test_attention_is_that_of_brute_force_in_double_precision(name: str) -> None:
    model, images = awake(VITS[name]), images_for(VITS[name], 1)
    exact = copy.deepcopy(model).double()
    for step, truth in zip(iterate_layers(model, images), iterate_layers(exact, images.double()), strict=True):
        expected = attention_by_hand(exact, step.layer - 1, truth.before[0])
        torch.testing.assert_close(step.attention()[0].double(), torch.from_numpy(expected), rtol=0, atol=1e-5)
        assert expected.std() > 0.005  # neither is even
        rows = step.attention().sum(dim=-1)
        torch.testing.assert_close(rows, torch.ones_like(rows))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", VITS)
@torch.no_grad()
def test_walking_leads_to_the_features_of_the_model(name: str) -> None:
    model, images = awake(VITS[name]), images_for(VITS[name])
    steps = list(iterate_layers(model, images))
    assert [step.layer for step in steps] == [*range(1, model.config.depth + 1)]
    tokens = model.norm(steps[-1].after)
    features = model.forward_features(images)
    assert tokens.equal(torch.cat([features.cls, features.registers, features.patches], dim=1))
    assert steps[0].before.equal(model.embed(images, steps[0].layout))


@torch.no_grad()
def test_positions_of_every_layer_are_in_what_the_layer_was_given() -> None:
    model = awake(VITS["learned1d-layers"])
    first, second = iterate_layers(model, images_for(model.config))
    table = model.position.get_parameter("table")
    torch.testing.assert_close(second.before - first.after, table[1].expand_as(first.after))


@pytest.mark.parametrize("mixer", ["pooling", "identity", "token_mlp"])
@torch.no_grad()
def test_a_layer_without_attention_has_no_heads(mixer: str) -> None:
    config = VITS[f"mixer-{mixer}"]
    model = config.build()
    assert not has_attention(model)
    length = config.layout(config.image_size).length()
    for step in iterate_layers(model, images_for(config)):
        assert step.recordings == ()
        assert step.attention().shape == (2, 0, length, length)


def test_a_model_without_tokens_is_refused() -> None:
    model = VARIANTS["resnet"].build()
    assert not has_attention(model)
    with raises("config.unsupported", "model"):
        iterate_layers(model, torch.randn(1, 3, 32, 48))
    with raises("config.unsupported", "model"):
        require_vit(model)


def test_a_model_with_attention_attends() -> None:
    assert has_attention(small().build())
    assert not has_attention(small(mixer=Identity(), tokens=Tokens(cls=False), pool=MeanPool()).build())


@torch.no_grad()
def test_nothing_of_a_layer_is_kept_once_the_next_but_one_is_there() -> None:
    model = small(depth=4).build()
    alive: list[weakref.ref[torch.Tensor]] = []
    for step in iterate_layers(model, images_for(model.config)):
        alive += [weakref.ref(step.recordings[0].heads.q), weakref.ref(step.recordings[0].attended)]
        assert [tensor() is not None for tensor in alive] == [False] * (len(alive) - 2) + [True] * 2


def hooks_of(model: nn.Module) -> int:
    return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules())


def test_no_hook_stays_behind_when_the_walk_is_left() -> None:
    model = small().build()
    steps = iterate_layers(model, images_for(model.config))
    next(steps)
    assert hooks_of(model) == 0
    model.blocks[1].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        next(steps)
    assert hooks_of(model) == 1


def test_gradients_are_kept_if_the_caller_wants_them() -> None:
    model = small().build()
    assert all(step.after.requires_grad for step in iterate_layers(model, images_for(model.config)))
    with torch.no_grad():
        assert not any(step.after.requires_grad for step in iterate_layers(model, images_for(model.config)))
