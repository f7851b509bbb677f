"""A map that knows the answer is told from one that does not."""

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor

from tests.errors import raises
from tests.explanation.one_patch import SIDE, OnePatch, patch_of, photo
from vitral.explanation.explanation import Array, Curve, Faithfulness, MapScore
from vitral.explanation.perturbation import (
    RANDOM_MAPS,
    blur,
    count_perturbations,
    curve_points,
    measure_faithfulness,
    rank_patches,
)
from vitral.models import Grid

PLACE = (1, 3)
FEW = Grid(3, 5)  # patches, so few that a curve has a point for each


def pointing(grid: Grid, value: float) -> Array:
    """A map that says this of the patch that counts, and 0 of all others."""
    values = np.zeros(grid, dtype=np.float32)
    values[PLACE] = value
    return values


def blurred_by_scipy(image: Tensor) -> Tensor:
    """Each channel of an image (C, H, W)."""
    deviation = min(image.shape[1:]) / 6
    blurred = [gaussian_filter(channel.double().numpy(), deviation, mode="nearest", truncate=3.0) for channel in image]
    return torch.from_numpy(np.stack(blurred))


def test_the_areas_of_the_best_map_and_the_worst_are_those_of_the_closed_form() -> None:
    model, image, cells = OnePatch(FEW, PLACE), photo(FEW), FEW.cells()
    found = measure_faithfulness(model, image, 0, {"rollout": pointing(FEW, 1), "occlusion": pointing(FEW, -1)})
    best, worst = found.curves.values()
    bright, mean = float(patch_of(image, PLACE).mean()), float(image.mean())
    dim = float(patch_of(blurred_by_scipy(image[0])[None], PLACE).mean())
    # The probability stays what it was until the patch goes or comes back: at the first step, or at the last.
    assert best.deletion_auc == pytest.approx((bright + mean) / 2 / cells + mean * (cells - 1) / cells, abs=1e-6)
    assert worst.deletion_auc == pytest.approx((bright + mean) / 2 / cells + bright * (cells - 1) / cells, abs=1e-6)
    assert best.insertion_auc == pytest.approx((bright + dim) / 2 / cells + bright * (cells - 1) / cells, abs=1e-6)
    assert worst.insertion_auc == pytest.approx((bright + dim) / 2 / cells + dim * (cells - 1) / cells, abs=1e-6)


@pytest.mark.parametrize("grid", [FEW, Grid(7, 6)])
def test_patches_go_and_come_back_in_the_order_of_the_map(grid: Grid) -> None:
    model, image = OnePatch(grid, PLACE), photo(grid)
    values = np.random.default_rng(3).permutation(grid.cells()).astype(np.float32)
    measure_faithfulness(model, image, 0, {"attention": values.reshape(grid)})
    shown = torch.cat(model.seen)[3:, 0]  # (pictures, H, W), past the three that all maps share
    inner = curve_points(grid)[1:-1]
    blurred = blurred_by_scipy(image[0])[0].float()
    for gone, back, count in zip(shown, shown[len(inner) :], inner, strict=False):
        chosen = torch.from_numpy(values >= grid.cells() - count).view(grid)  # values are ranks
        mask = chosen.repeat_interleave(SIDE, dim=0).repeat_interleave(SIDE, dim=1)
        torch.testing.assert_close(gone, torch.where(mask, image.mean(), image[0, 0]))
        torch.testing.assert_close(back, torch.where(mask, image[0, 0], blurred))


@pytest.mark.parametrize("grid", [Grid(1, 1), Grid(2, 2), FEW, Grid(4, 4), Grid(14, 14), Grid(37, 37)])
def test_curves_run_from_no_patch_to_all_with_no_point_twice(grid: Grid) -> None:
    counts = curve_points(grid)
    assert counts[0] == 0
    assert counts[-1] == grid.cells()
    assert (np.diff(counts) > 0).all()
    assert len(counts) <= 16


@pytest.mark.parametrize("grid", [Grid(1, 1), Grid(2, 2), Grid(5, 5)])
def test_progress_adds_up_to_what_was_announced(grid: Grid) -> None:
    heard: list[int] = []
    found = measure_faithfulness(
        OnePatch(grid, (0, 0)), photo(grid), 0, {"attention": np.ones(grid, np.float32)}, 0, heard.append
    )
    assert sum(heard) == count_perturbations(1, grid)
    curve = next(iter(found.curves.values()))
    assert curve.fractions.shape == curve.deletion.shape == curve.insertion.shape == curve_points(grid).shape
    assert curve.fractions.dtype == curve.deletion.dtype == curve.insertion.dtype == np.float32


def test_all_curves_begin_and_end_at_the_same_pictures() -> None:
    image = photo(FEW)
    found = measure_faithfulness(
        OnePatch(FEW, PLACE), image, 0, {"attention": pointing(FEW, 1), "rollout": pointing(FEW, -1)}
    )
    for curve in (*found.curves.values(), *found.random):
        assert curve.deletion[0] == curve.insertion[-1] == pytest.approx(float(patch_of(image, PLACE).mean()))
        assert curve.deletion[-1] == pytest.approx(float(image.mean()))


