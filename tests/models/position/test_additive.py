"""Positions: what a model can and cannot tell of the order of its patches."""

from typing import Literal

import pytest
import torch
from torch import Tensor

from tests.errors import raises
from tests.models.variants import SMALL, small
from vitral.core.config import Size, union_members
from vitral.models import (
    Learned1d,
    Learned2d,
    MeanPool,
    NoPosition,
    Relative2d,
    SinCos1d,
    SinCos2d,
    Tokens,
    VisionTransformer,
    Vit,
)
from vitral.models.base import Grid
from vitral.models.embed import cut_patches, join_patches
from vitral.models.position import PositionConfig, resample_grid

AnyPosition = PositionConfig  # the union itself: a new kind is tested once it is named there
KINDS: list[AnyPosition] = [kind(**SMALL.get(kind, {})) for kind in union_members(PositionConfig)]
EVERY = pytest.mark.parametrize("position", KINDS, ids=lambda position: position.kind)


def awake(config: Vit) -> VisionTransformer:
    model = config.build().eval()
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.5)
    return model


def shuffled(images: Tensor, order: Tensor) -> Tensor:
    patch, grid = Size(8, 8), Grid(4, 6)
    return join_patches(cut_patches(images, patch)[:, order], grid, patch)


@EVERY
@torch.no_grad()
def test_shuffled_patches_change_nothing_without_positions_and_something_with_each_kind(position: AnyPosition) -> None:
    model, images = awake(small(position=position)).double(), torch.rand(2, 3, 32, 48, dtype=torch.float64)
    order = torch.randperm(24)
    change = (model(images) - model(shuffled(images, order))).abs().max()
    if isinstance(position, NoPosition):
        assert change < 1e-12
    else:
        assert change > 1e-2


@EVERY
@torch.no_grad()
def test_keeping_every_patch_in_its_place_changes_nothing(position: AnyPosition) -> None:
    model, images = awake(small(position=position)), torch.rand(2, 3, 32, 48)
    assert torch.equal(model(images), model(shuffled(images, torch.arange(24))))


@EVERY
def test_every_kind_has_its_own_name_and_survives_json(position: AnyPosition) -> None:
    config = small(position=position)
    assert Vit.from_json(config.to_json()).position == position
    assert [other.kind for other in KINDS].count(position.kind) == 1


@EVERY
@torch.no_grad()
def test_places_reach_each_patch_whatever_stands_before_them(position: AnyPosition) -> None:
    """Class token and registers shift the sequence, never the places."""
    model = awake(small(position=position, tokens=Tokens(registers=3)))
    bare = awake(small(position=position))
    weights = model.state_dict()
    weights["prefix.tokens"] = weights["prefix.tokens"][:1]
    bare.load_weights(weights)
    images = torch.rand(1, 3, 32, 48)
    one, other = model.embed(images, model.layout(images)), bare.embed(images, bare.layout(images))
    assert torch.equal(one[:, 4:], other[:, 1:])


def test_a_resized_grid_stretches_the_patches_and_keeps_the_class_row() -> None:
    model = awake(small())
    table = model.get_parameter("position.table")
    layout = model.config.layout(Size(48, 64))
    zeros = torch.zeros(1, layout.length(), 32)
    rows = model.position(zeros, layout, 0)[0]
    torch.testing.assert_close(rows[0], table[0, 0])
    torch.testing.assert_close(rows[1:], resample_grid(table[0, 1:], Grid(4, 6), Grid(6, 8)))
    corners, places = (0, 5, 18, 23), (0, 7, 40, 47)
    for old, new in zip(corners, places, strict=True):
        torch.testing.assert_close(rows[1 + new], table[0, 1 + old])


def test_a_class_token_without_a_row_is_left_as_it_is() -> None:
    model = awake(small(position=Learned1d(cls=False)))
    layout = model.config.layout(Size(32, 48))
    rows = model.position(torch.zeros(1, 25, 32), layout, 0)[0]
    assert not rows[0].any()
    torch.testing.assert_close(rows[1:], model.get_parameter("position.table")[0])


