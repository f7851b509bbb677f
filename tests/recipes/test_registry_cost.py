"""Recipes that the data chooses are Vision Transformers: enough patches and layers, and blocks that do the work."""

import pytest

from vitral.explanation.walkthrough.describe import describe
from vitral.models.vit import Vit
from vitral.recipes.recipe import Recipe
from vitral.recipes.registry import BY_DATASET
from vitral.recipes.small import small_hundred_thousands, small_thousands

MADE = [make() for make in (*BY_DATASET.values(), small_thousands, small_hundred_thousands)]
CHOSEN = {recipe.name: recipe for recipe in MADE}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("recipe", CHOSEN.values(), ids=CHOSEN)
def test_the_blocks_do_most_of_the_work_on_at_least_49_patches(recipe: Recipe) -> None:
    found = describe(recipe.model)
    assert isinstance(recipe.model, Vit)
    _, _, rows, columns = found.tokens
    assert rows * columns >= 49
    assert recipe.model.depth >= 4
    blocks = [part.multiply_adds for part in found.parts if part.level == 0 and part.name.startswith("block")]
    assert len(blocks) == 3  # the first, those between, the last
    assert sum(blocks) >= 0.6 * found.multiply_adds
