"""Position tables are stretched as scipy zooms, and bicubically as the textbook has it."""

import math
from collections.abc import Callable
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.ndimage import zoom
from torch import Tensor

from tests.errors import raises
from vitral.models import Grid
from vitral.models.position import Resampling, resample_axis, resample_grid

Weights = Callable[[int, int], Tensor]
HOW = pytest.mark.parametrize("how", [how for how in get_args(Resampling) if how != "slice"])
PAIRS = pytest.mark.parametrize(
    ("old", "new"),
    [
        (Grid(7, 7), Grid(12, 12)),
        (Grid(14, 14), Grid(24, 24)),
        (Grid(14, 14), Grid(32, 32)),
        (Grid(16, 16), Grid(37, 37)),
        (Grid(24, 24), Grid(14, 14)),
        (Grid(14, 14), Grid(7, 7)),
        (Grid(14, 14), Grid(10, 20)),
        (Grid(6, 4), Grid(3, 9)),
        (Grid(3, 5), Grid(1, 1)),
        (Grid(1, 1), Grid(3, 2)),
        (Grid(1, 5), Grid(1, 8)),
        (Grid(5, 1), Grid(8, 1)),
    ],
    ids=str,
)


def table(grid: Grid, width: int = 5, *, seed: int = 0) -> NDArray[np.float64]:
    return np.random.default_rng(seed).uniform(-1, 1, (*grid, width))


def zoomed(image: NDArray[np.float64], new: Grid) -> Tensor:
    """As Google's code, with scipy kept from reading past the edge where its steps round up."""
    factors = (new.rows / image.shape[0], new.columns / image.shape[1], 1)
    return torch.from_numpy(zoom(image, factors, order=1, mode="nearest")).flatten(0, 1)


def stretched(image: NDArray[np.float64], new: Grid, how: Resampling = "bilinear") -> Tensor:
    old = Grid(*image.shape[:2])
    return resample_grid(torch.from_numpy(image).flatten(0, 1), old, new, how)


@PAIRS
def test_bilinear_is_the_zoom_of_scipy(old: Grid, new: Grid) -> None:
    image = table(old)
    torch.testing.assert_close(stretched(image, new), zoomed(image, new), rtol=0, atol=1e-12)
    single = resample_grid(torch.from_numpy(image).float().flatten(0, 1), old, new)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), zoomed(image, new), rtol=0, atol=4e-6)  # its places round, too


grids = st.builds(Grid, st.integers(1, 40), st.integers(1, 40))


@given(old=grids, new=grids, seed=st.integers(0, 99))
def test_bilinear_is_the_zoom_of_scipy_on_any_grid(old: Grid, new: Grid, seed: int) -> None:
    image = table(old, width=2, seed=seed)
    torch.testing.assert_close(stretched(image, new), zoomed(image, new), rtol=0, atol=1e-12)


def cubic(distance: float, a: float) -> float:
    """Keys' kernel."""
    x = abs(distance)
    if x < 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if x < 2 else 0.0


def bicubic_weights(old: int, new: int) -> Tensor:
    """How much of each old place is in each new one, the edges aligned."""
    return cubic_weights(old, [(place + 0.5) * old / new - 0.5 for place in range(new)])


def corner_weights(old: int, new: int) -> Tensor:
    """The first place is the first, the last the last."""
    return cubic_weights(old, [place * (old - 1) / max(new - 1, 1) for place in range(new)])


def offset_weights(old: int, new: int) -> Tensor:
    """As if there were a tenth of a place more."""
    return cubic_weights(old, [(place + 0.5) * old / (new + 0.1) - 0.5 for place in range(new)])


def cubic_weights(old: int, centers: list[float]) -> Tensor:
    """What is at each center; places beyond the edge are the edge."""
    weights = torch.zeros(len(centers), old, dtype=torch.float64)
    for place, center in enumerate(centers):
        for tap in range(math.floor(center) - 1, math.floor(center) + 3):
            weights[place, min(max(tap, 0), old - 1)] += cubic(center - tap, -0.75)
    return weights


