"""A codebook is computed from training images, and stays with the task."""

import numpy as np
import torch

from tests.models.variants import small
from vitral.data.transforms.preprocessing import CENTERED
from vitral.tasks.selfsupervised.targets.codes import CodeNumbers, PatchCodes


def test_patches_of_the_codebook_have_their_own_numbers_after_a_fit() -> None:
    torch.manual_seed(0)
    target = PatchCodes(codes=12).build(small().build(), CENTERED)
    assert isinstance(target, CodeNumbers)
    assert target.fit_images == 8  # 16 * 12 patches, 24 of an image
    before = target.codebook.clone()
    images = torch.randn(8, 3, 32, 48)
    target.fit(images, np.random.default_rng(0))
    assert not torch.equal(target.codebook, before)
    numbers = target(images)
    assert numbers.shape == (8, 24)
    assert len(numbers.unique()) == 12  # each stands for some patches of the images it comes from
    state = target.state_dict()
    other = PatchCodes(codes=12).build(small().build(), CENTERED)
    other.load_state_dict(state)
    assert torch.equal(other(images), numbers)
    outputs = torch.nn.functional.one_hot(numbers, 12).float()
    drawn = target.draw(outputs, torch.randn(8, 24, 192))
    assert drawn is not None
    assert drawn.shape == (8, 24, 192)
