"""Attention among cells: what goes in comes out, fewer of it."""

import itertools

import pytest
import torch

from vitral.explanation.attention_distance import cell_grid, pool_attention, sum_cells
from vitral.models import Grid, Layout

LAYOUTS = pytest.mark.parametrize(
    ("layout", "shown"),
    [
        (Layout(1, 0, Grid(6, 4)), Grid(3, 2)),
        (Layout(1, 2, Grid(5, 7)), Grid(3, 3)),
        (Layout(0, 0, Grid(1, 9)), Grid(1, 4)),
        (Layout(0, 3, Grid(4, 4)), Grid(1, 1)),
    ],
)


def test_a_grid_of_at_most_sixteen_a_side_is_shown_as_it_is() -> None:
    assert cell_grid(Grid(14, 14)) == Grid(14, 14)
    assert cell_grid(Grid(16, 3)) == Grid(16, 3)
    assert cell_grid(Grid(37, 12)) == Grid(16, 12)
    attention = torch.rand(2, 10, 10)
    assert pool_attention(attention, Layout(1, 0, Grid(3, 3)), Grid(3, 3)) is attention


@LAYOUTS
def test_a_cell_looks_as_its_patches_in_the_mean_and_is_seen_as_all_of_them(layout: Layout, shown: Grid) -> None:
    attention = torch.rand(2, 3, layout.length(), layout.length(), dtype=torch.float64).softmax(dim=-1)
    found = pool_attention(attention, layout, shown)
    prefix = layout.prefix()
    groups: list[list[int]] = [[token] for token in range(prefix)]
    for row in range(shown.rows):
        for column in range(shown.columns):
            groups.append(
                [
                    prefix + cell
                    for cell in range(layout.grid.cells())
                    if cell // layout.grid.columns * shown.rows // layout.grid.rows == row
                    and cell % layout.grid.columns * shown.columns // layout.grid.columns == column
                ]
            )
    assert found.shape == (2, 3, len(groups), len(groups))
    assert sorted(itertools.chain.from_iterable(groups)) == [*range(layout.length())]
    for one, queries in enumerate(groups):
        for other, keys in enumerate(groups):
            looks = [attention[..., query, keys].sum(dim=-1) for query in queries]
            torch.testing.assert_close(found[..., one, other], torch.stack(looks).mean(dim=0))
    torch.testing.assert_close(found.sum(dim=-1), torch.ones_like(found[..., 0]))


@pytest.mark.parametrize("side", [17, 24, 37, 50])
def test_cells_differ_by_one_patch_a_side_at_most(side: int) -> None:
    layout = Layout(0, 0, Grid(side, side))
    sizes = sum_cells(torch.ones(layout.length()), layout, cell_grid(layout.grid))  # (256,)
    small = side // 16
    assert len(sizes) == 256
    assert set(sizes.tolist()) <= {small**2, small * (small + 1), (small + 1) ** 2}