def antialias_weights(old: int, new: int) -> Tensor:
    """A kernel as wide as the step between new places; places beyond the edge do not count."""
    step = max(old / new, 1)
    centers = [(place + 0.5) * old / new - 0.5 for place in range(new)]
    weights = [[cubic((center - tap) / step, -0.5) for tap in range(old)] for center in centers]
    return torch.tensor([[weight / sum(row) for weight in row] for row in weights], dtype=torch.float64)


CUBIC = pytest.mark.parametrize(
    ("how", "weights"),
    [
        ("bicubic", bicubic_weights),
        ("bicubic_antialias", antialias_weights),
        ("bicubic_corners", corner_weights),
        ("bicubic_offset", offset_weights),
    ],
)


@PAIRS
@CUBIC
def test_bicubic_is_two_cubic_sums(old: Grid, new: Grid, how: Resampling, weights: Weights) -> None:
    image = table(old)
    down, right = weights(old.rows, new.rows), weights(old.columns, new.columns)
    expected = torch.einsum("rR,cC,RCd->rcd", down, right, torch.from_numpy(image)).flatten(0, 1)
    torch.testing.assert_close(stretched(image, new, how), expected, rtol=0, atol=1e-5)


@HOW
def test_the_same_grid_is_returned_unchanged(how: Resampling) -> None:
    given_table = torch.randn(6, 4)
    assert resample_grid(given_table, Grid(2, 3), Grid(2, 3), how) is given_table


@HOW
def test_a_grid_of_as_many_cells_but_another_shape_is_stretched(how: Resampling) -> None:
    given_table = torch.randn(6, 4)
    assert not resample_grid(given_table, Grid(2, 3), Grid(3, 2), how).allclose(given_table)


@HOW
def test_leading_dimensions_are_kept(how: Resampling) -> None:
    tables = torch.randn(2, 3, 6, 4)
    found = resample_grid(tables, Grid(3, 2), Grid(5, 4), how)
    assert found.shape == (2, 3, 20, 4)
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(found[i, j], resample_grid(tables[i, j], Grid(3, 2), Grid(5, 4), how))


@HOW
def test_a_constant_table_stays_constant(how: Resampling) -> None:
    row = torch.tensor([1.0, -2.0])
    found = resample_grid(row.expand(12, 2), Grid(3, 4), Grid(7, 2), how)
    torch.testing.assert_close(found, row.expand(14, 2))


@pytest.mark.parametrize(("old", "new"), [(4, 7), (7, 4), (14, 24), (1, 3), (5, 1), (6, 6)])
def test_a_line_is_interpolated_from_end_to_end(old: int, new: int) -> None:
    line = table(Grid(old, 1))[:, 0]
    places = np.linspace(0, old - 1, new)
    expected = np.stack([np.interp(places, np.arange(old), channel) for channel in line.T], axis=1)
    found = resample_axis(torch.from_numpy(line), new)
    torch.testing.assert_close(found, torch.from_numpy(expected), rtol=0, atol=1e-12)


@CUBIC
def test_a_stack_of_lines_is_stretched_bicubically_line_by_line(how: Resampling, weights: Weights) -> None:
    lines = torch.randn(3, 5, 2, dtype=torch.float64)
    torch.testing.assert_close(resample_axis(lines, 8, how), weights(5, 8) @ lines, rtol=0, atol=1e-5)


def test_a_table_learns_through_the_stretching() -> None:
    given_table = torch.randn(6, 4, requires_grad=True)
    resample_grid(given_table, Grid(2, 3), Grid(4, 5)).sum().backward()
    assert given_table.grad is not None
    assert (given_table.grad > 0).all()


@pytest.mark.parametrize("new", [Grid(2, 3), Grid(3, 2), Grid(1, 6), Grid(2, 2), Grid(1, 1)])
def test_a_slice_is_the_first_rows_in_reading_order(new: Grid) -> None:
    tables = torch.randn(2, 6, 4)
    assert torch.equal(resample_grid(tables, Grid(2, 3), new, "slice"), tables[:, : new.cells()])


def test_a_slice_has_no_rows_for_more_patches() -> None:
    with raises("config.size_mismatch", "3x3", 6, "position.resampling=bilinear"):
        resample_grid(torch.randn(6, 4), Grid(2, 3), Grid(3, 3), "slice")
