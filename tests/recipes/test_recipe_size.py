"""Image sizes that grow during training."""

import pytest

from tests.errors import raises
from vitral.core.config import Size, override
from vitral.recipes.recipe import FixedSize, ProgressiveSize, Recipe

PATCH = Size(4, 4)


def test_sizes_grow_in_stages_to_that_of_the_model() -> None:
    stages = ProgressiveSize(start=0.5, until=0.6, smaller_stages=2).stages(Size(32, 32), PATCH, 100)
    assert stages == [(0, Size(16, 16)), (30, Size(24, 24)), (60, Size(32, 32))]


def test_sizes_that_round_to_the_same_are_one_stage() -> None:
    stages = ProgressiveSize(start=0.9, smaller_stages=3).stages(Size(8, 16), PATCH, 100)
    assert stages == [(0, Size(8, 16))]


def test_a_fixed_size_is_one_stage() -> None:
    assert FixedSize().stages(Size(8, 8), PATCH, 100) == [(0, Size(8, 8))]


@pytest.mark.parametrize(
    "settings", [["model.any_size=false"], ["images.external=true"], ["length=time"], ["task=masked_patches"]]
)
def test_what_has_one_size_or_no_known_length_is_refused(settings: list[str]) -> None:
    with raises("config.conflict", "images.size"):
        override(Recipe(), ["images.size=progressive", *settings])
