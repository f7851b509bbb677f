import numpy as np
import pytest

from vitral.data.loading.sampler import SamplingPlan
from vitral.recipes.photos import small_hundreds
from vitral.recipes.recipe import Recipe
from vitral.recipes.small import small_hundred_thousands, small_thousands


@pytest.mark.parametrize(
    ("recipe", "images"), [(small_hundreds(), 200), (small_thousands(), 2_001), (small_hundred_thousands(), 50_001)]
)
def test_the_fewest_images_that_a_recipe_is_for_make_a_run_of_many_steps(recipe: Recipe, images: int) -> None:
    plan = SamplingPlan(np.zeros(images, dtype=np.int64), recipe.data.order, recipe.batch_size, recipe.seed)
    steps = recipe.length.total_steps(plan)
    recipe.schedule.check(steps)
    assert steps > 300
