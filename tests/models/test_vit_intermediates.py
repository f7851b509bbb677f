"""Tokens and attention between the layers, as methods of the model."""

import pytest
import torch
from torch import Tensor

from tests.errors import raises
from tests.models.variants import small
from vitral.models import Identity, MeanPool, Resnet, Rope2d, Tokens, Vit
from vitral.models.hooks import attention_maps

IMAGES = torch.rand(2, 3, *small().image_size, generator=torch.Generator().manual_seed(0))


def tokens_after(model: torch.nn.Module, layer: int) -> Tensor:
    """What the hook of torch sees."""
    seen: list[Tensor] = []
    block = model.blocks[layer]  # type: ignore[index]
    handle = block.register_forward_hook(lambda _module, _inputs, output: seen.append(output))  # type: ignore[union-attr]
    model.forward_features(IMAGES)  # type: ignore[operator]
    handle.remove()
    return seen[0]


@pytest.mark.parametrize(
    "config", [small(), small(position=Rope2d(), tokens=Tokens(registers=2))], ids=["plain", "rope"]
)
def test_intermediates_are_the_tokens_after_each_layer(config: Vit) -> None:
    model = config.build().eval()
    layers = list(range(config.depth))
    found = model.forward_intermediates(IMAGES, layers=layers)
    for layer, features in zip(layers, found, strict=True):
        assert torch.equal(torch.cat(features[:3], dim=1), tokens_after(model, layer))
        assert features.patches.shape[1] == features.grid.cells()
    assert torch.equal(model.norm(found[-1].patches), model.forward_features(IMAGES).patches)


def test_layers_come_in_the_order_asked_for_and_count_from_the_end() -> None:
    model = small().build().eval()
    last, first = model.forward_intermediates(IMAGES, layers=[-1, 0])
    assert torch.equal(last.patches, model.forward_intermediates(IMAGES, [model.config.depth - 1])[0].patches)
    assert torch.equal(first.patches, model.forward_intermediates(IMAGES, [0])[0].patches)
    assert model.forward_intermediates(IMAGES, []) == []


@pytest.mark.parametrize("layer", [99, -99])
def test_a_layer_that_is_not_there_is_refused(layer: int) -> None:
    with raises("config.out_of_range", "layers", layer):
        small().build().forward_intermediates(IMAGES, [0, layer])


def test_gradients_reach_intermediates() -> None:
    model = small().build()
    model.forward_intermediates(IMAGES, [0])[0].patches.sum().backward()
    assert model.get_parameter("blocks.0.mlp_norm.weight").grad is not None


def test_attention_has_a_map_for_each_layer_and_head() -> None:
    config = small(tokens=Tokens(registers=1))
    model = config.build()
    maps = model.attention(IMAGES)
    length = config.layout(config.image_size).length()
    assert [each.shape for each in maps] == [(2, config.context().heads, length, length)] * config.depth
    for mine, known in zip(maps, attention_maps(model, IMAGES), strict=True):
        assert torch.equal(mine, known)
        assert torch.allclose(mine.sum(dim=-1), torch.ones(()))
    assert model.training, "the mode is as it was"


def test_models_without_layers_or_attention_say_so() -> None:
    resnet = Resnet(layers=(1,), root=32, image_size=small().image_size).build()
    with raises("config.unsupported", "ResidualNetwork"):
        resnet.forward_intermediates(IMAGES, [0])
    with raises("config.unsupported", "ResidualNetwork"):
        resnet.attention(IMAGES)
    with raises("config.unsupported", "attention"):
        small(mixer=Identity(), tokens=Tokens(cls=False), pool=MeanPool()).build().attention(IMAGES)