@pytest.mark.parametrize("kind", [Learned1d, Learned2d])
def test_positions_enter_at_the_stem_in_every_layer_or_in_every_layer_alike(
    kind: type[Learned1d] | type[Learned2d],
) -> None:
    zeros = torch.zeros(1, 25, 32)
    added = {}
    for where in ("stem", "layers", "shared"):
        model = awake(small(position=kind(where=where)))
        layout = model.config.layout(Size(32, 48))
        added[where] = [model.position(zeros, layout, layer) for layer in range(2)]
    assert added["stem"][0].any()
    assert not added["stem"][1].any()
    assert added["layers"][1].any()
    assert not torch.equal(*added["layers"])
    assert torch.equal(*added["shared"])


def test_two_axes_give_a_patch_its_column_then_its_row() -> None:
    model = awake(small(position=Learned2d()))
    layout = model.config.layout(Size(32, 48))
    rows = model.position(torch.zeros(1, 25, 32), layout, 0)[0, 1:].unflatten(0, (4, 6))
    x, y = model.get_parameter("position.x")[0], model.get_parameter("position.y")[0]
    torch.testing.assert_close(rows[2, 5], torch.cat([x[5], y[2]]))


@pytest.mark.parametrize("position", [SinCos1d(), SinCos2d()], ids=lambda position: position.kind)
def test_fixed_positions_have_no_weights_and_continue_beyond_the_grid(position: SinCos1d | SinCos2d) -> None:
    model = small(position=position).build()
    assert not list(model.position.parameters())
    small_layout, tall_layout = (model.config.layout(Size(height, 48)) for height in (32, 64))
    short = model.position(torch.zeros(1, 25, 32), small_layout, 0)
    tall = model.position(torch.zeros(1, 49, 32), tall_layout, 0)
    torch.testing.assert_close(tall[:, :25], short)


@pytest.mark.parametrize(("position", "width"), [(Learned2d(), 31), (SinCos1d(), 33), (SinCos2d(), 34)])
def test_a_width_that_an_axis_cannot_share_is_refused(position: AnyPosition, width: int) -> None:
    with raises("config.indivisible", "width", position.kind, width):
        small(width=width, position=position, mixer=SMALL_HEAD)


SMALL_HEAD = small().mixer.model_copy(update={"heads": 1})


@torch.no_grad()
@pytest.mark.parametrize("where", ["layers", "shared"])
def test_the_model_adds_them_before_each_block(where: Literal["layers", "shared"]) -> None:
    model, images = awake(small(position=Learned1d(where=where))), torch.rand(1, 3, 32, 48)
    layout = model.layout(images)
    tokens = model.prefix(model.stem(images))
    for layer, block in enumerate(model.blocks):
        tokens = block(model.position(tokens, layout, layer), layout, layout.length())
    torch.testing.assert_close(torch.cat(model.forward_features(images)[:3], dim=1), model.norm(tokens))


def test_sines_in_reading_order_begin_with_the_class_token_only_where_there_is_one() -> None:
    rows = {}
    for cls in (True, False):
        model = small(position=SinCos1d(), tokens=Tokens(cls=cls), pool=MeanPool()).build()
        layout = model.config.layout(Size(32, 48))
        rows[cls] = model.position(torch.zeros(1, layout.length(), 32), layout, 0)[0]
    torch.testing.assert_close(rows[True][:24], rows[False])


def test_offsets_on_another_grid_are_the_resampled_table() -> None:
    config = small(position=Relative2d())
    relation = config.position.build_attention(config.context(), 16)
    table = torch.nn.init.normal_(relation.get_parameter("table"))
    q, grid = torch.randn(1, 1, 15, 16), Grid(3, 5)
    bias = relation.bias(q, grid, grid)
    stretched = resample_grid(table, Grid(7, 11), Grid(5, 9)).unflatten(0, (5, 9))
    assert bias is not None
    query, key = (2, 1), (0, 4)  # two rows up, three columns to the right
    expected = q[0, 0, 2 * 5 + 1] @ stretched[2 + query[0] - key[0], 4 + query[1] - key[1]] / 4
    torch.testing.assert_close(bias[0, 0, 2 * 5 + 1, 0 * 5 + 4], expected)
