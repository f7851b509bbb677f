"""Sines, cosines and rotations against loops in double precision."""

import cmath
import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from vitral.models import Grid
from vitral.models.position import rotary_angles, rotate, sincos_1d, sincos_2d

LIKE = torch.zeros(1)
GRIDS = pytest.mark.parametrize("grid", [Grid(1, 1), Grid(3, 3), Grid(2, 5), Grid(14, 9)], ids=str)


@pytest.mark.parametrize(("count", "width"), [(1, 2), (5, 6), (197, 64)])
def test_sincos_1d_interleaves_sine_and_cosine_of_the_place(count: int, width: int) -> None:
    table = sincos_1d(count, width, LIKE)
    assert table.shape == (count, width)
    for place, channel in itertools.product(range(count), range(width)):
        angle = place / 10000 ** (channel // 2 * 2 / width)
        wave = math.cos(angle) if channel % 2 else math.sin(angle)
        assert float(table[place, channel]) == pytest.approx(wave, abs=3e-5)


@GRIDS
@pytest.mark.parametrize("width", [4, 8, 24])
def test_sincos_2d_gives_columns_the_first_half_and_rows_the_second(grid: Grid, width: int) -> None:
    table, quarter = sincos_2d(grid, width, LIKE), width // 4
    assert table.shape == (grid.cells(), width)
    for row, column in itertools.product(range(grid.rows), range(grid.columns)):
        angles = [10000 ** -(i / max(1, quarter - 1)) for i in range(quarter)]  # big_vision's rates
        expected = [math.sin(column * rate) for rate in angles] + [math.cos(column * rate) for rate in angles]
        expected += [math.sin(row * rate) for rate in angles] + [math.cos(row * rate) for rate in angles]
        assert table[row * grid.columns + column].tolist() == pytest.approx(expected, abs=3e-5)


def turned(vector: Tensor, row: int, column: int, grid: Grid, base: float) -> list[float]:
    """One rotated vector by complex numbers: pair (i, i + d/2), first quarter by row, second by column."""
    numbers, half = vector.tolist(), len(vector) // 2
    quarter = half // 2
    result = [0.0] * len(vector)
    for pair in range(half):
        place, count = (row, grid.rows) if pair < quarter else (column, grid.columns)
        period = base ** (pair % quarter / quarter)
        turn = cmath.exp(2j * math.pi * (2 * (place + 0.5) / count - 1) / period)
        product = complex(numbers[pair], numbers[pair + half]) * turn
        result[pair], result[pair + half] = product.real, product.imag
    return result


@GRIDS
@pytest.mark.parametrize(("width", "base"), [(4, 100.0), (8, 100.0), (16, 10.0)])
def test_rotation_is_a_product_of_complex_numbers(grid: Grid, width: int, base: float) -> None:
    vectors = torch.randn(grid.cells(), width)
    found = rotate(vectors, rotary_angles(grid, width, base, vectors))
    for row, column in itertools.product(range(grid.rows), range(grid.columns)):
        place = row * grid.columns + column
        assert found[place].tolist() == pytest.approx(turned(vectors[place], row, column, grid, base), abs=1e-5)


def test_rounded_periods_are_those_of_bfloat16() -> None:
    like = torch.zeros(1)
    exact, rounded = (rotary_angles(Grid(1, 2), 12, 100.0, like, how) for how in ("float32", "bfloat16"))
    periods = (100.0 ** (torch.arange(3) / 3)).bfloat16().float()
    column = rounded[1, 3:]  # half way to the right
    torch.testing.assert_close(column, math.pi / periods)
    assert not torch.allclose(exact, rounded, rtol=1e-4)


@GRIDS
def test_rotation_keeps_lengths(grid: Grid) -> None:
    vectors = torch.randn(2, 3, grid.cells(), 16)
    found = rotate(vectors, rotary_angles(grid, 16, 100.0, vectors))
    assert not found.allclose(vectors, atol=1e-3) or grid.cells() == 1
    torch.testing.assert_close(found.norm(dim=-1), vectors.norm(dim=-1))


@pytest.mark.parametrize("grid", [Grid(4, 4), Grid(3, 5)], ids=str)
def test_a_product_of_rotated_vectors_depends_on_their_offset_alone(grid: Grid) -> None:
    query, key = torch.randn(2, 16)
    angles = rotary_angles(grid, 16, 100.0, LIKE)
    products = rotate(query.expand(grid.cells(), -1), angles) @ rotate(key.expand(grid.cells(), -1), angles).T
    by_offset: dict[tuple[int, int], list[float]] = {}
    for one, other in itertools.product(range(grid.cells()), repeat=2):
        (row, column), (to_row, to_column) = divmod(one, grid.columns), divmod(other, grid.columns)
        by_offset.setdefault((to_row - row, to_column - column), []).append(float(products[one, other]))
    assert len(by_offset) == (2 * grid.rows - 1) * (2 * grid.columns - 1)
    for values in by_offset.values():
        assert max(values) - min(values) < 1e-4
    means = [sum(values) / len(values) for values in by_offset.values()]
    assert min(abs(one - other) for one, other in itertools.combinations(means, 2)) > 1e-4


def test_a_step_down_turns_the_row_planes_only() -> None:
    grid = Grid(4, 4)
    angles = rotary_angles(grid, 16, 100.0, LIKE).unflatten(0, grid)  # (R, S, row planes then column planes)
    rows, columns = angles.chunk(2, dim=-1)
    assert rows.equal(rows[:, :1].expand_as(rows))
    assert columns.equal(columns[:1].expand_as(columns))
    assert (rows.diff(dim=0) > 0).all()
    assert (columns.diff(dim=1) > 0).all()


def test_the_middle_of_the_image_is_not_turned_whatever_the_grid() -> None:
    for grid in (Grid(1, 1), Grid(3, 5), Grid(7, 7)):
        assert rotary_angles(grid, 8, 100.0, LIKE)[grid.cells() // 2].abs().max() < 1e-6


Wave = Callable[[Tensor], Tensor]
WAVES: dict[str, Wave] = {
    "sincos_1d": lambda like: sincos_1d(6, 8, like),
    "sincos_2d": lambda like: sincos_2d(Grid(2, 3), 8, like),
    "rotate": lambda like: rotate(like.new_ones(6, 8), rotary_angles(Grid(2, 3), 8, 100.0, like)),
}


@pytest.mark.parametrize("name", WAVES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_wave_has_the_type_and_device_of_its_model(name: str, dtype: torch.dtype, device: str) -> None:
    found = WAVES[name](torch.zeros(1, dtype=dtype, device=device))
    assert found.shape == (6, 8)
    assert found.dtype == dtype
    assert found.device.type == device


def test_half_precision_rounds_the_wave_and_not_the_angle() -> None:
    """At place 300 a bfloat16 angle would be off by a whole radian."""
    found = sincos_1d(301, 4, torch.zeros(1, dtype=torch.bfloat16))
    torch.testing.assert_close(found.float(), sincos_1d(301, 4, LIKE), rtol=0, atol=4e-3)
