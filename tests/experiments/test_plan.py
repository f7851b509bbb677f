"""Plans: budgets are equal in counted FLOPs, every arm tries as many rates, and full settings are the paper's."""

from pathlib import Path

import pytest

from tests.errors import raises
from tests.experiments.toy import CHAIN, STEPS, TOY, toy_photos
from tests.runs.small import photos
from vitral.experiments.experiment import SCALES, Arm, Experiment, Scale
from vitral.experiments.plan import FLOPS_PER_MULTIPLY_ADD, PASSES, complete_recipe, plan_experiment, step_flops
from vitral.experiments.registry import experiment_files, get_experiment
from vitral.explanation.walkthrough.describe import describe
from vitral.recipes.recipe import Recipe, Steps


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(toy_photos(tmp_path_factory.mktemp("toy")))


def test_a_step_counts_three_passes_of_every_image() -> None:
    recipe = Recipe()
    counted = describe("B/16").multiply_adds_in_full
    head = 768 * 1000
    assert step_flops(recipe) == FLOPS_PER_MULTIPLY_ADD * PASSES * (counted - head) * recipe.batch_size


def test_arms_take_as_many_steps_as_the_shared_budget_pays_for(data: str) -> None:
    plan = plan_experiment(TOY, "tiny", data, "")
    one, two = plan.arms
    assert two.steps == STEPS  # the model of the shared recipe
    assert one.steps > two.steps
    assert one.flops == pytest.approx(two.flops, rel=0.5 / one.steps)
    assert one.recipe.length.steps == one.steps  # type: ignore[union-attr]
    assert {plan.runs_of(each) for each in plan.arms} == {4}


def test_an_arm_that_starts_from_another_is_a_level_later_and_costs_both(data: str) -> None:
    plan = plan_experiment(CHAIN, "tiny", data, "")
    assert [each.arm.name for each in plan.level(0)] == ["start", "from scratch"]
    assert [each.arm.name for each in plan.level(1)] == ["fine-tuned"]
    assert plan.levels == 2
    assert plan.flops_with_start("fine-tuned") == plan.flops_with_start("from scratch")
    assert plan.find("start").rates == (1e-3,)  # it is not compared, so its rate is not chosen


def test_images_are_held_out_of_the_training_images_to_choose_rates(data: str) -> None:
    recipe = plan_experiment(TOY, "tiny", data, "").setup.recipe
    assert recipe.data.hold_out == 0.1


def test_data_without_test_images_is_refused(tmp_path: Path) -> None:
    with raises("data.empty", "test"):
        plan_experiment(TOY, "tiny", str(photos(tmp_path / "photos")), "")


def test_budgets_that_differ_must_be_explained() -> None:
    unfair = Experiment("", "", lambda scale: [Arm("a"), Arm("b", budget=2.0)])
    with pytest.raises(AssertionError, match="budgets"):
        unfair.list_arms("tiny")
    with pytest.raises(AssertionError, match="rates"):
        plan_experiment(Experiment("", "", lambda scale: [Arm("a"), Arm("b", rates=(1e-3,))]), "tiny", "sample", "")
    with pytest.raises(AssertionError, match="same name"):
        Experiment("", "", lambda scale: [Arm("a"), Arm("a")]).list_arms("tiny")
    with pytest.raises(AssertionError, match="starts from"):
        Experiment("", "", lambda scale: [Arm("a", start="b"), Arm("b")]).list_arms("tiny")


@pytest.mark.parametrize("name", experiment_files())
@pytest.mark.parametrize("scale", SCALES)
def test_every_experiment_has_a_plan_whose_runs_can_start(name: str, scale: Scale) -> None:
    plan = plan_experiment(get_experiment(name), scale, "sample" if scale == "small" else "", "")
    assert plan.arms
    if plan.experiment.trained and scale != "full":
        recipes = [complete_recipe(each, each.rates[0], 1, 1) for each in plan.arms]
        assert [each.length for each in recipes] == [Steps(steps=each.steps) for each in plan.arms]
    checks = plan.experiment.list_checks(plan.scale)
    assert bool(checks) == bool(plan.experiment.checks)
    used = {frozenset(each.weights) for other in SCALES for each in plan.experiment.list_checks(other)}
    assert used == {frozenset(each.weights) for each in plan.experiment.checks}  # none names an arm that no scale has
