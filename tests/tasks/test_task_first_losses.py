"""The loss of a method before its first step is what theory says of random weights."""

from math import log
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.models.variants import small
from vitral.core.config import Size
from vitral.data.transforms.preprocessing import CENTERED
from vitral.models import Patches
from vitral.tasks import TaskConfig
from vitral.tasks.selfsupervised.dino import Dino, DinoOutputs, cross_view_losses
from vitral.tasks.selfsupervised.ibot import Ibot, PatchMasks
from vitral.tasks.selfsupervised.ijepa import Ijepa, Predictor
from vitral.tasks.selfsupervised.lejepa import sigreg
from vitral.tasks.selfsupervised.mae import Decoder, Mae
from vitral.tasks.selfsupervised.moco_v3 import MocoHead, MocoV3
from vitral.tasks.selfsupervised.projection import DinoHead
from vitral.tasks.selfsupervised.schedules import ConstantTemperature
from vitral.tasks.task import Collective

OUTPUTS = 4096
COINCIDE, UNRELATED = log(OUTPUTS) - 0.78, log(OUTPUTS) + 0.20
HEAD = DinoOutputs(outputs=OUTPUTS, hidden=64, bottleneck=256)


def noise(count: int, side: int = 32) -> Tensor:
    return torch.randn(count, 3, side, side)


def first_loss(config: TaskConfig, images: Tensor, **fields: Any) -> float:
    """The loss of a small model; every view is the image itself."""
    torch.manual_seed(0)
    model = small(image_size=Size(*images.shape[2:]), **fields).build()
    task = config.build(model, 0, (), CENTERED)
    labels = torch.zeros(len(images), dtype=torch.int64)
    return task(images, labels, np.random.default_rng(0)).loss.item()


def test_dino_is_near_the_logarithm_of_the_number_of_its_outputs() -> None:
    config = Dino(head=HEAD, teacher_temperature=ConstantTemperature())
    assert first_loss(config, noise(16)) == pytest.approx(COINCIDE, abs=0.08)
    torch.manual_seed(0)
    head = DinoHead(32, 64, 256, OUTPUTS, frozen_length=True)
    one, other = (head.last(torch.nn.functional.normalize(torch.randn(64, 256), dim=1)) for _ in range(2))
    targets = (one / 0.04).softmax(dim=1).unflatten(0, (32, 2))
    logs = (other / 0.1).log_softmax(dim=1).unflatten(0, (32, 2))
    assert cross_view_losses(targets, logs).mean().item() == pytest.approx(UNRELATED, abs=0.05)


def test_ibot_is_twice_as_much() -> None:
    constant = ConstantTemperature()
    config = Ibot(
        head=HEAD, masks=PatchMasks(probability=1.0), teacher_temperature=constant, patch_temperature=constant
    )
    assert 2 * COINCIDE - 0.1 < first_loss(config, noise(16, 64)) < 2 * UNRELATED + 0.1


def test_ibot_without_masks_is_dino() -> None:
    given: dict[str, Any] = {"head": DinoOutputs(outputs=32, hidden=24, bottleneck=8)}
    torch.manual_seed(0)
    model = small(image_size=Size(32, 32)).build()
    dino = Dino(**given).build(model, 0, (), CENTERED)
    ibot = Ibot(**given, masks=PatchMasks(probability=0.0)).build(model, 0, (), CENTERED)
    renamed = {
        name.replace("head.", "head.pooled.", 1) if name.startswith(("head.", "teacher.head.")) else name: tensor
        for name, tensor in dino.state_dict().items()
    }
    missing = ibot.load_state_dict(renamed, strict=False)
    assert not missing.unexpected_keys
    images, labels = (noise(4).unsqueeze(1).expand(-1, 2, -1, -1, -1) + torch.randn(4, 2, 1, 1, 1),), torch.zeros(4)
    one, other = (task(images, labels, np.random.default_rng(0)).loss for task in (dino, ibot))
    torch.testing.assert_close(one, other)


def test_moco_v3_is_near_the_logarithm_of_the_batch() -> None:
    config = MocoV3(head=MocoHead(hidden=64, outputs=256))
    expected = 4 * 0.2 * (log(256) + 0.05)
    assert expected == pytest.approx(4.47, abs=0.01)
    assert first_loss(config, noise(256, 16)) == pytest.approx(expected, abs=0.12)


def test_mae_is_the_variance_of_targets_and_predictions() -> None:
    width, pixels = 192, 4 * 4 * 3
    expected = (pixels - 1) / pixels + 2 * width / (width + pixels)
    assert expected == pytest.approx(2.58, abs=0.01)
    config = Mae(decoder=Decoder(width=width, depth=1, heads=4))
    # Masked patches are nearly one vector, so the variance is that of 48 numbers: 1.6, give or take 0.33.
    assert first_loss(config, noise(32), stem=Patches(patch=Size(4, 4))) == pytest.approx(expected, abs=0.4)


def test_ijepa_is_that_of_normal_targets_and_small_predictions() -> None:
    config = Ijepa(predictor=Predictor(width=384, depth=1, heads=6))
    assert 0.41 < first_loss(config, noise(32)) < 0.49


def test_sigreg_of_normal_numbers_and_of_nothing_but_noughts() -> None:
    torch.manual_seed(0)
    slices = torch.nn.functional.normalize(torch.randn(32, 256, dtype=torch.float64), dim=0)
    normal = torch.randn(64, 64, 32, dtype=torch.float64)  # of which the mean is the same for any number of images
    assert sigreg(normal, slices, 17, Collective()).item() == pytest.approx(1.0525, rel=0.08)
    nothing = torch.zeros(2, 100, 32, dtype=torch.float64)
    assert sigreg(nothing, slices, 17, Collective()).item() == pytest.approx(0.402 * 100, rel=0.002)
