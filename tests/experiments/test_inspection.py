"""Inspection: what is known of receptive fields, shifts and memory without any training."""

import numpy as np
import pytest
import torch

from vitral.experiments.inspection import (
    equivariance_error,
    invariance_errors,
    largest_batch,
    receptive_fields,
    rollout,
)
from vitral.experiments.results import StoredArray
from vitral.models.registry import model_config
from vitral.models.resnet import Resnet

SMALL = {"image_size": 32, "stem.patch": 8, "width": 32, "depth": 2, "mixer.heads": 2}


def test_receptive_fields_of_resnet50_are_the_published_ones() -> None:
    fields = receptive_fields(Resnet())  # with the stride in the 3 x 3 convolution
    assert [fields[last - 1] for last in (3, 7, 13, 16)] == [35, 91, 267, 427]


def test_a_model_that_treats_each_patch_alone_follows_a_shift_by_a_patch_exactly() -> None:
    torch.manual_seed(0)
    images = torch.rand(4, 3, 32, 32)
    alone = {"tokens.cls": False, "pool": "mean", "position": "none", "mixer": "identity"}
    model = model_config("S/16", {**{k: v for k, v in SMALL.items() if k != "mixer.heads"}, **alone}).build().eval()
    assert equivariance_error(model, images, 8) < 1e-6
    assert equivariance_error(model_config("S/16", SMALL).build().eval(), images, 8) > 0.01
    errors = invariance_errors(model, images)
    assert errors[0] == 0
    assert min(errors[1:]) > 0


def test_the_rollout_of_a_model_shares_out_at_most_all_attention() -> None:
    torch.manual_seed(0)
    found = rollout(model_config("S/16", SMALL).build().eval(), torch.rand(2, 3, 32, 32))
    assert found.shape == (2, 4, 4)
    assert bool((found > 0).all() and (found.sum(dim=(1, 2)) < 1).all())


def test_four_times_the_patches_leave_room_for_at_most_a_quarter_of_the_images() -> None:
    small, large = (largest_batch(model_config("Ti/16", image_size=side)) for side in (32, 64))
    assert 0 < large <= small / 2


def test_an_array_is_stored_as_rounded_numbers() -> None:
    array = np.arange(6.0).reshape(2, 3) / 7
    stored = StoredArray.from_json(StoredArray.of(array).to_json()).array()
    assert stored == pytest.approx(array, abs=5e-5)
    assert stored.shape == (2, 3)
