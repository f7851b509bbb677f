"""How far attention looks, where it is known beforehand."""

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from tests.errors import raises
from tests.explanation.by_hand import awake, images_for
from tests.models.variants import VARIANTS, VITS, small
from vitral.core.config import Size
from vitral.explanation.attention_distance import attention_distance, mean_attention_distance
from vitral.models import Attention, Axial, Grid, Layout, Local, Patches, Tokens, VisionTransformer, attention_maps
from vitral.models.attention import SelfAttention


def even(layout: Layout) -> Tensor:
    length = layout.length()
    return torch.full((2, 3, length, length), 1 / length)


def mean_of_pairs(grid: Grid, down: float, right: float) -> float:
    """The mean distance between two places of a grid, by going through all pairs."""
    places = [(row * down, column * right) for row in range(grid.rows) for column in range(grid.columns)]
    return sum(math.dist(*pair) for pair in itertools.product(places, repeat=2)) / len(places) ** 2


@pytest.mark.parametrize("patches", [1, 2, 9])
@pytest.mark.parametrize("cls", [0, 1])
def test_even_attention_along_a_line_looks_a_third_of_it_away(patches: int, cls: int) -> None:
    layout = Layout(cls, 2, Grid(1, patches))
    found = attention_distance(even(layout), layout, Size(16, 8 * patches))
    closed = 8 * (patches**2 - 1) / (3 * patches)
    torch.testing.assert_close(found, torch.full((2, 3), closed))


@pytest.mark.parametrize("layout", [Layout(1, 0, Grid(4, 6)), Layout(0, 3, Grid(5, 2))])
def test_even_attention_looks_as_far_as_two_patches_are_apart_in_the_mean(layout: Layout) -> None:
    image = Size(16 * layout.grid.rows, 8 * layout.grid.columns)
    found = attention_distance(even(layout), layout, image)
    torch.testing.assert_close(found, torch.full((2, 3), mean_of_pairs(layout.grid, 16, 8)))


def test_a_patch_that_looks_at_itself_looks_no_distance() -> None:
    layout = Layout(1, 1, Grid(3, 3))
    assert not attention_distance(torch.eye(11).expand(1, 2, -1, -1), layout, Size(48, 48)).any()


def test_a_patch_that_looks_at_the_class_token_alone_counts_as_looking_at_itself() -> None:
    layout = Layout(1, 0, Grid(1, 2))
    at_class, at_neighbor = torch.tensor([1.0, 0, 0]), torch.tensor([0.0, 1, 0])
    attention = torch.stack([at_class, at_class, at_neighbor])[None, None]  # (1, 1, 3, 3)
    assert attention_distance(attention, layout, Size(8, 16)).tolist() == [[4.0]]


def test_what_goes_to_the_class_token_and_the_registers_does_not_count() -> None:
    layout = Layout(1, 2, Grid(2, 3))
    attention = torch.rand(1, 2, 9, 9).softmax(dim=-1)
    other = attention.clone()
    other[..., :3] *= 50
    other /= other.sum(dim=-1, keepdim=True)
    other[..., :3, :] = 0
    torch.testing.assert_close(
        attention_distance(attention, layout, Size(16, 24)), attention_distance(other, layout, Size(16, 24))
    )


def staring(model: VisionTransformer) -> VisionTransformer:
    """The model with queries that ask nothing: everything it can see it sees evenly."""
    for part in model.modules():
        if isinstance(part, SelfAttention):
            nn.init.zeros_(part.heads.qkv.weight)
    return model


@pytest.mark.parametrize(
    ("mixer", "windows"),
    [
        (Attention(heads=2), [Grid(4, 6), Grid(4, 6)]),
        (Axial(heads=2), [Grid(1, 6), Grid(4, 1)]),
        (Local(heads=2, rows=2, columns=3), [Grid(2, 3), Grid(2, 3)]),
    ],
)
def test_a_model_that_looks_evenly_has_the_distance_of_its_windows(
    mixer: Attention | Axial | Local, windows: list[Grid]
) -> None:
    config = small(mixer=mixer, stem=Patches(patch=Size(8, 8)), tokens=Tokens(registers=1))
    found = mean_attention_distance(staring(config.build()), [images_for(config)])
    expected = [[mean_of_pairs(window, 8, 8)] * 2 for window in windows]
    torch.testing.assert_close(found, torch.tensor(expected))


def test_batches_do_not_matter_and_images_count_alike() -> None:
    model = awake(small(position=VITS["position-rope2d"].position))
    images = images_for(model.config, 5)
    found = mean_attention_distance(model, images.split(2))
    layout = model.config.layout(model.config.image_size)
    maps = [attention_maps(model, image[None]) for image in images]
    one_by_one = [[attention_distance(attention, layout, Size(32, 48))[0] for attention in layers] for layers in maps]
    expected = torch.stack([torch.stack(layers) for layers in one_by_one]).mean(dim=0)
    torch.testing.assert_close(found, expected)
    assert found.std() > 0
    assert not found.requires_grad


@pytest.mark.parametrize("name", ["resnet", "mixer-pooling", "mixer-token_mlp"])
def test_a_model_without_attention_has_no_rows(name: str) -> None:
    assert mean_attention_distance(VARIANTS[name].build(), [torch.randn(1, 3, 32, 48)]).shape == (0, 0)


def test_dropout_is_off_and_training_goes_on_afterwards() -> None:
    model = awake(small(mixer=Attention(heads=2, dropout=0.5))).train()
    images = images_for(model.config)
    assert mean_attention_distance(model, [images]).equal(mean_attention_distance(model, [images]))
    assert all(part.training for part in model.modules())


def test_no_images_are_refused() -> None:
    with raises("data.empty", "images"):
        mean_attention_distance(small().build(), [])
