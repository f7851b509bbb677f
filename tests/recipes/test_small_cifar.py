from collections.abc import Callable

import pytest

from vitral.data.datasets.named import NAMED_DATASETS
from vitral.recipes.recipe import Recipe
from vitral.recipes.registry import BY_DATASET
from vitral.recipes.small import cifar10, cifar100


def test_the_model_takes_the_photos_as_they_are() -> None:
    recipe = cifar10()
    assert (recipe.model.image_size, recipe.model.channels) == ((32, 32), 3)
    assert len(recipe.images.normalize.mean) == 3


@pytest.mark.parametrize("recipe", [cifar10, cifar100])
def test_its_name_is_that_of_a_set(recipe: Callable[[], Recipe]) -> None:
    assert recipe.__name__ in NAMED_DATASETS
    assert BY_DATASET[recipe.__name__] is recipe
