"""Windows by loops: what each holds, and that nothing is lost."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitral.models import Grid
from vitral.models.attention import join_windows, split_windows, window_mask

WINDOWS = pytest.mark.parametrize(
    ("grid", "window"),
    [
        (Grid(4, 6), Grid(2, 2)),
        (Grid(4, 6), Grid(2, 3)),
        (Grid(4, 6), Grid(1, 6)),
        (Grid(4, 6), Grid(4, 1)),
        (Grid(4, 6), Grid(4, 6)),
        (Grid(3, 3), Grid(1, 1)),
    ],
    ids=str,
)


def windows(grid: Grid, window: Grid) -> list[list[int]]:
    """The patches of each window in reading order, the windows in reading order too."""
    return [
        [
            (top + row) * grid.columns + left + column
            for row, column in itertools.product(range(window.rows), range(window.columns))
        ]
        for top in range(0, grid.rows, window.rows)
        for left in range(0, grid.columns, window.columns)
    ]


@WINDOWS
def test_each_window_holds_its_patches_in_reading_order(grid: Grid, window: Grid) -> None:
    x = torch.randn(2, 3, grid.cells(), 4)
    found = split_windows(x, grid, window)
    expected = [x[image, :, places] for image in range(2) for places in windows(grid, window)]
    assert found.equal(torch.stack(expected))


@given(
    window=st.builds(Grid, st.integers(1, 4), st.integers(1, 4)),
    down=st.integers(1, 3),
    right=st.integers(1, 3),
    batch=st.integers(1, 3),
)
def test_windows_joined_again_are_the_grid(window: Grid, down: int, right: int, batch: int) -> None:
    grid = Grid(down * window.rows, right * window.columns)
    x = torch.randn(batch, 2, grid.cells(), 3)
    assert join_windows(split_windows(x, grid, window), grid, window).equal(x)


@WINDOWS
def test_two_patches_share_a_window_or_do_not(grid: Grid, window: Grid) -> None:
    found = window_mask(grid, window)
    assert found.dtype == torch.bool
    groups = [set(places) for places in windows(grid, window)]
    for one, other in itertools.product(range(grid.cells()), repeat=2):
        assert bool(found[one, other]) == any({one, other} <= group for group in groups)
