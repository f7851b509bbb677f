"""Few-shot against the normal equations solved another way, and against big_vision's draws."""

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.errors import raises
from tests.evaluation.subjects import CLASSES, stripes, subject, without
from vitral.evaluation.fewshot import GRID, L2, FewShotEvaluator, Images, draw_shots, evaluate_shots, solve_ridge

Rows = NDArray[np.float64]


def cloud(images: int, width: int, classes: int, seed: int) -> Images:
    """Features of unlike scales, some of them hardly moving."""
    labels = np.arange(images) % classes
    rng = np.random.default_rng(seed)
    middles = np.random.default_rng(5).normal(size=(classes, width))
    rows = middles[labels] + 1.5 * rng.normal(size=(images, width))
    return Images((rows * np.geomspace(1e-4, 30, width) + 3).astype(np.float32), labels)


def normal_equations(train: Images, test: Images, classes: int, l2: float) -> Rows:
    """The answers of (X'X + l2 I) W = X'Y, solved as they stand."""
    x = train.values.astype(np.float64)
    mean, deviation = x.mean(axis=0), np.sqrt(((x - x.mean(axis=0)) ** 2).mean(axis=0)) + 1e-5

    def with_bias(rows: NDArray[np.float32]) -> Rows:
        return np.hstack([(rows - mean) / deviation, np.full((len(rows), 1), 100.0)])

    x = with_bias(train.values)
    y = np.where(np.arange(classes) == train.labels[:, None], 1.0, -1.0)
    weights = np.linalg.solve(x.T @ x + l2 * np.eye(x.shape[1]), x.T @ y)
    return with_bias(test.values) @ weights


@pytest.mark.parametrize(("images", "width"), [(12, 40), (40, 39), (40, 40), (41, 40), (120, 20)])
@pytest.mark.parametrize("l2", [2.0**-10, 1.0, L2, 2.0**19])
def test_the_answers_are_those_of_the_normal_equations(images: int, width: int, l2: float) -> None:
    train, test = cloud(images, width, 4, seed=0), cloud(60, width, 4, seed=1)
    found = solve_ridge(train.values, train.labels, 4)
    ours = found.standardize(test.values) @ found.weights(l2)
    truth = normal_equations(train, test, 4, l2)
    assert np.abs(ours - truth).max() < 1e-6
    assert np.abs(truth).max() > 1e-3


def test_the_grid_is_googles_and_has_the_papers_l2() -> None:
    assert (GRID[0], GRID[-1], len(GRID)) == (2.0**-10, 2.0**19, 30)
    assert L2 == 1024
    assert L2 in GRID


def test_the_draw_is_that_of_big_vision() -> None:
    labels = np.random.default_rng(0).integers(0, 3, 50)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        lines = [rng.permutation(np.where(labels == label)[0]) for label in range(3)]
        for shots in (1, 5):
            truth = np.concatenate([line[:shots] for line in lines])
            assert draw_shots(labels, 3, shots, seed).tolist() == truth.tolist()


def test_more_shots_add_to_the_same_images() -> None:
    labels = np.arange(60) % 3
    few, many = set(draw_shots(labels, 3, 2, 0)), set(draw_shots(labels, 3, 5, 0))
    assert few < many
    assert len(many) == 15


def test_the_score_is_the_papers_and_the_flattered_one_the_best_of_all() -> None:
    train, test = cloud(100, 16, 4, seed=0), cloud(80, 16, 4, seed=1)
    found = evaluate_shots(train, test, 4, shots=5, seeds=(3, 4))
    shares = np.empty((2, 30))
    for row, seed in enumerate((3, 4)):
        places = draw_shots(train.labels, 4, 5, seed)
        few = Images(train.values[places], train.labels[places])
        for column, l2 in enumerate(GRID):
            answers = normal_equations(few, test, 4, l2).argmax(axis=1)
            shares[row, column] = np.mean(answers == test.labels)
    own = shares[:, GRID.index(1024.0)]
    assert found.score.per_seed == pytest.approx(own)
    assert found.score.mean == pytest.approx(own.mean())
    assert found.score.std == pytest.approx(own.std(ddof=1))
    assert found.score.l2 == 1024
    assert found.oracle.mean == pytest.approx(shares.mean(axis=0).max())
    assert found.oracle.mean > found.score.mean


def test_a_single_seed_has_no_spread() -> None:
    found = evaluate_shots(cloud(40, 6, 4, seed=0), cloud(40, 6, 4, seed=1), 4, shots=2, seeds=(0,))
    assert found.score.std == 0


def test_shots_that_a_class_has_too_few_images_for_are_left_out_by_name() -> None:
    samples = stripes()
    items = [item for item in samples.items if not (item.label == 1 and item.split == "train")]
    bees = [item for item in samples.of("train") if item.label == 1][:7]
    found = FewShotEvaluator().evaluate(subject(samples=type(samples)("few", CLASSES, (*bees, *items), samples.store)))
    assert [row.shots for row in found.rows] == [1, 5]
    assert found.skipped == (
        "10 shots: too few training images of bee",
        "25 shots: too few training images of ant, bee, cat",
    )
    assert found.seeds == (0, 1, 2)


def test_without_training_images_it_is_refused() -> None:
    with raises("data.too_few", "fewshot", "'train'"):
        FewShotEvaluator().check(subject(samples=without(stripes(), "train")))
