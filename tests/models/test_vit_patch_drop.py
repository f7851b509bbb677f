"""Dropping patches in training."""

import pytest
import torch

from tests.errors import raises
from vitral.core.config import Size
from vitral.models import Attention, Local, MeanPool, Resnet, Rope2d, SinCos2d, Tokens, Vit
from vitral.models.base import Grid, Layout
from vitral.models.position.additive import Learned1d
from vitral.models.vit import check_patch_drop, drop_patches

SMALL = Vit(image_size=Size(32, 32), width=16, depth=2, mixer=Attention(heads=2))


def test_every_image_keeps_some_of_its_own_patches_and_all_its_other_tokens() -> None:
    layout = Layout(1, 2, Grid(3, 4))
    tokens = torch.arange(5 * 15, dtype=torch.float32).reshape(5, 15, 1).expand(-1, -1, 2)
    left, new = drop_patches(tokens, layout, 0.5)
    assert (new, left.shape) == (Layout(1, 2, Grid(1, 6)), (5, 9, 2))
    assert torch.equal(left[:, :3], tokens[:, :3])
    chosen = [set(row) for row in left[:, 3:, 0].int().tolist()]
    assert all(len(each) == 6 for each in chosen)
    for image, each in enumerate(chosen):
        assert each <= set(range(15 * image + 3, 15 * image + 15))
    assert len({frozenset(value - 15 * image for value in each) for image, each in enumerate(chosen)}) > 1


@pytest.mark.parametrize(("rate", "kept"), [(0.0, 12), (0.3, 8), (0.99, 1)])
def test_the_rate_is_the_fraction_that_is_dropped_and_one_patch_is_always_left(rate: float, kept: int) -> None:
    left, new = drop_patches(torch.zeros(1, 12, 4), Layout(0, 0, Grid(3, 4)), rate)
    assert left.shape[1] == new.length() == kept


@pytest.mark.parametrize("tokens", [Tokens(), Tokens(registers=3)])
@pytest.mark.parametrize("pool", [SMALL.pool, MeanPool()])
def test_the_order_of_what_is_left_changes_nothing(tokens: Tokens, pool: MeanPool) -> None:
    model = SMALL.model_copy(update={"tokens": tokens, "pool": pool}).build().double()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    images = torch.rand(3, 3, 32, 32, dtype=torch.float64)
    whole = model.train()(images)
    model.patch_drop_rate = 1e-9  # all are kept, in random order
    torch.testing.assert_close(model(images), whole, rtol=1e-12, atol=1e-12)
    model.patch_drop_rate = 0.5
    assert not torch.allclose(model(images), whole)
    torch.testing.assert_close(model.eval()(images), whole, rtol=1e-12, atol=1e-12)  # training only


@pytest.mark.parametrize(
    "config",
    [
        SMALL.model_copy(update={"position": Rope2d()}),
        SMALL.model_copy(update={"position": Learned1d(where="layers")}),
        SMALL.model_copy(update={"mixer": Local(heads=2, rows=1, columns=1)}),
        Resnet(),
    ],
    ids=["rope", "every layer", "windows", "resnet"],
)
def test_models_that_need_the_grid_refuse(config: Vit | Resnet) -> None:
    with raises("config.conflict", "here"):
        check_patch_drop(config, "here")


def test_positions_before_the_blocks_are_accepted() -> None:
    check_patch_drop(SMALL, "here")
    check_patch_drop(SMALL.model_copy(update={"position": SinCos2d()}), "here")