def test_random_maps_are_those_of_the_seed() -> None:
    grid = Grid(5, 5)
    model, image = OnePatch(grid, PLACE), photo(grid)
    one, same, other = (measure_faithfulness(model, image, 0, {}, seed) for seed in (1, 1, 2))
    assert len(one.random) == RANDOM_MAPS
    assert one.curves == {}
    assert [curve.deletion_auc for curve in one.random] == [curve.deletion_auc for curve in same.random]
    assert [curve.deletion_auc for curve in one.random] != [curve.deletion_auc for curve in other.random]
    assert len({curve.deletion_auc for curve in one.random}) > 1


def test_of_equal_patches_the_first_comes_first() -> None:
    values = np.array([[0, 2, 1], [2, 0, 2]], dtype=np.float32)
    assert rank_patches(values).tolist() == [1, 3, 5, 2, 0, 4]


@pytest.mark.parametrize("shape", [(3, 28, 28), (1, 30, 61), (2, 2, 9), (1, 1, 1), (3, 1, 40)])
def test_blur_is_that_of_scipy(shape: tuple[int, int, int]) -> None:
    image = torch.rand(shape)
    torch.testing.assert_close(blur(image).double(), blurred_by_scipy(image), rtol=0, atol=1e-6)


def flat(deletion: float, insertion: float) -> Curve:
    """A curve of these areas."""
    return Curve(*(np.full(2, value, np.float32) for value in (0, deletion, insertion)))._replace(
        fractions=np.array([0, 1], np.float32)
    )


CHANCE = tuple(flat(deletion, insertion) for deletion, insertion in ((0.4, 0.5), (0.5, 0.6), (0.6, 0.7)))  # spread 0.1


def verdict(deletion: float, insertion: float, chance: tuple[Curve, ...] = CHANCE) -> MapScore:
    return Faithfulness({"rollout": flat(deletion, insertion)}, chance).scores()["rollout"]


@pytest.mark.parametrize(
    ("deletion", "insertion", "standing"),
    [(0.2, 0.9, "better"), (0.2, 0.7, "unclear"), (0.5, 0.9, "unclear"), (0.8, 0.3, "worse"), (0.8, 0.9, "unclear")],
)
def test_a_map_is_held_against_the_spread_of_chance(deletion: float, insertion: float, standing: str) -> None:
    found = verdict(deletion, insertion)
    assert found.deletion == pytest.approx(10 * (0.5 - deletion), abs=1e-4)
    assert found.insertion == pytest.approx(10 * (insertion - 0.6), abs=1e-4)
    assert found.verdict == standing


def test_both_measures_together_have_a_spread_of_their_own() -> None:
    chance = tuple(flat(deletion, insertion) for deletion, insertion in ((0.4, 0.5), (0.5, 0.7), (0.6, 0.9)))
    assert verdict(0.3, 0.8, chance).combined == pytest.approx((0.5 - 0.2) / 0.1, abs=1e-4)


def test_differences_that_mean_nothing_are_not_blown_up_by_a_spread_of_nothing() -> None:
    found = verdict(0.5 - 1e-5, 0.6 + 1e-5, (flat(0.5, 0.6),) * 8)
    assert 0 < found.deletion < 0.1
    assert found.verdict == "unclear"


def test_a_difference_too_small_to_matter_is_never_clear() -> None:
    """An area of 0.63 against 0.65 is many standard deviations of random maps that hardly differ, and still nothing."""
    chance = tuple(flat(0.65 + shift, 0.65 + shift) for shift in (-0.001, 0.0, 0.001))  # the image has 0.65
    assert verdict(0.63, 0.67, chance).verdict == "unclear"
    assert verdict(0.67, 0.63, chance).verdict == "unclear"
    assert verdict(0.65 - 0.034, 0.65 + 0.034, chance).verdict == "better"  # 5% of 0.65 is 0.0325
    found = Faithfulness({"rollout": flat(0.10, 0.91), "relevance": flat(0.10, 0.90)}, chance).scores()
    assert found["rollout"].combined - found["relevance"].combined < 2
    few = tuple(flat(value, value) for value in (0.02, 0.0201, 0.0199))  # an improbable class: 5% of little
    assert verdict(0.01, 0.03, few).verdict == "better"


def test_the_map_that_knows_stands_better_than_chance_and_its_opposite_worse() -> None:
    grid = Grid(4, 4)
    image = photo(grid)
    patch_of(image, PLACE).fill_(0.95)
    found = measure_faithfulness(
        OnePatch(grid, PLACE), image, 0, {"relevance": pointing(grid, 1), "occlusion": pointing(grid, -1)}
    )
    knows, errs = found.scores().values()
    assert knows.combined > 0 > errs.combined
    assert knows.deletion > 0 > errs.deletion
    assert knows.insertion > 0 > errs.insertion


def test_nothing_measured_has_no_verdict() -> None:
    assert Faithfulness().scores() == {}


def test_a_map_of_another_grid_or_of_no_numbers_is_refused() -> None:
    model, image = OnePatch(FEW, PLACE), photo(FEW)
    with raises("config.shape_mismatch", "attention", "3x5", "5x3"):
        measure_faithfulness(model, image, 0, {"attention": np.zeros((5, 3), np.float32)})
    with raises("config.not_finite", "rollout"):
        measure_faithfulness(model, image, 0, {"rollout": np.full(FEW, np.nan, np.float32)})
