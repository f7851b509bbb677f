from vitral.data.datasets.named import NAMED_DATASETS
from vitral.recipes.registry import BY_DATASET
from vitral.recipes.small import cifar10


def test_the_model_takes_the_photos_as_they_are() -> None:
    recipe = cifar10()
    assert (recipe.model.image_size, recipe.model.channels) == ((32, 32), 3)
    assert len(recipe.images.normalize.mean) == 3


def test_its_name_is_that_of_a_set() -> None:
    assert cifar10.__name__ in NAMED_DATASETS
    assert BY_DATASET["cifar10"] is cifar10
