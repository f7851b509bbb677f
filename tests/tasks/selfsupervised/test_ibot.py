"""Masks, heads and the KoLeo loss of iBOT; whole steps are in `tests/weights/formats/test_pretraining.py`."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.errors import raises
from tests.models.variants import small
from vitral.core.config import Size
from vitral.data.transforms.preprocessing import CENTERED
from vitral.models import Convolutions
from vitral.models.base import Grid
from vitral.tasks.selfsupervised.dino import DinoOutputs
from vitral.tasks.selfsupervised.ibot import (
    Ibot,
    MaskedSelfDistillation,
    OwnPatchLayer,
    PatchHeadConfig,
    PatchMasks,
    SeparatePatchHead,
    SharedPatchHead,
    koleo_losses,
)
from vitral.tasks.task import Collective

HEAD = DinoOutputs(outputs=16, hidden=12, bottleneck=8)


def task(**fields: Any) -> MaskedSelfDistillation:
    model = small(image_size=Size(64, 64)).build()
    built = Ibot(head=HEAD, **fields).build(model, 0, (), CENTERED)
    assert isinstance(built, MaskedSelfDistillation)
    return built


def test_half_of_the_views_are_masked_by_a_tenth_to_a_half() -> None:
    rng, grid = np.random.default_rng(0), Grid(14, 14)
    counts = np.stack([PatchMasks().draw(rng, grid) for _ in range(400)]).sum(axis=1)
    masked = counts[counts > 0]
    assert 0.42 < len(masked) / 400 < 0.58
    assert masked.max() <= 98
    assert 40 < masked.mean() < 60  # 0.3 of 196, or fewer where no further block fits


def test_a_range_that_falls_is_refused() -> None:
    with raises("config.conflict", "least", "0.5", "0.2"):
        PatchMasks(least=0.5, most=0.2)


def test_masked_patches_are_not_seen_by_the_student_and_seen_by_the_teacher() -> None:
    built, images = task(masks=PatchMasks(probability=1.0)), torch.randn(2, 3, 64, 64)
    masks = torch.zeros(2, 64, dtype=torch.bool)
    masks[:, 9] = True  # row 1, column 1
    changed = images.clone()
    changed[:, :, 8:16, 8:16] += 1
    one, other = (built.encode(built.model, each, masks).pooled for each in (images, changed))
    assert torch.equal(one, other)
    seen, too = (built.encode(built.teacher.model, each, None).pooled for each in (images, changed))
    assert not torch.equal(seen, too)


@pytest.mark.parametrize(
    ("patch_head", "shared", "outputs"),
    [(SharedPatchHead(), True, 16), (OwnPatchLayer(outputs=20), False, 20), (SeparatePatchHead(head=HEAD), False, 16)],
)
def test_heads_of_patches(patch_head: PatchHeadConfig, shared: bool, outputs: int) -> None:
    head, rows = task(patch_head=patch_head).head, torch.randn(5, 32)
    found = head.of_patches(rows)
    assert found.shape == (5, outputs) == (5, head.patch_outputs)
    assert (
        torch.equal(found, head(rows))
        if shared
        else found.shape != head(rows).shape or not torch.equal(found, head(rows))
    )


def test_all_last_layers_rest_at_first() -> None:
    built = task(patch_head=OwnPatchLayer(outputs=20), frozen_last_layer=0.5)
    images, labels = torch.randn(4, 3, 64, 64), torch.zeros(4)
    for done, rests in ((0.2, True), (0.6, False)):
        built.zero_grad()
        built.begin_step(done)
        built(images, labels, np.random.default_rng(0)).loss.backward()
        built.filter_gradients()
        assert built.head.patches is not None
        for last in (built.head.pooled.last, built.head.patches.last):
            assert (last.weight.grad is None) == rests


def test_koleo_is_the_logarithm_of_the_distance_to_the_nearest() -> None:
    torch.manual_seed(0)
    rows = torch.randn(7, 5, dtype=torch.float64)
    points = rows / rows.norm(dim=1, keepdim=True)
    distances = torch.cdist(points, points).fill_diagonal_(torch.inf)
    expected = -distances.min(dim=1).values.log()
    torch.testing.assert_close(koleo_losses(rows, Collective()), expected, rtol=0, atol=1e-6)


def test_koleo_needs_the_whole_batch() -> None:
    assert Ibot(koleo=0.1).batch_dependence()
    assert not Ibot().batch_dependence()


def test_models_that_leak_masked_pixels_are_refused() -> None:
    with raises("config.unsupported", "ibot"):
        Ibot().check(small(stem=Convolutions(widths=(8, 12, 16))))
