import numpy as np
import pytest

from vitral.data.loading.sampler import SamplingPlan
from vitral.recipes.photos import photos
from vitral.training.finetune import LinearProbeThenFinetune, Staged


@pytest.mark.parametrize(("images", "epochs"), [(40, 30), (244, 30), (3_000, 10), (20_000, 5)])
def test_few_images_are_shown_often_and_many_not_seldom(images: int, epochs: int) -> None:
    recipe = photos()
    plan = SamplingPlan(np.zeros(images, dtype=np.int64), recipe.data.order, recipe.batch_size, recipe.seed)
    steps = recipe.length.total_steps(plan)
    recipe.schedule.check(steps)
    assert round(steps / plan.steps_per_epoch) == epochs


def test_it_keeps_to_the_paper_but_starts_from_a_head_that_was_fitted() -> None:
    recipe = photos()
    assert recipe.finetune == Staged()
    assert photos("R50x1").finetune == LinearProbeThenFinetune()
    assert (recipe.clip, recipe.schedule.kind, recipe.model.head.kind) == (1.0, "cosine", "linear")
    assert recipe.optimizer.layer_decay < 1
    assert photos("R50x1").optimizer.layer_decay == 1  # a ResNet has no layers to count


def test_any_model_can_be_named() -> None:
    assert photos("B/32").model.model_dump()["width"] == 768


def test_a_wide_model_learns_slower() -> None:
    assert photos("B/16").optimizer.lr == pytest.approx(7.8e-5, rel=0.01)
    assert photos("S/16").optimizer.lr == pytest.approx(1.56e-4, rel=0.01)
    assert photos("R50x1").optimizer.lr == pytest.approx(0.06 / 2048)
