"""What a sweep tries, and for how long."""

import math

import pytest

from tests.errors import raises
from vitral.recipes.recipe import Epochs, ImagesSeen, Recipe, Steps, TimeLimit
from vitral.runs.sweeps.search import (
    Choices,
    GridSearch,
    RandomSearch,
    Range,
    parse_over,
    rung_shares,
    shorten_recipe,
)
from vitral.training.schedules import Cosine, InverseSquareRoot


def test_values_are_those_that_were_typed() -> None:
    over = parse_over(["lr=1e-3,3e-3", "optimizer=adamw,muon", "optimizer.betas=[0.9,0.95],[0.9,0.99]", "clip=none,1"])
    assert {path: each.values for path, each in over.items() if isinstance(each, Choices)} == {
        "lr": (1e-3, 3e-3),
        "optimizer": ("adamw", "muon"),
        "optimizer.betas": ([0.9, 0.95], [0.9, 0.99]),
        "clip": ("none", 1),
    }


def test_a_range_is_two_numbers() -> None:
    assert parse_over(["lr=1e-4..1e-2"]) == {"lr": Range(low=1e-4, high=1e-2)}


@pytest.mark.parametrize(
    ("texts", "code"),
    [
        (["lr"], "config.bad_setting"),
        (["lr="], "config.bad_setting"),
        (["=1"], "config.bad_setting"),
        (["lr=1", "lr=2"], "config.conflict"),
        (["lr=a..b"], "config.wrong_type"),
        (["lr=1..1"], "config.conflict"),
    ],
)
def test_what_is_no_list_of_values_is_refused(texts: list[str], code: str) -> None:
    with raises(code):
        parse_over(texts)


def test_a_grid_has_every_combination_once() -> None:
    points = GridSearch().points({"lr": Choices(values=(1, 2)), "depth": Choices(values=(3, 4, 5))})
    assert [(point["lr"], point["depth"]) for point in points] == [(1, 3), (1, 4), (1, 5), (2, 3), (2, 4), (2, 5)]


def test_a_grid_refuses_a_range() -> None:
    with raises("config.conflict", "lr"):
        GridSearch().points({"lr": Range(low=1, high=2)})


def test_random_points_are_distinct_and_the_same_for_the_same_seed() -> None:
    over: dict[str, Choices | Range] = {"lr": Range(low=1e-4, high=1e-2), "depth": Choices(values=(1, 2, 3))}
    points = RandomSearch(trials=200).points(over)
    assert len(points) == 200 == len({tuple(point.values()) for point in points})
    assert points == RandomSearch(trials=200).points(over) != RandomSearch(trials=200, seed=1).points(over)
    assert all(1e-4 <= point["lr"] <= 1e-2 for point in points)
    assert {point["depth"] for point in points} == {1, 2, 3}
    # Uniform in the logarithm: half of the draws lie below the geometric mean of the ends.
    assert 70 < sum(math.log10(point["lr"]) < -3 for point in points) < 130


def test_random_points_end_with_the_lists() -> None:
    assert len(RandomSearch(trials=50).points({"depth": Choices(values=(1, 2, 3))})) == 3


@pytest.mark.parametrize(
    ("points", "factor", "shares"),
    [(9, 3, [1 / 9, 1 / 3, 1]), (8, 3, [1 / 3, 1]), (4, 2, [0.25, 0.5, 1]), (2, 3, [1]), (7, 0, [1])],
)
def test_rungs_grow_by_the_factor_to_the_whole_length(points: int, factor: int, shares: list[float]) -> None:
    assert rung_shares(points, factor) == pytest.approx(shares)


def test_halving_by_one_is_refused() -> None:
    with raises("config.out_of_range", "halving"):
        GridSearch(halving=1)


def test_a_shorter_recipe_ends_its_whole_schedule() -> None:
    recipe = Recipe(length=Epochs(epochs=90), schedule=Cosine(warmup=300))
    short = shorten_recipe(recipe, 1 / 3)
    assert (short.length, short.schedule) == (Epochs(epochs=30), Cosine(warmup=100))
    assert shorten_recipe(recipe, 1) is recipe
    fractional = Recipe(length=Steps(steps=100), schedule=Cosine(warmup=0.1))
    assert shorten_recipe(fractional, 0.5) == Recipe(length=Steps(steps=50), schedule=Cosine(warmup=0.1))
    seen = Recipe(length=ImagesSeen(images=900, min_epochs=3, max_epochs=9), schedule=Cosine(warmup=0.1))
    assert shorten_recipe(seen, 1 / 3).length == ImagesSeen(images=300, min_epochs=1, max_epochs=3)
    slow = Recipe(length=Steps(steps=90), schedule=InverseSquareRoot(timescale=30, cooldown=9))
    assert shorten_recipe(slow, 1 / 3).schedule == InverseSquareRoot(timescale=10, cooldown=3)


def test_a_time_limit_cannot_be_shortened() -> None:
    with raises("config.conflict", "length"):
        shorten_recipe(Recipe(length=TimeLimit(seconds=60)), 0.5)
