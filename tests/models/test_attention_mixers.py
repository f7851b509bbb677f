"""What stands in attention's place: pooling, nothing, and an MLP across the tokens."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.errors import raises
from tests.models.variants import NO_CLASS, small
from vitral.core.config import Size, union_members
from vitral.models import Grid, Identity, Layout, MeanPool, Pooling, TokenMlp, Tokens
from vitral.models.attention import BaseMixer, MixerConfig
from vitral.models.base import BuildContext
from vitral.models.init import Original, initialize
from vitral.models.position import AttentionPosition

LAYOUT = Layout(0, 0, Grid(3, 5))
PLAIN = [kind for kind in union_members(MixerConfig) if issubclass(kind, BaseMixer)]


def built(config: Pooling | Identity | TokenMlp, layout: Layout = LAYOUT) -> nn.Module:
    mixer = config.build(BuildContext(4, 1, layout, 1e-6), 0, AttentionPosition()).double()
    initialize(mixer, Original())
    return mixer


def test_pooling_gives_the_mean_of_the_neighbors_less_itself() -> None:
    x = torch.randn(2, 15, 4, dtype=torch.float64)
    found = built(Pooling())(x, LAYOUT, 15)
    for row, column in itertools.product(range(3), range(5)):
        near = [
            x[:, r * 5 + c]
            for r in range(max(0, row - 1), min(3, row + 2))
            for c in range(max(0, column - 1), min(5, column + 2))
        ]
        place = row * 5 + column
        expected = sum(near, torch.zeros(2, 4, dtype=torch.float64)) / len(near) - x[:, place]
        torch.testing.assert_close(found[:, place], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("keep", [1, 7, 15])
def test_identity_gives_the_tokens_themselves(keep: int) -> None:
    x = torch.randn(2, 15, 4)
    assert built(Identity())(x, LAYOUT, keep).equal(x[:, :keep])


@pytest.mark.parametrize("keep", [1, 16])
def test_the_token_mlp_is_two_layers_across_the_tokens_of_each_channel(keep: int) -> None:
    layout = Layout(1, 0, Grid(3, 5))
    mixer = built(TokenMlp(hidden=6), layout)
    x = torch.randn(2, 16, 4, dtype=torch.float64)
    found = mixer(x, layout, keep)
    first, second = mixer.get_submodule("expand"), mixer.get_submodule("contract")
    for channel in range(4):
        expected = second(F.gelu(first(x[:, :, channel]), approximate="tanh"))
        torch.testing.assert_close(found[:, :, channel], expected[:, :keep], rtol=0, atol=1e-12)


def test_the_token_mlp_carries_from_every_token_to_every_token_but_not_between_channels() -> None:
    mixer = built(TokenMlp(hidden=64))
    x = torch.randn(1, 15, 4, dtype=torch.float64, requires_grad=True)
    for place in (0, 14):
        (gradient,) = torch.autograd.grad(mixer(x, LAYOUT, 15)[0, place, 2], x)
        assert (gradient[0, :, 2] != 0).all()
        assert not gradient[0, :, [0, 1, 3]].any()


def test_the_token_mlp_refuses_another_grid_even_of_as_many_patches() -> None:
    with raises("config.size_mismatch", "token_mlp", "3x5", "5x3") as caught:
        built(TokenMlp())(torch.zeros(1, 15, 4, dtype=torch.float64), Layout(0, 0, Grid(5, 3)), 15)
    assert caught.value.where == "image_size"


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("tokens", [Tokens(), Tokens(cls=False, registers=1)], ids=["class token", "register"])
def test_a_mixer_that_moves_nothing_into_a_token_is_refused_beside_it(kind: type[BaseMixer], tokens: Tokens) -> None:
    if kind is TokenMlp:
        assert small(mixer=TokenMlp(), tokens=tokens, pool=MeanPool()).layout(Size(32, 48)).prefix() == 1
        return
    with raises("config.conflict", kind.model_fields["kind"].default, "tokens.cls=false") as caught:
        small(mixer=kind(), tokens=tokens, pool=MeanPool())
    assert caught.value.where == "mixer"


@pytest.mark.parametrize("kind", PLAIN)
def test_a_position_inside_attention_is_refused_without_attention(kind: type[BaseMixer]) -> None:
    name = kind.model_fields["kind"].default
    with raises("config.conflict", "position", "rope2d", name):
        small(mixer=kind(), position={"kind": "rope2d"}, **NO_CLASS)
