"""The schedule of dropped patches, in steps of a run."""

import pytest
import torch

from tests.errors import raises
from vitral.core.config import Size, override
from vitral.data.transforms.preprocessing import Normalize
from vitral.models.attention import Attention
from vitral.models.head import LinearHead
from vitral.models.vit import VisionTransformer, Vit
from vitral.recipes.recipe import Recipe
from vitral.tasks.classify import Classify, NoPatchDrop, PatchDrop


def test_the_rate_falls_to_its_end() -> None:
    drop = PatchDrop(start=0.6, end=0.2, until=0.5)
    assert [drop.rate(done) for done in (0, 0.25, 0.5, 1)] == pytest.approx([0.6, 0.4, 0.2, 0.2])
    assert NoPatchDrop().rate(0.3) == 0


def test_each_step_of_the_task_sets_the_rate_of_its_model() -> None:
    config = Vit(image_size=Size(32, 32), width=12, depth=1, mixer=Attention(heads=2), head=LinearHead(num_classes=2))
    task = Classify(patch_drop=PatchDrop(start=0.5, until=1)).build(config.build(), 2, (1, 1), Normalize())
    assert isinstance(task.model, VisionTransformer)
    task.begin_step(0.5)
    assert task.model.patch_drop_rate == 0.25
    lengths: list[int] = []
    task.model.blocks[0].register_forward_pre_hook(lambda block, inputs: lengths.append(inputs[0].shape[1]))
    images = torch.rand(2, 3, 32, 32)
    task.train()
    task.model(images)
    task.eval()
    task.model(images)
    assert lengths == [1 + 3, 1 + 4]


def test_a_recipe_whose_model_needs_the_grid_is_refused() -> None:
    with raises("config.conflict", "task.patch_drop"):
        override(Recipe(), ["task.patch_drop=linear", "model.position=rope2d"])
    with raises("config.conflict", "compile"):
        override(Recipe(), ["task.patch_drop=linear", "compile=true"])
