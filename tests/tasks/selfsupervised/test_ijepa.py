"""Blocks and targets of I-JEPA; whole steps are in `tests/weights/formats/test_pretraining.py`."""

import numpy as np
import pytest
import torch

from tests.errors import raises
from tests.models.variants import small
from vitral.core.config import Size
from vitral.core.rng import BatchRng
from vitral.data.transforms.preprocessing import CENTERED
from vitral.models import Patches
from vitral.models.base import Grid
from vitral.tasks.selfsupervised.ijepa import Ijepa, JointEmbeddingPrediction, Predictor, gather_blocks, smallest
from vitral.tasks.task import Collective

PREDICTOR = Predictor(width=16, depth=1, heads=2)


def task() -> JointEmbeddingPrediction:
    model = small(image_size=Size(64, 64), stem=Patches(patch=Size(8, 8))).build()
    built = Ijepa(predictor=PREDICTOR).build(model, 0, (), CENTERED)
    assert isinstance(built, JointEmbeddingPrediction)
    return built


def test_contexts_are_cut_to_the_smallest_and_hold_no_target() -> None:
    context, targets = task().draw_blocks(16, Grid(14, 14), np.random.default_rng(0))
    assert targets.shape[:2] == (4, 16)
    whole = task().draw_blocks(1, Grid(14, 14), np.random.default_rng(1))
    assert context.shape[0] == 16
    assert context.shape[1] > 10
    for row in range(16):
        assert not set(context[row].tolist()) & set(targets[:, row].flatten().tolist())
    assert whole.context.shape[1] > 0


def test_the_smallest_context_of_all_processes_counts() -> None:
    class Other(Collective):
        size = 2

        def sum(self, values: torch.Tensor) -> torch.Tensor:
            return values + torch.bincount(torch.tensor([12, 30]), minlength=len(values))

    assert smallest([20, 40], 64, Collective()) == 20
    assert smallest([20, 40], 64, Other()) == 12
    assert smallest([], 64, Other()) == 12
    assert smallest([], 64, Collective()) == 0


def test_draws_do_not_depend_on_how_a_batch_is_split_but_for_the_cut() -> None:
    built, grid = task(), Grid(8, 8)
    whole = built.draw_blocks(6, grid, BatchRng(5, 3, 0, np.arange(6)))
    second = built.draw_blocks(3, grid, BatchRng(5, 3, 1, np.arange(1, 6, 2)))
    assert torch.equal(second.targets, whole.targets[:, 1::2])
    shared = whole.context.shape[1]
    assert torch.equal(second.context[:, :shared], whole.context[1::2])


def test_blocks_are_gathered_target_by_target() -> None:
    features = torch.arange(24.0).view(2, 4, 3)
    targets = torch.tensor([[[0, 1], [2, 3]], [[3, 0], [1, 1]]])  # (T, B, P)
    found = gather_blocks(features, targets)
    assert found.shape == (4, 2, 3)
    for target in range(2):
        for image in range(2):
            assert torch.equal(found[2 * target + image], features[image, targets[target, image]])


def test_the_context_does_not_see_the_targets() -> None:
    built, images = task(), torch.randn(1, 3, 64, 64)
    context, _ = built.draw_blocks(1, Grid(8, 8), np.random.default_rng(0))
    hidden = next(place for place in range(64) if place not in context[0].tolist())
    changed, (row, column) = images.clone(), divmod(hidden, 8)
    changed[:, :, row * 8 : row * 8 + 8, column * 8 : column * 8 + 8] += 1
    one, other = (built.model.forward_kept(each, context) for each in (images, changed))
    assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("fields", "predictor", "code"),
    [
        ({"image_size": Size(8, 64)}, PREDICTOR, "config.unsupported"),
        ({}, Predictor(width=18, depth=1, heads=2), "config.indivisible"),
    ],
)
def test_grids_without_blocks_and_widths_without_positions_are_refused(
    fields: dict[str, Size], predictor: Predictor, code: str
) -> None:
    with raises(code):
        Ijepa(predictor=predictor).check(small(**fields))
