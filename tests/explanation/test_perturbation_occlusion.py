"""What is covered is what counts."""

import itertools

import numpy as np
import pytest
import torch

from tests.explanation.one_patch import OnePatch, patch_of, photo
from tests.models.variants import VARIANTS
from vitral.explanation.perturbation import count_occlusions, occlusion, squares
from vitral.models import Grid, NoHead, Vit

GRIDS = [Grid(1, 1), Grid(2, 2), Grid(4, 6), Grid(8, 8), Grid(14, 14), Grid(16, 16), Grid(24, 17), Grid(37, 37)]


@pytest.mark.parametrize("place", [(0, 0), (2, 4), (3, 5)])
def test_the_patch_that_the_model_looks_at_is_found_with_what_it_is_worth(place: tuple[int, int]) -> None:
    grid = Grid(4, 6)
    model, image = OnePatch(grid, place), photo(grid)
    expected = np.zeros(grid)
    expected[place] = float(patch_of(image, place).mean() - image.mean())
    np.testing.assert_allclose(occlusion(model, image, 0), expected, atol=1e-6)
    np.testing.assert_allclose(occlusion(model, image, 1), -expected, atol=1e-6)


def test_what_covers_a_patch_is_the_mean_of_each_channel() -> None:
    config = VARIANTS["stem-patches"]
    model = config.build().eval()
    torch.nn.init.normal_(model.head.get_parameter("linear.weight"))
    image = torch.randn(1, 3, 32, 48)
    covered = image.clone()
    for channel in range(3):
        covered[0, channel, 8:16, 40:48] = image[0, channel].mean()
    with torch.no_grad():
        whole, left = (model(each).softmax(dim=1)[0, 2] for each in (image, covered))
    np.testing.assert_allclose(occlusion(model, image, 2)[1, 5], whole - left, atol=1e-6)


def test_on_a_large_grid_a_patch_has_the_mean_of_the_squares_that_covered_it() -> None:
    grid, place = Grid(14, 16), (5, 7)
    model, image = OnePatch(grid, place), photo(grid)
    found = occlusion(model, image, 0)
    worth = float(patch_of(image, place).mean() - image.mean())
    for row, column in itertools.product(*map(range, grid)):
        near = max(0, 2 - abs(row - 5)) * max(0, 2 - abs(column - 7))  # squares of 2 x 2 that hold both, out of 4
        own = (1 if row in (0, 13) else 2) * (1 if column in (0, 15) else 2)
        assert found[row, column] == pytest.approx(worth * near / own, abs=1e-6)


@pytest.mark.parametrize("grid", GRIDS)
def test_squares_cover_every_patch_and_are_never_more_than_256(grid: Grid) -> None:
    times = np.zeros(grid, dtype=int)
    for square in squares(grid):
        times[square] += 1
    assert times.min() >= 1
    assert len(list(squares(grid))) <= 256
    if max(grid) <= 8:
        assert (times == 1).all()


def test_progress_adds_up_to_what_was_announced() -> None:
    grid, heard = Grid(9, 12), list[int]()
    occlusion(OnePatch(grid, (0, 0)), photo(grid), 0, heard.append)
    assert sum(heard) == count_occlusions(grid)


def test_the_image_itself_is_left_as_it_was() -> None:
    grid = Grid(3, 3)
    image = photo(grid)
    before = image.clone()
    occlusion(OnePatch(grid, (1, 1)), image, 0)
    assert torch.equal(image, before)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", [name for name, config in VARIANTS.items() if not isinstance(config.head, NoHead)])
def test_every_model_with_classes_has_such_a_map(name: str) -> None:
    config = VARIANTS[name]
    found = occlusion(config.build(), torch.randn(1, config.channels, *config.image_size), 0)
    grid = config.stem.grid(config.image_size) if isinstance(config, Vit) else config.grid(config.image_size)
    assert found.shape == grid
    assert np.isfinite(found).all()
