from dataclasses import dataclass

import pytest

from vitral.training.stage_plan import LAST_EPOCHS, MAX_VIEWS, STEP_COST, StageCosts, StagePlan, plan_epochs

# 250 training, 60 validation and 80 test images, 4 of 12 layers.
SLOW = StageCosts(image=0.09, train=250, val=60, final=80, share=1 / 3, views=MAX_VIEWS)
FAST = SLOW._replace(image=0.001)


@dataclass(frozen=True)
class Spent:
    """The seconds of a plan, counted pass by pass."""

    costs: StageCosts
    plan: StagePlan

    def seconds(self) -> float:
        images, val, share = self.costs.train, self.costs.val, self.costs.share
        passes: float = images + val + self.costs.final  # the head, and the end
        passes += max(0, self.plan.views - 1) * (1 - share) * images
        if self.plan.views:
            passes += self.plan.last_epochs * share * (STEP_COST * images + val)
        else:
            passes += self.plan.last_epochs * ((1 - share) * images + share * STEP_COST * images + val)
        passes += self.plan.all_epochs * (STEP_COST * images + val)
        return passes * self.costs.image


def test_a_fast_model_trains_all_layers_for_as_long_as_was_wanted() -> None:
    assert plan_epochs(FAST, 270, 5, 30) == StagePlan(MAX_VIEWS, LAST_EPOCHS, 30)


def test_all_layers_do_not_start_if_they_could_not_train_for_long_enough() -> None:
    plan = plan_epochs(SLOW, 270, 5, 30)
    assert plan.all_epochs == 0
    assert 1 < plan.last_epochs < LAST_EPOCHS


@pytest.mark.parametrize("seconds", [100, 150, 270, 600, 2_000])
@pytest.mark.parametrize("views", [0, 1, MAX_VIEWS])
@pytest.mark.parametrize("image", [0.001, 0.02, 0.09])
def test_the_stages_fit_into_the_time_and_one_epoch_more_would_not(seconds: float, views: int, image: float) -> None:
    costs = SLOW._replace(image=image, views=views)
    plan = plan_epochs(costs, seconds, 5, 30)
    assert Spent(costs, plan).seconds() <= seconds
    assert plan.views <= views
    if 1 < plan.last_epochs < LAST_EPOCHS:
        longer = plan._replace(last_epochs=plan.last_epochs + 1)
        assert Spent(costs, longer).seconds() > seconds - 20
    if 0 < plan.all_epochs < 30:
        assert Spent(costs, plan._replace(all_epochs=plan.all_epochs + 1)).seconds() > seconds - 20


def test_without_time_the_last_layers_train_for_one_epoch_on_the_view_that_the_head_was_fitted_to() -> None:
    assert plan_epochs(SLOW, 1, 5, 30) == StagePlan(1, 1, 0)
